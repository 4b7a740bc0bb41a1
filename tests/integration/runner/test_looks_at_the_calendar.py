"""A look at the calendar that fails is repeated, also if no file changes meanwhile."""

from contextlib import nullcontext
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from task_runner.scheduler.calendar import calendar
from task_runner.scheduler.calendar.watch import Watch
from tests.integration.runner.conftest import Rig
from turnkeeper.errors import MachineTrouble

EMPTY = "BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:test\r\n{}END:VCALENDAR\r\n"
OFF = "BEGIN:VEVENT\r\nUID:1\r\nDTSTART;VALUE=DATE:20260303\r\nSUMMARY:Off\r\nEND:VEVENT\r\n"


@pytest.mark.parametrize("fails", ["use", "required", "keep"])
async def test_a_calendar_that_could_not_be_read_or_kept_counts_at_the_next_look(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    monkeypatch.setattr(calendar, "SystemClock", lambda: rig.clock)
    monkeypatch.setattr(calendar._Used, "calendar", calendar.Calendar())
    await rig.create(cron="0 9 * * *")
    (rig.home.root / "off.ics").write_bytes(EMPTY.format("").encode())
    rig.home.config.write_text('[calendar]\nfile = "off.ics"\n')
    watch = Watch(rig.home, SimpleNamespace(store=rig.store, log=rig.trail, loop=rig.loop), None, rig.clock)
    for _ in range(2):  # the first look finds the file's name
        await watch.look()
    does = getattr(calendar, fails)

    def once(*given: Any) -> Any:
        monkeypatch.setattr(calendar, fails, does)
        raise MachineTrouble("the disk does not answer")

    monkeypatch.setattr(calendar, fails, once)
    (rig.home.root / "off.ics").write_bytes(EMPTY.format(OFF).encode())
    with nullcontext() if fails == "required" else pytest.raises(MachineTrouble):
        await watch.look()
    await watch.look()
    assert (await rig.task()).next_fire_at.ToDatetime(UTC) == datetime(2026, 3, 4, 9, tzinfo=UTC)
    assert (calendar.kept(rig.home).days == calendar.current().days != (), watch.trouble) == (True, "")
    monkeypatch.setattr(calendar, "use", lambda _home: pytest.fail("no file changed"))
    await watch.look()
