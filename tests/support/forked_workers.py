"""The workers of pytest-xdist, forked from a process that has collected the tests, so that imports are done once.

`python -m tests.support.forked_workers ARG... DESCRIPTOR` collects as pytest does with these arguments.
"""

import os
import sys

import pytest

from tests.support.forked import serve

if __name__ == "__main__":
    *argv, at = sys.argv[1:]
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, sys.stdout.fileno())  # each worker reports collection errors itself
    # Without -s, an imported module could keep one of pytest's streams, which is then closed.
    pytest.main([*argv, "-n", "0", "--collect-only", "-qq", "-s"])
    if "tests.support.forked_daemons" in sys.modules:  # some of them start daemons
        sys.modules["tests.support.forked_daemons"].use_template()
    serve(int(at))
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - it is open as long as the worker
    exec(eval(sys.stdin.readline()))  # as pytest-xdist does in a new interpreter
