"""A conversation on a terminal: rules, panels, and what agents write as the Markdown that it is.

Every text comes from somewhere: a prompt, a model, a tool, a page. It is written out before it is laid out, and what is
laid out passes `Safe`: Markdown turns entities into characters, and one of those could reorder the line.
"""

import json
import re
from collections.abc import Iterator, Sequence

from rich.box import ROUNDED
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.markdown import Markdown
from rich.padding import Padding
from rich.panel import Panel
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from agent_runtime.cli.chat.plain import News, cause, standing, status_style
from agent_runtime.cli.rows import ID_DIGITS, answer_text, call_text, clipped, instant, resolve_command, shown
from agent_runtime.model.mapping import Row, parsed, to_json
from protos.turnkeeper.v1 import agent_runtime_pb2 as wire
from turnkeeper.console import plain

LABEL = 9
WIDEST = 110
PROMPT_LINES = 3
EXCERPT_LINES = 12
_ITEM = re.compile(r"\s*(?:[-*+]|\d+[.)])\s")
_BLOCK = re.compile(r"\s*(?:[-*+]\s|\d+[.)]\s|#|>|\||=|-{2,})")
_ROLES = {"author": "bold green", "agent": "bold cyan", "prompt": "magenta", "note": "dim"}
_DECIDED = {"canonical": ("✓ accepted", "green"), "rejected": ("✗ rejected", "red")}
_ANSWERED = {
    "approve": ("✓ approved", "green"),
    "edit": ("✓ approved with other arguments", "green"),
    "reject": ("✗ rejected", "red"),
    "answer": ("✓ answered", "green"),
}
Numbers = dict[str, int]


class Safe:
    """What is inside, with every character that a terminal would obey written out."""

    def __init__(self, inside: RenderableType) -> None:
        self._inside = inside

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render it."""
        for segment in console.render(self._inside, options):
            if not segment.control:
                style = segment.style.update_link(None) if segment.style and segment.style.link else segment.style
                yield Segment(plain(segment.text), style)


def blocks(news: News, *, numbers: Numbers, wide: bool) -> list[RenderableType]:
    """Return what shows one thing of a turn.

    Args:
        news: what.
        numbers: by id, the numbers under which what waits can be answered; empty where it cannot be from here.
        wide: show prompts, arguments and tools' answers in full. What can be decided from here always is.
    """
    if news.kind == "message":
        return list(_message(news, wide=wide))
    if news.kind == "candidate":
        return [_candidate(to_json(news.candidate), numbers, wide=wide)]
    if news.kind == "deviation":
        return [_deviation(to_json(news.deviation), numbers)]
    if news.kind == "interrupt":
        return [_interrupt(to_json(news.interrupt), numbers)]
    if news.kind == "ended":
        text = f"{standing(news.turn)}{_cost(news.turn)}"
        return [_labelled("", Text(plain(text), status_style(news.turn.status))), *_error(news.turn)]
    return list(_begun(news.turn))


def heading(turn: wire.ConversationTurn, width: int) -> Text:
    """Return the rule under which a turn begins, or goes on after another's lines."""
    at, name = shown(instant(turn, "started_at")), plain(turn.turn_id)
    middle = max(2, width - len(at) - len(name) - 8)
    return Text.assemble(("── ", "dim"), (at, "bold"), (f" {'─' * middle} ", "dim"), (name, "dim"), (" ──", "dim"))


def saying(text: str) -> RenderableType:
    """Return what an agent writes."""
    return _labelled("agent", _markdown(text), _ROLES["agent"])


def calling(name: str, args_json: str, *, state: str = "", wide: bool = False) -> RenderableType:
    """Return a tool call, folded to a line."""
    mark, style = {"done": ("✓", "green"), "failed": ("✗", "red"), "running": ("…", "yellow")}.get(state, ("→", "cyan"))
    call = plain(call_text(name, parsed(args_json)) if not wide else f"{name}({args_json})")
    text = Text.assemble((f"{mark} ", style), (call, "dim"))
    return _labelled("", _folded(text, wide=wide))


def _begun(turn: wire.ConversationTurn) -> Iterator[RenderableType]:
    yield _Heading(turn)
    style = "bold magenta" if turn.HasField("trigger") else "bold green"
    yield _marked("▶ ", Text(plain(cause(turn)), style), style)
    parts = [part for part in (turn.category, f"thread {turn.thread_id}") if part]
    where = plain(" · ".join(parts))
    yield Text.assemble((f"  {where} · ", "dim"), (standing(turn), status_style(turn.status)), (_cost(turn), "dim"))
    yield from _error(turn)


class _Heading:
    def __init__(self, turn: wire.ConversationTurn) -> None:
        self._turn = turn

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield heading(self._turn, min(options.max_width, WIDEST))


def _cost(turn: wire.ConversationTurn) -> str:
    tokens = turn.tokens_in + turn.tokens_out
    return f" · {tokens:,} tokens" if tokens else ""


def _error(turn: wire.ConversationTurn) -> list[RenderableType]:
    if not turn.error:
        return []
    failed = turn.status == "failed"
    style = "red" if failed else "yellow"
    return [_labelled("failed" if failed else "because", Text(plain(turn.error), style), f"bold {style}")]


def _message(news: News, *, wide: bool) -> Iterator[RenderableType]:
    message = news.message
    if message.role == "tool":
        yield _labelled("", _folded(Text.assemble(("← ", "dim cyan"), (_answer(news, wide=wide), "dim")), wide=wide))
        return
    text = message.text.strip()
    if text and message.role == "agent":
        yield saying(text)
    elif text:
        label = message.role if message.role != "trigger" else "note" if news.at else "prompt"
        lines = PROMPT_LINES if message.role == "trigger" and not wide else 0
        yield _labelled(
            label, _Lines(Text(plain(text), "dim" if label == "note" else ""), lines), _ROLES.get(label, "bold")
        )
    for call in message.tool_calls:
        yield calling(call.name, call.args_json, wide=wide)


def _answer(news: News, *, wide: bool) -> str:
    """Return a tool's answer, after its tool's name where the step had more calls than this one."""
    text = news.message.text if wide else answer_text(news.message.text)
    for message in reversed(news.turn.messages[: news.at]):
        named = {call.id: call.name for call in message.tool_calls}
        if named:
            name = named.get(news.message.tool_call_id, "")
            return plain(f"{name}  {text}" if name and len(named) > 1 else text)
    return plain(text)


def _candidate(row: Row, numbers: Numbers, *, wide: bool) -> RenderableType:
    short, kind = str(row["candidate_id"]), str(row["kind"]).removeprefix("candidate-")
    if row["lifecycle"] in _DECIDED:
        word, style = _DECIDED[row["lifecycle"]]
        note = f": {row['note']}" if row["note"] else ""
        return _labelled("", Text(plain(f"{word} {kind} “{row['title']}”{note}"), style))
    number = numbers.get(short)
    body: list[RenderableType] = [
        Text(plain(row["title"]), "bold"),
        _Lines(_markdown(row["body"]), 0 if wide or number is not None else EXCERPT_LINES),
    ]
    commands = [
        ("read", f"agent-runtime candidates show {short}"),
        ("accept", f"agent-runtime candidates accept {short}"),
        ("reject", f'agent-runtime candidates reject {short} --note "why"'),
    ]
    sources = [("from", ", ".join(row["sources"]))] if row["sources"] else []
    body += ["", _pairs(sources, [*_here(number, f"a {number} · r {number} why"), *commands])]
    return _panel(Group(*body), "proposes", kind, short, number, "yellow")


def _deviation(row: Row, numbers: Numbers) -> RenderableType:
    short, page = str(row["deviation_id"]), f"{row['page_id']}@{row['page_version']}"
    if row["lifecycle"] != "open":
        word = "✓ what was found is accepted" if row["lifecycle"] == "accepted" else "✓ the page stands"
        return _labelled("", Text(plain(f"{word}: {page}: {clipped(row['says'], 120)}"), "green"))
    number = numbers.get(short)
    facts = [(page, row["says"]), ("found", row["found"])]
    facts += [(name, row[name]) for name in ("source", "why") if row[name]]
    facts += [("candidate", row["candidate_id"])] if row["candidate_id"] else []
    stem = f"agent-runtime deviations resolve {short}"
    here = _here(number, f"a {number} accept · r {number} keep the page")
    commands = [*here, ("keep", f"{stem} --keep-canonical"), ("accept", f"{stem} --accept")]
    return _panel(_pairs(facts, commands), "contradicts", str(row["kind"]), short, number, "yellow")


def _interrupt(row: Row, numbers: Numbers) -> RenderableType:
    short = str(row["interrupt_id"])[:ID_DIGITS]
    about = row["question"] if row["kind"] == "question" else f"{row['tool']}: {row['missing_scope']}"
    if row["status"] != "pending":
        word, style = _ANSWERED.get(row["decision"], ("· no longer asked", "dim"))
        said = f": “{clipped(row['message'], 200)}”" if row["message"] else ""
        return _labelled("", Text(plain(f"{word}: {clipped(about, 200)}{said}"), style))
    body: list[RenderableType] = []
    if row["kind"] == "question":
        body.append(Text(plain(row["question"]), "bold"))
    else:
        needs = plain(f" needs {row['missing_scope']}")
        body.append(Text.assemble((plain(row["tool"]), "bold"), needs))
        body += [Text(plain(row["question"]), "dim")] if row["question"] else []
        body.append(Padding(_arguments(row["args"]), (0, 0, 0, 2)))  # all of them: an approval binds to that
    number = numbers.get(str(row["interrupt_id"]))
    body += ["", _pairs([], _ways(row, number))]
    return _panel(Group(*body), "asks you", str(row["kind"]), short, number, "bold yellow")


def _ways(row: Row, number: int | None) -> list[tuple[str, str]]:
    """Return how what is asked can be answered: by keys, where there are any, and by commands."""
    answer = resolve_command(row)
    if row["kind"] == "question":
        return [*_here(number, f"t {number} text"), ("answer", answer)]
    stem = answer.removesuffix("--approve")
    keys = _here(number, f"a {number} · r {number} why · e {number} {{…}}")
    return [*keys, ("approve", answer), ("reject", f'{stem}--reject "why"'), ("change", f"{stem}--edit JSON")]


def _here(number: int | None, keys: str) -> list[tuple[str, str]]:
    return [("here", keys)] if number is not None else []


def _arguments(args: Row) -> Text:
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in args.items()]
    return Text(plain("\n".join(lines)))


def _panel(inside: RenderableType, does: str, kind: str, short: str, number: int | None, style: str) -> RenderableType:
    at = f" [{number}]" if number is not None else ""
    title = Text(plain(f"{does}{at} · {kind} · {short}"), style)
    framed = Panel(inside, title=title, title_align="left", border_style=style, box=ROUNDED, padding=(0, 1))
    return Padding(_Narrow(framed), (0, 0, 0, 2))


def _pairs(facts: Sequence[tuple[str, str]], commands: Sequence[tuple[str, str]]) -> RenderableType:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in facts:
        grid.add_row(Text(name, "dim"), Text(plain(value)))
    for name, command in commands:
        grid.add_row(Text(name, "dim"), Text(plain(command), "cyan"))
    return grid


def _labelled(label: str, body: RenderableType, style: str = "") -> RenderableType:
    grid = Table.grid(padding=0)
    grid.add_column(width=LABEL, no_wrap=True)
    grid.add_column(ratio=1, overflow="fold")
    grid.add_row(Text(plain(label), style), body)
    return Padding(_Narrow(grid), (0, 0, 0, 2))


def _marked(mark: str, body: RenderableType, style: str) -> RenderableType:
    grid = Table.grid(padding=0)
    grid.add_column(width=len(mark), no_wrap=True)
    grid.add_column(ratio=1, overflow="fold")
    grid.add_row(Text(mark, style), body)
    return _Narrow(grid)


def _markdown(text: str) -> RenderableType:
    # Links are shown with their address: what a terminal makes of one, its reader cannot see.
    return _Lines(Markdown(broken(plain(text)), hyperlinks=False, code_theme="ansi_dark"), 0)


def broken(text: str) -> str:
    r"""Return Markdown whose lines end where they end in the text, as those who write for a conversation mean it.

    >>> broken("- one\nThen\nthis")
    '- one\n\nThen  \nthis'
    """
    found, fenced, before = [], False, ""
    for line in text.splitlines():
        if not fenced and _ITEM.match(before) and line[:1].strip() and not _ITEM.match(line):
            found.append("")
        fenced ^= line.lstrip().startswith(("```", "~~~"))
        found.append(line)
        before = line
    ends = [f"{one}  " if _runs_on(one, then) else one for one, then in zip(found, [*found[1:], ""], strict=True)]
    return "\n".join(ends) if "```" not in text and "~~~" not in text else "\n".join(found)


def _runs_on(line: str, then: str) -> bool:
    return bool(line.strip() and then.strip()) and not _BLOCK.match(line) and not _BLOCK.match(then)


def _folded(text: Text, *, wide: bool) -> Text:
    if not wide:
        text = Text(" ").join(part for part in text.split() if part.plain) if "\n" in text.plain else text
        text.no_wrap, text.overflow = True, "ellipsis"
    return text


class _Narrow:
    """Keeps lines short enough to be read on a wide terminal."""

    def __init__(self, inside: RenderableType) -> None:
        self._inside = inside

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from console.render(self._inside, options.update(width=min(options.max_width, WIDEST)))


class _Lines:
    """At most so many lines of what is inside, and how many are left out; all of them for 0."""

    def __init__(self, inside: RenderableType, most: int) -> None:
        self._inside = inside
        self._most = most

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self._inside, options, pad=False)
        while lines and _is_blank(lines[-1]):
            lines.pop()
        while lines and _is_blank(lines[0]):
            lines.pop(0)
        left = len(lines) - self._most if self._most else 0
        for line in lines[: self._most] if left > 1 else lines:
            yield from line
            yield Segment.line()
        if left > 1:
            yield Text(f"… {left} more lines: -o wide", "dim")


def _is_blank(line: Sequence[Segment]) -> bool:
    return not "".join(segment.text for segment in line).strip()
