"""The default graph on the offline model: each shipped category's job, by ordinary tool calls."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver

from agent_runtime.graph.agent.default import build_graph, system_prompt
from agent_runtime.permissions.categories import Categories
from agent_runtime.tools.agents import agent_tools
from agent_runtime.tools.call import GaveUp
from agent_runtime.tools.workspace import workspace_tools
from agent_runtime.workspace.model import PageDraft
from agent_runtime.workspace.workspace import Workspace
from tests.integration.workspace.conftest import Agent, AskingGuard, Begin, call
from tests.support.clock import ManualClock
from tests.support.workspace import list_candidates, put_page
from turnkeeper.config.home import Home
from turnkeeper.config.settings import ModelSettings, Settings
from turnkeeper.errors import InvalidInput

GARDEN = PageDraft(
    page_id="garden",
    title="Garden plan",
    body="The compost heap is turned on Mondays. The pump was replaced in March. Nobody likes slugs.",
)


async def test_a_summary_is_proposed_from_what_is_new(
    agent: Agent, workspace: Workspace, begin: Begin, say: Callable[..., None], clock: ManualClock
) -> None:
    await put_page(workspace, GARDEN)
    begin("earlier", started_by="author", named="conversation")
    say("earlier", "author", "The compost team meets on Tuesday.")
    clock.advance(60)
    context = begin("now", prompt="Summarise the garden.", nominal_at=datetime(2026, 3, 2, 9, tzinfo=UTC), stands_for=3)
    await agent.run(context)
    assert agent.calls == [
        "conversation_read", "memory_read", "workspace_search", "workspace_read", "summary_propose",
    ]  # fmt: skip
    (candidate,) = await list_candidates(workspace)
    assert candidate.title == "Catch-up for general, 2026-03-02 09:00 UTC"
    assert "The compost team meets on Tuesday." in candidate.body
    assert "Garden plan (garden): " in candidate.body
    assert (candidate.origin, candidate.lifecycle, candidate.turn_id) == ("agent-produced", "candidate", "now")
    for part in ("1 new message", "1 page (garden)", candidate.candidate_id, "stands for 3 missed fires", "rule-based"):
        assert part in agent.text


async def test_with_nothing_new_a_fire_says_and_proposes_nothing(
    agent: Agent, workspace: Workspace, begin: Begin, end: Callable[..., None], clock: ManualClock
) -> None:
    await put_page(workspace, GARDEN)
    clock.advance(60)
    await agent.run(begin("first", prompt="Summarise the garden."))
    assert agent.text
    end("first")
    clock.advance(60)
    await agent.run(begin("second", prompt="Summarise the garden."))
    assert agent.text == ""
    assert len(await list_candidates(workspace)) == 1


async def test_a_summary_tells_what_was_remembered_since_the_last_one_and_not_before(
    agent: Agent,
    workspace: Workspace,
    begin: Begin,
    end: Callable[..., None],
    say: Callable[..., None],
    clock: ManualClock,
) -> None:
    talk = begin("talk", started_by="author", named="conversation")
    bodies = []
    for number, word in enumerate(("first", "second")):
        clock.advance(60)
        say("talk", "author", f"The {word} thing was said.", position=number)
        await workspace.memory.put(call(talk, number), tier="channel", text=f"the {word} note", key="", channel="")
        clock.advance(60)
        await agent.run(begin(f"fire-{word}", prompt="Summarise.", task_name="daily"))
        end(f"fire-{word}")
        bodies.append((await list_candidates(workspace))[0].body)
    assert "remembered: the first note" in bodies[0]
    assert "The second thing was said." in bodies[1]
    assert "remembered: the second note" in bodies[1]
    assert "first" not in bodies[1]


async def test_two_tasks_in_a_channel_do_not_summarise_each_other(
    agent: Agent,
    workspace: Workspace,
    begin: Begin,
    end: Callable[..., None],
    say: Callable[..., None],
    clock: ManualClock,
) -> None:
    for number in range(6):
        clock.advance(60)
        turn_id = f"turn-{number}"
        await agent.run(begin(turn_id, prompt="Summarise.", task_name=("one", "other")[number % 2]))
        if agent.text:
            say(turn_id, "agent", agent.text)
        end(turn_id)
    assert [one.task_name for one in await list_candidates(workspace)] == ["other", "one"], (
        "each its first, and no more"
    )


async def test_a_page_that_changed_is_new(
    agent: Agent, workspace: Workspace, begin: Begin, end: Callable[..., None], clock: ManualClock
) -> None:
    await agent.run(begin("first", prompt="Summarise the garden."))
    end("first")
    clock.advance(60)
    await put_page(workspace, GARDEN)
    await agent.run(begin("second", prompt="Summarise the garden."))
    assert "1 page (garden)" in agent.text


async def test_a_call_past_the_category_interrupts_and_runs_once_approved(
    agent: Agent, workspace: Workspace, begin: Begin
) -> None:
    context = begin(prompt="Summarise the garden, then remember: the pump was replaced")
    state = await agent.run(context)
    (asked,) = state["__interrupt__"]
    assert asked.value["missing_scope"] == "memory.put"
    assert asked.value["args"] == {"tier": "channel", "text": "the pump was replaced"}
    assert len(await list_candidates(workspace)) == 1, "what is within the category went on before"
    await agent.run(context, answers={asked.id: "approve"})
    assert "Remembered it in the channel memory." in agent.text
    recalled = await workspace.memory.read(_call(context), "channel", "")
    assert [entry.text for entry in recalled.entries] == ["the pump was replaced"]


async def test_a_refused_call_has_no_effect_is_reported_and_not_repeated(
    agent: Agent, workspace: Workspace, begin: Begin
) -> None:
    context = begin(prompt="Summarise the garden, then remember: the pump was replaced")
    state = await agent.run(context)
    await agent.run(context, answers={state["__interrupt__"][0].id: "not now"})
    assert "memory_put was not done: not now" in agent.text
    assert agent.calls.count("memory_put") == 1
    assert (await workspace.memory.read(_call(context), "channel", "")).entries == ()


@pytest.mark.parametrize(
    ("prompt", "calls", "says"),
    [
        ("remember: buckets are blue", ["memory_put"], "Remembered in the channel memory"),
        ("search: compost", ["workspace_search"], "garden: Garden plan: The compost heap"),
        ("read: garden", ["workspace_read"], "The pump was replaced in March."),
        ("read: nosuch", ["workspace_read"], "workspace_read was not done: no page 'nosuch'"),
        (
            "propose page: Pump log: It was\nreplaced.",
            ["page_propose"],
            "Proposed page “Pump log” for you to accept or reject (c-",
        ),
        (
            "When was the pump replaced?",
            ["workspace_search", "conversation_read", "workspace_read"],
            "replaced in March",
        ),
        ("Tell me of zeppelins", ["workspace_search", "conversation_read"], "Nothing about zeppelins"),
    ],
)
async def test_the_author_is_answered(
    agent: Agent, workspace: Workspace, begin: Begin, prompt: str, calls: list[str], says: str
) -> None:
    await put_page(workspace, GARDEN)
    await agent.run(begin(prompt=prompt, named="conversation", started_by="author"))
    assert agent.calls == calls
    assert says in agent.text
    assert "rule-based" in agent.text


async def test_a_hidden_tool_is_not_offered_and_that_is_said(
    agent: Agent, begin: Begin, home: Home, categories: Categories
) -> None:
    (home.categories / "closed.toml").write_text('name = "closed"\noutside = "hide"\n')
    await agent.run(begin(prompt="remember: this", category=categories.get("closed"), started_by="author"))
    assert agent.calls == []
    assert "memory_put is not offered" in agent.text


async def test_a_replay_makes_equal_calls_with_equal_ids(
    agent: Agent, begin: Begin, home: Home, workspace: Workspace
) -> None:
    context = begin(prompt="Summarise the garden.")
    await agent.run(context)
    specs = workspace_tools(workspace)
    again = Agent(
        build_graph(Settings(), home, specs, middleware=[AskingGuard(specs)], checkpointer=InMemorySaver(), environ={})
    )
    await again.run(context)
    assert ids(again.said) == ids(agent.said)
    assert all(message.usage_metadata["total_tokens"] > 0 for message in agent.said if isinstance(message, AIMessage))


def ids(said: list[Any]) -> list[str]:
    return [made["id"] for message in said if isinstance(message, AIMessage) for made in message.tool_calls] + [
        message.id for message in said if isinstance(message, AIMessage)
    ]


async def test_the_delay_waits_on_the_clock(home: Home, workspace: Workspace, begin: Begin, clock: ManualClock) -> None:
    specs, environ = workspace_tools(workspace), {"TURNKEEPER_OFFLINE_DELAY_S": "2"}
    slow = Agent(
        build_graph(
            Settings(),
            home,
            specs,
            middleware=[AskingGuard(specs)],
            checkpointer=InMemorySaver(),
            clock=clock,
            environ=environ,
        )
    )
    running = asyncio.create_task(slow.run(begin(prompt="remember: x", named="conversation", started_by="author")))
    for _ in range(1000):
        if running.done():
            break
        clock.advance(2)
        await asyncio.wait({running}, timeout=0.001)
    assert (await running)["messages"]
    assert clock.monotonic() >= 4, "two answers"


@pytest.mark.parametrize("value", ["soon", "-1", "nan", "1e9"])
def test_a_bad_delay_is_refused(home: Home, value: str) -> None:
    with pytest.raises(InvalidInput, match="TURNKEEPER_OFFLINE_DELAY_S"):
        build_graph(
            Settings(), home, [], middleware=[], checkpointer=None, environ={"TURNKEEPER_OFFLINE_DELAY_S": value}
        )


def test_a_model_that_cannot_be_made_is_one_clear_error(home: Home) -> None:
    settings = Settings(model=ModelSettings(name="nosuch:model"))
    with pytest.raises(InvalidInput, match="nosuch:model"):
        build_graph(settings, home, [], middleware=[], checkpointer=None, environ={})


def test_keys_that_others_can_read_are_refused(home: Home) -> None:
    home.environment.write_text("OPENAI_API_KEY=x\n")
    home.environment.chmod(0o644)
    settings = Settings(model=ModelSettings(name="openai:gpt-5"))
    with pytest.raises(InvalidInput, match="can be read by others"):
        build_graph(settings, home, [], middleware=[], checkpointer=None, environ={})


def _call(context: Any) -> Any:
    from tests.integration.workspace.conftest import call

    return call(context, 99)


@pytest.mark.parametrize("prompt", ["What does the handbook say?", "read: the Station handbook", "read: handbook-1"])
async def test_a_page_is_found_by_its_title(agent: Agent, workspace: Workspace, begin: Begin, prompt: str) -> None:
    body = "The compost heap is turned on Mondays. Nobody likes slugs."
    await put_page(workspace, PageDraft(page_id="handbook-1", title="The station handbook", body=body))
    await agent.run(begin("asked", started_by="author", named="conversation", prompt=prompt))
    assert "The station handbook (handbook-1):" in agent.text
    assert "compost heap" in agent.text


async def test_of_two_pages_of_one_title_the_ids_are_named(agent: Agent, workspace: Workspace, begin: Begin) -> None:
    for page_id in ("one", "two"):
        await put_page(workspace, PageDraft(page_id=page_id, title="Twins", body="b"))
    await agent.run(begin("asked", started_by="author", named="conversation", prompt="read: Twins"))
    assert "2 pages are titled 'Twins': one, two" in agent.text


async def test_a_title_is_found_in_any_case(agent: Agent, workspace: Workspace, begin: Begin) -> None:
    await put_page(workspace, PageDraft(page_id="pump", title="Übersicht der Pumpe", body="Sie läuft."))
    await agent.run(begin("asked", started_by="author", named="conversation", prompt="read: übersicht  DER pumpe"))
    assert "Sie läuft." in agent.text


@pytest.mark.parametrize(
    "named",
    ["catch-up-summary", "folder-report", "loop", "memory-consolidation", "re-validation-walk", "research-sweep"],
)
async def test_a_prompt_that_orders_a_failure_ends_the_turn_of_each_shipped_category_as_failed(
    begin: Begin, named: str
) -> None:
    context = begin("now", named=named, prompt="Look around.\nfail: the server is away", task_name="digest")
    assert "call turn_fail with the reason" in system_prompt(context)
    nothing: Any = None
    specs = [spec for spec in agent_tools(nothing) if spec.scope in context.category.tools]
    with pytest.raises(GaveUp, match="the server is away"):
        await Agent(build_graph(Settings(), nothing, specs, middleware=[AskingGuard(specs)], checkpointer=None)).run(
            context
        )
