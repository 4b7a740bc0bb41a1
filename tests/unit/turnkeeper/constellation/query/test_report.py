"""`turnkeeper report`: its figures are those of the SELECTs, and the page is safe to open."""

import json
import os
import re
import shutil
import sqlite3
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path
from subprocess import run
from typing import Any

import pytest

from tests.support.program import app
from tests.unit.turnkeeper.constellation.query.test_snapshot import SECRET, US, filled, insert, runner, runtime  # noqa: F401
from turnkeeper import console
from turnkeeper.config.home import Home
from turnkeeper.constellation.query.report import MOST_BARS, QUESTIONS, page
from turnkeeper.constellation.query.snapshot import Snapshot
from turnkeeper.times import from_us

HOSTILE = "</title><script src=http://evil.example/x.js></script><img src=x onerror=a()>\" style='x\x1b[31m\u202e&amp;"
SINCE = "2026-11-01T00:00:00Z"


class Read(HTMLParser):
    """The elements of a page with their attributes, and what a reader sees."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.seen: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.open += [tag] if tag != "meta" else []

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.seen += [data] if self.open[-1:] != ["style"] else []

    def check_safe(self) -> None:
        """Nothing in the page runs, and nothing is loaded."""
        for tag, attributes in self.elements:
            assert tag in {
                "html",
                "head",
                "meta",
                "title",
                "style",
                "body",
                "h1",
                "h2",
                "p",
                "ul",
                "li",
                "div",
                "i",
                "span",
                "b",
            }
            assert set(attributes) <= {
                "lang",
                "charset",
                "name",
                "content",
                "http-equiv",
                "class",
                "style",
                "aria-hidden",
            }
            assert re.fullmatch(r"|width:[0-9.]+%", attributes.get("style") or "")


@pytest.fixture(autouse=True)
def four_hours_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock stands; and the bounds of a process, which would stay with the tests, are not set."""
    monkeypatch.setattr("turnkeeper.constellation.query.report_commands.confine", lambda: None)
    monkeypatch.setattr(
        "turnkeeper.constellation.query.report_commands.SystemClock.now", lambda _clock: from_us(US + 14_400_000_000)
    )


def command(home: Home, *argv: str, capsys: Any) -> tuple[int, str, str]:
    code = console.run(app, ["--home", str(home.root), "report", *argv])
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.fixture
def hostile(filled: Home) -> Any:  # noqa: F811
    """The home of the queries, with a task whose name is markup, and a question that waits."""
    named = {"id": "task-9", "name": HOSTILE, "definition": "{}", "state": "active", "created_us": US}
    fire = {"task_id": "task-9", "fire_id": "task-9@1", "outcome": "skipped", "covers": 480, "due_us": US}
    asked = {"interrupt_id": "q-9", "kind": "permission", "tool": HOSTILE, "status": "pending", "turn_id": "turn-0"}
    asked["created_at_us"] = US
    insert(filled.schedules_db, runner.tasks, [named])
    insert(filled.schedules_db, runner.fires, [fire])
    insert(filled.agent_db, runtime.interrupts, [asked])
    yield filled
    for path, statement in (
        (filled.schedules_db, "DELETE FROM fires WHERE task_id = 'task-9'"),
        (filled.schedules_db, "DELETE FROM tasks WHERE id = 'task-9'"),
        (filled.agent_db, "DELETE FROM interrupts WHERE interrupt_id = 'q-9'"),
    ):
        with closing(sqlite3.connect(path)) as store, store:
            store.execute(statement)


def test_figures_of_the_page_are_those_of_the_selects(hostile: Home, capsys: Any) -> None:
    code, out, _ = command(hostile, "--since", SINCE, "--json", capsys=capsys)
    rows = json.loads(out)
    assert code == 0
    for name, question in QUESTIONS.items():
        shot = Snapshot(hostile, texts=False)
        asked = question.select(rows["since"], rows["until"])
        columns, *found = shot.run(asked, within_s=20, seize=lambda: None)
        shot.close()
        assert rows[name] == [dict(zip(columns, row, strict=True)) for row in found], name
        assert found, name
    code, text, _ = command(hostile, "--since", SINCE, capsys=capsys)
    assert code == 0
    seen = "\n".join(Read(text).seen)
    for part in (
        "nightly\n2 succeeded\n \n1 failed",
        "1 skipped (480 times)",
        "nightly\n3 within 10 s\n \nmean 2 s, worst 2 s",
        "(no task)\nmean 1 s\n \n3 turns",
        "(no task)\n21 read\n \n9 written\n \n3 turns",
        f"{rows['days'][0]['day']}\n21 read\n \n9 written\n \n3 turns",
        "memory_put: approve\nmean 1m 30s\n \n1 question",
        ": pending\nmean 4h\n \n1 question",
        "agent-runtime\n1 failed",
    ):
        assert part in seen, part


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.mark.process
@pytest.mark.service
@pytest.mark.skipif(CHROMIUM is None and os.environ.get("CI") != "true", reason="chromium is not installed")
def test_chromium_shows_the_page_and_has_nothing_to_say_about_it(hostile: Home, tmp_path: Path, capsys: Any) -> None:
    assert CHROMIUM is not None, "chromium is missing: run tests/install_services.sh"
    file = tmp_path / "report.html"
    file.write_text(command(hostile, "--since", SINCE, capsys=capsys)[1])
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", f"--user-data-dir={tmp_path}")
    done = run(
        [CHROMIUM, *options, "--dump-dom", file.as_uri()], capture_output=True, text=True, timeout=60, check=True
    )
    assert Read(file.read_text()).seen[0] in done.stdout
    assert done.stdout.count("<h2>") == 8
    assert "CONSOLE" not in done.stderr, done.stderr


def test_names_are_text_and_the_page_loads_nothing(hostile: Home, capsys: Any) -> None:
    _, text, _ = command(hostile, "--since", SINCE, capsys=capsys)
    read = Read(text)
    read.check_safe()
    assert "url(" not in text
    assert "@import" not in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "</title><script src=http://evil.example/x.js></script>" in "".join(read.seen)
    assert "prefers-color-scheme: dark" in text
    assert "width=device-width" in text


def test_words_of_people_never_show_whatever_the_settings_say(hostile: Home, capsys: Any) -> None:
    hostile.config.write_text("[query]\ntexts = true\n")
    outs = [command(hostile, "--since", SINCE, "-o", form, capsys=capsys)[1] for form in ("html", "json")]
    hostile.config.unlink()
    assert all(outs)
    assert not any(SECRET in out for out in outs)


def test_what_was_before_is_left_out(filled: Home, capsys: Any) -> None:  # noqa: F811
    _, out, _ = command(filled, "--since", "2026-11-22T01:00:00Z", "--json", capsys=capsys)
    assert not any(json.loads(out)[name] for name in ("fires", "lateness", "turns", "days", "approvals"))


def test_an_empty_home_gives_a_page_that_says_so(tmp_path: Path, capsys: Any) -> None:
    home = Home(root=tmp_path / "home")
    home.create()
    code, text, said = command(home, capsys=capsys)
    read = Read(text)
    read.check_safe()
    assert code == 0
    assert "Nothing is recorded in this time." in read.seen
    assert "schedules.db is not there: its tables are missing" in read.seen
    assert "schedules.db is not there" in said


def test_it_is_written_to_a_new_file_and_never_over_another(filled: Home, tmp_path: Path, capsys: Any) -> None:  # noqa: F811
    there = tmp_path / "report.html"
    code, out, _ = command(filled, "--since", SINCE, "--to", str(there), capsys=capsys)
    assert (code, out) == (0, "")
    text = there.read_text()
    assert text.startswith("<!DOCTYPE html>")
    code, _, said = command(filled, "--since", SINCE, "--to", str(there), capsys=capsys)
    assert code != 0
    assert "is there already" in said
    assert there.read_text() == text
    code, out, said = command(filled, "--to", str(tmp_path / "none" / "x"), capsys=capsys)
    assert (code != 0, out) == (True, "")
    assert "cannot be written" in said


def test_a_terminal_gets_the_rows_and_never_the_text_of_a_page(
    filled: Home,  # noqa: F811
    capsys: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    code, out, _ = command(filled, "--since", SINCE, "-o", "json", capsys=capsys)
    assert code == 0
    turns = json.loads(out)
    assert set(QUESTIONS) < set(turns)
    code, out, _ = command(filled, "--since", SINCE, capsys=capsys)
    head, *rows = re.sub(r"\x1b\[[0-9;]*m", "", out).splitlines()
    assert (code, head.split()) == (0, ["TASK", "TURNS", "READ", "WROTE", "MONEY"])
    assert [row.split()[-4] for row in rows] == [str(row["turns"]) for row in turns["turns"]]
    code, out, said = command(filled, "--since", SINCE, "-o", "html", capsys=capsys)
    assert (code, out) == (2, "")
    assert "write it to a file: --to report.html" in said


@pytest.mark.parametrize("since", ["never", "in 2h", "2030-01-01"])
def test_a_beginning_that_is_no_time_in_the_past_is_refused(filled: Home, since: str, capsys: Any) -> None:  # noqa: F811
    code, out, said = command(filled, "--since", since, capsys=capsys)
    assert (code, out) == (2, "")
    assert "--since" in said


def test_many_tasks_are_cut_and_the_page_says_so() -> None:
    rows = [{"task": f"task-{n}", "outcome": "succeeded", "fires": n + 1, "times": n + 1} for n in range(MOST_BARS + 7)]
    text = page("a", "b", {"fires": rows}, [])
    assert "7 more are in: turnkeeper report -o json" in text
    assert f"task-{MOST_BARS + 6}<" in text
    assert "task-0<" not in text
