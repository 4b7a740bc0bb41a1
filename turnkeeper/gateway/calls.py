"""Code that the gateway's surfaces share: calls of both daemons, the caller's identity, and errors as HTTP statuses."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, Response

from turnkeeper import errors
from turnkeeper.clock import Clock
from turnkeeper.config.home import Home
from turnkeeper.config.settings import Settings
from turnkeeper.entropy import Entropy
from turnkeeper.gateway.keys import Scope, Session, Sessions
from turnkeeper.rpc.channel import AsyncCaller

PROGRAM = "gateway"
MOST_STREAMS = 64
MOST_OF_ONE = 8
MOST_OF_API = 32  # for each key of LangGraph's clients, which open several streams for each thread
SILENT = (errors.Unreachable, errors.MachineTrouble)  # the daemon does not answer now, and may answer soon
_STATUS: dict[type[errors.TurnkeeperError], int] = {
    errors.InvalidInput: 422,
    errors.NotFound: 404,
    errors.Conflict: 409,
    errors.Denied: 403,
    errors.Unreachable: 503,
    errors.Exhausted: 503,
    errors.MachineTrouble: 503,
}


@dataclass(frozen=True, kw_only=True)
class Who:
    """The caller of a request, as the door identified it.

    Attributes:
        surface: `web`, `api` or `mcp`; empty for a path that needs no identity.
        program: the gateway, or the name that an MCP client gives itself.
        key: the id of the client's key; empty for a browser, and for an MCP client that the person started.
        session: the browser's session; None for a client with a key.
        is_guest: True for a user of the login of an author's project.
        filters: the filters of that login. A thread or an assistant that does not match all filters is not shown.
    """

    surface: str
    program: str = PROGRAM
    scope: Scope | None = None
    key: str = ""
    session: Session | None = None
    is_guest: bool = False
    filters: Sequence[Mapping[str, Any]] = ()

    @property
    def via(self) -> str:
        """The caller's identity that the gateway sends to the daemons."""
        return "/".join(filter(None, (self.program, self.surface, self.key)))

    def check(self, scope: Scope) -> None:
        """Raise Denied if the caller's scope does not include this one."""
        if self.scope is None or self.scope < scope:
            what = f"this key may not do that: it takes the scope {scope.name.lower()}"
            raise errors.Denied(what, hint="make another key: turnkeeper web keys make NAME --scope SCOPE")

    def sees(self, metadata: Mapping[str, Any]) -> bool:
        """Return True if all filters match the metadata. Raises InvalidInput for an unknown filter."""
        found = [_fits(metadata, one) for one in self.filters]
        return all(found)


def _fits(held: Mapping[str, Any], wanted: Any) -> bool:
    """Return True if metadata matches a filter. Each part of the filter is read, so an unknown part is always found."""
    if not isinstance(wanted, Mapping):
        raise errors.InvalidInput("is not an object", where="filter of the project's login")
    found = []
    for key, value in wanted.items():
        operator, given = next(iter(value.items())) if isinstance(value, Mapping) and len(value) == 1 else ("", None)
        if key in {"$or", "$and"} and isinstance(value, list) and value:
            found.append((any if key == "$or" else all)([_fits(held, one) for one in value]))
        elif operator == "$eq" or not (isinstance(value, Mapping) or key.startswith("$")):
            found.append(key in held and held[key] == (given if operator else value))
        elif operator == "$contains":
            inside, parts = held.get(key), given if isinstance(given, list) else [given]
            parts = list(given.items()) if isinstance(given, Mapping) else parts
            inside = list(inside.items()) if isinstance(inside, Mapping) else inside
            found.append(isinstance(inside, list) and all(part in inside for part in parts))
        else:
            hint = "use a value, $eq, $contains, $or or $and"
            raise errors.InvalidInput(f"{key[:40]!r} is not known", where="filter of the project's login", hint=hint)
    return all(found)


def who_of(request: HTTPConnection) -> Who:
    who: Who = request.scope["who"]
    return who


def need(request: HTTPConnection, scope: Scope) -> Who:
    """Return the caller of a request if its scope suffices. Raises Denied."""
    who = who_of(request)
    who.check(scope)
    return who


def status_of(error: errors.TurnkeeperError) -> int:
    """Return the HTTP status of an error: never 501, because clients retry it; 503 if a retry can help."""
    return next((_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS), 500)


async def refuse(_request: HTTPConnection, error: Exception) -> Response:
    """Answer an error meant for the caller as JSON; surfaces register this function as an exception handler."""
    if not isinstance(error, errors.TurnkeeperError):
        raise error
    return JSONResponse({"detail": str(error)}, status_of(error))


class Streams:
    """The counter of open streams: at most :data:`MOST_STREAMS` in all, and :func:`most_of` for each session or key."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    def enter(self, who: Who) -> str | None:
        """Count one more stream. Return its name for :meth:`leave`, or None if there are too many."""
        name = _client(who)
        if self.full(who):
            return None
        self._open[name] += 1
        return name

    def full(self, who: Who) -> bool:
        """Return True if there is no room for one more stream."""
        return self._open.total() >= MOST_STREAMS or self._open[_client(who)] >= most_of(who)

    def leave(self, name: str) -> None:
        self._open[name] -= 1
        self._open += Counter()  # drop callers without streams

    @property
    def open(self) -> int:
        return self._open.total()


def most_of(who: Who) -> int:
    return MOST_OF_API if who.surface == "api" else MOST_OF_ONE


def _client(who: Who) -> str:
    return f"{who.surface}/{who.session.id if who.session else who.key}"


class Gateway:
    """The parts that all surfaces share, such as channels to both daemons, which connect by themselves."""

    def __init__(self, home: Home, settings: Settings, sessions: Sessions, *, clock: Clock, entropy: Entropy) -> None:
        self.home, self.settings, self.sessions = home, settings, sessions
        self.clock, self.entropy, self.streams = clock, entropy, Streams()
        self._daemons = AsyncCaller(home)

    def daemons(self, who: Who) -> AsyncCaller:
        """Return the methods of both daemons, called on behalf of `who`."""
        return self._daemons.by(who.via)

    async def close(self) -> None:
        await self._daemons.close()


class Offered(NamedTuple):
    """The application that a package of the gateway provides.

    Attributes:
        app: an ASGI application, mounted under the surface's path.
        running: a context that is open while the gateway serves.
        checks_callers: True if the application identifies its callers itself, so that the door asks for no key.
    """

    app: Any
    running: Callable[[], AbstractAsyncContextManager[object]] = nullcontext
    checks_callers: bool = False
