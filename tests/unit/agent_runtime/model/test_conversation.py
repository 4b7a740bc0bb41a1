"""The conversation: what is shown of a turn, and how it looks on a terminal."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from agent_runtime.cli.chat.render import Lines, changes_of, render
from agent_runtime.cli.chat.texts import mark_text
from agent_runtime.model.conversation import NOTHING_TO_DO, project
from agent_runtime.model.mapping import to_json
from agent_runtime.model.turn import Category, InterruptRecord, MessageRecord, Said, ToolUse, TurnRecord
from turnkeeper.v1 import agent_runtime_pb2 as wire

NINE = datetime(2026, 11, 20, 14, 0, tzinfo=UTC)
FIRE = TurnRecord(
    number=1, turn_id="turn-1", thread_id="th", channel="general", agent="agent0", category="catch-up-summary",
    grant=Category(name="catch-up-summary"), trigger="fire", status="succeeded", visible=True, fire_id="f1", attempt=1,
    task_id="task-1", task_name="daily-digest", kind="scheduled", prompt="Summarise.", payload_json="", read_only=False,
    nominal_at=NINE, due_at=NINE, fired_at=NINE, timezone="America/New_York", catch_up="run-once", stands_for=1,
    first_nominal_at=None, last_nominal_at=None, started_at=NINE, ended_at=NINE + timedelta(seconds=2), summary="", error="",
    answers={}, resumes="", after_message="turn-1", paused_until=None, tries=1, tokens_in=0, tokens_out=0,
    wake_after_s=None,
)  # fmt: skip
PROMPT = MessageRecord(turn_id="turn-1", position=0, said=Said(role="trigger", text="Summarise."), at=NINE)
AUTHORS = replace(FIRE, trigger="author", fire_id="", task_name="", nominal_at=None, fired_at=None)
ASKED = InterruptRecord(
    interrupt_id="1234567890abcdef", turn_id="turn-1", thread_id="th", channel="general", kind="permission",
    tool="memory_put", args_json='{"text":"x","tier":"channel"}', args_hash="h", call_id="c", missing_scope="memory.put",
    question="category catch-up-summary does not grant memory.put", allows_text=False, status="pending", decision="",
    message="", edited_json="", applied=False, created_at=NINE, resolved_at=None, task_name="daily-digest",
    category="catch-up-summary",
)  # fmt: skip


def says(text: str, *calls: str, position: int = 100, role: Any = "agent") -> MessageRecord:
    uses = tuple(ToolUse(id=f"id-{name}", name=name, args={"text": "x" * 200}) for name in calls)
    return MessageRecord(turn_id="turn-1", position=position, said=Said(role=role, text=text, tool_calls=uses), at=NINE)


@pytest.mark.parametrize(
    ("changes", "mark"),
    [
        ({}, "triggered by daily-digest at 2026-11-20 09:00 America/New_York"),
        ({"timezone": ""}, "triggered by daily-digest at 2026-11-20 14:00 UTC"),
        ({"timezone": "Mars/Base"}, "triggered by daily-digest at 2026-11-20 14:00 UTC"),
        ({"nominal_at": NINE + timedelta(seconds=7), "fired_at": None}, "triggered by daily-digest at 2026-11-20 09:00:07 America/New_York"),
        ({"fired_at": NINE + timedelta(seconds=60)}, "triggered by daily-digest at 2026-11-20 09:00 America/New_York"),
        ({"fired_at": NINE + timedelta(hours=2)}, "triggered by daily-digest at 2026-11-20 09:00 America/New_York, 2h late"),
        (
            {"fired_at": NINE + timedelta(hours=2), "stands_for": 3, "first_nominal_at": NINE - timedelta(days=2)},
            "triggered by daily-digest at 2026-11-20 09:00 America/New_York, 2h late, "
            "stands for 3 fires since 2026-11-18 09:00 America/New_York",
        ),
        ({"task_name": "", "nominal_at": None}, "triggered by f1"),
    ],
)  # fmt: skip
def test_the_mark_says_what_for_when_how_late_and_for_how_many(changes: dict[str, Any], mark: str) -> None:
    shown = project(replace(FIRE, **changes), [PROMPT], [], first=True)
    assert mark_text(shown.trigger) == mark


def test_only_the_first_turn_of_a_fire_is_marked() -> None:
    assert project(FIRE, [PROMPT], [], first=True).HasField("trigger")
    assert not project(replace(FIRE, attempt=2), [PROMPT], [], first=False).HasField("trigger")
    assert not project(AUTHORS, [], [], first=True).HasField("trigger")


@pytest.mark.parametrize(
    ("turn", "messages", "asked", "noted"),
    [
        (FIRE, [], [], True),
        (FIRE, [says(" \n")], [], True),
        (FIRE, [says("", "workspace_search"), says("{}", role="tool", position=200)], [], True),
        (FIRE, [says("Done.")], [], False),
        (FIRE, [says("", "summary_propose")], [], False),
        (FIRE, [says("", "deviation_record")], [], False),
        (FIRE, [says("", "revalidation_settle")], [], False),
        (FIRE, [], [ASKED], False),
        (replace(FIRE, status="running", ended_at=None), [], [], False),
        (replace(FIRE, status="failed"), [], [], False),
        (AUTHORS, [], [], False),
    ],
)
def test_a_fire_that_came_to_nothing_says_so(
    turn: TurnRecord, messages: list[MessageRecord], asked: list[InterruptRecord], noted: bool
) -> None:
    texts = [message.text for message in project(turn, [PROMPT, *messages], asked, first=True).messages]
    assert (NOTHING_TO_DO in texts) is noted


def test_messages_stand_in_order_and_pauses_ask_nobody() -> None:
    shown = project(FIRE, [says("two", position=200), says("one"), PROMPT], [replace(ASKED, kind="pause")], first=True)
    assert [message.text for message in shown.messages] == ["Summarise.", "one", "two"]
    assert not shown.interrupts


def test_the_json_has_the_keys_that_scripts_rely_on() -> None:
    row = to_json(project(FIRE, [PROMPT, says("", "summary_propose")], [ASKED], first=True))
    assert list(row) == [
        "turn_id",
        "thread_id",
        "started_at",
        "ended_at",
        "status",
        "trigger",
        "messages",
        "interrupts",
        "candidates",
        "deviations",
        "error",
        "category",
        "agent",
        "tokens_in",
        "tokens_out",
        "paused_until",
        "via",
        "graph",
    ]
    assert row["trigger"] == {
        "kind": "scheduled", "task": "daily-digest", "fire_id": "f1", "nominal_at": "2026-11-20T14:00:00Z",
        "fired_at": "2026-11-20T14:00:00Z", "stands_for": 1,
    }  # fmt: skip
    assert [sorted(message) for message in row["messages"]] == [
        ["at", "role", "text"],
        ["at", "role", "text", "tool_calls"],
    ]
    assert row["interrupts"][0]["args"] == {"text": "x", "tier": "channel"}
    assert to_json(project(AUTHORS, [], [], first=True))["trigger"] is None


def lines(turn: wire.ConversationTurn, *candidates: dict[str, Any], wide: bool = False) -> list[str]:
    turn.candidates.extend(wire.Candidate(**candidate) for candidate in candidates)
    layout = Lines(width=80, wide=wide)
    return [str(line) for change in changes_of(turn) for line in render(change, layout)]


def test_a_turn_on_a_terminal() -> None:
    messages = [
        PROMPT,
        says("", "conversation_read"),
        says("y" * 300, role="tool", position=200),
        says("Read it.\nProposed.", position=300),
    ]
    proposed = {"candidate_id": "c-1", "title": "Catch-up", "kind": "candidate-summary", "lifecycle": "candidate"}
    shown = lines(project(FIRE, messages, [ASKED], first=True), proposed)
    assert "triggered by daily-digest at 2026-11-20 09:00 America/New_York" in shown[0]
    assert "succeeded in 2s" in shown[1]
    assert shown[2] == "  prompt     Summarise."
    assert shown[3].startswith('             → conversation_read(text="xxx')
    assert shown[4].startswith("             ← yyy")
    assert all(len(line) <= 80 for line in shown[3:5]), "calls and answers are shortened"
    assert shown[5] == "  agent      Read it.\n             Proposed."
    assert "turnkeeper candidates accept c-1" in "\n".join(shown)
    assert "turnkeeper approvals resolve 1234567890 --approve" in "\n".join(shown)
    assert 'turnkeeper approvals resolve 1234567890 --reject "why"' in "\n".join(shown)
    assert "y" * 300 in "\n".join(lines(project(FIRE, messages, [], first=True), wide=True))


def test_what_is_decided_shows_its_decision_and_no_command() -> None:
    settled = replace(ASKED, status="resolved", decision="approve", resolved_at=NINE)
    refused = replace(settled, decision="reject", message="not today")
    text = "\n".join(lines(project(FIRE, [PROMPT, says("Done.")], [settled, refused], first=True)))
    assert "[approve]" in text
    assert "[reject]: not today" in text
    assert "approvals resolve" not in text


def test_text_from_outside_is_shown_and_never_obeyed() -> None:
    evil = "\x1b[31mred\x07 \u202eevil\u2066 \x9b2J"
    messages = [says(evil), says(evil, role="tool", position=200), says(evil, "x", position=300)]
    turn = replace(FIRE, task_name=evil, error=evil)
    asked = replace(ASKED, question=evil, tool=evil, args_json=f'{{"a": "{evil!r}"}}')
    candidate = {"candidate_id": "c-1", "title": evil, "kind": evil, "lifecycle": "candidate"}
    for line in lines(project(turn, messages, [asked], first=True), candidate):
        assert not set(line) & set("\x1b\x07\u202e\u2066\x9b"), line
