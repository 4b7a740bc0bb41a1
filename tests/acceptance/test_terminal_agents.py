"""A task whose agent lives in a terminal: its fires wait there one at a time, and end when they have been read."""

import pytest

from tests.support.constellation import Constellation
from turnkeeper.clock import SystemClock

pytestmark = pytest.mark.process


def test_fires_for_a_terminal_lie_there_one_at_a_time_and_end_as_delivered_when_read(
    constellation: Constellation,
) -> None:
    constellation.create("pulse", "--every", "1s", "--agent", "codex", "--prompt", "Look at CI.")
    constellation.await_outcome("pulse", "waiting")
    (lying,) = constellation.ask("agent-runtime", "inbox", "list", "codex")
    assert (lying["from"], lying["kind"], lying["text"]) == ("task-runner", "fire", "Look at CI.")
    shown = constellation.command("agent-runtime", "inbox", "drain", "codex", "-n", "1")
    assert (
        shown
        == f'<channel source="agent" from="task-runner" kind="fire" thread="{lying["thread"]}">Look at CI.</channel>\n'
    )
    (done, *_) = reversed(constellation.until_outcome("pulse", "succeeded"))
    assert (done["reason"], done["nominal_at"]) == ("delivered", lying["meta"]["nominal_at"])
    assert constellation.violations(drained=False) == []


def test_up_with_a_number_gives_so_many_workers_and_starts_the_runtime_anew_only_for_another(
    stopped: Constellation,
) -> None:
    stopped.command("turnkeeper", "up", "1")
    rows = {row["agent"]: row for row in stopped.ask("agent-runtime", "inbox", "list")}
    assert sorted(rows) == ["agent0", "agent1"]
    assert all(row["hosted"] and row["reader"].startswith("agent-runtime, pid ") for row in rows.values())
    again = stopped.attempt("turnkeeper", "up", "1")
    assert "agent-runtime was up already" in again.stderr
    other = stopped.attempt("turnkeeper", "up", "0")
    assert "agent-runtime stopped; it starts again with 0 workers" in other.stderr
    rows = {row["agent"]: row for row in stopped.ask("agent-runtime", "inbox", "list")}
    assert [rows[agent]["reader"] is not None for agent in ("agent0", "agent1")] == [True, False]


def test_a_loop_that_is_stopped_takes_the_fire_back_that_nobody_has_read(constellation: Constellation) -> None:
    for stop in ("delete", "disable"):
        name = f"pulse-{stop}"
        constellation.create(name, "--every", "1s", "--agent", "codex", "--prompt", "Look at CI.")
        constellation.await_outcome(name, "waiting")
        assert len(constellation.ask("agent-runtime", "inbox", "list", "codex")) == 1
        constellation.command("task-runner", stop, name)
        gone = SystemClock().poll(
            lambda: constellation.ask("agent-runtime", "inbox", "list", "codex") == [], timeout_s=60, every_s=0.1
        )
        assert gone, "within seconds of the command, and nothing more comes"
    assert constellation.violations(drained=False) == []
