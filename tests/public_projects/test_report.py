"""What was recorded of public projects is what docs/reference/public-projects.md shows, and nothing came that `graph check` had not said."""

import json
import urllib.request
from typing import Any

import pytest

from tests.public_projects.__main__ import PLAN
from tests.public_projects.report import EARLIER, PAGE, page_with, promise, read_results, summary
from tests.public_projects.stubs import Plan, Stubs, answer, fill, read_request, serving_stubs

CHECK: dict[str, Any] = {
    "tools": [{"name": "search"}], "made_tools": [], "makes_tools": [], "asks": [], "stops": [], "calls_server": [], "catches": [], "context_schema": None, "ignored": {}, "unset": [],
    "unguardable": [], "prompt_goes_to": "messages", "input_schema": {"required": [], "properties": {}},
    "store": {"ignored": {}}, "problem": "",
}  # fmt: skip


def seen(kind: str, about: str, **more: Any) -> dict[str, Any]:
    question = {"kind": kind, "about": about, "options": ["--approve"], "said": ""}
    return {"loads": True, "check": CHECK, "asked": {"outcomes": ["succeeded"], "questions": [question]}} | more


def test_the_page_shows_what_was_recorded() -> None:
    text = PAGE.read_text()
    assert page_with(text, read_results(), PLAN["not_run"]) == text, "run: python -m tests.public_projects table"


def test_the_readme_promises_what_was_recorded() -> None:
    text = " ".join((PAGE.parents[2] / "README.md").read_text().split())
    assert promise(read_results()) in text


def test_twenty_projects_ran_as_check_had_said() -> None:
    found = read_results()
    planned = {row["name"] for row in PLAN["row"]}
    assert {one["name"] for one in found} <= planned
    assert {one["name"]: one["seen"]["surprises"] for one in found if one["seen"]["surprises"]} == {}
    assert sum(one["seen"]["loads"] and "succeeded" in one["seen"]["fires"] for one in found) >= 20


def test_no_project_asks_more_than_before() -> None:
    counts = {one["name"]: one["seen"]["questions"] for one in read_results()}
    before = json.loads(EARLIER.read_text())
    assert not {name for name, count in before.items() if counts[name] > count}
    assert sum(counts[name] for name in before) < sum(before.values()) / 8
    assert f"| {counts['memory-agent']} (before: {before['memory-agent']}) |" in PAGE.read_text()


@pytest.mark.parametrize(
    ("found", "surprise"),
    [
        (seen("permission", "search"), ""),
        (seen("permission", "send"), "send asked, and was not listed"),
        (seen("question", "Sure?"), "it asked Sure?, and check named no node that asks"),
        (seen("question", "Sure?", check=CHECK | {"asks": ["node"]}), ""),
        (
            seen("permission", "search", killed={"outcomes": ["failed: x"], "questions": [], "stub": "search"}),
            "failed: x",
        ),
        (
            seen(
                "permission",
                "search",
                check=CHECK | {"shared_names": ["search"]},
                killed={
                    "outcomes": ["succeeded"],
                    "questions": [{"kind": "permission", "about": "search", "options": ["--approve"], "said": ""}],
                    "stub": "search",
                },
            ),
            "",
        ),
        (seen("permission", "search", trouble="it did not start"), "trouble: it did not start"),
    ],
)
def test_what_check_did_not_say_is_a_surprise(found: dict[str, Any], surprise: str) -> None:
    assert summary(found)["surprises"] == ([surprise] if surprise else [])


@pytest.mark.parametrize("protocol", ["openai", "anthropic"])
def test_a_model_follows_its_plan_in_both_protocols(protocol: str) -> None:
    schema = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": "Look it up."}]}
    if protocol == "openai":
        asked["tools"] = [{"type": "function", "function": {"name": "search", "parameters": schema}}]
        made = {"role": "assistant", "tool_calls": [{"function": {"name": "search"}}]}
    else:
        asked["tools"] = [{"name": "search", "input_schema": schema}]
        made = {"role": "assistant", "content": [{"type": "tool_use", "name": "search", "input": {}}]}
    plan = Plan(calls=[("search", {"query": "tea"})])
    assert answer(read_request(asked), plan).calls == [("search", {"query": "tea"})]
    asked["messages"].append(made)
    assert answer(read_request(asked), plan).text == "I read 1 requests, the first: Look it up."


def test_a_form_is_filled_by_its_schema() -> None:
    item = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
    schema = {
        "properties": {"all": {"type": "array", "items": {"$ref": "#/$defs/item"}}},
        "required": ["all"],
        "$defs": {"item": item},
    }
    assert fill(schema, {}) == {"all": [{"id": 1}]}
    assert fill(schema, {"id": 7}) == {"all": [{"id": 7}]}


def asked_of(stubs: Stubs, path: str, body: dict[str, Any]) -> str:
    request = urllib.request.Request(
        f"{stubs.root}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as answered:
        return str(answered.read().decode())


def test_the_stubs_answer_in_anthropics_protocol_and_as_a_search() -> None:
    schema = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
    asked = {"messages": [{"role": "user", "content": "Look."}], "tools": [{"name": "search", "input_schema": schema}]}
    with serving_stubs() as stubs:
        stubs.plan = Plan(calls=[("search", {"query": "tea"})])
        whole = json.loads(asked_of(stubs, "/v1/messages", asked))
        events = asked_of(stubs, "/v1/messages", asked | {"stream": True})
        found = json.loads(asked_of(stubs, "/api.tavily.com/search", {"query": "tea"}))
    assert (whole["stop_reason"], whole["content"][0]["input"]) == ("tool_use", {"query": "tea"})
    assert [line[7:] for line in events.splitlines() if line.startswith("event: ")] == [
        "message_start", "content_block_start", "content_block_delta", "content_block_delta", "content_block_stop",
        "message_delta", "message_stop",
    ]  # fmt: skip
    assert found["results"][0]["content"] == "About tea."
    assert stubs.count("model") == 2
