"""Answers at the command line: `approvals resolve`, `triage` and `send` say what they answered, and what they refuse."""

import asyncio
import io
import sys
from typing import Any

import pytest

from agent_runtime.cli import app
from tests.integration.runtime.authors_graphs import AuthorsBench
from tests.integration.runtime.harness import STATES
from tests.integration.runtime.test_follow_conversation import Desk, asking, desk, served
from turnkeeper.config.home import Home
from turnkeeper.console import run
from turnkeeper.errors import EXIT_CONFLICT, EXIT_USAGE

__all__ = ["desk"]  # the fixture


async def test_triage_goes_through_what_waits(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TURNKEEPER_HOME", str(desk.home.root))
    long = "word " * 40 + "the end"
    await asking(desk, long)
    async with served(desk):
        monkeypatch.setattr(sys, "stdin", io.StringIO("what\ne 1\na bit unsure\nr not today\n"))
        assert await asyncio.to_thread(run, app, ["triage", "main"]) == 0
        await desk.stopped((await desk.conversation())[0].turn_id, after=2)
    said = capsys.readouterr()
    assert "turnkeeper approvals resolve" in said.out
    assert "1 decided, 0 left" in said.err
    assert f"its answer: turnkeeper turns show {(await desk.conversation())[0].turn_id}\n" in said.err
    assert "write all arguments of the call, as a JSON object; they are now: {" in said.err
    assert long in said.out, "an approval binds to all of it, and so all of it is shown"
    assert desk.noted == []
    assert "not today" in (await desk.conversation())[0].messages[2].text


READS_AN_OBJECT = """
from typing import TypedDict
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

class State(TypedDict, total=False):
    prompt: str

def ask(state):
    return {"prompt": "ordered" if interrupt({"question": "Order it?", "price": 12}).get("approved") else "left"}

graph = StateGraph(State)
graph.add_node("ask", ask)
graph.add_edge(START, "ask")
"""


class Typed(io.StringIO):
    """Lines that a person types at a terminal."""

    def isatty(self) -> bool:
        return True


async def test_the_command_says_that_the_graph_failed_on_its_answer(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TURNKEEPER_HOME", str(home.root))
    bench: Any = AuthorsBench(home)
    bench.bring(READS_AN_OBJECT)
    await bench.open()
    event = await bench.run(prompt="go")
    (question,) = await bench.pending()
    resolve = ["approvals", "resolve", question.interrupt_id]
    async with served(bench):
        for way, object_ in (("--approve", '{"approved": true}'), ("--reject", '{"approved": false}')):
            assert await asyncio.to_thread(run, app, [*resolve, way]) == EXIT_CONFLICT
            said = capsys.readouterr()
            assert "the graph failed on this answer: AttributeError: 'bool' object has no attribute 'get'" in said.err
            assert f"{question.interrupt_id[:10]} --answer '{object_}'" in said.err
            assert "the turn continues" not in said.err
        both = io.StringIO()
        monkeypatch.setattr(sys, "stdin", io.StringIO("approve\n"))
        monkeypatch.setattr(sys, "stderr", both)
        monkeypatch.setattr(sys, "stdout", both)
        assert await asyncio.to_thread(run, app, ["triage"]) == 0
        monkeypatch.undo()
        monkeypatch.setenv("TURNKEEPER_HOME", str(home.root))
        lines = both.getvalue().splitlines()
        prompt = lines.index("your answer; or [a]pprove: True, [r]eject: False, Enter skips, [q]uit")
        assert any("price = 12" in line for line in lines[:prompt]), "the card stands before its prompt"
        assert lines[prompt + 1] == "> approve"
        assert lines[prompt + 2].startswith("not done: the graph failed on this answer")
        assert lines[-2:] == ["it stays open", "0 decided, 1 left"]
        monkeypatch.setattr(sys, "stdin", Typed("approve\nq\n"))
        assert await asyncio.to_thread(run, app, ["triage"]) == 0
        said = capsys.readouterr()
        assert said.out.count("price = 12") == 2, "at a terminal the question is shown again"
        assert said.err.endswith("0 decided; the other items wait\n")
        assert await asyncio.to_thread(run, app, [*resolve, "--answer", '{"approved": true}']) == 0
        ended = await bench.events(until=lambda one: one.state == STATES.SUCCEEDED)
        assert (ended[-1].turn_id, ended[-1].summary) == (event.turn_id, '{"prompt": "ordered"}')
    await bench.close()


@pytest.mark.parametrize("command", ["resolve", "decide"])
async def test_a_command_picks_an_option_by_its_number_and_refuses_what_is_none(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    monkeypatch.setenv("TURNKEEPER_HOME", str(home.root))
    bench: Any = AuthorsBench(home)
    asks, answer = 'interrupt({"question": "Order it?", "price": 12}).get("approved")', "interrupt(OFFERS) == 'yes'"
    offers = 'OFFERS = {"question": "Order it?", "options": ["yes", "no"]}\n'
    bench.bring(offers + READS_AN_OBJECT.replace(asks, answer))
    await bench.open()
    await bench.run(prompt="go")
    (question,) = await bench.pending()

    async def answered(text: str, *more: str) -> int:
        one = question.interrupt_id
        given = [one, "--answer", text] if command == "resolve" else ["--answer", f"{one} {text}"]
        return await asyncio.to_thread(run, app, ["approvals", command, *given, *more])

    async with served(bench):
        for text in ("3", "yse"):
            assert await answered(text) == EXIT_USAGE
            assert f"answer: '{text}' is none of the options: [1] yes  [2] no" in capsys.readouterr().err
        assert await answered("yes", "--for-task") == EXIT_USAGE
        assert "add --approve" not in capsys.readouterr().err
        assert await bench.pending() == [question]
        assert await answered("1") == 0
        said = capsys.readouterr().err
        assert ("the answer was read as “yes”" in said) == (command == "resolve")
        ended = await bench.events(until=lambda one: one.state == STATES.SUCCEEDED)
        assert ended[-1].summary == '{"prompt": "ordered"}'
    await bench.close()


ASKS_FOR_A_COUNT = """
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

def ask(state):
    sure = interrupt({"question": "Order it?", "options": ["yes", "no"]})
    return {"messages": [AIMessage(f"{sure}: {int(interrupt('How many?'))} ordered")]}

graph = StateGraph(MessagesState)
graph.add_node("ask", ask)
graph.add_edge(START, "ask")
"""


async def test_send_says_which_question_it_answers_with_what_and_where_to_read_on(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TURNKEEPER_HOME", str(home.root))
    bench: Any = AuthorsBench(home)
    bench.bring(ASKS_FOR_A_COUNT)
    await bench.open()
    event = await bench.run(prompt="go")
    (question,) = await bench.pending()

    async def send(*argv: str) -> tuple[int, str]:
        code = await asyncio.to_thread(run, app, ["send", "main", *argv])
        return code, capsys.readouterr().err

    async with served(bench):
        code, said = await send("perhaps")
        assert (code, await bench.pending()) == (EXIT_USAGE, [question])
        assert "'perhaps' is none of the options: [1] yes  [2] no" in said
        code, said = await send("2")
        assert code == 0
        assert f"answers “Order it? (yes | no)” with “no”; {event.turn_id} continues with it\n" in said
        assert f"for the rest: turnkeeper turns show {event.turn_id}\n" in said
        assert "as turn-" not in said, "the message has no turn of its own"
        code, said = await send("many")
        assert code == EXIT_CONFLICT
        assert "answers “How many?” with “many”" in said
        assert "the graph failed on this answer: ValueError" in said
        assert await asyncio.to_thread(run, app, ["send", "main", "3", "--wait"]) == 0
        assert "no: 3 ordered" in capsys.readouterr().out
    await bench.close()


async def test_triage_goes_on_to_what_the_same_turn_asks_next(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TURNKEEPER_HOME", str(home.root))
    bench: Any = AuthorsBench(home)
    bench.bring(ASKS_FOR_A_COUNT)
    await bench.open()
    await bench.run(prompt="go")
    async with served(bench):
        monkeypatch.setattr(sys, "stdin", io.StringIO("yes\n\n"))
        assert await asyncio.to_thread(run, app, ["triage"]) == 0
        assert capsys.readouterr().err.endswith("1 decided, 1 left\n"), "the second question was skipped"
        monkeypatch.setattr(sys, "stdin", io.StringIO("3\n"))
        assert await asyncio.to_thread(run, app, ["triage"]) == 0
        assert capsys.readouterr().err.endswith("1 decided, 0 left\n")
        assert await asyncio.to_thread(run, app, ["triage"]) == 0
        assert capsys.readouterr().err == "no item waits for you\n"
    await bench.close()
