"""Where a benchmark writes: a folder of its own, on a part of the disk where nothing was deleted just now.

Some file systems (ext4) look, for each new file, past every inode freed within the last minutes in the same group:
after a test run that can cost a millisecond a file. Folders below one that is marked as the top of a hierarchy are
spread over the disk instead. Where that mark cannot be set, the folder is an ordinary one. Peers get the same.
"""

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def place() -> Iterator[Path]:
    """Yield an empty folder with a short path, for as long as the block lasts."""
    with tempfile.TemporaryDirectory(prefix="tk-") as top:
        subprocess.run(["chattr", "+T", top], capture_output=True, check=False)
        folder = Path(top) / "b"
        folder.mkdir()
        yield folder
