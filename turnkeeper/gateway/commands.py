"""The commands `turnkeeper web`: serve the gateway, log a browser in, and make keys for clients."""

import os
import socket
import sys
import webbrowser
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from turnkeeper.bus.event_log import record_act
from turnkeeper.clock import SystemClock
from turnkeeper.config.build import install_command
from turnkeeper.config.home import Home
from turnkeeper.config.settings import WebSettings, load_settings
from turnkeeper.console import home, note
from turnkeeper.console.commands import App
from turnkeeper.console.lists import Listed, columns, listing
from turnkeeper.entropy import SystemEntropy
from turnkeeper.errors import InvalidInput, Unreachable
from turnkeeper.gateway.keys import Keys, login_page, sign_token
from turnkeeper.storage.files import replace_whole
from turnkeeper.storage.locking import is_held

web = App("The page in the browser, the LangGraph API and MCP over HTTP, on this machine.")
keys = App("Keys for clients of the LangGraph API and of MCP.")
web.add_typer(keys, name="keys")

_COLUMNS = columns("NAME KEY SCOPE CREATED=created_at")


@web.command()
def serve() -> None:
    """Serve in the foreground until SIGTERM or Ctrl-C. If `[web] enabled = true`, `turnkeeper up` starts the gateway.

    Example: turnkeeper web serve
    """
    place = home()
    load_settings(place)
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        hint = f"run: {install_command('turnkeeper[web]')}"
        raise InvalidInput("the required packages are not installed", where="turnkeeper web", hint=hint)
    os.execv(sys.executable, [sys.executable, "-P", "-m", "turnkeeper.gateway", str(place.root)])  # noqa: S606  becomes the server


@web.command("open")
def open_(
    print_: Annotated[bool, typer.Option("--print", help="Only print the address.")] = False,
    plain_host: Annotated[
        bool, typer.Option(help="Log in at 127.0.0.1, if the browser cannot resolve turnkeeper.localhost.")
    ] = False,
) -> None:
    """Log a browser in: open the page with a token that is valid once, and only for one minute.

    The browser opens a local file that redirects to the page. Other users of the machine can read the arguments of a
    program, but not this file. If the browser may not read the file either, paste the printed address.

    With --plain-host, the browser also sends the login cookie to other programs on 127.0.0.1 whose pages you open.

    Example: turnkeeper web open
    """
    place = home()
    settings, clock = load_settings(place).web, SystemClock()
    if not is_held(place, "web"):
        raise _not_served(place, settings)
    token = sign_token(Keys(place).login_secret(), clock.now(), SystemEntropy(), plain_host=plain_host)
    host = "127.0.0.1" if plain_host else "turnkeeper.localhost"
    origin = settings.public_origin or f"http://{host}:{settings.port}"
    address = f"{origin}/#token={token}"
    print(address, flush=True)
    if print_:
        return
    if webbrowser.open(_leading_to(address, place).as_uri()):
        note("if the browser may not read the file (snap, flatpak), paste this address into it, within a minute")
    else:
        note("no browser was found: open this address within a minute")


def _not_served(place: Home, settings: WebSettings) -> Unreachable:
    what, hint = "the page is not served", "run: turnkeeper up; if it was up, its reason is in: turnkeeper logs"
    if not settings.enabled:
        hint = f"set enabled = true below [web] in {place.config}, and run: turnkeeper up; or run: turnkeeper web serve"
    else:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", settings.port)) == 0:
                what = f"{what}: another program uses port {settings.port}"
                hint = f"set another port below [web] in {place.config}, and run: turnkeeper up --restart"
    return Unreachable(what, where=str(place.root), hint=hint)


def _leading_to(address: str, place: Home) -> Path:
    """Write a page with mode 0600 that redirects a browser to an address. Return its path."""
    path, link = login_page(place), escape(address)
    leads = f'<meta http-equiv="refresh" content="0;url={link}"><title>Turnkeeper</title><a href="{link}">Log in</a>'
    replace_whole(path, f'<!doctype html><meta charset="utf-8">{leads}\n'.encode())
    return path


@keys.command("list")
@listing(_COLUMNS, "name")
def list_() -> Listed:
    """List the keys without their secrets.

    Example: turnkeeper web keys list
    """
    rows = [
        {"name": key.name, "key": key.id, "scope": key.scope, "created_at": key.created_at}
        for key in Keys(home()).all()
    ]
    return Listed(rows, "" if rows else "no key yet; make one: turnkeeper web keys make NAME")


@keys.command("make")
def make(
    name: Annotated[str, typer.Argument(help="Your name for the client.")],
    scope: Annotated[
        str, typer.Option(help="read: view; work: also send, cancel, schedule; decide: also answer approvals.")
    ] = "work",
) -> None:
    """Make a key and print it once. Only its digest is stored.

    Example: turnkeeper web keys make my-editor --scope work
    """
    place, clock = home(), SystemClock()
    key, text = Keys(place).make(name, scope, clock.now(), SystemEntropy())
    record_act(place.logs, "turnkeeper", "web keys make", f"{key.name} {key.id} {key.scope}", clock)
    print(text)
    note(f"{key.name} may {key.scope}; the key is shown only now")


@keys.command("revoke")
def revoke(name: Annotated[str, typer.Argument(help="The name or the id of a key.")]) -> None:
    """Remove a key. From now on, its holder is refused.

    Example: turnkeeper web keys revoke my-editor
    """
    place = home()
    key = Keys(place).revoke(name)
    record_act(place.logs, "turnkeeper", "web keys revoke", f"{key.name} {key.id}", SystemClock())
    note(f"{key.name} ({key.id}) is revoked")
