"""Many tasks declared at once become what each would have become alone, though they are read and written faster."""

import json
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from task_runner.model.fields import DIRECT
from task_runner.model.task import CreatedBy, Definition, TaskId
from task_runner.service import changes, task_spec
from task_runner.service.task_spec import Defaults, parse_spec
from task_runner.store.rows import encode_definition, row_of_task
from task_runner.store.store import Store
from tests.support.seeded_entropy import SeededEntropy
from turnkeeper.errors import TurnkeeperError
from turnkeeper.v1 import schedules_pb2 as wire

NOW = datetime(2026, 3, 2, 9, 0, 30, 250_000, tzinfo=UTC)
DEFAULTS = Defaults(timezone="Europe/Riga", grace=timedelta(seconds=45))
SCHEDULES: list[dict[str, Any]] = [
    {"cron": "H 9 * * *"}, {"cron": "0 9 * * 1-5"}, {"every": "90s"}, {"at": "2026-04-01T09:00:00"}, {"in": "2h"},
    {"rrule": "FREQ=DAILY"}, {"dynamic": True}, {"on": "deploy"}, {"at": "2020-01-01T00:00:00Z"}, {"cron": "x"}, {},
]  # fmt: skip
OTHERS: list[dict[str, Any]] = [
    {}, {"thread_id": "each"}, {"thread_id": "task-00000001"}, {"thread_id": "t"}, {"tags": {"team": "ops", "a": "ü"}},
    {"budget": {"tokens_per_day": 5}}, {"catch_up": "run-all"}, {"overlap": "queue"}, {"catch_up": "run-all", "overlap": "skip"},
    {"grace": "5m", "jitter": "30s", "retries": 2, "max_fires": 3}, {"payload_json": '{"a": ["\\u2028", 1e300]}'},
    {"exclude": ["2026-12-24..2026-12-26"]}, {"expires_at": "30d"}, {"start_at": "2026-04-01", "end_at": "2026-03-01"},
    {"read_only": True, "ephemeral": True}, {"agent": "agent1"}, {"timezone": "Asia/Tokyo"}, {"timezone": "Atlantis"},
    {"created_by": wire.CreatedBy(turn_id="t1", category="work", agent="agent0")}, {"paused": True}, {"channel": ""},
    {"approval_reminder": "2h", "approval_timeout": "1h"}, {"first": "5m"}, {"graph": "research", "context_json": "{}"},
]  # fmt: skip
SPECS = st.lists(
    st.tuples(st.sampled_from(SCHEDULES), st.sampled_from(OTHERS), st.sampled_from(["p", "\x7f\x1f ü\u2028😀", ""])),
    min_size=1,
    max_size=6,
)


def specs_of(drawn: list[Any]) -> list[wire.TaskSpec]:
    usual = {"category": "c", "channel": "general"}
    # Twice each, so that there are specs that differ only in their names.
    return [
        wire.TaskSpec(**{**usual, **schedule, **others, "prompt": prompt, "name": f"n-{number}-{again}"})
        for again in range(2)
        for number, (schedule, others, prompt) in enumerate(drawn)
    ]


def outcome(make: Any) -> Any:
    try:
        return make()
    except TurnkeeperError as error:
        return type(error), str(error)


@example([({"every": "90s"}, {"thread_id": "task-00000001"}, "p")])
@example([({"cron": "H 9 * * *"}, {}, "p")])
@given(SPECS)
def test_a_spec_that_is_like_another_is_read_as_if_it_were_alone(drawn: list[Any]) -> None:
    alike: dict[bytes, Any] = {}
    for number, spec in enumerate(specs_of(drawn)):
        before, id_ = spec.SerializeToString(deterministic=True), TaskId(f"task-{number:08x}")
        many = outcome(lambda: changes._new_task_like(spec, id_, DEFAULTS, NOW, alike))  # noqa: B023
        assert many == outcome(lambda: changes._new_task(spec, id_, DEFAULTS, NOW))  # noqa: B023
        assert spec.SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("bad", ["Digest", "", "x" * 64, "task-00000009"])
def test_a_name_is_checked_where_a_spec_is_like_another(bad: str) -> None:
    alike: dict[bytes, Any] = {}
    good, other = (wire.TaskSpec(name=name, every="1h", category="c", channel="c", prompt="p") for name in ("a", bad))
    changes._new_task_like(good, TaskId("task-00000001"), DEFAULTS, NOW, alike)
    with pytest.raises(TurnkeeperError):
        changes._new_task_like(other, TaskId("task-00000002"), DEFAULTS, NOW, alike)


async def test_a_batch_writes_the_rows_that_one_after_another_writes(tmp_path: Path) -> None:
    specs = [
        spec
        for spec in specs_of([(schedule, others, "p") for schedule in SCHEDULES for others in OTHERS])
        if not isinstance(outcome(lambda: parse_spec(spec, DEFAULTS, NOW, own_id="task-00000001")), tuple)  # noqa: B023
        and not spec.HasField("created_by")  # of which an agent may have few
    ]
    assert len(specs) > 200
    rows = []
    for name in ("one", "many"):
        store, entropy = Store(tmp_path / f"{name}.db"), SeededEntropy(1)

        def work(session: Any, name: str = name, entropy: Any = entropy) -> Any:
            if name == "one":
                done = [changes.create(session, spec, DEFAULTS, NOW, entropy, by="x/cli") for spec in specs]
            else:
                done = changes.apply(session, specs, DEFAULTS, NOW, entropy, by="x/cli")
            written = {task.definition.name: task for task in session.tasks.listed()}
            assert [written[change.task.definition.name] for change in done] == [change.task for change in done]
            revisions = {name: session.tasks.revisions(task.id) for name, task in written.items()}
            return {
                name: row_of_task(task) | {"id": "", "paced_thread": ""} for name, task in written.items()
            }, revisions

        rows.append(await store.run(work))
        store.close()
    assert rows[0] == rows[1]


@pytest.mark.parametrize(
    "field", [each for each in DIRECT if each.name not in task_spec._ALWAYS_READ], ids=lambda each: each.name
)
def test_a_field_that_a_spec_leaves_out_has_the_models_default(field: Any) -> None:
    spec = wire.TaskSpec(name="a", every="1h", category="c", channel="c", prompt="p")
    default = {each.name: each.default for each in fields(Definition)}[field.name]
    previous = parse_spec(spec, DEFAULTS, NOW)
    given_ = task_spec._Given(spec, "UTC", DEFAULTS, NOW, previous, "task-00000001")
    assert getattr(previous, field.name) == default
    has_presence = wire.TaskSpec.DESCRIPTOR.fields_by_name[field.name].has_presence
    if field.name in task_spec._PARSERS or not has_presence:
        assert task_spec._parsed(field, given_) == default


@given(SPECS)
def test_a_definition_is_stored_as_the_standard_encoder_writes_it(drawn: list[Any]) -> None:
    for spec in specs_of(drawn):
        definition = outcome(lambda: parse_spec(spec, DEFAULTS, NOW))  # noqa: B023
        if isinstance(definition, tuple):
            continue
        text = encode_definition(definition)
        assert text == json.dumps(json.loads(text), ensure_ascii=False, separators=(",", ":"), sort_keys=True)
        for field in DIRECT:
            value = getattr(definition, field.name)
            stored = None if value is None else field.kind.store(value)
            assert json.loads(text)[field.name] == json.loads(json.dumps(stored))


def test_what_only_the_slower_encoder_takes_is_stored_by_it() -> None:
    definition = parse_spec(wire.TaskSpec(name="a", every="1h", category="c", channel="c", prompt="p"), DEFAULTS, NOW)
    maker = CreatedBy(turn_id="\ud800", category="c", agent="a")
    assert json.loads(encode_definition(replace(definition, created_by=maker)))["created_by"][0] == "\ud800"
