"""Standing exceptions: an author's yes to one call of one task from now on, and what it must not let pass."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from langchain_core.messages import AIMessage
from langchain_core.tools import StructuredTool

from agent_runtime.permissions.exceptions import TaskNow
from agent_runtime.turns.exceptions import StandingExceptions
from tests.integration.runtime.attacks import Field, _noted, _of_node
from tests.integration.runtime.harness import PATIENCE_S, STATES, look_again
from tests.support.scripted import calls
from turnkeeper.config.home import Home
from turnkeeper.constellation.audit.records import differences, records
from turnkeeper.errors import Conflict, InvalidInput, NotFound, Unreachable
from turnkeeper.storage import sqlite_files
from turnkeeper.v1 import agent_runtime_pb2 as wire

NOTE = calls(("note", {"text": "x"}))
PlaceOf = Callable[[Path], Path | str]


class Excepted(Field):
    """A bench whose category grants no tool, and whose tasks are as the test says; without that nobody can be asked."""

    tasks: dict[str, TaskNow]
    number = 0

    async def open(self, **environ: str) -> None:
        self.tasks = getattr(self, "tasks", {})
        await super().open(**environ)
        exceptions: Any = self.runtime.exceptions
        exceptions._find_task = self.find_task

    async def find_task(self, task_id: str) -> TaskNow:
        if task_id not in self.tasks:
            raise Unreachable("task-runner is not running")
        return self.tasks[task_id]

    async def next(self, *lines: AIMessage, **changes: Any) -> wire.TurnEvent:
        """Run the next fire; return how its turn stops for its author or for good."""
        self.script["go"] = list(lines or [NOTE])
        self.number += 1
        event = await self.run(self.number, **changes)
        return await self.onward(event)

    async def onward(self, event: wire.TurnEvent) -> wire.TurnEvent:
        """Go on while what stops a turn was decided at once."""
        while event.state == STATES.INTERRUPTED and not await self.pending():
            event = await self.stopped(event.turn_id, after=event.sequence)
        return event

    async def used(self, *lines: AIMessage) -> str:
        """Run a fire until an exception allowed its call, which has not run; return its turn. A kill leaves it so."""
        lanes: Any = self.runtime.worker
        lanes._lanes.put_decision = lambda _thread_id: None
        self.script["go"] = list(lines or [NOTE])
        receipt = await self.accept(self.fire(50))
        async with asyncio.timeout(PATIENCE_S):
            while receipt.turn_id not in {one["turn_id"] for one in self.trail("interrupt.resolved")}:
                await look_again()
        return receipt.turn_id

    async def statuses(self, turn_id: str) -> set[str]:
        """Return the status of a turn as each reader is shown it."""
        turn = await self.turn(turn_id)
        thread = await self.service.GetThread(wire.GetThreadRequest(thread_id=turn.thread_id), None)
        listed = (await self.service.ListTurns(wire.ListTurnsRequest(thread_id=turn.thread_id), None)).turns
        shown = [*listed, *await self.conversation()]
        return {turn.status, thread.status, *(one.status for one in shown if one.turn_id == turn_id)}

    async def except_(self, event: wire.TurnEvent, **changes: Any) -> wire.Interrupt:
        """Approve the one question for its task; wait until its turn stops again."""
        (question,) = await self.pending()
        done = await self.resolve(question.interrupt_id, "approve", for_task=True, **changes)
        assert (await self.stopped(event.turn_id, after=event.sequence)).state == STATES.SUCCEEDED
        return done

    async def given(self, *lines: AIMessage, **changes: Any) -> int:
        """Let the author except the call of a first fire; return the exception's number."""
        done = await self.except_(await self.next(*lines, **changes))
        return done.exception

    async def listed(self, **changes: Any) -> list[wire.StandingException]:
        return list((await self.service.ListExceptions(wire.ListExceptionsRequest(**changes), None)).exceptions)

    async def ended(self) -> list[str]:
        """Return why exceptions ended, the newest first."""
        return [one.ended_why for one in await self.listed(all=True) if one.ended_why]


@pytest_asyncio.fixture
async def bench(home: Home, place_of: PlaceOf) -> AsyncIterator[Excepted]:
    made = Excepted(home, place=place_of(home.agent_db))
    made.category("work")
    await made.open()
    yield made
    await made.close()


async def test_the_same_call_of_the_task_passes_from_then_on_and_is_on_record(bench: Excepted) -> None:
    number = await bench.given()
    event = await bench.next()
    assert (event.state, bench.noted) == (STATES.SUCCEEDED, ["x", "x"])
    assert event.error == f"note was allowed by standing exception {number}", "the runner's history says so"
    (_, turn) = await bench.conversation()
    (asked,) = turn.interrupts
    assert (asked.status, asked.decision, asked.message, asked.exception) == (
        *("resolved", "approve"), f"allowed by standing exception {number}", number,
    )  # fmt: skip
    (listed,) = await bench.listed()
    assert (listed.task_name, listed.tool, listed.missing_scope) == ("digest-a", "note", "tool:note")
    assert (json.loads(listed.args_json), listed.uses, listed.category) == ({"text": "x"}, 1, "work")
    assert listed.HasField("given_at")
    assert listed.HasField("last_used_at")
    assert [one["exception"] for one in bench.trail("interrupt.resolved")] == [number, number]
    assert await bench.history() == [
        *("STARTED", "INTERRUPTED", "RESUMED", "SUCCEEDED"), *("STARTED", "RESUMED", "SUCCEEDED"),
    ], "no event says that the second turn waits for its author"  # fmt: skip
    assert len(bench.trail("interrupt.raised")) == 1, "nobody is told of what nobody has to decide"


@pytest.mark.parametrize(
    ("call", "changes"),
    [(calls(("note", {"text": "x "})), {}), (NOTE, {"task": "b", "thread_id": "thread-b"}), (calls(("fail", {})), {})],
    ids=["one more byte", "another task", "another tool"],
)
async def test_a_call_that_differs_in_anything_is_asked_about(
    bench: Excepted, call: AIMessage, changes: dict[str, Any]
) -> None:
    await bench.given()
    assert (await bench.next(call, **changes)).state == STATES.INTERRUPTED
    assert bench.noted == ["x"]
    assert [one.uses for one in await bench.listed()] == [0]


async def test_a_turn_that_its_author_began_is_no_turn_of_the_task(bench: Excepted) -> None:
    await bench.given()
    bench.category("conversation")
    bench.script["do it"] = [NOTE]
    sent = await bench.send("do it", new_thread=True)
    assert (await bench.stopped(sent.turn_id)).state == STATES.INTERRUPTED
    (question,) = await bench.pending()
    with pytest.raises(InvalidInput, match="no task started this turn"):
        await bench.resolve(question.interrupt_id, "approve", for_task=True)
    assert [one.interrupt_id for one in await bench.pending()] == [question.interrupt_id], "nothing was decided"


PUT = ("memory_put", {"tier": "channel", "key": "k", "text": "one"})


async def test_only_arguments_that_the_author_names_may_have_another_value(bench: Excepted) -> None:
    await bench.next(calls(PUT))
    (question,) = await bench.pending()
    with pytest.raises(InvalidInput, match="no argument 'tex'"):
        await bench.resolve(question.interrupt_id, "approve", for_task=True, any_value=["tex"])
    with pytest.raises(InvalidInput, match="only with for_task"):
        await bench.resolve(question.interrupt_id, "approve", any_value=["text"])
    await bench.resolve(question.interrupt_id, "approve", for_task=True, any_value=["text"])
    await bench.rest()
    assert (await bench.next(calls((PUT[0], PUT[1] | {"text": "two"})))).state == STATES.SUCCEEDED
    assert (await bench.next(calls((PUT[0], PUT[1] | {"key": "other"})))).state == STATES.INTERRUPTED


async def test_an_argument_of_any_value_reaches_nothing_that_the_call_did_not(bench: Excepted) -> None:
    """Which tier a call reaches is among what it lacks: that has to be the same, whatever the argument's name."""
    await bench.next(calls(PUT))
    (question,) = await bench.pending()
    await bench.resolve(question.interrupt_id, "approve", for_task=True, any_value=["tier", "text"])
    await bench.rest()
    assert (await bench.next(calls((PUT[0], PUT[1] | {"tier": "account"})))).state == STATES.INTERRUPTED


async def test_it_ends_when_its_category_is_narrowed_and_widening_does_not_bring_it_back(bench: Excepted) -> None:
    bench.category("work", tools=["tool:block"])
    await bench.given()
    bench.category("work", tools=["tool:block", "tool:fail"])
    assert len(await bench.listed()) == 1, "a wider category takes nothing away"
    bench.category("work")
    assert (await bench.next()).state == STATES.INTERRUPTED
    bench.category("work", tools=["tool:block"])
    assert await bench.ended() == ["category work was narrowed"]
    assert bench.noted == ["x"]
    (record,) = bench.trail("exception.ended")
    assert (record["exception"], record["reason"]) == (1, "category work was narrowed")


async def test_a_category_file_that_cannot_be_read_allows_nothing_and_ends_nothing(bench: Excepted) -> None:
    await bench.given()
    reviewed: Any = bench.runtime.exceptions
    (bench.home.categories / "work.toml").write_text("name = ")
    assert await reviewed.review() == []
    bench.category("work")
    assert [one.number for one in await reviewed.review()] == [1]


@pytest.mark.parametrize(
    ("task", "why"),
    [
        (TaskNow(state="deleted", category="work", read_only=False), "its task was deleted"),
        (TaskNow(state="active", category="loop", read_only=False), "its task's category is loop now"),
        (TaskNow(state="active", category="work", read_only=True), "its task is now read-only"),
    ],
    ids=["deleted", "another category", "read-only"],
)
async def test_it_ends_when_its_task_may_do_less(bench: Excepted, task: TaskNow, why: str) -> None:
    await bench.given()
    bench.tasks["task-0000000a"] = TaskNow(state="paused", category="work", read_only=False)
    assert len(await bench.listed()) == 1
    bench.tasks["task-0000000a"] = task
    assert await bench.listed() == []
    bench.tasks["task-0000000a"] = TaskNow(state="active", category="work", read_only=False)
    assert await bench.ended() == [why]
    assert (await bench.next()).state == STATES.INTERRUPTED


@pytest.mark.parametrize("changes", [{"read_only": True}, {"category": "other"}], ids=["read-only", "category"])
async def test_a_fire_that_may_do_less_does_not_use_it_while_the_runner_is_away(
    bench: Excepted, changes: dict[str, Any]
) -> None:
    await bench.given()
    bench.category("other")
    assert (await bench.next(**changes)).state == STATES.INTERRUPTED
    assert bench.noted == ["x"]


async def test_what_was_revoked_is_asked_about_and_who_revoked_it_is_on_record(bench: Excepted) -> None:
    number = await bench.given()
    revoked = await bench.service.RevokeException(wire.RevokeExceptionRequest(number=number), None)
    assert (revoked.ended_why, revoked.HasField("ended_at")) == ("revoked by its author", True)
    assert (await bench.next()).state == STATES.INTERRUPTED
    assert bench.noted == ["x"]
    again = await bench.service.RevokeException(wire.RevokeExceptionRequest(number=number), None)
    assert again.ended_at == revoked.ended_at
    with pytest.raises(NotFound):
        await bench.service.RevokeException(wire.RevokeExceptionRequest(number=99), None)


async def test_what_was_revoked_while_its_turn_waits_for_another_answer_is_asked_about(bench: Excepted) -> None:
    bench.category("work", tools=["tool:ask"])
    await bench.given()
    event = await bench.next(calls(("ask", {"question": "well?"})), NOTE)
    await bench.service.RevokeException(wire.RevokeExceptionRequest(number=1), None)
    (question,) = await bench.pending()
    await bench.resolve(question.interrupt_id, "answer", message="go on")
    event = await bench.stopped(event.turn_id, after=event.sequence)
    assert (event.state, bench.noted) == (STATES.INTERRUPTED, ["x"])


async def test_a_use_that_was_not_carried_out_yet_is_taken_back_with_the_exception(bench: Excepted) -> None:
    """The use and its revocation are each one transaction: a kill between use and effect leaves the turn waiting."""
    number = await bench.given()
    turn_id = await bench.used()
    assert await bench.pending() == []
    assert await bench.statuses(turn_id) == {"running"}, "it waits for nobody"
    await bench.service.RevokeException(wire.RevokeExceptionRequest(number=number), None)
    (question,) = await bench.pending()
    assert await bench.statuses(turn_id) == {"interrupted"}
    event = await bench.stopped(turn_id)
    assert (event.state, list(event.held_by), event.summary) == (
        *(STATES.INTERRUPTED, [question.interrupt_id]), "note",
    ), "the runner learns that the turn waits for its author now"  # fmt: skip
    await bench.crash()
    await bench.rest()
    assert (bench.noted, len(await bench.pending())) == (["x"], 1)
    if isinstance(bench.place, Path):
        with sqlite_files.reading(bench.place) as snapshot:
            assert list(differences(snapshot, "agent-runtime")) == []
            kinds = Counter(json.loads(one["body"])["kind"] for one in records(snapshot, "agent-runtime"))
        assert (kinds["exception"], kinds["decision"]) == (2, 3), "given and ended; approved, used and taken back"


async def test_a_cancel_of_what_runs_ends_a_turn_whose_call_was_allowed(bench: Excepted) -> None:
    """Such a turn waits for no author, so the next fire of its task may ask it to end."""
    await bench.given()
    turn_id = await bench.used()
    request = wire.CancelTurnRequest(fire_id="task-0000000a@50", attempt=1, unless_waiting=True)
    assert (await bench.service.CancelTurn(request, None)).cancel_requested
    event = await bench.stopped(turn_id)
    assert (event.state, bench.noted) == (STATES.CANCELLED, ["x"])


async def test_a_use_survives_a_crash_and_has_its_effect_once(bench: Excepted) -> None:
    await bench.given()
    turn_id = await bench.used()
    await bench.crash()
    event = await bench.stopped(turn_id)
    assert (event.state, bench.noted) == (STATES.SUCCEEDED, ["x", "x"])
    assert [one.uses for one in await bench.listed()] == [1]


async def test_a_category_that_is_narrowed_between_a_use_and_its_call_asks_again(bench: Excepted) -> None:
    path = bench.home.categories / "work.toml"
    path.write_text('name = "work"\nautonomous = true\n[scopes]\nmemory = ["channel"]\n')
    await bench.given(calls(PUT))
    await bench.used(calls(PUT))
    assert [one.uses for one in await bench.listed()] == [1]
    bench.category("work")
    await bench.crash()
    await bench.rest()
    (question,) = await bench.pending()
    assert "you approved this call, and its category was narrowed since" in question.question
    assert await bench.ended() == ["category work was narrowed"]


async def test_of_a_use_and_a_revocation_one_comes_first(bench: Excepted) -> None:
    """There are as many effects as uses, and the call is asked about where the revocation came first."""
    number = await bench.given()
    revoke = bench.service.RevokeException(wire.RevokeExceptionRequest(number=number), None)
    fires = [bench.accept(bench.fire(60 + at, thread_id=f"thread-{at}")) for at in range(8)]
    done = await asyncio.gather(*fires[:4], revoke, *fires[4:])
    turns = [one.turn_id for one in done if isinstance(one, wire.FireReceipt)]
    for turn_id in turns:
        event = await bench.stopped(turn_id)
        while event.state == STATES.INTERRUPTED and turn_id not in {one.turn_id for one in await bench.pending()}:
            event = await bench.stopped(turn_id, after=event.sequence)
    (one,) = await bench.listed(all=True)
    assert one.ended_why == "revoked by its author"
    assert (len(bench.noted), len(await bench.pending())) == (1 + one.uses, 8 - one.uses)


@pytest.mark.parametrize(
    ("limit", "changes", "told"),
    [
        ({"tool_calls": 1}, {}, "the category's limit of 1 tool calls a turn is used up"),
        ({}, {"task_id": "loop-0000000a", "read_only": True}, "this loop only reads, and asks its author nothing"),
    ],
    ids=["beyond the limit", "a loop that only reads"],
)
async def test_what_is_refused_without_a_question_stays_refused(
    bench: Excepted, limit: dict[str, Any], changes: dict[str, Any], told: str
) -> None:
    bench.category("work", **limit)
    loop = {"task_id": "loop-0000000a"} if changes else {}
    await bench.given(**loop)
    event = await bench.next(NOTE, NOTE, **changes)
    assert event.state == STATES.SUCCEEDED
    (turn,) = [turn for turn in await bench.conversation() if turn.turn_id == event.turn_id]
    assert [line.text for line in turn.messages if line.role == "tool"][-1].startswith(told)
    assert len(bench.noted) == (2 if limit else 1)


async def test_one_that_was_decided_before_gives_no_exception(bench: Excepted) -> None:
    event = await bench.next()
    (question,) = await bench.pending()
    await bench.resolve(question.interrupt_id, "approve")
    with pytest.raises(Conflict, match="was already decided: approve"):
        await bench.resolve(question.interrupt_id, "approve", for_task=True)
    assert await bench.listed(all=True) == []
    await bench.stopped(event.turn_id, after=event.sequence)
    await bench.next()
    (question,) = await bench.pending()
    for _ in range(2):  # an answer that was lost is asked for again
        await bench.resolve(question.interrupt_id, "approve", for_task=True)
    with pytest.raises(Conflict, match="for other calls"):
        await bench.resolve(question.interrupt_id, "approve", for_task=True, any_value=["text"])
    assert [one.number for one in await bench.listed()] == [1]


@pytest.mark.parametrize("decision", ["reject", "edit"])
async def test_only_an_approval_holds_for_the_task(bench: Excepted, decision: str) -> None:
    await bench.next()
    (question,) = await bench.pending()
    args = '{"text": "y"}' if decision == "edit" else ""
    with pytest.raises(InvalidInput, match="only an approval"):
        await bench.resolve(question.interrupt_id, decision, args_json=args, for_task=True)
    assert (len(await bench.pending()), await bench.listed(all=True)) == (1, [])


async def test_a_question_of_a_graph_is_answered_each_time(bench: Excepted) -> None:
    bench.category("work", tools=["tool:ask"])
    await bench.next(calls(("ask", {"question": "well?"})))
    (question,) = await bench.pending()
    with pytest.raises(InvalidInput, match="a question needs an answer each time"):
        await bench.resolve(question.interrupt_id, "approve", for_task=True)


async def test_several_decisions_give_none(bench: Excepted) -> None:
    await bench.next()
    (question,) = await bench.pending()
    with pytest.raises(InvalidInput, match="never with several decisions"):
        await bench.resolve_all((question.interrupt_id, "approve"), for_task=True)
    assert (len(await bench.pending()), await bench.listed(all=True)) == (1, [])


@pytest.mark.parametrize(
    ("call", "changes", "why"),
    [
        (calls(("note", {"text": "x"})), {"read_only": True}, "its task is read-only"),
        (calls(("LoopCreate", {"prompt": "again", "every": "1h"})), {}, "loop.create makes tasks"),
        (calls(("lifecycle_request_restart", {"notes": "n"})), {}, "lifecycle.request_restart stops the runtime"),
        (calls(("subagent_run", {"name": "reviewer", "brief": "b"})), {}, "its category does not start this subagent"),
    ],
    ids=["a task that only reads", "a task that makes tasks", "a restart", "a subagent"],
)
async def test_what_is_more_than_one_call_is_approved_each_time(
    bench: Excepted, call: AIMessage, changes: dict[str, Any], why: str
) -> None:
    await bench.next(call, **changes)
    (question,) = await bench.pending()
    assert question.once_only == why
    with pytest.raises(InvalidInput, match=f"only be approved once: {why}"):
        await bench.resolve(question.interrupt_id, "approve", for_task=True)
    assert (len(await bench.pending()), await bench.listed(all=True)) == (1, [])


async def test_it_ends_when_its_tool_is_other_code(bench: Excepted) -> None:
    await bench.given()
    other = StructuredTool.from_function(func=lambda text: bench.noted.append(f"evil {text}"), name="note",
                                         description="Act.")  # fmt: skip
    build = bench._tools
    bench._tools = lambda: [*(one for one in build() if one.name != "note"), other]  # type: ignore[method-assign]
    await bench.crash()
    event = await bench.next()
    assert (event.state, bench.noted) == (STATES.INTERRUPTED, ["x"])
    assert await bench.ended() == ["the tool note now has other code or other values"]


async def test_a_tool_that_holds_a_client_is_approved_each_time_and_its_question_says_so(bench: Excepted) -> None:
    client, noted = object(), bench.noted
    send = StructuredTool.from_function(func=lambda text: noted.append(f"{client}{text}"), name="send",
                                        description="Act.")  # fmt: skip
    bench.graph = lambda saver: _of_node(lambda _: send.invoke({"text": "x"}) and {}, saver)  # type: ignore[assignment,misc]
    await bench.crash()
    event = await bench.next()
    (question,) = await bench.pending()
    why = "it holds an object of builtins.object, whose content cannot be compared"
    bound = f"{why}: an approval is only for this object, in this process"
    assert question.once_only == bound
    assert question.question.endswith(f"; {bound}"), "so each place that shows the question says it"
    with pytest.raises(InvalidInput, match="can only be approved once"):
        await bench.resolve(question.interrupt_id, "approve", for_task=True)
    await bench.resolve(question.interrupt_id, "approve")
    await bench.stopped(event.turn_id, after=event.sequence)
    assert len(bench.noted) == 1


async def test_of_two_tools_with_one_name_neither_can_be_excepted(bench: Excepted) -> None:
    def send(text: str) -> None:
        bench.noted.append(text)

    one, other = _noted(bench, "send"), StructuredTool.from_function(func=send, description="Act.")

    def node(_state: Any) -> Any:
        return {"messages": [AIMessage(f"{one.invoke({'text': 'a'})} {other.invoke({'text': 'b'})}")]}

    bench.graph = lambda saver: _of_node(node, saver)  # type: ignore[assignment,misc]
    await bench.crash()
    event = await bench.next()
    (question,) = await bench.pending()
    await bench.resolve(question.interrupt_id, "approve")
    await bench.stopped(event.turn_id, after=event.sequence)
    (question,) = await bench.pending()
    assert (
        question.once_only == "another tool also has or had the name send, or the code or values of send have changed"
    )
    with pytest.raises(InvalidInput, match="can only be approved once"):
        await bench.resolve(question.interrupt_id, "approve", for_task=True)


async def test_an_excepted_proposal_covers_that_one_write(bench: Excepted) -> None:
    bench.category("work", tools=["tool:note"], autonomous=False)
    event = await bench.next()
    assert [one.kind for one in await bench.pending()] == ["proposal"]
    await bench.except_(event)
    event = await bench.next(NOTE, calls(("note", {"text": "other"})))
    assert bench.noted == ["x", "x"]
    assert [json.loads(one.args_json) for one in await bench.pending()] == [{"text": "other"}]


async def test_an_exception_decides_nothing_that_waits_already(bench: Excepted) -> None:
    first = await bench.next()
    second = await bench.next(thread_id="thread-b")
    one, other = await bench.pending()
    await bench.resolve(one.interrupt_id, "approve", for_task=True)
    await bench.stopped(first.turn_id, after=first.sequence)
    assert [each.interrupt_id for each in await bench.pending()] == [other.interrupt_id]
    assert other.turn_id == second.turn_id
    await bench.resolve(other.interrupt_id, "approve", for_task=True)
    assert [each.number for each in await bench.listed()] == [1], "the same exception is not made twice"


async def test_a_task_has_a_bounded_number(bench: Excepted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_runtime.permissions.exceptions.MOST_OF_TASK", 1)
    await bench.given()
    await bench.next(calls(("note", {"text": "y"})))
    (question,) = await bench.pending()
    with pytest.raises(Exception, match="which is the limit"):
        await bench.resolve(question.interrupt_id, "approve", for_task=True)
    assert len(await bench.pending()) == 1, "nothing was decided"


async def test_without_its_checks_an_ended_exception_would_let_a_call_pass(
    bench: Excepted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The counter-proof: what stops the calls above is the check of what holds."""
    bench.category("work", tools=["tool:block"])
    await bench.given()
    bench.category("work")
    monkeypatch.setattr("agent_runtime.turns.exceptions.ended_why", lambda *_about: "")
    assert (await bench.next()).state == STATES.SUCCEEDED
    assert bench.noted == ["x", "x"]
    assert isinstance(bench.runtime.exceptions, StandingExceptions)
