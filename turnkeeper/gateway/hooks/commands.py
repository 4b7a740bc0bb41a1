"""`turnkeeper hooks`: the webhooks that this home accepts."""

import sys
from typing import Annotated

import typer

from turnkeeper import console
from turnkeeper.bus.event_log import record_act
from turnkeeper.clock import SystemClock
from turnkeeper.config.settings import load_settings
from turnkeeper.console.commands import App
from turnkeeper.console.lists import Listed, columns, listing
from turnkeeper.entropy import SystemEntropy
from turnkeeper.errors import InvalidInput
from turnkeeper.gateway.door import page_of
from turnkeeper.gateway.hooks import registry
from turnkeeper.storage.locking import is_held

app = App("Webhooks that this home accepts: each request becomes an event, for which tasks wait.")
Name = Annotated[str, typer.Argument(metavar="NAME", help="The webhook's name, the last part of its URL.")]
_COLUMNS = columns("NAME EVENT STYLE URL")


@app.command()
def add(
    name: Name,
    event: Annotated[str, typer.Option(help="The event that a request becomes; default hook.NAME.")] = "",
    style: Annotated[
        str, typer.Option(help="How the sender signs: standard (Standard Webhooks) or github.")
    ] = "standard",
    secret: Annotated[str, typer.Option(help="-: ask for the sender's key; default: make one and print it.")] = "",
) -> None:
    """Accept a webhook at `/hooks/NAME` of the page's address. Its body is the data of the event.

    Example: turnkeeper hooks add deploys
    """
    place, clock = console.home(), SystemClock()
    if secret not in {"", "-"}:
        raise InvalidInput("must not be an argument: other users can read arguments", where="--secret", hint="use -")
    asks = secret == "-"  # noqa: S105
    key = registry.new_secret(SystemEntropy())
    if asks:
        key = typer.prompt("Key", hide_input=True, err=True) if sys.stdin.isatty() else sys.stdin.read().strip()
    registry.add(place, name, registry.Hook(event=event or f"hook.{name}", secret=key, style=style))
    record_act(place.logs, "turnkeeper", "hooks add", name, clock)
    web = load_settings(place).web
    console.note(f"POST to {page_of(web)}/hooks/{name}")
    console.note(f"a task fires for it with: --on {event or f'hook.{name}'}")
    if not asks:
        console.note("the key of its signatures, shown this once:")
        print(key)
    if not is_held(place, "web"):
        console.note("nothing listens yet: set enabled = true below [web] in config.toml; then run: turnkeeper up")


@app.command("list")
@listing(_COLUMNS, "name")
def list_() -> Listed:
    """List the webhooks, without their keys.

    Example: turnkeeper hooks list
    """
    place = console.home()
    origin = page_of(load_settings(place).web)
    rows = [
        {"name": name, "event": one.event, "style": one.style, "url": f"{origin}/hooks/{name}"}
        for name, one in registry.FILE.read(place).items()
    ]
    return Listed(rows, "" if rows else "no webhook yet: turnkeeper hooks add NAME")


@app.command()
def delete(name: Name) -> None:
    """Delete a webhook. From now on, its requests are refused.

    Example: turnkeeper hooks delete deploys
    """
    place = console.home()
    registry.FILE.remove(place, name)
    record_act(place.logs, "turnkeeper", "hooks delete", name, SystemClock())
    console.note(f"{name} deleted")
