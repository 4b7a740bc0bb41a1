"""The steps of the Dockerfile in a clean root, for machines that run no containers: `python -m tests.support.clean_root BASE WORK`.

BASE is a minimal Debian with Python, as `debootstrap --variant=minbase --include=python3,python3-venv,python3-pip` makes it;
WORK is an empty folder. Needs root. Each stage is built in a copy of BASE. Then the image's command runs as process 1 of
its own process namespace, as the image's user, on a root that is read-only but for its volume and /tmp; the health check
has to succeed there, a dead daemon has to come back, and SIGTERM has to end all.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

from turnkeeper.clock import SystemClock

ROOT = Path(__file__).parents[2]
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
# Files of this machine that the steps may read; LEND names more, such as its own packages, separated by colons.
LENT = ("/etc/resolv.conf", CERTIFICATES, "/etc/pip.conf", "/etc/xdg/pip", *os.environ.get("LEND", "").split(":"))


class Step(NamedTuple):
    """One instruction of a Dockerfile, with its words."""

    name: str
    text: str

    @property
    def words(self) -> list[str]:
        """The arguments, from the JSON form or a shell command."""
        found = json.loads(self.text) if self.text.startswith("[") else ["sh", "-c", self.text]
        assert isinstance(found, list)
        return found


def steps(text: str) -> Iterator[Step]:
    """Yield the instructions of a Dockerfile."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        if line.strip():
            name, _, rest = line.strip().partition(" ")
            yield Step(name.upper(), " ".join(rest.split()))


def stages(text: str) -> list[list[Step]]:
    """Return the steps of each stage, `FROM` first."""
    found: list[list[Step]] = []
    for step in steps(text):
        found += [[]] if step.name == "FROM" else []
        found[-1].append(step)
    return found


class Root:
    """A root directory in which steps run."""

    def __init__(self, path: Path) -> None:
        self.path, self.environ, self.folder, self.user = path, {"PATH": PATH}, "/", "0"

    def argv(self, words: Sequence[str], *, user: str = "0") -> list[str]:
        """Return a command that runs `words` in this root, in its folder and with its variables."""
        said = [f"{key}={value}" for key, value in self.environ.items()]
        inside = ["sh", "-c", f'cd {self.folder} && exec "$@"', "sh", *words]
        return ["chroot", f"--userspec={user}:{user}", str(self.path), "/usr/bin/env", "-i", *said, *inside]

    def do(self, step: Step, built: dict[str, "Root"], context: Path) -> None:
        """Execute one step."""
        if step.name == "RUN":
            lent = [f"mount --bind {path} {self._place(path)}" for path in LENT if path and Path(path).exists()]
            script = " && ".join([*lent, shlex.join(self.argv(["sh", "-c", step.text]))])
            subprocess.run(["unshare", "--mount", "sh", "-c", script], check=True)
        elif step.name == "ENV":
            for key, _, value in (word.partition("=") for word in shlex.split(step.text)):
                self.environ[key] = re.sub(r"\$(\w+)", lambda found: self.environ[found[1]], value)
        elif step.name == "WORKDIR":
            self.folder = step.text
            (self.path / step.text[1:]).mkdir(parents=True, exist_ok=True)
        elif step.name == "USER":
            self.user = step.text
        elif step.name == "COPY":
            *sources, target = [word for word in step.text.split() if not word.startswith("--")]
            found = re.search(r"--from=(\w+)", step.text)
            for source in sources:
                origin = built[found[1]].path / source[1:] if found else context / source
                subprocess.run(["cp", "-a", "-T", origin, self._target(origin, target)], check=True)

    def _place(self, path: str) -> Path:
        """Create the mount point for a path."""
        place = self.path / path[1:]
        if Path(path).is_dir():
            place.mkdir(parents=True, exist_ok=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()
        return place

    def _target(self, origin: Path, target: str) -> Path:
        base = self.path / target[1:] if target.startswith("/") else self.path / self.folder[1:] / target
        return base / origin.name if target.endswith("/") and not origin.is_dir() else base


def context_of(work: Path) -> Path:
    """Return a copy of the build context: the files of the index that `.dockerignore` includes."""
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    tracked = subprocess.run(["git", "ls-files", "--", *kept], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in tracked.stdout.splitlines():
        place = work / "context" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, place)
    return work / "context"


def build(base: Path, work: Path) -> tuple[Root, list[Step]]:
    """Execute each stage in a copy of `base`. Return the last root, with its steps."""
    context, built = context_of(work), dict[str, Root]()
    for number, found in enumerate(stages((ROOT / "Dockerfile").read_text())):
        root = Root(work / f"stage-{number}")
        subprocess.run(["cp", "-a", base, root.path], check=True)
        python = root.path / "usr" / "bin" / "python"  # the base image of Python has it
        python.exists() or python.symlink_to("python3")
        for step in found:
            sys.stderr.write(f"-- {step.name} {step.text}\n")
            root.do(step, built, context)
        built[found[0].text.partition(" AS ")[2]] = root
    return root, found


def end(first: int) -> None:
    """End a process namespace by its process 1, if it still runs."""
    with suppress(ProcessLookupError):
        os.kill(first, signal.SIGKILL)


def run(root: Root, said: dict[str, Step], volume: Path) -> None:
    """Run the image's command as a container does. Raise AssertionError on a wrong result."""
    mounts = [
        f"mount --bind {root.path} {root.path}", f"mount --bind {volume} {root.path}{said['VOLUME'].text}",
        f"mount -t tmpfs tmpfs {root.path}/tmp", f"mount -t proc proc {root.path}/proc",
        f"mount --bind /dev {root.path}/dev", f"mount -o remount,bind,ro {root.path}",
    ]  # fmt: skip
    script = " && ".join([*mounts, "exec " + shlex.join(root.argv(said["CMD"].words, user=root.user))])
    clock, names = SystemClock(), ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script]
    with subprocess.Popen(names) as outer, ExitStack() as stack:
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
        first = clock.poll(lambda: int(children.read_text() or 0), timeout_s=20, every_s=0.1)
        assert first
        stack.callback(end, first)
        joined = ["nsenter", "--target", str(first), "--mount", "--pid"]
        check = [*joined, *root.argv(json.loads(said["HEALTHCHECK"].text.partition("CMD ")[2]), user=root.user)]

        def is_healthy() -> bool:
            return subprocess.run(check, check=False, capture_output=True).returncode == 0

        def ask(*words: str) -> str:
            argv = [*joined, *root.argv(words, user=root.user)]
            return subprocess.run(argv, check=False, capture_output=True, text=True).stdout

        def running() -> dict[str, int] | None:
            rows = {row["process"]: row for row in json.loads(ask("turnkeeper", "status", "-o", "json") or "[]")}
            names = ("supervisor", "agent-runtime", "task-runner")
            up = all(rows.get(one, {}).get("state") == "running" for one in names)
            return {one: rows[one]["pid"] for one in names} if up else None

        pids = clock.poll(running, timeout_s=120, every_s=1)
        assert pids, "the daemons do not start"
        assert is_healthy()
        assert pids["supervisor"] == 1
        assert set(ask("sh", "-c", "cat /proc/[0-9]*/status").split("Uid:")[1].split()[:4]) == {root.user}
        ask("sh", "-c", f"kill -9 {pids['task-runner']}")
        assert clock.poll(running, timeout_s=120, every_s=1), "a dead daemon does not come back"
        assert is_healthy()
        states = ask("sh", "-c", "cat /proc/[0-9]*/stat")
        assert ") Z " not in states, "process 1 does not reap"
        os.kill(first, signal.SIGTERM)
        assert outer.wait(120) == 0, "SIGTERM does not end it in order"
    sys.stderr.write("built, healthy, repaired, stopped: all as it should be\n")


def main(argv: Sequence[str]) -> None:
    """Build and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("base", type=Path)
    parser.add_argument("work", type=Path)
    given = parser.parse_args(argv)
    root, found = build(given.base.absolute(), given.work.absolute())
    volume = given.work.absolute() / "volume"
    said = {step.name: step for step in found}
    subprocess.run(["cp", "-a", root.path / said["VOLUME"].text[1:], volume], check=True)
    run(root, said, volume)


if __name__ == "__main__":
    main(sys.argv[1:])
