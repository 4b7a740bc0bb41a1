"""Task files: `[[task]]` tables of TOML as specs, and specs as TOML."""

import importlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from protos.turnkeeper.v1 import schedules_pb2 as wire
from turnkeeper.config.toml_file import TomlFile, read_toml
from turnkeeper.errors import InvalidInput

_SCHEDULES = ("cron", "every", "at", "in", "rrule", "dynamic")
_ORDER = (
    "id", *_SCHEDULES, "on", "filters", "debounce", "first", "if_silent", "timezone", "category", "channel", "prompt",
    "payload", "catch_up", "grace", "catch_up_window", "max_catch_up", "overlap", "jitter", "exclude", "start_at",
    "end_at", "expires_at", "max_fires", "retries", "pause_after_failures", "budget", "thread_id", "agent",
    "read_only", "ephemeral", "paused", "tags",
)  # fmt: skip
_APART = {"tags", "payload", "exclude", "budget", "filters"}
_UNTOLD = {"agent": "agent0", "read_only": False, "paused": False, "max_catch_up": 1000}
_CONTROL = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


# What a field of the contract can hold.
Whole = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]


class TaskTable(BaseModel):
    """One `[[task]]`; what its values mean is checked by the runner."""

    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=True)

    name: str
    id: str | None = None
    category: str
    channel: str
    prompt: str
    cron: str | None = None
    every: str | None = None
    at: str | None = None
    in_: str | None = Field(None, alias="in")
    rrule: str | None = None
    dynamic: bool | None = None
    on: str | None = None
    filters: list[str] = Field(default_factory=list)
    debounce: str | None = None
    first: str | None = None
    if_silent: str | None = None
    exclude: list[str] = Field(default_factory=list)
    timezone: str | None = None
    payload: dict[str, Any] | str | None = None
    catch_up: str | None = None
    grace: str | None = None
    catch_up_window: str | None = None
    max_catch_up: Whole | None = None
    overlap: str | None = None
    jitter: str | None = None
    start_at: str | None = None
    end_at: str | None = None
    expires_at: str | None = None
    max_fires: Whole | None = None
    retries: Whole | None = None
    pause_after_failures: Whole | None = None
    budget: dict[str, Whole] = Field(default_factory=dict)
    thread_id: str | None = None
    agent: str | None = None
    read_only: bool | None = None
    ephemeral: bool | None = None
    paused: bool | None = None
    tags: dict[str, str] = Field(default_factory=dict)


class TaskFile(BaseModel):
    """A whole file."""

    model_config = ConfigDict(extra="forbid")

    task: list[Any] = Field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Declared:
    """A task as a file declares it.

    Attributes:
        spec: the task.
        file: where it was read.
        number: which `[[task]]` of that file, from 0.
    """

    spec: wire.TaskSpec
    file: TomlFile
    number: int

    def where(self, field: str) -> str:
        """Return file, line and key of a field; the task itself where the file does not give that field."""
        table = self.file.data["task"][self.number]
        key = next((kind for kind in _SCHEDULES if kind in table), "name") if field == "schedule" else field
        return self.file.where(("task", self.number, key if key in table else "name"))


def read_declarations(paths: Iterable[Path]) -> list[Declared]:
    """Return the tasks that files, and the `*.toml` of folders, declare, in order.

    Raises:
        NotFound: no such file.
        InvalidInput: not TOML, an unknown key, a value of the wrong type; with file, line and key.
    """
    declared: list[Declared] = []
    for path in paths:
        for file in sorted(path.glob("*.toml")) if path.is_dir() else [path]:
            declared += _read(file)
    seen: dict[str, Declared] = {}
    for each in declared:
        if (first := seen.setdefault(each.spec.name, each)) is not each:
            what = f"{each.spec.name!r} is declared already, at {first.where('name')}"
            raise InvalidInput(what, where=each.where("name"))
    return declared


def write_declarations(specs: Iterable[wire.TaskSpec]) -> str:
    """Return TOML that :func:`read_declarations` reads back as the same tasks."""
    return "\n".join(map(_table, specs))


def _read(path: Path) -> list[Declared]:
    file = read_toml(path)
    count = len(file.validate(TaskFile).task)
    tables = [file.validate_at(TaskTable, file.data["task"][number], ("task", number)) for number in range(count)]
    for number, table in enumerate(tables):
        given = [name for name in _SCHEDULES if getattr(table, "in_" if name == "in" else name) is not None]
        if len(given) > 1 or not (given or table.on):
            what = "one of cron, every, at, in, rrule, dynamic is required, or on"
            raise InvalidInput(what, where=file.where(("task", number, "name")))
    specs = [_spec(table, path.parent) for table in tables]
    return [Declared(spec=spec, file=file, number=number) for number, spec in enumerate(specs)]


def _spec(table: TaskTable, folder: Path) -> wire.TaskSpec:
    spec = wire.TaskSpec()
    plain = table.model_dump(by_alias=True, exclude_none=True, exclude=_APART)
    for name, value in plain.items():
        setattr(spec, name, value)
    spec.budget.update(table.budget)
    spec.filters.extend(table.filters)
    if table.exclude:
        # Imported only now: few tasks exclude anything, and reading calendars takes a library.
        exclusions = importlib.import_module("task_runner.cli.exclusions")
        spec.exclude.extend(exclusions.read_exclusions(table.exclude, folder))
    if table.payload is not None:
        text = table.payload
        spec.payload_json = text if isinstance(text, str) else json.dumps(text, ensure_ascii=False, default=str)
    spec.tags.update(table.tags)
    return spec


def _table(spec: wire.TaskSpec) -> str:
    fields: dict[str, Any] = {field.name: value for field, value in spec.ListFields()}
    fields["tags"], fields["budget"] = dict(spec.tags), dict(spec.budget)
    fields["exclude"], fields["filters"] = list(spec.exclude), list(spec.filters)
    if payload := fields.pop("payload_json", ""):
        # TOML has no null: such a payload stays JSON.
        fields["payload"] = payload if "null" in payload else json.loads(payload)
    lines = ["[[task]]", f"name = {_value(spec.name)}"]
    for name in _ORDER:
        value = fields.get(name)
        if value not in (None, {}, []) and value != _UNTOLD.get(name):
            lines.append(f"{name} = {_value(value)}")
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, dict):
        pairs = (f"{_string(key)} = {_value(item)}" for key, item in value.items() if item is not None)
        return f"{{{', '.join(pairs)}}}"
    return _string(str(value))


def _string(text: str) -> str:
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(character: str) -> str:
    if character in _CONTROL:
        return _CONTROL[character]
    return f"\\u{ord(character):04x}" if ord(character) < 0x20 or ord(character) == 0x7F else character
