"""A home goes to another place, and everything that named the earlier one finds it there."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.constellation import Constellation
from turnkeeper.config.home import MOVED, Home
from turnkeeper.constellation.supervisor import systemd
from turnkeeper.constellation.supervisor.daemons import AGENT_RUNTIME, process_of
from turnkeeper.constellation.upkeep.move import relocate
from turnkeeper.storage.locking import ProcessLock


@pytest.fixture
def of_home(home: Home) -> Iterator[Constellation]:
    made = Constellation(home)
    yield made
    made.stop()


def at(root: Path) -> Constellation:
    return Constellation(Home(root=root))


@pytest.mark.process
def test_a_home_that_runs_is_moved_in_one_command_and_runs_on_where_every_command_finds_it(of_home: Constellation):
    first, second, third = (of_home.home.root.with_name(name) for name in ("home", "b", "c"))
    third = third.parent / "folder" / third.name
    of_home.command("turnkeeper", "init")
    of_home.command("turnkeeper", "up", "1")
    of_home.create("digest", "--every", "1h")
    was = process_of(of_home.home, AGENT_RUNTIME)
    done = of_home.attempt("turnkeeper", "move", str(second))
    assert done.returncode == 0, done.stderr
    told = f"{first} is now a small file that points every command there, so nothing else has to change"
    without = f"to do without the file, name {second} in TURNKEEPER_HOME, services and scripts, and delete it"
    assert done.stderr.splitlines() == ["everything runs again", f"the home is {second}", told, without]
    is_now = process_of(Home(root=second), AGENT_RUNTIME)
    assert is_now not in {None, was}, "it runs again, in the new place"
    assert first.read_text().startswith(f"{MOVED}{second}\n")
    # Whoever names the earlier place is led to the new one: by an option, by the variable, a service, a terminal.
    assert of_home.ask("task-runner", "show", "digest") == at(second).ask("task-runner", "show", "digest")
    of_home.command("task-runner", "run", "digest", "--wait")
    assert "already complete" in of_home.attempt("turnkeeper", "init").stderr, "no second home is made"
    of_home.command("turnkeeper", "watchdog", "tick")
    variable = {**os.environ, "TURNKEEPER_HOME": str(first)}
    asked = [sys.executable, "-P", "-m", "turnkeeper.constellation", "status"]
    assert subprocess.run(asked, env=variable, check=False).returncode == 0

    of_home.command("turnkeeper", "move", str(third))
    assert [path.read_text().split("\n")[0] for path in (first, second)] == [f"{MOVED}{third}"] * 2
    of_home.command("turnkeeper", "down")
    told = of_home.command("turnkeeper", "events", "--kind", "act")
    assert "the author used turnkeeper down, by turnkeeper/cli." in told, "nobody has to ask why it stopped"
    done = of_home.attempt("turnkeeper", "move", str(first))
    assert (done.returncode, first.is_dir(), third.is_file()) == (0, True, True), done.stderr
    assert done.stderr.splitlines() == [f"the home is {first}"]
    assert process_of(of_home.home, AGENT_RUNTIME) is None, "what did not run is not started"
    assert of_home.ask("task-runner", "show", "digest")["name"] == "digest"


def test_a_home_cannot_go_where_something_is_or_into_itself_and_stays(of_home: Constellation):
    root, other = of_home.home.root, of_home.home.root.with_name("other")
    at(other).command("turnkeeper", "init")
    for target, said in (
        (other, "exists already"),
        (root / "state" / "x", "is inside the home itself"),
        (root, "is there already"),
        (root.with_name("x" * 90), "socket paths"),
        (Path("/proc"), "is a mount point"),
    ):
        done = of_home.attempt("turnkeeper", "move", str(target))
        assert (done.returncode in {2, 4}, said in done.stderr) == (True, True), done.stderr
    assert root.is_dir()
    shutil.move(other, other.with_name("elsewhere"))
    at(other).command("turnkeeper", "move", str(other.with_name("elsewhere")))
    assert "exists already" in of_home.attempt("turnkeeper", "move", str(other)).stderr, "it leads to another home"


def test_who_moved_the_directory_says_so_with_the_same_command(of_home: Constellation):
    first, by_hand = of_home.home.root, of_home.home.root.with_name("by-hand")
    of_home.command("turnkeeper", "init")
    first.rename(by_hand)
    done = of_home.attempt("turnkeeper", "move", str(first.with_name("no-home")))
    assert (done.returncode, "no home is there" in done.stderr) == (3, True)
    of_home.command("turnkeeper", "move", str(by_hand))
    assert of_home.ask("turnkeeper", "keys", "list") == []
    by_hand.rename(then := first.with_name("once-more"))
    done = of_home.attempt("turnkeeper", "init")
    assert (done.returncode, f"turnkeeper move DIR; or, to start over, remove {first}" in done.stderr) == (2, True)
    assert not by_hand.exists()
    of_home.command("turnkeeper", "move", str(then))
    assert first.read_text().startswith(f"{MOVED}{then}\n")


def test_a_home_on_which_something_runs_is_not_moved_under_it(home: Home):
    with ProcessLock(home, AGENT_RUNTIME.name), pytest.raises(Exception, match="already runs"):
        relocate(home, Home(root=home.root.with_name("b")), [])
    assert home.root.is_dir()


@pytest.fixture
def other_disk(home: Home) -> Iterator[Path]:
    places = [Path(one) for one in ("/dev/shm", "/tmp", "/var/tmp") if Path(one).is_dir()]
    found = [one for one in places if one.stat().st_dev != home.root.stat().st_dev]
    if not found:
        pytest.skip("this machine has one file system")
    folder = Path(tempfile.mkdtemp(prefix="tk-", dir=found[0]))
    yield folder
    shutil.rmtree(folder)


def test_to_another_disk_it_is_copied_and_compared_and_nothing_starts_on_the_earlier_copy(
    of_home: Constellation, other_disk: Path
):
    of_home.command("turnkeeper", "init", "--example")
    (script := of_home.home.root / "tasks" / "look.sh").write_text("#!/bin/sh\n")
    script.chmod(0o755)
    done = of_home.attempt("turnkeeper", "move", str(other_disk / "h"))
    assert done.returncode == 0, done.stderr
    moved = Home(root=other_disk / "h")
    assert ((moved.root / "tasks" / "look.sh").stat().st_mode & 0o777, moved.restored.exists()) == (0o755, False)
    (aside,) = of_home.home.root.parent.glob("home.before-*")
    assert str(aside) in done.stderr
    assert at(aside).attempt("turnkeeper", "up").returncode == 4


def test_a_move_to_another_disk_that_died_before_its_last_step_is_ended_by_the_same_command(
    of_home: Constellation, other_disk: Path, monkeypatch: pytest.MonkeyPatch
):
    of_home.command("turnkeeper", "init")
    new = Home(root=other_disk / "h")
    with monkeypatch.context() as patched:
        patched.setattr("turnkeeper.constellation.upkeep.move.remember", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            relocate(of_home.home, new, [])
    assert new.restored.exists(), "nothing starts on the copy meanwhile"
    of_home.command("turnkeeper", "move", str(new.root))
    assert not new.restored.exists()
    assert of_home.ask("turnkeeper", "keys", "list") == []


def test_the_services_of_the_usual_home_keep_their_names_when_it_moves(tmp_path: Path):
    environ, usual = {"HOME": str(tmp_path)}, Home(root=tmp_path / ".turnkeeper")
    usual.create()
    names = set(systemd.units(usual, environ))
    relocate(usual, Home(root=tmp_path / "new"), [])
    assert set(systemd.units(Home(root=tmp_path / "new"), environ)) == names


def test_the_services_that_are_named_after_the_earlier_place_are_removed_by_way_of_it(
    of_home: Constellation, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HOME", str(of_home.home.root.parent))
    of_home.command("turnkeeper", "init")
    written = systemd.write_all(systemd.unit_folder(os.environ), systemd.units(of_home.home, os.environ))
    of_home.command("turnkeeper", "move", str(of_home.home.root.with_name("b")))
    assert all(path.exists() for path in written)
    done = Constellation(of_home.home, os.environ).attempt("turnkeeper", "service", "uninstall")
    assert (done.returncode, [path for path in written if path.exists()]) == (0, []), done.stderr
