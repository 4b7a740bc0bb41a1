"""What is shown on a terminal."""

from hypothesis import given
from hypothesis import strategies as st

from turnkeeper.console import plain


@given(st.text())
def test_no_control_character_reaches_a_terminal_raw(text: str) -> None:
    shown = plain(text)
    assert not any(ord(c) < 32 and c not in "\n\t" for c in shown)
    assert not set(shown) & set("\x7f\x9b\u202e\u2066\u2028")
