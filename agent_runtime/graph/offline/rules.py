"""Common parts of all rules: the brief of a turn, its tool calls and their answers, and the choice of sentences.

A rule is a pure function of the brief and of the results of the turn's calls so far; it returns the next step.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_runtime.model.words import sentences, terms, words

RULE_BASED = "(Written by the rule-based offline model.)"
_REMEMBER = re.compile(r"(?:^|\bthen)[^\S\n]*+remember:\s*(.+)$", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Brief:
    """The facts that the model knows about its turn.

    Attributes:
        scopes: tool scopes that the category grants.
        memory: memory tiers that the category reaches.
        subagents: subagents that the category may start.
        offered: names of the offered tools, including those outside the scopes.
        by_fire: True if a fire started the turn; False for an author.
        nominal: the fire's nominal time as text; empty for an author's turn.
        stands_for: the number of fires that the turn stands for, including its own.
        draw: a random number from 1 to 6.
    """

    prompt: str
    channel: str = ""
    scopes: frozenset[str] = frozenset()
    memory: frozenset[str] = frozenset()
    subagents: frozenset[str] = frozenset()
    offered: frozenset[str] = frozenset()
    by_fire: bool = False
    nominal: str = ""
    stands_for: int = 1
    task: str = ""
    draw: int = 1

    def may(self, tool: str) -> bool:
        """Return whether a tool is offered and within the category's scopes."""
        return tool in self.offered and tool.replace("_", ".", 1) in self.scopes


@dataclass(frozen=True, kw_only=True)
class Request:
    """A tool call that the model makes."""

    tool: str
    args: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """A tool call of this turn and its answer.

    Attributes:
        ok: True if the call ran; False if it failed or the author refused it.
        text: the answer, JSON if `ok`, otherwise the reason.
    """

    tool: str
    args: dict[str, Any]
    ok: bool
    text: str

    @property
    def data(self) -> dict[str, Any]:
        """The answer as an object; empty if the call failed or its answer is not an object."""
        try:
            found = json.loads(self.text) if self.ok else {}
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}


@dataclass(frozen=True, kw_only=True)
class Step:
    """The model's next message: calls to make, or the closing text of the turn, which may be empty."""

    calls: tuple[Request, ...] = ()
    text: str = ""


Done = Sequence[Exchange]
Rule = Callable[[Brief, Done], Step]
Stage = Callable[[Brief, Done], list[Request]]


def call(tool: str, **args: Any) -> Request:
    return Request(tool=tool, args=args)


def follow(stages: Sequence[Stage], close: Callable[[Brief, Done], str], brief: Brief, done: Done) -> Step:
    """Return the calls of the first stage that still has calls to make; after the last stage, return the closing text.

    A stage derives its calls from the brief and from earlier answers. A tool that was called in an earlier stage is not
    called again, so a failed or refused call is reported and never repeated.
    """
    tried = {exchange.tool for exchange in done}
    for stage in stages:
        calls = [one for one in stage(brief, done) if one.tool in brief.offered and one.tool not in tried]
        if calls:
            return Step(calls=tuple(calls))
    return Step(text=close(brief, done))


def remember(brief: Brief, _done: Done) -> list[Request]:
    r"""Return a memory_put for each `remember:` of the prompt, within the category's scopes or not.

    >>> asked = Brief(prompt="Catch me up, then remember: CI is green\nremember: ship on Monday")
    >>> [one.args["text"] for one in remember(asked, ())]
    ['CI is green', 'ship on Monday']
    """
    texts = [match[1].strip() for match in _REMEMBER.finditer(brief.prompt)]
    return [call("memory_put", tier="channel", text=text) for text in texts]


def without_remember(prompt: str) -> str:
    """Return a prompt without its `remember:` lines.

    >>> without_remember("Catch me up, then remember: CI is green")
    'Catch me up,'
    """
    return _REMEMBER.sub("", prompt).strip()


def answers(done: Done, tool: str) -> list[dict[str, Any]]:
    return [exchange.data for exchange in done if exchange.tool == tool and exchange.data]


def entries(done: Done, tool: str = "memory_read") -> list[dict[str, Any]]:
    return [entry for found in answers(done, tool) for entry in found["entries"]]


def pages_found(done: Done) -> list[dict[str, Any]]:
    """Return the pages that searches of the workspace found, in their order."""
    return [page for search in answers(done, "workspace_search") for page in search["pages"]]


def refusals(done: Done) -> list[str]:
    """Return a line for each call that failed or that the author refused."""
    return [f"{exchange.tool} was not done: {exchange.text.strip()}" for exchange in done if not exchange.ok]


def closing(said: Sequence[str], done: Done, signature: str = RULE_BASED) -> str:
    """Return one text: the sentences, one more for each failed call, and the signature."""
    failed = [line if line[-1] in ".!?" else f"{line}." for line in refusals(done)]
    return " ".join([*said, *failed, signature])


def proposed(done: Done, tool: str) -> list[str]:
    """Return a sentence for each candidate from the calls of one tool."""
    return [
        f"Proposed “{one['title']}” for you to accept or reject ({one['candidate_id']})." for one in answers(done, tool)
    ]


def counted(number: int, noun: str, none: str = "no") -> str:
    """Return a number with its noun.

    >>> counted(0, "page"), counted(1, "page"), counted(2, "page"), counted(0, "page", none="0")
    ('no pages', '1 page', '2 pages', '0 pages')
    """
    return f"{number or none} {noun}{'' if number == 1 else 's'}"


def salient(texts: Iterable[str], most: int) -> list[str]:
    """Return the sentences whose words are most frequent in the texts, in their order, each once.

    Source: H. P. Luhn, The Automatic Creation of Literature Abstracts, IBM Journal 2(2), 1958.
    """
    found = list(dict.fromkeys(sentence for text in texts for sentence in sentences(text)))
    weight = Counter(word for sentence in found for word in terms(sentence))

    def value(sentence: str) -> float:
        content = terms(sentence)
        return sum(weight[word] for word in content) / (len(content) + 2)

    return _in_order(found, sorted(found, key=value, reverse=True)[:most])


def relevant(text: str, wanted: Sequence[str], most: int) -> list[str]:
    """Return the sentences with the most wanted words, in their order; sentences without such words are left out."""
    found = list(dict.fromkeys(sentences(text)))
    hits = {sentence: len(set(words(sentence)) & set(wanted)) for sentence in found}
    best = [sentence for sentence in sorted(found, key=lambda one: -hits[one]) if hits[sentence]]
    return _in_order(found, best[:most])


def _in_order(found: Sequence[str], chosen: Sequence[str]) -> list[str]:
    return [sentence for sentence in found if sentence in set(chosen)]
