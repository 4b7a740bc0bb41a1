"""A budget in money: what turns cost by the price of the model, kept by day, also over a new start of the runner."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from task_runner.store.store import Store
from tests.integration.runner.conftest import Rig
from tests.integration.runner.scripted_runtime import Peer, State
from turnkeeper.config.home import Home
from turnkeeper.config.prices import prices
from turnkeeper.errors import InvalidInput, MachineTrouble
from turnkeeper.v1 import schedules_pb2 as wire

PRICED = '[model]\nname = "openai:small"\n[prices."openai:small"]\nread = 1.25\nwritten = 10\n'
MONEY = {"money_per_day": 2_500_000}  # 2.50


@pytest.fixture
def price(rig: Rig) -> Iterator[None]:
    rig.home.config.write_text(PRICED)
    prices.use(rig.home)
    yield
    rig.home.config.unlink()
    prices.use(Home(root=rig.home.root / "none"))
    prices._Used.prices = None


async def spend(rig: Rig, peer: Peer, count: int, tokens_in: int, tokens_out: int) -> None:
    """Let the next fire's turn succeed, with these tokens."""
    await rig.service.run_task(wire.RunTaskRequest(name="digest"))
    await rig.trail.saw("fire.accepted", count)
    peer.now = rig.clock.now
    fire_id = peer.received[-1].fire_id
    await peer.play(fire_id, State.STARTED)
    await peer.play(fire_id, State.SUCCEEDED, tokens_in=tokens_in, tokens_out=tokens_out)
    await rig.trail.saw("fire.settled", count)


async def test_the_money_of_a_day_pauses_the_task_until_the_next_day(rig: Rig, peer: Peer, price: None) -> None:
    await rig.create(budget=MONEY)
    async with rig.running():
        await spend(rig, peer, 1, 400_000, 100_000)  # 0.50 + 1.00
        assert (await rig.task()).state == "active"
    again = rig.again()
    async with again.running():
        await spend(again, peer, 1, 0, 100_000)
        await again.trail.saw("task.paused")
        task = await again.task()
    await again.close()
    assert task.paused_note == "budget: money_per_day is 2.5, 2.5 used on 2026-03-02"
    assert task.paused_until.ToDatetime().isoformat() == "2026-03-03T00:00:00"


async def test_a_changed_price_counts_from_then_on(rig: Rig, peer: Peer, price: None) -> None:
    await rig.create(budget=MONEY)
    async with rig.running():
        await spend(rig, peer, 1, 400_000, 0)  # 0.50
        rig.home.config.write_text(PRICED.replace("1.25", "25.0"))
        await spend(rig, peer, 2, 100_000, 0)  # 2.50
        await rig.trail.saw("task.paused")
        assert (await rig.task()).paused_note.startswith("budget: money_per_day is 2.5, 3.0 used")


async def test_a_turn_that_ended_before_its_price_was_written_counts_once_there_is_one(rig: Rig, peer: Peer) -> None:
    prices.use(rig.home)
    await rig.create()
    async with rig.running():
        await spend(rig, peer, 1, 400_000, 100_000)
        await spend(rig, peer, 2, 0, 50_000)
    again = rig.again()
    rig.home.config.write_text(PRICED)
    try:
        async with again.running():
            spec = (await again.task()).spec
            spec.budget.update({"money_per_day": 3_000_000})
            task = (await again.service.update_task(wire.UpdateTaskRequest(name="digest", spec=spec))).task
            assert task.state == "active", "0.50 + 1.00 + 0.50 were used"
            await spend(again, peer, 1, 0, 100_000)
            await again.trail.saw("task.paused")
            assert (await again.task()).paused_note == "budget: money_per_day is 3.0, 3.0 used on 2026-03-02"
    finally:
        await again.close()
        rig.home.config.unlink()
        prices.use(Home(root=rig.home.root / "none"))
        prices._Used.prices = None


class FailsOnce:
    """A store whose first read fails."""

    def __init__(self, store: Store) -> None:
        self._store, self.reads = store, 0

    async def read(self, wanted: Any) -> Any:
        self.reads += 1
        if self.reads == 1:
            raise MachineTrouble("the disk does not answer")
        return await self._store.read(wanted)


async def test_a_failed_look_for_budgets_that_do_not_count_is_repeated_and_one_that_succeeded_is_not(
    rig: Rig, price: None
) -> None:
    await rig.create(budget=MONEY)
    store = FailsOnce(rig.store)
    watch = prices.Watch(rig.home, SimpleNamespace(store=store), None, None)
    await watch.look()
    assert (store.reads, watch.trouble) == (0, "")
    rig.home.config.write_text("")
    with pytest.raises(MachineTrouble):
        await watch.look()
    assert watch.trouble == ""
    await watch.look()
    assert watch.trouble.startswith("money_per_day of digest does not count")
    rig.home.config.write_text(PRICED)
    await watch.look()
    assert (store.reads, watch.trouble) == (2, "")


async def test_without_a_price_a_budget_in_money_is_refused(rig: Rig) -> None:
    with pytest.raises(InvalidInput, match="money_per_day needs the price of offline"):
        await rig.create(budget=MONEY)


async def test_the_refusal_names_the_table_of_the_homes_model_with_its_keys(rig: Rig, price: None) -> None:
    rig.home.config.write_text(PRICED.replace('openai:small"]', 'openai:other"]'))
    with pytest.raises(InvalidInput, match="needs the price of openai:small") as refused:
        await rig.create(budget=MONEY)
    assert 'read = … and written = … below [prices."openai:small"] in config.toml' in refused.value.hint


async def test_prices_outside_a_table_of_a_model_are_refused_as_unknown_keys(rig: Rig, price: None) -> None:
    rig.home.config.write_text("[prices]\nread = 100\nwritten = 1000\n")
    with pytest.raises(InvalidInput, match=r"config.toml:2: prices.read: unknown key, or not a table") as refused:
        await rig.create(budget=MONEY)
    assert 'below [prices."offline"] in config.toml' in refused.value.hint
