"""Parsing of a loop's words: an interval or a cron expression, and the prompt. Pure."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from turnkeeper.errors import InvalidInput

_UNITS = r"(?:s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?|w|weeks?)"
_SPAN = rf"[0-9]+\s*{_UNITS}(?:\s*[0-9]+\s*{_UNITS})*"
_INTERVAL = re.compile(rf"(?:every\s+)?({_SPAN})", re.IGNORECASE)
_COMPACT = rf"[0-9]+{_UNITS}(?:[0-9]+{_UNITS})*"
# "2 days ago the pump was replaced" is a prompt: a leading interval contains no space, or follows "every".
_TIME_OF = r"(?!(?:ago|after|before|earlier|from|in|into|later|of|old|since)\b)"
_LEADING = re.compile(rf"(?:every\s+({_SPAN})|({_COMPACT}))[:,]?\s+{_TIME_OF}(\S.*)", re.IGNORECASE | re.DOTALL)
_TRAILING = re.compile(rf"(.*\S)[,;]?\s+every\s+({_SPAN})[.!]?", re.IGNORECASE | re.DOTALL)
_UNFINISHED = re.compile(r"every(?:\s+\S+)?|.*\s+every", re.IGNORECASE | re.DOTALL)
_NAMES = "jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec|mon|tue|wed|thu|fri|sat|sun"
_FIELD = re.compile(rf"(?:[0-9*/,#?L-]|H(?:\([0-9-]+\))?|{_NAMES})+", re.IGNORECASE)
_NICKNAME = re.compile(r"@[a-z]+")
_FIELDS, _MOST_FIELDS = 5, 6
_QUOTED = re.compile(r"""(["'])(.+?)\1\s+(\S.*)""", re.DOTALL)


class Words(NamedTuple):
    """A parsed loop.

    Attributes:
        kind: `every`, `cron`, or `dynamic` if the words name no time.
        schedule: the interval or the expression; empty for `dynamic`.
    """

    kind: str
    schedule: str
    prompt: str


def read_words(words: Sequence[str]) -> Words:
    """Parse the words of a loop: an interval at the beginning or the end, or a cron expression at the beginning.

    >>> read_words(["15m", "check CI"])
    Words(kind='every', schedule='15m', prompt='check CI')
    >>> read_words(["check CI every 2 hours"])
    Words(kind='every', schedule='2 hours', prompt='check CI')
    >>> read_words(["0", "9", "*", "*", "1-5", "check", "CI"])
    Words(kind='cron', schedule='0 9 * * 1-5', prompt='check CI')
    >>> read_words(["check CI"])
    Words(kind='dynamic', schedule='', prompt='check CI')

    Raises:
        InvalidInput: there are no words or no prompt, or there are two arguments and the first is not a schedule.
    """
    text = " ".join(words).strip()
    if not text:
        raise InvalidInput("no prompt", where="loop create", hint='for example: loop create 15m "check the build"')
    found = _of_first(words) if len(words) > 1 else None
    if found is None and len(words) == 2:
        what = f"{words[0][:60]!r} is neither an interval nor a cron expression"
        raise InvalidInput(what, where="loop create", hint="write 15m or '0 9 * * 1-5' before the prompt, or quote it")
    return found or _of_text(text)


def schedule_of(words: Sequence[str]) -> Words:
    """Parse the arguments as a schedule if the prompt is given by an option. Raises InvalidInput: not a schedule."""
    if not words:
        return Words("dynamic", "", "")
    found = _of_first([" ".join(words), ""])
    if found is None:
        what = f"{' '.join(words)[:60]!r} is neither an interval nor a cron expression"
        raise InvalidInput(what, where="loop create", hint="omit either the words or --prompt")
    return found


def _of_first(words: Sequence[str]) -> Words | None:
    """Parse the first argument as a schedule, and the others as the prompt."""
    first, prompt = words[0].strip(), " ".join(words[1:]).strip()
    if (interval := _INTERVAL.fullmatch(first)) and re.match(_TIME_OF, prompt, re.IGNORECASE):
        return Words("every", interval[1], prompt)
    fields = first.split()
    if _NICKNAME.fullmatch(first) or (_FIELDS <= len(fields) <= _MOST_FIELDS and _are_fields(fields)):
        return Words("cron", " ".join(fields), prompt)
    return None


def _of_text(text: str) -> Words:
    """Parse one text: a schedule at its beginning, else an interval at its end, else only a prompt."""
    if leading := _LEADING.fullmatch(text):
        return Words("every", leading[1] or leading[2], leading[3])
    parts = text.split(maxsplit=_FIELDS)
    if len(parts) > _FIELDS and _are_fields(parts[:_FIELDS]):
        return Words("cron", " ".join(parts[:_FIELDS]), parts[_FIELDS])
    if trailing := _TRAILING.fullmatch(text):
        return Words("every", trailing[2], trailing[1])
    if _INTERVAL.fullmatch(text) or _are_fields(text.split()):
        raise InvalidInput("it has a schedule and no prompt", where="loop create", hint="say what the agent must do")
    if _UNFINISHED.fullmatch(text):
        what = f"{text[:60]!r} lacks an interval after 'every', or a prompt"
        raise InvalidInput(what, where="loop create", hint='for example: loop create "check the build every 15m"')
    return Words("dynamic", "", text)


def _are_fields(parts: Sequence[str]) -> bool:
    return len(parts) >= _FIELDS and all(_FIELD.fullmatch(part) for part in parts)


def read_line(line: str) -> Words:
    """Parse a line that an author typed in a conversation; a cron expression may be in quotes.

    >>> read_line('"0 9 * * 1-5" what is open?')
    Words(kind='cron', schedule='0 9 * * 1-5', prompt='what is open?')

    Raises:
        InvalidInput: there are no words, or there is no prompt.
    """
    text = line.strip()
    quoted = _QUOTED.fullmatch(text)
    found = _of_first([quoted[2], quoted[3]]) if quoted else None
    return found or read_words([text] if text else [])
