"""The contract of an engine: what each implementation does with orders, answers, cancels, drains and stored states."""

import asyncio
import importlib.util
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agent_runtime.graph.checkpointer.saver import GroupedSaver
from agent_runtime.graph.engine.engine import LocalEngine
from agent_runtime.graph.engine.protocol import Answers, Continue, Ended, Engine, Input, Step
from agent_runtime.graph.guard import Gate, watching
from agent_runtime.model.approval import AuthorDecision, RaisedInterrupt, answer_to, call_key
from agent_runtime.model.decide import Position
from agent_runtime.model.turn import Category, TurnContext
from agent_runtime.permissions.judge import judge
from tests.support.postgres import Places

PROJECT = Path(__file__).with_name("project.py")
ALL = frozenset({"tool:act", "tool:act_sync"})
Start = Callable[[str, GroupedSaver], Any]


def load(place: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("CONTRACT_PLACE", str(place))
    spec = importlib.util.spec_from_file_location("contract_project", PROJECT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "contract_project", module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """The start of an engine in this process: it takes the name of a graph, and the saver."""
    project = load(tmp_path, monkeypatch)

    @asynccontextmanager
    async def local(graph: str, saver: GroupedSaver) -> AsyncIterator[Engine]:
        yield LocalEngine(getattr(project, graph).copy(update={"checkpointer": saver}), saver, foreign=True)

    with watching(Gate({}, judge)):
        yield local


class Desk:
    """One thread of an engine, on a saver that stays if the engine is replaced."""

    def __init__(self, engine: Engine, place: Path) -> None:
        self.engine, self.place = engine, place
        self.tools, self.asked = ALL, frozenset[str]()
        self.steps: list[Step] = []
        self.turns = 0

    @property
    def acts(self) -> list[str]:
        acts = self.place / "acts"
        return acts.read_text().split() if acts.exists() else []

    def context(self, turn: str = "") -> TurnContext:
        category = Category(name="work", tools=self.tools, autonomous=True)
        given = {"turn_id": turn or f"turn-{self.turns}", "thread_id": "thread-a", "channel": "main", "agent": "agent0"}
        return TurnContext(category=category, started_by="author", asked=self.asked, **given)

    async def say(self, prompt: str, **fields: Any) -> Ended:
        self.turns += 1
        return await self.order(Input(prompt=prompt, **fields))

    async def order(self, order: Any) -> Ended:
        async def stepped(step: Step) -> None:
            self.steps.append(step)

        return await self.engine.run(order, self.context(), f"turn-{self.turns}", stepped)

    async def decide(self, *decided: tuple[RaisedInterrupt, str], **changes: Any) -> Ended:
        self.asked |= {call_key(one) for one, _ in decided}
        values = {
            one.interrupt_id: {
                **dict(answer_to(one, "thread-a", AuthorDecision(decision=decision))),  # type: ignore[call-overload]
                **changes,
            }
            for one, decision in decided
        }
        return await self.order(Answers(values=values))


@pytest.fixture
def saver(tmp_path: Path, place_of: Places) -> Iterator[GroupedSaver]:
    made = GroupedSaver(place_of(tmp_path / "checkpoints.db"))
    yield made
    made.close()


@pytest.fixture
async def desk(start: Start, saver: GroupedSaver, tmp_path: Path) -> AsyncIterator[Desk]:
    async with start("plain", saver) as engine:
        yield Desk(engine, tmp_path)


@pytest.fixture
async def nested(start: Start, saver: GroupedSaver, tmp_path: Path) -> AsyncIterator[Desk]:
    async with start("nested", saver) as engine:
        yield Desk(engine, tmp_path)


def tools_asked(ended: Ended) -> list[tuple[str, str]]:
    return [(one.tool, one.args["text"]) for one in ended.interrupts]


async def test_a_granted_call_runs_and_the_turn_ends(desk: Desk) -> None:
    ended = await desk.say("call act:a")
    assert (ended.stopped, ended.error, desk.acts) == ("end", "", ["a"])
    said = [(line.role, line.text) for line in ended.step.messages or ()]
    assert said == [("agent", ""), ("tool", "did a"), ("agent", "said: did a")]
    assert len(desk.steps) >= 2, "each step was told once it was on disk"


async def test_a_thread_is_read_at_its_end_and_its_turn_is_known(desk: Desk) -> None:
    assert (await desk.engine.read("thread-a", ["turn-1"])).position is Position.NONE
    await desk.say("hello")
    state = await desk.engine.read("thread-a", ["turn-1", "turn-9"])
    assert (state.position, state.inputs, state.pending) == (Position.END, frozenset({"turn-1"}), frozenset())
    assert await desk.engine.last_message("thread-a")


@pytest.mark.parametrize("way", ["act", "act_sync"])
async def test_a_call_without_a_grant_is_asked_once_and_runs_once(desk: Desk, way: str) -> None:
    desk.tools = frozenset()
    ended = await desk.say(f"call {way}:a")
    assert (ended.stopped, tools_asked(ended), desk.acts) == ("interrupted", [(way, "a")], [])
    (question,) = ended.interrupts
    assert question.kind == "permission"
    again = await desk.engine.look("thread-a", "turn-1")
    assert [one.interrupt_id for one in again.interrupts] == [question.interrupt_id]
    assert (await desk.engine.read("thread-a")).pending == {question.interrupt_id}
    ended = await desk.decide((question, "approve"))
    assert (ended.stopped, ended.step.text, desk.acts) == ("end", "said: did a", ["a"])


async def test_a_refused_call_does_not_run_and_the_model_reads_the_refusal(desk: Desk) -> None:
    desk.tools = frozenset()
    (question,) = (await desk.say("call act:a")).interrupts
    ended = await desk.decide((question, "reject"))
    assert (ended.stopped, desk.acts) == ("end", [])
    assert "refused this call" in ended.step.text


async def test_two_calls_of_one_message_are_asked_and_answered_singly(desk: Desk) -> None:
    desk.tools = frozenset()
    ended = await desk.say("call act:a act_sync:b")
    assert sorted(tools_asked(ended)) == [("act", "a"), ("act_sync", "b")]
    first = next(one for one in ended.interrupts if one.tool == "act")
    ended = await desk.decide((first, "approve"))
    assert (ended.stopped, tools_asked(ended), desk.acts) == ("interrupted", [("act_sync", "b")], ["a"])
    ended = await desk.decide((ended.interrupts[0], "approve"))
    assert (ended.stopped, desk.acts) == ("end", ["a", "b"]), "the first call did not run again"


@pytest.mark.parametrize("change", [{"args_hash": "forged"}, {"call_id": "other"}, {"thread_id": "thread-b"}])
async def test_an_answer_that_does_not_fit_is_asked_again(desk: Desk, change: dict[str, str]) -> None:
    desk.tools = frozenset()
    (question,) = (await desk.say("call act:a")).interrupts
    ended = await desk.decide((question, "approve"), **change)
    assert (ended.stopped, tools_asked(ended), desk.acts) == ("interrupted", [("act", "a")], [])


async def test_a_call_in_a_subgraph_is_asked_and_runs_once(nested: Desk) -> None:
    nested.tools = frozenset()
    (question,) = (await nested.say("call act:a")).interrupts
    ended = await nested.decide((question, "approve"))
    assert (ended.stopped, ended.step.text, nested.acts) == ("end", "said: did a", ["a"])


async def test_an_error_of_the_graph_fails_the_turn_with_one_sentence(desk: Desk) -> None:
    ended = await desk.say("fail")
    assert (ended.stopped, ended.error) == ("failed", "ValueError: the model is broken")


async def test_a_turn_over_its_calls_is_told_so(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    limited = Category(name="work", tools=ALL, autonomous=True, tool_calls=1)
    given = desk.context("turn-1")
    monkeypatch.setattr(desk, "context", lambda: TurnContext(**{**vars(given), "category": limited}))
    ended = await desk.say("call act:a act:b")
    assert (len(desk.acts), ended.stopped) == (1, "end")
    assert "limit of 1 tool calls" in str([line.text for line in ended.step.messages or ()])


class Held:
    """A turn whose tool has begun, and waits until the test lets it go."""

    def __init__(self, desk: Desk) -> None:
        self._socket, self._begun, self._writers = desk.place / "hold", asyncio.Event(), list[asyncio.StreamWriter]()

    async def begin(self, work: Any) -> asyncio.Task[Ended]:
        async def connected(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._writers.append(writer)
            self._begun.set()

        self._server = await asyncio.start_unix_server(connected, self._socket)
        running = asyncio.create_task(work)
        await self._begun.wait()
        return running

    def let_go(self) -> None:
        self._server.close()
        self._socket.unlink()
        for writer in self._writers:
            writer.close()


async def test_a_cancelled_turn_stops_in_its_tool_and_the_next_turn_begins_after_it(desk: Desk) -> None:
    held = Held(desk)
    running = await held.begin(desk.say("call act:a"))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await desk.engine.read("thread-a")).position is Position.OPEN
    held.let_go()
    ended = await desk.say("hello")
    assert (ended.stopped, ended.step.text, desk.acts) == ("end", "said: hello", ["a"])


async def test_a_drained_turn_continues_on_the_next_engine(start: Start, saver: GroupedSaver, desk: Desk) -> None:
    held = Held(desk)
    running = await held.begin(desk.say("call act:a"))
    desk.engine.drain()
    held.let_go()
    assert (await running).stopped == "drained"
    async with start("plain", saver) as engine:
        desk.engine = engine
        ended = await desk.order(Continue())
        assert (ended.stopped, ended.step.text, desk.acts) == ("end", "said: did a", ["a"])


async def test_a_question_stays_for_the_next_engine(start: Start, saver: GroupedSaver, desk: Desk) -> None:
    desk.tools = frozenset()
    (question,) = (await desk.say("call act:a")).interrupts
    async with start("plain", saver) as engine:
        desk.engine = engine
        assert (await engine.read("thread-a")).pending == {question.interrupt_id}
        # The record of the guard's questions ended with the first engine: the next one asks again before it acts.
        ended = await desk.order(Continue())
        assert (tools_asked(ended), desk.acts) == ([("act", "a")], [])
        ended = await desk.decide((ended.interrupts[0], "approve"))
        assert (ended.stopped, desk.acts) == ("end", ["a"])


async def test_states_are_shown_newest_first_and_pruned_to_the_newest(desk: Desk, saver: GroupedSaver) -> None:
    await desk.say("call act:a")
    config: Any = {"configurable": {"thread_id": "thread-a"}}
    newest = await desk.engine.state(config)
    assert (newest.values["topic"], newest.next) == ("work", ())
    found = [one async for one in desk.engine.history(config, None)]
    assert found[0].config["configurable"]["checkpoint_id"] == newest.config["configurable"]["checkpoint_id"]
    assert len(found) > 3
    await desk.engine.prune("thread-a")
    desk.engine.flush()
    assert len([one async for one in desk.engine.history(config, None)]) == 1
    assert [str(one.content) for one in (await desk.engine.state(config)).values["messages"]][-1] == "said: did a"


async def test_a_graph_is_described_with_its_subgraphs(nested: Desk) -> None:
    found = await nested.engine.describe(True, None, True)
    assert {"inside", "__start__"} <= {str(one["id"]).partition(":")[0] for one in found["graph"]["nodes"]}
    assert "messages" in found["schemas"]["input_schema"]["properties"]
    assert [*found["subgraphs"]] == ["inside"]


async def test_fields_that_the_graph_does_not_know_are_refused(desk: Desk) -> None:
    ended = await desk.say("hello", input_json='{"colour": "red"}')
    assert ended.stopped == "failed"
    assert "has no field 'colour'" in ended.error
