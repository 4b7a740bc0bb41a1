r"""Escapes for characters that control a display or are invisible, so that no text is hidden.

The escapes apply to control characters, format characters (category Cf), line and paragraph separators, and surrogates;
to characters that Unicode lets a program display as nothing (Default_Ignorable_Code_Point: zero width, soft hyphen,
Hangul fillers, tags, variation selectors); and to some that fonts show as blanks. Line feeds and tabs are not escaped.

The escapes are those of JSON, so they do not change the meaning of JSON.
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
# One selector after a visible character that is not ASCII or is part of a keycap; one joiner between two such
# characters.
_SEEN = rf"[^\x00-\x7f{_UNSEEN}]"
_MEANT = rf"(?<={_SEEN})[{_SELECTORS}]?[{_JOINERS}](?={_SEEN})|(?<={_SEEN})[{_SELECTORS}]|(?<=[0-9#*])\ufe0f(?=\u20e3)"
_ANY_NOT_MEANT = re.compile(f"({_MEANT})|[{_UNSEEN}]")


_WORDS = {"interrupted": "waits for you"}
_WORDS_OF_LOOPS = {**_WORDS, "disabled": "stopped"}


def in_words(state: str, *, loop: bool = False) -> str:
    """Return a state or an outcome in the words for people. Scripts read the value itself.

    >>> in_words("interrupted"), in_words("disabled", loop=True), in_words("disabled")
    ('waits for you', 'stopped', 'disabled')
    """
    return (_WORDS_OF_LOOPS if loop else _WORDS).get(state, state)


def from_words(text: str) -> str:
    """Return the state or outcome that :func:`in_words` formats as this text. Return any other text unchanged.

    >>> from_words("waits for you"), from_words("stopped"), from_words("failed")
    ('interrupted', 'disabled', 'failed')
    """
    return next((state for state, words in _WORDS_OF_LOOPS.items() if words == text), text)


def counted(number: int, noun: str) -> str:
    """Format a number with its noun, in the singular or plural.

    >>> counted(1, "task"), counted(0, "fire")
    ('1 task', '0 fires')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def waiting_line(*, waiting: int, proposed: int, deviations: int) -> str:
    """Summarize in one line the decisions that wait for the author, and where to make them. Empty if nothing waits.

    >>> waiting_line(waiting=2, proposed=1, deviations=0)
    '2 decisions waiting: turnkeeper approvals list; 1 proposal: turnkeeper triage'
    """
    parts = [f"{counted(waiting, 'decision')} waiting: turnkeeper approvals list"] if waiting else []
    open_ = [counted(number, name) for number, name in ((proposed, "proposal"), (deviations, "deviation")) if number]
    return "; ".join(parts + ([f"{' and '.join(open_)}: turnkeeper triage"] if open_ else []))


def plain(text: str) -> str:
    r"""Return the text with every control or invisible character escaped.

    >>> plain("a\x1b[31mb\u202ec\U000e0041")
    'a\\x1b[31mb\\u202ec\\udb40\\udc41'
    """
    return text if text.isascii() and text.isprintable() else _ANY.sub(_written, text)


def prose(text: str) -> str:
    r"""Return text like :func:`plain`, but do not escape the joiners and variation selectors of emoji and scripts.

    One selector may follow a character that is not ASCII, and one joiner may appear between two such characters.

    >>> prose("\u2764\ufe0f \u0645\u06cc\u200c\u062e a\u200db") == "\u2764\ufe0f \u0645\u06cc\u200c\u062e a\\u200db"
    True
    """
    if text.isascii() and text.isprintable():
        return text
    return _ANY_NOT_MEANT.sub(lambda found: found[1] or _written(found), text)


def as_json(value: Any, *, indent: int | None = None) -> str:
    r"""Return a value as JSON, in which the characters that :func:`plain` escapes are also escaped.

    >>> as_json({"said": "\x9b31m \u202e ü"})
    '{"said": "\\u009b31m \\u202e ü"}'
    """
    return plain(json.dumps(value, indent=indent, ensure_ascii=False))


def _written(found: re.Match[str]) -> str:
    character = found[0]
    return f"\\x{ord(character):02x}" if character < " " else json.dumps(character)[1:-1].replace("\x7f", "\\u007f")
