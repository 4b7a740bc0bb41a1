"""What past turns would have met: judged as the guard judges, and the least category that is enough for them."""

import tomllib
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from agent_runtime.cli.rehearse.rehearsal import Judged, PastCall, PastTurn, ToolFacts, rehearse, to_toml
from agent_runtime.model.turn import GRANTS, Category
from agent_runtime.permissions.judge import SCOPES, TIERS, WRITES
from agent_runtime.permissions.lint import lint

AT = datetime(2026, 3, 2, 9, tzinfo=UTC)
WRITERS = {scope for scope, rule in SCOPES.items() if rule.writes} | {"memory.put", "memory.update", "memory.forget"}
TOOLS = {
    scope.replace(".", "_"): ToolFacts(scope=scope, effect="write" if scope in WRITERS else "read") for scope in SCOPES
}
NONE = Category(name="none")


def call(tool: str, /, **args: Any) -> PastCall:
    return PastCall(at=AT, tool=tool, args=args)


def turn(*calls: PastCall, **changes: Any) -> PastTurn:
    usual = PastTurn(
        turn_id="turn-1", task_name="digest", channel="main", by_fire=True, read_only=False, calls=calls, tokens=100,
        seconds=2.5,
    )  # fmt: skip
    return replace(usual, **changes)


def met(category: Category, *turns: PastTurn) -> list[tuple[str, str]]:
    return [(one.would, one.missing) for one in rehearse(category, turns, TOOLS).judged]


def least(*turns: PastTurn) -> Category:
    return rehearse(NONE, turns, TOOLS).least


def test_a_call_outside_the_category_would_ask_for_what_is_missing() -> None:
    category = Category(name="x", autonomous=True, tools=frozenset({"memory.read", "summary.propose"}))
    calls = [call("memory_read", tier="channel"), call("summary_propose"), call("workspace_read", page="a")]
    assert met(category, turn(*calls)) == [
        ("ask", "memory:channel"), ("ask", "writes:candidate-summary"), ("ask", "workspace.read"),
    ]  # fmt: skip


def test_a_category_that_is_not_autonomous_would_propose_once_a_turn() -> None:
    category = Category(name="x", tools=frozenset({"page.propose"}), writes=frozenset({"candidate-page"}))
    proposing = turn(call("page_propose"), call("page_propose"))
    assert met(category, proposing, proposing) == [("propose", "autonomous"), ("pass", "")] * 2
    assert met(category, replace(proposing, by_fire=False)) == [("pass", "")] * 2, "an author's turn never halts"


def test_calls_past_the_limit_would_be_refused_and_turns_past_theirs_end_early() -> None:
    category = Category(name="x", tools=frozenset({"workspace.read"}), tool_calls=1, tokens=99, seconds=2)
    judged = rehearse(category, [turn(call("workspace_read"), call("workspace_read"))], TOOLS)
    assert [one.would for one in judged.judged] == ["pass", "refuse"]
    assert [(one.limit, one.seen, one.allowed) for one in judged.overruns] == [("tokens", 100, 99), ("seconds", 3, 2)]


def test_a_turn_that_waited_for_its_author_says_nothing_about_time() -> None:
    waited = turn(seconds=None)
    assert rehearse(replace(NONE, seconds=1), [waited], TOOLS).overruns == ()
    assert least(waited).seconds == 1


def test_the_least_is_what_the_calls_needed() -> None:
    found = least(
        turn(call("memory_read", tier="channel", channel="other"), call("memory_put", tier="account")),
        turn(call("summary_propose"), call("frobnicate"), call("workspace_read"), tokens=300, seconds=7.2),
    )
    assert found == Category(
        name="none", autonomous=True, seconds=8, tool_calls=3, tokens=300,
        tools=frozenset({"memory.read", "memory.put", "summary.propose", "tool:frobnicate", "workspace.read"}),
        writes=frozenset({"candidate-summary"}), memory=frozenset({"channel", "account"}), channels=frozenset({"other"}),
    )  # fmt: skip


def test_what_no_category_can_grant_is_told_and_not_granted() -> None:
    hopeless = [
        turn(call("page_propose"), read_only=True),
        turn(
            call("memory_read", tier="mine"), call("memory_read"), call("", x=1), call("conversation_read", channel=7)
        ),
        turn(call("conversation_read", channel="x" * 300), call("conversation_read", channel="\ud800")),
    ]
    judged = rehearse(NONE, hopeless, TOOLS)
    assert {(one.would, one.hopeless) for one in judged.judged} == {("ask", True)}
    assert [getattr(judged.least, field) for field in GRANTS] == [frozenset()] * len(GRANTS)


def test_a_request_for_permission_is_the_call_that_it_asks_for() -> None:
    asks = call("permission_request", tool="page_propose", args={"title": "t"}, why="because")
    (one,) = rehearse(NONE, [turn(asks)], TOOLS).judged
    assert (one.call.tool, one.scope, one.missing) == ("page_propose", "page.propose", "page.propose")


def test_what_is_copied_from_the_proposal_makes_no_contradiction() -> None:
    proposed = Category(name="x", description='a "quoted"\nline\x9b', silent=True, outside="hide")
    quiet = rehearse(proposed, [turn(call("workspace_read"))], TOOLS).least
    assert (quiet.description, quiet.outside, quiet.silent) == (proposed.description, "hide", False)
    assert rehearse(proposed, [turn(call("page_propose"))], TOOLS).least.silent


CHANNELS = st.sampled_from(["main", "other", 'odd "one"\n\x7f\u202e\\', "\U0001f331"])
ARGS = st.fixed_dictionaries(
    {}, optional={"tier": st.sampled_from([*TIERS, "mine"]), "channel": CHANNELS, "url": st.sampled_from(["", "https://a.example/x"])}
)  # fmt: skip
CALLS = st.builds(
    PastCall, at=st.just(AT), tool=st.sampled_from([*TOOLS, "frobnicate", 'odd "tool"\t', "permission_request"]), args=ARGS
)  # fmt: skip
TURNS = st.builds(
    PastTurn, turn_id=st.just("turn-1"), task_name=st.just("digest"), channel=CHANNELS, by_fire=st.booleans(),
    read_only=st.booleans(), calls=st.lists(CALLS, max_size=4).map(tuple), tokens=st.integers(0, 10**6),
    seconds=st.none() | st.floats(0, 10**5),
)  # fmt: skip


def stopped(category: Category, turns: list[PastTurn]) -> list[Judged]:
    return [one for one in rehearse(category, turns, TOOLS).judged if one.would != "pass" and not one.hopeless]


@settings(max_examples=150, deadline=None)
@given(st.lists(TURNS, max_size=4))
def test_the_least_stops_nothing_and_nothing_less_would_do(turns: list[PastTurn]) -> None:
    enough = least(*turns)
    assert stopped(enough, turns) == []
    assert [one for one in rehearse(enough, turns, TOOLS).overruns if one.seen <= 86_400] == []
    for field in GRANTS:
        for value in getattr(enough, field):
            assert stopped(replace(enough, **{field: getattr(enough, field) - {value}}), turns), (field, value)
    if enough.autonomous:
        assert stopped(replace(enough, autonomous=False), turns)
    if enough.recurring:
        assert stopped(replace(enough, recurring=False), turns)
    if any(turn.calls for turn in turns) and enough.tool_calls > 1:
        assert stopped(replace(enough, tool_calls=enough.tool_calls - 1), turns)


def test_what_a_model_wrote_cannot_break_out_of_the_text_nor_reach_the_terminal() -> None:
    odd = 'a"\n[limits]\ntokens = 1\t\x7f\x9b\u202e\\'
    found = least(turn(call("conversation_read", channel=odd)))
    text = to_toml(found)
    assert tomllib.loads(text)["scopes"]["channels"] == [odd]
    assert all(line.isprintable() for line in text.splitlines())


@settings(max_examples=50, deadline=None)
@given(st.lists(TURNS, max_size=4))
def test_the_text_of_the_least_reads_back_as_it_is(turns: list[PastTurn]) -> None:
    enough = least(*turns)
    text = to_toml(enough, comment="two\nlines")
    read = tomllib.loads(text)
    granted = {field: frozenset(read["scopes"][field]) for field in GRANTS}
    plain = {key: read[key] for key in ("name", "description", "autonomous", "silent", "outside")}
    recurring = read["scopes"].get("recurring", False)
    assert Category(**plain, **granted, **read["limits"], recurring=recurring) == enough


def test_the_check_has_nothing_to_say_against_the_least(tmp_path: Path) -> None:
    everything = [call(tool, tier="channel", channel="other", url="https://a.example/") for tool in TOOLS]
    found = least(turn(*everything))
    assert found.writes <= WRITES
    path = tmp_path / "none.toml"
    path.write_text(to_toml(found))
    assert lint(path) == []
