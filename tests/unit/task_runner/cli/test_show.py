"""Columns of the lists of tasks and of fires."""

import pytest

from task_runner.cli import show


@pytest.mark.parametrize(
    ("outcome", "reason", "cause", "said"),
    [
        ("skipped", "missed", "machine asleep from A to B", "missed: machine asleep from A to B"),
        ("failed", "it broke", "machine asleep from A to B", "it broke; late: machine asleep from A to B"),
        ("succeeded", "", "machine asleep from A to B", "machine asleep from A to B"),
        ("failed", "it broke", "", "it broke"),
        ("succeeded", "", "", "-"),
    ],
)
def test_the_cause_of_a_delay_is_not_shown_as_the_cause_of_a_failure(
    outcome: str, reason: str, cause: str, said: str
) -> None:
    (column,) = [one for one in show._COLUMNS if one.header == "REASON"]
    assert column.value({"outcome": outcome, "reason": reason, "cause": cause}) == said
