"""A task says which graph of the runtime it runs and what it gives it; each graph has a thread of the task's own."""

import json
from pathlib import Path
from typing import Any, cast

import pytest
from google.rpc import code_pb2

from task_runner.cli.declare.task_file import read_declarations
from task_runner.service import task_spec
from task_runner.service.service import Names
from tests.integration.runner.conftest import Rig
from tests.integration.runner.scripted_runtime import Peer, refuse
from turnkeeper.errors import InvalidInput, Unreachable
from turnkeeper.v1 import schedules_pb2 as wire

GIVEN = {"context_json": '{"unit": "mm"}', "config_json": '{"model": "small"}', "input_json": '{"depth": 2}'}


async def test_a_fire_carries_the_graph_and_what_it_is_given(rig: Rig, peer: Peer) -> None:
    task = await rig.create(graph="research", **GIVEN)
    async with rig.running():
        await rig.pass_time(60)
        (request,) = await peer.saw(1)
    assert (request.graph, request.thread_id) == ("research", f"{task.id}:research")
    assert {name: json.loads(getattr(request, name)) for name in GIVEN} == {
        name: json.loads(text) for name, text in GIVEN.items()
    }


async def test_a_task_has_a_thread_of_its_own_for_each_graph(rig: Rig, peer: Peer) -> None:
    task = await rig.create()
    shown = task.spec
    for graph, thread_id in (("research", f"{task.id}:research"), ("agent", f"{task.id}:agent"), ("", task.id)):
        spec = wire.TaskSpec()
        spec.CopyFrom(shown)  # with the thread written out, as whoever edits a task reads it
        spec.ClearField("graph")
        if graph:
            spec.graph = graph
        answer = await rig.service.update_task(wire.UpdateTaskRequest(name="digest", spec=spec))
        shown = answer.task.spec
        assert (shown.graph, shown.thread_id) == (graph, thread_id)


async def test_a_thread_that_a_task_names_stays_whatever_its_graph(rig: Rig, peer: Peer) -> None:
    task = await rig.create(graph="research", thread_id="shared")
    assert task.spec.thread_id == "shared"


@pytest.mark.parametrize(
    ("graph", "why"),
    [
        ("reserch", "unknown graph 'reserch'; did you mean research?"),
        ("zzz", "use one of: agent, broken, research"),
        ("broken", "the graph broken cannot run: its file is gone"),
        ("../x", "must not look like a path"),
    ],
)
async def test_a_graph_that_the_runtime_does_not_run_is_refused(rig: Rig, peer: Peer, graph: str, why: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        await rig.create(graph=graph)
    assert why in str(refused.value)
    assert refused.value.where == "graph"


async def test_what_a_task_gives_its_graph_is_checked_when_it_is_made_and_when_that_is_edited(
    rig: Rig, peer: Peer
) -> None:
    spec = wire.TaskSpec(
        name="digest", every="60s", category="loop", channel="c", prompt="p", graph="research", **GIVEN
    )
    peer.unread = ["not read"]
    answer = await rig.service.create_task(wire.CreateTaskRequest(spec=spec))
    assert list(answer.warnings) == ["not read"]
    (asked,) = peer.checked
    assert (asked.graph, asked.prompt, json.loads(asked.input_json)) == ("research", "p", {"depth": 2})
    peer.refuses_inputs, spec = True, answer.task.spec
    spec.every = "90s"
    await rig.service.update_task(wire.UpdateTaskRequest(name="digest", spec=spec))
    spec.input_json = '{"depht": 2}'
    for dry_run in (True, False):
        with pytest.raises(InvalidInput, match="no such field"):
            await rig.service.update_task(wire.UpdateTaskRequest(name="digest", spec=spec, dry_run=dry_run))
        spec.name = "another"
        with pytest.raises(InvalidInput, match="no such field"):
            await rig.service.create_task(wire.CreateTaskRequest(spec=spec, dry_run=dry_run))
        spec.name = "digest"


async def test_what_applied_tasks_give_their_graphs_is_checked_once_for_each_graph_and_input(
    rig: Rig, peer: Peer
) -> None:
    def applied(*names: str, **changes: str) -> wire.ApplyTasksRequest:
        every = {"every": "60s", "category": "loop", "channel": "c", "graph": "research", **GIVEN, **changes}
        return wire.ApplyTasksRequest(specs=[wire.TaskSpec(name=name, prompt=name, **every) for name in names])

    peer.unread = ["not read"]
    done = await rig.service.apply_tasks(applied("one", "two"))
    assert [list(one.warnings) for one in done.applied] == [["not read"]] * 2
    assert [asked.graph for asked in peer.checked] == ["research"], "both give the same besides their prompts"
    peer.refuses_inputs = True
    await rig.service.apply_tasks(applied("one", "two", every="90s"))
    for dry_run in (True, False):
        asked = applied("two", input_json='{"depht": 2}')
        asked.dry_run = dry_run
        with pytest.raises(InvalidInput, match="no such field") as refused:
            await rig.service.apply_tasks(asked)
        assert str(refused.value.where).startswith("two")
        with pytest.raises(InvalidInput, match="no such field"):
            await rig.service.apply_tasks(applied("one", "two", "three"))
    tasks = (await rig.service.list_tasks(wire.ListTasksRequest())).tasks
    assert {one.spec.name for one in tasks} == {"one", "two"}


async def test_what_a_terminal_reads_is_not_checked(rig: Rig, peer: Peer) -> None:
    peer.refuses_inputs = True
    await rig.create(agent="codex")
    assert peer.checked == []


async def test_the_input_of_a_task_on_a_thread_named_by_hand_is_checked(rig: Rig, peer: Peer) -> None:
    task = await rig.create(thread_id="by-hand")
    assert (peer.checked[-1].thread_id, peer.checked[-1].category) == ("by-hand", task.spec.category)
    peer.refuses_inputs = True
    with pytest.raises(InvalidInput, match="no such field"):
        await rig.create(name="second", thread_id="by-hand")
    task.spec.thread_id = "another"
    with pytest.raises(InvalidInput, match="no such field"):
        await rig.service.update_task(wire.UpdateTaskRequest(name=task.spec.name, spec=task.spec))


@pytest.mark.parametrize("name", GIVEN)
async def test_what_a_graph_is_given_is_a_json_object(rig: Rig, peer: Peer, name: str) -> None:
    with pytest.raises(InvalidInput, match="is not a JSON object") as refused:
        await rig.create(**{name: "[1]"})
    assert refused.value.where == name.removesuffix("_json")


@pytest.mark.parametrize("name", ["context_json", "config_json"])
@pytest.mark.parametrize(
    "key",
    [
        *("thread_id", "thread_ts", "turn_id", "run_id", "grant", "before_turn"),
        *("checkpoint_id", "checkpoint_ns", "checkpoint_map", "langgraph_auth_user", "__pregel_task_id", "__"),
    ],
)
async def test_what_langgraph_sets_is_neither_context_nor_configuration(
    rig: Rig, peer: Peer, name: str, key: str
) -> None:
    given = {name: json.dumps({key: "other"})}
    with pytest.raises(InvalidInput, match=f"'{key}' is set by Turnkeeper or LangGraph; leave it out"):
        await rig.create(**given)
    task = await rig.create()
    task.spec.MergeFrom(wire.TaskSpec(**given))
    with pytest.raises(InvalidInput, match=f"'{key}' is set by"):
        await rig.service.update_task(wire.UpdateTaskRequest(name="digest", spec=task.spec))


async def test_a_stored_task_that_gives_what_langgraph_sets_is_quarantined_with_the_reason(
    rig: Rig, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(task_spec, "check_configurable", lambda found, _: found)
        await rig.create(context_json='{"checkpoint_id": "x"}')
    why = "'checkpoint_id' is set by Turnkeeper or LangGraph; leave it out"
    peer.answer = refuse(code_pb2.INVALID_ARGUMENT, field="context_json", message=why)
    async with rig.running("dispatcher"):
        await rig.pass_time(60)
        await rig.trail.saw("task.quarantined")
    task = await rig.task()
    assert (task.state, task.reason) == ("quarantined", f"context_json: {why}")


async def test_with_the_runtime_down_a_graph_is_taken_with_a_warning(rig: Rig) -> None:
    answer = await rig.service.create_task(
        wire.CreateTaskRequest(
            spec=wire.TaskSpec(name="a", every="60s", category="loop", channel="c", prompt="p", graph="research")
        )
    )
    assert any("the graph research exists was not checked" in warning for warning in answer.warnings)


async def test_an_input_may_stand_in_place_of_a_prompt(rig: Rig, peer: Peer) -> None:
    await rig.create(graph="research", prompt="", input_json='{"depth": 2}')
    async with rig.running():
        await rig.pass_time(60)
        (request,) = await peer.saw(1)
    assert (request.prompt, request.input_json) == ("", '{"depth":2}')
    with pytest.raises(InvalidInput, match="is required"):
        await rig.create("other", graph="research", prompt="")


def test_a_task_file_says_what_is_asked_or_what_the_graph_is_given(tmp_path: Path) -> None:
    file, task = tmp_path / "tasks.toml", '[[task]]\nname = "a"\nevery = "1h"\ncategory = "loop"\nchannel = "c"\n'
    file.write_text(task)
    with pytest.raises(InvalidInput, match="a prompt is required, or an input") as refused:
        read_declarations([file])
    assert refused.value.where == f"{file}:2: task.name"
    file.write_text(f'{task}graph = "research"\ninput = {{depth = 2}}\n')
    (declared,) = read_declarations([file])
    assert (declared.spec.graph, declared.spec.prompt) == ("research", "")
    assert json.loads(declared.spec.input_json) == {"depth": 2}


@pytest.mark.parametrize(("answers", "deadlines_s"), [(True, [1.0, 5.0]), (False, [1.0, 1.0])], ids=["there", "away"])
async def test_a_runtime_that_answers_has_the_time_to_import_the_package_of_a_tasks_model(
    rig: Rig, *, answers: bool, deadlines_s: list[float]
) -> None:
    """Otherwise the first task with a model that cannot be used would be accepted without a check."""
    asked: list[float] = []

    class Asked:
        async def categories(self, deadline_s: float) -> frozenset[str]:
            asked.append(deadline_s)
            if not answers:
                raise Unreachable("it is not running")
            return frozenset({"loop"})

        async def graphs(self, deadline_s: float, _inputs: Any) -> tuple[dict[str, str], list[str]]:
            asked.append(deadline_s)
            return {}, []

    await rig.create()
    task = await rig.store.read(lambda session: session.tasks.find("digest"))
    await Names(cast(Any, Asked()), rig.clock).check({"loop"}, set(), task and task.definition)
    assert asked == deadlines_s


async def test_a_look_at_inputs_alone_warns_of_no_name_if_the_runtime_is_away(rig: Rig) -> None:
    class Away:
        async def categories(self, _deadline_s: float) -> frozenset[str]:
            raise Unreachable("it is not running")

        async def graphs(self, _deadline_s: float, _inputs: Any) -> tuple[dict[str, str], list[str]]:
            raise Unreachable("it is not running")

    await rig.create()
    task = await rig.store.read(lambda session: session.tasks.find("digest"))
    names = Names(cast(Any, Away()), rig.clock)
    assert await names.check(set(), set(), task and task.definition) == []
    (warning,) = await names.check({"loop"}, set(), task and task.definition)
    assert "whether category loop exists was not checked" in warning
