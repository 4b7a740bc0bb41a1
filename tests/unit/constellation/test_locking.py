"""Who holds a lock, while others ask."""

import fcntl
import os
import threading

import pytest

from turnkeeper.config.home import Home
from turnkeeper.errors import Conflict
from turnkeeper.storage.locking import ProcessLock, is_held


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
