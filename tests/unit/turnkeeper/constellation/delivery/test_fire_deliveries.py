"""The deliveries that `history` and `explain` show with an entry of the ledger."""

from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from turnkeeper.config.home import Home
from turnkeeper.constellation.delivery import outbox
from turnkeeper.constellation.delivery.fire_deliveries import findings, sentences, states
from turnkeeper.constellation.delivery.follow import skipped
from turnkeeper.times import to_us
from turnkeeper.v1 import schedules_pb2 as schedules

AT = datetime(2026, 11, 20, 8, tzinfo=UTC)


def entry(number: int, reason: str) -> schedules.Fire:
    fire = schedules.Fire(task_id="task-1", task_name="news", entry_id=number, outcome="skipped", reason=reason)
    fire.first_nominal_at.FromDatetime(AT)
    fire.last_nominal_at.FromDatetime(AT)
    return fire


def test_an_entry_without_a_fire_id_shows_its_own_deliveries_alone(tmp_path: Path) -> None:
    home = Home(root=tmp_path)
    home.config.write_text("[delivery]\n")
    (tmp_path / "state").mkdir()
    settling = skipped(entry(7, "missed"), AT)
    assert settling is not None
    done = outbox.Delivery(
        outbox.delivery_key(settling.key, "ops"), "failure", outbox.DELIVERED, None, to_us(AT), target="ops",
        task_id="task-1", ended_us=to_us(AT),
    )  # fmt: skip
    ended = done._replace(key=outbox.delivery_key("f@1:ended", "ops"), fire_id="f@1")
    store = outbox.open_outbox(home)
    assert store is not None
    store.submit(lambda it: outbox.put(it, [done, ended])).result()
    store.close()
    missed, overlapped, fired = entry(7, "missed"), entry(8, "overlap"), schedules.Fire(fire_id="f@1")
    assert states(home, [missed, overlapped, fired]) == [["ops: delivered"], [], ["ops: delivered"]]
    assert len(sentences(home, missed)) == 1
    assert sentences(home, overlapped) == []
    assert sentences(home, schedules.Fire()) == []


def test_deliveries_that_fail_are_counted_by_target_and_reason_until_they_end(tmp_path: Path) -> None:
    home = Home(root=tmp_path)
    assert list(findings(home)) == []
    home.config.write_text("[delivery]\n")
    assert list(findings(home)) == []
    (tmp_path / "state").mkdir()
    store = outbox.open_outbox(home)
    assert store is not None
    waits = outbox.Delivery("one", "failure", outbox.WAITING, to_us(AT), to_us(AT), target="phone", body="{}")
    rows = [waits, waits._replace(key="two"), waits._replace(key="new")]
    store.submit(lambda it: outbox.put(it, rows)).result()
    for row in rows[:2]:
        assert store.submit(partial(outbox.retry, row=row, now=AT, reason="status 500")).result()
    remedy = "they are tried again; see: turnkeeper deliver log --waiting"
    assert list(findings(home)) == [("delivery", "2 deliveries to phone failed: status 500", remedy)]
    store.submit(lambda it: outbox.end(it, waits, outbox.DELIVERED, AT)).result()
    assert list(findings(home)) == [("delivery", "1 delivery to phone failed: status 500", remedy)]
    store.close()
