"""Named places at which a test can make a process die as if by kill -9.

`TURNKEEPER_FAILPOINTS=runner.committed:2` kills the process the second time it passes `runner.committed`. Unset, a
failpoint costs one dictionary look-up. A process never recovers from one, which is the point.
"""

import os
import signal
from collections.abc import Mapping

VARIABLE = "TURNKEEPER_FAILPOINTS"


class Failpoints:
    """The failpoints armed for one process; built once, in the process's wiring."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._left: dict[str, int] = {}
        for item in filter(None, environ.get(VARIABLE, "").split(",")):
            name, _, nth = item.partition(":")
            self._left[name] = int(nth or 1)

    def reach(self, name: str) -> None:
        """Pass the place `name`; do not return if it is armed and this is the pass it is armed for."""
        left = self._left.get(name)
        if left is None:
            return
        self._left[name] = left - 1
        if left == 1:
            os.kill(os.getpid(), signal.SIGKILL)
