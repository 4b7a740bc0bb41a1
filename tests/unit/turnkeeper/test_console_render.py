"""What is shown on a terminal."""

import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from turnkeeper.console import plain


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
