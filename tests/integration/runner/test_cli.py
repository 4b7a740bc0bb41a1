"""The command line on a home without a daemon: what it prints, where, and how it exits."""

import json

import pytest

from task_runner.cli import application
from turnkeeper import console

REST = ("--category", "loop", "--channel", "general", "--prompt", "p")


@pytest.fixture
def command(home, capsys):
    def run(*argv: str) -> tuple[int, str, str]:
        code = console.run(application(), ["--home", str(home.root), *argv])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def test_a_task_from_creation_to_deletion(command) -> None:
    code, out, err = command("create", "digest", "--every", "7m", *REST, "--tag", "team=x", "--tz", "Europe/Riga")
    assert code == 0
    assert "every 7m, exactly" in out
    assert "Europe/Riga" in out
    assert out.count("next:") == 3
    assert "nothing fires until" in err
    code, out, _ = command("list", "-o", "json")
    (task,) = json.loads(out)
    assert (task["name"], task["state"], task["tags"]) == ("digest", "active", {"team": "x"})
    assert command("list", "-o", "name")[1] == "digest\n"
    assert command("pause", "digest", "--note", "away")[1] == "digest paused\n"
    assert json.loads(command("show", "digest", "-o", "json")[1])["paused_note"] == "away"
    assert command("resume", "digest")[0] == 0
    assert "~m" in command("run", "digest")[1]
    (fire,) = json.loads(command("history", "digest", "-o", "json")[1])
    assert list(fire) == [
        "fire_id", "task_id", "kind", "nominal_at", "due_at", "fired_at", "accepted_at", "started_at", "ended_at",
        "outcome", "reason", "count", "first_nominal_at", "last_nominal_at", "late_s", "attempt", "turn_id",
    ]  # fmt: skip
    assert (fire["kind"], fire["outcome"]) == ("manual", "pending")
    assert command("disable", "digest")[0] == command("enable", "digest")[0] == command("delete", "digest")[0] == 0
    assert json.loads(command("list", "-o", "json")[1]) == []
    assert command("history", task["id"])[0] == 0


def test_the_table_shows_what_people_look_for(command) -> None:
    command("create", "digest", "--cron", "0 9 * * 1-5", *REST)
    _, out, err = command("list")
    assert out.splitlines()[0].split() == [
        "NAME", "SCHEDULE", "NEXT", "LEFT", "LAST", "RESULT", "STATE", "CATEGORY", "CHANNEL", "CATCH-UP", "FIRES",
        "MISSED",
    ]  # fmt: skip
    assert err.startswith("1 task · task-runner is not running")
    assert command("list", "-o", "wide")[1].splitlines()[0].split()[12:] == [
        "ID", "TZ", "OVERLAP", "THREAD", "AGENT", "JITTER", "LATE-P95", "PROMPT",
    ]  # fmt: skip


def test_files_are_applied_and_exported_without_change(command, home, tmp_path) -> None:
    (home.tasks / "a.toml").write_text(
        '[[task]]\nname = "a"\ncron = "0 9 * * *"\ncategory = "loop"\nchannel = "c"\nprompt = "p\\n\\u202e"\n'
        'payload = {x = [1, {y = "z"}]}\ntags = {k = "v"}\n\n[[task]]\nname = "b"\nin = "25m"\ncategory = "loop"\n'
        'channel = "c"\nprompt = "q"\ncatch_up = "run-all"\n'
    )
    assert "2 created (dry run" in command("apply", "--dry-run")[2]
    assert "2 created" in command("apply")[2]
    assert "2 unchanged" in command("apply")[2]
    assert command("export", "--split", str(tmp_path))[0] == 0
    assert "2 unchanged" in command("apply", str(tmp_path))[2]
    (tmp_path / "all.toml").write_text(command("export")[1])
    assert "2 unchanged" in command("apply", str(tmp_path / "all.toml"))[2]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[[task]]\nname = "a"\nevery = "1m"\ncategory = "c"\nchannel = "c"\nprompt = "p"\ncolour = 1\n', ":7: task.colour"),
        ('[[task]]\nname = "a"\ncategory = "c"\nchannel = "c"\nprompt = "p"\n', "cron, every, at, in"),
        ("[[task]]\nname = 1\n", "name"),
        ("[[task]\n", "not valid TOML"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_named_with_its_line(command, tmp_path, text, says) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    code, _, err = command("apply", str(path))
    assert code == 2
    assert err.startswith(f"error: {path}")
    assert says in err


@pytest.mark.parametrize(
    ("argv", "code", "says"),
    [
        (("create", "x", "--cron", "61 * * * *", *REST), 2, "61"),
        (("create", "x", *REST), 2, "--cron"),
        (("create", "x", "--every", "1m", "--in", "1m", *REST), 2, "exactly one"),
        (("create", "x", "--every", "1m", "--category", "c", "--channel", "c"), 2, "prompt"),
        (("create", "x", "--every", "1m", *REST, "--tag", "k"), 2, "key=value"),
        (("create", "x", "--every", "1m", *REST, "--payload", "@/nosuch"), 3, "/nosuch"),
        (("create", "x", "--every", "1m", *REST, "--jitter", "5s"), 2, "--jitter"),
        (("show", "nosuch"), 3, "nosuch"),
        (("next",), 2, "exactly one"),
        (("next", "--every", "1m", "--from", "soon"), 2, "soon"),
        (("run", "x", "--wait"), 2, "no daemon"),
        (("lst",), 2, "lst"),
    ],
)
def test_mistakes_exit_with_one_line(command, argv, code, says) -> None:
    found, out, err = command(*argv)
    assert (found, out) == (code, "")
    assert err.startswith("error: ")
    assert says in err


def test_next_previews_without_creating(command) -> None:
    _, out, err = command(
        "next", "--cron", "0 9 * * *", "--tz", "Europe/Riga", "--from", "2026-03-28T12:00:00Z", "-o", "json"
    )
    assert [item["local"] for item in json.loads(out)][:2] == ["2026-03-29T09:00:00+03:00", "2026-03-30T09:00:00+03:00"]
    assert json.loads(command("next", "--every", "1m", "-n", "2", "-o", "json")[1])[1]["nominal_at"].endswith("Z")
    assert err == ""


def test_tick_plans_what_is_due(command) -> None:
    command("create", "digest", "--every", "1d", *REST)
    code, out, err = command("tick")
    assert (code, out) == (0, "0 tasks planned, 0 fires committed, 0 nominal times skipped\n")
    assert "nothing fires" in err
