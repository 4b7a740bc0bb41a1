"""A task whose agent lives in a terminal: its fires wait there one at a time, and end when they have been read."""

import pytest

from tests.support.constellation import Constellation

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
