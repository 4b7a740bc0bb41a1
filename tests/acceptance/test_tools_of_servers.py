"""A server's tools from the first look to standing work: accepted, approved once, excepted, granted; and kill -9 between."""

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.demo.history import Outside
from tests.support import mcp_server
from tests.support.chat_server import KEY, ChatServer, Reply, serving
from tests.support.constellation import AGENT_RUNTIME, Constellation
from tests.support.mcp_server import ADD, Folder
from turnkeeper.config.toml_file import with_key

pytestmark = [pytest.mark.process, pytest.mark.sqlite_only("the servers are a machine's own; calls are rows on both")]
NOTE = Reply(calls=[("mcp__desk__note", {"text": "a"})])
SCOPE = "mcp:desk.note"


@pytest.fixture
def desk(tmp_path: Path) -> Folder:
    folder = Folder(tmp_path / "desk")
    folder.offer()
    return folder


@pytest.fixture
def model() -> Iterator[ChatServer]:
    with serving() as state:
        yield state


@pytest.fixture
def at_work(stopped: Constellation, model: ChatServer, desk: Folder) -> Constellation:
    """Both daemons, with a model of the test's and the server `desk` in the settings."""
    env = stopped.home.environment
    env.write_text(f"OPENAI_API_KEY={KEY}\n")
    env.chmod(0o600)
    command, *args = mcp_server.command(desk.path)
    text = with_key(stopped.home.config.read_text(), "model", "name", "openai:stub")
    text = with_key(text, "model", "base_url", model.url)
    text += f'\n[mcp_servers.desk]\ncommand = "{command}"\nargs = {json.dumps(args)}\n'
    stopped.home.config.write_text(text)
    stopped.start()
    return stopped


def fire(constellation: Constellation, model: ChatServer, *script: Reply) -> None:
    model.script = [*script]
    constellation.command("task-runner", "run", "errand")


def restart(constellation: Constellation, **environ: str) -> None:
    constellation.stop(AGENT_RUNTIME)
    constellation.start(AGENT_RUNTIME, **environ)


def test_from_the_first_look_to_a_tool_that_asks_nothing(
    at_work: Constellation, model: ChatServer, desk: Folder
) -> None:
    (row,) = at_work.ask("agent-runtime", "tools", "list")
    assert (row["scope"], row["state"], row["granted_by"]) == (SCOPE, "new: not accepted", [])
    at_work.create("errand", "--every", "365d", "--category", "loop")
    fire(at_work, model, Reply(text="nothing to do"))
    at_work.until_outcome("errand", "succeeded")
    offered = [tool["function"]["name"] for tool in model.requests[-1]["tools"]]
    assert "memory_put" in offered
    assert "mcp__desk__note" not in offered, "the author has not accepted it"

    said = at_work.attempt("turnkeeper", "tools", "accept", "desk")
    assert "Write a note." in said.stdout
    assert "turnkeeper restart" in said.stderr
    assert at_work.ask("agent-runtime", "tools", "list")[0]["state"] == "accepted"
    restart(at_work)

    fire(at_work, model, NOTE, Reply(text="noted"))
    at_work.until_outcome("errand", "interrupted")
    (asked,) = at_work.ask("agent-runtime", "approvals", "list")
    assert (asked["tool"], asked["args"], asked["missing_scope"]) == ("mcp__desk__note", {"text": "a"}, SCOPE)
    at_work.command("agent-runtime", "approvals", "approve", asked["interrupt_id"], "--for-task")
    at_work.until_outcome("errand", "succeeded", 2)

    fire(at_work, model, NOTE, Reply(text="noted"))
    at_work.until_outcome("errand", "succeeded", 3)
    (listed,) = at_work.ask("agent-runtime", "approvals", "exceptions", "list")
    assert listed["uses"] == 1

    restart(at_work)
    fire(at_work, model, NOTE, Reply(text="noted"))
    at_work.until_outcome("errand", "succeeded", 4)
    assert len(desk.calls) == 3

    desk.offer({**ADD, "description": "Write a note, in verse."})
    at_work.command("turnkeeper", "tools", "accept")
    restart(at_work)
    fire(at_work, model, NOTE, Reply(text="noted"))
    at_work.until_outcome("errand", "interrupted")
    (ended,) = at_work.ask("agent-runtime", "approvals", "exceptions", "list", "--all")
    assert "now has other code or other values" in ended["ended_why"]
    (asked,) = at_work.ask("agent-runtime", "approvals", "list")
    at_work.command("agent-runtime", "approvals", "approve", asked["interrupt_id"])
    at_work.until_outcome("errand", "succeeded", 5)

    at_work.command("turnkeeper", "categories", "grant", "loop", SCOPE)
    fire(at_work, model, NOTE, Reply(text="noted"))
    at_work.until_outcome("errand", "succeeded", 6)
    assert len(desk.calls) == 5
    assert at_work.ask("agent-runtime", "tools", "list")[0]["granted_by"] == ["loop"]
    assert at_work.violations() == []


def test_the_offline_model_calls_a_tool_that_a_prompt_names_so_that_it_can_be_tried_without_a_key(
    stopped: Constellation, desk: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = f"import runpy, sys\nsys.argv[1:] = [{str(desk.path)!r}]\n"
    (tmp_path / "desk.py").write_text(f"{start}runpy.run_path({mcp_server.__file__!r}, run_name='__main__')\n")
    monkeypatch.chdir(tmp_path)
    long = json.dumps({"path": "./" + 300 * "a"})
    python = Path(sys.executable)
    with monkeypatch.context() as patched:  # the daemons search another PATH
        patched.setenv("PATH", str(python.parent), prepend=os.pathsep)
        stopped.command("turnkeeper", "tools", "add", "desk", "--command", f"{python.name} desk.py '{long}'")
    assert tomllib.loads(stopped.home.config.read_text())["mcp_servers"]["desk"]["command"] == sys.executable
    assert long in tomllib.loads(stopped.home.config.read_text())["mcp_servers"]["desk"]["args"]
    stopped.start()
    prompt = 'Note it.\nuse mcp:desk.note: {"text": "bread"}\nuse mcp:desk.read\nuse tools:water: now'
    stopped.create("jot", "--every", "365d", "--category", "loop", "--prompt", prompt)
    stopped.command("task-runner", "run", "jot")
    stopped.until_outcome("jot", "interrupted")
    (asked,) = stopped.ask("agent-runtime", "approvals", "list")
    assert (asked["tool"], asked["args"]) == ("mcp__desk__note", {"text": "bread"})
    stopped.command("agent-runtime", "approvals", "approve", asked["interrupt_id"])
    stopped.until_outcome("jot", "succeeded")
    assert len(desk.calls) == 1
    (*_, last) = (message["text"] for turn in stopped.conversation() for message in turn["messages"])
    assert "mcp__desk__note answered: " in last
    assert "mcp:desk.read is not offered" in last
    assert "tools:water was not called: write its arguments as a JSON object" in last
    assert "rule-based offline model" in last


@pytest.mark.parametrize(
    ("step", "sent", "answer", "at_last"),
    [
        ("tool.begun", 0, "run it", 1),
        ("tool.answered", 1, "run it", 2),
        ("tool.answered", 1, "leave it", 1),
        ("tool.written", 1, "", 1),
    ],
)
def test_nothing_happens_twice_unasked_after_kill_9_at_any_step_of_a_call(
    at_work: Constellation, model: ChatServer, desk: Folder, step: str, sent: int, answer: str, at_last: int
) -> None:
    at_work.command("turnkeeper", "tools", "accept")
    at_work.command("turnkeeper", "categories", "grant", "loop", SCOPE)
    at_work.create("errand", "--every", "365d", "--category", "loop")
    restart(at_work, TURNKEEPER_FAILPOINTS=step)
    fire(at_work, model, NOTE, Reply(text="noted"))
    at_work.until_dead(AGENT_RUNTIME)
    assert len(desk.calls) == sent
    at_work.start(AGENT_RUNTIME)
    if answer:
        at_work.until_outcome("errand", "interrupted")
        (asked,) = at_work.ask("agent-runtime", "approvals", "list")
        assert "its answer was lost: it may have had its effect" in asked["question"]
        at_work.command("agent-runtime", "approvals", "resolve", asked["interrupt_id"], "--answer", answer)
    at_work.until_outcome("errand", "succeeded")
    assert len(desk.calls) == at_last
    sent = [{"tool": f"mcp__desk__{name}", "args": args} for call in desk.calls for name, args in call.items()]
    assert at_work.violations(outside=Outside(sent=sent)) == []
    assert [one.invariant for one in at_work.violations(outside=Outside(sent=3 * sent))] == ["I10"]


def test_a_server_over_http_gets_its_key_and_a_call_that_its_death_broke_off_is_not_repeated_unasked(
    at_work: Constellation, model: ChatServer, desk: Folder
) -> None:
    far = Folder(desk.path.parent / "far")
    far.offer()
    with subprocess.Popen([sys.executable, mcp_server.__file__, str(far.path), "sesame-7531"]) as process:
        at_work.until("the server to listen", (far.path / "port").exists)
        port = int((far.path / "port").read_text() or 0)
        with at_work.home.environment.open("a") as env:
            env.write("FAR_KEY=sesame-7531\n")
        with at_work.home.config.open("a") as config:
            config.write(f'\n[mcp_servers.far]\nurl = "http://127.0.0.1:{port}/mcp"\n')
            config.write('headers = {Authorization = "Bearer $FAR_KEY"}\n')
        at_work.command("turnkeeper", "tools", "accept", "far")
        shown = at_work.command("turnkeeper", "config", "show") + at_work.command("turnkeeper", "tools", "list")
        assert "sesame" not in shown
        at_work.command("turnkeeper", "categories", "grant", "loop", "mcp:far.note")
        at_work.create("errand", "--every", "365d", "--category", "loop")
        restart(at_work)
        far.do("die")
        again = Reply(calls=[("mcp__far__note", {"text": "a"})])
        fire(at_work, model, again, again, Reply(text="noted"))
        at_work.until_outcome("errand", "interrupted")
        assert process.wait() != 0
    assert far.calls == [{"note": {"text": "a"}}]
    (asked,) = at_work.ask("agent-runtime", "approvals", "list")
    assert "An earlier call of far in this turn began" in asked["question"]
    status = at_work.attempt("turnkeeper", "status")
    assert "far: the server far gave no answer to the call" in status.stdout + status.stderr
    at_work.command("agent-runtime", "approvals", "resolve", asked["interrupt_id"], "--answer", "leave it")
    at_work.until_outcome("errand", "succeeded")
    trail = "".join(path.read_text(errors="replace") for path in at_work.home.logs.rglob("*") if path.is_file())
    assert "sesame" not in trail
