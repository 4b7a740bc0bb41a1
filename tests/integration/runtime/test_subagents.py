"""Subagents: within a turn, under what both it and they are granted, safe over crashes, and paid for by the turn."""

import asyncio
import json
from typing import Any

from agent_runtime.workspace.model import PageDraft
from tests.integration.runtime.harness import STATES, Bench
from tests.support.scripted import calls
from tests.support.workspace import put_page

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
    await put_page(bench.runtime.workspace, GARDEN)


async def reports(bench: Bench) -> list[str]:
    return [message.text for turn in await bench.conversation() for message in turn.messages if message.role == "tool"]


async def test_a_reviewer_and_a_researcher_report_with_their_sources_and_their_turn_pays(bench: Bench) -> None:
    await ready(bench, ("reviewer", REVIEW), ("researcher", "When was the pump replaced?"))
    ended = await bench.run(category="brief")
    assert ended.state == STATES.SUCCEEDED
    review, research = await reports(bench)
    assert "2 claims against 1 source: 1 borne out" in review
    assert "borne out by garden: The pump was replaced in March." in review
    assert "NOT in the sources: It cost 50 euros." in review
    assert "rule-based" in review
    assert json.loads(review)["calls"] == ["workspace_read(garden)"], "the author sees what it did"
    assert "- The pump was replaced in March. (garden)" in research
    assert ended.tokens_in > 100, "the scripted model of the turn itself counts nothing"
    assert json.loads(ended.models_json)["offline"] == {"tokens_in": ended.tokens_in, "tokens_out": ended.tokens_out}


async def test_a_subagent_that_its_category_does_not_name_asks_the_author(bench: Bench) -> None:
    await ready(bench, ("reviewer", REVIEW), subagents="")
    turn = await bench.run(category="brief")
    (asked,) = await bench.pending()
    assert (asked.tool, asked.missing_scope) == ("subagent_run", "subagents:reviewer")
    await bench.resolve(asked.interrupt_id, "approve")
    assert (await bench.stopped(turn.turn_id, after=turn.sequence)).state == STATES.SUCCEEDED
    assert "1 borne out" in (await reports(bench))[0]


async def test_what_its_turn_may_not_do_it_asks_for_and_goes_on_in_the_middle_even_after_a_crash(bench: Bench) -> None:
    await ready(bench, ("reviewer", REVIEW), tools='"subagent.run", "workspace.search"')
    turn = await bench.run(category="brief")
    assert turn.state == STATES.INTERRUPTED
    (asked,) = await bench.pending()
    assert (asked.tool, asked.missing_scope) == ("workspace_read", "workspace.read")
    assert "the subagent reviewer" in asked.question
    assert turn.tokens_in > 0, "what it has used by now is on record"
    await bench.crash()
    await bench.resolve(asked.interrupt_id, "approve")
    ended = await bench.stopped(turn.turn_id, after=turn.sequence)
    assert ended.state == STATES.SUCCEEDED
    assert ended.tokens_in > turn.tokens_in
    (report,) = await reports(bench)
    assert "1 borne out" in report
    assert await bench.pending() == []


async def test_a_subagent_that_is_stopped_or_unknown_is_an_answer_to_the_planner(bench: Bench) -> None:
    briefs = ("reviewer", REVIEW * 40), ("plumber", "mend it")
    await ready(bench, *briefs, tokens=500, subagents='"plumber", "reviewer"')
    ended = await bench.run(category="brief")
    stopped, unknown = await reports(bench)
    assert "the limit is 500" in stopped
    assert "use one of: researcher, reviewer" in unknown
    assert ended.tokens_in + ended.tokens_out > 500, "one that is stopped was paid for as well"
    assert (ended.state, "its category allows 500" in ended.error) == (STATES.FAILED, True), "and not begun once more"
