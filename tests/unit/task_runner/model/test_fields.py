"""A task's field is described once: what is derived from the table agrees with the contract and the model."""

import dataclasses
import inspect
from datetime import UTC, datetime, timedelta
from typing import Any, get_origin

import pytest

from task_runner.cli.declare.task_file import TaskTable
from task_runner.cli.rows import task_row
from task_runner.cli.tasks import create, edit
from task_runner.model.fields import BY_NAME, DIRECT, FIELDS, SCHEDULES, given, put
from task_runner.model.task import EACH_FIRE, CatchUp, Definition, Overlap
from task_runner.service.task_spec import Defaults, parse_spec, write_spec
from task_runner.store.rows import decode_definition, encode_definition
from turnkeeper.errors import InvalidInput
from turnkeeper.v1 import schedules_pb2 as wire

# What no author writes, and what is more than one value.
NOT_DECLARED = {"created_by"}
COMPOSED = {"schedule", "on", "created_by"}
COMMANDS_OWN = {"name", "category", "channel", "paused"}
NOW = datetime(2026, 11, 20, tzinfo=UTC)
# A value other than the default for every field that stands for itself.
SAMPLES: dict[str, Any] = {
    "name": "digest", "timezone": "Europe/Riga", "category": "loop", "channel": "general", "prompt": "Say hello.",
    "payload_json": '{"depth":2}', "catch_up": "run-all", "grace": "5m", "catch_up_window": "1d", "max_catch_up": 7,
    "overlap": "queue", "jitter": "30s", "exclude": ["2026-12-24"], "start_at": "2026-11-21T00:00:00Z",
    "end_at": "2027-11-21T00:00:00Z", "expires_at": "2028-11-21T00:00:00Z", "max_fires": 9, "retries": 2,
    "pause_after_failures": 3, "budget": {"tokens_per_day": 1000}, "thread_id": "shared", "agent": "agent1",
    "queue": "gpu", "needs": "gpu", "read_only": True, "ephemeral": True, "ignore_calendar": True, "tags": {"team": "ops"}, "approval_reminder": "1h",
    "approval_escalation": "2h", "approval_timeout": "1d", "graph": "research", "context_json": '{"unit":"mm"}',
    "config_json": '{"model":"small"}', "input_json": '{"topic":"pumps"}', "run_json": '{"stream_modes":["values"]}',
}  # fmt: skip
SELF_PACED = {"first": "10m", "if_silent": "wait"}


def sample(**more: Any) -> wire.TaskSpec:
    spec = wire.TaskSpec(cron="0 9 * * *")
    for name, value in (SAMPLES | more).items():
        put(spec, name, value)
    return spec


def parsed(spec: wire.TaskSpec, **more: Any) -> Definition:
    return parse_spec(spec, Defaults(timezone="UTC"), NOW, **more)


def test_the_table_has_every_field_of_the_contract() -> None:
    assert set(BY_NAME) == set(wire.TaskSpec.DESCRIPTOR.fields_by_name) - NOT_DECLARED
    assert len(FIELDS) == len(BY_NAME)
    for field in FIELDS:
        repeated = wire.TaskSpec.DESCRIPTOR.fields_by_name[field.name].is_repeated
        assert repeated == (get_origin(field.kind.type) is not None), field.name


def test_the_table_has_every_attribute_of_a_definition() -> None:
    attributes = {each.name for each in dataclasses.fields(Definition)}
    assert {field.name for field in DIRECT} == attributes - COMPOSED
    assert {field.attribute for field in FIELDS if field.attribute} <= COMPOSED
    assert set(SCHEDULES) == {each.name for each in wire.TaskSpec.DESCRIPTOR.oneofs_by_name["schedule"].fields}


@pytest.mark.parametrize("command", [create, edit])
def test_every_field_has_an_option(command: Any) -> None:
    own = {name.rstrip("_") for name in inspect.signature(command).parameters}
    options = own - {"dry_run", "output", "prompt_file", "file", "after"} - COMMANDS_OWN
    assert options == {field.name for field in FIELDS if field.flag}
    assert {field.name for field in FIELDS if not field.flag} == COMMANDS_OWN | {"id", "run_json"}
    assert all(field.help.endswith(".") for field in FIELDS if field.flag)


def test_every_field_is_a_key_of_task_files() -> None:
    assert set(TaskTable.model_fields) == {field.written_as for field in FIELDS}


def test_every_field_is_a_key_of_json_output() -> None:
    row = task_row(wire.Task(spec=sample()))
    keys = {field.written_as for field in FIELDS if field.attribute not in {"", "schedule"}}
    assert keys <= set(row)
    samples = {BY_NAME[name].written_as: value for name, value in SAMPLES.items()}
    samples |= {"payload": {"depth": 2}, "context": {"unit": "mm"}, "config": {"model": "small"}}
    samples |= {"input": {"topic": "pumps"}, "run": {"stream_modes": ["values"]}}
    assert {key: row[key] for key in samples} == samples


def test_every_field_survives_the_model_the_store_and_the_wire() -> None:
    assert set(SAMPLES) | set(SELF_PACED) == {field.name for field in DIRECT}
    definition = parsed(sample())
    assert decode_definition(encode_definition(definition)) == definition
    assert {name: given(write_spec(definition))[name] for name in SAMPLES} == SAMPLES
    defaults = {each.name: each.default for each in dataclasses.fields(Definition)}
    assert not [name for name in SAMPLES if getattr(definition, name) == defaults[name]]


def test_the_fields_of_self_paced_tasks_survive_too() -> None:
    spec = wire.TaskSpec(name="pace", dynamic=True, category="loop", channel="general", prompt="p", **SELF_PACED)
    definition = parsed(spec)
    assert (definition.first, definition.if_silent) == (timedelta(minutes=10), "wait")
    assert decode_definition(encode_definition(definition)) == definition
    assert {name: given(write_spec(definition))[name] for name in SELF_PACED} == SELF_PACED


def test_a_thread_for_each_fire_is_written_as_each_and_is_no_thread_of_that_name() -> None:
    definition = parsed(sample(thread_id="each"))
    assert definition.thread_id == EACH_FIRE
    assert decode_definition(encode_definition(definition)) == definition
    assert write_spec(definition).thread_id == "each"
    before = dataclasses.replace(definition, thread_id="each")  # as an earlier version stored a thread of that name
    assert decode_definition(encode_definition(before)).thread_id == "each"
    with pytest.raises(InvalidInput, match="thread_id: a self-paced task continues its thread"):
        parsed(wire.TaskSpec(name="p", dynamic=True, category="c", channel="g", prompt="p", thread_id="each"))


def test_a_field_that_is_left_out_has_the_models_default() -> None:
    spec = wire.TaskSpec(name="bare", cron="0 9 * * *", category="loop", channel="general", prompt="p")
    definition = parsed(spec)
    assert (definition.catch_up, definition.overlap) == (CatchUp.RUN_ONCE, Overlap.COALESCE)
    assert (definition.max_catch_up, definition.agent) == (1000, "agent0")
    assert parsed(write_spec(definition)) == definition


def test_json_output_shows_defaults_where_a_spec_says_nothing() -> None:
    row = task_row(wire.Task(spec=wire.TaskSpec(name="bare", cron="0 9 * * *")))
    assert (row["max_catch_up"], row["jitter"], row["tags"], row["exclude"]) == (1000, "0s", {}, [])
    assert (row["start_at"], row["payload"], row["read_only"]) == (None, None, False)
