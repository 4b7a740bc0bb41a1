"""Memory consolidation by rules: read the tiers, merge what says the same, forget what is out of date.

Out of date is: an entry that says until when it holds, once that day is over; one whose subject (`subject: value`) a
newer entry gives another value; and, where the prompt says so (`older than 90 days`), one that nobody touched so long.
What an author wrote stays. A fire of which all went well says nothing: its calls are on record.
"""

import re
from collections.abc import Sequence
from datetime import date, timedelta

from agent_runtime.graph.offline.consolidate import Note, expired, heirs, superseded
from agent_runtime.graph.offline.rules import Brief, Done, Request, Step, refusals
from agent_runtime.permissions.judge import TIERS

MOST_PAGES = 4  # readings of one tier in one turn
MOST_CHANGES = 25  # in one turn; the next goes on
RULE_BASED = "(Done by the rule-based offline model, which compares words and dates and does not reason.)"
_AGE = re.compile(r"(?:older than|(?:not|un)\s*touched for)\s+(\d{1,4})\s+(day|week|month|year)s?\b", re.IGNORECASE)
_DAYS = {"day": 1, "week": 7, "month": 30, "year": 365}


def consolidate(brief: Brief, done: Done) -> Step:
    """Return the next step of a turn that tidies memory."""
    reading = _readings(brief, done)
    if reading:
        return Step(calls=tuple(reading))
    changed = [exchange for exchange in done if exchange.tool in {"memory_update", "memory_forget"}]
    if not changed:
        changes = [call for call in _changes(brief, _notes(done)) if call.tool in brief.offered]
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
            calls.append(Request(tool="memory_read", args={"tier": tier, **({"skip": read} if read else {})}))
    return calls


def _changes(brief: Brief, notes: Sequence[Note]) -> list[Request]:
    """Return what is to be done: nothing twice, and no entry that is gone is merged into."""
    today = brief.nominal[:10]
    stale = {
        note: None for note in notes if not note.authored and _is_stale(note, today, longest_age_days(brief.prompt))
    }
    stale |= dict.fromkeys(superseded([note for note in notes if note not in stale]))
    calls = [_forget(note) for note in stale]
    for kept, repeats in heirs([note for note in notes if note not in stale]).items():
        fullest = max((kept, *repeats), key=lambda note: len(note.text))
        if fullest is not kept and not kept.authored:
            calls.append(Request(tool="memory_update", args=_place(kept) | {"text": fullest.text}))
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
    return Request(tool="memory_forget", args=_place(note))


def _place(note: Note) -> dict[str, str]:
    return {"tier": note.tier, "key": note.key}


def _close(brief: Brief, done: Done) -> str:
    """Return nothing where a fire went well; what went wrong, or what an author is owed an answer for, in words."""
    refused = refusals(done)
    if brief.by_fire and not refused:
        return ""
    gone = sum(exchange.ok for exchange in done if exchange.tool == "memory_forget")
    changed = sum(exchange.ok for exchange in done if exchange.tool == "memory_update")
    said = [f"Read {len(_notes(done))} entries, forgot {gone} and changed {changed}."]
    said += [line if line[-1] in ".!?" else f"{line}." for line in refused]
    return " ".join([*said, RULE_BASED])
