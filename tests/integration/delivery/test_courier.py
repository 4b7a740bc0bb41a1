"""What the courier makes of rows that are due: a digest, a target that is gone, a fire that is still open."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.clock import ManualClock, look_again
from tests.support.receivers import Hook, opened
from turnkeeper.bus.event_log import EventLog
from turnkeeper.config.home import Home
from turnkeeper.config.settings import load_settings
from turnkeeper.constellation.delivery import hosts, outbox, targets
from turnkeeper.constellation.delivery.__main__ import Courier
from turnkeeper.constellation.delivery.follow import Follower, taken
from turnkeeper.constellation.delivery.outbox import GATHERED, LEASE, SETTLING, UNLEASED, WAITING, Delivery
from turnkeeper.constellation.upkeep.erase import Chosen, Eraser, mask_of
from turnkeeper.errors import NotFound, Unreachable
from turnkeeper.rpc.process import Failpoints
from turnkeeper.storage.database import Database
from turnkeeper.times import to_us
from turnkeeper.v1 import agent_runtime_pb2 as agents
from turnkeeper.v1 import schedules_pb2 as schedules


class Daemons:
    """Both daemons: a fire as the ledger has it, and no conversation."""

    def __init__(self) -> None:
        self.fire = schedules.Fire(outcome="running")
        self.away = False

    def by(self, _via: object) -> "Daemons":
        return self

    async def GetFire(self, _asked: schedules.GetFireRequest) -> schedules.Fire:
        if self.away:
            raise Unreachable("task-runner cannot be reached")
        return self.fire

    async def GetTurn(self, _asked: agents.GetTurnRequest) -> agents.Turn:
        raise NotFound("no turn")

    async def GetConversation(self, _asked: agents.GetConversationRequest) -> agents.Conversation:
        return agents.Conversation()


class Bench:
    """A courier over a file, whose due rows are taken by hand."""

    def __init__(self, home: Home, hook: Hook, clock: ManualClock | None = None) -> None:
        home.create()
        home.config.write_text(f'[delivery]\nallow = ["{hook.place}"]\n')
        self.home, self.url, self.daemons, self.clock = home, f"http://{hook.place}/", Daemons(), clock or ManualClock()
        found = outbox.open_outbox(home)
        assert found is not None
        self.store: Database = found
        log = EventLog(home.logs, "delivery", self.clock)
        self.courier = Courier(home, load_settings(home), found, self.daemons, clock=self.clock, log=log)  # type: ignore[arg-type]

    def row(self, key: str, target: str, state: str = WAITING, *, in_s: float = 0) -> Delivery:
        now = to_us(self.clock.now() + timedelta(seconds=in_s))
        body = {"data": {"task": key, "outcome": "succeeded", "text": f"of {key}", "reason": ""}}
        return Delivery(key, "success", state, now, now, target=target, body=json.dumps(body))

    async def put(self, *rows: Delivery) -> None:
        await self.store.run(lambda it: outbox.put(it, rows))

    async def round(self) -> None:
        """Take what is due, once."""
        due = await self.store.run(lambda it: outbox.take_due(it, self.clock.now(), 8, UNLEASED))
        for row in due:
            await self.courier._one(row)

    async def states(self) -> dict[str, str]:
        rows = await self.store.run(lambda it: outbox.rows_of(it, limit=10))
        return {str(row["kind"]) + " " + str(row["key"])[:4]: str(row["state"]) for row in rows}


@pytest.fixture
def hook() -> Iterator[Hook]:
    with opened(Hook()) as made:
        yield made


@pytest.fixture
async def bench(tmp_path: Path, hook: Hook) -> AsyncIterator[Bench]:
    made = Bench(Home(root=tmp_path / "home"), hook)
    yield made
    made.store.close()


async def test_results_that_wait_for_the_digest_go_out_as_one(bench: Bench, hook: Hook) -> None:
    targets.add(bench.home, "daily", targets.Target(webhook=bench.url, digest="08:00"))
    await bench.put(bench.row("one", "daily", GATHERED), bench.row("two", "daily", GATHERED))
    await bench.round()
    assert hook.requests == []
    await bench.round()
    (request,) = hook.requests
    assert (request.said["type"], request.said["data"]["text"]) == (
        "digest",
        "one succeeded: of one\n\ntwo succeeded: of two",
    )
    assert set((await bench.states()).values()) == {"delivered"}
    await bench.round()
    assert len(hook.requests) == 1


async def test_a_host_in_any_script_is_spelled_as_dns_spells_it_and_one_that_is_no_name_ends_no_other_delivery(
    bench: Bench, hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, port = hook.place.split(":")
    real = hosts._resolve
    monkeypatch.setattr(hosts, "_resolve", lambda _host, *given, **how: real(place, *given, **how))
    bench.home.config.write_text(f'[delivery]\nallow = ["bücher.example:{port}"]\n')
    bench.courier._allowed = frozenset({f"bücher.example:{port}"})
    for name, host in (("books", "bücher.example"), ("none", "bücher..example")):
        targets.FILE.add(bench.home, name, targets.Target(webhook=f"http://{host}:{port}/", on=("success",)))
    await bench.put(bench.row("1", "none"), bench.row("2", "books"))
    await bench.round()
    assert [request.headers["host"] for request in hook.requests] == [f"xn--bcher-kva.example:{port}"]


async def test_an_error_that_no_one_foresaw_postpones_its_own_delivery_and_no_other(bench: Bench, hook: Hook) -> None:
    targets.FILE.add(bench.home, "odd", targets.Target(command="cat", on=("success",)))
    targets.FILE.add(bench.home, "hook", targets.Target(webhook=bench.url, on=("success",)))
    await bench.put(bench.row("1", "odd")._replace(body="{}"), bench.row("2", "hook"))
    await bench.round()
    assert [request.key for request in hook.requests] == ["2"]
    assert (await bench.states())["success 1"] == WAITING


async def test_what_waits_for_a_target_that_was_removed_is_dropped(bench: Bench, hook: Hook) -> None:
    await bench.put(bench.row("one", "gone"))
    await bench.round()
    assert (await bench.states(), hook.requests) == ({"success one": "dropped"}, [])


async def test_a_fire_is_delivered_once_its_ledger_shows_the_end_and_not_while_it_is_retried(
    bench: Bench, hook: Hook
) -> None:
    targets.add(bench.home, "ops", targets.Target(webhook=bench.url))
    event: Any = agents.TurnEvent(
        state=agents.TurnEvent.FAILED, fire_id="f@1", turn_id="t1", task_name="news", thread_id="x"
    )
    event.at.FromDatetime(bench.clock.now())
    failed = taken(event)
    assert failed is not None
    await bench.put(failed)
    await bench.round()
    bench.daemons.away = True
    bench.clock.advance(1)
    await bench.round()
    assert hook.requests == []
    bench.daemons.away = False
    bench.daemons.fire = schedules.Fire(outcome="succeeded", attempt=2, turn_id="t2")
    bench.daemons.fire.ended_at.FromDatetime(datetime(2026, 11, 20, tzinfo=UTC))
    for _ in range(2):
        bench.clock.advance(1)
        await bench.round()
    (request,) = hook.requests
    assert (request.said["type"], request.said["data"]["attempt"]) == ("task.succeeded", 2)


async def test_a_run_whose_turn_is_gone_is_settled_and_not_asked_about_for_ever(bench: Bench, hook: Hook) -> None:
    """A restore of the runtime's store removes turns that the outbox names."""
    targets.FILE.add(bench.home, "hook", targets.Target(webhook=bench.url, on=("run",)))
    said = json.dumps({"thread": "x", "status": "success"})
    now = to_us(bench.clock.now())
    await bench.put(Delivery("t1:1:run", "run", SETTLING, now, now, address=bench.url, turn_id="t1", body=said))
    await bench.round()
    assert (await bench.store.look(outbox.next_due), hook.requests) == (None, [])


async def test_a_text_that_was_erased_is_no_longer_in_the_outbox_and_is_not_sent(bench: Bench, hook: Hook) -> None:
    targets.add(bench.home, "ops", targets.Target(webhook=bench.url))
    await bench.put(bench.row("one", "ops"), bench.row("two", "ops")._replace(turn_id="t1"))
    bench.store.close()
    with Eraser(bench.home, pages=False) as eraser:
        chosen, mask = Chosen(turns=frozenset({"t1"})), mask_of(["of one"])
        eraser.erase(mask, chosen, eraser.find(mask, chosen), bench.clock.now())
    again = Bench(bench.home, hook, bench.clock)
    await again.round()
    (request,) = hook.requests
    assert request.said["data"]["text"] == "******"
    assert await again.states() == {"success one": "delivered", "success two": "dropped"}
    again.store.close()


async def test_the_first_start_and_a_restored_store_deliver_nothing_of_before(bench: Bench) -> None:
    async def heard(incarnation: str, *days: int) -> list[str]:
        async def events(_asked: agents.WatchTurnsRequest) -> AsyncIterator[agents.TurnEvent]:
            for sequence, day in enumerate(days, 1):
                event = agents.TurnEvent(state=agents.TurnEvent.SUCCEEDED, fire_id=f"f@{day}", incarnation=incarnation)
                event.sequence = sequence
                event.at.FromDatetime(datetime(2026, 11, day, tzinfo=UTC))
                yield event

        bench.daemons.WatchTurns = events  # type: ignore[attr-defined]
        await Follower(bench.store, bench.daemons, lambda: None, Failpoints({})).run()  # type: ignore[arg-type]
        due = await bench.store.run(lambda it: outbox.take_due(it, datetime(2027, 1, 1, tzinfo=UTC), 8, LEASE))
        return [row.fire_id for row in due]

    await bench.store.run(lambda it: outbox.begin(it, datetime(2026, 11, 2, tzinfo=UTC)))
    assert await heard("a", 1, 3) == ["f@3"]
    assert await heard("a", 4) == ["f@4"]
    assert await heard("restored", 1, 3, 4, 5) == ["f@5"]


class Killed(BaseException):
    """The end of the process at a step."""


class Deadly(Failpoints):
    """Failpoints of which one ends the test's process instead of the real one."""

    def __init__(self, step: str) -> None:
        super().__init__({})
        self._step = step

    def reach(self, name: str) -> None:
        if name == self._step:
            raise Killed


async def forever(step: Callable[[], Awaitable[None]]) -> None:
    while True:
        await step()


async def until_killed(bench: Bench, step: str) -> None:
    bench.courier.failpoints = Deadly(f"delivery.{step}")
    with pytest.raises(Killed):
        await asyncio.wait_for(forever(bench.round), 60)


async def started_again(bench: Bench, hook: Hook) -> Bench:
    """Return a bench after a restart, whose courier has taken all that is due."""
    bench.store.close()
    again = Bench(bench.home, hook, bench.clock)
    running = asyncio.create_task(again.courier.run())
    while not again.clock.is_awaited:  # it waits for time to pass once nothing is due
        await look_again()
    running.cancel()
    return again


def texts(hook: Hook) -> list[str]:
    return [request.said["data"]["text"] for request in hook.requests]


@pytest.mark.parametrize("step", ["sending", "sent", "recorded", "gathered"])
async def test_a_restart_sends_neither_the_digest_nor_what_waits_for_the_end_of_quiet_hours_before_its_time(
    bench: Bench, hook: Hook, step: str
) -> None:
    targets.add(bench.home, "daily", targets.Target(webhook=bench.url, digest="09:01"))
    targets.add(bench.home, "calm", targets.Target(webhook=bench.url, quiet="08:50-09:01"))
    targets.add(bench.home, "late", targets.Target(webhook=bench.url, digest="08:59"))
    bench.clock.step(20)  # 09:00:20
    await bench.put(bench.row("old", "late", GATHERED, in_s=-80))
    await bench.put(bench.row("today", "daily", GATHERED, in_s=40), bench.row("quiet", "calm", in_s=40))
    await until_killed(bench, step)
    again = await started_again(bench, hook)
    assert set(texts(hook)) == {"old succeeded: of old"}
    again.clock.advance(40)
    for _ in range(2):
        await again.round()
    assert texts(hook)[-2:] == ["of quiet", "today succeeded: of today"]
    again.store.close()


async def test_what_failed_or_became_due_before_quiet_hours_is_not_sent_within_them(bench: Bench, hook: Hook) -> None:
    targets.add(bench.home, "calm", targets.Target(webhook=bench.url, quiet="09:01-09:30"))
    hook.statuses = [503]
    await bench.put(bench.row("failed", "calm"), bench.row("due", "calm", in_s=50))
    await bench.round()
    bench.clock.advance(600)
    again = await started_again(bench, hook)
    assert texts(hook) == ["of failed"]
    again.clock.advance(1200)  # 09:30
    await again.round()
    assert texts(hook) == ["of failed", "of failed", "of due"]
    again.store.close()


async def test_a_command_releases_a_digest_and_what_quiet_hours_hold_also_within_them(bench: Bench, hook: Hook) -> None:
    targets.add(bench.home, "daily", targets.Target(webhook=bench.url, digest="18:00", quiet="08:50-09:30"))
    targets.add(bench.home, "calm", targets.Target(webhook=bench.url, quiet="08:50-09:30"))
    bench.clock.step(20)  # 09:00:20
    await bench.put(bench.row("today", "daily", GATHERED, in_s=32_380), bench.row("quiet", "calm"))
    await bench.round()
    assert hook.requests == []
    for name in ("daily", "calm"):
        assert await bench.store.run(partial(outbox.release, target=name, now=bench.clock.now())) == 1
    for _ in range(2):
        await bench.round()
    assert sorted(texts(hook)) == ["of quiet", "today succeeded: of today"]
    assert await bench.store.run(lambda it: outbox.release(it, "daily", bench.clock.now())) == 0


async def test_a_command_releases_neither_a_failed_delivery_nor_one_that_is_being_sent(bench: Bench) -> None:
    await bench.put(bench.row("failed", "ops", in_s=60)._replace(tries=1, reason="status 503"))
    await bench.put(bench.row("leased", "ops", GATHERED)._replace(reason=outbox.DIGEST))
    await bench.store.run(lambda it: outbox.take_due(it, bench.clock.now(), 8, LEASE))
    assert await bench.store.run(lambda it: outbox.release(it, "ops", bench.clock.now())) == 0


async def test_a_new_target_of_a_deleted_ones_name_gets_nothing_of_it(bench: Bench, hook: Hook) -> None:
    rows = bench.row("one", "ada", GATHERED), bench.row("two", "ada")
    await bench.put(*rows, bench.row("other", "bob")._replace(key="other"))
    assert await bench.store.run(lambda it: outbox.drop(it, "ada", bench.clock.now())) == 2
    assert await bench.store.run(lambda it: outbox.retry(it, rows[1], bench.clock.now(), "an attempt of before"))
    for name in ("ada", "bob"):
        targets.add(bench.home, name, targets.Target(webhook=bench.url))
    bench.clock.advance(60)
    await bench.round()
    assert texts(hook) == ["of other"]
    found = await bench.store.run(lambda it: outbox.rows_of(it, limit=10))
    assert [(row["state"], row["reason"]) for row in found if row["target"] == "ada"] == [
        ("dropped", "its target was removed")
    ] * 2


async def test_what_waits_for_the_digest_was_made_when_its_fire_ended(bench: Bench) -> None:
    targets.add(bench.home, "daily", targets.Target(webhook=bench.url, digest="09:30"))
    bench.daemons.fire = schedules.Fire(outcome="succeeded", attempt=1, turn_id="t1")
    bench.daemons.fire.ended_at.FromDatetime(bench.clock.now())
    body = json.dumps({"thread": "x"})
    await bench.put(bench.row("f@1:ended", "", outbox.SETTLING)._replace(kind="ended", fire_id="f@1", body=body))
    await bench.round()
    (found,) = await bench.store.run(lambda it: outbox.rows_of(it, limit=10))
    now = bench.clock.now()
    assert (found["made_us"], found["next_us"]) == (to_us(now), to_us(now + timedelta(minutes=30)))
    assert found["reason"] == "daily digest"


async def test_what_quiet_hours_hold_says_so(bench: Bench) -> None:
    targets.add(bench.home, "calm", targets.Target(webhook=bench.url, quiet="08:50-09:30"))
    bench.daemons.fire = schedules.Fire(outcome="succeeded", attempt=1, turn_id="t1")
    bench.daemons.fire.ended_at.FromDatetime(bench.clock.now())
    body = json.dumps({"thread": "x"})
    await bench.put(bench.row("f@1:ended", "", outbox.SETTLING)._replace(kind="ended", fire_id="f@1", body=body))
    await bench.put(bench.row("due", "calm"))
    await bench.round()
    found = await bench.store.run(lambda it: outbox.rows_of(it, limit=10))
    assert [row["reason"] for row in found] == ["quiet hours", "quiet hours"]
