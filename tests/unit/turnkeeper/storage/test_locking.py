"""Who holds a lock, while others ask."""

import fcntl
import os
import subprocess
import sys
import threading

import pytest

from turnkeeper.config.home import Home
from turnkeeper.errors import Conflict
from turnkeeper.storage.locking import ProcessLock, holder_pid, is_held


def test_asking_who_holds_a_lock_keeps_nobody_from_taking_it(home: Home):
    descriptor = os.open(home.lock("task-runner"), os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_SH)  # as somebody who asks does, for a moment
    asked = threading.Timer(0.02, lambda: os.close(descriptor))
    asked.start()
    with ProcessLock(home, "task-runner"):
        assert is_held(home, "task-runner")
    asked.join()


def test_a_second_holder_is_refused(home: Home):
    with ProcessLock(home, "task-runner"), pytest.raises(Conflict), ProcessLock(home, "task-runner"):
        pass
    assert not is_held(home, "task-runner")


def test_a_second_process_is_refused_and_told_who_holds_the_lock(home: Home) -> None:
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, pathlib; from turnkeeper.config.home import Home; from turnkeeper.storage.locking import ProcessLock\n"
            "with ProcessLock(Home(root=pathlib.Path(sys.argv[1])), 'task-runner'): print('held', flush=True); sys.stdin.read()",
            str(home.root),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    assert is_held(home, "task-runner")
    assert holder_pid(home, "task-runner") == holder.pid
    with pytest.raises(Conflict, match=str(holder.pid)), ProcessLock(home, "task-runner"):
        pass
    holder.kill()
    holder.communicate()
    assert not is_held(home, "task-runner")
    assert home.pid("task-runner").exists(), "a crash leaves the pid file"
    assert holder_pid(home, "task-runner") is None, "and nobody believes it"
    with ProcessLock(home, "task-runner"):
        pass
