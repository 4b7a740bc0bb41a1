"""Take guards out of the daemons, one at a time, and see how many seeds it takes until the checker finds each.

    python -m tests.simulation.guards [--most 200] [WORD ...]

With words, only guards whose rule has one of them. Exits with 1 if a guard's absence is not found. Without words it names
the guards that seeds do not miss, with the tests that do, and does not run them.
"""

import argparse
import asyncio
import itertools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from typing import Any
from unittest.mock import patch

from agent_runtime.daemon import assembly as runtime_assembly
from agent_runtime.graph.checkpointer import sqlite
from agent_runtime.mailbox import acceptor
from agent_runtime.model import decide
from agent_runtime.permissions.judge import ALLOWED
from agent_runtime.store import idempotency, turn_reads, turn_store, turn_writes
from agent_runtime.turns import turns, worker
from task_runner.dispatcher import dispatcher, outcomes
from task_runner.planner import catch_up, ledger, planner, self_paced
from task_runner.scheduler import loop
from task_runner.store import events
from task_runner.store import fires as ledger_store
from tests.simulation import disk
from tests.simulation.script import drawn
from tests.simulation.world import run
from turnkeeper.bus import durable_writes, inbox
from turnkeeper.constellation.delivery import __main__ as courier
from turnkeeper.constellation.delivery import outbox
from turnkeeper.storage import chain, database, files
from turnkeeper.times import to_us

Replaced = tuple[Any, str, Any]


async def _nothing(*_given: Any, **_how: Any) -> Any:
    return None


def _none(*_given: Any, **_how: Any) -> Any:
    return None


def _no(*_given: Any, **_how: Any) -> Any:
    return False


def _empty(*_given: Any, **_how: Any) -> Any:
    return ()


async def _expires_never(*_given: Any) -> list[Any]:
    return []


async def _nothing_known(*_given: Any) -> dict[str, str]:
    return {}


async def _zero(*_given: Any) -> int:
    return 0


def _position_first() -> Any:
    take_in = outcomes.Follower.take_in

    async def first(self: Any, batch: Sequence[Any]) -> None:
        last = batch[-1]
        await self._store.run(lambda session: session.outcomes_read.move(last.incarnation, last.sequence))
        await take_in(self, batch)

    return first


def _without(*rows: str) -> Replaced:
    """Return the table of decisions without some of its rows."""
    return decide, "_ROWS", tuple(row for row in decide._ROWS if row.__name__ not in rows)


def _answered_first() -> Any:
    queue = acceptor.Acceptor.queue_encoded

    def answer(self: Any, item: Any, *, refusal: Any = None) -> Any:
        queue(self, item, refusal=refusal)
        done = asyncio.get_running_loop().create_future()
        done.set_result(acceptor.Receipt(header=item.header, fresh=True))
        return done

    return answer


def work_off(connection: Any, batch: Sequence[Any]) -> None:
    """Run the units of a batch, without a transaction of their own."""
    for call in batch:
        try:
            call.result = call.work(connection)
        except Exception as error:  # noqa: BLE001  its caller gets it
            call.error = error


def _forgetful() -> Any:
    run, batches = database._run_batch, [0]

    def forget(connection: Any, batch: Any, *, begin: str) -> None:
        batches[0] += 1
        if batches[0] % 20 or begin == "BEGIN":
            run(connection, batch, begin=begin)
            return
        driver = connection.connection.dbapi_connection
        driver.execute(begin)
        work_off(connection, batch)
        connection.rollback()
        if driver.in_transaction:
            driver.execute("ROLLBACK")

    return forget


def _expires_early() -> Any:
    listed = turn_reads.timed_interrupts

    def early(connection: Any) -> list[Any]:
        found = [item for item in listed(connection) if item.expires_at]
        return [replace(item, expires_at=item.expires_at - timedelta(seconds=40)) for item in found]

    return early


def _always(action: decide.Action) -> Any:
    def finish(turn: Any, _thread: Any, *, again: bool) -> Any:
        return decide.Decision(action=action, turn_id=turn.turn_id, again=again)

    return finish


def _any_attempt() -> Any:
    turned = ledger.turned

    def any_attempt(fire: Any, *given: Any, attempt: int, **how: Any) -> Any:
        return turned(fire, *given, attempt=fire.attempt, **how)

    return any_attempt


def _by_clock(self: Any, count: int) -> int:
    first = to_us(self._clock.now()) * 1000
    self._last_ns = first + count - 1
    return int(first)


def _unordered(_self: Any, folder: Any) -> list[str]:
    return sorted(os.listdir(folder), reverse=True)


def _delivers_by_rename(self: Any, names: Sequence[str]) -> None:
    for name in names:
        self._files.unlink(f"{self._paths['claimed']}/{name}")


def _runs_all(task: Any, timetable: Any, due: Any, late: Any, now: Any) -> Any:
    return catch_up._run_all(task, timetable, due, late, now)


def _armed_at_once() -> Any:
    armed = self_paced._armed
    return lambda task, ended_at, _delay, why: armed(task, ended_at, timedelta(seconds=1), why)


def _now_and_then() -> Any:
    append, calls = chain.Chain.append, itertools.count(1)

    def most(self: Any, connection: Any, at: Any, facts: Any) -> None:
        append(self, connection, at, facts if next(calls) % 10 else ())

    return most


def _recorded_first() -> Any:
    send = courier.Courier._send

    async def first(self: Any, row: Any, target: Any) -> None:
        await self._end(row, outbox.DELIVERED, "")
        await send(self, row, target)

    return first


# By rule: the parts that are replaced while its guard is out.
GUARDS: Mapping[str, Callable[[], Sequence[Replaced]]] = {
    "A fire whose receipt was lost is sent again": lambda: [(dispatcher.Dispatcher, "_resend", _nothing)],
    "The position in the outcomes moves with what they changed": lambda: [
        (outcomes.Follower, "take_in", _position_first())
    ],
    "An error of the machine is no fault of a fire": lambda: [
        (loop, "_TROUBLE", ()), (database, "machine_trouble", _none)
    ],
    "A call outside the category waits for its author": lambda: [
        (runtime_assembly, "judge", lambda *_given: ALLOWED)
    ],
    "A fire that was accepted before is not written again": lambda: [
        (acceptor.Acceptor, "_known", _nothing_known)
    ],
    "A fire is answered after its envelope is on disk": lambda: [
        (acceptor.Acceptor, "queue_encoded", _answered_first())
    ],
    "A trigger that was taken before is dropped": lambda: [_without("_taken_before")],
    "A turn that a crash interrupted is finished first": lambda: [_without("_unfinished")],
    "A turn that waits for its author holds its thread": lambda: [_without("_waiting")],
    "An input is given to a graph once": lambda: [(decide, "_finish", _always(decide.Action.GIVE_INPUT))],
    "A graph that stopped is recorded, not run again": lambda: [
        (decide, "_finish", _always(decide.Action.CONTINUE))
    ],
    "What a dead process claimed is adopted": lambda: [(inbox.Inbox, "adopt", lambda _self: [])],
    "An envelope that was archived is not archived again": lambda: [(inbox, "_same_file", _no)],
    "An envelope is archived before it leaves claimed/": lambda: [
        (inbox.Inbox, "_deliver", _delivers_by_rename)
    ],
    "Envelopes are claimed in the order of their names": lambda: [(files.SystemFiles, "names", _unordered)],
    "Names rise though the clock steps back": lambda: [(durable_writes.Names, "_reserve", _by_clock)],
    "A cancel is carried out after a crash": lambda: [_without("_cancelled")],
    "Turns without an envelope go on after a crash": lambda: [(worker.Worker, "_go_on", _zero)],
    "A try that the machine broke off is not counted": lambda: [
        (turn_store.Store, "give_back", _nothing), (turns.Turns, "_run", turns.Turns._run_counted)
    ],
    "A fire that was held is released": lambda: [(turn_writes, "release_held", _empty)],
    "A question expires at its time": lambda: [(turn_reads, "timed_interrupts", _expires_early())],
    "An undecided question expires": lambda: [(turn_store.Store, "expire", _expires_never)],
    "A repeated call of a tool takes effect once": lambda: [(idempotency, "known", _none)],
    "A message about another attempt changes nothing": lambda: [(ledger, "turned", _any_attempt())],
    "A caller is answered after the commit": lambda: [(database, "_run_batch", _forgetful())],
    "A unit that fails is undone alone": lambda: [(database, "_undo_unit", _none)],
    "Ids of checkpoints rise though the clock steps back": lambda: [(sqlite, "continue_ids", _none)],
    "A success triggers the tasks that follow": lambda: [
        (outcomes, "emit_outcomes", lambda *_given: outcomes.Planned())
    ],
    "Missed times follow the policy": lambda: [
        (catch_up, "_run_once", _runs_all), (catch_up, "_skip", _runs_all)
    ],
    "A fire waits while one of its task runs": lambda: [(planner.model, "UNDER_WAY", frozenset())],
    "Times that a wrong clock passed come again": lambda: [(loop, "rewind", lambda *_given: [])],
    "A run that was asked for twice runs once": lambda: [(ledger_store.Fires, "by_request", _none)],
    "An event that came twice triggers once": lambda: [(events.Events, "remember", lambda _self, given: list(given))],
    "A loop waits after its turn": lambda: [(self_paced, "_armed", _armed_at_once())],
    "The name of an envelope is synced before the answer": lambda: [(disk.SimulatedFiles, "sync_folder", _none)],
    "The bytes of an envelope are synced before its name": lambda: [
        (files.SystemFiles, "write_synced", lambda _self, path, data: files.create(path, data, sync=False))
    ],
    "Each commit is synced": lambda: [(database, "_FOR_WRITES", ("journal_mode=WAL", "synchronous=OFF"))],
    "A delivery is recorded after it was sent": lambda: [(courier.Courier, "_send", _recorded_first())],
    "A delivery whose attempt failed is tried again": lambda: [(outbox, "retry", lambda *given: outbox.end(
        given[0], given[1], outbox.DELIVERED, given[2]) is None)],
    "Each outcome is recorded in the chain": lambda: [(chain.Chain, "append", _now_and_then())],
}  # fmt: skip

# Guards whose absence sixty seeds do not show, with the tests that see it.
UNSEEN: Mapping[str, str] = {
    # A cancel also stops the graph and decides the turn's end: the decision serves what a crash leaves.
    "A cancel is carried out after a crash": "tests/unit/agent_runtime/model/test_decide.py",
    # Fires of one task seldom wait together in an inbox, and only they have an order.
    "Envelopes are claimed in the order of their names": "tests/unit/turnkeeper/bus/test_inbox.py",
    "Names rise though the clock steps back": "tests/unit/turnkeeper/bus/test_inbox_limits.py",
    # No fire reaches a thread that waits: the runner keeps the fires of a task whose turn waits.
    "A fire that was held is released": "tests/integration/runtime/test_approvals.py",
    # The runner reads the outcomes in their order, and reads none twice, so that it sees no outcome of an old attempt.
    "A message about another attempt changes nothing": "tests/unit/task_runner/planner/test_ledger.py",
    # Units fail only with their whole batch.
    "A unit that fails is undone alone": "tests/unit/turnkeeper/storage/test_database.py",
    # The clock steps back by less than the lead that is repaired.
    "Times that a wrong clock passed come again": "tests/integration/runner/test_self_paced_tasks.py",
}


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
    for rule in GUARDS:
        if given.words and not any(word in rule for word in given.words):
            continue
        if rule in UNSEEN and not given.words:
            sys.stdout.write(f"{'seen by a test':20} {rule}: {UNSEEN[rule]}\n")
            continue
        seeds, invariant = found(rule, given.most)
        unseen += not seeds
        sys.stdout.write(f"{f'{invariant} after {seeds} seeds' if seeds else 'NOT FOUND':20} {rule}\n")
        sys.stdout.flush()
    return min(1, unseen)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
