"""Rendering of one turn of a conversation for a terminal or a pipe, limited to changes that the reader has not seen.

`render` selects the content: heading, messages, calls, proposals and questions. A layout formats it: `Panels` draws
rules, panels and Markdown on a terminal, and `Lines` writes lines of text. `plain`, `prose` and `Safe` escape control
and invisible characters. `Safe` runs after the others, because Markdown converts entities to characters.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rich.box import ROUNDED
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from agent_runtime.cli import rows
from agent_runtime.cli.chat import blocks, texts
from agent_runtime.model.mapping import Row, parsed, to_json
from turnkeeper.clock import SystemClock
from turnkeeper.config.surfaces import offered
from turnkeeper.console.lists import shown
from turnkeeper.console.unseen import in_words, plain, prose
from turnkeeper.rpc.forms import Request, can_stand, option_text, question_of, request_in, ways_of
from turnkeeper.v1 import agent_runtime_pb2 as wire

ENDED = frozenset({"succeeded", "silent", "failed", "cancelled"})
MOST_KNOWN = 2000  # turns whose shown part is remembered
Kind = Literal["begun", "message", "candidate", "deviation", "interrupt", "ended"]
_LISTS: tuple[Kind, ...] = ("candidate", "deviation", "interrupt")  # lists of a turn, in display order


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change of a turn to show.

    Attributes:
        kind: the turn itself, a message, a candidate, a deviation, an approval, or the end of the turn.
        turn: the newest form of the turn.
        at: the index among the turn's messages, candidates, deviations or interrupts; 0 otherwise.
    """

    kind: Kind
    turn: wire.ConversationTurn
    at: int = 0

    @property
    def message(self) -> wire.Message:
        return self.turn.messages[self.at]

    @property
    def subject(self) -> Any:
        """The candidate, deviation or interrupt."""
        return getattr(self.turn, f"{self.kind}s")[self.at]


@dataclass(frozen=True, kw_only=True)
class Known:
    """The part of a turn that a reader has seen.

    Attributes:
        status: the turn's status; empty if no part was shown.
        states: the shown states of its candidates, deviations and interrupts, by id.
    """

    status: str = ""
    messages: int = 0
    states: dict[str, str] = field(default_factory=dict)


def changes_of(turn: wire.ConversationTurn, known: Known | None = None) -> list[Change]:
    """Return the changes of a turn that the reader has not seen, in display order."""
    known = known or Known()
    found = [] if known.status else [Change(kind="begun", turn=turn)]
    begin = len(found)
    found += [Change(kind="message", turn=turn, at=at) for at in range(known.messages, len(turn.messages))]
    answered = 0
    for kind, at, one_id, state in _states(turn):
        if known.states.get(one_id) == state:
            continue
        change = Change(kind=kind, turn=turn, at=at)
        if kind == "interrupt" and change.subject.status != "pending":
            asked_at = change.subject.created_at.ToNanoseconds()
            said = (one for one in found[begin:] if one.kind == "message")
            before = [one for one in said if one.message.at.ToNanoseconds() <= asked_at]
            found.insert(begin + len(before) + answered, change)  # its outcome follows the message
            answered += 1
        else:
            found.append(change)
    # A waiting turn has just shown its question, and the heading of a wholly shown turn includes its outcome.
    if known.status not in {"", turn.status} and turn.status not in {"interrupted", "running"}:
        found.append(Change(kind="ended", turn=turn))
    return found


def known_of(turn: wire.ConversationTurn) -> Known:
    """Return the state of a reader after the whole turn was shown."""
    states = {one_id: state for _, _, one_id, state in _states(turn)}
    return Known(status=turn.status, messages=len(turn.messages), states=states)


def _states(turn: wire.ConversationTurn) -> list[tuple[Kind, int, str, str]]:
    """Return kind, index, id and state of the turn's candidates, deviations and interrupts."""
    found = []
    for kind in _LISTS:
        if turn.status == "running" and kind != "interrupt":
            continue  # a proposal is shown after the message that contains it
        for at, one in enumerate(getattr(turn, f"{kind}s")):
            state = _asked_state(one) if kind == "interrupt" else one.lifecycle
            found.append((kind, at, getattr(one, f"{kind}_id"), state))
    return found


def _asked_state(one: wire.Interrupt) -> str:
    """Return the state of an approval. A reminder changes the state, so that the approval is shown again."""
    reminded = " reminded" if one.HasField("reminded_at") else ""
    return one.decision or f"{one.status}{reminded}"


class Shown:
    """A record of the parts of the newest turns that a reader has seen."""

    def __init__(self) -> None:
        self._known: dict[str, Known] = {}

    def take(self, turn: wire.ConversationTurn) -> list[Change]:
        """Return the changes of a turn, and mark them as shown."""
        found = changes_of(turn, self._known.pop(turn.turn_id, None))
        self._known[turn.turn_id] = known_of(turn)
        if len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]
        return found

    def is_open(self, turn_id: str) -> bool:
        """Return True if a turn was shown and has not ended."""
        known = self._known.get(turn_id)
        return known is not None and known.status not in ENDED


PROMPT_LINES = 3
EXCERPT_LINES = 12
_LABEL = 9  # width of the label column on a terminal
MARGIN = 13  # the column at which the text of `Lines` begins
_NARROWEST_LINE, _WIDEST_LINE = 60, 160
_LEFT = re.compile(r"\S+ to \S+, handoff(?=: )|notes for \S+(?=: )")  # a message that a restart left for the agent
_ROLES = {"author": "bold green", "agent": "bold cyan", "prompt": "magenta", "note": "dim", "error": "bold red"}
_STATUSES = {"succeeded": "green", "silent": "dim", "failed": "bold red", "cancelled": "yellow"}
_DECISIONS = dict.fromkeys(("canonical", "accepted", "kept", "approve", "edit", "answer"), "green") | dict.fromkeys(
    ("rejected", "reject"), "red"
)
_MARKS = {"done": ("✓", "green"), "failed": ("✗", "red"), "running": ("…", "yellow")}
Numbers = Mapping[str, int]
Pairs = Sequence[tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class Card:
    """A pending approval or proposal.

    Attributes:
        does: the turn's action: proposes, contradicts, asks you.
        kind: the kind of proposal, contradiction or question.
        commands: the commands that decide the item, with labels.
        body: Markdown; a terminal shows its beginning, a pipe shows it only in wide output.
        args: all arguments of a call, because an approval is bound to them.
        number: the item's number for answers at the prompt; None if there is no prompt.
    """

    does: str
    kind: str
    id: str
    commands: Pairs
    title: str = ""
    note: str = ""
    body: str = ""
    args: str = ""
    facts: Pairs = ()
    number: int | None = None
    style: str = "yellow"

    @property
    def heading(self) -> str:
        """The item's kind, its number and its id."""
        at = f" [{self.number}]" if self.number is not None else ""
        return f"{self.does}{at} · {self.kind} · {self.id}"


def render(change: Change, layout: "Layout", *, numbers: Numbers | None = None) -> list[RenderableType]:
    """Render one change of a turn.

    Args:
        layout: the format for a terminal or a pipe.
        numbers: the numbers of pending items for answers, by id; None if there is no prompt.
    """
    turn = change.turn
    if change.kind == "message":
        return list(_message(change, layout))
    if change.kind == "begun":
        return [*layout.heading(turn), *_error(turn, layout)]
    if change.kind == "ended":
        style = _STATUSES.get(turn.status, "yellow")
        return [layout.line("turn", f"{standing(turn)}{_cost(turn)}", style), *_error(turn, layout)]
    row = to_json(change.subject)
    if row.get("decision") == "answer" and any(
        one.role == "author" and one.text == row["message"] for one in turn.messages
    ):
        row["message"] = ""  # the answer is a message of the turn
    found = _WAITING[change.kind](row, numbers or {})
    if isinstance(found, Card):
        return list(layout.card(found))
    label, text, decision = found
    return [layout.line(label, text, _DECISIONS.get(decision, "dim"))]


def cause(turn: wire.ConversationTurn) -> str:
    """Describe the trigger of a turn."""
    if turn.HasField("trigger"):
        return texts.mark_text(turn.trigger)
    return "the author wrote" if any(message.role == "author" for message in turn.messages) else "continued"


def standing(turn: wire.ConversationTurn) -> str:
    """Describe the state of a turn, its open questions, and its duration."""
    if turn.status == "interrupted":
        return in_words(turn.status)
    if turn.status == "paused":
        until = rows.instant(turn, "paused_until")
        return f"paused until its task fires{f', at most until {shown(until)}' if until else ''}"
    took = rows.span(rows.instant(turn, "started_at"), rows.instant(turn, "ended_at"))
    decided = {one.tool: one.decision for one in turn.interrupts}.values() if turn.trigger.task else ()
    status = "rejected" if turn.status == "succeeded" and {"reject", "expired"} & {*decided} else turn.status
    return status if took == "-" else f"{status} in {took}"


def _cost(turn: wire.ConversationTurn) -> str:
    tokens = turn.tokens_in + turn.tokens_out
    return f" · {tokens:,} tokens" if tokens else ""


def _error(turn: wire.ConversationTurn, layout: "Layout") -> list[RenderableType]:
    if not turn.error:
        return []
    failed = turn.status == "failed"
    return [layout.line("error" if failed else "because", turn.error, "red" if failed else "yellow")]


def _message(change: Change, layout: "Layout") -> Iterator[RenderableType]:
    message = change.message
    if message.role == "tool":
        yield layout.folded(("←", "dim cyan"), _answer(change, wide=layout.wide))
        return
    if text := message.text.strip():
        role = message.role if message.role != "trigger" else "note" if change.at else "prompt"
        if role == "note" and not layout.wide and (left := _LEFT.match(text)):
            yield layout.line(role, f"{left[0]} (all of it: -o wide)")
            return
        if message.role in {"trigger", "author"} and not layout.wide:
            text = offered("documents in words", text) or text
        yield layout.line(role, said) if (said := texts.fields_text(text, role)) else layout.said(role, text)
    for call in message.tool_calls:
        yield tool_call(layout, call.name, call.args_json)


def _answer(change: Change, *, wide: bool) -> str:
    """Return a tool's result, after the tool's name if the step has several calls."""
    text = change.message.text if wide else texts.answer_text(change.message.text)
    for message in reversed(change.turn.messages[: change.at]):
        named = {call.id: call.name for call in message.tool_calls}
        if named:
            name = named.get(change.message.tool_call_id, "")
            return f"{name}  {text}" if name and len(named) > 1 else text
    return text


Decided = tuple[str, str, str]  # label, line, and decision


def _candidate(row: Row, numbers: Numbers) -> Card | Decided:
    short, kind = str(row["candidate_id"]), str(row["kind"]).removeprefix("candidate-")
    if row["lifecycle"] != "candidate":
        note = f": {row['note']}" if row["note"] else ""
        state = "accepted" if row["lifecycle"] == "canonical" else row["lifecycle"]
        return "proposed", f"{kind} “{row['title']}”  [{state}]{note}", state
    number = numbers.get(short)
    commands = [
        ("read", f"turnkeeper candidates show {short}"),
        ("accept", f"turnkeeper candidates accept {short}"),
        ("reject", f'turnkeeper candidates reject {short} --note "why"'),
    ]
    return Card(
        does="proposes",
        kind=kind,
        id=short,
        title=row["title"],
        body=row["body"],
        facts=[*([("from", ", ".join(row["sources"]))] if row["sources"] else []), ("if accepted", _accepted(row))],
        commands=[*_here(number, f"a {number} · r {number} why"), *commands],
        number=number,
    )


def _accepted(row: Row) -> str:
    """Describe the effect of accepting a proposal."""
    if not row["page_id"]:
        return "marked as accepted in this channel; no page changes"
    return f"it becomes page {row['page_id']} of your workspace, and the previous version is kept"


def _deviation(row: Row, numbers: Numbers) -> Card | Decided:
    short, page = str(row["deviation_id"]), f"{row['page_id']}@{row['page_version']}"
    if row["lifecycle"] != "open":
        return "found", f"{page}: {rows.clipped(row['says'], 120)}  [{row['lifecycle']}]", row["lifecycle"]
    number, stem = numbers.get(short), f"turnkeeper deviations resolve {short}"
    more = [(name, row[key]) for name, key in (("source", "source"), ("why", "why"), ("candidate", "candidate_id"))]
    keys = _here(number, f"a {number} accept · r {number} keep the page")
    return Card(
        does="contradicts",
        kind=str(row["kind"]),
        id=short,
        facts=[(page, row["says"]), ("found", row["found"]), *((name, value) for name, value in more if value)],
        commands=[*keys, ("keep", f"{stem} --keep-canonical"), ("accept", f"{stem} --accept")],
        number=number,
    )


_WHILE_IT_WAITS = (("reminded", "reminded_at"), ("alerted", "escalated_at"), ("expires", "expires_at"))


def _waits(row: Row) -> Pairs:
    """Return when the author was reminded of an approval, and how much time is left."""
    found = [(label, shown(row[key])) for label, key in _WHILE_IT_WAITS if row[key]]
    return [
        (label, f"{at} ({rows.left(row, SystemClock().now())})" if label == "expires" else at) for label, at in found
    ]


_KEYS = {"approve": "a {}", "reject": "r {} why", "edit": "e {} JSON", "respond": "t {} text"}


def _interrupt(row: Row, numbers: Numbers) -> Card | Decided:
    if row["status"] != "pending":
        decision = row["decision"] or row["status"]
        said = f": {rows.clipped(row['message'], 200)}" if row["message"] else ""
        return "asked", f"{rows.clipped(rows.asked(row), 200)}  [{decision}]{said}", decision
    number, answer = numbers.get(str(row["interrupt_id"])), rows.resolve_command(row)
    asks = request_in(row)
    if asks is not None:
        return _calls_asked_about(row, asks, number)
    if row["kind"] == "question":
        return _plain_question(row, number)
    stem, standing = answer.removesuffix("--approve"), can_stand(row)
    always = [("for the task", f"{answer} --for-task")] * standing + [("grant", one) for one in rows.grants(row)]
    commands = [("approve", answer), *always, ("reject", f'{stem}--reject "why"'), ("change", f"{stem}--edit JSON")]
    keys = f"a {number} · r {number} why · e {number} JSON{f' · f {number} for the task' if standing else ''}"
    told = {"title": f"{row['tool']} {rows.needs(row)}", "note": row["question"], "facts": _waits(row)}
    told["args"] = texts.arguments_text(row["args"])
    return _asking(row, number, commands=[*_here(number, keys), *commands], **told)


def _asking(row: Row, number: int | None, **shown: Any) -> Card:
    id_ = str(row["interrupt_id"])[: rows.ID_DIGITS]
    return Card(does="asks you", kind=str(row["kind"]), id=id_, number=number, style="bold yellow", **shown)


def _plain_question(row: Row, number: int | None) -> Card:
    """Return the card of a plain question: its whole value, and the answers that it offers."""
    asks = question_of(row)
    options = [("options", asks.choices)] if asks.options else []
    keys = f"t {number} {option_text(asks.options[0]) if asks.options else f'text · a {number} · r {number}'}"
    shown = texts.arguments_text(asks.more if asks.text else {})
    told = {"title": row["question"], "note": row["message"], "args": shown, "facts": [*options, *_waits(row)]}
    return _asking(row, number, commands=[*_here(number, keys), *_commands(row)], **told)


def _commands(row: Row) -> Pairs:
    stem = f"turnkeeper approvals resolve {str(row['interrupt_id'])[: rows.ID_DIGITS]}"
    return [(way.partition(" ")[0].strip("-"), f"{stem} {way}") for way in rows.ways(row)]


def _calls_asked_about(row: Row, asks: Request, number: int | None) -> Card:
    """Return the card of a graph's question about its own calls."""
    keys = " · ".join(_KEYS[way].format(number) for way in ways_of(row))
    told = {"title": f"the graph asks about {', '.join(call.tool for call in asks.calls)}", "note": row["message"]}
    told["args"] = rows.request_text(asks)
    return _asking(row, number, commands=[*_here(number, keys), *_commands(row)], **told)


def _here(number: int | None, keys: str) -> Pairs:
    return [("here", keys)] if number is not None else []


_WAITING = {"candidate": _candidate, "deviation": _deviation, "interrupt": _interrupt}


def tool_call(layout: "Layout", name: str, args_json: str, *, state: str = "") -> RenderableType:
    """Render a tool call; a call without a record has the state done, failed or running."""
    text = f"{name}({args_json})" if layout.wide else rows.call_text(name, parsed(args_json))
    return layout.folded(_MARKS.get(state, ("→", "cyan")), text)


class Lines:
    """Lines of text for a pipe or a simple terminal; calls and results are shortened to `width`."""

    def __init__(self, *, width: int, wide: bool = False) -> None:
        self.wide = wide
        self._room = max(_NARROWEST_LINE, min(width, _WIDEST_LINE)) - MARGIN

    def heading(self, turn: wire.ConversationTurn) -> list[RenderableType]:
        """Return two lines: time and trigger; then turn, thread and state."""
        began = shown(rows.instant(turn, "started_at"))
        where = plain(f"{turn.turn_id}  thread {turn.thread_id}  ")
        return [
            Text.assemble((began, "bold"), "  ", (plain(cause(turn)), "bold magenta")),
            Text.assemble("  ", (where, "dim"), (plain(standing(turn)), _STATUSES.get(turn.status, "yellow"))),
        ]

    def said(self, role: str, text: str) -> Text:
        """Return the text, preceded by its speaker."""
        return self._hanging(role, prose(text))

    def line(self, label: str, text: str, style: str = "") -> Text:
        return self._hanging(label, plain(text), style)

    def _hanging(self, label: str, text: str, style: str = "") -> Text:
        body = text.replace("\n", "\n" + " " * MARGIN)
        return Text.assemble("  ", (f"{label:<{MARGIN - 2}}", _ROLES.get(label, "bold")), (body, style))

    def folded(self, mark: tuple[str, str], text: str) -> Text:
        """Return a line, shortened unless `wide`."""
        return self._indented(f"{mark[0]} {text if self.wide else rows.clipped(text, self._room - 2)}")

    def card(self, card: Card) -> list[RenderableType]:
        """Return the card's heading, then one line per field."""
        texts = [card.title, card.note, *card.args.split("\n"), card.body.rstrip() if self.wide else ""]
        pairs = [*card.facts, *card.commands]
        widest = max(len(name) for name, _ in pairs) + 2
        texts += [f"{f'{name}:':<{widest}}{value}" for name, value in pairs]
        return [Text(f"  {plain(card.heading)}", "bold yellow"), *(self._indented(text) for text in texts if text)]

    def _indented(self, text: str) -> Text:
        body = plain(text).replace("\n", "\n" + " " * (MARGIN + 2))
        return Text.assemble(" " * MARGIN, (body, "dim"))


def hung(line: Text, out: Console) -> Text:
    """Break a line at words for a terminal; indent continuation lines to the start of the line's text."""
    margin = MARGIN
    if not out.is_terminal or out.width <= 2 * margin or line.cell_len <= out.width:
        return line
    label, body = line.divide([margin])
    first, *others = body.split("\n")
    rows = [
        part for row in (first, *(other[margin:] for other in others)) for part in row.wrap(out, out.width - margin)
    ]
    for row in rows:
        row.rstrip()
    return label + Text(f"\n{' ' * margin}").join(rows)


class Panels:
    """Rules, panels and Markdown for a terminal, at most 110 characters wide.

    With `wide`, prompts, arguments and results of tools are shown in full, as in `Lines`.
    """

    def __init__(self, *, wide: bool = False) -> None:
        self.wide = wide

    def heading(self, turn: wire.ConversationTurn) -> list[RenderableType]:
        """Return a rule, the turn's trigger, and its category, thread, state and tokens."""
        style = "bold magenta" if turn.HasField("trigger") else "bold green"
        where = plain(" · ".join(part for part in (turn.category, f"thread {turn.thread_id}") if part))
        state = (standing(turn), _STATUSES.get(turn.status, "yellow"))
        return [
            _Rule(turn),
            _columns("▶ ", Text(plain(cause(turn)), style), style),
            Text.assemble((f"  {where} · ", "dim"), state, (_cost(turn), "dim")),
        ]

    def said(self, role: str, text: str) -> RenderableType:
        """Render an agent's text as Markdown and other text unchanged; shorten a prompt."""
        if role == "agent":
            return self._labelled(role, blocks.markdown(text))
        most = PROMPT_LINES if role in {"prompt", "note"} and not self.wide else 0
        return self._labelled(role, blocks.AtMost(Text(prose(text), "dim" if role == "note" else ""), most))

    def line(self, label: str, text: str, style: str = "") -> RenderableType:
        return self._labelled(label, Text(plain(text), style))

    def folded(self, mark: tuple[str, str], text: str) -> RenderableType:
        """Return a line, cut at the terminal's edge unless `wide`."""
        found = Text.assemble((f"{mark[0]} ", mark[1]), (plain(text), "dim"))
        if not self.wide:
            found = Text(" ").join(part for part in found.split() if part.plain) if "\n" in found.plain else found
            found.no_wrap, found.overflow = True, "ellipsis"
        return self._labelled("", found)

    def card(self, card: Card) -> list[RenderableType]:
        body: list[RenderableType] = [Text(plain(card.title), "bold")] if card.title else []
        body += [Text(plain(card.note), "dim")] if card.note else []
        body += [Padding(Text(plain(card.args)), (0, 0, 0, 2))] if card.args else []
        if card.body:
            body.append(
                blocks.AtMost(blocks.markdown(card.body), 0 if self.wide or card.number is not None else EXCERPT_LINES)
            )
        body += [""] if body else []
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        for pairs, style in ((card.facts, ""), (card.commands, "cyan")):
            for name, value in pairs:
                grid.add_row(Text(name, "dim"), Text(plain(value), style))
        title = Text(plain(card.heading), card.style)
        panel = Panel(
            Group(*body, grid), title=title, title_align="left", border_style=card.style, box=ROUNDED, padding=(0, 1)
        )
        return [blocks.Safe(Padding(blocks.Narrow(panel), (0, 0, 0, 2)), plain)]

    def _labelled(self, label: str, body: RenderableType) -> RenderableType:
        return Padding(_columns(plain(label), body, _ROLES.get(label, "bold"), width=_LABEL), (0, 0, 0, 2))


Layout = Lines | Panels


def _columns(label: str, body: RenderableType, style: str, *, width: int | None = None) -> RenderableType:
    grid = Table.grid(padding=0)
    grid.add_column(width=width or len(label), no_wrap=True)
    grid.add_column(ratio=1, overflow="fold")
    grid.add_row(Text(label, style), body)
    return blocks.Narrow(grid)


def rule(turn: wire.ConversationTurn, width: int) -> Text:
    """Return the line above a turn that begins, or that continues after lines of another turn."""
    at, name = shown(rows.instant(turn, "started_at")), plain(turn.turn_id)
    middle = max(2, width - len(at) - len(name) - 8)
    return Text.assemble(("── ", "dim"), (at, "bold"), (f" {'─' * middle} ", "dim"), (name, "dim"), (" ──", "dim"))


class _Rule:
    def __init__(self, turn: wire.ConversationTurn) -> None:
        self._turn = turn

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield rule(self._turn, min(options.max_width, blocks.WIDEST))
