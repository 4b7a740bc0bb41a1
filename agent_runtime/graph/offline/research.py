"""Research by rules: a sweep over the sources that a prompt names, and the subagents that read and check sources.

Where a prompt names more pages than one fire reads, the next fire goes on after the last one that was read: its address
stands in the channel's memory. Where the prompt asks for a review, a reviewer checks each proposal against its source.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType

from agent_runtime.graph.offline import rules
from agent_runtime.graph.offline.rules import RULE_BASED, Brief, Done, Request, Rule, Step, answers, call
from agent_runtime.model.words import sentences, terms, words
from agent_runtime.workspace.model import LONGEST_TITLE

MOST_SOURCES = 5  # that one turn reads
MOST_POINTS = 5  # of one source, in a proposal
MOST_QUOTES = 3  # of one source, in a report
PLACE = "swept up to"  # with the task's name: the key of the address that the fire before read last
SUPPORTED = 0.75  # of a claim's words, so many stand in one sentence of a source that supports it
COMPARED = "(By the rule-based offline model, which compares words and does not reason.)"
_ATTACHMENT = re.compile(r"\battachment:([a-z0-9-]+)/(\S*[^\s.,;:!?)\]])", re.ASCII)
_ADDRESS = re.compile(r"https?://[^\s<>\"']+[^\s<>\"'.,;:!?)\]]")
_URL = re.compile(r"https?://\S+")
_PAGES = re.compile(r"^\s*(?:sources?|pages?):\s*(.+)$", re.IGNORECASE | re.MULTILINE)
_PAGE = re.compile(r"(?<![\w/.:-])([a-z0-9][a-z0-9-]{0,99})(?:@\d+)?(?![\w/.:-])")
_SOURCE_LINE = re.compile(
    r"^\s*(?:sources?|pages?|claims?|text|review|check)\b[^\n]*:\s*$|^\s*(?:sources?|pages?):.*$", re.IGNORECASE
)


def sweep(brief: Brief, done: Done) -> Step:
    """Return the next step of a research sweep, which proposes a page for each source that the prompt names."""
    return rules.follow((_recall, _fetch, _propose, _review, _keep), _close, brief, done)


def research(brief: Brief, done: Done) -> Step:
    """Return the next step of a researcher: read what the brief names, or what a search finds; say what bears on it."""
    return rules.follow((_find, _read), _report, brief, done)


def review(brief: Brief, done: Done) -> Step:
    """Return the next step of a reviewer: read the sources that the brief names, check each claim against them."""
    return rules.follow((_named,), _verdict, brief, done)


SUBAGENTS: Mapping[str, Rule] = MappingProxyType({"researcher": research, "reviewer": review})
"""By the subagent's name."""


def addresses(prompt: str) -> list[str]:
    """Return the addresses that a prompt names, each once.

    >>> addresses("Read https://example.org/a, then (http://example.org/b). Again: https://example.org/a")
    ['https://example.org/a', 'http://example.org/b']
    """
    return list(dict.fromkeys(_ADDRESS.findall(prompt)))


def attachments(prompt: str) -> list[tuple[str, str]]:
    """Return the attachments that a prompt names, each once: the page and the attached file.

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
    """Return the addresses that this fire reads: those after the last that was read, then again from the first."""
    named = addresses(brief.prompt)
    kept = rules.entries(done, "memory_search")
    last = next((entry["text"] for entry in kept if entry["key"] == _place(brief)), "")
    start = named.index(last) + 1 if last in named else 0
    return [*named[start:], *named[:start]][:MOST_SOURCES]


def _fetch(brief: Brief, done: Done) -> list[Request]:
    files = attachments(brief.prompt)[:MOST_SOURCES]
    calls = [call("web_fetch", url=url) for url in _due(brief, done)]
    return calls + [call("attachment_read", page=page, name=name) for page, name in files]


def _propose(brief: Brief, done: Done) -> list[Request]:
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


def _keep(brief: Brief, done: Done) -> list[Request]:
    if not brief.may("memory_put") or not _recall(brief, done):
        return []
    return [call("memory_put", tier="channel", key=_place(brief), text=_due(brief, done)[-1])]


def _close(brief: Brief, done: Done) -> str:
    read = [*answers(done, "web_fetch"), *answers(done, "attachment_read")]
    named = len(addresses(brief.prompt)) + len(attachments(brief.prompt))
    if not named:
        return f"The prompt names no address and no attachment, so nothing was read. {RULE_BASED}"
    said = [f"Read {len(read)} of {named} {'page' if named == 1 else 'pages'}."]
    said += rules.proposed(done, "page_propose")
    said += [f"The reviewer: {one['report'].splitlines()[0]}" for one in answers(done, "subagent_run")]
    said += [f"The next fire goes on after {_due(brief, done)[-1]}." for _ in answers(done, "memory_put")]
    return rules.closing(said, done)


def claims(prompt: str) -> list[str]:
    r"""Return the claims of a text: its list items, or else its sentences, without lines that only name sources.

    >>> claims("Check:\n- The pump is new.\n- It is blue.\nSources: pump, https://example.org/a")
    ['The pump is new.', 'It is blue.']
    """
    lines = [line for line in prompt.splitlines() if not _SOURCE_LINE.match(line)]
    items = [line.strip()[2:].strip() for line in lines if line.strip().startswith(("- ", "* "))]
    return items or sentences(_URL.sub("", "\n".join(lines)))


def supports(text: str, claim: str) -> bool:
    """Return whether a sentence of a source holds most of a claim's words, and all of its numbers.

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


def _read(_brief: Brief, done: Done) -> list[Request]:
    return [call("workspace_read", page=page["page"]) for page in rules.pages_found(done)[:MOST_SOURCES]]


def _named(brief: Brief, _done: Done) -> list[Request]:
    """Return the readings of what a brief names: addresses anywhere in it, pages in its lines of sources."""
    pages = [page for line in _PAGES.findall(brief.prompt) for page in _PAGE.findall(_URL.sub(" ", line))]
    calls = [call("web_fetch", url=url) for url in addresses(brief.prompt)]
    calls += [call("workspace_read", page=page) for page in dict.fromkeys(pages)]
    return calls[:MOST_SOURCES]


def _texts(done: Done) -> dict[str, str]:
    """Return what was read, by the source's name."""
    fetched = {page["url"]: page["text"] for page in answers(done, "web_fetch")}
    return fetched | {page["page"]: page["body"] for page in answers(done, "workspace_read")}


def _report(brief: Brief, done: Done) -> str:
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
