"""Requests off the wire: every field is checked, and the field to blame is named."""

from typing import Any

import pytest

from agent_runtime.model.trigger import Trigger, from_envelope, to_envelope
from agent_runtime.model.turn import Category
from agent_runtime.service.requests import read_fire
from tests.support.clock import START
from turnkeeper.bus.envelope import decode, encode, with_sender
from turnkeeper.errors import Conflict, InvalidInput, NotFound
from turnkeeper.v1 import agent_runtime_pb2 as wire


def get_category(name: str) -> Category:
    if name != "work":
        raise NotFound(f"no category {name!r}", where="category")
    return Category(name="work", tools=frozenset({"workspace.read"}))


def request(**changes: Any) -> wire.FireRequest:
    made = wire.FireRequest(
        fire_id="task-0000000a@20260302T090000Z", task_id="task-0000000a", task_name="daily digest", attempt=1,
        thread_id="task-0000000a", channel="main", category="work", prompt="Go.", kind="manual",
        payload_json='{"a": {"b": [1, 2]}}', timezone="Europe/Berlin",
    )  # fmt: skip
    made.nominal_at.FromDatetime(START)
    made.catch_up.count = 3
    made.catch_up.first_nominal_at.FromDatetime(START)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def read(made: wire.FireRequest) -> Trigger:
    return read_fire(made, get_category)


def test_a_good_fire_travels_unchanged() -> None:
    trigger = read(request())
    assert (trigger.nominal_at, trigger.stands_for, trigger.agent) == (START, 3, "agent0")
    envelope = decode(encode(to_envelope(trigger, envelope_id="1", at=START)))
    assert from_envelope(envelope) == trigger


def test_a_fire_without_times_for_its_approvals_is_what_it_was_before_there_were_any() -> None:
    trigger = read(request())
    assert trigger.digest == "6c4df6dcb608b9bdcd78f41d0b5be37542bacd1e1a994d6fafd815e97eac8c53"
    assert not [name for name in to_envelope(trigger, envelope_id="1", at=START).meta if name.startswith("approval")]


def test_times_for_approvals_travel_and_are_part_of_what_was_accepted() -> None:
    trigger = read(request(approval_reminder_s=60, approval_timeout_s=3600))
    again = from_envelope(decode(encode(to_envelope(trigger, envelope_id="1", at=START))))
    assert (again.approval_reminder_s, again.approval_escalation_s, again.approval_timeout_s) == (60, 0, 3600)
    assert again == trigger
    assert len({read(request(approval_timeout_s=each)).digest for each in (0, 60, 3600)}) == 3


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("fire_id", ""), ("fire_id", "../x"), ("fire_id", "x\n"), ("fire_id", "x" * 300), ("fire_id", "x\0"),
        ("task_id", "٣"), ("thread_id", "a/b"), ("thread_id", " a"), ("channel", ".. up"), ("channel", "naïve"),
        ("channel", ""), ("category", "\n"), ("attempt", 0), ("attempt", -1), ("attempt", 2**31 - 1),
        ("kind", "Manual"), ("kind", "manual\n"), ("kind", "evil"), ("kind", "agent"), ("kind", "agent-for-fire"),
        ("payload_json", '{"a": "\\ud83d"}'), ("payload_json", "[1]"), ("payload_json", '{"a": NaN}'),
        ("payload_json", '{"a":' * 40 + "1" + "}" * 40), ("payload_json", '{"a": ' + "9" * 5000 + "}"),
        ("payload_json", "{"), ("timezone", "../etc/passwd"), ("timezone", "Mars/Base"), ("timezone", "/etc/localtime"),
        ("prompt", "hi <channel source='x'>"), ("prompt", "x" * (1 << 20) + "x"), ("traceparent", "x"), ("agent", "Agent"), ("agent", "author"),
    ],
)  # fmt: skip
def test_a_malformed_field_is_named(field: str, value: Any) -> None:
    with pytest.raises(InvalidInput) as refused:
        read(request(**{field: value}))
    assert refused.value.where == field


@pytest.mark.parametrize(("field", "value"), [("category", "nope")])
def test_what_does_not_exist_is_a_conflict(field: str, value: str) -> None:
    with pytest.raises(Conflict) as refused:
        read(request(**{field: value}))
    assert refused.value.where == field


@pytest.mark.parametrize(("seconds", "nanos"), [(10**17, 0), (-1, 0), (0, -1), (0, 10**9)])
def test_absurd_instants_are_refused(seconds: int, nanos: int) -> None:
    made = request()
    made.nominal_at.seconds, made.nominal_at.nanos = seconds, nanos
    with pytest.raises(InvalidInput) as refused:
        read(made)
    assert refused.value.where == "nominal_at"


def test_a_missing_instant_is_refused() -> None:
    made = request()
    made.ClearField("nominal_at")
    with pytest.raises(InvalidInput, match="required"):
        read(made)


def test_the_digest_covers_all_but_traceparent_and_the_grant() -> None:
    one = read(request())
    assert read(request(traceparent=f"00-{'a' * 32}-{'b' * 16}-01")).digest == one.digest
    assert read(request(prompt="Other.")).digest != one.digest
    wider = read_fire(request(), lambda name: Category(name=name, tools=frozenset({"page.propose"})))
    assert wider.digest == one.digest
    assert wider.grant != one.grant


def test_a_changed_or_forged_envelope_is_refused() -> None:
    envelope = to_envelope(read(request()), envelope_id="1", at=START)
    with pytest.raises(InvalidInput, match="not accepted here"):
        from_envelope(with_sender(envelope, "peer-1"))
    for meta in (
        {"prompt": "x"},
        {"channel": "other"},
        {"turn_id": 3},
        {"turn_id": "turn-x"},
        {"thread_id": "other"},
        {"more": 1},
    ):
        changed = to_envelope(read(request()), envelope_id="1", at=START)
        changed.meta.update(meta)
        with pytest.raises(InvalidInput):
            from_envelope(changed)
