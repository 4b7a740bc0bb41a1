"""The units, and what systemd is told."""

import os
import plistlib
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from turnkeeper.config.home import Home
from turnkeeper.constellation.install.service import ServiceManager, remove_service, write_service
from turnkeeper.constellation.supervisor.systemd import Notifier, for_daemons, units


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config")}


def test_what_is_installed_can_be_taken_away_again(home: Home, environ: dict[str, str]):
    written = write_service(ServiceManager.SYSTEMD, home, environ)
    assert [path.suffix for path in written] == [".service", ".service", ".timer", ".service", ".timer"]
    assert write_service(ServiceManager.SYSTEMD, home, environ) == written, "doing it twice changes nothing"
    assert remove_service(ServiceManager.SYSTEMD, home, environ) == written
    assert remove_service(ServiceManager.SYSTEMD, home, environ) == []


def test_each_home_has_units_of_its_own(home: Home, environ: dict[str, str], tmp_path: Path):
    default = Home(root=tmp_path / ".turnkeeper")
    assert "turnkeeper.service" in units(default, environ)
    assert not set(units(default, environ)) & set(units(home, environ))


def test_a_path_with_odd_characters_stays_one_word(environ: dict[str, str]):
    (service, *_) = units(Home(root=Path('/srv/50% "of" $it')), environ).values()
    assert '--home "/srv/50%% \\"of\\" $$it"' in service


def test_services_get_the_path_of_who_installs_them(environ: dict[str, str], home: Home):
    texts = units(home, environ | {"PATH": '/my "bin"/$x/50%:/bin'})
    services = [text for name, text in texts.items() if name.endswith(".service")]
    assert len(services) == 3
    for text in services:
        assert text.count('\nEnvironment="PATH=/my \\"bin\\"/$x/50%%:/bin"\n') == 1
    assert not [name for name, text in units(home, environ).items() if "PATH" in text]


def test_a_backup_is_made_daily_beside_the_home_which_a_restore_moves(environ: dict[str, str]):
    texts = units(Home(root=Path("/srv/garden")), environ)
    (service,) = [text for name, text in texts.items() if name.endswith("-backup.service")]
    (timer,) = [text for name, text in texts.items() if name.endswith("-backup.timer")]
    assert "backup --keep 7 /srv/garden-backups --home /srv/garden\n" in service
    assert "OnCalendar=daily" in timer


def test_launchd_gets_the_same_three(environ: dict[str, str]):
    home = Home(root=Path('/srv/50% "of" <it> & é'))
    written = write_service(ServiceManager.LAUNCHD, home, environ)
    assert {path.parent for path in written} == {Path(environ["HOME"]) / "Library" / "LaunchAgents"}
    service, heartbeat, backup = (plistlib.loads(path.read_bytes()) for path in written)
    for path, says in zip(written, (service, heartbeat, backup), strict=True):
        assert path.name == f"{says['Label']}.plist"
        argv = says["ProgramArguments"]
        assert argv[:4] + argv[-2:] == [
            sys.executable,
            "-P",
            "-m",
            "turnkeeper.constellation",
            "--home",
            str(home.root),
        ]
        assert says["AbandonProcessGroup"], "what it started outlives it"
        assert says["Umask"] == 0o077
    assert (service["ProgramArguments"][4:-2], service["RunAtLoad"]) == (["up", "--foreground"], True)
    assert service["KeepAlive"] == {"SuccessfulExit": False}
    assert (heartbeat["ProgramArguments"][4:-2], heartbeat["StartInterval"]) == (["watchdog", "tick"], 120)
    assert backup["ProgramArguments"][4:7] == ["backup", "--keep", "7"]
    assert set(backup["StartCalendarInterval"]) == {"Hour", "Minute"}
    assert (
        write_service(ServiceManager.LAUNCHD, home, environ)
        == written
        == remove_service(ServiceManager.LAUNCHD, home, environ)
    )
    assert remove_service(ServiceManager.LAUNCHD, home, environ) == []


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
def test_systemd_takes_them(home: Home, environ: dict[str, str], tmp_path: Path):
    argv = ["systemd-analyze", "--user", "verify", *map(str, write_service(ServiceManager.SYSTEMD, home, environ))]
    environment = os.environ | {"XDG_RUNTIME_DIR": str(tmp_path)}  # without one it gives up before it looks
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "ignoring" not in done.stderr


def test_systemd_is_told_that_it_gets_on_and_then_that_it_is_ready(tmp_path: Path):
    path = tmp_path / "n"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.bind(str(path))
        notifier = Notifier({"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "4000000"})
        notifier.notify(ready=False)
        assert told.recv(100) == b"WATCHDOG=1"
        notifier.notify(ready=True)
        assert told.recv(100) == b"WATCHDOG=1\nREADY=1"
    assert notifier.longest_pause_s == 2.0
    notifier.notify(ready=True)  # nobody listens any more


def test_without_systemd_nobody_is_told_and_nothing_is_hurried():
    notifier = Notifier({})
    notifier.notify(ready=True)
    assert notifier.longest_pause_s == float("inf")


def test_the_daemons_do_not_speak_for_the_supervisor():
    told = {"NOTIFY_SOCKET": "x", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "2", "PATH": "/bin"}
    assert for_daemons(told) == {"PATH": "/bin"}
