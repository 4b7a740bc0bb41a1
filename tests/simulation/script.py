"""The script of a run: which tasks there are, and which faults come when. It is drawn from a seed, and can be kept.

A script is plain data. Its text is Python, so a failing one is pasted into `scenarios.py` as it was printed. Taking a
fault away leaves the other faults as they are, which makes it possible to search for the smallest script that fails.
"""

import random  # noqa: TID251  seeded, so that a run can be repeated
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.simulation.points import EFFECTS, OF_DELIVERIES, POINTS

RUNNER, RUNTIME, DELIVERY = "runner", "runtime", "delivery"
LOSES = ("FireBatches", "to FireBatches", "WatchTurns", "GetTurn")
KINDS = ("crash", "death", "break", "cut", "hang", "lose", "writes", "stores", "flaky", "step", "power", "aim")
_ALONE = ("crash", "death", "writes", "stores", "flaky", "aim", "aim", "aim")  # what strikes one process
_AIMS = 4  # more than one fault of another kind: aimed faults meet what chance seldom meets


@dataclass(frozen=True)
class Fault:
    """A fault that begins `at` seconds after the start.

    Attributes:
        kind: `crash`: the process dies now. `death`: it dies `number` callbacks later. `break`: all connections break.
            `cut`: no connection can be made. `hang`: connections deliver nothing. `lose`: `number` answers to `what`,
            or requests `to METHOD`, are lost, each with its connection. `writes`: every `number`-th write or sync fails with `what`. `stores`: only
            those of SQLite fail, so that envelopes still arrive. `flaky`: each of these fails with a chance of one in
            `number`. `step`: the wall clock jumps by `seconds`. `aim`: `what` is a point of the protocol and an effect,
            which strikes when that point is passed for the `number`-th time: `crash`, `lose` (the connections break, with
            the answer), `power`, or one write fails with an error. `power`: both processes die, and what was not synced
            is lost.
        process: the process that it strikes.
        seconds: for how long; after a crash, until the process starts again.
    """

    at: float
    kind: str
    process: str = ""
    seconds: float = 0.0
    number: int = 0
    what: str = ""


@dataclass(frozen=True)
class Task:
    """A task that fires every `every_s` seconds.

    Attributes:
        job: what its turns do, a job of :mod:`tests.simulation.graph`.
        on: the event for which it fires, instead of a schedule.
        after: the task that it follows: it fires for each success of that one.
        is_loop: True if it fires `every_s` seconds after its turn before has ended.
    """

    name: str
    every_s: int
    catch_up: str = "run-once"
    overlap: str = ""
    retries: int = 0
    job: str = "Say"
    on: str = ""
    after: str = ""
    is_loop: bool = False

    @property
    def is_scheduled(self) -> bool:
        return not (self.on or self.after or self.is_loop)


@dataclass(frozen=True)
class Act:
    """Something that a person or a program does `at` seconds after the start: `message`, `event`, `run` or `cancel`.

    Attributes:
        number: identifies it, among those of its kind.
        what: the task of a run.
    """

    at: float
    kind: str
    number: int = 0
    what: str = ""


@dataclass(frozen=True)
class Script:
    """Everything that a run is made of.

    Attributes:
        seed: what delays, ids and the graph's answers are drawn from.
        faulty_s: how long faults come; then all are healed.
        fails: the share of turns that fail because the graph says so.
        works_s: how long the tasks run after that, undisturbed.
        acts: what people and programs do meanwhile.
        delivers: True if results are delivered, to a target that fails now and then.
    """

    seed: int
    tasks: tuple[Task, ...]
    faults: tuple[Fault, ...]
    faulty_s: float
    fails: float = 0.1
    works_s: float = 360.0
    acts: tuple[Act, ...] = ()
    delivers: bool = False

    @property
    def cuts_power(self) -> bool:
        return any(fault.kind == "power" or fault.what.endswith(" power") for fault in self.faults)

    def text(self) -> str:
        """Return the script as Python."""
        lines = ["Script(", f"    seed={self.seed},"]
        for name, rows in (("tasks", self.tasks), ("faults", self.faults), ("acts", self.acts)):
            lines += [f"    {name}=(", *(f"        {_short(row)}," for row in rows), "    ),"]
        lines += [f"    {name}={getattr(self, name)!r}," for name in ("faulty_s", "fails", "works_s", "delivers")]
        return "\n".join([*lines, ")"])


def _short(row: Any) -> str:
    """Return a row's text without the fields that have their defaults."""
    kept = {
        name: getattr(row, name)
        for name, field in row.__dataclass_fields__.items()
        if getattr(row, name) != field.default
    }
    return f"{type(row).__name__}({', '.join(f'{name}={value!r}' for name, value in kept.items())})"


def drawn(
    seed: int, *, minutes: float, kinds: Sequence[str] = KINDS, between_s: float = 40.0, works_s: float = 360.0
) -> Script:
    """Return the script of a seed, with faults of some kinds, on average one each `between_s` seconds."""
    drawing = random.Random(f"script {seed}")
    tasks = tuple(_task(drawing, number) for number in range(drawing.randint(2, 5)))
    faults, at, offered = list[Fault](), 0.0, [kind for kind in kinds for _ in range(_AIMS if kind == "aim" else 1)]
    while (at := at + drawing.expovariate(1 / between_s)) < minutes * 60:
        faults.append(_fault(drawing, round(at, 3), drawing.choice(offered)))
    more, acts = _loads(random.Random(f"loads {seed}"), minutes * 60)
    delivering = random.Random(f"deliveries {seed}")
    if delivers := delivering.random() < 0.5:
        faults += _of_deliveries(delivering, minutes * 60, kinds, 4 * between_s)
    return Script(
        seed=seed, tasks=tasks + more, faults=tuple(faults), faulty_s=minutes * 60, works_s=works_s, acts=acts,
        delivers=delivers,
    )  # fmt: skip


def _of_deliveries(drawing: random.Random, seconds: float, kinds: Sequence[str], between_s: float) -> list[Fault]:
    """Return the faults of the process that delivers."""
    offered, faults, at = [kind for kind in _ALONE if kind in kinds], list[Fault](), 0.0
    while offered and (at := at + drawing.expovariate(1 / between_s)) < seconds:
        kind, away_s = drawing.choice(offered), round(10 * drawing.random(), 3)
        point, effect = drawing.choice(sum(OF_DELIVERIES.values(), ())), drawing.choice(EFFECTS)
        aimed = Fault(round(at, 3), kind, DELIVERY, away_s, drawing.choice([1, 2, 3]), f"{point} {effect}")
        faults.append(aimed if kind == "aim" else replace(_fault(drawing, round(at, 3), kind), process=DELIVERY))
    return faults


def _loads(drawing: random.Random, seconds: float) -> tuple[tuple[Task, ...], tuple[Act, ...]]:
    """Return the tasks beside those that only fire by the clock, each in most scripts, and what people do."""
    offered = (
        Task("proposes", 60, "run-once", "skip", job="Propose"),
        Task("asks", 60, "run-once", "skip", job="Ask"),
        Task("listens", 0, overlap="queue", on="news"),
        Task("follows", 0, overlap=drawing.choice(["queue", "coalesce"]), after="t0"),
        Task("loops", drawing.choice([20, 60]), is_loop=True, job="Wake"),
    )
    tasks = tuple(task for task in offered if drawing.random() < 0.6)
    acts, at = list[Act](), 5.0
    while (at := at + drawing.expovariate(1 / 30)) < seconds:
        kind = drawing.choice(["message", "message", "event", "event", "run", "cancel"])
        if kind == "event" and not any(task.on for task in tasks):
            continue
        acts.append(Act(round(at, 3), kind, len(acts), "t0" if kind == "run" else ""))
    return tasks, tuple(acts)


def _task(drawing: random.Random, number: int) -> Task:
    catch_up = drawing.choice(["skip", "run-once", "run-all"])
    overlap = "" if catch_up == "run-all" else drawing.choice(["skip", "queue", "cancel-running", "coalesce"])
    every_s = drawing.choice([20, 60, 90, 300])
    return Task(f"t{number}", every_s, catch_up, overlap, retries=2 if drawing.random() < 0.3 else 0)


def _fault(drawing: random.Random, at: float, kind: str) -> Fault:
    process = drawing.choice([RUNNER, RUNTIME])
    away_s = round(drawing.choice([0.1, 1, 10, 60]) * drawing.random(), 3)
    made: dict[str, Callable[[], Fault]] = {
        "crash": lambda: Fault(at, kind, process, away_s),
        "death": lambda: Fault(at, kind, process, away_s, drawing.randint(1, 900)),
        "break": lambda: Fault(at, kind),
        "cut": lambda: Fault(at, kind, seconds=round(drawing.expovariate(1 / 30), 3)),
        "hang": lambda: Fault(at, kind, seconds=round(drawing.expovariate(1 / 10), 3)),
        "lose": lambda: Fault(
            at, kind, number=drawing.randint(1, 4), what=drawing.choice(LOSES)
        ),
        "writes": lambda: Fault(
            at, kind, process, round(drawing.expovariate(1 / 12), 3), drawing.choice([1, 2, 3, 6, 12, 22, 30]),
            drawing.choice(["ENOSPC", "EIO"]),
        ),
        "stores": lambda: replace(made["writes"](), kind=kind),
        "flaky": lambda: replace(made["writes"](), kind=kind, number=drawing.choice([3, 10, 30])),
        "aim": lambda: _aim(drawing, at, away_s),
        "power": lambda: Fault(at, kind, seconds=away_s),
        "step": lambda: Fault(at, kind, seconds=float(drawing.choice([-90, -3, 3, 90, 600]))),
    }  # fmt: skip
    return made[kind]()


def _aim(drawing: random.Random, at: float, away_s: float) -> Fault:
    point = drawing.choice(POINTS[drawing.choice(list(POINTS))])
    what = f"{point} {drawing.choice(EFFECTS)}"
    return Fault(at, "aim", point.partition(".")[0], away_s, drawing.choice([1, 1, 2, 3, 5]), what)


def smallest(script: Script, fails: Callable[[Script], bool], *, most: int = 60) -> Script:
    """Return a script with as few faults as possible that still fails, found in at most `most` runs.

    Halves are taken away first, then smaller parts: what is left needs each of its faults.
    """
    left, size, runs = script, max(1, len(script.faults) // 2), 0
    while size and left.faults:
        start, before = 0, left
        while start < len(left.faults) and runs < most:
            fewer = replace(left, faults=left.faults[:start] + left.faults[start + size :])
            runs += 1
            if fails(fewer):
                left = fewer
            else:
                start += size
        if runs >= most:
            break
        size = size // 2 if size > 1 else int(left is not before and len(left.faults) > 1)
    return left
