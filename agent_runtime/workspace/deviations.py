"""Deviation records: contradictions of a canonical page. Agents and the submit boundary make them.

Only an author closes a deviation. Only the submit boundary calls the functions that write.

This module also compares two texts, by a rule that anyone can check without a program. Pure.

Text states a fact in one of two forms. The first is a line `key: value` with a key of at most 40 characters; the
subject is the key. The second is a sentence with a number, a date, a weekday or a month; the subject is the sentence
without them.

Two texts contradict each other on a subject if each states exactly one value for it and the values differ. Case,
spaces, list marks and the last full stop are ignored, and `forty-two` is 42. A question states nothing. Only the first
65,536 characters of each text are compared.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from hashlib import sha256

from sqlalchemy import Connection, desc, func, insert, select, update

from agent_runtime.model.mapping import from_row
from agent_runtime.model.turn import TurnContext
from agent_runtime.model.words import LONGEST_SENTENCE, sentences
from agent_runtime.store.schema import deviations
from agent_runtime.store.turn_events import add_review
from turnkeeper.errors import NotFound
from turnkeeper.times import to_us

MOST_DIFFERENCES = 10
MOST_COMPARED = 64 * 1024  # characters of either text, because the comparison blocks the store
LONGEST_VALUE = 120
_KEYED = re.compile(r"^[ \t]*(?:[-*+][ \t]+)?([^\W\d_][^:.;!?\n]{0,39}):[ \t]+(\S.*)$", re.MULTILINE)
_TOKEN = re.compile(r"[^\W_]+(?:[-'.,:/][^\W_]+)*%?")
_NO_FACTS = frozenset({"source", "open question", "question", "see"})
_UNITS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_DATES = (
    "monday tuesday wednesday thursday friday saturday sunday january february march april may june july august "
    "september october november december"
)
_NUMBERS = {word: number for number, word in enumerate(_UNITS.split())} | {
    word: 10 * number for number, word in enumerate(_TENS.split(), start=2)
}
_DATE_WORDS = frozenset(_DATES.split()) | frozenset(f"{word}s" for word in _DATES.split())


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One subject on which two texts differ: the statement of each, with line breaks normalized."""

    says: str
    found: str


@dataclass(frozen=True, kw_only=True)
class _Fact:
    subject: str
    value: tuple[str, ...]
    statement: str


def differences(canonical: str, other: str) -> list[Difference]:
    r"""Return the contradictions of `canonical` by `other`, in the order of `canonical`; at most ten.

    >>> differences("Plots: 42\n\nOpen on Saturdays from April on.", "Open on Sundays from April on. Plots: many")
    [Difference(says='Open on Saturdays from April on.', found='Open on Sundays from April on.')]
    """
    theirs, found = _single(other[:MOST_COMPARED]), list[Difference]()
    for subject, fact in _single(canonical[:MOST_COMPARED]).items():
        if subject in theirs and theirs[subject].value != fact.value:
            found.append(Difference(says=fact.statement, found=theirs[subject].statement))
    return list(dict.fromkeys(found))[:MOST_DIFFERENCES]


def quotes(body: str, statement: str) -> bool:
    """Return True if the text holds a statement word for word, ignoring line breaks and repeated blanks."""
    return " ".join(statement.split()) in " ".join(body.split())


@lru_cache(maxsize=8)  # one candidate is compared with several pages
def _single(text: str) -> Mapping[str, _Fact]:
    """Return the facts of the text by subject, without subjects that have several values."""
    facts, torn = dict[str, _Fact](), set[str]()
    for fact in (*_keyed(text), *_measured(text)):
        if facts.setdefault(fact.subject, fact).value != fact.value:
            torn.add(fact.subject)
    return {subject: fact for subject, fact in facts.items() if subject not in torn}


def _keyed(text: str) -> Iterator[_Fact]:
    for match in _KEYED.finditer(text):
        key, value = " ".join(match[1].lower().split()), match[2].rstrip()
        if key in _NO_FACTS or value.endswith("?") or len(value) > LONGEST_VALUE:
            continue
        normal = tuple(_number(token.lower()) or token.lower() for token in _TOKEN.findall(value))
        yield _Fact(subject=f"{key}:", value=normal, statement=f"{match[1]}: {value}")


def _measured(text: str) -> Iterator[_Fact]:
    for sentence in sentences(_KEYED.sub("\n", text)):
        if len(sentence) >= LONGEST_SENTENCE or sentence.endswith("?"):
            continue
        frame, values = list[str](), list[str]()
        for token in _TOKEN.findall(sentence.lower()):
            value = _number(token) or (token.rstrip("s") if token in _DATE_WORDS else "")
            if value:
                values.append(value)
            if not (value and frame and frame[-1] == "#"):
                frame.append("#" if value else token)
        if values and len(frame) - frame.count("#") > 1:
            yield _Fact(subject=" ".join(frame), value=tuple(values), statement=" ".join(sentence.split()))


def _number(token: str) -> str:
    """Return the number in a token, in digits or in words up to ninety-nine; empty if there is none."""
    if any(character.isdigit() for character in token):
        return token
    parts = [_NUMBERS.get(part, -1) for part in token.split("-")]
    return "" if min(parts) < 0 else str(sum(parts))


LONGEST_STATEMENT = 1_000  # bytes
LONGEST_NOTE = 4_096  # bytes
MOST_ROWS = 1_000


@dataclass(frozen=True, kw_only=True)
class DeviationDraft:
    """A contradiction that an agent found.

    Attributes:
        says: a statement quoted from the page.
        source: the page or web address of `found`; may be empty.
        why: a sentence for the author; may be empty.
        item_id: the item of the re-validation queue that this draft answers; empty for none.
    """

    page_id: str
    says: str
    found: str
    source: str = ""
    why: str = ""
    item_id: str = ""


@dataclass(frozen=True, kw_only=True)
class Resolution:
    """The author's decision about a deviation: keep the page, or accept the contradicting statement.

    Accepting the deviation of a pending candidate accepts the candidate too.
    """

    deviation_id: str
    accept: bool
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """A deviation as it is stored.

    Attributes:
        kind: contradiction; or stale-base: the page has changed since the candidate was made.
        source: the location of `found`; empty for the candidate.
        candidate_id: the candidate with the contradiction; empty for none.
        origin: agent-produced, or observed if the submit boundary found the deviation.
        lifecycle: open, kept (the page stays) or accepted.
        task_name: the turn's task; empty for an author's turn.
    """

    deviation_id: str
    kind: str
    channel: str
    page_id: str
    page_version: int
    says: str
    found: str
    source: str
    candidate_id: str
    why: str
    origin: str
    lifecycle: str
    turn_id: str
    task_name: str
    created_at: datetime
    decided_at: datetime | None
    note: str
    decided_by: str = ""


@dataclass(frozen=True, kw_only=True)
class Place:
    """The place of a deviation: the page and its version, the candidate, and the source of the other statement."""

    page_id: str
    page_version: int
    kind: str = "contradiction"
    source: str = ""
    candidate_id: str = ""
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Writer:
    """The turn that a deviation's write belongs to, and the origin of the deviation: the agent or the boundary."""

    origin: str
    turn_id: str
    thread_id: str
    channel: str
    agent: str
    task_name: str

    @classmethod
    def of(cls, turn: TurnContext, origin: str) -> "Writer":
        names = ("turn_id", "thread_id", "channel", "agent", "task_name")
        return cls(origin=origin, **{name: getattr(turn, name) for name in names})


def record(connection: Connection, place: Place, found: Difference, writer: Writer, at: datetime) -> tuple[str, bool]:
    """Store an open deviation; return its id, and whether it is new.

    Reuse an open deviation with the same statements, unless the two deviations are about different candidates. Each
    candidate has a separate deviation, with a separate decision.
    """
    same = (
        (deviations.c.page_id == place.page_id)
        & (deviations.c.says == found.says)
        & (deviations.c.found == found.found)
        & (deviations.c.lifecycle == "open")
    )
    query = (
        select(deviations.c.candidate_id, deviations.c.deviation_id)
        .where(same)
        .order_by(deviations.c.created_at_us, deviations.c.deviation_id)
    )
    open_: dict[str, str] = {row.candidate_id: row.deviation_id for row in connection.execute(query).all()}
    if place.candidate_id in open_:
        return open_[place.candidate_id], False
    if open_ and not place.candidate_id:
        return next(iter(open_.values())), False
    if "" in open_:
        one = deviations.c.deviation_id == open_[""]
        connection.execute(update(deviations).where(one).values(candidate_id=place.candidate_id))
        return open_[""], False
    number = connection.execute(select(func.count()).select_from(deviations)).scalar_one()
    said = "\n".join((writer.turn_id, place.page_id, found.says, found.found, str(to_us(at)), str(number)))
    row = {
        **place.__dict__,
        **found.__dict__,
        **writer.__dict__,
        "deviation_id": f"d-{sha256(said.encode()).hexdigest()[:12]}",
        "lifecycle": "open",
        "created_at_us": to_us(at),
        "decided_at_us": None,
        "decided_by": "",
        "note": "",
    }
    connection.execute(insert(deviations).values(row))
    deviation_id = str(row["deviation_id"])
    add_review(connection, writer.turn_id, "CONTRADICTED", at, about=[deviation_id], summary=found.found)
    return deviation_id, True


def close(connection: Connection, deviation_id: str, *, accept: bool, by: str, note: str, at: datetime) -> None:
    """Close a deviation by an author's decision."""
    decided = {
        "lifecycle": "accepted" if accept else "kept",
        "decided_at_us": to_us(at),
        "decided_by": by,
        "note": note,
    }
    connection.execute(update(deviations).where(deviations.c.deviation_id == deviation_id).values(decided))


def close_of_candidate(connection: Connection, candidate_id: str, *, accept: bool, by: str, at: datetime) -> None:
    """Close the open deviations of a candidate that the author has decided."""
    for deviation_id in of_candidate(connection, candidate_id):
        close(connection, deviation_id, accept=accept, by=by, note="", at=at)


def get_deviation(connection: Connection, deviation_id: str) -> Deviation:
    """Return a deviation by its id. Raises NotFound."""
    query = select(deviations).where(deviations.c.deviation_id == deviation_id)
    row = connection.execute(query).mappings().one_or_none()
    if row is None:
        raise NotFound(f"no deviation {deviation_id[:64]!r}", hint="see: turnkeeper deviations list")
    return from_row(Deviation, row)


def list_deviations(connection: Connection, *, channel: str = "", include_decided: bool = False) -> list[Deviation]:
    """Return deviations, newest first: open or all, of one channel or of all. At most a thousand."""
    query = select(deviations).order_by(desc(deviations.c.created_at_us), deviations.c.deviation_id).limit(MOST_ROWS)
    if channel:
        query = query.where(deviations.c.channel == channel)
    if not include_decided:
        query = query.where(deviations.c.lifecycle == "open")
    return [from_row(Deviation, row) for row in connection.execute(query).mappings()]


def open_on(connection: Connection, page_id: str) -> list[Deviation]:
    """Return the open deviations of a page."""
    query = select(deviations).where(deviations.c.page_id == page_id, deviations.c.lifecycle == "open")
    query = query.order_by(deviations.c.created_at_us, deviations.c.deviation_id)
    return [from_row(Deviation, row) for row in connection.execute(query).mappings()]


def of_turns(connection: Connection, turn_ids: Sequence[str]) -> dict[str, list[Deviation]]:
    """Return the deviations of turns, in order, by turn; turns without deviations are left out."""
    query = select(deviations).where(deviations.c.turn_id.in_(turn_ids))
    found: dict[str, list[Deviation]] = {}
    for row in connection.execute(query.order_by(deviations.c.created_at_us, deviations.c.deviation_id)).mappings():
        found.setdefault(row["turn_id"], []).append(from_row(Deviation, row))
    return found


def of_candidate(connection: Connection, candidate_id: str) -> list[str]:
    """Return the ids of the open deviations of a candidate."""
    about = (deviations.c.candidate_id == candidate_id) & (deviations.c.lifecycle == "open")
    query = select(deviations.c.deviation_id).where(about).order_by(deviations.c.deviation_id)
    return list(connection.execute(query).scalars())
