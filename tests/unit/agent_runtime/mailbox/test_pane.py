"""The prompts of the common agents in terminals: empty, with something typed, at work, and asking."""

import pytest

from agent_runtime.mailbox.pane import MOST_LINES, PROMPTS, _matcher, pieces
from turnkeeper.errors import InvalidInput

RULE = "─" * 80
FOOTER = "  ? for shortcuts"
EMPTY = [
    ("claude", f"● Done.\n\n{RULE}\n❯\n{RULE}\n{FOOTER}"),
    ("claude", f'{RULE}\n❯\u00a0Try "fix lint errors"\n{RULE}\n  ⏵⏵ accept edits on (shift+tab to cycle)'),
    ("claude", f"╭{RULE}╮\n│ > {' ' * 70}│\n╰{RULE}╯\n{FOOTER}"),
    ("codex", "• Done.\n\n› Find and fix a bug in @filename\n\n  gpt-5.4 default · 41% left · ~/work"),
    ("codex", "▌\n\n  ⏎ send   Ctrl+J newline"),
    (
        "gemini",
        f"╭{RULE}╮\n│ >   Type your message or @path/to/file    │\n╰{RULE}╯\n~/repos (main*)   no sandbox   gemini-2.5-pro",
    ),
    ("aider", "Tokens: 1k sent\n──────\nmain.py\n>"),
    ("aider", "architect>"),
    ("aider", "> fix it\nDone.\nask multi>"),
]
TAKEN = [
    ("claude", f"{RULE}\n❯ rm -rf\n{RULE}\n{FOOTER}"),
    ("claude", f'{RULE}\n❯ Try "x" and this\n{RULE}\n{FOOTER}'),
    ("claude", f"{RULE}\n❯\n  a second line\n{RULE}\n{FOOTER}"),
    ("claude", f"✻ Thinking… (3s · esc to interrupt)\n\n{RULE}\n❯\n{RULE}\n{FOOTER}"),
    ("claude", "Do you want to proceed?\n❯ 1. Yes\n  2. No"),
    ("claude", f"{RULE}\n❯\n{RULE}\n{FOOTER}\n" + "later output\n" * 9 + "$"),
    ("codex", "› unfinished draft\n\n  gpt-5.4 default"),
    ("codex", "◦ Working (6s • esc to interrupt)\n\n› Explain this codebase\n\n  gpt-5.4"),
    ("codex", "› 1. Update now\n  2. Skip\n\n  Press enter to continue"),
    ("gemini", f"╭{RULE}╮\n│ > half a line │\n╰{RULE}╯\n~/repos"),
    ("gemini", f"⠏ Thinking (esc to cancel, 3s)\n╭{RULE}╮\n│ >   Type your message or @path/to/file │\n╰{RULE}╯"),
    ("aider", "> half"),
    ("aider", "Add main.py to the chat? (Y)es/(N)o [Yes]:"),
    ("aider", "$"),
    ("aider", ""),
]


@pytest.mark.parametrize(("agent", "screen"), EMPTY)
def test_an_empty_prompt_is_known(agent: str, screen: str) -> None:
    assert _matcher(PROMPTS[agent])(screen)


@pytest.mark.parametrize(("agent", "screen"), TAKEN)
def test_what_is_typed_asked_or_worked_on_is_no_empty_prompt(agent: str, screen: str) -> None:
    assert not _matcher(PROMPTS[agent])(screen)


def test_a_prompt_may_end_in_a_blank_which_a_captured_screen_has_lost() -> None:
    waits = _matcher(r"you> $")
    assert waits("Done.\nyou>")
    assert not waits("you> half")
    assert not waits("you>half")


def test_a_prompt_that_is_no_expression_is_refused() -> None:
    for text in ("(", r"(?=a)", r"(a)\1"):
        with pytest.raises(InvalidInput, match="not an RE2 expression"):
            _matcher(text)


def test_no_piece_holds_a_line_break_beside_anything_else() -> None:
    for text in ("a", "a\nb", "\n\na\n", "", "a\n\n\nb", "a\n" * 500):
        for breaks in (True, False):
            found = pieces(text, breaks=breaks)
            assert all(piece == "\n" or "\n" not in piece for piece in found)
            assert "".join(found).replace(" \u23ce ", "\n") == text
    assert len(pieces("a\n" * (MOST_LINES + 1), breaks=True)) == 1
