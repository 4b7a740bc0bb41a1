"""The two clients: the operations as coroutines, and the same operations as blocking methods."""

import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from datetime import timedelta
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

from turnkeeper.client import values
from turnkeeper.client.operations import Operations, SendOptions
from turnkeeper.client.specs import Duration, span
from turnkeeper.client.transport import Blocking, OnLoop
from turnkeeper.config.home import Home, locate
from turnkeeper.errors import InvalidInput

P = ParamSpec("P")
T = TypeVar("T")
PATIENCE = timedelta(seconds=10)
TIMEOUT = timedelta(seconds=10)


class AsyncTurnkeeper(Operations):
    """Client for programs with an event loop; use it as `async with AsyncTurnkeeper() as tk:`."""

    def __init__(
        self,
        home: str | Path | None = None,
        *,
        program: str = "python",
        patience: Duration = PATIENCE,
        timeout: Duration = TIMEOUT,
    ) -> None:
        """Prepare the client; the first call connects.

        Args:
            home: the state directory; default TURNKEEPER_HOME or `~/.turnkeeper`.
            program: the program's name: letters, digits, `.`, `_` and `-`. The records of its acts contain the name.
            patience: how long a call that is safe to repeat waits for a daemon that does not answer.
            timeout: the longest duration of one call.

        Raises:
            InvalidInput: the home does not exist, or the program's name is not valid.
        """
        place = _home(home)
        super().__init__(place, OnLoop(place, f"{program}/api", span(timeout, "timeout").total_seconds()), patience)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._transport.close()


def _blocking(
    method: Callable[Concatenate[Operations, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["Turnkeeper", P], T]:
    @wraps(method)
    def call(self: "Turnkeeper", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return _at_once(method(self._operations, *args, **kwargs))

    return call


def _following(
    method: Callable[Concatenate[Operations, P], AsyncIterator[T]],
) -> Callable[Concatenate["Turnkeeper", P], Iterator[T]]:
    @wraps(method)
    def follow(self: "Turnkeeper", /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        items: Any = method(self._operations, *args, **kwargs)
        try:
            while True:
                yield _at_once(items.__anext__())
        except StopAsyncIteration:
            return
        finally:
            _at_once(items.aclose())

    return follow


def _at_once(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that never suspends, because its transport blocks."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    work.close()
    raise AssertionError("the coroutine waits for an event loop")


class Turnkeeper:
    """Client for programs. Each method blocks until it has an answer. Use it as `with Turnkeeper() as tk:`."""

    def __init__(
        self,
        home: str | Path | None = None,
        *,
        program: str = "python",
        patience: Duration = PATIENCE,
        timeout: Duration = TIMEOUT,
    ) -> None:
        """Prepare the client; the first call connects. See :class:`AsyncTurnkeeper`."""
        place = _home(home)
        self._operations = Operations(
            place, Blocking(place, f"{program}/api", span(timeout, "timeout").total_seconds()), patience
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        _at_once(self._operations._transport.close())  # noqa: SLF001  both are one client

    create_task = _blocking(Operations.create_task)
    list_tasks = _blocking(Operations.list_tasks)
    get_task = _blocking(Operations.get_task)
    update_task = _blocking(Operations.update_task)
    pause_task = _blocking(Operations.pause_task)
    resume_task = _blocking(Operations.resume_task)
    disable_task = _blocking(Operations.disable_task)
    enable_task = _blocking(Operations.enable_task)
    delete_task = _blocking(Operations.delete_task)
    run_task = _blocking(Operations.run_task)
    get_fire = _blocking(Operations.get_fire)
    list_fires = _blocking(Operations.list_fires)
    explain_task = _blocking(Operations.explain_task)
    send = _blocking(Operations.send)
    wait = _blocking(Operations.wait)
    run = _blocking(Operations.run)
    get_turn = _blocking(Operations.get_turn)
    cancel_turn = _blocking(Operations.cancel_turn)
    read_conversation = _blocking(Operations.read_conversation)
    list_approvals = _blocking(Operations.list_approvals)
    decide = _blocking(Operations.decide)
    follow = _following(Operations.follow)
    follow_live = _following(Operations.follow_live)
    follow_turns = _following(Operations.follow_turns)


def run(
    text: str,
    *,
    channel: str = "general",
    timeout: Duration = timedelta(minutes=10),
    home: str | Path | None = None,
    **options: Unpack[SendOptions],
) -> values.Result:
    """Run a turn and return its result: the agent's last message, or the state that its graph returned.

    Raises:
        TurnFailed, NeedsDecision, TimedOut: see :meth:`Turnkeeper.run`.
    """
    with Turnkeeper(home) as client:
        return client.run(text, channel=channel, timeout=timeout, **options)


def _home(given: str | Path | None) -> Home:
    place = locate(Path(given) if given is not None else None, os.environ)
    try:
        place.check()
    except InvalidInput as error:
        hint = "pass Turnkeeper(home=…) or set TURNKEEPER_HOME; to create a home: turnkeeper init"
        raise InvalidInput(error.what, where=error.where, hint=hint) from None
    place.check_sockets()
    return place
