"""Rows and values say the same."""

from datetime import timedelta

from task_runner.model.task import CatchUp, Fire, FireKind, Outcome, TaskId
from task_runner.store.rows import COLUMNS_OF_A_FIRE, fire_of, row_of_new_fire
from task_runner.store.schema import fires
from tests.unit.task_runner.simulated import at


def test_an_entry_comes_back_from_its_row_each_field_in_its_place() -> None:
    fire = Fire(
        task_id=TaskId("task-00000001"), kind=FireKind.BACKFILL, nominal_at=at(1), due_at=at(2), outcome=Outcome.RUNNING,
        first_at=at(3), last_at=at(4), count=5, entry_id=6, fire_id="seven", reason="eight", attempt=9,
        policy=CatchUp.RUN_ALL, caught_up=True, released=True, send_by=at(10), ready_at=at(11), refusals=12,
        fired_at=at(13), accepted_at=at(14), started_at=at(15), ended_at=at(16), turn_id="17", request_id="18",
        retries=19, spent=timedelta(seconds=20), tokens=21,
    )  # fmt: skip
    row = row_of_new_fire(fire) | {"entry_id": 6}
    columns = [column.name for column in fires.columns]
    assert len(columns) == COLUMNS_OF_A_FIRE
    assert set(row) == set(columns)
    assert fire_of([row[name] for name in columns]) == fire
    assert fire_of([*(row[name] for name in columns), b"a request behind them"]) == fire
