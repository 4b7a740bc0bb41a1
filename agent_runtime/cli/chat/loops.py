"""The command `/loop` in conversations: lines about loops, which the runner carries out, and the loops of a channel.

Only text that an author types is parsed: the text of `send`, and the prompt of `conversation show --follow`. Text from
agents, tools, other programs and pipes is always a message, even if it begins with /loop.
"""

import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from agent_runtime.cli.client import change
from turnkeeper.clock import SystemClock
from turnkeeper.console import named_home
from turnkeeper.errors import NotFound, TurnkeeperError
from turnkeeper.rpc.channel import Caller
from turnkeeper.times import format_rough, shown_in
from turnkeeper.v1 import agent_runtime_pb2 as wire
from turnkeeper.v1 import schedules_pb2 as runner_wire

HELP = (
    '/loop 15m PROMPT · /loop PROMPT every 2 hours · /loop "0 9 * * 1-5" PROMPT · /loop PROMPT paces itself · '
    "/loop list · /loop stop [ID] · //loop … sends the line as a message"
)
REFRESH_S = 1.0
MOST_SHOWN = 3
_OVER = frozenset({"disabled", "done", "expired"})
_LONGEST = 60  # characters of a prompt


def held_tasks(channel: str) -> list[str]:
    """Return a sentence for each waiting task of a channel; none if the task runner does not answer."""
    try:
        with closing(Caller(named_home(), via="agent-runtime/cli")) as runner:
            tasks = runner.ListTasks(runner_wire.ListTasksRequest(channel=channel)).tasks
    except TurnkeeperError:
        return []
    return [f"task {task.spec.name} waits for {task.waits_for}" for task in tasks if task.waits_for]


@dataclass(frozen=True, kw_only=True)
class Order:
    """An order about loops: make a loop from these words, list loops, stop one loop or all, or show help."""

    does: Literal["make", "list", "stop", "help"]
    text: str = ""


def parse_order(line: str) -> Order | None:
    """Parse a line as an order; None if the line is a message. Pure.

    >>> parse_order("/loop 15m check the build")
    Order(does='make', text='15m check the build')
    >>> parse_order("/loop stop loop-1"), parse_order("/loops are fun"), parse_order("//loop list")
    (Order(does='stop', text='loop-1'), None, None)
    """
    verb, _, rest = line.strip().partition(" ")
    rest = rest.strip()
    if verb != "/loop":
        return None
    if rest in {"", "help"}:
        return Order(does="help")
    if rest == "list":
        return Order(does="list")
    first, *others = rest.split()
    if first == "stop" and len(others) <= 1:
        return Order(does="stop", text="".join(others))
    return Order(does="make", text=rest)


def message_of(line: str) -> str:
    """Return a line as a message: `//loop` becomes `/loop`."""
    return line.replace("//loop", "/loop", 1) if line.lstrip().startswith("//loop") else line


def carry_out(order: Order, channel: str, *, thread_id: str = "", new: bool = False, surface: str = "cli") -> list[str]:
    """Carry out an order; return lines about the result.

    A loop belongs to the conversation in which it is made, so its turns continue that thread. Raises TurnkeeperError.
    """
    if order.does == "help":
        return [HELP]
    with closing(Caller(named_home(), via=f"agent-runtime/{surface}")) as caller:
        if order.does == "make":
            return _make(caller, order.text, channel, "" if new else thread_id or _thread_of(channel))
        loops = loops_of(caller, channel)
        if order.does == "list":
            now = SystemClock().now()
            return [line_of(loop, now) for loop in loops] or [f"no loop in {channel}"]
        return _stop(caller, loops, order.text, channel)


def _thread_of(channel: str) -> str:
    """Return the thread of a channel's conversation; empty if the channel has no thread yet."""
    look = change(wire.SendMessageRequest(channel=channel, look=True))
    return str(look.thread_id) if look.continues else ""


def _make(caller: Any, words: str, channel: str, thread_id: str) -> list[str]:
    spec = runner_wire.TaskSpec(channel=channel)
    if thread_id:
        spec.thread_id = thread_id
    made = caller.CreateTask(runner_wire.CreateTaskRequest(spec=spec, loop=True, words=words))
    task = made.task
    paced = task.spec.dynamic
    how = "at its own pace, and ends when you write here" if paced else task.schedule.removesuffix(", exactly")
    lines = [f"{task.id} runs {how}: {task.spec.prompt}", *made.warnings]
    if made.next:
        lines[0] += f"; next {shown_in(made.next[0].nominal_at.ToDatetime(UTC), None).strftime('%Y-%m-%d %H:%M:%S %Z')}"
    return [*lines, f"run it now: turnkeeper task run {task.id}", f"stop it: turnkeeper loop stop {task.id}"]


def _stop(caller: Any, loops: list[Any], wanted: str, channel: str) -> list[str]:
    named = [one for one in loops if not wanted or wanted in {one.id, one.spec.name, one.id.removeprefix("loop-")}]
    if wanted and not named:
        raise NotFound(f"no loop {wanted[:80]!r} in {channel}", hint="see: /loop list")
    for one in named:
        caller.DisableTask(runner_wire.DisableTaskRequest(name=one.id))
    return [f"{one.id} is stopped; to undo it, run: turnkeeper loop resume {one.id}" for one in named] or [
        f"no loop in {channel}"
    ]


def loops_of(caller: Any, channel: str, **how: Any) -> list[Any]:
    """Return the active loops of a channel, ordered by next fire time, soonest first."""
    listed = caller.ListTasks(runner_wire.ListTasksRequest(channel=channel), **how).tasks
    found = [one for one in listed if (one.id.startswith("loop-") or one.kind == "dynamic") and one.state not in _OVER]
    return sorted(found, key=lambda one: (not one.HasField("next_fire_at"), one.next_fire_at.ToNanoseconds(), one.id))


def line_of(loop: Any, now: datetime) -> str:
    """Describe a loop in one line: its id, iteration, next time and prompt."""
    number = loop.iteration if loop.kind == "dynamic" else loop.fires
    prompt = " ".join(loop.spec.prompt.split())
    return f"{loop.id} #{number} · {_next(loop, now)} · {prompt[:_LONGEST]}"


def _next(loop: Any, now: datetime) -> str:
    if loop.state not in {"active", "waiting"}:
        return str(loop.state)
    if not loop.HasField("next_fire_at"):
        return "waits"
    left = max(0, round((loop.next_fire_at.ToDatetime(UTC) - now).total_seconds()))
    put_off = ", put off" if loop.put_off else ""
    return f"next in {format_rough(left)}{put_off}"


class LoopPoller:
    """Poller of a channel's loops, every second in a background thread."""

    def __init__(self, channel: str, show: Callable[[list[str]], None]) -> None:
        self._channel, self._show = channel, show
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="loops", daemon=True)

    def start(self) -> None:
        """Start polling. The thread ends with the process at the latest."""
        self._thread.start()

    def stop(self) -> None:
        """Stop polling; return after the thread has ended."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        before: list[str] = []
        with closing(Caller(named_home(), via="agent-runtime/conversation")) as caller:
            while not self._over.wait(REFRESH_S):
                lines = self._lines(caller)
                if lines != before:
                    before = lines
                    self._show(lines)

    def _lines(self, caller: Any) -> list[str]:
        try:
            loops = loops_of(caller, self._channel, deadline_s=REFRESH_S)
        except TurnkeeperError:
            return []  # a conversation works without the runner; `turnkeeper status` reports that the runner is down
        now = SystemClock().now()
        lines = [line_of(loop, now) for loop in loops]
        more = [f"and {len(lines) - MOST_SHOWN} more: /loop list"] if len(lines) > MOST_SHOWN else []
        return lines[:MOST_SHOWN] + more
