"""The agent's own tools for loops and events, on the real runner: bounded by the turn that asks, once for each call."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from sqlalchemy import text

from agent_runtime.model.turn import Category, TurnContext
from agent_runtime.store.idempotency import Call
from agent_runtime.tools.loops import Loops
from task_runner.daemon.assembly import Runner
from tests.integration.runtime.harness import STATES, Bench
from tests.support.scripted import calls
from turnkeeper.v1 import schedules_pb2 as wire

SCOPES = ("loop.create", "loop.list", "loop.delete", "event.emit", "tool:block")
WORK = """
name = "work"
autonomous = true
[scopes]
tools = [{tools}]
recurring = {recurring}
"""


@pytest.fixture
def looper(bench: Bench) -> Bench:
    """A bench whose tasks' turns may make loops."""
    grant(bench, recurring=True)
    return bench


def grant(bench: Bench, *, recurring: bool) -> None:
    tools = ", ".join(f'"{scope}"' for scope in SCOPES)
    (bench.home.categories / "work.toml").write_text(WORK.format(tools=tools, recurring=str(recurring).lower()))


async def using(bench: Bench, tool: str, args: Mapping[str, Any], number: int = 1, **changes: Any) -> Any:
    """Let a task's turn call a tool; return the event by which it stopped."""
    prompt = f"{tool} {number}"
    bench.script[prompt] = [calls((tool, dict(args))), AIMessage("done")]
    return await bench.run(number, prompt=prompt, **changes)


async def used(bench: Bench, tool: str, args: Mapping[str, Any], number: int = 1) -> Any:
    """Let a task's turn call a tool; return what it answered: an object, or a sentence where it failed."""
    event = await using(bench, tool, args, number)
    assert event.state == STATES.SUCCEEDED, event.error
    return (await answered(bench))[0]


async def answered(bench: Bench) -> list[Any]:
    *_, turn = await bench.conversation()
    told = [message.text for message in turn.messages if message.role == "tool"]
    return [json.loads(answer) if answer.startswith("{") else answer for answer in told]


async def tasks(runner: Runner) -> list[wire.Task]:
    return list((await runner.service.list_tasks(wire.ListTasksRequest())).tasks)


async def made(runner: Runner, *, agent: str = "", channel: str = "main", name: str = "") -> wire.Task:
    """Make a loop as an author does, or as an agent's turn did before."""
    spec = wire.TaskSpec(every="1h", prompt="p", category="work", channel=channel, name=name)
    if agent:
        spec.created_by.CopyFrom(wire.CreatedBy(turn_id="turn-1", category="work", agent=agent))
    return (await runner.service.create_task(wire.CreateTaskRequest(spec=spec, loop=True))).task


async def test_a_loop_is_as_it_was_asked_and_says_which_turn_made_it(looper: Bench, runner: Runner) -> None:
    asked = {"prompt": "look", "cron": "0 9 * * 1-5", "on": "task.failed", "where": ["task=digest"], "debounce": "1m"}
    told = await used(looper, "LoopCreate", asked | {"max_fires": 3, "read_only": True})
    (task,) = await tasks(runner)
    *_, turn = await looper.conversation()
    spec, maker = task.spec, task.spec.created_by
    assert (told["loop"], told["fires"], told["expires_at"]) == (task.id, task.schedule, spec.expires_at)
    assert task.id.startswith("loop-")
    assert (maker.turn_id, maker.category, maker.agent) == (turn.turn_id, "work", "agent0")
    assert (spec.category, spec.channel, spec.prompt, spec.agent) == ("work", "main", "look", "agent0")
    assert (spec.cron, spec.on, list(spec.filters), spec.debounce) == (
        "0 9 * * 1-5",
        "task.failed",
        ["task=digest"],
        "1m",
    )
    assert (spec.max_fires, spec.read_only) == (3, True)
    await used(looper, "LoopCreate", {"prompt": "once", "every": "1h", "recurring": False}, 2)
    assert [one.spec.max_fires for one in await tasks(runner) if one.spec.prompt == "once"] == [1]


async def test_an_authors_turn_makes_a_self_paced_one_under_the_category_for_loops(
    bench: Bench, runner: Runner
) -> None:
    bench.script["wait for CI"] = [calls(("LoopCreate", {"prompt": "is CI green?"}))]
    sent = await bench.send("wait for CI")
    await bench.stopped(sent.turn_id)
    (task,) = await tasks(runner)
    assert (task.kind, task.spec.category, task.spec.if_silent) == ("dynamic", "loop", "end")


async def test_what_cannot_be_is_told_to_the_model_and_nothing_is_made(looper: Bench, runner: Runner) -> None:
    wrong: dict[str, dict[str, Any]] = {
        "cron": {"cron": "61 * * * *"},
        "every and cron cannot be combined": {"every": "15m", "cron": "0 9 * * *"},
        "no category 'nosuch'": {"every": "15m", "category": "nosuch"},
        "category conversation grants tools": {"every": "15m", "category": "conversation"},
        "filters": {"every": "15m", "where": ["task=digest"]},
        "300 characters": {"on": "turn_end", "where": ["task~=(a+)+$" * 40]},
        "max_fires": {"every": "15m", "max_fires": -1},
    }
    looper.script["go"] = [calls(*(("LoopCreate", {"prompt": "p"} | args) for args in wrong.values()))]
    assert (await looper.run()).state == STATES.SUCCEEDED
    told = await answered(looper)
    assert [why in one for why, one in zip(wrong, told, strict=True)] == [True] * len(wrong), told
    assert await tasks(runner) == []


async def test_half_a_character_is_an_answer_to_the_model_and_not_the_turns_end(looper: Bench, runner: Runner) -> None:
    half = "\ud83d"
    looper.script["go"] = [
        calls(
            ("LoopCreate", {"prompt": half, "every": "15m"}),
            ("LoopCreate", {"prompt": "p", "on": "turn_end", "where": [half]}),
            ("LoopDelete", {"loop": half}),
            ("event_emit", {"name": half}),
            ("event_emit", {"name": "demo", "data": {"a": half}}),
        ),
        AIMessage("done"),
    ]
    ended = await looper.run()
    assert ended.state == STATES.SUCCEEDED, ended.error
    told = await answered(looper)
    assert ["contains a lone surrogate" in one for one in told] == [True] * 5, told
    assert await tasks(runner) == []


async def test_a_turn_of_a_task_makes_none_unless_its_category_or_its_author_says_so(
    bench: Bench, runner: Runner
) -> None:
    grant(bench, recurring=False)
    event = await using(bench, "LoopCreate", {"prompt": "p", "every": "15m"})
    assert event.state == STATES.INTERRUPTED
    (asked,) = await bench.pending()
    assert asked.missing_scope == "recurring:true"
    assert "category work does not let turns of tasks start tasks" in asked.question
    assert await tasks(runner) == []
    await bench.resolve(asked.interrupt_id, "approve")
    assert (await bench.stopped(event.turn_id, after=event.sequence)).state == STATES.SUCCEEDED
    assert len(await tasks(runner)) == 1


async def test_a_loop_has_the_budget_of_the_task_whose_turn_made_it(looper: Bench, runner: Runner) -> None:
    given = wire.TaskSpec(name="digest", every="1h", prompt="p", category="work", channel="main")
    given.budget["tokens_per_day"] = 1_000
    task = (await runner.service.create_task(wire.CreateTaskRequest(spec=given))).task
    fire = await runner.service.run_task(wire.RunTaskRequest(name="digest", request_id="r"))
    await using(looper, "LoopCreate", {"prompt": "q", "every": "15m"}, fire_id=fire.fire_id, task_id=task.id)
    await using(looper, "LoopCreate", {"prompt": "free", "every": "15m"}, 2)
    found = {one.spec.prompt: dict(one.spec.budget) for one in await tasks(runner)}
    assert found == {"p": {"tokens_per_day": 1_000}, "q": {"tokens_per_day": 1_000}, "free": {}}


async def test_what_an_approval_adds_for_one_call_is_not_handed_on(bench: Bench, runner: Runner) -> None:
    bench.category("work")
    (bench.home.categories / "more.toml").write_text('name = "more"\n[scopes]\ntools = ["loop.create"]\n')
    event = await using(bench, "LoopCreate", {"prompt": "p", "every": "15m", "category": "more"})
    (asked,) = await bench.pending()
    await bench.resolve(asked.interrupt_id, "approve")
    await bench.stopped(event.turn_id, after=event.sequence)
    assert "category more grants tools loop.create" in (await answered(bench))[0]
    assert await tasks(runner) == []


async def test_the_twenty_sixth_is_refused(looper: Bench, runner: Runner) -> None:
    for _ in range(24):
        await made(runner, agent="agent0")
    await made(runner, agent="agent1")
    assert "loop" in await used(looper, "LoopCreate", {"prompt": "p", "every": "15m"})
    told = await used(looper, "LoopCreate", {"prompt": "p", "every": "15m"}, 2)
    assert "the limit is 25" in told
    assert len(await tasks(runner)) == 26, "one of them another agent's"


async def test_what_a_turn_that_only_reads_may_make_with_its_author_only_reads(looper: Bench, runner: Runner) -> None:
    event = await using(looper, "LoopCreate", {"prompt": "p", "every": "15m", "channel": "board"}, read_only=True)
    assert event.state == STATES.INTERRUPTED
    (asked,) = await looper.pending()
    assert await tasks(runner) == []
    await looper.resolve(asked.interrupt_id, "approve")
    assert (await looper.stopped(event.turn_id, after=event.sequence)).state == STATES.SUCCEEDED
    (task,) = await tasks(runner)
    assert (task.spec.read_only, task.spec.channel) == (True, "board")


async def test_another_channel_asks_the_author(looper: Bench, runner: Runner) -> None:
    event = await using(looper, "LoopCreate", {"prompt": "p", "every": "15m", "channel": "board"})
    assert event.state == STATES.INTERRUPTED
    (asked,) = await looper.pending()
    assert asked.missing_scope == "channel:board"
    assert await tasks(runner) == []


async def test_the_list_shows_the_agents_own_and_the_channels(looper: Bench, runner: Runner) -> None:
    own = await made(runner, agent="agent0", channel="board")
    here = await made(runner)
    await made(runner, channel="board")
    await made(runner, agent="agent1", channel="board")
    plain = wire.TaskSpec(every="1h", prompt="p", category="work", channel="main", name="digest")
    await runner.service.create_task(wire.CreateTaskRequest(spec=plain))
    told = await used(looper, "LoopList", {})
    assert {(loop["loop"], loop["yours"]) for loop in told["loops"]} == {(own.id, True), (here.id, False)}


async def test_its_own_is_paused_and_deleted_and_no_other(looper: Bench, runner: Runner) -> None:
    own, authors = await made(runner, agent="agent0"), await made(runner)
    elsewhere = await made(runner, channel="board")
    assert (await used(looper, "LoopDelete", {"loop": own.id, "action": "pause"}))["state"] == "paused"
    paused = next(task for task in await tasks(runner) if task.id == own.id)
    assert (paused.state, "agent0" in paused.paused_note) == ("paused", True)
    assert (await used(looper, "LoopDelete", {"loop": own.id}, 2))["state"] == "deleted"
    assert "agent0 did not make loop" in await used(looper, "LoopDelete", {"loop": authors.id}, 3)
    assert "no loop" in await used(looper, "LoopDelete", {"loop": elsewhere.id}, 4)
    assert "nosuch" in await used(looper, "LoopDelete", {"loop": "nosuch"}, 5)
    assert {task.id for task in await tasks(runner)} == {authors.id, elsewhere.id}


async def test_without_the_runner_the_tool_fails_and_the_turn_goes_on(looper: Bench) -> None:
    assert "task-runner cannot be reached" in await used(looper, "LoopCreate", {"prompt": "p", "every": "15m"})
    assert "task-runner cannot be reached" in await used(looper, "LoopList", {}, 2)


async def test_an_event_is_told_with_its_turn_and_the_runners_own_names_are_refused(
    looper: Bench, runner: Runner
) -> None:
    await made(runner)
    listening = wire.TaskSpec(on="build:done", prompt="p", category="work", channel="main", name="after")
    listening.filters.extend(["channel=main", "thread_id~=."])
    await runner.service.create_task(wire.CreateTaskRequest(spec=listening))
    told = await used(looper, "event_emit", {"name": "build:done", "data": {"ok": True}})
    assert told["listening_tasks"] == 1
    assert "is reserved: turnkeeper emits it" in await used(looper, "event_emit", {"name": "task.succeeded"}, 2)


async def test_a_call_that_runs_again_after_a_crash_makes_no_second_loop_and_no_second_event(
    looper: Bench, runner: Runner
) -> None:
    """The crash comes after the runner has answered and before that is on record here."""
    looper.script["go"] = [calls(("block", {}))]
    receipt = await looper.accept(looper.fire())
    await looper.blocked.wait()
    runtime = looper.runtime
    category = Category(name="work", tools=frozenset(SCOPES), autonomous=True, recurring=True)
    turn = TurnContext(turn_id=receipt.turn_id, thread_id="a", channel="main", agent="agent0", category=category)
    call, other = Call(context=turn, key="a|b|c"), Call(context=turn, key="a|b|d")
    listening = wire.TaskSpec(on="built", prompt="p", category="work", channel="main", name="after")
    await runner.service.create_task(wire.CreateTaskRequest(spec=listening))
    answers = []
    for _ in range(2):
        loops = Loops(runtime.store, runtime.categories, looper.home, runtime.clock)
        answers.append(
            (await loops.create(call, {"prompt": "p", "every": "15m"}), await loops.emit(other, "built", {}))
        )
        await runtime.store.write(lambda connection: connection.execute(text("DELETE FROM effects")))
        await loops.close()
    (made_once, told_once), (made_again, told_again) = answers
    assert (made_once["loop"], told_once["event_id"]) == (made_again["loop"], told_again["event_id"])
    assert len(await tasks(runner)) == 2
    history = await runner.service.list_fires(wire.ListFiresRequest(name="after"))
    assert len(history.fires) == 1
    looper.go.set()


async def test_a_model_whose_wake_is_put_off_is_told_when_it_comes(bench: Bench, runner: Runner) -> None:
    bench.category("work", tools=["loop.wakeup"])
    spec = wire.TaskSpec(dynamic=True, prompt="p", category="work", channel="main", budget={"turns_per_hour": 1})
    task = (await runner.service.create_task(wire.CreateTaskRequest(spec=spec, loop=True))).task
    bench.script["go"] = [calls(("schedule_loop_wakeup", {})), AIMessage("done")]
    # The runner has a fire of it open, as it has while a turn of it runs.
    await runner.service.run_task(wire.RunTaskRequest(name=task.id))
    await bench.run(fire_id=f"{task.id}@20260302T090000Z~w1", task_id=task.id, task_name=task.id, kind="wake")
    (told,) = await answered(bench)
    assert told["next"].startswith("put off: the hourly budget that the author set")
    assert told["put_off_to"] in told["next"]
