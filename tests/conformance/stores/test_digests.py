"""A digest of a shared outbox holds what is due, also if another process leased it, and nothing that is due later."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.support.postgres import Places
from turnkeeper.constellation.delivery import outbox
from turnkeeper.constellation.delivery.outbox import GATHERED, LEASE, UNLEASED, Delivery
from turnkeeper.storage.database import Database
from turnkeeper.times import to_us

NOW = datetime(2026, 11, 20, 8, tzinfo=UTC)


def waits(key: str, at: datetime) -> Delivery:
    body = json.dumps({"data": {"task": key, "outcome": "succeeded", "text": key, "reason": ""}})
    return Delivery(key, "success", GATHERED, to_us(at), to_us(at), target="ops", body=body)


@pytest.mark.parametrize("late", [timedelta(), timedelta(microseconds=1), timedelta(seconds=30)])
@pytest.mark.parametrize("lease", [LEASE, UNLEASED])
def test_after_the_time_of_a_digest_was_changed_each_row_goes_out_at_the_time_for_which_it_waited(
    place_of: Places, tmp_path: Path, late: timedelta, lease: timedelta
) -> None:
    store = Database(place_of(tmp_path / "delivery.db"), migrations=outbox.MIGRATIONS)
    try:
        minute = timedelta(minutes=1)
        rows = [waits("early", NOW - minute), waits("due", NOW), waits("later", NOW + minute)]
        store.submit(lambda it: outbox.put(it, rows)).result()
        now, gathered = NOW + late, list[str]()
        taken = store.submit(lambda it: outbox.take_due(it, now, 1, lease)).result()
        assert [row.key for row in taken] == ["early"]
        found = store.submit(lambda it: outbox.gather(it, "ops", now, lease)).result()
        assert [row.key for row in found] == ["early", "due"]
        for row in found:
            store.submit(lambda it, row=row: outbox.end(it, row, outbox.DELIVERED, now)).result()
        assert store.submit(lambda it: outbox.take_due(it, NOW + minute, 8, lease)).result()[0].key == "later"
        gathered += [row.key for row in store.submit(lambda it: outbox.gather(it, "ops", NOW + minute, lease)).result()]
        assert gathered == ["later"]
    finally:
        store.close()
