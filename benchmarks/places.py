"""Where a benchmark writes: a folder of its own, on a part of the disk where nothing was deleted just now.

Some file systems (ext4) look, for each new file, past every inode freed within the last minutes in the same group:
after a test run, or a benchmark, that can cost a millisecond a file, and says nothing of who makes the file. So folders
are spread over the disk, the first of a few in which making a file is cheap is taken, and all are removed only at the
end of the process. Peers write in the same folder.
"""

import atexit
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path

CHEAP_S = 60e-6  # a new file
_TRIES, _FILES = 16, 64
_numbers = count()


@contextmanager
def place() -> Iterator[Path]:
    """Yield an empty folder with a short path."""
    tried = [_tried(_top() / str(next(_numbers)))]
    while tried[-1][0] > CHEAP_S and len(tried) < _TRIES:
        tried.append(_tried(_top() / str(next(_numbers))))
    _, folder = min(tried)
    yield folder


@cache
def _top() -> Path:
    top = Path(tempfile.mkdtemp(prefix="tk-"))
    atexit.register(shutil.rmtree, top, ignore_errors=True)
    # Marked as the top of a hierarchy: each folder in it goes to another part of the disk, where the file system can.
    subprocess.run(["chattr", "+T", str(top)], capture_output=True, check=False)
    return top


def _tried(folder: Path) -> tuple[float, Path]:
    """Make a folder; return what a new file costs below it, and where to write."""
    (folder / "files").mkdir(parents=True)
    begun = time.perf_counter()
    for number in range(_FILES):
        (folder / "files" / str(number)).touch()
    took_s = (time.perf_counter() - begun) / _FILES
    (folder / "b").mkdir()
    return took_s, folder / "b"
