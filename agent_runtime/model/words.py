"""The words in text, and a score for how well a page matches them. Pure."""

import re

MOST_TERMS = 24
LONGEST_TERM = 200  # SQLite patterns have at most 50,000 bytes
SNIPPET_CHARS = 160
LONGEST_SENTENCE = 240
_HEADING = re.compile(r"^#.*$", re.MULTILINE)
_WRAP = re.compile(r"\n(?![^\S\n]*(?:\Z|\n|[-*#>|]|[0-9]+[.)]\s))")
_END = re.compile(r"(?<=[.!?…])\s+|\n+")
_MARKUP = re.compile(r"^[#>*\-\s]+")
_WORD = re.compile(r"[^\W_]+(?:[-'][^\W_]+)*")
STOP_WORDS = frozenset(
    """a about after all also am an and any are as at be because been before being but by can could did do does done for
    from get give had has have he her here him his how i if in into is it its just like make many me more most my new no
    not now of on one only or other our out over please say she should so some such tell than that the their them then
    there these they this those to too up us very was we were what when where which who why will with would you
    your""".split()  # noqa: SIM905  two hundred lines would say no more
)


def words(text: str) -> list[str]:
    """Return the words of the text in lower case.

    >>> words("CI is green, isn't it?")
    ['ci', 'is', 'green', "isn't", 'it']
    """
    return [word.lower() for word in _WORD.findall(text)]


def terms(text: str, *, common: bool = False) -> list[str]:
    """Return the words worth searching for, without repetition, in order; at most 24, each of at most 200 letters.

    Common words and single letters are left out unless `common`.

    >>> terms("What about the release? The release of Monday.")
    ['release', 'monday']
    """
    found = dict.fromkeys(word for word in words(text) if len(word) <= LONGEST_TERM)
    return [word for word in found if common or (word not in STOP_WORDS and len(word) > 1)][:MOST_TERMS]


def score(wanted: list[str], title: str, body: str, tags: str) -> float:
    """Return a page's score for the terms; 0 if the page contains none of them."""
    heading, text, marks = words(title), words(body), words(tags)
    points = 0.0
    for term in wanted:
        count = text.count(term)
        points += 3.0 * (term in heading) + 2.0 * (term in marks) + (1.0 + min(count, 10) / 10.0 if count else 0.0)
    return points


def sentences(text: str) -> list[str]:
    r"""Return the sentences of the text, in order, without headings and list marks; wrapped lines are joined.

    >>> sentences("# Plan\n\nShip\nit! Then\n- rest")
    ['Ship it!', 'Then', 'rest']
    """
    body = _HEADING.sub("\n", text)
    found = (_MARKUP.sub("", part).strip() for part in _END.split(_WRAP.sub(" ", body)))
    return [shortened(part, LONGEST_SENTENCE) for part in found if part]


def snippet(wanted: list[str], body: str) -> str:
    """Return the sentence of the body with the most terms, shortened."""
    best = max(sentences(body), key=lambda sentence: len(set(words(sentence)) & set(wanted)), default="")
    return shortened(best, SNIPPET_CHARS)


def shortened(text: str, most: int) -> str:
    """Return the text, shortened to at most `most` characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
