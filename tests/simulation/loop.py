"""An event loop in virtual time, from a seed: no thread, no socket, and no wait.

Each callback belongs to a node, which is the process that it runs for. A node that is dead runs no callback any more,
and no `finally`: kill -9 leaves a process in the same way.
"""

import asyncio
import contextvars
import hashlib
import random  # noqa: TID251  seeded, so that a run can be repeated
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from datetime import UTC, datetime, timedelta
from typing import Any

START = datetime(2040, 3, 24, 22, 0, tzinfo=UTC)  # the clocks of Europe change in the following night


class Node:
    """One life of a process.

    Attributes:
        die_in: the number of callbacks after which the process dies; None if it lives.
        steps: callbacks that ran.
    """

    def __init__(self, name: str, died: Callable[[], None] = lambda: None) -> None:
        """Make a node that calls `died` if a callback of its own was its last one."""
        self.name = name
        self.is_dead = False
        self.die_in: int | None = None
        self.steps = 0
        self.died = died

    def steps_on(self) -> bool:
        """Return whether the next callback may run."""
        if self.die_in is not None and not self.is_dead:
            self.die_in -= 1
            self.is_dead = self.die_in <= 0
        self.steps += not self.is_dead
        return not self.is_dead


NODE: contextvars.ContextVar[Node | None] = contextvars.ContextVar("node", default=None)


def context_of(node: Node | None) -> contextvars.Context:
    """Return a new context whose callbacks belong to a node."""
    context = contextvars.Context()
    context.run(NODE.set, node)
    return context


class Stalled(Exception):
    """Nothing is scheduled any more, and the run is not over."""


class Delays:
    """Random delays of one kind: mostly short, sometimes long while faults are made."""

    def __init__(self, seed: str, *, shortest_s: float, usual_s: float, longest_s: float, rare: float) -> None:
        self._random = random.Random(seed)
        self._usual, self._longest_s, self._rare = (shortest_s, usual_s), longest_s, rare
        self.may_be_long = True

    def draw(self) -> float:
        """Return the next delay in seconds."""
        share = self._random.random()
        is_long = self._random.random() < self._rare and self.may_be_long
        return self._longest_s * share if is_long else self._usual[0] + self._usual[1] * share


class Loop(asyncio.BaseEventLoop):
    """A loop whose time jumps to the next callback.

    Attributes:
        trace: a digest of everything that was noted; two runs of a seed have the same one.
        lines: the notes themselves, if they are kept, with the details: statements, messages, and files.
        is_over: True once the run has ended; nothing is scheduled after it.
    """

    def __init__(self, seed: int, *, keep: bool = False) -> None:
        super().__init__()
        self._selector: Any = self
        self._now = 0.0
        self._clock_resolution = 1e-6
        self.disk = Delays(f"disk {seed}", shortest_s=0.0002, usual_s=0.004, longest_s=2.0, rare=0.02)
        self.trace = hashlib.sha256()
        self.lines: list[str] | None = [] if keep else None
        self.is_over = False
        self.reach: Callable[[str], None] = lambda _point: None  # passes a point of the protocol
        self.hidden: dict[str, str] = {}  # what differs between runs: the home's folder

    def time(self) -> float:
        return self._now

    def select(self, timeout: float | None) -> tuple[()]:
        """Advance the time to the next callback, as the loop's selector. Raises Stalled if there is none."""
        if timeout is None:
            raise Stalled
        self._now += max(0.0, timeout)
        return ()

    def _process_events(self, _events: Any) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def _check_closed(self) -> None:
        pass  # futures of dead processes are dropped after the run

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Any = None) -> asyncio.Handle:
        context = contextvars.copy_context() if context is None else context
        if self.is_over:
            return asyncio.Handle(lambda: None, (), self)
        return super().call_soon(self._step, context.get(NODE), callback, args, context=context)

    def call_soon_threadsafe(self, callback: Callable[..., Any], *args: Any, context: Any = None) -> asyncio.Handle:
        """Run a callback soon, not at once: a thread that calls wakes the loop."""
        return self.call_later(self.disk.draw() / 4, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        context = contextvars.copy_context() if context is None else context
        if self.is_over:
            return asyncio.TimerHandle(when, lambda: None, (), self)
        return super().call_at(when, self._step, context.get(NODE), callback, args, context=context)

    def run_in_executor(self, _executor: Executor | None, func: Callable[..., Any], *args: Any) -> Any:
        """Run a function in a later step, as a thread would."""
        answer: asyncio.Future[Any] = self.create_future()

        def run() -> None:
            if answer.cancelled():
                return
            try:
                result = func(*args)
            except Exception as error:  # noqa: BLE001  the caller gets it
                answer.set_exception(error)
            else:
                answer.set_result(result)

        self.call_later(self.disk.draw(), run)
        return answer

    def note(self, *what: object) -> None:
        """Add a line to the trace, unless the run is over."""
        if self.is_over:
            return
        line = self._line(what)
        self.trace.update(line.encode(errors="replace"))
        if self.lines is not None:
            self.lines.append(line)

    def detail(self, *what: object) -> None:
        """Add a line to the kept notes, with the process that acts. The digest does without details."""
        if self.lines is not None and not self.is_over:
            node = NODE.get()
            self.lines.append(self._line(("-" if node is None else node.name, *what)))

    def _line(self, what: Sequence[object]) -> str:
        line = f"{self._now:.6f} {' '.join(map(str, what))}"
        for text, name in self.hidden.items():
            line = line.replace(text, name)
        return line

    def _step(self, node: Node | None, callback: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if node is None:
            callback(*args)
            return
        was_dead = node.is_dead
        if node.steps_on():
            callback(*args)
        elif not was_dead:
            self.note("died", node.name)
            node.died()


class Clock:
    """The clock of a run: the loop's time, and a wall clock that faults step."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.ahead = timedelta()

    def now(self) -> datetime:
        return START + self.ahead + timedelta(microseconds=round(self._loop.time() * 1e6))

    def monotonic(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)  # noqa: TID251  in virtual time

    async def wait(self, event: asyncio.Event, timeout_s: float) -> bool:
        if event.is_set():
            return True
        try:
            async with asyncio.timeout(timeout_s):
                await event.wait()
        except TimeoutError:
            return False
        return True
