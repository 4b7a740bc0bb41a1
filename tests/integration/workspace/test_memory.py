"""Memory: each tier belongs to somebody, and what a turn is given is bounded."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from agent_runtime.model.turn import TurnContext
from agent_runtime.workspace import memory as entries
from agent_runtime.workspace.memory import LARGEST_ENTRY, READING_BUDGET, Shelf
from agent_runtime.workspace.workspace import Workspace
from tests.integration.workspace.conftest import Begin, call
from tests.support.clock import ManualClock
from turnkeeper.errors import Denied, Exhausted, InvalidInput, NotFound


async def put(workspace: Workspace, context: TurnContext, number: int, tier: str, text: str, key: str = "") -> None:
    await workspace.memory.put(call(context, number), tier=tier, text=text, key=key, channel="")


async def recall(workspace: Workspace, context: TurnContext, tier: str) -> list[str]:
    return [entry.text for entry in (await workspace.memory.read(call(context, 0), tier, "")).entries]


async def test_who_sees_which_tier(workspace: Workspace, begin: Begin) -> None:
    here = begin("a", thread_id="one", channel="general", named="conversation")
    same_channel = begin("b", thread_id="two", channel="general", named="conversation")
    elsewhere = begin("c", thread_id="three", channel="other", named="conversation")
    for number, tier in enumerate(("conversation", "channel", "workspace", "account")):
        await put(workspace, here, number, tier, tier)
    seen = {
        turn.turn_id: [tier for tier in ("conversation", "channel", "workspace", "account") if await recall(workspace, turn, tier)]
        for turn in (here, same_channel, elsewhere)
    }  # fmt: skip
    assert seen == {
        "a": ["conversation", "channel", "workspace", "account"],
        "b": ["channel", "workspace", "account"],
        "c": ["workspace", "account"],
    }


async def test_a_tier_that_the_category_does_not_reach_is_refused(workspace: Workspace, begin: Begin) -> None:
    context = begin(named="conversation")
    narrow = replace(context, category=replace(context.category, memory=frozenset({"conversation"})))
    for tier in ("channel", "workspace", "account", "nosuch", ""):
        with pytest.raises(Denied):
            await workspace.memory.read(call(narrow), tier, "")
        with pytest.raises(Denied):
            await put(workspace, narrow, 1, tier, "x")
    with pytest.raises(Denied, match="channel general"):
        await workspace.memory.read(call(context), "channel", "secret")


async def test_an_entry_knows_who_wrote_it_from_which_turn_and_when(
    workspace: Workspace, begin: Begin, clock: ManualClock
) -> None:
    await put(workspace, begin("first", named="conversation"), 1, "channel", "blue", key="bucket")
    clock.advance(60)
    second = begin("second", named="conversation")
    await put(workspace, second, 1, "channel", "green", key="bucket")
    (entry,) = (await workspace.memory.read(call(second), "channel", "")).entries
    assert (entry.text, entry.key, entry.turn_id, entry.written_by) == ("green", "bucket", "second", "agent0")
    assert (entry.updated_at - entry.created_at).total_seconds() == 60


async def test_a_turn_is_given_no_more_than_the_budget_newest_first(
    workspace: Workspace, begin: Begin, clock: ManualClock
) -> None:
    context = begin(named="conversation")
    for number in range(10):
        clock.advance(1)
        await put(workspace, context, number, "channel", f"{number}" + "x" * 1999)
    found = await workspace.memory.read(call(context, 99), "channel", "")
    assert [entry.text[0] for entry in found.entries] == ["9", "8", "7", "6"]
    assert sum(len(entry.text) for entry in found.entries) <= READING_BUDGET
    assert found.left_out == 6


async def test_the_same_call_again_writes_once(workspace: Workspace, begin: Begin) -> None:
    context = begin(named="conversation")
    for _ in range(2):
        await put(workspace, context, 1, "channel", "once")
    assert await recall(workspace, context, "channel") == ["once"]


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("", ""),
        ("  ", ""),
        ("x" * (LARGEST_ENTRY + 1), ""),
        ("a\x00", ""),
        ("\udcff", ""),
        ("x", "k" * 201),
        ("x", "a\nb"),
        ("x", " a"),
    ],
)
async def test_what_cannot_be_stored_is_refused(workspace: Workspace, begin: Begin, text: str, key: str) -> None:
    context = begin(named="conversation")
    with pytest.raises(InvalidInput):
        await put(workspace, context, 1, "channel", text, key)
    assert await recall(workspace, context, "channel") == []


async def test_a_full_tier_says_so_and_takes_replacements(
    workspace: Workspace, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entries, "MOST_ENTRIES", 2)
    context = begin(named="conversation")
    await put(workspace, context, 1, "channel", "a", key="a")
    await put(workspace, context, 2, "channel", "b", key="b")
    with pytest.raises(Exhausted, match="2 entries"):
        await put(workspace, context, 3, "channel", "c")
    await put(workspace, context, 4, "channel", "changed", key="a")
    assert sorted(await recall(workspace, context, "channel")) == ["b", "changed"]


async def test_reading_a_channel_is_bounded_newest_kept(
    workspace: Workspace, begin: Begin, say: Callable[..., None], clock: ManualClock
) -> None:
    begin("talk", started_by="author", named="conversation")
    for number in range(30):
        clock.advance(1)
        say("talk", "author", f"{number:02}" + "x" * 998, position=number)
    say("talk", "tool", "not for others", position=99)
    heard = await workspace.read_conversation(call(begin("reader")), "", whole=True)
    assert [message.text[:2] for message in heard.messages] == [f"{number:02}" for number in range(14, 30)]
    assert heard.left_out == 14
    assert heard.since is None


async def test_every_verb_stays_within_tiers_and_channels(workspace: Workspace, begin: Begin) -> None:
    context = begin(named="conversation")
    other = begin("other", named="conversation", thread_id="elsewhere", channel="secret")
    await put(workspace, other, 1, "channel", "hidden", key="k")
    narrow = replace(context, category=replace(context.category, memory=frozenset({"conversation"})))
    memory, made = workspace.memory, call(narrow, 9)
    for tier, channel in (("channel", ""), ("workspace", ""), ("channel", "secret"), ("nosuch", "")):
        for attempt in (
            memory.read(made, tier, channel),
            memory.search(made, tier, "hidden", channel),
            memory.put(made, tier=tier, text="x", key="k", channel=channel),
            memory.update(made, tier=tier, key="k", text="x", channel=channel),
            memory.forget(made, tier=tier, key="k", channel=channel),
        ):
            with pytest.raises(Denied):
                await attempt
    with pytest.raises(Denied, match="channel general"):
        await memory.forget(call(context, 10), tier="channel", key="k", channel="secret")
    assert await recall(workspace, other, "channel") == ["hidden"]


async def test_an_entry_that_is_not_there_cannot_be_changed_or_forgotten(workspace: Workspace, begin: Begin) -> None:
    context = begin(named="conversation")
    with pytest.raises(NotFound, match="nosuch"):
        await workspace.memory.update(call(context, 1), tier="channel", key="nosuch", text="x")
    with pytest.raises(NotFound, match="nosuch"):
        await workspace.memory.forget(call(context, 2), tier="channel", key="nosuch")


async def test_forgetting_again_is_known_as_done_and_what_was_put_since_stays(
    workspace: Workspace, begin: Begin
) -> None:
    context = begin(named="conversation")
    await put(workspace, context, 1, "channel", "old", key="k")
    first = await workspace.memory.forget(call(context, 2), tier="channel", key="k")
    await put(workspace, context, 3, "channel", "new", key="k")
    again = await workspace.memory.forget(call(context, 2), tier="channel", key="k")
    assert (first.repeated, again.repeated, first.result["forgotten"]) == (False, True, "old")
    assert await recall(workspace, context, "channel") == ["new"]


async def test_what_an_author_wrote_no_agent_replaces_changes_or_forgets(workspace: Workspace, begin: Begin) -> None:
    context, shelf = begin(named="conversation"), Shelf(tier="channel", owner="general")
    await workspace.memory.author_puts(shelf, key="k", text="mine")
    for number, attempt in enumerate((workspace.memory.put, workspace.memory.update)):
        with pytest.raises(Denied, match="author wrote"):
            await attempt(call(context, number), tier="channel", key="k", text="yours")
    with pytest.raises(Denied, match="author wrote"):
        await workspace.memory.forget(call(context, 5), tier="channel", key="k")
    (entry,) = (await workspace.memory.read(call(context, 6), "channel", "")).entries
    assert (entry.text, entry.origin, entry.written_by, entry.turn_id) == ("mine", "authored", "author", "")
    assert (await workspace.memory.author_forgets(shelf, "k")).text == "mine"


async def test_a_tier_has_room_for_so_many_bytes_and_an_entry_may_always_shrink(
    workspace: Workspace, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entries, "MOST_BYTES", 10)
    context = begin(named="conversation")
    await put(workspace, context, 1, "channel", "é" * 4, key="a")
    with pytest.raises(Exhausted, match="8 bytes"):
        await put(workspace, context, 2, "channel", "abc", key="b")
    await put(workspace, context, 3, "channel", "abcd", key="a")
    await put(workspace, context, 4, "channel", "abc", key="b")
    await put(workspace, context, 5, "workspace", "ten bytes!")
    assert sorted(await recall(workspace, context, "channel")) == ["abc", "abcd"]


async def test_reading_goes_on_where_it_ended_from_either_end(
    workspace: Workspace, begin: Begin, clock: ManualClock
) -> None:
    context = begin(named="conversation")
    for number in range(5):
        clock.advance(1)
        await put(workspace, context, number, "channel", f"{number}" + "x" * 3999)
    found = await workspace.memory.read(call(context), "channel", skip=2)
    assert ([entry.text[0] for entry in found.entries], found.left_out) == (["2", "1"], 1)
    found = await workspace.memory.read(call(context), "channel", oldest=True)
    assert ([entry.text[0] for entry in found.entries], found.left_out) == (["0", "1"], 3)


async def test_a_search_gives_the_best_match_first_within_the_budget(workspace: Workspace, begin: Begin) -> None:
    context = begin(named="conversation")
    for number, text in enumerate(("the pump", "the garden pump is RED", "carrots")):
        await put(workspace, context, number, "channel", text)
    await put(workspace, context, 9, "channel", "x", key="pump house")
    found = await workspace.memory.search(call(context), "channel", "red pump")
    assert [entry.text for entry in found.entries] == ["x", "the garden pump is RED", "the pump"]
    assert (await workspace.memory.search(call(context), "channel", "%_")).entries == ()


async def test_a_turn_is_told_the_newest_of_its_thread_and_channel_without_asking(
    workspace: Workspace, begin: Begin, clock: ManualClock
) -> None:
    context = begin(named="conversation")
    for number, tier in enumerate(("conversation", "channel", "workspace")):
        clock.advance(1)
        await put(workspace, context, number, tier, tier)
    assert [entry.text for entry in await workspace.memory.brief(context)] == ["channel", "conversation"]
    elsewhere = replace(context, channel="other", thread_id="other")
    assert await workspace.memory.brief(elsewhere) == []
    assert await workspace.memory.brief(replace(context, category=replace(context.category, memory=frozenset()))) == []
    assert await workspace.memory.brief(replace(context, category=replace(context.category, tools=frozenset()))) == []
    for number in range(5):
        clock.advance(1)
        await put(workspace, context, 10 + number, "channel", "x" * 900)
    told = [entry.text for entry in await workspace.memory.brief(context)]
    assert told == ["x" * 900, "x" * 900, "channel", "conversation"], "what fits its budget, the newest first"
    clock.advance(1)
    await put(workspace, context, 20, "channel", "x" * 2_001)
    assert [entry.text for entry in await workspace.memory.brief(context)] == told, "a long one takes nobody's room"
