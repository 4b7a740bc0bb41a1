"""`turnkeeper service install` says what starts the service, or that nothing will."""

from pathlib import Path

import pytest

from turnkeeper.config.home import Home
from turnkeeper.console import program, run
from turnkeeper.console.commands import Program
from turnkeeper.constellation.supervisor import systemd


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a machine whose `run` holds what systemd makes while it runs."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run" / "user"))
    monkeypatch.setattr(systemd, "BOOTED", tmp_path / "run" / "systemd" / "system", raising=False)
    return tmp_path


def install(home: Home, capsys: pytest.CaptureFixture[str]) -> str:
    assert run(program(), ["--home", str(home.root), "service", "install", "--for", "systemd"], Program) == 0
    return capsys.readouterr().err


@pytest.mark.usefixtures("machine")
def test_on_a_machine_without_systemd_it_says_that_nothing_starts_the_service(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    said = install(home, capsys)
    assert "wrote " in said
    assert "warning: systemd does not run on this machine, so nothing starts the service" in said
    assert "turnkeeper up --foreground" in said
    assert "systemctl" not in said


def test_without_a_user_manager_it_says_how_to_start_one_first(
    home: Home, machine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (machine / "run" / "systemd" / "system").mkdir(parents=True)
    warning, linger, command = install(home, capsys).splitlines()[-3:]
    assert warning == "warning: systemd does not run for your user, so nothing starts the service yet"
    assert linger == "first: loginctl enable-linger"
    assert command.startswith("next: systemctl --user daemon-reload && systemctl --user enable --now ")


def test_while_systemd_runs_for_the_user_there_is_no_warning(
    home: Home, machine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (machine / "run" / "systemd" / "system").mkdir(parents=True)
    (machine / "run" / "user" / "systemd").mkdir(parents=True)
    (machine / "run" / "user" / "systemd" / "private").touch()
    said = install(home, capsys)
    assert "warning" not in said
    command, linger = said.splitlines()[-2:]
    assert command.startswith("next: systemctl --user daemon-reload")
    assert linger == "to keep it running while you are logged out: loginctl enable-linger"
