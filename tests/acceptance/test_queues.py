"""Queues by the command line, with real daemons."""

import re

import pytest

from tests.support.constellation import Constellation
from tests.support.web import serving
from turnkeeper.constellation.supervisor.daemons import AGENT_RUNTIME

pytestmark = pytest.mark.process
QUEUES = "[queues.gpu]\nturns_at_once = 1\n[queues.idle]\nper_minute = 5\npriority = 7\n"
SLOW = {"TURNKEEPER_OFFLINE_DELAY_S": "3600"}


@pytest.fixture
def queued(stopped: Constellation) -> Constellation:
    """A constellation with a queue of one turn at once."""
    for home in stopped.homes:
        home.config.write_text(f"{home.config.read_text()}\n{QUEUES}")
    return stopped


def test_the_turns_of_a_runtime_that_is_killed_give_their_places_back(queued: Constellation) -> None:
    queued.start(**SLOW)
    for name in ("first", "second"):
        queued.create(name, "--every", "300d", "--queue", "gpu", "--thread", name)
    queued.command("task-runner", "run", "first")
    queued.until("a turn to run", lambda: queued.ask("agent-runtime", "turns", "list", "--status", "running"))
    queued.command("task-runner", "run", "second")
    held = "queue gpu: 1 of 1 turns at once"
    queued.until("the limit", lambda: queued.ask("task-runner", "show", "second")["waits_for"] == held)
    with serving(queued.home, QUEUES) as web:
        web.log_in()
        page = " ".join(re.sub("<[^>]*>", " ", web.ask("/ui/machines", cookie=web.cookie).body).split())
    assert "Priority gpu 1 1 1 1 no limit 0 idle 0 no limit 0 0 5 7" in page, page
    queued.kill(AGENT_RUNTIME)
    assert queued.ask("task-runner", "show", "second")["waits_for"] == held, "the turn of the dead runtime is not over"
    queued.start(AGENT_RUNTIME)
    for name in ("first", "second"):
        queued.until_outcome(name, "succeeded")
    began, ended = (
        {row["task_name"]: row[field] for row in queued.ask("agent-runtime", "turns", "list")}
        for field in ("started_at", "ended_at")
    )
    assert ended["first"] <= began["second"]
    assert not queued.violations()
