"""The `turnkeeper` command."""

import sys

import typer

from constellation.cli import home, inspect, lifecycle, watchdog
from turnkeeper.console import run

app = typer.Typer(
    help="Run scheduled work for an AI agent: start it, stop it, check its health.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("init")(home.init)
app.command("demo")(home.demo)
app.command("up")(lifecycle.up)
app.command("down")(lifecycle.down)
app.command("restart")(lifecycle.restart)
app.command("status")(inspect.status)
app.command("doctor")(inspect.doctor)
app.command("backup")(home.backup)
app.command("restore")(home.restore)
app.command("logs")(inspect.logs)
app.command("quiet", hidden=True)(watchdog.suspend)
app.add_typer(lifecycle.service, name="service")
app.add_typer(watchdog.app, name="watchdog")
app.add_typer(home.config, name="config")


def main() -> None:
    """Run the command line."""
    sys.exit(run(app, sys.argv[1:]))
