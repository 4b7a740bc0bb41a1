"""The runner against its own rules in plain words: a few runs; the machines say how to make many."""

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.integration.runner.machine import RunnerMachine
from tests.integration.runner.paced_machine import PacedMachine
from tests.integration.runner.task_machine import Life

# Enough to see that no rule is broken grossly.
FEW = settings(
    stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True,
    database=None,
)  # fmt: skip


@pytest.mark.parametrize(("machine", "runs"), [(RunnerMachine, 10), (PacedMachine, 5)])
def test_no_rule_is_broken(engine: Any, machine: type[Life], runs: int) -> None:
    machine.engine = engine
    run_state_machine_as_test(machine, settings=settings(FEW, max_examples=runs))
