"""`cordon`, `drain` and `uncordon` by the command line, with real daemons."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.constellation import Constellation
from tests.support.machines import TwoMachines
from tests.support.web import serving
from turnkeeper.errors import EXIT_CONFLICT

pytestmark = pytest.mark.process
SLOW = {"TURNKEEPER_OFFLINE_DELAY_S": "3600"}


def test_drain_waits_for_the_turns_of_a_machine_and_the_cordon_outlives_a_restart(stopped: Constellation) -> None:
    stopped.start(**SLOW)
    name = ["runtime"] if isinstance(stopped, TwoMachines) else []
    stopped.create("digest", "--every", "1h")
    stopped.command("task-runner", "run", "digest")
    (turn,) = stopped.until(
        "a turn to run", lambda: stopped.ask("agent-runtime", "turns", "list", "--status", "running")
    )
    late = stopped.attempt("turnkeeper", "drain", *name, "--deadline", "0s")
    assert late.returncode == 1
    assert f"turns still run on {(name or [''])[0]}" in late.stderr
    assert f"{turn['turn_id']} (digest, in general)" in late.stderr
    stopped.command("agent-runtime", "turns", "cancel", turn["turn_id"])
    stopped.command("turnkeeper", "drain", *name, "--deadline", "10m")
    stopped.stop()
    stopped.start()
    stopped.command("task-runner", "run", "digest")
    stopped.command("turnkeeper", "drain", *name, "--deadline", "10m")
    assert stopped.ask("agent-runtime", "turns", "list", "--status", "running") == []
    end = "the end of the cordon of all machines" if name else "the end of the cordon"
    waits = stopped.ask("task-runner", "show", "digest")["waits_for"]
    assert waits.startswith(f"{end}: turnkeeper uncordon"), waits
    assert f"At present, it waits for {end}" in " ".join(stopped.command("task-runner", "explain", "digest").split())
    shown = stopped.attempt("turnkeeper", "status")
    assert ("cordoned" if name else "takes no new turns since") in shown.stdout + shown.stderr
    assert [entry["outcome"] for entry in stopped.history("digest")].count("succeeded") == 0
    stopped.command("turnkeeper", "uncordon", *name)
    stopped.until_outcome("digest", "succeeded")
    assert stopped.ask("task-runner", "show", "digest")["waits_for"] is None
    assert "was not cordoned" in stopped.attempt("turnkeeper", "uncordon", *name).stderr


def test_drain_ends_if_another_command_ends_the_cordon(stopped: Constellation) -> None:
    stopped.start(**SLOW)
    name = ["runtime"] if isinstance(stopped, TwoMachines) else []
    stopped.create("digest", "--every", "1h")
    stopped.command("task-runner", "run", "digest")
    stopped.until("a turn to run", lambda: stopped.ask("agent-runtime", "turns", "list", "--status", "running"))
    with ThreadPoolExecutor() as pool:
        # With a variable, the command runs in a process of its own.
        draining = pool.submit(stopped.attempt, "turnkeeper", "drain", *name, "--deadline", "10m", **SLOW)
        stopped.until("the cordon", lambda: any("turnkeeper drain" in record.values() for record in stopped.logs))
        stopped.command("turnkeeper", "uncordon", *name)
        ended = draining.result()
    assert ended.returncode == EXIT_CONFLICT, ended.stderr
    assert "another command ended the cordon" in ended.stderr


def test_only_a_machine_that_exists_is_cordoned(constellation: Constellation) -> None:
    refused = constellation.attempt("turnkeeper", "cordon", "nowhere")
    assert refused.returncode == 3
    assert "nowhere" in refused.stderr


def test_the_page_of_machines_shows_a_cordon(constellation: Constellation) -> None:
    name = ["runtime"] if isinstance(constellation, TwoMachines) else []
    with serving(constellation.home) as web:
        web.log_in()

        def shown() -> bool:
            page = web.ask("/ui/machines", cookie=web.cookie).body
            return ("cordoned" if name else "takes no new turns since") in page

        assert not shown()
        constellation.command("turnkeeper", "cordon", *name)
        constellation.until("the cordon on the page", shown)
        constellation.command("turnkeeper", "uncordon", *name)
        constellation.until("the end of the cordon on the page", lambda: not shown())
