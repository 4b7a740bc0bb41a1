"""What may run: a table of calls, then the rules that hold for every call there could be."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_runtime.model.turn import Category, TurnContext
from agent_runtime.permissions.judge import SCOPES, TIERS, WRITES, approve_once, intersect, judge, needs_proposal

SUMMARY = Category(
    name="catch-up-summary",
    autonomous=True,
    tools=frozenset({"workspace.read", "conversation.read", "memory.read", "memory.put", "summary.propose"}),
    writes=frozenset({"candidate-summary"}),
    memory=frozenset({"conversation", "channel"}),
    channels=frozenset({"neighbour"}),
)
TURN = TurnContext(turn_id="t", thread_id="th", channel="general", agent="agent0", category=SUMMARY, fire_id="f")


@pytest.mark.parametrize(
    ("scope", "effect", "args", "missing"),
    [
        ("workspace.read", "read", {"page": "garden"}, ""),
        ("workspace.search", "read", {"query": "x"}, "workspace.search"),
        ("page.propose", "write", {"title": "t", "body": "b"}, "page.propose"),
        ("no.such", "read", {}, "no.such"),
        ("", "read", {}, ""),
        ("tool:shell", "write", {"command": "ls"}, "tool:shell"),
        ("conversation.read", "read", {}, ""),
        ("conversation.read", "read", {"channel": ""}, ""),
        ("conversation.read", "read", {"channel": "general"}, ""),
        ("conversation.read", "read", {"channel": "neighbour"}, ""),
        ("conversation.read", "read", {"channel": "secret"}, "channel:secret"),
        ("conversation.read", "read", {"channel": ["general"]}, "channel:['general']"),
        ("summary.propose", "write", {"title": "t", "body": "b", "channel": "secret"}, "channel:secret"),
        ("memory.read", "read", {"tier": "channel"}, ""),
        ("memory.read", "read", {"tier": "channel", "channel": "neighbour"}, ""),
        ("memory.read", "read", {"tier": "channel", "channel": "secret"}, "channel:secret"),
        ("memory.read", "read", {"tier": "conversation"}, ""),
        ("memory.read", "read", {"tier": "account"}, "memory:account"),
        ("memory.read", "read", {"tier": "everything"}, "memory:everything"),
        ("memory.read", "read", {"tier": None}, "memory:none named"),
        ("memory.read", "read", {}, "memory:none named"),
        ("memory.put", "write", {"tier": "workspace", "text": "x"}, "memory:workspace"),
    ],
)
def test_the_first_thing_that_is_missing_is_named(scope: str, effect: str, args: dict[str, Any], missing: str) -> None:
    verdict = judge(scope, effect, args, TURN)
    assert verdict.missing_scope == missing
    assert verdict.allowed == (scope in SUMMARY.tools and not missing)
    assert bool(verdict.reason) != verdict.allowed


def test_a_write_of_a_kind_that_is_not_granted_is_refused_though_its_tool_is() -> None:
    quiet = replace(TURN, category=replace(SUMMARY, writes=frozenset()))
    assert (
        judge("summary.propose", "write", {"title": "t", "body": "b"}, quiet).missing_scope
        == "writes:candidate-summary"
    )


@pytest.mark.parametrize(
    ("effect", "missing"),
    [("read", ""), ("external-read", "effect:external-read"), ("write", "effect:write"), ("?", "effect:write")],
)
def test_a_read_only_turn_only_reads(effect: str, missing: str) -> None:
    verdict = judge("memory.put", effect, {"tier": "channel"}, replace(TURN, read_only=True))
    assert verdict.missing_scope == missing


def test_a_scope_that_does_not_exist_is_refused_even_when_a_category_lists_it() -> None:
    odd = replace(TURN, category=replace(SUMMARY, tools=frozenset({"root.everything", "tool:", "tool:ours"})))
    assert not judge("root.everything", "read", {}, odd).allowed
    assert not judge("tool:", "read", {}, odd).allowed
    assert judge("tool:ours", "write", {}, odd).allowed, "a foreign tool that the author listed by name"


@pytest.mark.parametrize(
    ("scope", "effect", "started_by", "autonomous", "halts"),
    [
        ("summary.propose", "write", "fire", False, True),
        ("summary.propose", "write", "fire", True, False),
        ("summary.propose", "write", "author", False, False),
        ("memory.put", "write", "fire", False, False),
        ("workspace.read", "read", "fire", False, False),
        ("tool:fetch", "external-read", "fire", False, False),
        ("tool:odd", "unheard-of", "fire", False, True),
    ],
)
def test_who_halts_for_a_proposal(scope: str, effect: str, started_by: Any, autonomous: bool, halts: bool) -> None:
    context = replace(TURN, started_by=started_by, category=replace(SUMMARY, autonomous=autonomous))
    assert needs_proposal(scope, effect, context) is halts


def test_memory_is_the_one_kind_of_write_that_never_halts_as_the_documents_say() -> None:
    context = replace(TURN, started_by="fire", category=replace(SUMMARY, autonomous=False))
    silent = {scope for scope in SCOPES if not needs_proposal(scope, "write", context)}
    assert silent == {scope for scope in SCOPES if scope.startswith("memory.")}
    page = " ".join((Path(__file__).parents[4] / "docs" / "categories.md").read_text().split())
    assert "stop before their first write, and ask you once for each turn" in page
    assert "Writes into a granted tier of memory never ask" in page


def test_narrowing_acts_at_once_and_widening_does_not() -> None:
    now = replace(
        SUMMARY,
        tools=frozenset({"workspace.read", "page.propose"}), autonomous=False, outside="hide", seconds=10, tokens=10**9,
    )  # fmt: skip
    both = intersect(SUMMARY, now)
    assert both.tools == {"workspace.read"}
    assert (both.autonomous, both.outside, both.seconds, both.tokens) == (False, "hide", 10, SUMMARY.tokens)


def test_a_category_that_is_gone_grants_nothing() -> None:
    left = intersect(SUMMARY, None)
    assert (left.tools, left.writes, left.memory, left.channels, left.autonomous) == (*[frozenset()] * 4, False)


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ({"*"}, {"a.org"}, {"a.org"}),
        ({"a.org"}, {"*"}, {"a.org"}),
        ({"a.org"}, {"b.org"}, set()),
        ({"*"}, {"*"}, {"*"}),
    ],
)
def test_hosts_in_common(one: set[str], other: set[str], both: set[str]) -> None:
    narrowed = intersect(replace(SUMMARY, network=frozenset(one)), replace(SUMMARY, network=frozenset(other)))
    assert narrowed.network == both


NAMES = st.sampled_from(["general", "neighbour", "secret", "", "../x"])


def subsets(values: Any) -> Any:
    return st.frozensets(st.sampled_from(sorted(values)))


CATEGORIES = st.builds(
    Category,
    name=st.just("any"),
    autonomous=st.booleans(),
    silent=st.booleans(),
    outside=st.sampled_from(["ask", "hide"]),
    tools=subsets({*SCOPES, "tool:foreign", "unknown.scope"}),
    writes=subsets(WRITES),
    memory=subsets(TIERS),
    channels=st.frozensets(NAMES),
    seconds=st.integers(1, 1000),
)
CONTEXTS = st.builds(
    TurnContext,
    turn_id=st.just("t"),
    thread_id=st.just("th"),
    channel=st.sampled_from(["general", "secret"]),
    agent=st.just("agent0"),
    category=CATEGORIES,
    read_only=st.booleans(),
    started_by=st.sampled_from(["fire", "author"]),
)
ARGS = st.dictionaries(
    st.sampled_from(["tier", "channel", "url", "text", "origin", "lifecycle", "page"]),
    st.one_of(
        st.sampled_from([*TIERS, "canonical", "general", "secret", "https://example.org/a", ""]),
        st.none(),
        st.integers(),
    ),
)
CALLS = st.tuples(
    st.sampled_from([*SCOPES, "tool:foreign", "tool:other", "unknown.scope", ""]),
    st.sampled_from(["read", "external-read", "write", "?"]),
    ARGS,
)


@given(CONTEXTS, CALLS)
def test_what_is_allowed_is_granted_in_every_part(context: TurnContext, call: tuple[str, str, dict[str, Any]]) -> None:
    scope, effect, args = call
    if not judge(*call, context).allowed:
        return
    category, rule = context.category, SCOPES.get(scope)
    assert scope in category.tools
    assert effect == "read" or not context.read_only
    if rule is None:
        assert scope.startswith("tool:")
        return
    assert not rule.writes or rule.writes in category.writes
    assert not rule.tier or args.get("tier") in category.memory
    bound = rule.channel and (not rule.tier or args["tier"] == "channel")
    assert not bound or (args.get("channel") or context.channel) in {context.channel, *category.channels}


@given(CONTEXTS, CALLS, CATEGORIES)
def test_an_intersection_allows_no_more_than_either(
    context: TurnContext, call: tuple[str, str, dict[str, Any]], now: Category
) -> None:
    both = replace(context, category=intersect(context.category, now))
    if judge(*call, both).allowed:
        assert judge(*call, context).allowed
        assert judge(*call, replace(context, category=now)).allowed


@given(CONTEXTS, CALLS)
def test_an_approval_covers_its_call_and_is_idempotent(
    context: TurnContext, call: tuple[str, str, dict[str, Any]]
) -> None:
    scope = call[0]
    once = approve_once(*call, context)
    if scope in SCOPES and isinstance(call[2].get("channel", ""), str) and call[2].get("tier", "x") is not None:
        verdict = judge(*call, once)
        no_tier = SCOPES[scope].tier and not isinstance(call[2].get("tier"), str)
        no_host = SCOPES[scope].host and not _has_host(call[2].get("url"))
        no_name = SCOPES[scope].subagent and not call[2].get("name")
        assert verdict.allowed or no_tier or no_host or no_name or _unreal(call[2])
    assert approve_once(*call, once) == once
    assert replace(once, category=context.category, read_only=context.read_only) == context, "nothing else changes"


def _has_host(url: object) -> bool:
    return isinstance(url, str) and bool(urlsplit(url).hostname)


def _unreal(args: dict[str, Any]) -> bool:
    return args.get("tier") not in TIERS or not isinstance(args.get("channel") or "", str)


@given(CONTEXTS, CALLS)
def test_an_approval_of_what_is_allowed_widens_nothing(
    context: TurnContext, call: tuple[str, str, dict[str, Any]]
) -> None:
    if judge(*call, context).allowed:
        assert approve_once(*call, context) == context
