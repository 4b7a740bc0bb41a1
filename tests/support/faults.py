"""Real faults of the machine: a full small disk, failing system calls of a process, no free descriptors.

Each needs permissions or a tool that a machine may lack; `missing` names them, so that a test is skipped with a reason.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

READS = "pread64"
WRITES = "pwrite64,fdatasync,fsync"


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """Mount a file system of this many megabytes on a folder. Raises RuntimeError without the permission."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    options = f"size={megabytes}m,mode=700"
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=False, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"no file system can be mounted: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def ballast(disk: Path) -> Path:
    return disk / "ballast"


def fill(disk: Path) -> None:
    """Fill all free room of a disk, even after an earlier call."""
    with suppress(OSError), ballast(disk).open("ab", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            with suppress(OSError):
                while file.write(b"x" * size) == size:
                    pass


def free(disk: Path) -> None:
    """Free the room again."""
    ballast(disk).unlink(missing_ok=True)


@contextmanager
def read_only(disk: Path) -> Iterator[None]:
    """Make a file system read-only during the block. None of its files may be open."""
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    try:
        yield
    finally:
        subprocess.run(["mount", "-o", "remount,rw", disk], check=True)


@contextmanager
def failing(pid: int, calls: str, error: str, under: Sequence[Path]) -> Iterator[None]:
    """Make a process's calls on these paths fail with an error, such as EIO, during the block."""
    paths = [argument for path in under for argument in ("-P", str(path))]
    argv = ["strace", "-f", "-qq", "-o", os.devnull, "-p", str(pid), *paths, "-e", f"trace={calls}"]
    tracer = subprocess.Popen([*argv, "-e", f"inject={calls}:error={error}"], stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        tracer.send_signal(signal.SIGINT)
        tracer.wait(10)


@contextmanager
def without_descriptors(pid: int) -> Iterator[None]:
    """Prevent a process from opening more descriptors during the block."""
    process = psutil.Process(pid)
    soft, hard = process.rlimit(psutil.RLIMIT_NOFILE)
    process.rlimit(
        psutil.RLIMIT_NOFILE, (3, hard)
    )  # a new descriptor has the lowest free number, and the first three are in use
    try:
        yield
    finally:
        with suppress(psutil.NoSuchProcess):
            process.rlimit(psutil.RLIMIT_NOFILE, (soft, hard))


def missing() -> str:
    """Return why this machine cannot inject these faults; empty if it can."""
    lacks = [tool for tool in ("mount", "strace") if shutil.which(tool) is None]
    if lacks:
        return f"{', '.join(lacks)} is not installed"
    tracing = Path("/proc/sys/kernel/yama/ptrace_scope")
    if os.geteuid() and tracing.exists() and tracing.read_text().strip() != "0":
        return "this user may not trace other processes"
    return (
        "" if os.geteuid() == 0 else "only root may mount a file system: run it under unshare --map-root-user --mount"
    )
