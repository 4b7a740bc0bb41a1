"""Subagents: within a turn, under what both it and they are granted, safe over crashes, and paid for by the turn."""

import asyncio
import json
from typing import Any

from agent_runtime.world.model import PageDraft
from tests.integration.runtime.harness import STATES, Bench
from tests.support.scripted import calls

GARDEN = PageDraft(page_id="garden", title="Garden", body="The pump was replaced in March. It cost 40 euros.")
TOOLS = '"subagent.run", "workspace.read", "workspace.search"'
CATEGORY = """
name = "brief"
autonomous = true
[scopes]
tools = [{tools}]
subagents = [{subagents}]
[limits]
tool_calls = {tool_calls}
tokens = {tokens}
"""
REVIEW = "Review:\n- The pump was replaced in March.\n- It cost 50 euros.\nSources: garden"


async def ready(bench: Bench, *briefs: tuple[str, str], **changes: Any) -> None:
    """Let fires of the category start these subagents, one message's calls for all."""
    given = {"tools": TOOLS, "subagents": '"researcher", "reviewer"', "tool_calls": 20, "tokens": 100_000} | changes
    await asyncio.to_thread((bench.home.categories / "brief.toml").write_text, CATEGORY.format(**given))
    bench.script["go"] = [calls(*(("subagent_run", {"name": name, "brief": brief}) for name, brief in briefs))]
    await bench.runtime.world.put_page(GARDEN)


async def reports(bench: Bench) -> list[str]:
    return [message.text for turn in await bench.conversation() for message in turn.messages if message.role == "tool"]


async def test_a_reviewer_says_what_the_sources_bear_and_what_not(bench: Bench) -> None:
    await ready(bench, ("reviewer", REVIEW))
    ended = await bench.run(category="brief")
    assert ended.state == STATES.SUCCEEDED
    (report,) = await reports(bench)
    assert "2 claims against 1 source: 1 borne out" in report
    assert "borne out by garden: The pump was replaced in March." in report
    assert "NOT in the sources: It cost 50 euros." in report
    assert "rule-based" in report
    assert json.loads(report)["calls"] == ["workspace_read(garden)"], "the author sees what it did"


async def test_a_researcher_finds_and_reports_with_its_source(bench: Bench) -> None:
    await ready(bench, ("researcher", "When was the pump replaced?"))
    await bench.run(category="brief")
    (report,) = await reports(bench)
    assert "- The pump was replaced in March. (garden)" in report


async def test_what_a_subagent_uses_counts_for_its_turn(bench: Bench) -> None:
    await ready(bench, ("reviewer", REVIEW), ("researcher", "the pump"))
    ended = await bench.run(category="brief")
    assert ended.tokens_in > 100, "the scripted model of the turn itself counts nothing"


async def test_a_subagent_that_its_category_does_not_name_asks_the_author(bench: Bench) -> None:
    await ready(bench, ("reviewer", REVIEW), subagents="")
    turn = await bench.run(category="brief")
    (asked,) = await bench.pending()
    assert (asked.tool, asked.missing_scope) == ("subagent_run", "subagents:reviewer")
    await bench.resolve(asked.interrupt_id, "approve")
    assert (await bench.stopped(turn.turn_id, after=turn.sequence)).state == STATES.SUCCEEDED
    assert "1 borne out" in (await reports(bench))[0]


async def test_what_its_turn_may_not_do_it_asks_its_turns_author_for_and_goes_on_in_the_middle(bench: Bench) -> None:
    await ready(bench, ("reviewer", REVIEW), tools='"subagent.run", "workspace.search"')
    turn = await bench.run(category="brief")
    assert turn.state == STATES.INTERRUPTED
    (asked,) = await bench.pending()
    assert (asked.tool, asked.missing_scope) == ("workspace_read", "workspace.read")
    assert "the subagent reviewer" in asked.question
    assert turn.tokens_in > 0, "what it has used by now is on record"
    await bench.resolve(asked.interrupt_id, "approve")
    ended = await bench.stopped(turn.turn_id, after=turn.sequence)
    assert ended.state == STATES.SUCCEEDED
    assert ended.tokens_in > turn.tokens_in
    assert "1 borne out" in (await reports(bench))[0]
    assert await bench.pending() == []


async def test_a_researcher_writes_nothing_even_where_its_turn_may(bench: Bench) -> None:
    """Its own grant bounds it: the offline researcher has no tool that writes, whatever the turn's category grants."""
    await ready(bench, ("researcher", "then remember: it\npropose page: Garden: gone"), tools=f'{TOOLS}, "memory.put"')
    await bench.run(category="brief")
    assert await bench.runtime.world.list_candidates() == []


async def test_a_subagent_over_its_tokens_is_stopped_and_its_turn_is_told(bench: Bench) -> None:
    await ready(bench, ("reviewer", REVIEW * 40), tokens=500)
    await bench.run(category="brief")
    assert any("may use 500" in report for report in await reports(bench))


async def test_after_a_crash_amid_a_subagent_the_turn_goes_on_where_it_was(bench: Bench) -> None:
    await ready(bench, ("reviewer", REVIEW), tools='"subagent.run", "workspace.search"')
    turn = await bench.run(category="brief")
    await bench.crash()
    (asked,) = await bench.pending()
    await bench.resolve(asked.interrupt_id, "approve")
    ended = await bench.stopped(turn.turn_id, after=turn.sequence)
    assert ended.state == STATES.SUCCEEDED
    assert len(await reports(bench)) == 1


async def test_an_unknown_subagent_is_an_answer_to_the_planner(bench: Bench) -> None:
    await ready(bench, ("plumber", "mend it"), subagents='"plumber"')
    assert (await bench.run(category="brief")).state == STATES.SUCCEEDED
    assert "there are researcher, reviewer" in (await reports(bench))[0]
