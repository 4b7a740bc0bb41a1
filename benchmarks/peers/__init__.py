"""Peers, each in a process of its own that is asked by lines of JSON."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any


class Peer:
    """A peer's process, until it is closed. Its module has `main(folder)`, which answers what it is asked on stdin."""

    def __init__(self, module: str, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        # Imported, not run: a job is found again by the name of its module, which must not be `__main__`.
        code = f"from benchmarks.peers import {module}; {module}.main({str(folder)!r})"
        self._process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, **what: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def answer(**work: Any) -> None:
    """Answer the requests on stdin by the functions named in them."""
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(work[asked.pop("do")](**asked)), flush=True)
