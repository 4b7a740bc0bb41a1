"""A job of the offline model that reports the contents of the files in a prompt.

A file is data: the rules read orders such as `remember:` only in the text of the prompt beside it.
"""

from dataclasses import replace

from agent_runtime.graph.offline import rules
from turnkeeper.bus.documents.documents import documents_in, split

_LONGEST = 100  # characters of a first line


def job(brief: rules.Brief) -> rules.Rule | None:
    """Return the rule for a prompt with files; None for a prompt without files."""
    return _read if documents_in(brief.prompt) else None


def _read(brief: rules.Brief, done: rules.Done) -> rules.Step:
    beside = replace(brief, prompt=split(brief.prompt)[0])
    return rules.follow((rules.remember,), lambda _brief, done: _report(brief.prompt, done), beside, done)


def _report(prompt: str, done: rules.Done) -> str:
    r"""Return a sentence for each file.

    >>> _report('Document: {"name": "a.txt", "bytes": 11, "text": "one\\ntwo two"}', ())
    'I read a.txt (2 lines): “one”. (Written by the rule-based offline model.)'
    """
    said = []
    for one in documents_in(prompt):
        lines = one["text"].splitlines()
        first = next((line.strip() for line in lines if line.strip()), "")[:_LONGEST]
        said.append(f"I read {one['name']} ({rules.counted(len(lines), 'line', none='0')}): “{first}”.")
    return rules.closing(said, done)
