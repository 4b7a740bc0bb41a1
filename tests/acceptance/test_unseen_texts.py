"""Every command and surface that shows stored text writes out characters that a reader would not see.

Such a text is put into each column of a used home that holds words of people, models, tools or peers, into inboxes and
into logs. Then every command of the table is run, in each form, and every page, list and tool is asked.
"""

import asyncio
import html
import io
import json
import re
import shutil
import tarfile
import tempfile
import unicodedata
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from langgraph.checkpoint.sqlite import SqliteSaver

from agent_runtime.turns.turns import Notification
from tests.acceptance.test_mcp_clients import client
from tests.acceptance.test_reads_of_older_homes import ARCHIVES, HOMES, OTHERS, READS, named
from tests.support.constellation import Constellation
from tests.support.web import Web, serving
from tests.unit.turnkeeper.test_console_unseen import ignorable
from turnkeeper.config.home import Home
from turnkeeper.constellation.upkeep.erase import PAGES, TEXTS
from turnkeeper.gateway.page.reads import Reads
from turnkeeper.storage import sqlite_files

pytestmark = pytest.mark.process
_ACTING = {chr(code) for code in range(0x20000) if unicodedata.category(chr(code)) in {"Cc", "Cf", "Zl", "Zp"}}
UNSEEN = (_ACTING | ignorable()) - {"\n", "\t", "\0"}
# Of the 4,096 tags and selectors beyond U+E0000, which are alike, a few.
HIDDEN = "".join(sorted(one for one in UNSEEN if one < "\U000e0000")) + "\U000e0001\U000e0041\U000e007f\U000e0100"
# Columns, beside those that hold texts, with names that a model writes.
NAMES = {"interrupts": ("tool", "missing_scope"), "derivations": ("source",)}
PLANTED = {
    table: {*TEXTS.get(table, ()), *PAGES.get(table, ()), *NAMES.get(table, ())}
    for table in {**TEXTS, **PAGES, **NAMES}
}
EMPTY_STAYS = re.compile(r"_json$|^(tags|event|definition|pacing|key|source|tool|missing_scope|name)$")
SCHEDULE = {"expression", "cron", "schedule", "rrule"}  # of a task's definition
FORMS: tuple[tuple[str, ...], ...] = ((), ("-o", "wide"), ("--json",))
# Lines of commands that show more if they are asked for it.
ALSO = [
    "inbox list codex",
    "inbox quarantine codex",
    "approvals list --all",
    "candidates list --all",
    "deviations list --all",
    "conversation show tasks -n 100",
    "task history seconds",
    "memory search British",
    "query QUESTIONS",
    "query OFMESSAGES",
    "logs agent-runtime",
]
# Commands that change something, and show what they changed.
ACTS = [
    "triage",
    "send general SEARCH --wait",
    "send general REMEMBER --wait",
    "task pause TASK --note HIDDEN",
    "task resume TASK",
    "task disable TASK",
    "task resume TASK",
    "task run TIMED",
    "task cancel TIMED",
    "task delete TASK --yes",
    "task restore TASK",
    "loop pause paused-loop",
    "loop resume paused-loop",
    "loop stop paused-loop",
    "loop delete paused-loop",
    "emit deploy --data {}",
    "memory put HIDDEN HIDDEN --tier workspace",
    "memory update ENTRY HIDDEN --tier workspace",
    "memory forget ENTRY --tier workspace",
    "workspace put PAGE --body HIDDEN",
    "workspace attach PAGE FOLDER/crontab --name HIDDEN",
    "threads put THREAD --metadata a=HIDDEN",
    "inbox send codex HIDDEN",
    "inbox drain codex",
    "inbox requeue codex",
    "approvals exceptions revoke 1",
    "approvals approve APPROVAL",
    "approvals resolve APPROVAL --approve",
    "approvals decide --approve APPROVAL",
    "candidates accept CANDIDATE",
    "candidates reject PROPOSAL --note HIDDEN",
    "deviations resolve DEVIATION --keep-canonical --note HIDDEN",
    "turns cancel TURN --reason HIDDEN",
    "escalate HIDDEN",
    "assistants show agent0",
    "categories grant loop memory:write",
    "watchdog tick",
    "pause --tag team=none",
    "resume --tag team=none",
]
# Commands that show no stored text, or that another test has on a terminal, with a peer or with a program of its own.
ELSEWHERE = """
cordon|deliver add|deliver delete|deliver edit|deliver send|deliver test|down|drain|folders add|folders delete|forget|graph install|hooks add|hooks delete
inbox watch|init|keys rotate|loop reschedule|loop restore|loop tick|mcp|migrate|move|peers add
peers invite|peers delete|quiet|restart|restore|service install|service uninstall|task tick|tools accept|tools add|uncordon|up|watchdog suspend
web keys make|web keys revoke|web open|web serve|workspace import
"""
SHOWING = {
    *("approvals list", "approvals show", "candidates diff", "candidates list", "candidates show", "conversation show"),
    *("deviations list", "deviations show", "events --since", "inbox list", "logs", "loop list", "memory get"),
    *("memory list", "memory search", "query OFMESSAGES", "query QUESTION", "revalidation list", "task export"),
    *("task history", "task list", "task show", "threads show", "turns list", "turns show", "workspace attachments"),
    *("workspace list", "workspace show"),
}
TYPED = "typed\u200b\u202e\U000e0041"  # what an argument can hold


@pytest.fixture(scope="module")
def stopped() -> Iterator[Constellation]:
    """A used home in which every text hides something, and in which nothing runs."""
    folder = Path(tempfile.mkdtemp(prefix="tk-"))
    with tarfile.open(ARCHIVES[0]) as packed:
        packed.extractall(folder, filter="data")
    made = Constellation(Home(root=folder / "home"))
    made.home.config.write_text(f"{made.home.config.read_text()}\n[query]\ntexts = true\n")
    made.start()
    made.command("agent-runtime", "send", "general", f"tell codex: look x{HIDDEN}", "--wait")
    made.stop()
    plant(made.home)
    yield made
    shutil.rmtree(folder)


def plant(home: Home) -> None:
    """Let every text of the stores, the logs and the trail hide something."""
    for path in (home.schedules_db, home.agent_db):
        with sqlite_files.alone(path) as store:
            for cell in list(sqlite_files.cells(store)):
                is_text = cell.column in PLANTED.get(cell.table, ()) and isinstance(cell.value, str)
                if is_text and (cell.value or not EMPTY_STAYS.search(cell.column)):
                    sqlite_files.overwrite(store, cell, hiding(str(cell.value)))
    for log in home.logs.glob("*.log"):
        log.write_text(f"{log.read_text()}warning: x{HIDDEN}\n")
    for trail in home.logs.glob("events-agent-runtime-*.jsonl"):
        *_, last = trail.read_text().splitlines()
        refused = json.loads(last) | {"event": "act.refused", "method": "GetTurn", "reason": f"x{HIDDEN}"}
        trail.write_text(f"{trail.read_text()}{json.dumps(refused)}\n")


def hiding(text: str) -> str:
    """Return a text each line of which hides something; of JSON, its texts of several words."""
    try:
        value = json.loads(text)
    except ValueError:
        return "\n".join(f"{line} x{HIDDEN}" for line in text.split("\n"))
    return json.dumps(inside(value), ensure_ascii=False)


def inside(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: each if key in SCHEDULE else inside(each) for key, each in value.items()}
    if isinstance(value, list):
        return [inside(each) for each in value]
    return f"{value} x{HIDDEN}" if isinstance(value, str) and " " in value else value


@pytest.fixture(scope="module")
def words(stopped: Constellation) -> dict[str, str]:
    """Return the values of the placeholders in capitals in a command line.

    They are read while nothing runs. Otherwise the newest turn can be one that began after the texts were planted.
    """
    folder = stopped.home.root.parent / "files"
    folder.mkdir()
    with SqliteSaver.from_conn_string(str(folder / "theirs.sqlite")) as theirs:
        theirs.setup()
    shutil.copy(HOMES.parents[2] / "categories" / "loop.toml", folder)
    (folder / "crontab").write_text("0 7 * * * echo hello\n")
    (folder / "task.toml").write_text(
        f'[[task]]\nname = "new"\nevery = "1h"\ncategory = "loop"\nchannel = "general"\nprompt = "{TYPED}"\n'
    )
    return named(stopped) | {
        "FOLDER": str(folder),
        "QUESTION": "SELECT * FROM turns",
        "QUESTIONS": "SELECT * FROM interrupts",
        "OFMESSAGES": "SELECT * FROM messages",
        "HIDDEN": TYPED,
        "SEARCH": f"search: garden {TYPED}",
        "REMEMBER": f"Summarise the garden, then remember: {TYPED}",
    }


@pytest.fixture(scope="module")
def planted(stopped: Constellation, words: dict[str, str]) -> Iterator[Constellation]:
    """The same home with its daemons."""
    stopped.start()
    yield stopped
    stopped.stop()


def run(home: Constellation, line: str, words: dict[str, str], *form: str) -> tuple[list[str], bool]:
    """Run a command; return what is wrong with what it printed, and whether it showed a text that hides something."""
    argv = [words.get(word, word.replace("FOLDER", words["FOLDER"]).replace("HIDDEN", TYPED)) for word in line.split()]
    done = home.attempt("turnkeeper", *argv, *form)
    said = done.stdout + done.stderr
    trouble = [f"U+{ord(one):04X}" for one in sorted(UNSEEN & {*said})]
    trouble += ["Traceback"] * ("Traceback" in said or done.returncode not in range(7))
    if form == ("--json",) and not done.returncode:
        trouble += ["no JSON"] * (not is_json(done.stdout))
    return trouble, bool(re.search(r"\\u200b", said))


def is_json(text: str) -> bool:
    """Return True if a text is one value of JSON, or one a line."""
    for parts in ([text or "null"], text.splitlines()):
        with suppress(ValueError):
            return all(json.loads(part) is not ... for part in parts)
    return False


def test_every_command_that_reads_writes_it_out_in_each_form(planted: Constellation, words: dict[str, str]) -> None:
    found, showing = {}, set()
    for line in [*READS, *ALSO]:
        for form in FORMS:
            trouble, shows = run(planted, line, words, *form)
            found |= {f"{line} {form}": trouble} if trouble else {}
            showing |= {" ".join(line.split()[:2])} if shows else set()
    assert not found, "\n".join(map(str, found.items()))
    assert showing >= SHOWING, "what hides something is shown by these at least"


def test_a_new_command_is_run_here_or_named() -> None:
    others = {one for one in re.split(r"[|\n]", OTHERS.strip()) if not one.startswith("interrupts ")}  # approvals again
    acting = {one for one in others if any(f"{line} ".startswith(f"{one} ") for line in ACTS)}
    elsewhere = {*re.split(r"[|\n]", ELSEWHERE.strip())}
    assert others - acting == elsewhere


@pytest.fixture(scope="module")
def web(planted: Constellation) -> Iterator[Web]:
    with serving(planted.home) as made:
        made.log_in()
        yield made


def test_every_page_writes_it_out(words: dict[str, str], web: Web) -> None:
    parts = {"channel": "tasks", "turn_id": words["TURN"], "name": words["TASK"], "page_id": words["PAGE"]}
    paths = [path.format(**parts) for path in Reads(Mock()).routes()]
    answers = {path: web.ask(path, cookie=web.cookie) for path in paths}
    assert {answer.status for answer in answers.values()} == {200}
    shown = {path: html.unescape(answer.body) for path, answer in answers.items()}
    assert {path: sorted(UNSEEN & {*text}) for path, text in shown.items() if UNSEEN & {*text}} == {}
    assert sum("\\u200b" in text for text in shown.values()) >= 10


def texts_of(value: Any) -> Iterator[str]:
    """Yield the texts of a value of JSON, and the names in it."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in [*value, *value.values()] if isinstance(value, dict) else value:
            yield from texts_of(each)


def test_every_tool_of_mcp_that_reads_and_every_resource_writes_it_out(
    planted: Constellation, words: dict[str, str]
) -> None:
    given: dict[str, dict[str, Any]] = {
        "task_list": {},
        "task_show": {"name": words["TASK"]},
        "task_explain": {"name": words["TASK"]},
        "schedule_preview": {"when": {"every": "1h"}},
        "conversation_read": {"channel": "tasks"},
        "inbox_list": {},
    }
    turn, channel, page = words["TURN"], "tasks", words["PAGE"]

    async def ask() -> dict[str, Any]:
        async with client(planted.home, "auto") as to:
            reads = [one.name for one in (await to.list_tools()).tools if one.annotations.read_only_hint]
            said = {name: await to.call_tool(name, given[name]) for name in reads}
            said["turn_get"] = await to.call_tool("turn_get", {"turn_id": turn})
            assert not any(answer.is_error for answer in said.values())
            parts = {"name": words["TASK"], "channel": channel, "id": page}
            templates = [one.uri_template for one in (await to.list_resource_templates()).resource_templates]
            resources = [str(one.uri) for one in (await to.list_resources()).resources]
            for uri in [*resources, *(template.format(**parts) for template in templates)]:
                said[uri] = await to.read_resource(uri)
            return {name: json.loads(answer.model_dump_json()) for name, answer in said.items()}

    shown = {name: "".join(texts_of(answer)) for name, answer in asyncio.run(ask()).items()}
    assert {name: sorted(UNSEEN & {*text}) for name, text in shown.items() if UNSEEN & {*text}} == {}
    assert sum("\\u200b" in text for text in shown.values()) >= 7


def test_the_langgraph_api_gives_what_is_stored_and_writes_it_out_beside_an_approval(web: Web) -> None:
    key = web.key("looks", "decide")
    (thread,) = asked(web, key, "POST", "/threads/search", {"status": "interrupted"})
    (((one,),),) = (thread["interrupts"].values(),)
    (call,) = one["value"]["action_requests"]
    assert HIDDEN in call["args"]["text"], "a program gets the text as it is"
    assert "\\u200b" in call["description"]
    assert not UNSEEN & {*call["description"]}, "a person is shown what hides"
    (cron, *_) = asked(web, key, "POST", "/runs/crons/search", {})
    assert HIDDEN in cron["payload"]["input"]["messages"][0]["content"]


def asked(web: Web, key: str, method: str, path: str, body: Any) -> Any:
    answer = web.ask(f"/lg{path}", method, json.dumps(body).encode(), x_api_key=key, content_type="application/json")
    assert answer.status == 200, answer.body
    return json.loads(answer.body)


def test_every_command_that_acts_writes_it_out(
    planted: Constellation, words: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, showing = {}, set()
    for line in ACTS:
        for form in ((), ("--json",)):
            monkeypatch.setattr("sys.stdin", io.StringIO("s\n" * 100))  # leave each thing that waits
            trouble, shows = run(planted, line, words, *form)
            found |= {f"{line} {form}": trouble} if trouble else {}
            showing |= {" ".join(line.split()[:2])} if shows else set()
    assert not found, "\n".join(map(str, found.items()))
    assert showing >= {"triage", "inbox drain", "approvals decide", "task pause", "send general", "workspace put"}


def test_no_process_writes_one_into_a_log(planted: Constellation) -> None:
    logs = {path.name: path.read_bytes().decode() for path in planted.home.logs.iterdir() if path.is_file()}
    assert len(logs) > 3
    assert [name for name, text in logs.items() if UNSEEN & {*text.replace(f"warning: x{HIDDEN}", "", 1)}] == []


@pytest.mark.parametrize(
    "hidden", ["\u3164", "\u115f", "\u034f", "\ufe0f", "\U000e0100", "\u200b", "\u202e", "\U000e0041"]
)
def test_no_name_that_a_notification_holds_hides_anything(planted: Constellation, hidden: str) -> None:
    """`[notify] command` gets the names of a task and a channel, and ids: no door takes such a name."""
    rest = ("--every", "1h", "--category", "loop", "--prompt", "p")
    for argv in (
        ("task", "create", f"a{hidden}b", *rest, "--channel", "general"),
        ("task", "create", "ab", *rest, "--channel", f"a{hidden}b"),
        ("task", "create", "ab", *rest, "--channel", "general", "--thread", f"a{hidden}b"),
        ("send", f"a{hidden}b", "hello"),
        ("send", "general", "hello", "--thread", f"a{hidden}b"),
    ):
        refused = planted.attempt("turnkeeper", *argv)
        assert (refused.returncode, hidden in refused.stderr) == (2, False), argv
    assert {field.name for field in fields(Notification)} == {"event", "task", "channel", "turn_id", "interrupt_id"}
