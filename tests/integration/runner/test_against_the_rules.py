"""The runner against its own rules in plain words: a few runs; `machine.py` says how to make many."""

from hypothesis import HealthCheck, settings

from tests.integration.runner.machine import RunnerMachine

# Enough to see that no rule is broken grossly.
TestRunner = RunnerMachine.TestCase
TestRunner.settings = settings(
    max_examples=12, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True,
    database=None,
)  # fmt: skip
