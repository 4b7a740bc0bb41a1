"""The runner against its own rules in plain words: a few runs; the machines say how to make many."""

from hypothesis import HealthCheck, settings

from tests.integration.runner.machine import RunnerMachine
from tests.integration.runner.paced_machine import PacedMachine

# Enough to see that no rule is broken grossly.
FEW = settings(
    max_examples=10, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True,
    database=None,
)  # fmt: skip
TestRunner = RunnerMachine.TestCase
TestRunner.settings = FEW
TestPaced = PacedMachine.TestCase
TestPaced.settings = settings(FEW, max_examples=5)
