"""The calendar of the home: days off count for every task, also when the file changes, breaks or is gone."""

from datetime import timedelta

import pytest

from tests.support.constellation import Constellation
from turnkeeper.clock import SystemClock
from turnkeeper.config.toml_file import with_key
from turnkeeper.constellation.supervisor.daemons import TASK_RUNNER

pytestmark = [pytest.mark.process, pytest.mark.sqlite_only("a file of the home, which each machine reads by itself")]
BROKEN = "BEGIN:VCALENDAR\nBEGIN:VEVENT\nSUMMARY:Nothing\nEND:VEVENT\nEND:VCALENDAR\n"


def day(after: int) -> str:
    return f"{SystemClock().now() + timedelta(days=after):%Y-%m-%d}"


def write(home: Constellation, *days: str) -> None:
    events = "".join(
        f"BEGIN:VEVENT\nUID:{one}\nDTSTART;VALUE=DATE:{one.replace('-', '')}\nSUMMARY:Off\nEND:VEVENT\n" for one in days
    )
    calendar = f"BEGIN:VCALENDAR\nVERSION:2.0\nPRODID:test\n{events}END:VCALENDAR\n"
    (home.home.root / "holidays.ics").write_text(calendar.replace("\n", "\r\n"))


def name_it(home: Constellation) -> None:
    config = home.home.config
    config.write_text(with_key(config.read_text(), "calendar", "file", value="holidays.ics"))


def next_days(home: Constellation, name: str) -> list[str]:
    return [row["local"][:10] for row in home.ask("turnkeeper", "task", "next", name, "-n", "3")]


def next_fire(home: Constellation, name: str) -> str:
    found: str = home.ask("turnkeeper", "task", "show", name)["next_fire_at"]
    return found[:10]


def test_days_off_are_left_out_and_named_for_every_task_that_does_not_ignore_them(stopped: Constellation) -> None:
    name_it(stopped)
    write(stopped, day(2))
    stopped.create("news", "--cron", "0 0 * * *", "--tz", "UTC")
    stopped.create("always", "--cron", "0 0 * * *", "--tz", "UTC", "--ignore-calendar")
    assert next_days(stopped, "news") == [day(1), day(3), day(4)]
    assert next_days(stopped, "always") == [day(1), day(2), day(3)]
    said = stopped.attempt("turnkeeper", "task", "next", "news", "-n", "3").stderr
    assert f"the calendar holidays.ics leaves out {day(2)}T00:00:00+00:00" in said
    assert "leaves out" not in stopped.attempt("turnkeeper", "task", "next", "always").stderr
    why = stopped.command("turnkeeper", "task", "explain", "news", "--at", f"{day(2)}T00:00:00Z")
    assert "the home's calendar excludes it" in " ".join(why.split())


def test_a_changed_calendar_counts_while_the_runner_runs_and_after_kill_9(constellation: Constellation) -> None:
    constellation.create("news", "--cron", "0 0 * * *", "--tz", "UTC")
    assert next_fire(constellation, "news") == day(1)
    name_it(constellation)
    write(constellation, day(1), day(2))
    constellation.until("the runner to plan again", lambda: next_fire(constellation, "news") == day(3))
    constellation.kill(TASK_RUNNER)
    write(constellation, day(2))
    constellation.start()
    constellation.until("the next start to plan again", lambda: next_fire(constellation, "news") == day(1))
    assert next_days(constellation, "news") == [day(1), day(3), day(4)]


def test_a_task_that_a_wrong_calendar_ended_is_taken_up_once_it_is_corrected(constellation: Constellation) -> None:
    def state() -> str:
        return str(constellation.ask("turnkeeper", "task", "show", "news")["state"])

    constellation.create("news", "--cron", "0 0 * * *", "--tz", "UTC", "--end", f"{day(3)}T12:00:00Z")
    name_it(constellation)
    write(constellation, day(1), day(2), day(3))
    constellation.until("the task to end", lambda: state() == "expired")
    write(constellation, day(1))
    constellation.until("the task to be taken up", lambda: state() == "active")
    assert next_fire(constellation, "news") == day(2)
    assert constellation.violations() == []


def test_a_broken_calendar_is_named_and_its_last_days_count(constellation: Constellation) -> None:
    constellation.create("news", "--cron", "0 0 * * *", "--tz", "UTC")
    name_it(constellation)
    write(constellation, day(1))
    constellation.until("the days to count", lambda: next_fire(constellation, "news") == day(2))
    (constellation.home.root / "holidays.ics").write_text(BROKEN)
    constellation.until(
        "the error to be named",
        lambda: "holidays.ics cannot be read" in constellation.attempt("turnkeeper", "status").stderr,
    )
    assert next_fire(constellation, "news") == day(2)
    said = constellation.attempt("turnkeeper", "task", "next", "news").stderr
    assert "its last readable days apply" in said
    (constellation.home.root / "holidays.ics").unlink()
    again = constellation.attempt("turnkeeper", "task", "next", "news")
    assert "holidays.ics cannot be read" in again.stderr
    assert next_fire(constellation, "news") == day(2)
    write(constellation)
    constellation.until("an empty calendar to count", lambda: next_fire(constellation, "news") == day(1))
    constellation.until(
        "the error to be gone",
        lambda: "cannot be read" not in constellation.attempt("turnkeeper", "status").stderr,
    )


def test_a_single_instant_fires_on_a_day_off(stopped: Constellation) -> None:
    name_it(stopped)
    write(stopped, day(1))
    stopped.create("once", "--at", f"{day(1)}T09:00:00Z")
    assert next_fire(stopped, "once") == day(1)
