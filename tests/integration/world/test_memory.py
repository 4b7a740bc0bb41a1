"""Memory: each tier belongs to somebody, and what a turn is given is bounded."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from agent_runtime.model import TurnContext
from agent_runtime.world import memory as store
from agent_runtime.world.memory import LARGEST_ENTRY, READING_BUDGET
from agent_runtime.world.world import World
from tests.integration.world.conftest import Begin, call
from tests.support.clock import ManualClock
from turnkeeper.errors import Denied, Exhausted, InvalidInput


async def put(world: World, context: TurnContext, number: int, tier: str, text: str, key: str = "") -> None:
    await world.remember(call(context, number), tier=tier, text=text, key=key, channel="")


async def recall(world: World, context: TurnContext, tier: str) -> list[str]:
    return [entry.text for entry in (await world.recall(call(context, 0), tier, "")).entries]


async def test_who_sees_which_tier(world: World, begin: Begin) -> None:
    here = begin("a", thread_id="one", channel="general", named="conversation")
    same_channel = begin("b", thread_id="two", channel="general", named="conversation")
    elsewhere = begin("c", thread_id="three", channel="other", named="conversation")
    for number, tier in enumerate(("conversation", "channel", "workspace", "account")):
        await put(world, here, number, tier, tier)
    seen = {
        turn.turn_id: [tier for tier in ("conversation", "channel", "workspace", "account") if await recall(world, turn, tier)]
        for turn in (here, same_channel, elsewhere)
    }  # fmt: skip
    assert seen == {
        "a": ["conversation", "channel", "workspace", "account"],
        "b": ["channel", "workspace", "account"],
        "c": ["workspace", "account"],
    }


async def test_a_tier_that_the_category_does_not_reach_is_refused(world: World, begin: Begin) -> None:
    context = begin(named="conversation")
    narrow = replace(context, category=replace(context.category, memory=frozenset({"conversation"})))
    for tier in ("channel", "workspace", "account", "nosuch", ""):
        with pytest.raises(Denied):
            await world.recall(call(narrow), tier, "")
        with pytest.raises(Denied):
            await put(world, narrow, 1, tier, "x")
    with pytest.raises(Denied, match="channel general"):
        await world.recall(call(context), "channel", "secret")


async def test_an_entry_knows_who_wrote_it_from_which_turn_and_when(
    world: World, begin: Begin, clock: ManualClock
) -> None:
    await put(world, begin("first", named="conversation"), 1, "channel", "blue", key="bucket")
    clock.advance(60)
    second = begin("second", named="conversation")
    await put(world, second, 1, "channel", "green", key="bucket")
    (entry,) = (await world.recall(call(second), "channel", "")).entries
    assert (entry.text, entry.key, entry.turn_id, entry.written_by) == ("green", "bucket", "second", "agent0")
    assert (entry.updated_at - entry.created_at).total_seconds() == 60


async def test_a_turn_is_given_no_more_than_the_budget_newest_first(
    world: World, begin: Begin, clock: ManualClock
) -> None:
    context = begin(named="conversation")
    for number in range(10):
        clock.advance(1)
        await put(world, context, number, "channel", f"{number}" + "x" * 1999)
    found = await world.recall(call(context, 99), "channel", "")
    assert [entry.text[0] for entry in found.entries] == ["9", "8", "7", "6"]
    assert sum(len(entry.text) for entry in found.entries) <= READING_BUDGET
    assert found.left_out == 6


async def test_the_same_call_again_writes_once(world: World, begin: Begin) -> None:
    context = begin(named="conversation")
    for _ in range(2):
        await put(world, context, 1, "channel", "once")
    assert await recall(world, context, "channel") == ["once"]


@pytest.mark.parametrize(
    ("text", "key"),
    [("", ""), ("  ", ""), ("x" * (LARGEST_ENTRY + 1), ""), ("a\x00", ""), ("\udcff", ""), ("x", "k" * 201), ("x", "a\nb"), ("x", " a")],
)
async def test_what_cannot_be_stored_is_refused(world: World, begin: Begin, text: str, key: str) -> None:
    context = begin(named="conversation")
    with pytest.raises(InvalidInput):
        await put(world, context, 1, "channel", text, key)
    assert await recall(world, context, "channel") == []


async def test_a_full_tier_says_so_and_takes_replacements(
    world: World, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "MOST_ENTRIES", 2)
    context = begin(named="conversation")
    await put(world, context, 1, "channel", "a", key="a")
    await put(world, context, 2, "channel", "b", key="b")
    with pytest.raises(Exhausted, match="2 entries"):
        await put(world, context, 3, "channel", "c")
    await put(world, context, 4, "channel", "changed", key="a")
    assert sorted(await recall(world, context, "channel")) == ["b", "changed"]


async def test_reading_a_channel_is_bounded_newest_kept(
    world: World, begin: Begin, say: Callable[..., None], clock: ManualClock
) -> None:
    begin("talk", started_by="author", named="conversation")
    for number in range(30):
        clock.advance(1)
        say("talk", "author", f"{number:02}" + "x" * 998, position=number)
    say("talk", "tool", "not for others", position=99)
    heard = await world.hear(call(begin("reader")), "", whole=True)
    assert [message.text[:2] for message in heard.messages] == [f"{number:02}" for number in range(14, 30)]
    assert heard.left_out == 14
    assert heard.since is None
