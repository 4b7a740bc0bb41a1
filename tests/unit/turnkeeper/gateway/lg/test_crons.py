"""Crons as tasks, and tasks as crons."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from task_runner.model.fields import check_label
from turnkeeper.errors import InvalidInput
from turnkeeper.gateway.lg.crons import changed_spec, cron_of, metadata_of, spec_of, tags_of
from turnkeeper.v1 import schedules_pb2 as wire

SAID = {"messages": [{"role": "user", "content": "What is new?"}]}
CRON = {"assistant_id": "agent0", "schedule": "0 9 * * *", "input": SAID}


def made(thread_id: str = "t1", **body: Any) -> wire.TaskSpec:
    given_body = {**CRON, **body}
    return spec_of(given_body, thread_id=thread_id, channel="general", name="cron-1", category="loop", graph="")


def task(spec: wire.TaskSpec, **rest: Any) -> wire.Task:
    return wire.Task(id="task-1", spec=spec, **{"kind": "cron", "state": "active", **rest})


def test_a_cron_becomes_a_task_with_its_zone_written() -> None:
    spec = made(end_time="2027-01-01T00:00:00+00:00", multitask_strategy="enqueue", metadata={"name": "digest"})
    assert (spec.name, spec.cron, spec.timezone, spec.thread_id) == ("digest", "0 9 * * *", "Etc/UTC", "t1")
    assert (spec.prompt, spec.end_at, spec.overlap) == ("What is new?", "2027-01-01T00:00:00+00:00", "queue")
    assert made(thread_id="", timezone="Europe/Paris").timezone == "Europe/Paris"
    assert made(thread_id="").thread_id == "each"


def test_what_a_cron_says_is_read_back_from_its_task() -> None:
    config = {"configurable": {"user": "ada"}}
    metadata = {"team": "ops", "priority": 3, "link": "https://example.org/a"}
    cron = cron_of(task(made(metadata=metadata, config=config, context={"model": "small"})), "id")
    assert (cron["schedule"], cron["timezone"], cron["thread_id"], cron["enabled"]) == (
        "0 9 * * *",
        "Etc/UTC",
        "t1",
        True,
    )
    assert {key: cron["metadata"][key] for key in metadata} == metadata
    assert cron["payload"]["input"] == SAID
    assert (cron["payload"]["config"], cron["payload"]["context"]) == (config, {"model": "small"})
    assert cron["on_run_completed"] is None
    assert cron_of(task(made(thread_id="")), "id")["on_run_completed"] == "keep"


def test_fields_of_the_input_beside_the_messages_go_along() -> None:
    spec = made(input={**SAID, "language": "en"})
    assert json.loads(spec.input_json) == {"language": "en"}
    assert cron_of(task(spec), "id")["payload"]["input"] == {**SAID, "language": "en"}


SHORT = st.text(max_size=6).filter(lambda text: all(ord(one) < 0x80 for one in text))
METADATA = st.dictionaries(SHORT.filter(bool), SHORT | st.integers(-999, 999) | st.booleans() | st.none(), max_size=4)


@given(METADATA.filter(lambda metadata: not {"name", "kind", "turnkeeper"} & set(metadata)))
def test_metadata_survive_as_labels_that_a_task_takes(metadata: dict[str, Any]) -> None:
    tags = tags_of(metadata)
    assert all(check_label(text, "tags") for pair in tags.items() for text in pair)
    found = metadata_of(task(wire.TaskSpec(name="a", cron="* * * * *", tags=tags)))
    assert {key: value for key, value in found.items() if key not in {"name", "turnkeeper"}} == metadata


def test_a_task_that_is_no_cron_is_shown_as_people_read_it_and_keeps_its_schedule() -> None:
    every = task(wire.TaskSpec(name="walk", every="7m", prompt="Go."), kind="every", schedule="every 7m, exactly")
    cron = cron_of(every, "id")
    assert (cron["schedule"], cron["metadata"]["kind"]) == ("every 7m, exactly", "every")
    with pytest.raises(InvalidInput, match="turnkeeper task edit walk"):
        changed_spec(every, {"schedule": "* * * * *"}, None)


def test_a_change_leaves_the_rest_and_labels_of_others_as_they_are() -> None:
    before = made(metadata={"team": "ops"})
    before.tags["owner"] = "ada"
    after = changed_spec(task(before), {"schedule": "5 * * * *", "metadata": {"team": "dev"}, "end_time": None}, None)
    assert (after.cron, dict(after.tags), after.prompt) == (
        "5 * * * *",
        {"lg.team": "dev", "owner": "ada"},
        before.prompt,
    )
    assert not after.HasField("end_at")


REFUSED = [
    ({"on_run_completed": "delete"}, "on_run_completed"),
    ({"multitask_strategy": "rollback"}, "multitask_strategy"),
    ({"webhook": "https://example.org"}, "webhook"),
    ({"interrupt_before": ["agent"]}, "interrupt_before"),
    ({"input": {}}, "input: is missing"),
    ({"input": None}, "input: is missing"),
    ({"schedule": ""}, "schedule"),
    ({"metadata": {"long": "x" * 80}}, "metadata.long"),
    ({"config": {"recursion_limit": 5}}, "config.recursion_limit"),
]


@pytest.mark.parametrize(("body", "why"), REFUSED)
def test_what_a_task_does_not_have_is_refused_with_the_reason(body: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        made(**body)


def test_an_input_that_is_more_than_one_text_is_the_tasks_whole_input() -> None:
    given = {"messages": [], "value": "init", "items": []}
    spec = made(input=given)
    assert (spec.prompt, json.loads(spec.input_json)) == ("", given)
    two = {"messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hello"}]}
    assert json.loads(made(input=two).input_json) == two
