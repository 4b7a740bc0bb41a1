"""Python on copies of our program, forked from a process that has imported what the program needs of others.

`python -m tests.support.forked_copies SCRIPT FOLDER DESCRIPTOR` runs the script on our program and then removes each of
our modules, so that a fork finds ours in its copy, which `PYTHONPATH` names.
"""

import gc
import io
import os
import runpy
import sys
import traceback
from contextlib import redirect_stdout
from pathlib import Path

from tests.support.forked import open_streams, serve

ROOT = Path(__file__).parents[2]
OURS = frozenset({"turnkeeper", "task_runner", "agent_runtime"})


def main(*argv: str) -> None:
    """Do what `python -P ARG...` does, with `-c SCRIPT` or `-m MODULE`."""
    kind, what, *rest = argv
    if kind == "-c":
        sys.argv = [kind, *rest]
        exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = [what, *rest]
        runpy.run_module(what, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    script, folder, at = sys.argv[1:]
    with redirect_stdout(io.StringIO()):
        main("-c", script, folder)
    for name in [name for name in sys.modules if name.partition(".")[0] in OURS]:
        del sys.modules[name]
    asked = serve(int(at))
    os.chdir(asked.folder)
    os.environ.clear()
    os.environ.update(asked.environ)
    sys.path[:] = [asked.environ["PYTHONPATH"], *(one for one in sys.path if one not in {"", str(ROOT)})]
    open_streams()
    gc.disable()  # most of these processes only import, and what they import stays
    code: object = 0
    try:
        main(*asked.argv)
    except SystemExit as done:
        code = done.code
    except BaseException:  # noqa: BLE001  as the interpreter does
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    asked.end(int(code or 0) if isinstance(code, int | None) else 1)
