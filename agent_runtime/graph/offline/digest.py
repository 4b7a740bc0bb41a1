"""The catch-up summary by rules: read what is new, propose the sentences that say most, report what was read.

Picking the sentences that say most. Pure.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from agent_runtime.graph.offline.rules import (
    Brief,
    Done,
    Request,
    Step,
    answers,
    follow,
    refusals,
    remember,
    without_orders,
)
from agent_runtime.model.words import sentences, terms, words


def salient(texts: Iterable[str], most: int) -> list[str]:
    """Return the sentences whose words the texts use most often, in the order they stand, each once.

    Source: H. P. Luhn, The Automatic Creation of Literature Abstracts, IBM Journal 2(2), 1958.
    """
    found = list(dict.fromkeys(sentence for text in texts for sentence in sentences(text)))
    weight = Counter(word for sentence in found for word in terms(sentence))

    def value(sentence: str) -> float:
        content = terms(sentence)
        return sum(weight[word] for word in content) / (len(content) + 2)

    return _in_order(found, sorted(found, key=value, reverse=True)[:most])


def relevant(text: str, wanted: Sequence[str], most: int) -> list[str]:
    """Return the sentences that hold most of the wanted words, in the order they stand; none that holds none."""
    found = list(dict.fromkeys(sentences(text)))
    hits = {sentence: len(set(words(sentence)) & set(wanted)) for sentence in found}
    best = [sentence for sentence in sorted(found, key=lambda one: -hits[one]) if hits[sentence]]
    return _in_order(found, best[:most])


def _in_order(found: Sequence[str], chosen: Sequence[str]) -> list[str]:
    return [sentence for sentence in found if sentence in set(chosen)]


MOST_PAGES = 2
MOST_POINTS = 5
_INSTRUCTIONS = frozenset({"catch", "summarise", "summarize", "summary", "report", "digest", "happened", "propose"})


def digest(brief: Brief, done: Done) -> Step:
    """Return the next step of a turn that summarises its channel."""
    return follow((_read, _open, _propose, remember), _close, brief, done)


def _read(brief: Brief, _done: Done) -> list[Request]:
    query = " ".join(term for term in terms(without_orders(brief.prompt)) if term not in _INSTRUCTIONS)
    wanted = [
        Request(tool="conversation_read", args={"since": "last-summary"}),
        Request(tool="memory_read", args={"tier": "channel"}),
        *([Request(tool="workspace_search", args={"query": query})] if query else []),
    ]
    return [call for call in wanted if brief.may(call.tool)]


def _open(brief: Brief, done: Done) -> list[Request]:
    pages = _new_pages(done)[:MOST_PAGES] if brief.may("workspace_read") else []
    return [Request(tool="workspace_read", args={"page": page["page"]}) for page in pages]


def _propose(brief: Brief, done: Done) -> list[Request]:
    if not _worth_saying(done):
        return []
    when = f", {brief.nominal}" if brief.nominal else ""
    return [Request(tool="summary_propose", args={"title": f"Catch-up for {brief.channel}{when}", "body": _body(done)})]


def _worth_saying(done: Done) -> bool:
    """Return whether something is new since the last summary; the first summary of a channel always is."""
    hearing = _hearing(done)
    first = bool(hearing) and hearing.get("since") is None
    return first or bool(hearing.get("messages")) or bool(_new_pages(done))


def _body(done: Done) -> str:
    hearing, pages = _hearing(done), answers(done, "workspace_read")
    messages = hearing.get("messages", [])
    since = " since the last summary" if hearing.get("since") else ""
    parts = [f"{_count(messages, 'message')}{since}, {_count(pages, 'page')} on the subject.".capitalize()]
    said = salient((message["text"] for message in messages), MOST_POINTS)
    parts += [f"- {_speaker(messages, point)}: {point}" for point in said]
    query = [word for search in _queries(done) for word in terms(search)]
    for page in pages:
        points = relevant(page["body"], query, 2) or salient([page["body"]], 2)
        parts += [f"- {page['title']} ({page['page']}): {point}" for point in points]
    remembered = _new_entries(done)
    parts += [f"- remembered: {entry['text']}" for entry in remembered[:MOST_POINTS]]
    return "\n".join(parts)


def _close(brief: Brief, done: Done) -> str:
    proposed, refused, kept = answers(done, "summary_propose"), refusals(done), answers(done, "memory_put")
    if not (proposed or refused or kept or brief.stands_for > 1):
        return ""
    read = [_count(_hearing(done).get("messages", []), "new message"), _count(_new_entries(done), "remembered note")]
    pages = answers(done, "workspace_read")
    read.append(_count(pages, "page") + (f" ({', '.join(page['page'] for page in pages)})" if pages else ""))
    said = [f"Read {read[0]}, {read[1]} and {read[2]} in {brief.channel}."]
    said += [f"Proposed “{one['title']}” as candidate {one['candidate_id']}." for one in proposed]
    said += [] if proposed else ["Nothing new since the last summary, so nothing is proposed."]
    said += [f"Remembered it in the {one['tier']} memory." for one in kept]
    said += [f"{line}." if line[-1] not in ".!?" else line for line in refused]
    if brief.stands_for > 1:
        said.append(f"This turn stands for {brief.stands_for} missed fires, the last of {brief.nominal or 'unknown'}.")
    said.append("(Written by the rule-based offline model.)")
    return " ".join(said)


def _hearing(done: Done) -> dict[str, Any]:
    return next(iter(answers(done, "conversation_read")), {})


def _entries(done: Done) -> list[dict[str, Any]]:
    return [entry for found in answers(done, "memory_read") for entry in found["entries"]]


def _new_entries(done: Done) -> list[dict[str, Any]]:
    """Return what was remembered since the last summary; all of it where there was none."""
    since = str(_hearing(done).get("since") or "")
    return [entry for entry in _entries(done) if entry["updated_at"] > since]


def _queries(done: Done) -> list[str]:
    return [exchange.args["query"] for exchange in done if exchange.tool == "workspace_search"]


def _new_pages(done: Done) -> list[dict[str, Any]]:
    """Return the pages found that changed since the last summary, RFC 3339 instants in UTC compared as text."""
    since = str(_hearing(done).get("since") or "")
    found = [page for search in answers(done, "workspace_search") for page in search["pages"]]
    return [page for page in found if page["updated_at"] > since]


def _speaker(messages: list[dict[str, Any]], point: str) -> str:
    start = point.rstrip("…")
    return next((message["role"] for message in messages if start in " ".join(message["text"].split())), "said")


def _count(items: list[Any], noun: str) -> str:
    number = len(items) or "no"
    return f"{number} {noun}{'' if len(items) == 1 else 's'}"
