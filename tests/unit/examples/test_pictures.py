"""The pictures of the README show what a person saw on the terminal, and nothing that was erased meanwhile."""

import pytest

from examples.pictures import TEMPLATE, draw, seen


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ("one\r\ntwo\r\n", "one\ntwo\n"),
        ("\x1b[?25l⠋ waiting\r\x1b[2Kdone\r\n", "done\n"),
        ("⠋ waiting\r\n\x1b[1A\x1b[2K\x1b[1mdone\x1b[0m\r\n", "\x1b[1mdone\x1b[0m\n"),
        ("10 %\r20 %\r\n", "20 %\n"),
    ],
)
def test_what_was_erased_or_written_over_is_gone(said: str, left: str) -> None:
    assert seen(said) == left


def test_a_picture_holds_the_text_and_asks_no_other_host_for_a_font(tmp_path) -> None:
    draw("\x1b[1m$ turnkeeper up\x1b[0m\nagent-runtime is up", tmp_path / "terminal.svg")
    drawn = (tmp_path / "terminal.svg").read_text()
    assert "agent-runtime" in drawn
    assert "@font-face" not in TEMPLATE + drawn
