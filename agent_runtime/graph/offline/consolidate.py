"""Which remembered texts say the same, and which are out of date. Pure; the same answer for the same entries."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from functools import lru_cache

from agent_runtime.model.words import words

NEARLY = 0.8  # of all words of two texts, so many are in both
LEAST_WORDS = 4  # shorter texts say the same only if their words are the same
LONGEST_SUBJECT = 6  # words
_UNTIL = re.compile(r"\b(?:until|expires(?: on)?|valid until)\s+(\d{4}-\d{2}-\d{2})\b", re.IGNORECASE)
_SUBJECT = re.compile(r"\A([^:\n]{1,80}):\s+\S[^\n]*\Z")
_NO_SUBJECT = frozenset({"todo", "note", "idea", "reminder", "question", "decision", "fact", "remember"})
_TURNING = frozenset({"not", "no", "never", "without", "none", "nobody", "nothing", "cannot"})


@dataclass(frozen=True, kw_only=True)
class Note:
    """An entry as a model reads it.

    Attributes:
        tier: its tier.
        key: its key.
        text: what it says.
        updated_at: RFC 3339 in UTC, which sorts as text.
        authored: the author wrote it, and no agent changes it.
    """

    tier: str
    key: str
    text: str
    updated_at: str
    authored: bool = False


def alike(one: str, other: str) -> bool:
    """Return whether two texts say the same, or nearly the same words about the same numbers.

    >>> alike("The pump was replaced in March.", "the pump was replaced in march")
    True
    >>> alike("The new pump costs 40 euros a year", "The new pump costs 45 euros a year")
    False
    >>> alike("The gate is open on Sundays in winter", "The gate is not open on Sundays in winter")
    False
    """
    mine, theirs = _words(one), _words(other)
    if mine == theirs:
        return bool(mine) or one == other
    first, second = _set(one), _set(other)
    if min(len(first), len(second)) < LEAST_WORDS or _decisive(first) != _decisive(second):
        return False
    return len(first & second) >= NEARLY * len(first | second)


def subject(text: str) -> str:
    """Return what a text of the form `subject: value` is about, or nothing.

    >>> subject("Release date: 2026-03-02"), subject("TODO: paint"), subject("It said: no, and then it said: yes, no?")
    ('release date', '', 'it said')
    """
    found = _SUBJECT.match(text.strip())
    about = words(found[1]) if found else []
    return " ".join(about) if 0 < len(about) <= LONGEST_SUBJECT and about[0] not in _NO_SUBJECT else ""


def expired(text: str, today: str) -> bool:
    """Return whether a text says that it holds until a day that is over.

    Args:
        text: such as `The bridge is closed until 2026-03-01`.
        today: a day as YYYY-MM-DD; empty: unknown, and nothing has expired.
    """
    days = [day for day in _UNTIL.findall(text) if _is_day(day)]
    return bool(today and days) and max(days) < today


def heirs(notes: Sequence[Note]) -> dict[Note, list[Note]]:
    """Return, for each entry that stays, the entries of its tier that say the same; only those that repeat.

    An author's entry stays before an agent's, otherwise the newest does.
    """
    kept: dict[Note, list[Note]] = {}
    for note in sorted(notes, key=lambda one: (one.authored, one.updated_at, one.key), reverse=True):
        same = next((one for one in kept if one.tier == note.tier and alike(one.text, note.text)), None)
        if same is None:
            kept[note] = []
        elif not note.authored:
            kept[same].append(note)
    return {note: repeats for note, repeats in kept.items() if repeats}


def superseded(notes: Sequence[Note]) -> list[Note]:
    """Return the entries whose subject a newer entry of the same tier gives another value."""
    newest: dict[tuple[str, str], Note] = {}
    old = []
    for note in sorted(notes, key=lambda one: (one.updated_at, one.key), reverse=True):
        about = (note.tier, subject(note.text))
        if about[1] and newest.setdefault(about, note) is not note and not note.authored:
            old.append(note)
    return old


@lru_cache(maxsize=2048)
def _words(text: str) -> tuple[str, ...]:
    return tuple(words(text))


@lru_cache(maxsize=2048)
def _set(text: str) -> frozenset[str]:
    return frozenset(_words(text))


@lru_cache(maxsize=2048)
def _decisive(found: frozenset[str]) -> set[str]:
    """Return the words that make two texts differ however much else they share: numbers, and words that deny."""
    return {word for word in found if word in _TURNING or word.endswith("n't") or any(map(str.isdigit, word))}


def _is_day(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True
