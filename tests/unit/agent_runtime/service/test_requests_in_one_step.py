"""A fire that becomes its envelope in one step is what it is by way of a trigger: the same bytes, or the same refusal."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from agent_runtime.model.fire_envelopes import Stamp
from agent_runtime.model.graphs import Catalog
from agent_runtime.model.trigger import EncodedTrigger, Trigger, encode_trigger, from_envelope
from agent_runtime.model.turn import Category
from agent_runtime.service.requests import FireIntake, read_again, read_fire
from tests.support.clock import START
from turnkeeper.bus import LARGEST_BYTES
from turnkeeper.bus.envelope import decode
from turnkeeper.errors import Conflict, Degraded, InvalidInput, NotFound, TurnkeeperError
from turnkeeper.times import rfc3339
from turnkeeper.v1 import agent_runtime_pb2 as wire

STAMP = Stamp("0123456789abcdef" * 2, rfc3339(START))
AWKWARD = (
    "%", "%(prompt)s", "%%s", "{}", '"', "\\", "\\u0041", "\x7f", "\0", "\x1f", "\n", "\t", "/", "</", "<", ">", "&",
    "é", "İi", "e\u0301", "\u2028", "\ufdd0", "\uffff", "😀", "\u202e", "<channel source='x'>", "＜channel＞",
    "@@prompt@@", '"@@key@@"', "@@", "9000-01-01T00:00:00Z", "loop-", "loop-@@task_id@@", " ", "",
)  # fmt: skip
OBJECTS = ("payload_json", "context_json", "config_json", "input_json")
texts = st.lists(st.sampled_from(AWKWARD) | st.text(max_size=5), max_size=4).map("".join)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(10**60, 10**70) | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
objects = (
    st.just("")
    | st.builds(json.dumps, st.dictionaries(texts, json_values, max_size=3), ensure_ascii=st.booleans())
    | st.sampled_from(['{"a": "\\ud83d"}', "{", "[1]", '{"a": 1e999}', '{"a": NaN}', '{"a":' * 40 + "1" + "}" * 40])
)
labels = (
    st.sampled_from(["a", "daily digest", 'say "hi"', "a<b>", "%s", "\\", "@@channel@@", "100%", "~" * 128]) | texts
)
ids = st.sampled_from(["task-0000000a", "loop-0000000a", "loop-", "x@y:z~+-.", "x" * 200, "x" * 201]) | texts
instants = st.tuples(st.integers(-1, 7_258_118_401), st.sampled_from([0, 1, 999, 1000, 123_456_789, 10**9 - 1, 10**9]))
CATEGORIES = {
    "work": Category(name="work", tools=frozenset({"b", "a"})),
    "awkward": Category(name="awkward", description='100% é 😀 "\\" \x7f\0', network=frozenset({"*", "%s"})),
    "marked": Category(name="marked", description="@@prompt@@"),
    "timed": Category(name="timed", description="9000-01-01T00:00:00Z"),
    "half": Category(name="half", description="\ud83d"),
    "large": Category(name="large", tokens=10**70),
}


def get_category(name: str) -> Category:
    if name not in CATEGORIES:
        raise NotFound(f"no category {name!r}", where="category")
    return CATEGORIES[name]


@st.composite
def requests(draw: st.DrawFn) -> wire.FireRequest:
    """Fires of which most fields are good, so that some are good altogether."""
    rarely = draw(st.sets(st.sampled_from([field.name for field in wire.FireRequest.DESCRIPTOR.fields]), max_size=2))
    values: dict[str, Any] = {
        "fire_id": "task-0000000a@1", "task_id": "task-0000000a", "thread_id": "t", "channel": "main", "attempt": 1,
        "category": draw(st.sampled_from([*CATEGORIES, "nope"])), "kind": "scheduled", "prompt": draw(texts),
        "payload_json": draw(st.just("") | objects), "read_only": draw(st.booleans()),
        "task_name": draw(st.sampled_from(["", "daily digest"])), "timezone": draw(st.sampled_from(["", "Asia/Tokyo"])),
        "traceparent": draw(st.sampled_from(["", f"00-{'a' * 32}-{'b' * 16}-01"])),
    }  # fmt: skip
    odd = {
        "fire_id": ids, "task_id": ids, "task_name": labels, "thread_id": labels, "channel": labels, "agent": ids,
        "category": labels, "kind": st.sampled_from(["wake", "manual", "evil", ""]), "traceparent": texts,
        "timezone": st.sampled_from(["Europe/Berlin", "../x", "Mars/Base"]) | texts, "graph": labels,
        "attempt": st.sampled_from([-1, 0, 2, 10**6, 10**6 + 1]), "payload_json": objects, "context_json": objects,
        "config_json": objects | st.just('{"thread_id": 1}'), "input_json": objects,
    } | {f"approval_{name}_s": st.integers(-1, 2**40) for name in ("reminder", "escalation", "timeout")}  # fmt: skip
    values |= {name: draw(odd[name]) for name in sorted(rarely & odd.keys())}
    request = wire.FireRequest(**values)
    request.nominal_at.FromDatetime(START)
    for name in sorted(rarely & {"nominal_at", "due_at", "fired_at"}):
        at = getattr(request, name)
        at.seconds, at.nanos = draw(instants)
    if "catch_up" in rarely:
        request.catch_up.policy = draw(st.sampled_from(["", "skip", "run-once", "run-all", "no"]))
        request.catch_up.count = draw(st.sampled_from([-1, 0, 1, 7, 2**31 - 1]))
        first = request.catch_up.first_nominal_at
        first.seconds, first.nanos = draw(instants)
    return request


class Taken:
    """Stands for the acceptor: keeps what it is given."""

    def __init__(self) -> None:
        self.encoded: list[EncodedTrigger] = []
        self.triggers: list[tuple[Trigger, TurnkeeperError | None]] = []

    def queue_encoded(self, item: EncodedTrigger) -> None:
        self.encoded.append(item)

    def queue(self, trigger: Trigger, *, refusal: TurnkeeperError | None = None) -> None:
        self.triggers.append((trigger, refusal))


Answer = EncodedTrigger | tuple[type[TurnkeeperError], str, str]
# One for all examples: a form that an earlier fire left must serve a later one.
INTAKE: Any = FireIntake(Taken(), None, Catalog())  # type: ignore[arg-type]


def in_one_step(request: wire.FireRequest) -> tuple[Answer, bool]:
    """Return what the intake makes of a fire, and whether that took one step."""
    INTAKE._acceptor = taken = Taken()
    try:
        INTAKE._queue(request, get_category, STAMP)
    except TurnkeeperError as error:
        return (type(error), error.what, error.where), False
    if taken.encoded:
        return taken.encoded[0], True
    ((trigger, refusal),) = taken.triggers
    if refusal is not None:
        return (type(refusal), refusal.what, refusal.where), False
    return encoded(trigger), False


def encoded(trigger: Trigger) -> Answer:
    try:
        return encode_trigger(trigger, envelope_id=STAMP.id, at=START)
    except InvalidInput as error:
        return InvalidInput, error.what, error.where


def by_trigger(request: wire.FireRequest) -> Answer:
    try:
        try:
            trigger = read_fire(request, get_category)
            INTAKE._catalog.require(request.graph)
        except Conflict as refusal:  # unless it is a duplicate, that is the answer, to a fire that is well formed
            read_again(request)
            if refusal.where == "category":  # the runner sends the fire again: the file may be repaired
                raise Degraded(refusal.what, where="category") from refusal
            raise
    except TurnkeeperError as error:
        return type(error), error.what, error.where
    return encoded(trigger)


@settings(max_examples=400, deadline=None)
@given(requests())
def test_both_ways_give_the_same_bytes_or_the_same_refusal(request: wire.FireRequest) -> None:
    answer, _ = in_one_step(request)
    assert answer == by_trigger(request)
    if isinstance(answer, EncodedTrigger):
        envelope = decode(answer.encoded.data)
        assert from_envelope(envelope) == read_fire(request, get_category)


def fire(**changes: Any) -> wire.FireRequest:
    values = {"fire_id": "f", "task_id": "t", "thread_id": "t", "channel": "c", "category": "work", "kind": "manual"}
    request = wire.FireRequest(**{**values, "attempt": 1, "prompt": "Go."} | changes)
    request.nominal_at.FromDatetime(START)
    return request


def test_fires_take_one_step_whatever_their_texts_are() -> None:
    said = [{name: json.dumps({text: text}, ensure_ascii=False)} for text in AWKWARD for name in OBJECTS]
    said += [{"prompt": text} for text in AWKWARD if "channel" not in text]
    said += [{"task_id": "loop-1"}, {"category": "awkward"}, {"context_json": "{}", "approval_timeout_s": 60}]
    for fields in said:
        request = fire(**fields)
        answer, at_once = in_one_step(request)
        assert at_once, fields
        assert answer == by_trigger(request)


def test_what_a_form_cannot_hold_goes_the_usual_way() -> None:
    for request in (fire(category="marked"), fire(category="timed"), fire(category="half"), fire(thread_id="a<b>")):
        answer, at_once = in_one_step(request)
        assert not at_once
        assert answer == by_trigger(request)


def test_a_category_that_was_edited_is_granted_as_it_is_now(monkeypatch: Any) -> None:
    before, _ = in_one_step(fire())
    monkeypatch.setitem(CATEGORIES, "work", Category(name="work", tools=frozenset({"page.propose"})))
    after, at_once = in_one_step(fire())
    assert at_once
    assert isinstance(before, EncodedTrigger)
    assert isinstance(after, EncodedTrigger)
    assert decode(after.encoded.data).meta["grant"]["tools"] == ["page.propose"]
    assert after.header.digest == before.header.digest, "a retry is still a duplicate"


def test_a_fire_that_no_envelope_holds_is_refused_as_before() -> None:
    request = fire(prompt="\0" * (LARGEST_BYTES // 6))
    answer, at_once = in_one_step(request)
    assert not at_once
    assert answer == by_trigger(request)
    assert answer[0] is InvalidInput
