"""Take guards out of the daemons, one at a time, and see how many seeds it takes until the checker finds each.

    python -m tests.simulation.guards [--most 200] [WORD ...]

With words, only guards whose rule has one of them. Exits with 1 if a guard's absence is not found.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from agent_runtime.daemon import assembly as runtime_assembly
from agent_runtime.permissions.judge import ALLOWED
from task_runner.dispatcher import dispatcher, outcomes
from task_runner.scheduler import loop
from tests.simulation.script import drawn
from tests.simulation.world import run
from turnkeeper.storage import database

Replaced = tuple[Any, str, Any]


async def _nothing(*_given: Any) -> None:
    pass


def _position_first() -> Any:
    take_in = outcomes.Follower.take_in

    async def first(self: Any, batch: Sequence[Any]) -> None:
        last = batch[-1]
        await self._store.run(lambda session: session.outcomes_read.move(last.incarnation, last.sequence))
        await take_in(self, batch)

    return first


def _no_trouble(*_given: Any, **_how: Any) -> None:
    pass


# By rule: the parts that are replaced while its guard is out.
GUARDS: Mapping[str, Callable[[], Sequence[Replaced]]] = {
    "A fire whose receipt was lost is sent again": lambda: [(dispatcher.Dispatcher, "_resend", _nothing)],
    "The position in the outcomes moves with what they changed": lambda: [
        (outcomes.Follower, "take_in", _position_first())
    ],
    "An error of the machine is no fault of a fire": lambda: [
        (loop, "_TROUBLE", ()), (database, "machine_trouble", _no_trouble)
    ],
    "A call outside the category waits for its author": lambda: [
        (runtime_assembly, "judge", lambda *_given: ALLOWED)
    ],
}  # fmt: skip


def found(rule: str, most: int) -> tuple[int, str]:
    """Return the number of seeds until a violation without a guard, and the rule that it broke; or 0."""
    for seed in range(most):
        with ExitStack() as stack:
            for where, name, instead in GUARDS[rule]():
                stack.enter_context(patch.object(where, name, instead))
            violations = run(drawn(seed, minutes=2.0, between_s=5.0, works_s=60.0)).violations
        if violations:
            return seed + 1, violations[0].invariant
    return 0, ""


def main(argv: list[str]) -> int:
    """Take out the guards whose rule has one of the words; return 1 if one is not missed."""
    parser = argparse.ArgumentParser(prog="tests.simulation.guards", description="which guards the simulation misses")
    parser.add_argument("words", nargs="*")
    parser.add_argument("--most", type=int, default=200, help="the most seeds for each guard")
    given = parser.parse_args(argv)
    unseen = 0
    for rule in [rule for rule in GUARDS if not given.words or any(word in rule for word in given.words)]:
        seeds, invariant = found(rule, given.most)
        unseen += not seeds
        sys.stdout.write(f"{f'{invariant} after {seeds} seeds' if seeds else 'NOT FOUND':20} {rule}\n")
        sys.stdout.flush()
    return min(1, unseen)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
