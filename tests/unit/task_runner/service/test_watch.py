"""Changes for those who watch: in order, from a place on, and honest about what is gone."""

import asyncio

import pytest

from task_runner.service.watch import Change, Changed, TaskChanges
from turnkeeper.errors import InvalidInput


def test_records_of_tasks_are_changes_and_others_are_not() -> None:
    kept = TaskChanges("abc")
    names = ("task.created", "fire.sent", "task.paused", "cursor.moved", "fire.settled", "task.updated", "task.deleted")
    kept.note([(name, {"task_id": "a"}) for name in names] + [("runtime.refused", {"reason": "x"})])
    kinds = (Change.CREATED, Change.FIRED, Change.PAUSED, Change.CHANGED, Change.CHANGED, Change.DELETED)
    assert kept.since(0) == [Changed(number, kind, "a") for number, kind in enumerate(kinds, 1)]
    assert kept.since(5) == [Changed(6, Change.DELETED, "a")]
    assert kept.since(6) == []


def test_a_reader_that_is_too_slow_finds_out() -> None:
    kept = TaskChanges("abc", most=3)
    kept.note([("task.created", {"task_id": "a"})] * 5)
    assert kept.since(1) is None
    assert [each.number for each in kept.since(2) or ()] == [3, 4, 5]


def test_a_cursor_means_something_in_one_run_alone() -> None:
    kept = TaskChanges("abc")
    kept.note([("task.created", {"task_id": "a"})] * 2)
    assert kept.number_at(kept.cursor(1)) == 1
    assert TaskChanges("def").number_at(kept.cursor(1)) is None
    assert TaskChanges("abc").number_at(kept.cursor(1)) is None, "it would be of the future"
    for text in ("x", "YWZ0ZXIgMw", kept.cursor(1)[:-3]):
        with pytest.raises(InvalidInput):
            kept.number_at(text)


async def test_who_waits_is_woken_by_a_change_and_by_the_end() -> None:
    kept = TaskChanges("abc")

    async def one_change() -> None:
        kept.note([("fire.sent", {"task_id": "a"})])

    async def end() -> None:
        kept.close()

    assert await asyncio.gather(kept.wait(0), kept.wait(0), one_change()) == [True, True, None]
    assert await asyncio.gather(kept.wait(1), end()) == [False, None]
