"""Reaching the runtime: through its service while it runs; for reading also beside it, from its store.

Names of channels, for a shell that completes them.
"""

from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Any

from protos.turnkeeper.v1 import agent_runtime_pb2 as wire
from protos.turnkeeper.v1.agent_runtime_pb2_grpc import AgentRuntimeStub
from turnkeeper.config.home import Home
from turnkeeper.console import home, note
from turnkeeper.errors import Conflict, NotFound, TurnkeeperError, Unreachable
from turnkeeper.rpc.channel import Caller

PROCESS = "agent-runtime"
Ask = Callable[[str, Any], Any]


def runtime() -> Any:
    """Return the running daemon, to call the service's methods on; a call raises Unreachable when it does not run."""
    place = home()
    place.check()
    return Caller(place.socket(PROCESS), AgentRuntimeStub, PROCESS)


def read(method: str, request: Any) -> Any:
    """Call a method that only reads: on the daemon, or on the store when the daemon does not answer."""
    caller = runtime()
    try:
        return getattr(caller, method)(request)
    except Unreachable:
        return _stored(home(), method, request)
    finally:
        caller.close()


def held(method: str, request: Any) -> Any:
    """Call a method that only reads on the store, without a word: whoever asks says so himself."""
    return _open(home(), method, request)


def change(method: str, request: Any) -> Any:
    """Call a method that changes something. Raises Unreachable when the daemon does not run."""
    caller = runtime()
    try:
        return getattr(caller, method)(request)
    finally:
        caller.close()


def pick(ids: Sequence[str], given: str, what: str) -> str:
    """Return the one id that is `given` or begins with it.

    >>> pick(["c-12ab", "c-34cd"], "c-3", "candidate")
    'c-34cd'

    Raises:
        NotFound: none does.
        Conflict: several do.
    """
    found = [given] if given in ids else [one for one in ids if given and one.startswith(given)]
    if not found:
        raise NotFound(f"no {what} {given[:80]!r}", hint=f"see: agent-runtime {what}s list")
    if len(found) > 1:
        raise Conflict(f"{given!r} begins {len(found)} {what}s: {', '.join(found[:4])}", hint="give more of it")
    return found[0]


def _stored(place: Home, method: str, request: Any) -> Any:
    _say_once()
    return _open(place, method, request)


@cache
def _say_once() -> None:
    note("agent-runtime does not answer; this is what its store holds")


def _open(place: Home, method: str, request: Any) -> Any:
    # SQLAlchemy takes longer to import than a call to the daemon takes: load it only where it is needed.
    return import_module("agent_runtime.service.reads").read_stored(place, method, request)


def complete_channel(incomplete: str) -> list[str]:
    """Return the channels that a channel's name may be completed to; none where nobody can tell."""
    request = wire.ListChannelsRequest()
    try:
        caller = runtime()
        try:
            found = caller.ListChannels(request, deadline_s=1.0)
        except Unreachable:
            found = held("ListChannels", request)
        finally:
            caller.close()
    except TurnkeeperError:
        return []
    return sorted(channel.name for channel in found.channels if channel.name.startswith(incomplete))
