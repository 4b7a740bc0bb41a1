"""Who holds a lock, while others ask."""

import errno
import fcntl
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from turnkeeper.config.home import Home
from turnkeeper.errors import Conflict
from turnkeeper.storage import locking
from turnkeeper.storage.locking import ProcessLock, ReaderLock, holder_pid, is_held, reader_of


def test_asking_who_holds_a_lock_keeps_nobody_from_taking_it(home: Home):
    descriptor = os.open(home.lock("task-runner"), os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_SH)  # as somebody who asks does, for a moment
    asked = threading.Timer(0.02, lambda: os.close(descriptor))
    asked.start()
    with ProcessLock(home, "task-runner"):
        assert is_held(home, "task-runner")
    asked.join()


def test_an_asker_that_a_busy_machine_holds_up_is_waited_for(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    descriptor = os.open(home.lock("task-runner"), os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    pauses: list[float] = []

    class Clock:
        def block(self, seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 100:
                os.close(descriptor)

    monkeypatch.setattr(locking, "SystemClock", Clock)
    with ProcessLock(home, "task-runner"):
        assert is_held(home, "task-runner")
    assert sum(pauses) == pytest.approx(1.0)


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
    with ProcessLock(home, "task-runner") as after_a_crash:
        assert after_a_crash.after == holder.pid
    with ProcessLock(home, "task-runner") as after_an_end:
        assert after_an_end.after is None


def test_what_others_remove_of_a_lock_is_put_back(home: Home) -> None:
    lock, pid = home.lock("task-runner"), home.pid("task-runner")
    with ProcessLock(home, "task-runner") as held:
        assert held.keep() == []
        lock.unlink()
        assert held.keep() == [f"{lock} was removed"]
        pid.unlink()
        assert held.keep() == [f"{pid} was removed or changed"]
        pid.write_text("1\n")
        assert len(held.keep()) == 1
        assert holder_pid(home, "task-runner") == os.getpid()
        home.run.chmod(0o755)
        assert held.keep() == [f"{home.run} had mode 0755"]
        shutil.rmtree(home.run)
        assert len(held.keep()) == 3
        assert holder_pid(home, "task-runner") == os.getpid()
        assert home.run.stat().st_mode & 0o777 == 0o700
    assert not pid.exists()


def test_the_lock_of_an_inbox_is_put_back_and_who_lost_it_to_another_reader_is_told(home: Home) -> None:
    folder = home.inbox("codex")
    with ReaderLock(folder, "inbox watch") as held:
        assert held.keep() == []
        (folder / ".reader").unlink()
        assert held.keep() == [f"{folder}/.reader was removed"]
        assert reader_of(folder).startswith("inbox watch, pid ")
        shutil.rmtree(folder)
        assert len(held.keep()) == 1
        (folder / ".reader").unlink()
        with ReaderLock(folder, "inbox drain"), pytest.raises(Conflict, match="is read by inbox drain"):
            held.keep()
    assert reader_of(folder) == ""


def test_a_reader_whose_home_was_moved_away_ends_and_says_why(home: Home) -> None:
    with ReaderLock(home.inbox("codex"), "inbox watch") as held:
        home.root.rename(home.root.with_name("new"))
        home.root.write_text("moved to: elsewhere\n")
        with pytest.raises(Conflict, match="the home was moved; start the reader again"):
            held.keep()
    home.root.unlink()
    home.root.with_name("new").rename(home.root)


def test_who_lost_its_lock_to_another_is_told_and_takes_nothing_from_it(home: Home) -> None:
    with ProcessLock(home, "task-runner") as lost:
        home.lock("task-runner").unlink()
        with ProcessLock(home, "task-runner"):
            home.pid("task-runner").write_text("1\n")
            with pytest.raises(Conflict):
                lost.keep()
            lost.__exit__()
            assert home.pid("task-runner").exists()
            assert is_held(home, "task-runner")


def test_a_lock_is_held_and_its_holder_found_where_the_pid_cannot_be_written(home: Home) -> None:
    home.pid("task-runner").mkdir()  # as good as a full disk
    with ProcessLock(home, "task-runner"):
        assert is_held(home, "task-runner")
        assert holder_pid(home, "task-runner") == os.getpid()
    assert not is_held(home, "task-runner")


def test_a_pid_file_that_cannot_be_read_is_neither_removed_nor_said_to_be_changed(
    home: Home, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_given: object, **_how: object) -> str:
        raise OSError(errno.EMFILE, "Too many open files")

    with ProcessLock(home, "task-runner") as lock:
        with monkeypatch.context() as starved:
            starved.setattr(Path, "read_text", refuse)
            with pytest.raises(OSError, match="Too many open files"):
                lock.keep()
        assert (home.pid("task-runner").read_text(), lock.keep()) == (f"{os.getpid()}\n", [])
