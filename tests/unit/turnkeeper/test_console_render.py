"""What is shown on a terminal."""

import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkeeper import console
from turnkeeper.console.unseen import plain


@given(st.text())
def test_no_control_character_reaches_a_terminal_raw(text: str) -> None:
    shown = plain(text)
    assert not any(ord(c) < 32 and c not in "\n\t" for c in shown)
    assert not set(shown) & set("\x7f\x9b\u202e\u2066\u2028")


def test_a_time_names_its_zone() -> None:
    told = "from datetime import UTC, datetime; from turnkeeper.console import when"
    told += "; print([when(datetime(2026, month, 2, 9, tzinfo=UTC)) for month in (1, 7)])"
    shown = subprocess.run([sys.executable, "-c", told], env={"TZ": "Europe/Berlin"}, capture_output=True, check=True)
    assert shown.stdout.decode().strip() == "['2026-01-02 10:00:00 CET', '2026-07-02 11:00:00 CEST']"


def test_a_short_time_is_a_minute_of_this_year_or_a_day_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    now = datetime(2026, 11, 26, 9, 30, 15, tzinfo=UTC)
    monkeypatch.setattr(console.SystemClock, "now", lambda _self: now)
    monkeypatch.setattr(console, "_common", console._Common(utc=True))
    shown = [console.when_short(at) for at in (now, now + timedelta(days=60), None)]
    assert shown == ["Nov 26 09:30Z", "2027-01-25", ""]


def make_narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the outputs a terminal of 40 columns."""
    monkeypatch.setenv("COLUMNS", "40")
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)


def test_hidden_columns_are_named_in_lines_that_end_between_words(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_narrow(monkeypatch)
    named = [f"COLUMN-{number}" for number in range(9)]
    shown = [console.Column(name, lambda _row: "x" * 20) for name in named]
    console.show_rows([{"id": "a"}], shown, console.Output.TABLE, name_key="id")
    said = capsys.readouterr().err.splitlines()
    assert max(map(len, said)) <= 40
    assert " ".join(said).startswith("hidden columns: COLUMN-1, COLUMN-2, COLUMN-3")
    assert all(line.endswith((",", ";", "columns:", "wide", "them:", "-o")) for line in said)


def test_a_note_ends_its_lines_between_words_and_keeps_a_command_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_narrow(monkeypatch)
    console.note("1 task · up since 2026-11-27 13:01:50 UTC · 1 decision waiting: turnkeeper approvals list")
    assert capsys.readouterr().err.splitlines() == [
        "1 task · up since",
        "2026-11-27 13:01:50 UTC · 1 decision",
        "waiting: turnkeeper approvals list",
    ]


@pytest.mark.parametrize(
    ("before", "command"),
    [
        ("next: ", "systemctl --user daemon-reload && systemctl --user enable --now turnkeeper.service backup.timer"),
        ("next: ", "launchctl bootstrap gui/$(id -u) '/Users/a b/Library/LaunchAgents/turnkeeper.plist'"),
        ("to keep it running while you are logged out: ", "loginctl enable-linger"),
        ("  ", "pg_restore --clean --if-exists --single-transaction -n runner --dbname='host=a b' turnkeeper.dump"),
        ("  ", "pg_dump --format=custom --file=turnkeeper.dump -n runner --dbname='host=a user=b'"),
        ("for the other commands: ", "export TURNKEEPER_HOME='/home/a folder/with a long name'"),
        ("can be read by other users; run: ", "chmod 600 '/home/a folder/with a long name/key'"),
        ("it is suspended by a signal; to resume it, run: ", "kill -CONT 12345"),
    ],
)
def test_a_command_of_another_program_stays_on_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, before: str, command: str
) -> None:
    make_narrow(monkeypatch)
    console.note(before + command)
    assert capsys.readouterr().err.splitlines()[-1].endswith(command)


def test_a_wide_table_that_a_terminal_cannot_hold_is_shown_row_by_row(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_narrow(monkeypatch)
    shown = [console.Column(name, lambda row, name=name: row.get(name, "-")) for name in ("NAME", "NEXT", "PROMPT")]
    rows = [{"NAME": "a", "NEXT": "at 7", "PROMPT": "word " * 10}, {"NAME": "b"}]
    console.show_rows(rows, shown, console.Output.WIDE, name_key="NAME")
    said = re.sub("\x1b[^m]*m", "", capsys.readouterr().out)
    assert [line.rstrip() for line in said.splitlines()] == [
        "name:   a",
        "next:   at 7",
        "prompt: word word word word word word",
        "        word word word word",
        "",
        "name: b",
    ]
