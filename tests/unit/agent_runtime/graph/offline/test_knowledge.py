"""What the subagents' rules make of a brief and of what was read."""

import json
from typing import Any

import pytest

from agent_runtime.graph.offline.knowledge import claims, research, review, supports, sweep
from agent_runtime.graph.offline.rules import Brief, Exchange
from agent_runtime.model.turn import SUBAGENTS
from agent_runtime.tools.workspace import workspace_tools

URL = "https://example.org/pump"
OFFERED = frozenset({"web_fetch", "workspace_read", "workspace_search", "page_propose", "subagent_run"})


def brief(prompt: str, **changes: Any) -> Brief:
    return Brief(**({"prompt": prompt, "offered": OFFERED, "scopes": frozenset({"subagent.run"})} | changes))


def fetched(text: str) -> Exchange:
    page = {"url": URL, "title": "Pump", "text": text, "fetched_at": "2026-03-02T09:00:00Z"}
    return Exchange(tool="web_fetch", args={"url": URL}, ok=True, text=json.dumps(page))


def test_a_reviewer_reads_the_sources_that_its_brief_names_and_nothing_else() -> None:
    step = review(brief(f"Review:\n- It is blue.\nSources: {URL}, garden, pump-plan@3"), ())
    assert [(call.tool, *call.args.values()) for call in step.calls] == [
        ("web_fetch", URL),
        ("workspace_read", "garden"),
        ("workspace_read", "pump-plan"),
    ]


def test_a_reviewer_tells_claims_that_are_borne_out_from_those_that_are_not() -> None:
    asked = brief(f"Review:\n- The seal was worn in May.\n- It cost 40 euros.\nSources: {URL}")
    said = review(asked, (fetched("The seal of the pump was worn in May. It cost 45 euros."),)).text
    assert "Checked 2 claims against 1 source: 1 borne out." in said
    assert f"- borne out by {URL}: The seal was worn in May." in said
    assert "- NOT in the sources: It cost 40 euros." in said


def test_without_a_source_that_can_be_read_nothing_is_borne_out() -> None:
    gone = Exchange(tool="web_fetch", args={"url": URL}, ok=False, text="404")
    said = review(brief(f"Review:\n- It is so.\nSources: {URL}"), (gone,)).text
    assert "against 0 sources: 0 borne out" in said
    assert "web_fetch was not done: 404" in said


@pytest.mark.parametrize("claim", ["", "-", "!!!"])
def test_a_claim_without_words_is_never_borne_out(claim: str) -> None:
    assert not supports("Anything at all.", claim)


def test_a_text_without_list_items_is_claimed_sentence_by_sentence() -> None:
    assert claims("The seal is worn. The pump is old.") == ["The seal is worn.", "The pump is old."]


def test_a_researcher_searches_where_its_brief_names_no_source() -> None:
    assert [call.tool for call in research(brief("What is worn?"), ()).calls] == ["workspace_search"]
    assert [call.tool for call in research(brief(f"What does {URL} say?"), ()).calls] == ["web_fetch"]
    assert "Nothing was found." in research(brief("?"), ()).text


def test_a_sweep_that_is_asked_for_a_review_has_its_proposals_reviewed_if_it_may() -> None:
    page = {"title": "Pump", "body": "- The seal is worn.", "sources": [URL], "tags": []}
    done = [
        fetched("The seal is worn."),
        Exchange(tool="page_propose", args=page, ok=True, text='{"candidate_id": "c", "title": "Pump"}'),
    ]
    asked = brief(f"Review what {URL} says.", by_fire=True, subagents=frozenset({"reviewer"}))
    (call,) = sweep(asked, done).calls
    assert (call.tool, call.args["name"]) == ("subagent_run", "reviewer")
    assert [one.args["url"] for one in review(brief(call.args["brief"]), ()).calls] == [URL]
    assert claims(call.args["brief"]) == ["The seal is worn."]
    assert sweep(brief(asked.prompt, by_fire=True), done).calls == (), "its category names no reviewer"


def test_no_subagent_has_a_tool_that_writes() -> None:
    nothing: Any = None
    writing = {spec.scope for spec in workspace_tools(nothing) if spec.effect == "write"}
    assert writing
    for category in SUBAGENTS.values():
        assert not category.tools & writing
        assert not category.writes
