"""The `turnkeeper` command."""

import sys

import typer

from constellation.cli import backup, config, demo, doctor, home, lifecycle, restart, service, status, watchdog
from turnkeeper.console import run

app = typer.Typer(
    help="Standing work for an AI agent: start it, stop it, see that it is well.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("init")(home.init)
app.command("demo")(demo.demo)
app.command("up")(lifecycle.up)
app.command("down")(lifecycle.down)
app.command("restart")(restart.restart)
app.command("status")(status.status)
app.command("doctor")(doctor.doctor)
app.command("backup")(backup.backup)
app.command("restore")(backup.restore)
app.command("logs")(watchdog.logs)
app.command("quiet")(watchdog.quiet)
app.add_typer(service.app, name="service")
app.add_typer(watchdog.app, name="watchdog")
app.add_typer(config.app, name="config")


def main() -> None:
    """Run the command line."""
    sys.exit(run(app, sys.argv[1:]))
