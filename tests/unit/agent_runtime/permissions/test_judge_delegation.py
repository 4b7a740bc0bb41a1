"""What a turn hands on to what it starts: never more than it has."""

from dataclasses import replace
from typing import Any

import pytest

from agent_runtime.model.turn import Category, TurnContext
from agent_runtime.permissions.judge import beyond, intersect

OWN = Category(
    name="own",
    autonomous=True,
    tools=frozenset({"memory.read", "web.fetch"}),
    writes=frozenset({"candidate-page"}),
    memory=frozenset({"channel"}),
    channels=frozenset({"board"}),
    subagents=frozenset({"reviewer"}),
    network=frozenset({"example.org"}),
)
TURN = TurnContext(turn_id="t", thread_id="t", channel="main", agent="agent0", category=OWN)


def test_its_own_and_less_are_within() -> None:
    assert beyond(OWN, TURN) == ""
    assert beyond(Category(name="least", seconds=10), TURN) == ""
    assert beyond(replace(OWN, channels=frozenset({"main"})), TURN) == "", "the turn's own channel"


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"tools": frozenset({"memory.put"})}, "tools memory.put"),
        ({"writes": frozenset({"deviation"})}, "writes deviation"),
        ({"memory": frozenset({"account"})}, "memory account"),
        ({"channels": frozenset({"other"})}, "channels other"),
        ({"subagents": frozenset({"researcher"})}, "subagents researcher"),
        ({"network": frozenset({"*"})}, "network *"),
        ({"seconds": 301}, "more seconds"),
        ({"tool_calls": 51}, "more tool_calls"),
        ({"tokens": 200_001}, "more tokens"),
        ({"recurring": True}, "may start its own tasks"),
        ({"silent": True}, "is silent"),
    ],
)
def test_more_of_anything_is_beyond_and_named(more: dict[str, Any], named: str) -> None:
    assert named in beyond(replace(OWN, name="asked", **more), TURN)


def test_any_host_holds_every_host() -> None:
    turn = replace(TURN, category=replace(OWN, network=frozenset({"*"})))
    assert beyond(replace(OWN, network=frozenset({"example.com"})), turn) == ""


def test_what_may_act_without_the_author_is_handed_on_by_the_author_or_by_what_may() -> None:
    bound = replace(TURN, category=replace(OWN, autonomous=False))
    assert "may act without the author" in beyond(OWN, bound)
    assert beyond(OWN, replace(bound, started_by="author")) == ""


def test_what_asks_for_more_is_not_handed_on_by_what_hides_it_and_what_is_silent_by_the_author() -> None:
    hiding = replace(TURN, category=replace(OWN, outside="hide"))
    assert "asks the author for other tools" in beyond(OWN, hiding)
    assert beyond(replace(OWN, outside="hide"), TURN) == beyond(replace(OWN, outside="hide"), hiding) == ""
    assert beyond(replace(OWN, silent=True), replace(TURN, category=replace(OWN, silent=True))) == ""
    assert beyond(replace(OWN, silent=True), replace(hiding, started_by="author")) == ""


def test_to_start_tasks_is_granted_only_where_it_was_and_is() -> None:
    granting = replace(OWN, recurring=True)
    assert intersect(granting, granting).recurring
    assert not intersect(granting, OWN).recurring
    assert not intersect(OWN, granting).recurring
    assert Category.from_dict(granting.to_dict()) == granting
    before = {key: value for key, value in OWN.to_dict().items() if key != "recurring"}
    assert Category.from_dict(before) == OWN, "a grant of an earlier version"
