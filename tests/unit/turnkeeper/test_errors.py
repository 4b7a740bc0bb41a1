"""Which errors are the machine's."""

import contextlib
import errno
import io
import operator
import os
import sqlite3
from pathlib import Path

import psycopg
import pytest

from turnkeeper.errors import (
    EXIT_FAILURE,
    EXIT_UNREACHABLE,
    InvalidInput,
    MachineTrouble,
    exit_code_of,
    machine_trouble,
)


def of_sqlite(code: int) -> sqlite3.DatabaseError:
    error = sqlite3.DatabaseError("said by SQLite")
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EIO, errno.EROFS])
def test_what_a_machine_cannot_do_now_is_its_trouble(number: int) -> None:
    found = machine_trouble(OSError(number, "why", "a/file"))
    assert found is not None
    assert (found.where, found.what) == ("a/file", "cannot be read or written: why")
    assert found.hint.endswith("then try again")


@pytest.mark.parametrize(
    "code",
    [
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR_FSYNC,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CORRUPT,  # what a failed read of a page looks like
    ],
)
def test_so_is_what_sqlite_says_of_it(code: int) -> None:
    found = machine_trouble(of_sqlite(code), "state/agent.db")
    assert (found and found.where) == "state/agent.db"


@pytest.mark.parametrize(
    "error", [ValueError("x"), OSError(errno.EEXIST, "there"), of_sqlite(sqlite3.SQLITE_CONSTRAINT)]
)
def test_anything_else_is_not(error: Exception) -> None:
    assert machine_trouble(error) is None


def test_a_missing_permission_is_the_machines_trouble_only_for_a_file_of_ours() -> None:
    error = PermissionError(errno.EACCES, "Permission denied", "a/file")
    assert machine_trouble(error) is None
    assert machine_trouble(error, ours=True) is not None


def test_the_cause_is_found_behind_what_was_raised_because_of_it() -> None:
    outer = RuntimeError("no connection")
    outer.__cause__ = OSError(errno.EMFILE, "Too many open files")
    found = machine_trouble(ExceptionGroup("two", [ValueError("x"), outer]))
    assert found is not None
    assert "Too many open files" in found.what


def test_who_raised_an_error_of_ours_has_said_what_it_means() -> None:
    ours = InvalidInput("cannot be taken")
    ours.__cause__ = OSError(errno.EIO, "why")
    assert machine_trouble(ours) is None
    trouble = MachineTrouble("x", where="y")
    assert machine_trouble(trouble, "elsewhere") is trouble


def test_a_daemon_ends_with_one_line_also_where_nobody_can_read_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def serve() -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "state/run/x.lock")

    assert exit_code_of(serve) == EXIT_UNREACHABLE, "its supervisor starts it again, and counts no failed start"
    assert capsys.readouterr().err.startswith("error: state/run/x.lock: cannot be read or written: No space left")
    with Path("/dev/full").open("wb", buffering=0) as full:
        stderr = io.TextIOWrapper(full, write_through=True)
        monkeypatch.setattr("sys.stderr", stderr)
        assert exit_code_of(serve) == EXIT_UNREACHABLE
        monkeypatch.undo()
        with contextlib.suppress(OSError):
            stderr.detach()


def test_a_daemon_that_lacks_a_right_ends_by_the_code_of_a_failed_start() -> None:
    def serve() -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "state/run/x.lock")

    assert exit_code_of(serve) == EXIT_FAILURE


@pytest.mark.parametrize("code", [errno.ESTALE, errno.EUCLEAN, errno.EBADMSG, errno.EFBIG, errno.ENOLCK])
def test_rarer_errors_of_a_disk_are_its_trouble_and_no_meaning_of_the_file(code: int) -> None:
    assert machine_trouble(OSError(code, os.strerror(code))) is not None


@pytest.mark.parametrize("kind", ["OperationalError", "errors.ConnectionTimeout", "errors.AdminShutdown"])
def test_a_server_that_cannot_be_reached_is_the_machines_trouble(kind: str) -> None:
    error = operator.attrgetter(kind)(psycopg)("connection timeout expired")
    assert str(machine_trouble(error, "store")).startswith("store: cannot be read or written: connection timeout")
    assert machine_trouble(psycopg.errors.SyntaxError("at SELEC")) is None


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("AdminShutdown", 5),
        ("CannotConnectNow", 5),
        ("TooManyConnections", 5),
        ("IdleInTransactionSessionTimeout", 5),
        ("InsufficientPrivilege", 1),
    ],
)
def test_a_daemon_that_a_server_cuts_off_ends_by_the_code_that_is_waited_for(
    kind: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def serve() -> None:
        raise getattr(psycopg.errors, kind)("as the server says")

    assert exit_code_of(serve) == code
    assert capsys.readouterr().err.startswith("error: cannot be read or written: as the server says; ")
