"""The home's keys from the command line: listed, rotated while work goes on, checked, backed up, and lost."""

import os
import stat

import pytest

from tests.support.constellation import Constellation
from turnkeeper.config.home import Home
from turnkeeper.errors import EXIT_DEGRADED

pytestmark = pytest.mark.process


def doctor(constellation: Constellation) -> str:
    done = constellation.attempt("turnkeeper", "doctor")
    return done.stdout + done.stderr


def says(constellation: Constellation, text: str) -> str:
    """Send a message to agent0; return how its turn ended."""
    return constellation.command("agent-runtime", "send", "general", text, "--wait")


def test_a_key_is_rotated_while_the_daemons_run_and_its_secret_is_shown_nowhere(constellation: Constellation) -> None:
    first, calls = constellation.ask("turnkeeper", "keys", "list")
    assert (calls["purpose"], calls["retired_at"]) == ("calls", None)
    folder = constellation.home.keys
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "envelopes.json").stat().st_mode) == 0o600
    assert (first["purpose"], first["retired_at"]) == ("envelopes", None)
    constellation.command("turnkeeper", "keys", "rotate")
    second, retired, same = constellation.ask("turnkeeper", "keys", "list")
    assert same == calls, "each key is rotated for itself"
    assert (retired["key"], second["retired_at"]) == (first["key"], None)
    assert retired["retired_at"]
    assert says(constellation, "hello")
    table = constellation.command("turnkeeper", "keys", "list")
    assert second["key"] in table
    assert "secret" not in table


def test_the_doctor_names_a_key_that_others_can_read_and_one_that_is_missing(constellation: Constellation) -> None:
    path = constellation.home.keys / "envelopes.json"
    path.chmod(0o640)
    assert f"chmod 600 {path}" in doctor(constellation)
    path.chmod(0o600)
    constellation.home.keys.chmod(0o755)
    assert f"chmod 700 {path.parent}" in doctor(constellation)
    constellation.home.keys.chmod(0o700)
    assert str(path) not in doctor(constellation)
    path.unlink()
    assert f"{path}: the key for envelopes is missing" in doctor(constellation)


def test_status_names_a_key_that_others_can_read_because_fires_wait_for_it(constellation: Constellation) -> None:
    path = constellation.home.keys / "envelopes.json"
    path.chmod(0o644)
    done = constellation.attempt("turnkeeper", "status")
    assert (done.returncode, f"chmod 600 {path}" in done.stderr) == (EXIT_DEGRADED, True), done.stderr
    path.chmod(0o600)


def test_daemons_that_run_keep_a_key_whose_file_goes(constellation: Constellation) -> None:
    constellation.create("daily", "--in", "2s")
    for file in constellation.home.keys.glob("*.json"):
        file.unlink()
    constellation.until_outcome("daily", "succeeded")
    assert says(constellation, "hello")


def test_a_lost_key_is_restored_from_a_backup_or_given_up_by_the_author(constellation: Constellation) -> None:
    home, backup = constellation.home, constellation.home.root.parent / "backup"
    constellation.command("turnkeeper", "backup", str(backup))
    held = (home.keys / "envelopes.json").read_bytes()
    assert (Home(root=backup).keys / "envelopes.json").read_bytes() == held
    constellation.stop()
    (home.keys / "envelopes.json").unlink()
    refused = constellation.attempt("agent-runtime", "serve")
    assert refused.returncode == 1
    assert "make another: turnkeeper keys rotate envelopes --lost" in refused.stderr
    assert "Traceback" not in refused.stderr
    for argv, code in (
        (("rotate",), 1),
        (("rotate", "other"), 2),
        (("rotate", "--lost"), 0),
        (("rotate", "--lost"), 4),
    ):
        done = constellation.attempt("turnkeeper", "keys", *argv)
        assert done.returncode == code, done.stderr
    constellation.start()
    assert says(constellation, "hello")
    constellation.stop()
    constellation.command("turnkeeper", "restore", str(backup))
    assert (home.keys / "envelopes.json").read_bytes() == held
    constellation.command("turnkeeper", "up", "--takeover")
    assert says(constellation, "hello again")


@pytest.mark.sqlite_only("the stores are files of the home")
def test_no_other_user_can_read_anything_of_a_home(constellation: Constellation) -> None:
    home, before = constellation.home, os.umask(0)
    try:
        constellation.create("daily", "--in", "1s")
        constellation.until_outcome("daily", "succeeded")
        assert says(constellation, "tell codex: hello")
        constellation.command("turnkeeper", "backup", str(home.root.parent / "backup"))
    finally:
        os.umask(before)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (home.root, home.root.parent / "backup")] == [0o700] * 2
    parts = [home.root / "state", home.keys, home.logs, home.root / "channels"]
    found = [path for part in parts for path in [part, *part.rglob("*")] if path.lstat().st_mode & 0o077]
    assert found == []
