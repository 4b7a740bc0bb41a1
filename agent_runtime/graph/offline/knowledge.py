"""The jobs of knowledge by rules: tidy memory, research sources, compare pages with changed sources.

Memory: read the tiers, merge entries with the same meaning, and forget outdated entries. An entry is outdated in three
cases: the last day of its stated validity is over; a newer entry gives its subject (`subject: value`) another value; or
the prompt sets an age (`older than 90 days`) and the entry is unchanged for longer. An author's entries are never
forgotten. If all calls of a fire succeed, its text is empty, because the calls are on record.

Research: a sweep over the sources in a prompt, and the subagents that read and check sources. If a prompt names more
pages than one fire reads, the next fire continues after the last page; the channel's memory stores that page's address.
If the prompt asks for a review, a reviewer checks each proposal against its source.

Re-validation: if a queued page and its changed source disagree about a fact, the rules record the difference and
propose the page with the source's fact. If no fact differs, the page is still correct, as far as these rules can tell.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import lru_cache
from typing import Any

from agent_runtime.graph.offline import rules
from agent_runtime.graph.offline.rules import RULE_BASED, Brief, Done, Request, Rule, Step, answers, call
from agent_runtime.model.words import sentences, terms, words
from agent_runtime.permissions.judge import TIERS
from agent_runtime.workspace.deviations import Difference, differences
from agent_runtime.workspace.model import LONGEST_TITLE

MOST_READINGS = 4  # most readings of one tier in one turn
MOST_CHANGES = 25  # most changes in one turn; the next turn continues
MEMORY_SIGNATURE = "(Done by the rule-based offline model, which compares words and dates and does not reason.)"
_AGE = re.compile(r"(?:older than|(?:not|un)\s*touched for)\s+(\d{1,4})\s+(day|week|month|year)s?\b", re.IGNORECASE)
_DAYS = {"day": 1, "week": 7, "month": 30, "year": 365}
NEARLY = 0.8  # two texts are equal if they share this part of their words
LEAST_WORDS = 4  # shorter texts are equal only if their words are the same
LONGEST_SUBJECT = 6  # words
_UNTIL = re.compile(r"\b(?:until|expires(?: on)?|valid until)\s+(\d{4}-\d{2}-\d{2})\b", re.IGNORECASE)
_SUBJECT = re.compile(r"\A([^:\n]{1,80}):\s+\S[^\n]*\Z")
_NO_SUBJECT = frozenset({"todo", "note", "idea", "reminder", "question", "decision", "fact", "remember"})
_DENYING = re.compile(r"no(?:t|ne|body|thing)?|never|without|cannot|.*n't")


@dataclass(frozen=True, kw_only=True)
class Note:
    """An entry as a model reads it.

    Attributes:
        updated_at: RFC 3339 in UTC, which sorts as text.
        authored: True if the author wrote the entry, so that no agent may change it.
    """

    tier: str
    key: str
    text: str
    updated_at: str
    authored: bool = False


def same(one: str, other: str) -> bool:
    """Return whether two texts are equal, or have nearly the same words and the same numbers.

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
    """Return the subject of a line `subject: value`; empty for any other text.

    >>> subject("Release date: 2026-03-02"), subject("TODO: paint"), subject("It said: no, and then it said: yes, no?")
    ('release date', '', 'it said')
    """
    found = _SUBJECT.match(text.strip())
    about = words(found[1]) if found else []
    return " ".join(about) if 0 < len(about) <= LONGEST_SUBJECT and about[0] not in _NO_SUBJECT else ""


def expired(text: str, today: str) -> bool:
    """Return True if the text names the last day of its validity and that day is over.

    Args:
        text: such as `The bridge is closed until 2026-03-01`.
        today: a day as YYYY-MM-DD; empty if unknown, in which case no text has expired.
    """
    days = [day for day in _UNTIL.findall(text) if _is_day(day)]
    return bool(today and days) and max(days) < today


def repeated(notes: Sequence[Note]) -> dict[Note, list[Note]]:
    """Return, for each entry to keep, the entries of its tier with the same meaning, if there are any.

    An author's entry is kept before an agent's; otherwise the newest is kept.
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
    """Return the entries whose subject has another value in a newer entry of the same tier."""
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
    """Return the words that always make two texts differ: numbers, and words that deny."""
    return {word for word in found if _DENYING.fullmatch(word) or any(map(str.isdigit, word))}


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
    return Step(text=_close_memory(brief, done))


def longest_age_days(prompt: str) -> int | None:
    """Return the age in days at which the prompt wants unchanged entries forgotten; None if it sets no age.

    >>> longest_age_days("Tidy up; forget what is older than 2 weeks"), longest_age_days("Tidy up")
    (14, None)
    """
    found = _AGE.search(prompt)
    return int(found[1]) * _DAYS[found[2].lower()] if found else None


def _readings(brief: Brief, done: Done) -> list[Request]:
    """Return the next readings: the first of each tier, then the continuations of incomplete readings."""
    calls = []
    for tier in TIERS if brief.may("memory_read") else ():
        pages = [exchange for exchange in done if exchange.tool == "memory_read" and exchange.args.get("tier") == tier]
        read = sum(len(page.data.get("entries", ())) for page in pages)
        goes_on = bool(pages) and pages[-1].data.get("left_out", 0) > 0 and len(pages) < MOST_READINGS
        if tier in brief.memory and (not pages or goes_on):
            calls.append(call("memory_read", tier=tier, **({"skip": read} if read else {})))
    return calls


def _changes(brief: Brief, notes: Sequence[Note]) -> list[Request]:
    """Return the changes to make, each once; no entry is merged into a deleted entry."""
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


def _close_memory(brief: Brief, done: Done) -> str:
    """Return an empty text if a fire succeeded; otherwise report the calls that were made and those that failed."""
    if brief.by_fire and not rules.refusals(done):
        return ""
    gone = sum(exchange.ok for exchange in done if exchange.tool == "memory_forget")
    changed = sum(exchange.ok for exchange in done if exchange.tool == "memory_update")
    said = [f"Read {len(_notes(done))} entries, forgot {gone} and changed {changed}."]
    return rules.closing(said, done, MEMORY_SIGNATURE)


MOST_SOURCES = 5  # most pages that one turn reads
MOST_POINTS = 5  # most sentences of one source in a proposal
MOST_QUOTES = 3  # most sentences of one source in a report
PLACE = "swept up to"  # the memory key, with the task's name, of the last address that was read
SUPPORTED = 0.75  # the share of a claim's words that one supporting sentence must contain
COMPARED = "(By the rule-based offline model, which compares words and does not reason.)"
_ATTACHMENT = re.compile(r"\battachment:([a-z0-9-]+)/(\S*[^\s.,;:!?)\]])", re.ASCII)
_ADDRESS = re.compile(r"https?://[^\s<>\"']+[^\s<>\"'.,;:!?)\]]")
_URL = re.compile(r"https?://\S+")
_PAGES = re.compile(r"^[^\S\n]*+(?:sources?|pages?):\s*(.+)$", re.IGNORECASE | re.MULTILINE)
_PAGE = re.compile(r"(?<![\w/.:-])([a-z0-9][a-z0-9-]{0,99})(?:@\d+)?(?![\w/.:-])")
_SOURCE_LINE = re.compile(
    r"^[^\S\n]*+(?:sources?|pages?|claims?|text|review|check)\b[^\n]*:\s*$|^\s*(?:sources?|pages?):.*$", re.IGNORECASE
)


def sweep(brief: Brief, done: Done) -> Step:
    """Return the next step of a research sweep, which proposes a page for each source in the prompt."""
    return rules.follow((_recall, _fetch, _propose_pages, _review, _keep_place), _close_sweep, brief, done)


def research(brief: Brief, done: Done) -> Step:
    """Return the next step of a researcher: read the sources in the brief, or search; quote relevant sentences."""
    return rules.follow((_find, _read_found), _report_findings, brief, done)


def review(brief: Brief, done: Done) -> Step:
    """Return the next step of a reviewer: read the sources in the brief, and check each claim against them."""
    return rules.follow((_named,), _verdict, brief, done)


def jobs() -> Mapping[str, Rule]:
    """Return the jobs of fires, by the scope that a category grants for each."""
    return {"revalidation.next": revalidate, "web.fetch": sweep, "memory.forget": consolidate}


def subagents() -> Mapping[str, Rule]:
    """Return the rules of subagents, by role."""
    return {"researcher": research, "reviewer": review}


def addresses(prompt: str) -> list[str]:
    """Return the addresses in a prompt, each once.

    >>> addresses("Read https://example.org/a, then (http://example.org/b). Again: https://example.org/a")
    ['https://example.org/a', 'http://example.org/b']
    """
    return list(dict.fromkeys(_ADDRESS.findall(prompt)))


def attachments(prompt: str) -> list[tuple[str, str]]:
    """Return the attachments in a prompt, each once, as page and file name.

    >>> attachments("Read attachment:garden/plots.csv, and (attachment:garden/notes.txt).")
    [('garden', 'plots.csv'), ('garden', 'notes.txt')]
    """
    return list(dict.fromkeys(_ATTACHMENT.findall(prompt)))


def _recall(brief: Brief, _done: Done) -> list[Request]:
    goes_on = len(addresses(brief.prompt)) > MOST_SOURCES and brief.by_fire and brief.may("memory_search")
    return [call("memory_search", tier="channel", query=_place(brief))] if goes_on else []


def _place(brief: Brief) -> str:
    return f"{brief.task} {PLACE}"[:100]


def _due(brief: Brief, done: Done) -> list[str]:
    """Return the addresses for this fire: those after the last address that was read, then the first ones again."""
    named = addresses(brief.prompt)
    kept = rules.entries(done, "memory_search")
    last = next((entry["text"] for entry in kept if entry["key"] == _place(brief)), "")
    start = named.index(last) + 1 if last in named else 0
    return [*named[start:], *named[:start]][:MOST_SOURCES]


def _fetch(brief: Brief, done: Done) -> list[Request]:
    files = attachments(brief.prompt)[:MOST_SOURCES]
    calls = [call("web_fetch", url=url) for url in _due(brief, done)]
    return calls + [call("attachment_read", page=page, name=name) for page, name in files]


def _propose_pages(brief: Brief, done: Done) -> list[Request]:
    wanted = terms(_ATTACHMENT.sub(" ", _ADDRESS.sub(" ", brief.prompt)))
    pages = [
        (page["title"] or page["url"], page["text"], page["url"], f"{page['url']}, read {page['fetched_at']}")
        for page in answers(done, "web_fetch")
    ]
    files = [
        (f"{file['name']} of {file['page']}", file["text"], file["page"], f"{file['page']}/{file['name']}")
        for file in answers(done, "attachment_read")
    ]
    return [_proposal(title, text, wanted, source, cited) for title, text, source, cited in (*pages, *files)]


def _proposal(title: str, text: str, wanted: list[str], source: str, cited: str) -> Request:
    points = rules.relevant(text, wanted, MOST_POINTS) or rules.salient([text], MOST_POINTS)
    body = "\n".join([*(f"- {point}" for point in points), "", f"Source: {cited}."])
    named = " ".join(title.split())[:LONGEST_TITLE]
    return call("page_propose", title=named, body=body, tags=["research"], sources=[source])


def _review(brief: Brief, done: Done) -> list[Request]:
    if "review" not in brief.prompt.lower() or not brief.may("subagent_run") or "reviewer" not in brief.subagents:
        return []
    made = [exchange.args for exchange in done if exchange.tool == "page_propose" and exchange.ok]
    made = [page for page in made if "://" in page["sources"][0]]  # a reviewer reads pages, not attachments
    briefs = [f"Review:\n{page['body']}\nSources: {', '.join(page['sources'])}" for page in made]
    return [call("subagent_run", name="reviewer", brief=text) for text in briefs]


def _keep_place(brief: Brief, done: Done) -> list[Request]:
    if not brief.may("memory_put") or not _recall(brief, done):
        return []
    return [call("memory_put", tier="channel", key=_place(brief), text=_due(brief, done)[-1])]


def _close_sweep(brief: Brief, done: Done) -> str:
    read = [*answers(done, "web_fetch"), *answers(done, "attachment_read")]
    named = len(addresses(brief.prompt)) + len(attachments(brief.prompt))
    if not named:
        return f"The prompt names no address and no attachment, so nothing was read. {RULE_BASED}"
    said = [f"Read {len(read)} of {named} {'page' if named == 1 else 'pages'}."]
    said += rules.proposed(done, "page_propose")
    said += [f"The reviewer: {one['report'].splitlines()[0]}" for one in answers(done, "subagent_run")]
    said += [f"The next fire continues after {_due(brief, done)[-1]}." for _ in answers(done, "memory_put")]
    return rules.closing(said, done)


def claims(prompt: str) -> list[str]:
    r"""Return the claims of the text: its list items, or else its sentences, without lines of sources.

    >>> claims("Check:\n- The pump is new.\n- It is blue.\nSources: pump, https://example.org/a")
    ['The pump is new.', 'It is blue.']
    """
    lines = [line for line in prompt.splitlines() if not _SOURCE_LINE.match(line)]
    items = [line.strip()[2:].strip() for line in lines if line.strip().startswith(("- ", "* "))]
    return items or sentences(_URL.sub("", "\n".join(lines)))


def supports(text: str, claim: str) -> bool:
    """Return whether one sentence of a source contains most of a claim's words, and all of its numbers.

    >>> supports("In March it broke. The new pump costs 40 euros a year.", "The pump costs 40 euros")
    True
    >>> supports("In March it broke. The new pump costs 40 euros a year.", "The pump costs 45 euros")
    False
    """
    wanted = set(terms(claim)) or set(words(claim))
    numbers = {word for word in words(claim) if any(map(str.isdigit, word))}
    found = (set(words(sentence)) for sentence in sentences(text))
    return any(numbers <= said and len(wanted & said) >= SUPPORTED * len(wanted) for said in found) if wanted else False


def _find(brief: Brief, done: Done) -> list[Request]:
    query = " ".join(terms(_URL.sub(" ", brief.prompt)))
    return _named(brief, done) or ([call("workspace_search", query=query, limit=3)] if query else [])


def _read_found(_brief: Brief, done: Done) -> list[Request]:
    return [call("workspace_read", page=page["page"]) for page in rules.pages_found(done)[:MOST_SOURCES]]


def _named(brief: Brief, _done: Done) -> list[Request]:
    """Return the readings for a brief: addresses anywhere in it, pages in its lines of sources."""
    pages = [page for line in _PAGES.findall(brief.prompt) for page in _PAGE.findall(_URL.sub(" ", line))]
    calls = [call("web_fetch", url=url) for url in addresses(brief.prompt)]
    calls += [call("workspace_read", page=page) for page in dict.fromkeys(pages)]
    return calls[:MOST_SOURCES]


def _texts(done: Done) -> dict[str, str]:
    fetched = {page["url"]: page["text"] for page in answers(done, "web_fetch")}
    return fetched | {page["page"]: page["body"] for page in answers(done, "workspace_read")}


def _report_findings(brief: Brief, done: Done) -> str:
    wanted = terms(_URL.sub(" ", brief.prompt))
    lines = [
        f"- {point} ({source})"
        for source, text in _texts(done).items()
        for point in rules.relevant(text, wanted, MOST_QUOTES) or rules.salient([text], MOST_QUOTES)
    ]
    lines += rules.refusals(done)
    return "\n".join([*(lines or ["Nothing was found."]), COMPARED])


def _verdict(brief: Brief, done: Done) -> str:
    texts, made = _texts(done), claims(brief.prompt)
    supported = {claim: [source for source, text in texts.items() if supports(text, claim)] for claim in made}
    held = sum(bool(sources) for sources in supported.values())
    checked = f"Checked {rules.counted(len(made), 'claim', '0')} against {rules.counted(len(texts), 'source', '0')}"
    lines = [f"{checked}: {held} borne out."]
    lines += [f"- borne out by {', '.join(sources)}: {claim}" for claim, sources in supported.items() if sources]
    lines += [f"- NOT in the sources: {claim}" for claim, sources in supported.items() if not sources]
    return "\n".join([*lines, *rules.refusals(done), COMPARED])


MOST_ITEMS = 3  # most items in one fire; the next fires handle the others


@dataclass(frozen=True, kw_only=True)
class _Finding:
    """A fact that a page and its source state differently."""

    item: str
    page: str
    source: str
    difference: Difference


def revalidate(brief: Brief, done: Done) -> Step:
    """Return the next step of a turn that works through the re-validation queue."""
    return rules.follow((_next, _read_items, _record, _propose_changes, _settle), _close_queue, brief, done)


def _next(_brief: Brief, _done: Done) -> list[Request]:
    return [call("revalidation_next", limit=MOST_ITEMS)]


def _read_items(_brief: Brief, done: Done) -> list[Request]:
    wanted = [name for item in _items(done) for name in (item["page"], item["changed"], item["through"])]
    return [call("corpus_read", page=name) for name in dict.fromkeys(wanted)]


def _record(_brief: Brief, done: Done) -> list[Request]:
    first = {(one.page, one.difference): one for one in reversed(_findings(done))}
    return [
        call(
            "deviation_record",
            page=one.page,
            says=one.difference.says,
            found=one.difference.found,
            source=one.source,
            why=f"{one.source} has changed and now states this differently.",
        )
        for one in reversed(first.values())
    ]


def _propose_changes(brief: Brief, done: Done) -> list[Request]:
    """Propose each differing page with its sources' facts, for statements that the page contains exactly once."""
    pages, bodies = _pages_read(done), dict[str, str]()
    for one in _findings(done) if brief.may("page_propose") else ():
        changed = _replaced(bodies.get(one.page, pages[one.page]["body"]), one.difference)
        if changed and not pages[one.page]["left_out_chars"]:
            bodies[one.page] = changed
    return [
        call(
            "page_propose",
            page=name,
            title=pages[name]["title"],
            body=body,
            tags=list(pages[name]["tags"]),
            version=pages[name]["version"],
        )
        for name, body in bodies.items()
    ]


def _settle(_brief: Brief, done: Done) -> list[Request]:
    differing = {one.item for one in _findings(done)}
    recorded = {answer["page"] for answer in answers(done, "deviation_record")}
    settled = []
    for item in _items(done):
        if item["item"] not in differing and item["page"] in _pages_read(done):
            settled.append(call("revalidation_settle", item=item["item"], result="holds"))
        elif item["page"] in recorded:
            settled.append(call("revalidation_settle", item=item["item"], result="deviation"))
    return settled


def _close_queue(_brief: Brief, done: Done) -> str:
    if not _items(done) and not rules.refusals(done):
        return ""
    waiting = next((answer["waiting"] for answer in answers(done, "revalidation_next")), 0)
    settled = answers(done, "revalidation_settle")
    held = [one["page"] for one in settled if one["result"] == "holds"]
    said = [f"Compared {rules.counted(len(settled), 'page')} of {waiting} with what changed."]
    said += [f"Still valid: {', '.join(held)}."] if held else []
    said += [f"Recorded deviation {one['deviation_id']} of {one['page']}." for one in answers(done, "deviation_record")]
    return rules.closing([*said, *rules.proposed(done, "page_propose")], done)


def _items(done: Done) -> list[dict[str, Any]]:
    return [item for answer in answers(done, "revalidation_next") for item in answer["items"]]


def _pages_read(done: Done) -> dict[str, dict[str, Any]]:
    return {answer["page"]: answer for answer in answers(done, "corpus_read")}


def _findings(done: Done) -> list[_Finding]:
    pages = _pages_read(done)
    return [
        _Finding(item=item["item"], page=item["page"], source=source, difference=difference)
        for item in _items(done)
        for source in dict.fromkeys((item["changed"], item["through"]))
        if item["page"] in pages and source in pages
        for difference in differences(pages[item["page"]]["body"], pages[source]["body"])
    ]


def _replaced(body: str, difference: Difference) -> str:
    """Return a body with one statement replaced; empty unless the body contains the statement exactly once."""
    statement = r"\s+".join(map(re.escape, difference.says.split()))
    changed, count = re.subn(statement, lambda _match: difference.found, body)
    return changed if count == 1 else ""
