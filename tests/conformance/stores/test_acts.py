"""What two machines do to the same row at the same moment: they leave what one after the other leaves.

The first stops before its commit; then the second begins, and runs until it is done, or waits for a lock of the first.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from sqlalchemy import Connection, Table, insert, text

from agent_runtime.model.approval import AuthorDecision, RaisedInterrupt
from agent_runtime.model.mapping import canonical
from agent_runtime.model.trigger import Trigger
from agent_runtime.model.turn import Category, TurnRecord, used_by
from agent_runtime.store import exceptions, mail, schema, turn_reads, turn_writes
from agent_runtime.store.database import open_database
from agent_runtime.store.idempotency import Transactions
from agent_runtime.store.leases import Right
from agent_runtime.store.turn_events import EventSource
from agent_runtime.store.turn_store import Store
from agent_runtime.workspace.model import Acceptance, Author, Candidate, Rejection
from agent_runtime.workspace.submit import submit
from tests.conformance.stores.test_leases import AT, until, waits_for_a_lock
from tests.support.clock import ManualClock
from tests.support.seeded_entropy import SeededEntropy
from turnkeeper.errors import Conflict
from turnkeeper.storage.chain import Recorder
from turnkeeper.storage.database import Database
from turnkeeper.storage.keys import Key
from turnkeeper.storage.server.handover import SCHEMA
from turnkeeper.storage.server.url import in_schema
from turnkeeper.times import to_us

Work = Callable[[Connection], Any]
BLANK: dict[type, Any] = {str: "", int: 0, bool: False, bytes: b""}
WORK = Category(name="work")
CALL: dict[str, Any] = {"kind": "permission", "tool": "note", "args_hash": "same", "tool_hash": "code"}


class Machines:
    """Two sessions of one store, and a third that watches."""

    def __init__(self, url: str) -> None:
        place = in_schema(url, SCHEMA)
        self._databases = [open_database(place) for _ in range(3)]
        self.waited = False  # the second, at the last meeting
        self.through: Callable[[Database], Callable[[Work], Future[Any]]] = lambda database: database.submit

    def do(self, work: Work) -> Any:
        return self._databases[2].submit(work).result(20)

    def meet(self, first: Work, second: Work) -> list[Any]:
        """Let the second meet the first before its commit; return what became of each: an answer, or its error."""
        one, two = map(self.through, self._databases[:2])
        begun: list[Future[Any]] = []

        def held(connection: Connection) -> Any:
            answer = first(connection)
            begun.append(two(second))
            until(lambda: begun[0].done() or self.do(waits_for_a_lock))
            self.waited = not begun[0].done()
            return answer

        answered = one(held)
        answered.exception(20)  # only then has the second begun
        return [each.exception(20) or each.result() for each in (answered, *begun)]

    def put(self, table: Table, **values: Any) -> None:
        """Write a row; what is not said is empty, or null where it may be."""
        row = {column.name: BLANK[column.type.python_type] for column in table.c if not column.nullable} | values
        self.do(lambda c: c.execute(insert(table).values({name: row[name] for name in row if name != "number"})))

    def close(self) -> None:
        for database in self._databases:
            database.close()


@pytest.fixture
def machines(shared_url: str) -> Iterator[Machines]:
    made = Machines(shared_url)
    for number in (1, 2):
        named = {"turn_id": f"turn-{number}", "thread_id": f"t-{number}", "fire_id": f"t@{number}", "task_id": "t"}
        made.put(
            schema.turns, **named, attempt=1, status="interrupted", trigger="fire", grant_json=canonical(WORK.to_dict())
        )
    yield made
    made.close()


def turn(connection: Connection, number: int = 1) -> TurnRecord:
    found = turn_reads.get_turn(connection, f"turn-{number}")
    assert found is not None
    return found


KEY = Key(id="one", secret="5d" * 32, created_at="")
NUMBERS = text("SELECT number FROM audit_records ORDER BY number")


def begin(connection: Connection) -> None:
    schema.audit.begin(connection, AT, SeededEntropy(1), dict, Recorder([KEY], "cellar"))


def test_records_of_one_key_are_one_chain(machines: Machines) -> None:
    def add(connection: Connection) -> None:
        schema.audit.append(connection, AT, [{"kind": "said"}])

    machines.meet(begin, lambda _: None)
    machines.meet(lambda _: None, begin)
    assert machines.meet(add, add) == [None, None]
    assert machines.do(lambda c: c.execute(NUMBERS).scalars().all()) == [1, 2, 3]


def test_a_chain_that_two_processes_begin_has_one_beginning(machines: Machines) -> None:
    assert machines.meet(begin, begin) == [None, None]
    assert machines.do(lambda c: c.execute(NUMBERS).scalars().all()) == [1]


def test_of_two_decisions_about_one_question_one_counts(machines: Machines) -> None:
    machines.put(schema.interrupts, interrupt_id="i-1", turn_id="turn-1", status="pending", **CALL)

    def decide(decision: str) -> Work:
        return lambda c: turn_writes.settle_interrupt(c, "i-1", AuthorDecision(decision=decision), AT)

    assert machines.meet(decide("approve"), decide("reject")) == [True, False]
    assert machines.do(lambda c: turn_writes.asked_of(c, "i-1")).decision == "approve"


def test_of_two_verdicts_about_one_proposal_one_counts(machines: Machines) -> None:
    proposed = {"kind": "candidate-page", "page_id": "plan", "title": "Plan", "body": "b", "tags": "[]"}
    machines.put(
        schema.candidates,
        candidate_id="c-1",
        turn_id="turn-1",
        origin="agent-produced",
        lifecycle="candidate",
        **proposed,
    )
    machines.through = lambda database: Transactions(database, lambda *_: None, right=Right(1, shared=True)).submit

    def decide(draft: Acceptance | Rejection) -> Work:
        return lambda c: submit(c, draft, Author(), at=AT, new_id="")

    accepted, refused = machines.meet(decide(Acceptance(candidate_id="c-1")), decide(Rejection(candidate_id="c-1")))
    assert isinstance(accepted, Candidate), accepted
    assert isinstance(refused, Conflict), refused


def excepted(machines: Machines) -> RaisedInterrupt:
    given = {"number": 1, "interrupt_id": "i-0", "task_id": "t", "args_json": "{}", "given_at_us": to_us(AT)}
    machines.put(schema.exceptions, **given, **CALL, any_value_json="[]", arg_hashes_json="{}", category_json="{}")
    return RaisedInterrupt(interrupt_id="i-1", args={}, **CALL)


def use(asked: RaisedInterrupt) -> Work:
    def work(connection: Connection) -> Any:
        turn_writes.add_interrupts(connection, turn(connection), [asked], AT)
        return dict(exceptions.decide_at_once(connection, AT, turn(connection), [asked], [1]).decided)

    return work


def revoke(connection: Connection) -> int:
    return len(exceptions.end(connection, AT, {1: "revoked"}))


def test_an_exception_that_is_revoked_meanwhile_allows_nothing(machines: Machines) -> None:
    asked = excepted(machines)
    assert machines.meet(revoke, use(asked)) == [1, {}]
    assert machines.do(lambda c: turn_writes.asked_of(c, "i-1")).status == "pending", "its author is asked"


def test_what_an_exception_allows_while_it_is_revoked_is_asked_about_again(machines: Machines) -> None:
    asked = excepted(machines)
    assert machines.meet(use(asked), revoke) == [{"i-1": 1}, 1]
    assert machines.do(lambda c: turn_writes.asked_of(c, "i-1")).status == "pending"


def resume(connection: Connection) -> list[str]:
    """Write, as the owner of its thread, that the turn goes on with what was decided; return with which questions."""
    owner = Store(None, ManualClock(), EventSource(connection), incarnation="", right=Right(1))
    return list(Store.resume.__wrapped__(owner, connection, AT, "turn-1", ["i-1"]).answers)  # type: ignore[attr-defined]


@pytest.mark.parametrize("goes_on_first", [True, False], ids=["first", "second"])
def test_a_turn_goes_on_with_what_an_exception_allowed_or_its_author_is_asked_again(
    machines: Machines, goes_on_first: bool
) -> None:
    asked = excepted(machines)
    assert machines.do(use(asked)) == {"i-1": 1}
    first, second = machines.meet(*((resume, revoke) if goes_on_first else (revoke, resume)))
    given, ended = (first, second) if goes_on_first else (second, first)
    assert (given, ended) == (["i-1"] if goes_on_first else [], 1)
    status = machines.do(lambda c: turn_writes.asked_of(c, "i-1")).status
    assert status == ("resolved" if goes_on_first else "pending")


def test_tokens_of_a_day_are_those_of_all_machines(machines: Machines) -> None:
    def count(number: int) -> Work:
        return lambda c: turn_writes.count_tokens(c, turn(c, number), used_by("m", 5, 5), AT)

    for used in (1, 2):
        machines.do(lambda c, used=used: turn_writes.count_tokens(c, turn(c), used_by("m", used, 0), AT))
    assert machines.meet(count(1), count(2)) == [None, None]
    assert machines.do(lambda c: turn_writes.tokens_of_day(c, AT)) == 20


@pytest.mark.parametrize("asked", [schema.delegations, schema.deliveries], ids=["message", "fire"])
def test_of_two_answers_to_one_message_or_fire_one_counts(machines: Machines, asked: Table) -> None:
    machines.put(asked, turn_id="asked", agent="codex", state="open" if asked is schema.delegations else "waiting")

    def answer(number: int) -> Work:
        trigger = Trigger(
            source="agent", key=f"k{number}", turn_id=f"answer-{number}", thread_id="t", channel="c", agent="agent0",
            grant=WORK, prompt="yes", sender="codex", parent="asked",
        )  # fmt: skip
        return lambda c: mail.answer(c, trigger.sealed())

    assert machines.meet(answer(1), answer(2)) == [True, False]
    assert machines.waited
    assert [machines.do(answer(number)) for number in (1, 2)] == [True, False], "the same one may come again"
    assert machines.do(lambda c: mail.answer_to(c, "asked", "codex")) == "answer-1"


def test_a_handoff_is_given_to_one_turn(machines: Machines) -> None:
    item = mail.Handoff(key="k", agent="agent0", kind="handoff", sender="watchdog", text="it died")
    machines.do(lambda c: mail.add_handoff(c, item, AT))

    def give(number: int) -> Work:
        return lambda c: mail.give_handoffs(c, "agent0", f"turn-{number}", with_author=True)

    assert machines.meet(give(1), give(2)) == [[item], []]
