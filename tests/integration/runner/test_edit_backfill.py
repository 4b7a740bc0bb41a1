"""Edits count from now on; backfills fire for the past, beside what the ledger says of it."""

import json
import re
import time  # noqa: TID251  to set the zone of this process
from collections.abc import Iterator

import pytest

from task_runner.cli import application
from task_runner.cli.rows import note_if_idle
from tests.integration.runner.conftest import Rig
from tests.integration.runner.scripted_runtime import Peer, State
from turnkeeper import console
from turnkeeper.errors import Conflict, InvalidInput
from turnkeeper.v1 import schedules_pb2 as wire

REST = ("--category", "loop", "--channel", "general", "--prompt", "p")


@pytest.fixture
def command(home, capsys):
    def run(*argv: str) -> tuple[int, str, str]:
        code = console.run(application(), ["--home", str(home.root), *argv])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def test_an_edit_changes_what_is_given_and_nothing_else(command) -> None:
    command("create", "digest", "--every", "1h", *REST, "--tag", "a=b", "--retries", "2", "--catch-up", "skip")
    before = json.loads(command("show", "digest", "-o", "json")[1])
    code, out, err = command("edit", "digest", "--every", "2h", "--dry-run")
    assert (code, out.splitlines()[0].split("  ")[0], len(out.splitlines())) == (0, "OLD NEXT", 8)
    assert "digest: schedule would be changed (dry run" in err, "the schedule in force is not the new one"
    assert "(dry run: nothing was written)" in err
    assert json.loads(command("show", "digest", "-o", "json")[1]) == before
    code, out, err = command("edit", "digest", "--prompt", "q", "--catch-up", "run-all")
    assert (code, out, "prompt, catch-up, overlap changed; its times stay the same, next " in err) == (0, "", True), err
    after = json.loads(command("show", "digest", "-o", "json")[1])
    assert {key: value for key, value in after.items() if before[key] != value and key != "updated_at"} == {
        "prompt": "q", "catch_up": "run-all", "overlap": "queue", "revision": 2,
    }  # fmt: skip
    assert "nothing changed" in command("edit", "digest", "--prompt", "q")[2]
    assert "digest: payload would be changed" in command("edit", "digest", "--payload", '{"a": 1}', "--dry-run")[2]
    assert json.loads(command("show", "digest", "-o", "json")[1])["revision"] == 2
    assert command("edit", "digest", "--no-read-only", "--cron", "0 9 * * *", "-o", "json")[0] == 0
    assert json.loads(command("show", "digest", "-o", "json")[1])["cron"] == "0 9 * * *"


def test_times_at_which_a_stopped_task_does_not_fire_are_not_told_as_if_it_did(command) -> None:
    _, out, err = command("create", "idle", "--cron", "0 9 * * *", *REST, "--paused")
    assert "idle is paused and does not fire at these times; first: turnkeeper task resume idle" in err, out
    for argv in (("edit", "idle", "--cron", "0 10 * * *"), ("next", "idle")):
        _, out, err = command(*argv)
        assert "10:00" in out
        assert "idle is paused and does not fire at these times; first: turnkeeper task resume idle" in err
    _, _, err = command("edit", "idle", "--prompt", "other")
    assert "fires as before" not in err
    command("resume", "idle")
    assert "does not fire" not in command("next", "idle")[2]
    command("pause", "idle", "--until", "in 3d")
    until = json.loads(command("show", "idle", "-o", "json")[1])["paused_until"]
    assert re.search(r"idle is paused until .+, and fires at later times\n", command("next", "idle")[2])
    assert min(row["nominal_at"] for row in json.loads(command("next", "idle", "-o", "json")[1])) > until
    shown = json.loads(command("edit", "idle", "--prompt", "more", "-o", "json")[1])
    assert min(row["nominal_at"] for row in shown["new_next"]) > until
    assert re.search(r"\bpaused until \S", command("list")[1])
    assert re.search(r"^idle paused until \d{4}-\d\d-\d\d ", command("pause", "idle", "--until", "in 2d")[1])
    assert command("pause", "idle")[1] == "idle paused\n"
    command("resume", "idle")
    command("disable", "idle")
    assert (
        "idle is disabled and does not fire at these times; first: turnkeeper task resume idle"
        in (command("next", "idle")[2])
    )


@pytest.mark.parametrize("state", ["interrupted", "held", "running", "waiting"])
def test_a_task_that_waits_or_runs_keeps_its_times(capsys, state: str) -> None:
    note_if_idle(wire.Task(spec=wire.TaskSpec(name="digest"), state=state))
    waits = "digest waits for your decision, and its next fire waits too: turnkeeper triage\n"
    assert capsys.readouterr().err == (waits if state in {"interrupted", "held"} else "")


@pytest.mark.parametrize("state", ["done", "expired"])
def test_a_task_that_has_ended_is_not_to_be_resumed(capsys, state: str) -> None:
    note_if_idle(wire.Task(spec=wire.TaskSpec(name="digest"), state=state))
    assert capsys.readouterr().err == f"digest is {state} and does not fire again\n"


def test_an_edit_warns_of_a_task_to_follow_that_is_missing_or_is_itself(command) -> None:
    command("create", "digest", "--every", "1h", *REST)
    command("create", "news", "--every", "1h", *REST)
    for other, warned in (("nobody", True), ("digest", True), ("news", False)):
        code, _, err = command("edit", "digest", "--after", other)
        assert (code, f"warning: no other task is named {other}, and this one waits" in err) == (0, warned), err
    assert "digest: event changed" in err


def test_an_edit_names_fields_as_people_do(command) -> None:
    command("create", "digest", "--every", "1h", *REST)
    _, _, err = command("edit", "digest", "--thread", "notes", "--max-fires", "3", "--expires", "3d")
    assert "digest: expires, max-fires, thread changed" in err


def test_the_times_before_and_after_an_edit_show_the_days_that_a_schedule_leaves_out(command) -> None:
    command("create", "digest", "--cron", "0 9 * * *", *REST)
    out = command("edit", "digest", "--cron", "0 8 * * 1-5")[1].splitlines()[1:]
    old, new = ({line.split("  ")[side][:3] for line in out} for side in (0, 1))
    assert ({"Sat", "Sun"} <= old, {"Sat", "Sun"} & new, len(out)) == (True, set(), 7), out


def test_an_edit_takes_a_value_away_that_is_given_as_none(command) -> None:
    plain = ("create", "plain", "--every", "1h", *REST)
    full = (
        "--catch-up-window", "2h", "--max-catch-up", "3", "--grace", "7s", "--jitter", "1m", "--start", "2026-03-01",
        "--end", "2026-12-01", "--expires", "2026-12-02", "--max-fires", "5", "--retries", "1",
        "--pause-after-failures", "2", "--budget", "turns_per_day=5", "--tag", "a=b", "--exclude", "2026-12-25",
        "--payload", '{"a": 1}', "--thread", "other",
    )  # fmt: skip
    command(*plain)
    command("create", "full", "--every", "1h", *REST, *full)
    assert command("edit", "full", *(value if place % 2 == 0 else "none" for place, value in enumerate(full)))[0] == 0
    shown = [json.loads(command("show", name, "-o", "json")[1]) for name in ("plain", "full")]
    changes = {key for key in shown[0] if shown[0][key] != shown[1][key]}
    assert changes - {"anchor_at", "created_at", "updated_at", "next_fire_at", "due_at"} == {
        "id",
        "name",
        "thread_id",
        "revision",
    }
    assert shown[1]["thread_id"] == shown[1]["id"], "its own again"
    assert command("create", "third", "--every", "1h", *REST, "--max-fires", "none")[0] == 0
    assert command("edit", "full", "--max-fires", "few")[0] == 2


def test_an_edit_of_one_limit_or_label_keeps_the_others_and_none_takes_one_away(command) -> None:
    both = ("--budget", "turns_per_day=5", "--budget", "tokens_per_day=9", "--tag", "team=ops", "--tag", "level=none")
    command("create", "news", "--every", "1h", *REST, *both)

    def edited(*argv: str) -> tuple[dict[str, int], dict[str, str]]:
        code, _, err = command("edit", "news", *argv)
        assert code == 0, err
        row = json.loads(command("show", "news", "-o", "json")[1])
        return row["budget"], row["tags"]

    tags = {"team": "ops", "level": "none"}
    assert edited("--budget", "turns_per_day=6") == ({"turns_per_day": 6, "tokens_per_day": 9}, tags)
    assert edited("--budget", "turns_per_day=none") == ({"tokens_per_day": 9}, tags)
    assert edited("--tag", "team=web") == ({"tokens_per_day": 9}, {"team": "web", "level": "none"})
    assert edited("--tag", "level=none") == ({"tokens_per_day": 9}, {"team": "web"})
    assert edited("--budget", "none") == ({}, {"team": "web"})
    assert "not an amount" in command("edit", "news", "--budget", "money_per_day=much")[2]


WRONG = [
    (("edit", "digest"), "nothing to change"),
    (("edit", "digest", "--cron", "61 * * * *"), "61"),
    (("edit", "digest", "--cron", "0 9 * * *", "--every", "1m"), "exactly one"),
    (("edit", "digest", "--retries", "7"), "retries"),
    (("backfill", "digest", "--from", "2026-01-02", "--to", "2026-01-01"), "later than `from`"),
    (("backfill", "digest", "--from", "soon", "--to", "2026-01-01"), "not a time"),
    (("backfill", "digest", "--from", "2000-01-01", "--to", "2026-01-01"), "10000"),
]


def test_a_wrong_edit_or_backfill_is_refused_and_changes_nothing(command) -> None:
    command("create", "digest", "--every", "1h", *REST)
    for argv, says in WRONG:
        code, out, err = command(*argv)
        assert (code, out, says in err) == (2, "", True), (argv, err)
    assert json.loads(command("show", "digest", "-o", "json")[1])["revision"] == 1
    assert json.loads(command("history", "digest", "-o", "json")[1]) == []


async def test_an_edit_of_what_was_edited_meanwhile_is_refused(rig: Rig, peer: Peer) -> None:
    task = await rig.create()
    for number, prompt in enumerate(("q", "r")):
        task.spec.prompt = prompt
        request = wire.UpdateTaskRequest(name="digest", spec=task.spec, revision=1)
        if number:
            with pytest.raises(Conflict, match="in the meantime"):
                await rig.service.update_task(request)
        else:
            await rig.service.update_task(request)


async def test_a_fire_that_the_new_schedule_still_names_survives_an_edit(rig: Rig, peer: Peer) -> None:
    task = await rig.create(catch_up="run-all")
    await rig.pass_time(180)
    task.spec.every = "2m"
    await rig.service.update_task(wire.UpdateTaskRequest(name="digest", spec=task.spec))
    assert await rig.history() == [("skipped", "superseded", 1), ("pending", "", 1), ("skipped", "superseded", 1)]


def request(**fields) -> wire.BackfillTaskRequest:
    made = wire.BackfillTaskRequest(name="digest", to=fields.pop("to"), request_id="abc")
    setattr(made, "from", fields.pop("from_"))
    for name, value in fields.items():
        setattr(made, name, value)
    return made


async def test_a_backfill_fires_for_what_never_had_a_fire(rig: Rig, peer: Peer) -> None:
    task = await rig.create(catch_up="skip")
    async with rig.running():
        await rig.pass_time(60)
        await rig.trail.saw("fire.accepted")
        await peer.play(peer.received[0].fire_id, State.SUCCEEDED)
        await rig.trail.saw("fire.settled")
    await rig.pass_time(270)
    assert await rig.history() == [("succeeded", "", 1), ("skipped", "missed", 4)]
    span = {"from_": "2026-03-02T08:58:00Z", "to": "2026-03-02T09:05:00Z"}
    # Two before its creation, one at it, and 09:02 to 09:04: neither 09:01, which fired, nor 09:05.
    dry = await rig.service.backfill_task(request(**span, dry_run=True))
    assert (dry.count, len(dry.fire_ids)) == (6, 0)
    assert len(await rig.history()) == 2
    done = await rig.service.backfill_task(request(**span))
    again = await rig.service.backfill_task(request(**span, all=True))
    assert (done.count, again.count) == (6, 7)
    assert done.fire_ids[0] == f"{task.id}@20260302T085800Z~babc"
    assert len(await rig.history()) == 2 + 7, "the same request adds only what is new"
    async with rig.running():
        seen = 1
        while seen < 8:
            rig.clock.advance(1)
            rig.dispatcher.wake()
            await rig.trail.saw("fire.accepted", seen + 1)
            await peer.play(peer.received[seen].fire_id, State.SUCCEEDED)
            await rig.trail.saw("fire.settled", seen + 1)
            seen += 1
    kinds = [(each.kind, each.nominal_at.ToDatetime().strftime("%H:%M")) for each in peer.received[1:7]]
    assert kinds == [("backfill", at) for at in ("08:58", "08:59", "09:00", "09:02", "09:03", "09:04")]
    assert (await rig.service.backfill_task(request(**span))).count == 0
    task = await rig.task()
    assert (task.fires, task.state) == (8, "active")


async def test_a_backfill_of_a_stopped_task_is_refused_and_stopping_withdraws_one(rig: Rig, peer: Peer) -> None:
    await rig.create(catch_up="skip")
    await rig.pass_time(330)
    span = {"from_": "2026-03-02T09:00:00Z", "to": "2026-03-02T12:00:00Z"}
    assert (await rig.service.backfill_task(request(**span))).count == 6, "nothing ahead of now"
    await rig.service.pause_task(wire.PauseTaskRequest(name="digest"))
    assert [entry[:2] for entry in await rig.history()][1:] == [("skipped", "paused")] * 6
    with pytest.raises(Conflict):
        await rig.service.backfill_task(request(**span))


async def test_a_backfill_follows_the_schedule_in_force_then(rig: Rig, peer: Peer) -> None:
    task = await rig.create(catch_up="skip")
    await rig.pass_time(330)
    task.spec.every = "2m"
    await rig.service.update_task(wire.UpdateTaskRequest(name="digest", spec=task.spec))
    await rig.pass_time(300)
    done = await rig.service.backfill_task(request(from_="2026-03-02T09:03:00Z", to="2026-03-02T09:10:00Z"))
    minutes = [each.partition("@")[2][11:13] for each in done.fire_ids]
    assert minutes == ["03", "04", "05", "06", "08"]


async def test_more_than_can_be_taken_at_once_is_refused(rig: Rig, peer: Peer) -> None:
    await rig.create()
    with pytest.raises(InvalidInput, match="10000"):
        await rig.service.backfill_task(request(from_="2025-01-01T00:00:00Z", to="2026-03-01T00:00:00Z"))


def test_simulate_prints_what_the_planner_would_do_and_changes_nothing(command) -> None:
    command("create", "digest", "--cron", "0 9 * * *", "--tz", "Europe/Riga", *REST)
    command("create", "often", "--every", "6h", "--start", "2026-01-01T00:00:00Z", *REST)
    span = ("--from", "2026-03-28T00:00:00Z", "--to", "2026-03-31T00:00:00Z")
    down = ("--down", "2026-03-28T12:00:00Z..2026-03-30T00:00:00Z")
    rows = [json.loads(line) for line in command("simulate", "digest", *span, *down, "-o", "jsonl")[1].splitlines()]
    assert rows == [
        {"task": "digest", "nominal_at": nominal, "fired_at": fired, "outcome": "succeeded", "reason": None, "count": 1}
        for nominal, fired in (
            ("2026-03-28T07:00:00Z", "2026-03-28T07:00:00Z"),
            ("2026-03-29T06:00:00Z", "2026-03-30T00:00:00Z"),
            ("2026-03-30T06:00:00Z", "2026-03-30T06:00:00Z"),
        )
    ]
    code, out, err = command("simulate", *span, *down)
    assert (code, out.splitlines()[0].split()) == (0, ["NOMINAL", "TASK", "FIRED", "OUTCOME", "REASON", "COUNT"])
    assert err == "9 fires, 0 scheduled times skipped\n"
    assert json.loads(command("history", "often", "-o", "json")[1]) == []
    for wrong in (("--down", "soon"), ("--down", "2026-03-29..2026-03-28"), ("--turn", "x"), ("--to", "2020-01-01")):
        assert command("simulate", *span, *wrong)[0] == 2


@pytest.fixture
def in_new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have the machine in another zone than its tasks."""
    with monkeypatch.context() as within:
        within.setenv("TZ", "America/New_York")
        time.tzset()
        yield
    time.tzset()


def test_a_wall_time_is_read_in_the_zone_of_the_task_by_each_command(command, in_new_york: None) -> None:
    command("create", "digest", "--cron", "0 9 * * *", "--tz", "Asia/Tokyo", *REST)
    span = ("--from", "2030-03-02T09:00", "--to", "2030-03-02T09:01")
    (row,) = map(json.loads, command("simulate", "digest", *span, "-o", "jsonl")[1].splitlines())
    assert command("simulate", "digest", *span)[2] == "1 fire, 0 scheduled times skipped\n"
    assert row["nominal_at"] == "2030-03-02T00:00:00Z"
    (first,) = json.loads(command("next", "digest", "--from", "2030-03-02T08:59", "-n", "1", "-o", "json")[1])
    zone = ("--tz", "Asia/Tokyo", "--from", "2030-03-02T08:59", "-n", "1", "-o", "json")
    (also,) = json.loads(command("next", "--cron", "0 9 * * *", *zone)[1])
    explained = json.loads(command("explain", "digest", "--at", "2030-03-02T09:00", "-o", "json")[1])
    assert {first["nominal_at"], also["nominal_at"], explained["at"]} == {"2030-03-02T00:00:00Z"}
    for name in ("digest", ""):
        code, _, err = command("history", *([name] if name else []), "--from", "last week")
        assert (code, "is not a time" in err, "7d, now, yesterday" in err) == (2, True, True)
