"""A run that waits for its fire says why the fire cannot be sent."""

from typing import Any

import pytest

from task_runner.cli.state import _follow
from turnkeeper.v1 import schedules_pb2 as wire


class Answers:
    """A runner that answers with one fire after the other."""

    def __init__(self, *fires: wire.Fire) -> None:
        self._fires = list(fires)

    def call(self, _request: Any) -> wire.Fire:
        return self._fires.pop(0)


def test_a_reason_for_which_a_fire_waits_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    held = wire.Fire(fire_id="f", outcome="pending", reason="can be read by other users")
    done = _follow(
        Answers(held, held, wire.Fire(fire_id="f", outcome="succeeded")), wire.Fire(fire_id="f", outcome="pending")
    )
    assert done.outcome == "succeeded"
    assert capsys.readouterr().err.count("f is not sent yet: can be read by other users; see: turnkeeper status") == 1
