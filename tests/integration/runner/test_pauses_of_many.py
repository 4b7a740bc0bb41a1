"""One pause for all tasks, or for those with a label, and its end."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from task_runner.cli import application
from tests.support.program import app as turnkeeper
from turnkeeper import console
from turnkeeper.errors import EXIT_USAGE

Run = Callable[..., tuple[int, str, str]]
REST = ("--every", "1h", "--category", "loop", "--channel", "general", "--prompt", "p")


def typed(program: Any, home: Any, capsys: Any) -> Run:
    def run(*argv: str) -> tuple[int, str, str]:
        code = console.run(program, ["--home", str(home.root), *argv])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


@pytest.fixture
def command(home, capsys) -> Run:
    return typed(application(), home, capsys)


@pytest.fixture
def everything(home, capsys) -> Run:
    return typed(turnkeeper, home, capsys)


def paused(command: Run) -> dict[str, str]:
    """The notes of the paused tasks, by name."""
    rows = json.loads(command("list", "-o", "json")[1])
    return {row["name"]: row["paused_note"] for row in rows if row["state"] == "paused"}


def test_everything_is_paused_until_a_time_and_resumed_but_for_what_its_author_paused(
    command: Run, everything: Run
) -> None:
    for name in ("news", "report"):
        command("create", name, *REST)
    command("create", "mine", *REST)
    command("pause", "mine", "--note", "broken")
    due = json.loads(command("show", "news", "-o", "json")[1])["next_fire_at"]
    code, out, err = everything("pause", "--until", "2099-01-10", "--note", "holidays")
    assert out.count("2099-01-1") == 2
    assert (code, "2 tasks paused" in err) == (0, True), err
    assert paused(command) == {
        "mine": "broken", "news": "paused with others: holidays", "report": "paused with others: holidays",
    }  # fmt: skip
    row = json.loads(command("show", "news", "-o", "json")[1])
    assert row["paused_until"].startswith("2099-01-1")
    told = command("explain", "news", "--at", due)[1]
    assert "paused with others: holidays" in told.replace("\n", " ")
    assert everything("pause", "--until", "2098-01-10")[0] == 0  # a shorter one takes its place
    assert json.loads(command("show", "news", "-o", "json")[1])["paused_until"].startswith("2098-01-")
    assert "2 tasks resumed" in everything("resume")[2]
    assert paused(command) == {"mine": "broken"}
    assert "0 tasks resumed" in everything("resume")[2]


def test_a_label_chooses_what_is_paused_and_what_is_resumed(command: Run, everything: Run) -> None:
    command("create", "news", *REST, "--tag", "team=ops")
    command("create", "report", *REST, "--tag", "team=web")
    command("create", "plain", *REST)
    assert json.loads(everything("pause", "--tag", "team=ops", "-o", "json")[1])[0]["name"] == "news"
    assert set(paused(command)) == {"news"}
    everything("pause")
    assert set(paused(command)) == {"news", "report", "plain"}
    everything("resume", "--tag", "team=web")
    assert set(paused(command)) == {"news", "plain"}
    code, _, err = everything("pause", "--tag", "ops")
    assert (code, "is not key=value" in err) == (EXIT_USAGE, True)


def test_a_run_by_hand_names_the_followers_that_stay_paused(command: Run, everything: Run) -> None:
    command("create", "news", *REST)
    for name in ("plan", "post"):
        command("create", name, "--after", "news", *REST[2:])
    command("create", "other", *REST)
    everything("pause", "--note", "vacation")
    said = " ".join(command("run", "news")[2].split())
    assert "starts the tasks that follow it, but not the paused ones: plan, post" in said
    command("resume", "plan")
    assert "but not the paused ones: post" in command("run", "news")[2].replace("\n", " ")
    command("resume", "post")
    assert "but not the paused ones" not in command("run", "news")[2].replace("\n", " ")


def test_a_weekday_before_a_task_was_created_means_the_coming_one(command: Run) -> None:
    command("create", "news", "--cron", "0 8 * * 1", *REST[2:])
    for text in ("mon 8am", "next mon 8am"):
        row = json.loads(command("explain", "news", "--at", text, "-o", "json")[1])
        assert row["verdict"] == "future", (text, row)
    for text in ("2020-01-06T08:00", "2h ago"):  # a date and a span say which time they mean
        row = json.loads(command("explain", "news", "--at", text, "-o", "json")[1])
        assert row["verdict"] == "before_creation", (text, row)
