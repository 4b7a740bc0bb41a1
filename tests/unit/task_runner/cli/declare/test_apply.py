"""Errors of a file of tasks name the file, the line and the key."""

from pathlib import Path
from typing import Any

import pytest

from task_runner.cli.declare.apply import _apply
from task_runner.cli.declare.task_file import read_declarations
from turnkeeper.errors import InvalidInput
from turnkeeper.v1 import schedules_pb2 as wire

TASK = '[[task]]\nname = "{}"\nevery = "1h"\ncategory = "{}"\nchannel = "general"\nprompt = "p"\n'


class Refusing:
    """A runner that refuses a category, without saying of which task."""

    def call(self, _request: Any) -> Any:
        raise InvalidInput("unknown category 'lop'", where="category")


def test_a_refused_name_leads_to_the_first_task_that_uses_it(tmp_path: Path) -> None:
    path = tmp_path / "tasks.toml"
    path.write_text(TASK.format("one", "loop") + TASK.format("two", "lop") + TASK.format("three", "lop"))
    declared = read_declarations([path])
    with pytest.raises(InvalidInput) as refused:
        _apply(Refusing(), declared, wire.ApplyTasksRequest())  # type: ignore[arg-type]
    assert refused.value.where == f"{path}:10: task.category"
