"""Calls to the runtime. If the daemon does not run, requests that only read are answered from its store.

`serve` runs the daemon itself in the foreground.
"""

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import cache, partial
from importlib import import_module
from typing import Any

from agent_runtime.model.mapping import Row, to_json
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.console import home, named_home, note
from turnkeeper.errors import Conflict, TurnkeeperError, Unreachable, the_one
from turnkeeper.rpc.channel import Caller
from turnkeeper.storage.locking import is_held
from turnkeeper.v1 import agent_runtime_pb2 as wire

PROCESS = "agent-runtime"
_WANTS_OBJECT = ("has no attribute 'get'", "is not subscriptable", "indices must be integers")  # in a graph's error
ANSWER_S, LOOK_S = 3.0, 0.1  # seconds that a command waits for a graph to fail on its answer; seconds between two polls
Ask = Callable[..., Any]  # takes a request, and a method's name if the request does not imply the method


def runtime(surface: str = "cli") -> Any:
    """Return a caller of the running daemon's methods; a call raises Unreachable if the daemon does not run."""
    return Caller(home(), via=f"{PROCESS}/{surface}")


def read(request: Any) -> Any:
    """Send a request that only reads: to the daemon, or to the store if the daemon does not answer."""
    try:
        return change(request)
    except Unreachable:
        _note_once(named_home())
        return held(request)


def held(request: Any) -> Any:
    """Answer a reading request from the store, without printing a note."""
    # Importing SQLAlchemy takes longer than a call to the daemon, so it is imported only here.
    return import_module("agent_runtime.service.reads").read_stored(named_home(), _method_of(request), request)


def change(request: Any, method: str = "", surface: str = "cli") -> Any:
    """Send a request to the method of the daemon that has the request's name. Raises Unreachable if no daemon runs."""
    with closing(runtime(surface)) as caller:
        return getattr(caller, method or _method_of(request))(request)


def _method_of(request: Any) -> str:
    return str(request.DESCRIPTOR.name.removesuffix("Request"))


def refused(decided: Row) -> str:
    """Return the error of a graph that failed on the answer just given; empty if the graph accepted the answer.

    A graph that runs for longer than `ANSWER_S` has accepted it. If the daemon stops meanwhile, the decision stands.
    """
    clock = SystemClock()
    until = clock.monotonic() + ANSWER_S
    with suppress(Unreachable):
        while clock.monotonic() < until:
            waiting = change(wire.ListInterruptsRequest(thread_id=decided["thread_id"])).interrupts
            if again := [one for one in waiting if one.interrupt_id == decided["interrupt_id"]]:
                return again[0].message or "it asks again"
            status = change(wire.GetTurnRequest(turn_id=decided["turn_id"])).status
            if waiting or status not in {"interrupted", "running"}:
                return ""
            clock.block(LOOK_S)
    return ""


def again(decided: Row, error: str) -> str:
    """Return a hint for an answer that made the graph fail."""
    command = f"turnkeeper approvals resolve {decided['interrupt_id'][:10]} --answer"
    if not any(mark in error for mark in _WANTS_OBJECT):
        return f"the question is pending again; answer differently: {command} …"
    yes = {"approve": '{"approved": true}', "reject": '{"approved": false}'}.get(decided["decision"], "{…}")
    return f"the question is pending again; its node may expect an object: {command} '{yes}'"


change_in_conversation = partial(change, surface="conversation")


def rows(ask: Ask, request: Any) -> list[Row]:
    """Return the listed rows of an answer, as JSON objects."""
    listed = [value for field, value in ask(request).ListFields() if field.message_type is not None]
    return [to_json(message) for message in listed[0]] if listed else []


def find(found: Sequence[Row], key: str, given: str, what: str) -> Row:
    """Return the only row whose id is `given` or begins with it.

    >>> find([{"id": "c-12ab"}, {"id": "c-34cd"}], "id", "c-3", "candidate")
    {'id': 'c-34cd'}

    Raises:
        NotFound: no row has such an id.
        Conflict: several rows have such an id.
    """
    named = the_one([row[key] for row in found], given, what, see=f"see: turnkeeper {what}s list")
    return next(row for row in found if row[key] == named)


@cache
def _note_once(place: Home) -> None:
    note("agent-runtime does not answer; this is the state in its store")
    if why := place.waits_for_takeover():
        note(f"{why[0]}: {why[1]}")
    older = import_module("turnkeeper.storage.schema_revision")
    if place.agent_db in older.older_stores(place):
        note(older.told(place.agent_db))


def complete_channel(incomplete: str) -> list[str]:
    """Return the channels whose names begin with this text, for a shell; none if neither daemon nor store answers."""
    request = wire.ListChannelsRequest()
    try:
        with closing(runtime()) as caller:
            try:
                found = caller.ListChannels(request, deadline_s=1.0)
            except Unreachable:
                found = held(request)
    except TurnkeeperError:
        return []
    return sorted(channel.name for channel in found.channels if channel.name.startswith(incomplete))


def serve() -> None:
    """Run the daemon in the foreground. On SIGTERM or Ctrl-C, it ends after running turns reach their next checkpoint.

    `turnkeeper up` starts the daemon in the background, with the task runner. Use `serve` for service managers.

    Example: agent-runtime serve --home ~/.turnkeeper
    """
    place = home()
    if is_held(place, PROCESS):
        raise Conflict(f"{PROCESS} already runs on this home", where=str(place.root), hint="stop it: turnkeeper down")
    sys.stdout.flush()
    # Start a fresh process image, because the daemon sets LangGraph's environment before its first import.
    os.execv(  # noqa: S606  our own interpreter and module
        sys.executable, [sys.executable, "-P", "-m", "agent_runtime.daemon", "--home", str(place.root)]
    )
