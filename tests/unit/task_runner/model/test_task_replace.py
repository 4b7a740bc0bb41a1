"""Our faster `replace` is the standard one."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from task_runner.model.task import Outcome, Usage, replace
from tests.unit.task_runner.simulated import Simulated, at, definition


@given(attempt=st.integers(1, 9), outcome=st.sampled_from(Outcome), reason=st.text(max_size=5))
def test_it_changes_what_is_named_and_copies_the_rest(attempt: int, outcome: Outcome, reason: str) -> None:
    task = Simulated.of()
    task.plan(at(60))
    (fire,) = task.rows.values()
    changed = replace(fire, attempt=attempt, outcome=outcome, reason=reason)
    assert changed == dataclasses.replace(fire, attempt=attempt, outcome=outcome, reason=reason)
    assert type(changed) is type(fire)
    assert fire.attempt == 1, "the original is as it was"
    with pytest.raises(dataclasses.FrozenInstanceError):
        changed.attempt = 3


def test_other_values_and_unknown_fields() -> None:
    @dataclasses.dataclass(frozen=True)
    class Open:
        one: int
        two: int = 2

    assert replace(Open(1), one=5) == Open(5)
    assert replace(definition(), prompt="q") == definition(prompt="q")
    with pytest.raises(TypeError, match="no field"):
        replace(Usage(day=at(0).date()), colour=1)  # type: ignore[call-arg]
