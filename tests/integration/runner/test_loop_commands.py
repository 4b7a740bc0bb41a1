"""`turnkeeper loop` on a home without a daemon: what its words mean, what it prints, and how it exits."""

import json
from pathlib import Path
from typing import Any

import pytest

from task_runner.cli import application
from task_runner.cli.loops.commands import complete_loop
from task_runner.model.words import Words, read_line, read_words, schedule_of
from turnkeeper import console
from turnkeeper.errors import InvalidInput


@pytest.fixture
def command(home, capsys):
    def run(*argv: str) -> tuple[int, str, str]:
        code = console.run(application(), ["--home", str(home.root), *argv])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def made(command, *argv: str) -> dict[str, Any]:
    code, out, err = command("loop", "create", *argv, "-o", "json")
    assert code == 0, err
    return json.loads(out)


def listed(command, *argv: str) -> list[dict[str, Any]]:
    return json.loads(command("loop", "list", *argv, "-o", "json")[1])


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["15m", "check CI"], ("every", "15m", "check CI")),
        (["every 15m", "check CI"], ("every", "15m", "check CI")),
        (["1h30m", "check CI"], ("every", "1h30m", "check CI")),
        (["2 hours", "check CI"], ("every", "2 hours", "check CI")),
        (["15m check CI"], ("every", "15m", "check CI")),
        (["every", "15m", "check", "CI"], ("every", "15m", "check CI")),
        (["15m", "check", "CI"], ("every", "15m", "check CI")),
        (["check CI every 2 hours"], ("every", "2 hours", "check CI")),
        (["check", "CI", "every", "90s"], ("every", "90s", "check CI")),
        (["0 9 * * 1-5", "report"], ("cron", "0 9 * * 1-5", "report")),
        (["0 9 * * 1-5 report"], ("cron", "0 9 * * 1-5", "report")),
        (["0", "9", "*", "*", "mon-fri", "report", "it"], ("cron", "0 9 * * mon-fri", "report it")),
        (["30 0 9 * * *", "report"], ("cron", "30 0 9 * * *", "report")),
        (["@daily", "report"], ("cron", "@daily", "report")),
        (["H 9 * * *", "report"], ("cron", "H 9 * * *", "report")),
        (["check CI"], ("dynamic", "", "check CI")),
        (["roll a die until a 6"], ("dynamic", "", "roll a die until a 6")),
        (["say what happened every day"], ("dynamic", "", "say what happened every day")),
        (["wait", "for", "it"], ("dynamic", "", "wait for it")),
        (["2 days ago the pump was replaced"], ("dynamic", "", "2 days ago the pump was replaced")),
        (["2d ago the pump was replaced"], ("dynamic", "", "2d ago the pump was replaced")),
        (["2d", "after", "the", "release"], ("dynamic", "", "2d after the release")),
        (["30 minutes of work are left"], ("dynamic", "", "30 minutes of work are left")),
        (["every 2 days check the pump"], ("every", "2 days", "check the pump")),
    ],
)
def test_what_the_words_mean(words: list[str], meant: Words) -> None:
    assert read_words(words) == meant


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("15m check the build", ("every", "15m", "check the build")),
        ('"0 9 * * 1-5" what is open?', ("cron", "0 9 * * 1-5", "what is open?")),
        ("0 9 * * 1-5 what is open?", ("cron", "0 9 * * 1-5", "what is open?")),
        ("check the build every 2 hours", ("every", "2 hours", "check the build")),
        ("'2 hours' check the build", ("every", "2 hours", "check the build")),
        ("2 days ago the pump was replaced", ("dynamic", "", "2 days ago the pump was replaced")),
        ('"hello" is what they said', ("dynamic", "", '"hello" is what they said')),
    ],
)
def test_what_a_line_means_that_is_typed_where_people_talk(line: str, meant: Words) -> None:
    assert read_line(line) == meant


UNFINISHED = ("every", "Every 2", "every day", "check CI every")


@pytest.mark.parametrize(
    "words",
    [[], [" "], ["15m"], ["0 9 * * 1-5"], ["15x", "check CI"], ["check", "CI"], *map(str.splitlines, UNFINISHED)],
)
def test_words_that_mean_nothing_are_refused(words: list[str]) -> None:
    with pytest.raises(InvalidInput):
        read_words(words)


def test_words_beside_a_prompt_are_a_schedule() -> None:
    assert schedule_of(["every", "2", "hours"])[:2] == ("every", "2 hours")
    assert schedule_of([])[:2] == ("dynamic", "")
    with pytest.raises(InvalidInput, match="neither an interval"):
        schedule_of(["check CI"])


def test_a_loop_has_defaults_and_takes_all_options_of_a_task(command) -> None:
    loop = made(command, "7m", "check CI")
    assert loop["name"] == loop["id"]
    assert loop["id"].startswith("loop-")
    assert [loop[key] for key in ("channel", "category", "catch_up", "overlap", "every")] == [
        "general", "loop", "run-once", "coalesce", "7m",
    ]  # fmt: skip
    assert loop["schedule"] == "every 7m, exactly"
    other = made(
        command, "every 2 hours", "p", "--name", "mine", "--category", "x", "--channel", "y", "--max-fires", "3",
        "--expires", "7d", "--read-only", "--agent", "agent1", "--tag", "a=b", "--paused",
    )  # fmt: skip
    assert [other[key] for key in ("name", "category", "channel", "max_fires", "read_only", "agent", "tags")] == [
        "mine", "x", "y", 3, True, "agent1", {"a": "b"},
    ]  # fmt: skip


def test_creation_says_what_was_understood(command) -> None:
    _, out, err = command("loop", "create", "7m", "check CI")
    assert "every 7m, exactly" in out
    assert "nothing fires until" in err
    _, out, _ = command("loop", "create", "check CI")
    assert "self-paced" in out
    assert "if-silent: end" in out
    assert "not created" in command("loop", "create", "5m", "p", "--dry-run")[1]
    assert len(listed(command)) == 2


def test_a_schedule_may_be_an_option_and_a_prompt_a_file(command, tmp_path: Path) -> None:
    assert made(command, "check", "CI", "--every", "9m")["prompt"] == "check CI"
    assert made(command, "--cron", "0 9 * * *", "--prompt", "p")["cron"] == "0 9 * * *"
    (tmp_path / "p").write_text("from a file")
    loop = made(command, "15m", "--prompt-file", str(tmp_path / "p"))
    assert (loop["every"], loop["prompt"]) == ("15m", "from a file")
    paced = made(command, "--prompt", "p", "--first", "5m", "--if-silent", "wait")
    assert (paced["kind"], paced["first"], paced["if_silent"]) == ("dynamic", "5m", "wait")
    assert command("loop", "create", "p", "--every", "5m", "--prompt", "q")[0] == 2


@pytest.mark.parametrize("argv", [["15x", "p"], ["0s", "p"], ["61 9 * * *", "p"], [], ["p", "--if-silent", "never"]])
def test_what_cannot_be_taken_is_refused(command, argv: list[str]) -> None:
    code, _, err = command("loop", "create", *argv)
    assert (code, err.count("error:")) == (2, 1)


def test_the_list_is_sorted_by_the_next_fire_and_shows_what_a_loop_is(command) -> None:
    slow, paced, cron = (
        made(command, "1h", "slow"),
        made(command, "paced"),
        made(command, "0 9 * * *", "cron", "--tz", "UTC"),
    )
    command("create", "a-task", "--every", "1m", "--category", "loop", "--channel", "c", "--prompt", "p")
    rows = listed(command)
    assert rows[0]["id"] == paced["id"]
    assert [row["next_fire_at"] for row in rows] == sorted(row["next_fire_at"] for row in rows)
    modes = {row["id"]: (row["mode"], row["iteration"]) for row in rows}
    assert modes == {slow["id"]: ("fixed", 0), paced["id"]: ("dynamic", 0), cron["id"]: ("cron", 0)}
    _, out, err = command("loop", "list")
    assert out.splitlines()[0].split() == [
        "ID", "INTERVAL", "LEFT", "ITERATION", "PROMPT", "STATE", "NEXT", "LAST", "MODE", "TARGET",
    ]  # fmt: skip
    assert "#0" in out
    assert err.startswith("3 loops · task-runner is not running")
    assert complete_loop("loop-") == sorted(complete_loop("loop-"), key=[row["id"] for row in rows].index)


def test_a_prompt_cannot_steer_the_terminal(command) -> None:
    made(command, "15m", "a\x1b[2Jb")
    assert "\x1b[2J" not in command("loop", "list")[1]


def test_deleting_is_for_loops_that_exist(command) -> None:
    loop = made(command, "1h", "p")
    assert command("loop", "delete", loop["id"])[:2] == (0, f"{loop['id']} deleted\n")
    assert command("loop", "delete", loop["id"])[0] == 3
    assert command("loop", "delete", "loop-00000000")[0] == 3
    command("create", "a-task", "--every", "1m", "--category", "loop", "--channel", "c", "--prompt", "p")
    code, _, err = command("loop", "delete", "a-task")
    assert (code, "not a loop" in err) == (2, True)


def test_only_a_self_paced_loop_can_be_rescheduled(command) -> None:
    fixed, paced = made(command, "1h", "p"), made(command, "p")
    code, _, err = command("loop", "reschedule", fixed["id"], "300")
    assert (code, "its schedule determines" in err) == (4, True)
    code, out, _ = command("loop", "reschedule", paced["id"], "300")
    assert (code, "wakes at" in out) == (0, True)
    assert command("loop", "reschedule", paced["id"], "5m")[0] == 0
    assert command("loop", "reschedule", paced["id"], "soon")[0] == 2


def test_a_tick_commits_what_is_due(command) -> None:
    loop = made(command, "p")
    assert "1 fire committed" in command("loop", "tick")[1]
    assert listed(command)[0]["iteration"] == 1
    (fire,) = json.loads(command("history", loop["id"], "-o", "json")[1])
    assert (fire["kind"], fire["fire_id"].rpartition("~")[2]) == ("wake", "w1")


def test_pausing_resuming_and_stopping(command, monkeypatch) -> None:
    one, two = made(command, "1h", "p"), made(command, "p")
    assert command("loop", "pause", one["id"], "--note", "away")[0] == 0
    assert command("loop", "resume", one["id"])[0] == 0
    assert command("loop", "stop", one["id"])[1] == f"{one['id']} stopped\n"
    assert {row["id"]: row["state"] for row in listed(command)} == {one["id"]: "disabled", two["id"]: "active"}
    assert command("loop", "resume", one["id"])[0] == 0
    assert command("loop", "stop")[0] == 2  # nobody is there to say yes
    assert [row["state"] for row in listed(command)] == ["active", "active"]
    assert command("loop", "stop", "--yes")[0] == 0
    assert [row["state"] for row in listed(command)] == ["disabled", "disabled"], "what scripts read stays"
    texts = [command("loop", "list")[1], command("list")[1], command("show", one["id"])[1]]
    texts += [command("explain", one["id"])[1], command("disable", two["id"])[1]]
    assert all("stopped" in text and "disabled" not in text for text in texts)
    assert len(command("list", "--state", "stopped", "-o", "name")[1].split()) == 2
    assert "no loop is active" in command("loop", "stop", "--yes")[2]


def test_what_has_ended_is_listed_when_asked_for(command) -> None:
    loop = made(command, "p", "--expires", "1s", "--first", "10s")
    command("loop", "tick")
    assert listed(command) in ([], [{**listed(command, "--all")[0]}])
    assert [row["id"] for row in listed(command, "--all")] == [loop["id"]]


def test_pruning_spares_loops_and_their_export_brings_them_back_as_they_were(command, tmp_path: Path) -> None:
    fixed, paced = made(command, "7m", "p"), made(command, "p", "--max-fires", "9")
    named = made(command, "7m", "p", "--name", "watch")
    file = tmp_path / "tasks.toml"
    file.write_text('[[task]]\nname = "t"\nevery = "1h"\ncategory = "loop"\nchannel = "c"\nprompt = "p"\n')
    assert command("apply", str(file), "--prune")[0] == 0
    assert len(listed(command)) == 3
    assert command("export", "--split", str(tmp_path / "split"))[0] == 0
    names = {f"{name}.toml" for name in (fixed["id"], paced["id"], "watch", "t")}
    assert {path.name for path in (tmp_path / "split").iterdir()} == names
    text = (tmp_path / "split" / f"{paced['id']}.toml").read_text()
    assert 'dynamic = true\nfirst = "0s"\nif_silent = "end"' in text
    applied = json.loads(command("apply", str(tmp_path / "split"), "-o", "json")[1])
    assert {row["action"] for row in applied} == {"unchanged"}
    other = tmp_path / "other"
    other.mkdir(mode=0o700)
    assert command("--home", str(other), "apply", str(tmp_path / "split"))[0] == 0
    rows = json.loads(command("--home", str(other), "loop", "list", "-o", "json")[1])
    ids = {fixed["id"], paced["id"], named["id"]}
    assert {row["id"] for row in rows} == ids
    assert command("--home", str(other), "apply", str(file), "--prune")[0] == 0
    rows = json.loads(command("--home", str(other), "loop", "list", "-o", "json")[1])
    assert {row["id"] for row in rows} == ids, "and there, too, nobody declares them"


def test_a_task_becomes_self_paced_and_back_by_an_edit(command) -> None:
    command("create", "t", "--dynamic", "--category", "loop", "--channel", "c", "--prompt", "p")
    shown = json.loads(command("show", "t", "-o", "json")[1])
    assert (shown["first"], shown["if_silent"], shown["iteration"]) == ("25m", "wait", 0)
    assert command("edit", "t", "--every", "5m")[0] == 0
    assert json.loads(command("show", "t", "-o", "json")[1])["if_silent"] is None
    assert command("edit", "t", "--dynamic", "--if-silent", "10m")[0] == 0
    assert json.loads(command("show", "t", "-o", "json")[1])["if_silent"] == "10m"


def test_before_any_was_made_the_list_is_empty(command) -> None:
    assert listed(command) == []
    code, out, err = command("loop", "list")
    assert (code, out) == (0, "")
    assert err.startswith("0 loops")
