"""When one text contradicts another, by a rule that anybody can check by hand. Pure.

A text states a fact in one of two forms:

    key: value      a line by itself, its key at most 40 characters; the subject is the key
    a sentence      that names a number, a date, a weekday or a month; the subject is the sentence without those

Two texts contradict each other on a subject that each of them states with exactly one value, where the values differ.
Case, spaces, list marks and the last full stop do not count, and `forty-two` is 42. A question states nothing. Of a
long text the first 65,536 characters are compared.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from agent_runtime.model.words import LONGEST_SENTENCE, sentences

MOST_DIFFERENCES = 10
MOST_COMPARED = 64 * 1024  # characters of either text: the comparison is made while the store waits
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
    """One subject on which two texts differ: what either says, word for word but for line breaks."""

    says: str
    found: str


@dataclass(frozen=True, kw_only=True)
class _Fact:
    subject: str
    value: tuple[str, ...]
    statement: str


def differences(canonical: str, other: str) -> list[Difference]:
    r"""Return where `other` contradicts `canonical`, in the order of `canonical`; at most ten.

    >>> differences("Plots: 42\n\nOpen on Saturdays from April on.", "Open on Sundays from April on. Plots: many")
    [Difference(says='Open on Saturdays from April on.', found='Open on Sundays from April on.')]
    """
    theirs, found = _single(other[:MOST_COMPARED]), list[Difference]()
    for subject, fact in _single(canonical[:MOST_COMPARED]).items():
        if subject in theirs and theirs[subject].value != fact.value:
            found.append(Difference(says=fact.statement, found=theirs[subject].statement))
    return list(dict.fromkeys(found))[:MOST_DIFFERENCES]


def quotes(body: str, statement: str) -> bool:
    """Return whether a text holds a statement word for word, line breaks and runs of blanks aside."""
    return " ".join(statement.split()) in " ".join(body.split())


@lru_cache(maxsize=8)  # one candidate is held against several pages
def _single(text: str) -> Mapping[str, _Fact]:
    """Return the facts of a text by subject, without subjects that it states with several values."""
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
    """Return a token as a number where it is one, in digits or in words up to ninety-nine; else an empty text."""
    if any(character.isdigit() for character in token):
        return token
    parts = [_NUMBERS.get(part, -1) for part in token.split("-")]
    return "" if min(parts) < 0 else str(sum(parts))
