"""`kill -9` at each step between a task that answers and the task that follows it: one fire, with the answer."""

import pytest

from tests.support.constellation import AGENT_RUNTIME, TASK_RUNNER, Constellation

pytestmark = [pytest.mark.process, pytest.mark.sqlite_only("on a server, the lease of a killed process lasts a minute")]


def followed_once(constellation: Constellation) -> None:
    """The task that follows ran once, and its prompt has the answer of the one before."""
    constellation.await_outcome("plan", "succeeded")
    assert [entry["outcome"] for entry in constellation.history("news")] == ["succeeded"]
    assert [entry["outcome"] for entry in constellation.history("plan")] == ["succeeded"]
    news, plan = constellation.conversation()
    answer = news["messages"][-1]["text"].split("\n")[0][:20]
    assert answer
    assert answer in plan["messages"][0]["text"]
    assert constellation.violations() == []


def chain(constellation: Constellation) -> None:
    constellation.create("plan", "--after", "news", "--prompt", "Plan the day.")
    constellation.create("news", "--in", "1s", "--prompt", "Summarise the day.")


@pytest.mark.parametrize(
    "failpoint",
    [
        # The turn that answers, then its outcome, which the runner reads.
        *("runtime.accepted", "runtime.recorded", "runtime.finished"),
        # The turn that gets the answer.
        *("runtime.accepted:2", "runtime.started:2", "runtime.finished:2"),
    ],
)
def test_the_runtime_dies_between_the_answer_and_the_task_that_follows(stopped: Constellation, failpoint: str) -> None:
    stopped.start(AGENT_RUNTIME, TURNKEEPER_FAILPOINTS=failpoint)
    stopped.start(TASK_RUNNER)
    chain(stopped)
    stopped.until_dead(AGENT_RUNTIME)
    stopped.start()
    followed_once(stopped)


@pytest.mark.parametrize("failpoint", ["runner.receipt", "runner.sent:2", "runner.receipt:2"])
def test_the_runner_dies_between_the_answer_and_the_task_that_follows(stopped: Constellation, failpoint: str) -> None:
    stopped.start(AGENT_RUNTIME)
    stopped.start(TASK_RUNNER, TURNKEEPER_FAILPOINTS=failpoint)
    chain(stopped)
    stopped.until_dead(TASK_RUNNER)
    stopped.start()
    followed_once(stopped)
