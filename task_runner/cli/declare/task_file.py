"""Task files: conversion between the `[[task]]` tables of TOML files and specs."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_origin

from pydantic import BaseModel, ConfigDict, Field, create_model

from task_runner.model.fields import EXCLUSIONS, FIELDS, JSON, LIMITS, SCHEDULES, given, put
from task_runner.model.task import own_thread
from turnkeeper.config.surfaces import offered, required
from turnkeeper.config.toml_file import TomlFile, read_toml
from turnkeeper.console.unseen import plain
from turnkeeper.errors import InvalidInput
from turnkeeper.v1 import schedules_pb2 as wire

_CONTROL = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}

# The range of numbers that the contract allows.
Whole = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]
_REQUIRED = frozenset({"name", "category", "channel"})
_TYPES: dict[Any, Any] = {
    str: str | None,
    bool: bool | None,
    int: Whole | None,
    object: dict[str, Any] | str | None,
    dict[str, int]: dict[str, Whole | float],
}


def _table_model() -> type[BaseModel]:
    """Return the model of one `[[task]]`. The runner validates the values."""
    columns: dict[str, Any] = {}
    for field in FIELDS:
        kind = _TYPES.get(field.kind.type, field.kind.type)
        empty = Field(default_factory=get_origin(kind)) if get_origin(kind) in {list, dict} else None
        columns[field.written_as] = (str, ...) if field.name in _REQUIRED else (kind, empty)
    return create_model("TaskTable", __config__=ConfigDict(extra="forbid", strict=True), **columns)


TaskTable: Any = _table_model()


class TaskFile(BaseModel):
    """A whole task file."""

    model_config = ConfigDict(extra="forbid")

    task: list[Any] = Field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Declared:
    """A task as a file declares it.

    Attributes:
        number: the index of its `[[task]]` in the file, from 0.
    """

    spec: wire.TaskSpec
    file: TomlFile
    number: int

    def where(self, field: str) -> str:
        """Return the file, line and key of a field, or those of the task if the file does not give the field."""
        table = self.file.data["task"][self.number]
        key = next((kind for kind in SCHEDULES if kind in table), "name") if field == "schedule" else field
        return self.file.where(("task", self.number, key if key in table else "name"))


def read_declarations(paths: Iterable[Path]) -> list[Declared]:
    """Return the tasks that files declare, and those of the `*.toml` files in folders, in order.

    Raises:
        NotFound: a file does not exist.
        InvalidInput: not TOML, an unknown key, or a value of the wrong type; the error names file, line and key.
    """
    declared: list[Declared] = []
    for path in paths:
        for file in sorted(path.glob("*.toml")) if path.is_dir() else [path]:
            declared += _read(file)
    seen: dict[str, Declared] = {}
    for each in declared:
        if (first := seen.setdefault(each.spec.name, each)) is not each:
            what = f"{each.spec.name!r} is already declared, at {first.where('name')}"
            raise InvalidInput(what, where=each.where("name"))
    return declared


def declaration_of(task: wire.Task) -> wire.TaskSpec:
    """Return the declaration of a task, which is also valid in another home."""
    spec = wire.TaskSpec()
    spec.CopyFrom(task.spec)
    if spec.thread_id == own_thread(task.id, spec.graph):
        spec.ClearField("thread_id")  # the task's own thread, which differs in another home
    if task.id.startswith("loop-") and task.id != spec.name:
        spec.id = task.id  # makes the task a loop in another home too
    return spec


def write_declarations(specs: Iterable[wire.TaskSpec]) -> str:
    """Return TOML that :func:`read_declarations` reads back as the same tasks."""
    return "\n".join(map(_table, specs))


def _read(path: Path) -> list[Declared]:
    file = read_toml(path)
    count = len(file.validate(TaskFile).task)
    tables = [file.validate_at(TaskTable, file.data["task"][number], ("task", number)) for number in range(count)]
    for number, table in enumerate(tables):
        schedules = [name for name in SCHEDULES if getattr(table, name) is not None]
        if len(schedules) > 1 or not (schedules or table.on):
            what = f"one of {', '.join(SCHEDULES)} is required, or on"
            raise InvalidInput(what, where=file.where(("task", number, "name")))
        if table.prompt is None and not table.input:
            what = "a prompt is required, or an input"
            raise InvalidInput(what, where=file.where(("task", number, "name")))
    specs = [_spec(table, path.parent) for table in tables]
    return [Declared(spec=spec, file=file, number=number) for number, spec in enumerate(specs)]


def _spec(table: Any, folder: Path) -> wire.TaskSpec:
    spec = wire.TaskSpec()
    for field in FIELDS:
        value = getattr(table, field.written_as)
        if field.kind is EXCLUSIONS and value:
            value = required("exclusions", value, folder)
        if field.kind is JSON and isinstance(value, dict):
            value = json.dumps(value, ensure_ascii=False, default=str)
        if field.kind is LIMITS:
            value = {key: _limit(key, limit) for key, limit in value.items()}
        if value is not None:
            put(spec, field.name, value)
    return spec


def _limit(key: str, limit: float) -> int:
    """Return a limit of a budget; convert an amount of money, such as 2.50, to millionths. Raises InvalidInput."""
    is_money = offered("amount of money", key, "1") is not None
    if is_money is not isinstance(limit, float):
        hint = "write an amount such as 2.50; earlier versions wrote millionths" if is_money else "write a whole number"
        raise InvalidInput(f"{key} cannot be {limit}", where="budget", hint=hint)
    amount: int | None = offered("amount of money", key, f"{limit:.6f}")
    if is_money and amount is None:
        raise InvalidInput(f"{key} cannot be {limit}", where="budget", hint="write an amount such as 2.50")
    return int(limit) if amount is None else amount


def _table(spec: wire.TaskSpec) -> str:
    values = given(spec)
    values |= {"budget": offered("shown budget", values["budget"]) or values["budget"]} if "budget" in values else {}
    for name in (field.name for field in FIELDS if field.kind is JSON and field.name in values):
        # TOML has no null, so a value that contains null stays JSON text.
        values[name] = values[name] if "null" in values[name] else json.loads(values[name])
    lines = ["[[task]]"]
    for field in FIELDS:
        value = values.get(field.name)
        if value not in (None, {}, []) and value != field.default:
            lines.append(f"{field.written_as} = {_value(value)}")
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
    if character in _CONTROL or plain(character) == character:
        return _CONTROL.get(character, character)
    return f"\\U{ord(character):08x}" if character > "\uffff" else f"\\u{ord(character):04x}"
