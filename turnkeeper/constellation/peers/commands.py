"""`turnkeeper peers`: pair with another home, show the connections to peers, and end a pairing."""

import asyncio
import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from turnkeeper import console
from turnkeeper.bus.event_log import record_act
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.config.settings import load_settings
from turnkeeper.config.toml_file import read_text
from turnkeeper.console.commands import App
from turnkeeper.console.lists import Listed, columns, listing, shown
from turnkeeper.constellation.peers import exchange, pairing
from turnkeeper.entropy import SystemEntropy
from turnkeeper.errors import Corrupt, InvalidInput
from turnkeeper.rpc.pages import page_of
from turnkeeper.storage.locking import is_held, reader_of
from turnkeeper.times import parse_duration, rfc3339

app = App("Pair with other homes, so that this one's first agent can work with theirs.")
Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the other home here.")]
_COLUMNS = columns(
    "NAME AGENT ADDRESS ADDED=added_at KEY +WHOLE_KEY=fingerprint", key=lambda row: str(row["fingerprint"])[:17]
)
_STATES = columns(
    "NAME STATE SINCE WAITING UNANSWERED DELIVERED=delivered_at +REASON", since=lambda row: shown(row["since"])
)
_NO_PEER = "no peer yet: turnkeeper peers invite NAME"
_PROCESS = "peers"
_SET = "nothing listens for peers now: set enabled = true below [peers] in config.toml; run: turnkeeper up, or logs"


def _address(place: Home) -> str:
    settings = load_settings(place).peers
    address = settings.address or settings.listen
    if not address:
        hint = "write it into config.toml under [peers], with enabled = true; then run: turnkeeper up"
        raise InvalidInput("is not set: peers could not reach this home", where="[peers] listen", hint=hint)
    if address.rpartition(":")[0] in {"0.0.0.0", "[::]"}:  # noqa: S104  it is refused
        what, hint = "is not set", 'write the name by which the other home reaches this one: address = "HOST:PORT"'
        raise InvalidInput(f"{what}, and listen = {address!r} names no machine", where="[peers] address", hint=hint)
    return address


@app.command()
def invite(
    name: Name,
    valid: Annotated[str, typer.Option(metavar="DURATION", help="How long it is valid.")] = "1h",
) -> None:
    """Print an invitation for one home, which another person accepts with `turnkeeper peers add`.

    Give the invitation only to that person: the first home that accepts it becomes the peer NAME.

    Example: turnkeeper peers invite ada
    """
    place, clock, entropy = console.home(), SystemClock(), SystemEntropy()
    address, now = _address(place), clock.now()
    own = pairing.open_identity(place, entropy, now)
    secret = bytes.fromhex(entropy.hex(64))
    until = now + parse_duration(valid)
    fresh = pairing.OpenInvitation(
        name=name, certificate=pairing.der_text(pairing.identity_from(secret, now).root), until=rfc3339(until)
    )
    with pairing.changing(place) as box:
        box[0] = box[0].with_invitation(fresh, now)
    record_act(place.logs, _PROCESS, "peers invite", name, clock)
    print(pairing.Invitation(address, own.root, secret, until).written())
    console.note(f"send this line to {name}, who accepts it by {console.when(until)} with:")
    console.note("  turnkeeper peers add NAME    (NAME: the name of this home over there)")
    if not is_held(place, _PROCESS):
        console.note(_SET)


@app.command()
def add(
    name: Name,
    file: Annotated[str, typer.Argument(metavar="[FILE]", help="File with the invitation; -: standard input.")] = "",
) -> None:
    """Accept an invitation. From then on, both homes know each other's key.

    Without a file, the command asks you to paste it. The invitation is a secret, so it is not an argument: other users
    of the machine can read the arguments of programs.

    Example: turnkeeper peers add grace
    """
    place, clock, entropy = console.home(), SystemClock(), SystemEntropy()
    _refuse_argument(file)
    address, now = _address(place), clock.now()
    given = pairing.read_invitation(_pasted(file))
    if given.until <= now:
        raise InvalidInput(f"ended {rfc3339(given.until)}", where="INVITATION", hint="ask for another")
    own = pairing.open_identity(place, entropy, now)
    fresh = pairing.Peer(
        name=name, address=given.address, certificate=pairing.der_text(given.root), added_at=rfc3339(now)
    )
    if fresh.fingerprint == own.fingerprint:
        raise InvalidInput("comes from this home", where="INVITATION", hint="another person accepts it")
    pairing.read_registry(place).with_peer(fresh)
    asyncio.run(exchange.accept(given, own, address, clock))
    pairing.add_peer(place, fresh, now)
    record_act(place.logs, _PROCESS, "peers add", f"{name} {fresh.fingerprint}", clock)
    console.note(f"paired with {name}, {given.address}; its key is {fresh.fingerprint}")
    console.note(f"agent0 can now send to agent0@{name}; a task does with: --agent agent0@{name}")
    if not is_held(place, _PROCESS):
        console.note(_SET)


def _refuse_argument(file: str) -> None:
    """Raise InvalidInput if the argument is an invitation instead of a file."""
    if file.startswith(pairing.PREFIX):
        hint = "ask for another, then run: turnkeeper peers add NAME; it asks for the invitation"
        raise InvalidInput("must not be an argument: other users can read arguments", where="INVITATION", hint=hint)


def _pasted(file: str) -> str:
    """Return the invitation from a file, standard input or the author. Raises InvalidInput."""
    if file in {"", "-"}:
        asks = not file and sys.stdin.isatty()
        return str(typer.prompt("Invitation", hide_input=True, err=True)) if asks else sys.stdin.read()
    return read_text(Path(file))


@app.command("list")
@listing(_COLUMNS, "name")
def list_() -> Listed:
    """List the homes that this one is paired with.

    Example: turnkeeper peers list
    """
    place = console.home()
    rows = [
        {"name": one.name, "agent": one.agent, "address": one.address, "added_at": one.added_at}
        | {"fingerprint": one.fingerprint}
        for one in pairing.read_registry(place).peers
    ]
    return Listed(rows, _own_key(place) if rows else _NO_PEER)


@app.command()
@console.watched
def status(
    cursor: console.CursorOption = "",
    limit: console.LimitOption = 1000,
    output: console.OutputOption = console.Output.TABLE,
) -> None:
    """Show the connection to each peer, the messages that wait for it, and its messages that are not answered yet.

    Example: turnkeeper peers status
    """
    place = console.home()
    runs, contacts = is_held(place, _PROCESS), _contacts(place)
    rows = []
    for one in pairing.read_registry(place).peers:
        folder, says = place.inbox(one.agent), contacts.get(one.name, {})
        if not runs or not reader_of(folder):
            says = {"reason": "the process peers does not run" if not runs else "no program reads its inbox"}
        rows.append(
            {"name": one.name, "state": says.get("state", "unknown"), "since": says.get("since", "")}
            | {"waiting": _count(folder / "inbox") + _count(folder / "claimed")}
            | {"unanswered": _count(pairing.asked_of(place, one.name))}
            | {"delivered_at": says.get("delivered_at", ""), "reason": says.get("reason", "")}
        )
    page, told = page_of(rows, "name", limit=limit, cursor=cursor)
    reasons = [f"{row['name']}: {row['reason']}" for row in page if row["reason"]]
    footer = "\n".join(reasons) if rows else _NO_PEER
    console.show_page(page, _STATES, output, name_key="name", page=told, footer=footer)


@app.command()
def delete(name: Name, yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")] = False) -> None:
    """End the pairing with a peer. It can no longer connect, and nothing is sent to it.

    Messages that it received stay there. Example: turnkeeper peers delete ada
    """
    place, clock = console.home(), SystemClock()
    gone = pairing.read_registry(place).peer(name)
    folder = place.inbox(gone.agent)
    waits = _count(folder / "inbox") + _count(folder / "claimed")
    if not yes and sys.stdin.isatty():
        typer.confirm(f"Part from {name}? {waits} messages wait; they will not be delivered.", abort=True, err=True)
    aside = pairing.remove_peer(place, name, clock.now())
    record_act(place.logs, _PROCESS, "peers delete", name, clock)
    console.note(f"parted from {name}")
    if aside is not None:
        console.note(f"messages that waited: {waits}; no later peer gets them. All is kept in {aside}")
    console.note("the other person must run the same command there before you pair again")


def _own_key(place: Home) -> str:
    """Print the key that identifies this home to peers, so that two people can compare it."""
    clock = SystemClock()
    with suppress(Corrupt):
        return f"this home's own key: {pairing.open_identity(place, SystemEntropy(), clock.now()).fingerprint}"
    return "this home's own key is lost: see turnkeeper doctor"


def _contacts(place: Home) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        says = json.loads((place.run / "peers.contacts").read_bytes())
        return says if isinstance(says, dict) else {}
    return {}


def _count(folder: Any) -> int:
    return sum(not name.startswith(".") for name in os.listdir(folder)) if folder.is_dir() else 0
