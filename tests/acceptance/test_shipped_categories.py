"""Tasks of the shipped categories, run by both daemons, and a long task that stays one turn."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.constellation import AGENT_RUNTIME, Constellation

pytestmark = pytest.mark.process
EXAMPLE = Path(__file__).parents[2] / "examples" / "garden"
NOTES = "\n".join(
    ["Summarise the garden.", *(f"remember: the pump of plot {number} was replaced" for number in (1, 2, 3))]
)


@pytest.fixture
def workspace(constellation: Constellation) -> Constellation:
    """The home with the pages of the example, one of which changed after another was derived from it."""
    folder = constellation.home.root.parent / "pages"
    shutil.copytree(EXAMPLE, folder)
    constellation.command("agent-runtime", "workspace", "import", str(folder))
    garden = folder / "garden.md"
    garden.write_text(garden.read_text().replace("three are free", "five are free"))
    constellation.command("agent-runtime", "workspace", "import", str(folder))
    return constellation


def test_a_walk_and_a_sweep_run_as_tasks_and_write_only_what_waits_for_the_author(workspace: Constellation) -> None:
    plots = workspace.home.root.parent / "plots.txt"
    plots.write_text("Plot 7 is free. Plot 9 is let until May.")
    workspace.command("agent-runtime", "workspace", "attach", "garden", str(plots))
    before = workspace.command("agent-runtime", "workspace", "show", "leaflet")

    check = "Hold the pages whose sources changed against them."
    workspace.create("walk", "--in", "1s", "--category", "re-validation-walk", "--prompt", check)
    workspace.until_outcome("walk", "succeeded")
    (deviation,) = workspace.ask("agent-runtime", "deviations", "list")
    assert (deviation["page_id"], deviation["source"]) == ("leaflet", "garden")

    look = "Which plots are free? See attachment:garden/plots.txt."
    workspace.create("sweep", "--in", "1s", "--category", "research-sweep", "--prompt", look)
    workspace.until_outcome("sweep", "interrupted")
    (asked,) = workspace.ask("agent-runtime", "approvals", "list")
    assert (asked["kind"], asked["tool"]) == ("proposal", "page_propose")
    workspace.command("agent-runtime", "approvals", "approve", asked["interrupt_id"])
    workspace.until_outcome("sweep", "succeeded")
    proposed = {one["title"] for one in workspace.ask("agent-runtime", "candidates", "list")}
    assert "plots.txt of garden" in proposed
    assert workspace.command("agent-runtime", "workspace", "show", "leaflet") == before, (
        "only its author changes a page"
    )
    assert workspace.violations() == []


def test_a_long_task_with_several_pauses_is_one_turn_of_one_fire(constellation: Constellation) -> None:
    constellation.create("long", "--in", "1s", "--prompt", NOTES)
    answered = set[str]()
    for pause in (1, 2, 3):
        asked = constellation.until(f"question {pause}", lambda: _new_question(constellation, answered))
        if pause == 2:
            constellation.kill(AGENT_RUNTIME)
            constellation.start(AGENT_RUNTIME)
        constellation.command("agent-runtime", "approvals", "approve", asked)
        answered.add(asked)
    (fire,) = constellation.until_outcome("long", "succeeded")
    (turn,) = constellation.ask("agent-runtime", "turns", "list")
    assert (turn["turn_id"], fire["attempt"], fire["count"]) == (fire["turn_id"], 1, 1)
    assert len(constellation.ask("agent-runtime", "memory", "list")) == 3
    assert constellation.violations() == []


def _new_question(constellation: Constellation, answered: set[str]) -> str | None:
    pending: list[dict[str, Any]] = constellation.ask("agent-runtime", "approvals", "list")
    return next((one["interrupt_id"] for one in pending if one["interrupt_id"] not in answered), None)
