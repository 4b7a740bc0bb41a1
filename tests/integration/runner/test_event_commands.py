"""Events on the command line, on a home without a daemon."""

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


def test_an_event_from_the_task_that_waits_for_it_to_its_fire(command, tmp_path) -> None:
    code, out, _ = command("create", "one", "--on", "demo", "--filter", "n=1", "--debounce", "30s", *REST)
    assert code == 0
    assert "when demo arrives with n=1, at most once in 30s" in out
    (tmp_path / "data.json").write_text('{"n": 1}')
    code, out, err = command("emit", "demo", "--data", f"@{tmp_path / 'data.json'}", "--id", "b1", "-o", "json")
    assert json.loads(out) == {
        "event": "demo", "id": "b1", "duplicate": False, "matched": 1, "paused": [],
    }  # fmt: skip
    assert "nothing fires until" in err
    assert "recorded before: nothing happens" in command("emit", "demo", "--id", "b1")[1]
    assert "triggers no task" in command("emit", "demo", "--data", '{"n": 2}')[1]
    command("create", "idle", "--on", "demo", *REST, "--paused")
    code, out, err = command("emit", "demo", "--data", '{"n": 2}')
    assert ("triggers no task" in out, "paused, so the event is skipped: idle" in err) == (True, True)
    (fire,) = json.loads(command("history", "one", "-o", "json")[1])
    assert (fire["kind"], fire["outcome"]) == ("event", "pending")
    assert fire["fire_id"].endswith("~eb1")
    assert "was triggered by demo (b1)" in command("explain", "one")[1]
    told = json.loads(command("emit", "demo", "--data", '{"n": 1}', "--id", "b2", "-o", "json")[1])
    assert (told["matched"], told["paused"]) == (1, ["idle"])


def test_it_is_shown_that_a_task_waits_for_an_event(command) -> None:
    command("create", "one", "--on", "demo", *REST)
    command("create", "both", "--on", "turn_end", "--cron", "0 9 * * *", *REST)
    rows = {row["name"]: row for row in json.loads(command("list", "-o", "json")[1])}
    assert (rows["one"]["kind"], rows["one"]["on"], rows["one"]["next_fire_at"]) == ("on", "demo", None)
    assert (rows["both"]["kind"], rows["both"]["debounce"], rows["both"]["filters"]) == ("hybrid", "30s", [])
    line = next(line for line in command("list")[1].splitlines() if line.startswith("one"))
    assert line.split()[1:4] == ["on", "demo", "event"]
    assert "fires when demo arrives" in command("next", "one")[2]
    assert "fires when turn_end arrives, besides these times" in command("next", "both", "-n", "1")[2]
    said = command("simulate", "--from", "2026-11-21", "--to", "2026-11-22")[2]
    assert "events are not simulated: both, one would also fire for them" in said


def test_an_edit_adds_changes_and_takes_out_an_event(command) -> None:
    command("create", "one", "--cron", "0 9 * * *", *REST)

    def edited(*argv: str) -> list[object]:
        assert command("edit", "one", *argv)[0] == 0
        row = json.loads(command("show", "one", "-o", "json")[1])
        return [row[key] for key in ("kind", "on", "filters", "debounce")]

    assert edited("--on", "demo") == ["hybrid", "demo", [], "30s"]
    assert edited("--filter", "k=v", "--filter", "l=w", "--debounce", "5s") == ["hybrid", "demo", ["k=v", "l=w"], "5s"]
    assert edited("--cron", "none") == ["on", "demo", ["k=v", "l=w"], "5s"]
    assert edited("--cron", "0 9 * * *", "--on", "none") == ["cron", None, [], None]


def test_files_declare_events_and_are_exported_without_change(command, home) -> None:
    (home.tasks / "a.toml").write_text(
        '[[task]]\nname = "a"\non = "demo"\nfilters = ["k=v", "l~=^w"]\ndebounce = "5s"\ncategory = "loop"\n'
        'channel = "c"\nprompt = "p"\n\n[[task]]\nname = "b"\nevery = "5m"\non = "turn_end"\ncategory = "loop"\n'
        'channel = "c"\nprompt = "q"\n'
    )
    assert "2 created" in command("apply")[2]
    (home.tasks / "a.toml").write_text(command("export")[1])
    assert "2 unchanged" in command("apply")[2]
    assert 'filters = ["k=v", "l~=^w"]' in (home.tasks / "a.toml").read_text()


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("emit", "turn_end"), "name: 'turn_end' is reserved: turnkeeper emits it"),
        (("emit", "Demo"), "name: 'Demo' is not an event's name"),
        (("emit", "demo", "--data", "[1]"), "data: is not a JSON object"),
        (("emit", "demo", "--data", "{"), "data: is not JSON"),
        (("emit", "demo", "--id", ""), "--id: must not be empty"),
        (("emit", "demo", "--id", "a/b"), "event_id: must be"),
        (("create", "x", "--on", "demo", "--filter", "k", *REST), "filters: 'k' is not a filter"),
        (("create", "x", "--on", "demo", "--filter", r"k~=(a)\1", *REST), "would have no bound"),
        (("create", "x", "--on", "demo", "--in", "5m", *REST), "on: cannot be combined with at"),
        (("create", "x", "--every", "5m", "--debounce", "5s", *REST), "debounce: is only for a task that fires"),
        (("create", "x", *REST), "no schedule; one of --cron, "),
    ],
    ids=lambda value: " ".join(value[:6]) if isinstance(value, tuple) else "",
)
def test_a_mistake_is_told_in_a_line(command, argv: tuple[str, ...], says: str) -> None:
    code, _, err = command(*argv)
    assert code == 2
    assert says in err
