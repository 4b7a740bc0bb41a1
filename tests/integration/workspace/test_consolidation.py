"""Memory consolidation on the offline model: what is merged, what is forgotten, and what is left alone."""

from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection

from agent_runtime.model.turn import TurnContext
from agent_runtime.workspace import memory as entries
from agent_runtime.workspace.memory import Shelf
from agent_runtime.workspace.workspace import Workspace
from tests.integration.workspace.conftest import Agent, Begin, Told, call
from tests.support.clock import ManualClock
from turnkeeper.storage.database import Database

NOW = datetime(2026, 3, 2, 9, tzinfo=UTC)


async def remember(
    workspace: Workspace, clock: ManualClock, context: TurnContext, *texts: str, tier: str = "channel"
) -> None:
    for text in texts:
        clock.advance(1)
        key = f"k{clock.now().timestamp()}"
        await workspace.memory.put(call(context, hash((tier, text))), tier=tier, text=text, key=key, channel="")


async def texts(workspace: Workspace, context: TurnContext, tier: str = "channel") -> list[str]:
    return [entry.text for entry in (await workspace.memory.read(call(context, 0), tier, "")).entries]


async def test_duplicates_are_merged_and_what_is_out_of_date_is_forgotten(
    agent: Agent, workspace: Workspace, begin: Begin, clock: ManualClock, told: Told
) -> None:
    before = begin("before", named="conversation")
    await remember(
        workspace, clock, before,
        "The pump was replaced in March, by the new gardener.",
        "The pump costs 40 euros a year, says the shop",
        "Release date: 2026-03-01",
        "The bridge is closed until 2026-03-01.",
        "The bridge is open until 2026-03-02.",
        "the pump was replaced in march by the gardener",
        "The pump costs 45 euros a year, says the shop",
        "Release date: 2026-04-01",
    )  # fmt: skip
    await remember(workspace, clock, before, "the pump was replaced in march by the gardener", tier="workspace")
    context = begin("tidy", named="memory-consolidation", prompt="Tidy up.", nominal_at=NOW)
    await agent.run(context)
    assert sorted(await texts(workspace, before)) == [
        "Release date: 2026-04-01",
        "The bridge is open until 2026-03-02.",
        "The pump costs 40 euros a year, says the shop",
        "The pump costs 45 euros a year, says the shop",
        "The pump was replaced in March, by the new gardener.",
    ]
    assert len(await texts(workspace, before, "workspace")) == 1, "another tier's entry is no duplicate"
    assert agent.text == "", "a silent fire leaves nothing in the conversation"
    wrote = [fields for event, fields in told if event == "agent.wrote" and fields["turn_id"] == "tidy"]
    assert sorted(fields["scope"] for fields in wrote) == ["memory.forget"] * 3 + ["memory.update"]
    assert not any("pump" in str(fields) for fields in wrote), "the log names entries and does not quote them"


async def test_a_second_fire_finds_nothing_left_to_do(
    agent: Agent, workspace: Workspace, begin: Begin, clock: ManualClock
) -> None:
    before = begin("before", named="conversation")
    await remember(
        workspace, clock, before, "Buckets are blue and tall", "Buckets are tall and blue.", "Unlike the others"
    )
    await agent.run(begin("one", named="memory-consolidation", prompt="Tidy up.", nominal_at=NOW))
    assert "memory_forget" in agent.calls
    left = await texts(workspace, before)
    await agent.run(begin("two", named="memory-consolidation", prompt="Tidy up.", nominal_at=NOW))
    assert set(agent.calls) == {"memory_read"}
    assert await texts(workspace, before) == left == ["Unlike the others", "Buckets are tall and blue."]


async def test_what_an_author_wrote_stays_and_its_copies_go(
    agent: Agent, workspace: Workspace, begin: Begin, clock: ManualClock
) -> None:
    before = begin("before", named="conversation")
    shelf = Shelf(tier="channel", owner="general")
    await workspace.memory.author_puts(shelf, key="tone", text="Write in plain words until 2020-01-01.")
    await remember(workspace, clock, before, "write in plain words, until 2020-01-01")
    await agent.run(begin("tidy", named="memory-consolidation", prompt="Tidy up.", nominal_at=NOW))
    assert await texts(workspace, before) == ["Write in plain words until 2020-01-01."]


async def test_entries_that_nobody_touched_go_after_the_days_that_the_prompt_names(
    agent: Agent, workspace: Workspace, begin: Begin, clock: ManualClock
) -> None:
    before = begin("before", named="conversation")
    await remember(workspace, clock, before, "an old thing")
    clock.advance(86_400 * 40)
    await remember(workspace, clock, before, "a new thing")
    named = {"named": "memory-consolidation", "nominal_at": clock.now()}
    await agent.run(begin("mild", prompt="Tidy up.", **named))
    assert len(await texts(workspace, before)) == 2
    await agent.run(begin("strict", prompt="Forget what is older than 4 weeks.", **named))
    assert await texts(workspace, before) == ["a new thing"]


async def test_what_was_refused_is_said_in_words(
    agent: Agent, workspace: Workspace, begin: Begin, clock: ManualClock
) -> None:
    before = begin("before", named="conversation")
    await remember(workspace, clock, before, "Buckets are blue and tall", "Buckets are tall and blue.")
    context = begin("tidy", named="memory-consolidation", prompt="Tidy up.", nominal_at=NOW, read_only=True)
    state = await agent.run(context)
    (asked,) = state["__interrupt__"]
    assert asked.value["tool"] == "memory_forget"
    await agent.run(context, answers={asked.id: "leave them"})
    assert "memory_forget was not done: leave them" in agent.text
    assert "rule-based" in agent.text
    assert len(await texts(workspace, before)) == 2


async def test_five_hundred_entries_are_tidied_within_the_limits_of_one_turn(
    agent: Agent, workspace: Workspace, begin: Begin, database: Database
) -> None:
    fill(database, begin("before", named="conversation"), 500)
    context = begin("tidy", named="memory-consolidation", prompt="Tidy up.", nominal_at=NOW)
    await agent.run(context)
    readings = [message.text for message in agent.said if getattr(message, "name", "") == "memory_read"]
    assert max(map(len, readings)) < 20_000
    assert len(agent.calls) <= context.category.tool_calls
    assert agent.calls.count("memory_forget") == 25


def fill(database: Database, context: TurnContext, number: int) -> None:
    """Put entries of which each says what another does, all in one transaction."""
    shelf = Shelf(tier="channel", owner=context.channel)

    def work(connection: Connection) -> None:
        for each in range(number):
            text = f"Bed {each // 2} holds carrots and is watered daily."
            at = NOW - timedelta(seconds=number - each)
            entries.put(connection, context, shelf, key=f"bed-{each}", text=text, at=at, new_id=f"m-{each}")

    database.submit(work).result()
