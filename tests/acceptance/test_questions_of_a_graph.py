"""A project with LangChain's own human-in-the-loop middleware: its questions at the command line, by real daemons."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.constellation import AGENT_RUNTIME, Constellation
from turnkeeper.config.home import Home

pytestmark = pytest.mark.process

GRAPH = '''
from pathlib import Path

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult


class Writer(BaseChatModel):
    """Sends two letters and reports."""

    _llm_type = "writer"

    def bind_tools(self, tools, **kwargs):
        return self

    def _generate(self, messages, *args, **kwargs):
        done = [message for message in messages if isinstance(message, ToolMessage)]
        calls = [{"name": "send", "args": {"to": to}, "id": f"call-{to}"} for to in ("alice", "bob")]
        line = AIMessage("reported: " + "; ".join(one.text for one in done)) if done else AIMessage("", tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=line)])


def send(to: str) -> str:
    """Send a letter."""
    with (Path(__file__).parent / "sent").open("a") as file:
        file.write(f"{to} ")
    return f"sent to {to}"


graph = create_agent(Writer(), [send], middleware=[HumanInTheLoopMiddleware({"send": True})])
'''


@pytest.fixture
def project(home: Home, tmp_path: Path) -> Iterator[Constellation]:
    (tmp_path / "letters.py").write_text(GRAPH)
    made = Constellation(home)
    made.command("turnkeeper", "init", "--graph", f"{tmp_path / 'letters.py'}:graph")
    made.start()
    yield made
    made.stop()


def asked(project: Constellation) -> dict[str, Any]:
    project.create("letters", "--in", "1s", "--prompt", "write")
    project.until_outcome("letters", "interrupted")
    (question,) = project.ask("agent-runtime", "approvals", "list")
    return question


def test_a_person_reads_the_calls_and_decides_each_of_them_once(project: Constellation, tmp_path: Path) -> None:
    question = asked(project)
    prefix = question["interrupt_id"][:10]
    shown = project.command("agent-runtime", "approvals", "show", prefix)
    for line in ("1. send  (call call-alice)", 'to = "alice"', "takes: approve, reject, edit, respond", "--call"):
        assert line in shown
    assert 'send(to="alice"); send(to="bob")' in project.command("agent-runtime", "interrupts", "list")
    assert "call call-bob" in project.command("agent-runtime", "conversation", "show", "general")

    wrong: list[tuple[str, ...]] = [
        ("--approve", "--respond", "x"),
        ("--edit", '{"to": "eve"}'),
        ("--call", "1 approve"),
        ("--call", "3 approve", "--approve"),
        ("--answer", '{"decisions": [{"type": "approve"}]}'),
        ("--answer", '[{"type": "accept"}]'),
        ("--answer", "null"),
    ]
    for options in wrong:
        refused = project.attempt("agent-runtime", "approvals", "resolve", prefix, *options)
        assert (refused.returncode, refused.stderr[:7]) == (2, "error: "), (options, refused)
    together: dict[tuple[str, ...], int] = {
        ("--approve", prefix, "--reject", "beef no"): 3,
        ("--approve", prefix, "--reject", f"{prefix} no"): 2,
        ("--approve", prefix, "--decisions", '[{"id": 1}]'): 2,
        ("--approve", prefix, "--decisions", '[{"id": "beef", "why": ""}]'): 2,
        ("--approve", prefix, "--decisions", "@nowhere.json"): 3,
        ("--approve", prefix, "--decisions", "{}"): 2,
        (): 2,
    }
    for options, code in together.items():
        refused = project.attempt("agent-runtime", "approvals", "decide", *options)
        assert (refused.returncode, refused.stderr[:7]) == (code, "error: "), (options, refused)
    assert project.ask("agent-runtime", "approvals", "list") == [question], "no answer was taken"

    project.kill(AGENT_RUNTIME)
    project.start(AGENT_RUNTIME)
    project.command("agent-runtime", "approvals", "resolve", prefix, "--approve", "--call", "2 reject not him")
    project.until_outcome("letters", "succeeded")
    assert (tmp_path / "sent").read_text().split() == ["alice"], "one approval was enough, for that call"
    assert "not him" in project.command("agent-runtime", "conversation", "show", "general")
    assert project.violations() == []


def test_an_answer_is_taken_as_json_and_the_command_says_so(project: Constellation, tmp_path: Path) -> None:
    question = asked(project)
    answer = '{"decisions": [{"type": "reject"}, {"type": "respond", "message": "he knows"}]}'
    done = project.attempt("agent-runtime", "approvals", "resolve", question["interrupt_id"], "--answer", answer)
    assert (done.returncode, "the answer was read as JSON" in done.stderr) == (0, True)
    project.until_outcome("letters", "succeeded")
    assert "he knows" in project.command("agent-runtime", "conversation", "show", "general")
    assert not (tmp_path / "sent").exists()

    project.create("again", "--in", "1s", "--prompt", "write", "--thread", "each")
    project.until_outcome("again", "interrupted")
    (question,) = project.ask("agent-runtime", "approvals", "list")
    written = tmp_path / "decisions.json"
    written.write_text(
        json.dumps([{"id": question["interrupt_id"][:10], "decision": "answer", "args": json.loads(answer)}])
    )
    (decided,) = project.ask("agent-runtime", "approvals", "decide", "--decisions", f"@{written}")
    assert (decided["decision"], decided["thread_id"][:5]) == ("answer", "task-")
    assert "@" in decided["thread_id"], "the fire has a thread of its own"
    project.until_outcome("again", "succeeded")
