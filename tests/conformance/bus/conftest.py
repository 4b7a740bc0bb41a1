"""The backends of the bus: a second one is one more entry here."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.clock import ManualClock
from turnkeeper.bus.durable_writes import GroupingFiles
from turnkeeper.bus.inbox import Inbox, Quota
from turnkeeper.entropy import SystemEntropy
from turnkeeper.storage.files import Files, SystemFiles


class FilesBackend:
    """Folders of files; `open` is what a process does at its start."""

    settles_keys = False
    files: type[SystemFiles] = GroupingFiles

    def __init__(self, folder: Path, clock: ManualClock) -> None:
        self.folder = folder
        self.clock = clock

    def open(self, *, most_waiting: int = 1000) -> Inbox:
        files: Files = self.files()
        return Inbox(
            self.folder,
            files=files,
            clock=self.clock,
            entropy=SystemEntropy(),
            settles_keys=self.settles_keys,
            quota=Quota(most_waiting=most_waiting),
        )

    def delivered(self) -> list[bytes]:
        return [path.read_bytes() for path in sorted((self.folder / "delivered").glob("[!.]*"))]

    def plant(self, data: bytes) -> None:
        """Lay bytes where an envelope is expected, as a foreign writer may."""
        (self.folder / "inbox" / "00000000000000000000-foreign.json").write_bytes(data)


class FilesWithoutGroups(FilesBackend):
    """A file system that syncs each file by itself."""

    files = SystemFiles


class FilesThatSettleKeys(FilesBackend):
    """For an agent without a database."""

    settles_keys = True


BACKENDS: dict[str, Callable[[Path, ManualClock], FilesBackend]] = {
    "files": FilesBackend,
    "files, each synced by itself": FilesWithoutGroups,
    "files that settle keys": FilesThatSettleKeys,
}


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> FilesBackend:
    folder = tmp_path / "agent0"
    folder.mkdir(mode=0o700)
    return BACKENDS[request.param](folder, clock)
