r"""Characters that act on what shows them, or that a reader does not see: written out, so that nothing is hidden.

They are control characters, format characters (category Cf), line and paragraph separators, halves of characters, those
that Unicode lets a program show as nothing (Default_Ignorable_Code_Point: zero width, soft hyphen, Hangul fillers,
tags, variation selectors), and some that fonts show as a blank. Line feeds and tabulators stay.

They are written as JSON writes them, so that JSON means the same before and after.
"""

import json
import re
from typing import Any

_BEYOND_JOINERS = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5"
    "\u180b-\u180f\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\ud800-\udfff\ufeff\uffa0\ufff0-\ufffc"
    "\U000110bd\U000110cd\U00013430-\U00013442\U00016fe4\U0001bca0-\U0001bca3\U0001d159\U0001d173-\U0001d17a"
    "\U000e0000-\U000e00ff\U000e01f0-\U000e0fff"
)
_JOINERS, _SELECTORS = "\u200c\u200d", "\ufe00-\ufe0f\U000e0100-\U000e01ef"
_UNSEEN = f"{_BEYOND_JOINERS}{_JOINERS}{_SELECTORS}"
_ANY = re.compile(f"[{_UNSEEN}]")
# After a character that is seen, and of no ASCII text but a keycap: one selector, and a joiner to the next such one.
_SEEN = rf"[^\x00-\x7f{_UNSEEN}]"
_MEANT = rf"(?<={_SEEN})[{_SELECTORS}]?[{_JOINERS}](?={_SEEN})|(?<={_SEEN})[{_SELECTORS}]|(?<=[0-9#*])\ufe0f(?=\u20e3)"
_ANY_NOT_MEANT = re.compile(f"({_MEANT})|[{_UNSEEN}]")


_WORDS = {"interrupted": "waits for you"}
_WORDS_OF_LOOPS = {**_WORDS, "disabled": "stopped"}


def in_words(state: str, *, loop: bool = False) -> str:
    """Return a state or an outcome as people read it; scripts read the value itself.

    >>> in_words("interrupted"), in_words("disabled", loop=True), in_words("disabled")
    ('waits for you', 'stopped', 'disabled')
    """
    return (_WORDS_OF_LOOPS if loop else _WORDS).get(state, state)


def from_words(text: str) -> str:
    """Return the state or outcome that :func:`in_words` writes so; another text as it is.

    >>> from_words("waits for you"), from_words("stopped"), from_words("failed")
    ('interrupted', 'disabled', 'failed')
    """
    return next((state for state, words in _WORDS_OF_LOOPS.items() if words == text), text)


def plain(text: str) -> str:
    r"""Return a text in which every character is seen and none is obeyed.

    >>> plain("a\x1b[31mb\u202ec\U000e0041")
    'a\\x1b[31mb\\u202ec\\udb40\\udc41'
    """
    return text if text.isascii() and text.isprintable() else _ANY.sub(_written, text)


def prose(text: str) -> str:
    r"""Return a text like :func:`plain`, but with the joiners and variants of emoji and scripts as they are.

    One selector may follow a character that is not ASCII, and one joiner may stand between two of them.

    >>> prose("\u2764\ufe0f \u0645\u06cc\u200c\u062e a\u200db") == "\u2764\ufe0f \u0645\u06cc\u200c\u062e a\\u200db"
    True
    """
    if text.isascii() and text.isprintable():
        return text
    return _ANY_NOT_MEANT.sub(lambda found: found[1] or _written(found), text)


def as_json(value: Any, *, indent: int | None = None) -> str:
    r"""Return a value as JSON, with what :func:`plain` writes out escaped.

    >>> as_json({"said": "\x9b31m \u202e ü"})
    '{"said": "\\u009b31m \\u202e ü"}'
    """
    return plain(json.dumps(value, indent=indent, ensure_ascii=False))


def _written(found: re.Match[str]) -> str:
    character = found[0]
    return f"\\x{ord(character):02x}" if character < " " else json.dumps(character)[1:-1].replace("\x7f", "\\u007f")
