"""Memory consolidation by rules: read the tiers, merge what says the same, forget what is out of date.

Out of date is: an entry that says until when it holds, once that day is over; one whose subject (`subject: value`) a
newer entry gives another value; and, where the prompt says so (`older than 90 days`), one that nobody touched so long.
What an author wrote stays. A fire whose calls all succeed says nothing: they are on record.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import lru_cache

from agent_runtime.graph.offline import rules
from agent_runtime.graph.offline.rules import Brief, Done, Request, Step, call
from agent_runtime.model.words import words
from agent_runtime.permissions.judge import TIERS

MOST_PAGES = 4  # readings of one tier in one turn
MOST_CHANGES = 25  # in one turn; the next goes on
SIGNATURE = "(Done by the rule-based offline model, which compares words and dates and does not reason.)"
_AGE = re.compile(r"(?:older than|(?:not|un)\s*touched for)\s+(\d{1,4})\s+(day|week|month|year)s?\b", re.IGNORECASE)
_DAYS = {"day": 1, "week": 7, "month": 30, "year": 365}
NEARLY = 0.8  # of all words of two texts, so many are in both
LEAST_WORDS = 4  # shorter texts say the same only if their words are the same
LONGEST_SUBJECT = 6  # words
_UNTIL = re.compile(r"\b(?:until|expires(?: on)?|valid until)\s+(\d{4}-\d{2}-\d{2})\b", re.IGNORECASE)
_SUBJECT = re.compile(r"\A([^:\n]{1,80}):\s+\S[^\n]*\Z")
_NO_SUBJECT = frozenset({"todo", "note", "idea", "reminder", "question", "decision", "fact", "remember"})
_DENYING = frozenset({"not", "no", "never", "without", "none", "nobody", "nothing", "cannot"})


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


def same(one: str, other: str) -> bool:
    """Return whether two texts say the same, or nearly the same words about the same numbers.

    >>> same("The pump was replaced in March.", "the pump was replaced in march")
    True
    >>> same("The new pump costs 40 euros a year", "The new pump costs 45 euros a year")
    False
    >>> same("The gate is open on Sundays in winter", "The gate is not open on Sundays in winter")
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


def repeated(notes: Sequence[Note]) -> dict[Note, list[Note]]:
    """Return, for each entry that stays, the entries of its tier that say the same; only those that repeat.

    An author's entry stays before an agent's, otherwise the newest does.
    """
    kept: dict[Note, list[Note]] = {}
    for note in sorted(notes, key=lambda one: (one.authored, one.updated_at, one.key), reverse=True):
        first = next((one for one in kept if one.tier == note.tier and same(one.text, note.text)), None)
        if first is None:
            kept[note] = []
        elif not note.authored:
            kept[first].append(note)
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
    return {word for word in found if word in _DENYING or word.endswith("n't") or any(map(str.isdigit, word))}


def _is_day(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def consolidate(brief: Brief, done: Done) -> Step:
    """Return the next step of a turn that tidies memory."""
    reading = _readings(brief, done)
    if reading:
        return Step(calls=tuple(reading))
    changed = [exchange for exchange in done if exchange.tool in {"memory_update", "memory_forget"}]
    if not changed:
        changes = [one for one in _changes(brief, _notes(done)) if one.tool in brief.offered]
        if changes:
            return Step(calls=tuple(changes[:MOST_CHANGES]))
    return Step(text=_close(brief, done))


def longest_age_days(prompt: str) -> int | None:
    """Return after how many days without a change the prompt wants entries forgotten; None: it does not say.

    >>> longest_age_days("Tidy up; forget what is older than 2 weeks"), longest_age_days("Tidy up")
    (14, None)
    """
    found = _AGE.search(prompt)
    return int(found[1]) * _DAYS[found[2].lower()] if found else None


def _readings(brief: Brief, done: Done) -> list[Request]:
    """Return the readings that are still to be made: the first of each tier, then on where one did not give all."""
    calls = []
    for tier in TIERS if brief.may("memory_read") else ():
        pages = [exchange for exchange in done if exchange.tool == "memory_read" and exchange.args.get("tier") == tier]
        read = sum(len(page.data.get("entries", ())) for page in pages)
        goes_on = bool(pages) and pages[-1].data.get("left_out", 0) > 0 and len(pages) < MOST_PAGES
        if tier in brief.memory and (not pages or goes_on):
            calls.append(call("memory_read", tier=tier, **({"skip": read} if read else {})))
    return calls


def _changes(brief: Brief, notes: Sequence[Note]) -> list[Request]:
    """Return what is to be done: nothing twice, and no entry that is gone is merged into."""
    today = brief.nominal[:10]
    stale = {
        note: None for note in notes if not note.authored and _is_stale(note, today, longest_age_days(brief.prompt))
    }
    stale |= dict.fromkeys(superseded([note for note in notes if note not in stale]))
    calls = [_forget(note) for note in stale]
    for kept, repeats in repeated([note for note in notes if note not in stale]).items():
        fullest = max((kept, *repeats), key=lambda note: len(note.text))
        if fullest is not kept and not kept.authored:
            calls.append(call("memory_update", tier=kept.tier, key=kept.key, text=fullest.text))
        calls += [_forget(note) for note in repeats]
    return calls


def _is_stale(note: Note, today: str, age_days: int | None) -> bool:
    if expired(note.text, today):
        return True
    if age_days is None or not today:
        return False
    return note.updated_at[:10] < (date.fromisoformat(today) - timedelta(days=age_days)).isoformat()


def _notes(done: Done) -> list[Note]:
    found = {}
    for exchange in done:
        for entry in exchange.data.get("entries", ()) if exchange.tool == "memory_read" else ():
            note = Note(
                tier=exchange.data["tier"],
                key=entry["key"],
                text=entry["text"],
                updated_at=entry["updated_at"],
                authored=entry.get("by") == "the author",
            )
            found[note.tier, note.key] = note
    return list(found.values())


def _forget(note: Note) -> Request:
    return call("memory_forget", tier=note.tier, key=note.key)


def _close(brief: Brief, done: Done) -> str:
    """Return nothing where a fire went well; otherwise what was done and what failed."""
    if brief.by_fire and not rules.refusals(done):
        return ""
    gone = sum(exchange.ok for exchange in done if exchange.tool == "memory_forget")
    changed = sum(exchange.ok for exchange in done if exchange.tool == "memory_update")
    said = [f"Read {len(_notes(done))} entries, forgot {gone} and changed {changed}."]
    return rules.closing(said, done, SIGNATURE)
