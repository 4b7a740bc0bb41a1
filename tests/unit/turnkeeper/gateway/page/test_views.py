"""What the page shows of the daemons' answers, without a browser and without daemons."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from turnkeeper.config.prices.prices import Price, Prices
from turnkeeper.errors import InvalidInput
from turnkeeper.gateway.page import acts, reads, shell, text, views
from turnkeeper.gateway.page.stores import Outage, Spent
from turnkeeper.v1 import agent_runtime_pb2 as agents
from turnkeeper.v1 import schedules_pb2 as schedules

NOW = datetime(2026, 11, 22, 20, 0, tzinfo=UTC)


def stamp(at: datetime) -> Timestamp:
    made = Timestamp()
    made.FromDatetime(at)
    return made


def test_an_approval_is_shown_with_all_its_arguments_and_their_hash() -> None:
    asked = agents.Interrupt(
        interrupt_id="i",
        kind="permission",
        tool="memory_put",
        args_json='{"a":1}',
        args_hash="h",
        status="pending",
        task_name="t",
    )
    card = views.card_of_interrupt(asked)
    assert (card.title, card.args, card.args_hash) == ("memory_put", '{\n  "a": 1\n}', "h")
    assert list(card.ways) == ["approve", "reject", "edit", "for_task"]
    asked.once_only = "it is a graph's own"
    assert "for_task" not in views.card_of_interrupt(asked).ways
    asked.status, asked.decision = "resolved", "approve"
    card = views.card_of_interrupt(asked)
    assert (card.waits, card.does) == (False, "asked to call")


@pytest.mark.parametrize(
    ("says", "ways", "title"),
    [
        ({}, ["answer", "approve", "reject"], "a question"),
        ({"value": {"question": "Order it?", "options": ["yes", "no"]}}, ["pick"], "a question"),
        ({"value": {"q": "Order it?", "options": ["yes"], "allows_text": True}}, ["pick", "answer"], "a question"),
        ({"form": "inbox", "calls": [{"tool": "send", "args": {"to": "a"}, "takes": ["approve", "edit", "respond"]}]}, ["approve", "edit", "answer"], "send"),
        ({"form": "decisions", "calls": [{"tool": "a", "args": {}, "takes": ["approve", "edit"]}, {"tool": "b", "args": {}, "takes": ["approve", "reject"]}]}, ["approve"], "a, b"),
        ({"calls": 1, "form": "x"}, ["answer", "approve", "reject"], "a question"),
    ],
)  # fmt: skip
def test_a_graphs_question_is_decided_as_it_may_be(says: dict[str, object], ways: list[str], title: str) -> None:
    card = views.card_of_interrupt(agents.Interrupt(kind="question", status="pending", args_json=json.dumps(says)))
    assert (list(card.ways), card.title) == (ways, title)


def test_the_question_about_a_lost_answer_is_shown_in_words() -> None:
    text = "The answer was lost. Run it again?"
    value = {
        "question": text, "options": ["run it", "leave it"], "allows_text": False,
        "tool": "shell", "args": {"command": "rsync", "n": 1},
    }  # fmt: skip
    said = json.dumps({"value": value})
    card = views.card_of_interrupt(agents.Interrupt(kind="question", status="pending", question=text, args_json=said))
    assert json.loads(card.args) == {"tool": "shell", "command": "rsync", "n": 1}
    assert card.begins == text
    assert (card.ways, card.is_plain) == (["pick"], True)


def test_a_proposed_page_is_compared_with_the_version_that_it_was_made_from() -> None:
    proposed = agents.Candidate(page_id="p", title="P", body="a\nb\n", base_version=2, lifecycle="candidate")
    card = views.card_of_candidate(proposed, agents.Page(page_id="p", body="a\nc\n", version=2))
    assert list(card.diff)[1:] == [" a", "-c", "+b"]
    stale = views.card_of_candidate(proposed, agents.Page(page_id="p", body="x", version=3))
    assert not stale.diff
    assert ("", "the page has changed since: it is now at version 3") in stale.facts


def test_a_decision_is_named_by_its_task_and_the_first_words_of_its_arguments() -> None:
    first, second = (
        views.card_of_interrupt(
            agents.Interrupt(kind="permission", tool="put", args_json=json.dumps({"a": text}), task_name="t")
        )
        for text in ("milk", "b" * 200)
    )
    assert (first.begins, first.about) == ("a: milk", "put “a: milk”, asked by t")
    assert len(second.begins) == views.BEGINNING + 1
    proposed = views.card_of_candidate(agents.Candidate(title="P", body="# News\n- 1 note\n- 2 pages\n"), None)
    assert proposed.begins == "News 1 note 2 pages"
    said = acts.decided("interrupt", "reject", first.about, "too dear")
    assert said == f"Rejected: {first.about}. Reason: “too dear”. The agent is told so, and the call does not run."
    assert acts.decided("interrupt", "approve", "put", "") == "Approved: put. The call runs now."
    assert acts.decided("interrupt", "answer", "question", "yes") == (
        "Answered: question. Answer: “yes”. The agent continues with your answer."
    )
    assert acts.decided("candidate", "approve", "P", "fine") == "Accepted: P. Reason: “fine”."
    assert acts.decided("candidate", "reject", "P", "Too long.") == "Rejected: P. Reason: “Too long.”"
    waits = views.card_of_candidate(agents.Candidate(title="P", lifecycle="candidate"), None)
    assert ("if accepted", "it is marked as accepted in this channel; no page changes") in waits.facts


def test_calls_stand_with_their_answers() -> None:
    turn = agents.ConversationTurn(
        turn_id="t",
        status="running",
        messages=[
            agents.Message(
                role="agent",
                text="x",
                tool_calls=[agents.ToolCall(id="1", name="a"), agents.ToolCall(id="2", name="b")],
            ),
            agents.Message(role="tool", text="done", tool_call_id="1"),
        ],
    )
    turn.messages.add(role="agent", tool_calls=[agents.ToolCall(id="3", name="c")])
    (said,) = views.said_in(turn)
    assert [(call.name, call.result) for call in said.calls] == [("a", "done"), ("b", None), ("c", None)]
    assert shell.environment().tests["open"](turn)


def test_a_call_without_an_answer_is_waited_for_only_while_its_turn_is_open() -> None:
    turn = agents.ConversationTurn(turn_id="t", status="running", messages=[agents.Message(role="trigger", text="Go.")])
    turn.messages.add(role="agent", tool_calls=[agents.ToolCall(id="1", name="of_a_node")])
    turn.messages.add(role="trigger", text="The process was restarted.")
    source = '{% import "frame/parts.html" as parts with context %}{{ parts.turn_item(turn) }}'
    shown = shell.environment().from_string(source)
    place = {"here": "/ui/", "times": text.Times(NOW), "page_key": ""}
    running = shown.render(turn=turn, **place)
    assert (running.count("What the task asked"), running.count("<summary>Note")) == (1, 1)
    assert "no answer yet" in running
    turn.status = "succeeded"
    assert "no answer yet" not in shown.render(turn=turn, **place)


def test_a_form_changes_what_it_changed_and_nothing_else() -> None:
    spec = schedules.TaskSpec(
        name="t",
        cron="0 9 * * *",
        prompt="a\nb",
        category="c",
        channel="g",
        catch_up="run-once",
        overlap="queue",
        max_fires=7,
        grace="1m",
    )
    task = schedules.Task(spec=spec)
    form = views.form_of(task)
    assert views.edited(task, form | {"prompt": "a\r\nb", "unknown": "x"}, NOW) == spec
    changed = views.edited(task, form | {"when": " 2h ", "catch_up": "skip"}, NOW)
    assert (changed.WhichOneof("schedule"), changed.every, changed.catch_up, changed.max_fires) == (
        "every",
        "2h",
        "skip",
        7,
    )
    assert not changed.HasField("overlap"), "each policy has a default of its own"


def test_a_disabled_loop_is_stopped_in_the_words_of_the_page() -> None:
    said = [views.state_of(schedules.Task(id=name, state="disabled")) for name in ("loop-1", "task-1")]
    assert said == ["stopped", "disabled"]
    assert views.state_of(schedules.Task(id="task-1", kind="dynamic", state="interrupted")) == "waits for you"


def test_the_address_chooses_tasks() -> None:
    tasks = [
        schedules.Task(state="active", spec=schedules.TaskSpec(name="a", channel="x", prompt="Mail and News")),
        schedules.Task(state="paused", spec=schedules.TaskSpec(name="b", channel="y", prompt="mail")),
    ]
    assert [one.spec.name for one in views.chosen(tasks, {"q": "mail"})] == ["a", "b"]
    assert [one.spec.name for one in views.chosen(tasks, {"q": "news MAIL", "state": "active", "channel": "x"})] == [
        "a"
    ]
    assert views.counts_of(tasks) == [("active", 1), ("paused", 1)]


def fire(outcome: str, at: datetime, **more: object) -> schedules.Fire:
    return schedules.Fire(task_name="t", outcome=outcome, nominal_at=stamp(at), due_at=stamp(at), **more)  # type: ignore[arg-type]


def test_what_went_wrong_is_what_failed_was_skipped_or_stands_for_more() -> None:
    hour = timedelta(hours=1)
    fires = [
        fire("succeeded", NOW - hour),
        fire("failed", NOW - hour, reason="boom"),
        fire("skipped", NOW - hour, reason="missed", count=3),
        fire("succeeded", NOW - hour, count=2),
        fire("rejected", NOW - hour, reason="its approval was rejected: send"),
        fire("failed", NOW - 30 * hour),
        fire("skipped", NOW - hour, reason="paused", count=3),  # as the author wanted
    ]
    found = views.went_wrong(fires, NOW - timedelta(days=1))
    assert [(one.outcome, views.why_of(one)) for one in found] == [
        ("failed", "boom"), ("skipped", "missed, 3 times"), ("succeeded", "stands for 2 times"),
        ("rejected", "its approval was rejected: send"),
    ]  # fmt: skip


def test_a_pause_skips_the_times_before_its_end() -> None:
    task = schedules.Task(state="paused")
    soon, later = (schedules.Nominal(due_at=stamp(NOW + timedelta(hours=hours))) for hours in (1, 3))
    assert views.skips(task, soon)
    assert views.skips(task, later)
    task.paused_until.CopyFrom(stamp(NOW + timedelta(hours=3)))
    assert views.skips(task, soon)
    assert not views.skips(task, later)
    task.state = "active"
    assert not views.skips(task, soon)


def test_a_short_timeline_shows_all_of_last_night() -> None:
    assert reads.SPANS["24h"][0] >= timedelta(hours=24)


def test_tokens_are_added_up_by_day_newest_first_and_by_task_most_first() -> None:
    spent = [
        Spent("2026-11-22", "news", "openai:gpt-5", 2, 30, 3), Spent("2026-11-22", "messages in desk", "", 1, 100, 7),
        Spent("2026-11-21", "news", "openai:gpt-5", 1, 1000, 0),
    ]  # fmt: skip
    assert views.by(spent, "day") == [("2026-11-22", 3, 130, 10, 0), ("2026-11-21", 1, 1000, 0, 0)]
    assert views.by(spent, "name") == [("news", 3, 1030, 3, 0), ("messages in desk", 1, 100, 7, 0)]
    prices = Prices({"openai:gpt-5": Price(2, 10)}, "offline")
    assert views.by(spent, "model", prices) == [("openai:gpt-5", 3, 1030, 3, 2090), ("", 1, 100, 7, 0)]


@pytest.mark.parametrize("span", reads.SPANS)
def test_a_timeline_of_any_length_has_a_few_dividing_lines_with_different_labels(span: str) -> None:
    back, ahead = reads.SPANS[span]
    window = views.Window(begin=NOW - back, now=NOW, end=NOW + ahead)
    labels = [window.label(at) for _, at in window.ticks()]
    assert 4 <= len(labels) <= 12
    assert len(set(labels)) == len(labels)


def test_neighbours_on_a_lane_are_one_mark_with_their_number_and_exceptions_stand_alone() -> None:
    window = views.Window(begin=NOW - timedelta(hours=10), now=NOW, end=NOW + timedelta(hours=10))
    minutes = [NOW - timedelta(minutes=number) for number in range(9, 0, -1)]
    outcomes = ["succeeded"] * 4 + ["failed"] * 2 + ["succeeded"] * 3
    (lane,) = views.lanes_of([*map(fire, outcomes, minutes), fire("running", NOW)], [], {}, window)
    assert [(mark.kind, mark.count) for mark in lane.drawn] == [
        ("fired", 4),
        ("failed", 1),
        ("failed", 1),
        ("fired", 3),
        ("waits", 1),
    ]
    assert [mark.kind for mark in lane.odd] == ["failed", "failed"]


def test_outages_of_one_daemon_that_touch_are_one_band_with_each_reason_once() -> None:
    window = views.Window(begin=NOW - timedelta(hours=10), now=NOW, end=NOW + timedelta(hours=10))

    def away(begin: float, end: float, says: str = "away", daemon: str = "agent-runtime") -> Outage:
        return Outage(daemon, says, NOW - timedelta(hours=begin), NOW - timedelta(hours=end))

    found = [
        away(2, 1),
        away(5, 4),
        away(8, 7, "not running", "task-runner"),
        away(4.001, 3, "hung"),
        away(3.5, 3),
        away(30, 20),
        away(0.5, 0.4999),
    ]
    assert [(band.daemon, band.x, band.width, band.says) for band in views.bands_of(found, window)] == [
        ("agent-runtime", 25.0, 10.0, "away, then hung"),
        ("agent-runtime", 40.0, 5.0, "away"),
        ("task-runner", 10.0, 5.0, "not running"),
    ]


def test_an_outage_that_lasts_is_drawn_from_its_first_moment_and_one_that_ended_within_a_second_is_not() -> None:
    window = views.Window(begin=NOW - timedelta(hours=10), now=NOW, end=NOW + timedelta(hours=10))
    moment = timedelta(milliseconds=200)
    found = [
        Outage("agent-runtime", "does not answer", NOW - moment, NOW + moment / 10),
        Outage("task-runner", "not running", NOW - 60 * moment, NOW - 59 * moment),
    ]
    assert [(band.daemon, band.says) for band in views.bands_of(found, window)] == [
        ("agent-runtime", "does not answer")
    ]


def test_a_lane_has_a_mark_for_each_fire_with_its_lateness_and_length_and_for_what_is_planned() -> None:
    window = views.Window(begin=NOW - timedelta(hours=10), now=NOW, end=NOW + timedelta(hours=10))
    at = NOW - timedelta(hours=5)
    late = fire(
        "succeeded",
        at,
        late_s=3600.0,
        started_at=stamp(at + timedelta(hours=1)),
        ended_at=stamp(at + timedelta(hours=2)),
    )
    rows = [
        schedules.SimulatedRow(
            task="t", nominal_at=stamp(NOW + timedelta(hours=5)), fired_at=stamp(NOW + timedelta(hours=5))
        )
    ]
    fires = [
        late,
        fire("rejected", NOW - timedelta(hours=2)),
        fire("skipped", NOW - timedelta(hours=1)),
        fire("running", NOW),
        fire("succeeded", NOW - timedelta(days=2)),
    ]
    (lane,) = views.lanes_of(fires, rows, {"t": "Europe/Riga"}, window)
    assert [(mark.kind, mark.x) for mark in lane.marks] == [
        ("fired", 30.0),
        ("failed", 40.0),
        ("skipped", 45.0),
        ("waits", 50.0),
        ("planned", 75.0),
    ]
    assert (lane.marks[0].late, lane.marks[0].ran) == (5.0, 5.0)
    assert lane.zone == "Europe/Riga"
    assert all(0 < x < 100 for x, _ in window.ticks())


def test_a_form_lets_a_task_follow_others_beside_its_times_instead_of_them_or_no_longer() -> None:
    new = views.made({"name": "t", "after": "a, b", "input_json": '{"topic": "soil"}', "prompt": ""}, NOW)
    assert (new.on, [*new.filters], new.WhichOneof("schedule")) == ("task.succeeded", ["after=a,b"], None)
    assert (new.prompt, new.input_json) == ("", '{"topic": "soil"}')
    assert views.made({"name": "t", "when": "2h"}, NOW).on == ""
    held = schedules.TaskSpec(
        name="t", cron="0 9 * * *", on="task.succeeded", filters=["ok=true", "after=a"], debounce="5m"
    )
    held.input_json = '{"topic":"soil"}'
    task = schedules.Task(spec=held)
    form = views.form_of(task)
    assert (form["after"], form["input_json"]) == ("a", '{\n  "topic": "soil"\n}')
    assert views.edited(task, form | {"input_json": form["input_json"].replace("\n", "\r\n")}, NOW) == held
    both = views.edited(task, form | {"after": "a,c"}, NOW)
    assert (both.cron, [*both.filters], both.debounce) == ("0 9 * * *", ["ok=true", "after=a,c"], "5m")
    alone = views.edited(task, form | {"when": "", "input_json": " "}, NOW)
    assert (alone.WhichOneof("schedule"), alone.on, alone.input_json) == (None, "task.succeeded", "")
    timed = views.edited(task, form | {"after": ""}, NOW)
    assert (timed.cron, timed.on, [*timed.filters], timed.HasField("debounce")) == ("0 9 * * *", "", [], False)
    with pytest.raises(InvalidInput, match="is not a schedule"):
        views.edited(task, form | {"after": "", "when": ""}, NOW)
    other = schedules.Task(spec=schedules.TaskSpec(on="turn_end", filters=["after=x"]))
    assert views.form_of(other)["after"] == "", "a filter of another event"


def test_a_form_that_shows_what_is_not_seen_written_out_changes_nothing_by_that() -> None:
    family = "Ask the \U0001f468\u200d\U0001f469\u200d\U0001f467 what is new\u2026 \u2764\ufe0f"
    task = schedules.Task(spec=schedules.TaskSpec(every="1h", prompt=family))
    shown = {name: str(text.printed(value)) for name, value in views.form_of(task).items()}
    assert shown["prompt"] != family
    assert views.edited(task, shown, NOW) == task.spec
    assert views.edited(task, shown | {"every": "2h", "when": "2h"}, NOW).prompt == family
    assert views.edited(task, shown | {"prompt": "other"}, NOW).prompt == "other"


async def test_what_became_of_a_decision_is_told_by_who_decided_and_how() -> None:
    sent = asyncio.get_running_loop().create_future()

    def told(kind: str, does: str, found: Any) -> tuple[str, str]:
        fate = acts.Fate(
            kind=kind, id="i", does=does, via="gateway/web", about="put", said="Approved: put.", sent=sent
        )  # fmt: skip
        return acts.told(fate, found)

    waits = agents.Interrupt(interrupt_id="i", status="pending")
    assert told("interrupt", "approve", waits)[0] == "bad"
    assert "still waits for you: put" in told("interrupt", "approve", waits)[1]
    mine = agents.Interrupt(status="resolved", decision="approve", decided_by="gateway/web")
    assert told("interrupt", "approve", mine) == ("good", "Your decision was recorded. Approved: put.")
    assert told("interrupt", "reject", mine)[0] == "bad", "another tab approved it"
    other = agents.Interrupt(status="resolved", decision="reject", decided_by="agent-runtime/cli")
    assert told("interrupt", "reject", other) == (
        "bad", "Your decision was not recorded: this was already decided (reject, by agent-runtime/cli): put",
    )  # fmt: skip
    assert told("candidate", "approve", agents.Candidate(lifecycle="canonical", decided_by="gateway/web"))[0] == "good"
    assert told("deviation", "reject", agents.Deviation(lifecycle="kept", decided_by="gateway/web"))[0] == "good"
    assert told("deviation", "reject", agents.Deviation(lifecycle="open"))[0] == "bad"
    assert told("interrupt", "approve", None)[1] == "Your decision was not recorded: this no longer exists: put"


def test_a_task_waits_for_its_author_until_its_last_question_is_answered_though_its_runner_does_not_know_it() -> None:
    author = "its author: turnkeeper approvals list"
    tasks = [
        schedules.Task(spec={"name": name, "thread_id": f"thread-{name}"}, waits_for=text)
        for name, text in (
            ("asks", author),
            ("held", author),
            ("answered", author),
            ("queued", "a place"),
            ("free", ""),
        )
    ]
    asked = [
        agents.Interrupt(task_name="asks", thread_id="x"),
        agents.Interrupt(task_name="y", thread_id="thread-held"),
    ]
    assert [task.spec.name for task in views.still_wait(tasks, asked)] == ["asks", "held", "queued"]


def test_the_note_on_an_approval_from_now_on_names_the_standing_exception() -> None:
    given = agents.Interrupt(status="resolved", decision="approve", decided_by="web", task_name="hose", exception=3)
    fate = acts.Fate(kind="interrupt", id="i", does="approve", via="web", about="", said="Approved.", sent=None)
    assert acts.told(fate, given)[1] == (
        "Your decision was recorded. Approved. hose makes this very call without a question from now on: standing"
        " exception 3. To end it, run: turnkeeper approvals exceptions revoke 3"
    )
    given.exception = 0
    assert acts.told(fate, given)[1] == "Your decision was recorded. Approved."


def test_today_names_the_tasks_that_their_budget_stops_and_no_other_pause() -> None:
    notes = {"spent": "budget: turns_per_day is 2, 2 used on 2026-11-22", "noted": "on vacation", "bare": ""}
    tasks = [schedules.Task(spec={"name": name}, state="paused", paused_note=note) for name, note in notes.items()]
    tasks.append(schedules.Task(spec={"name": "runs"}, state="active"))
    found = [(task.spec.name, why) for task, why in views.stopped_by_budget(tasks)]
    assert found == [("spent", "turns_per_day is 2, 2 used on 2026-11-22")]
