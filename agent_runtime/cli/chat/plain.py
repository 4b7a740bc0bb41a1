"""A turn on a terminal: its mark, what was said, called, proposed and asked, one line of text each.

What of a turn a reader has not been shown yet. Pure; the same for a turn shown whole and for one that goes on.

Printing a conversation line by line, as a pipe or a dumb terminal takes it: what is new, and never twice.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from rich.console import Console
from rich.text import Text

from agent_runtime.cli.rows import ID_DIGITS, asked, call_text, clipped, instant, resolve_command, shown, span
from agent_runtime.model.conversation import mark_text
from agent_runtime.model.mapping import Row, parsed, to_json
from protos.turnkeeper.v1 import agent_runtime_pb2 as wire
from turnkeeper.console import plain

ENDED = frozenset({"succeeded", "silent", "failed", "cancelled"})
Kind = Literal["begun", "message", "candidate", "deviation", "interrupt", "ended"]


@dataclass(frozen=True, kw_only=True)
class News:
    """One thing to show of a turn.

    Attributes:
        kind: the turn itself, a message, something proposed, a contradiction, something asked, or how it stands now.
        turn: the turn in its newest form.
        at: which of the turn's messages, candidates, deviations or interrupts; 0 for the rest.
    """

    kind: Kind
    turn: wire.ConversationTurn
    at: int = 0

    @property
    def message(self) -> wire.Message:
        """The message."""
        return self.turn.messages[self.at]

    @property
    def candidate(self) -> wire.Candidate:
        """The candidate."""
        return self.turn.candidates[self.at]

    @property
    def deviation(self) -> wire.Deviation:
        """The deviation."""
        return self.turn.deviations[self.at]

    @property
    def interrupt(self) -> wire.Interrupt:
        """The interrupt."""
        return self.turn.interrupts[self.at]


@dataclass(frozen=True, kw_only=True)
class Known:
    """What a reader was shown of a turn.

    Attributes:
        status: how it stood; empty when nothing of it was shown.
        messages: how many of its messages.
        candidates: what became of each of its candidates, as far as that was shown.
        deviations: likewise of the contradictions that it came upon.
        interrupts: likewise of what it asked.
    """

    status: str = ""
    messages: int = 0
    candidates: dict[str, str] = field(default_factory=dict)
    deviations: dict[str, str] = field(default_factory=dict)
    interrupts: dict[str, str] = field(default_factory=dict)


def news_of(turn: wire.ConversationTurn, known: Known | None = None) -> list[News]:
    """Return what of a turn is new to a reader, in the order in which to show it."""
    known = known or Known()
    found = [] if known.status else [News(kind="begun", turn=turn)]
    found += [News(kind="message", turn=turn, at=at) for at in range(known.messages, len(turn.messages))]
    # What is proposed is shown after the words that go with it.
    proposed, found_out = (turn.candidates, turn.deviations) if turn.status != "running" else ((), ())
    for at, candidate in enumerate(proposed):
        if known.candidates.get(candidate.candidate_id) != candidate.lifecycle:
            found.append(News(kind="candidate", turn=turn, at=at))
    for at, deviation in enumerate(found_out):
        if known.deviations.get(deviation.deviation_id) != deviation.lifecycle:
            found.append(News(kind="deviation", turn=turn, at=at))
    for at, interrupt in enumerate(turn.interrupts):
        if known.interrupts.get(interrupt.interrupt_id) != _standing(interrupt):
            found.append(News(kind="interrupt", turn=turn, at=at))
    # A turn that waits for its author has just said so, and one that was shown whole began with how it ended.
    if known.status not in {"", turn.status} and turn.status not in {"interrupted", "running"}:
        found.append(News(kind="ended", turn=turn))
    return found


def known_of(turn: wire.ConversationTurn) -> Known:
    """Return what a reader has been shown once all of this turn was."""
    proposed, found_out = (turn.candidates, turn.deviations) if turn.status != "running" else ((), ())
    return Known(
        status=turn.status,
        messages=len(turn.messages),
        candidates={one.candidate_id: one.lifecycle for one in proposed},
        deviations={one.deviation_id: one.lifecycle for one in found_out},
        interrupts={one.interrupt_id: _standing(one) for one in turn.interrupts},
    )


def _standing(interrupt: wire.Interrupt) -> str:
    return interrupt.decision or interrupt.status


_LABEL = 11
_NARROWEST = 60
_WIDEST = 160
_STYLES = {"author": "bold green", "agent": "bold cyan", "tool": "dim", "trigger": "bold magenta"}
_STATUS_STYLES = {"succeeded": "green", "silent": "dim", "failed": "bold red", "cancelled": "yellow"}


def turn_lines(turn: wire.ConversationTurn, *, width: int, wide: bool) -> list[Text]:
    """Return all of a turn's lines; see `news_lines`."""
    return [line for news in news_of(turn) for line in news_lines(news, width=width, wide=wide)]


def news_lines(news: News, *, width: int, wide: bool) -> list[Text]:
    """Return the lines of one thing to show. Text from prompts, models and tools is shown, never obeyed.

    Args:
        news: what.
        width: of the terminal; tool calls and answers are shortened to it.
        wide: show tool answers and proposals in full. What is asked is, as long as it waits.
    """
    room = max(_NARROWEST, min(width, _WIDEST)) - _LABEL - 2
    if news.kind == "message":
        return list(_message(news.message, room, wide=wide))
    if news.kind == "candidate":
        return list(_candidate(to_json(news.candidate), wide=wide))
    if news.kind == "deviation":
        return list(_deviation(to_json(news.deviation)))
    if news.kind == "interrupt":
        return list(_interrupt(to_json(news.interrupt), room))
    if news.kind == "ended":
        return [_ended(news.turn), *_error(news.turn)]
    return [_header(news.turn), _identity(news.turn), *_error(news.turn)]


def hung(line: Text, out: Console) -> Text:
    """Return a line broken at words for a terminal, what follows the first standing under its text."""
    margin = _LABEL + 2
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


def _header(turn: wire.ConversationTurn) -> Text:
    return Text.assemble((shown(instant(turn, "started_at")), "bold"), "  ", (plain(cause(turn)), "bold magenta"))


def cause(turn: wire.ConversationTurn) -> str:
    """Return why there is a turn."""
    if turn.HasField("trigger"):
        return mark_text(turn.trigger)
    return "the author wrote" if any(message.role == "author" for message in turn.messages) else "continued"


def standing(turn: wire.ConversationTurn) -> str:
    """Return how a turn stands, what it waits for, and how long it took."""
    if turn.status == "interrupted":
        return "interrupted, waits for you"
    if turn.status == "paused":
        until = instant(turn, "paused_until")
        return f"paused until its task fires{f', at most until {shown(until)}' if until else ''}"
    took = span(instant(turn, "started_at"), instant(turn, "ended_at"))
    return turn.status if took == "-" else f"{turn.status} in {took}"


def status_style(status: str) -> str:
    """Return the style in which a status is shown."""
    return _STATUS_STYLES.get(status, "yellow")


def _identity(turn: wire.ConversationTurn) -> Text:
    where = plain(f"{turn.turn_id}  thread {turn.thread_id}  ")
    return Text.assemble("  ", (where, "dim"), (plain(standing(turn)), status_style(turn.status)))


def _ended(turn: wire.ConversationTurn) -> Text:
    return _labelled("turn", standing(turn), "dim", status_style(turn.status))


def _error(turn: wire.ConversationTurn) -> list[Text]:
    if not turn.error:
        return []
    return [_labelled("error" if turn.status == "failed" else "because", turn.error, "bold red", "red")]


def _message(message: wire.Message, room: int, *, wide: bool) -> Iterator[Text]:
    if message.role == "tool":
        yield _indented(f"← {message.text if wide else clipped(message.text, room - 2)}")
        return
    if message.text.strip():
        yield label_line(message.role, message.text.strip())
    for call in message.tool_calls:
        yield call_line(call.name, call.args_json, room, wide=wide)


def label_line(role: str, text: str) -> Text:
    """Return what somebody says, after who says it."""
    return _labelled("prompt" if role == "trigger" else role, text, _STYLES.get(role, "bold"))


def call_line(name: str, args_json: str, room: int, *, wide: bool) -> Text:
    """Return a tool call."""
    text = f"→ {call_text(name, parsed(args_json))}"
    return _indented(text if wide else clipped(text, room))


def _candidate(candidate: Row, *, wide: bool) -> Iterator[Text]:
    short = str(candidate["candidate_id"])
    yield _labelled("proposed", f"{candidate['title']}  [{candidate['kind']}, {candidate['lifecycle']}]", "bold yellow")
    if candidate["sources"]:
        yield _indented(f"sources:   {', '.join(candidate['sources'])}")
    if candidate["note"]:
        yield _indented(f"note:      {candidate['note']}")
    if candidate["lifecycle"] == "candidate":
        if wide:
            yield _indented(candidate["body"].rstrip())
        yield _indented(f"read it:   agent-runtime candidates show {short}")
        yield _indented(f"decide:    agent-runtime candidates accept {short}")
        yield _indented(f'       or: agent-runtime candidates reject {short} --note "why"')


def _deviation(row: Row) -> Iterator[Text]:
    short = str(row["deviation_id"])
    about = f"{row['page_id']} says “{row['says']}”, found “{row['found']}”"
    yield _labelled("deviation", f"{about}  [{row['kind']}, {row['lifecycle']}]", "bold yellow")
    if row["source"]:
        yield _indented(f"source:    {row['source']}")
    if row["why"]:
        yield _indented(f"why:       {row['why']}")
    if row["candidate_id"]:
        yield _indented(f"candidate: {row['candidate_id']}")
    if row["lifecycle"] == "open":
        yield _indented(f"decide:    agent-runtime deviations resolve {short} --keep-canonical")
        yield _indented(f"       or: agent-runtime deviations resolve {short} --accept")


def _interrupt(interrupt: Row, room: int) -> Iterator[Text]:
    if interrupt["status"] != "pending":
        decision = interrupt["decision"] or interrupt["status"]
        said = f": {clipped(interrupt['message'], room)}" if interrupt["message"] else ""
        yield _labelled("asked", f"{clipped(asked(interrupt), room)}  [{decision}]{said}", "dim")
        return
    yield _labelled(
        "waits", f"{interrupt['kind']} {interrupt['interrupt_id'][:ID_DIGITS]}", "bold yellow", "bold yellow"
    )
    yield _indented(asked(interrupt, whole=True))
    yield _indented(f"answer it: {resolve_command(interrupt)}")
    if interrupt["kind"] != "question":
        yield _indented(f'       or: {resolve_command(interrupt).removesuffix("--approve")}--reject "why"')


def _labelled(label: str, text: str, label_style: str, style: str = "") -> Text:
    body = plain(text).replace("\n", "\n" + " " * (_LABEL + 2))
    return Text.assemble("  ", (f"{label:<{_LABEL}}", label_style), (body, style))


def _indented(text: str) -> Text:
    body = plain(text).replace("\n", "\n" + " " * (_LABEL + 4))
    return Text.assemble(" " * (_LABEL + 2), (body, "dim"))


MOST_KNOWN = 2000  # turns of which it is remembered what was shown
_MARGIN = 13


@dataclass(kw_only=True)
class _Saying:
    """What was printed of the message that a turn is writing."""

    message: str = ""
    text: str = ""


class Reader:
    """Shows turns, and the pieces of what they say, on a console."""

    def __init__(self, out: Console, *, wide: bool = False) -> None:
        self._out = out
        self._wide = wide
        self._known: dict[str, Known] = {}
        self._turn = ""  # whose lines were printed last
        self._open = ""  # the turn whose line has no end yet
        self._sayings: dict[str, _Saying] = {}

    def take(self, turn: wire.ConversationTurn) -> None:
        """Show what is new of a turn, or a piece of what it says."""
        if turn.HasField("speech"):
            self._hear(turn)
            return
        for news in news_of(turn, self._known.get(turn.turn_id)):
            self._show(news)
        self._known.pop(turn.turn_id, None)
        self._known[turn.turn_id] = known_of(turn)
        if len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]
        if turn.status != "running":
            self._sayings.pop(turn.turn_id, None)

    def _show(self, news: News) -> None:
        if news.kind == "message" and news.message.role == "agent":
            news = self._unprinted(news)
        lines = news_lines(news, width=self._out.width, wide=self._wide)
        if lines:
            self._begin(news.turn.turn_id, again=news.kind != "begun")
        for line in lines:
            self._print(line)

    def _unprinted(self, news: News) -> News:
        """Print the end of a message whose beginning was printed; return what is left of it."""
        turn_id, message = news.turn.turn_id, wire.Message()
        message.CopyFrom(news.message)
        saying = self._sayings.pop(turn_id, None)
        said, text = saying.text.lstrip() if saying is not None else "", message.text.strip()
        if said.strip() and text.startswith(said.rstrip()):
            if len(text) > len(said):
                self._piece(turn_id, text[len(said) :])
            message.text = ""
        turn = wire.ConversationTurn(turn_id=turn_id, messages=[message])
        return News(kind="message", turn=turn)

    def _hear(self, turn: wire.ConversationTurn) -> None:
        speech, turn_id = turn.speech, turn.turn_id
        saying = self._sayings.setdefault(turn_id, _Saying())
        if saying.message != speech.message:
            saying.message, saying.text = speech.message, ""
        # One turn speaks at a time: what another says meanwhile comes when it is on record.
        if speech.text and speech.offset == len(saying.text) and self._open in {"", turn_id}:
            self._piece(turn_id, speech.text)
            saying.text += speech.text

    def _piece(self, turn_id: str, text: str) -> None:
        if self._open != turn_id:
            text = text.lstrip()
            if not text:
                return
            self._begin(turn_id, again=True)
            self._out.print(label_line("agent", ""), end="", soft_wrap=True)
            self._open = turn_id
        self._out.print(Text(plain(text).replace("\n", "\n" + " " * _MARGIN)), end="", soft_wrap=True)

    def _print(self, line: Text) -> None:
        self._out.print(hung(line, self._out), soft_wrap=True)

    def _begin(self, turn_id: str, *, again: bool) -> None:
        """Stand at the beginning of a line, under the turn's name where another turn's lines came between."""
        if self._open:
            self._out.print()
            self._open = ""
        if self._turn != turn_id and self._turn:
            self._out.print()
        if self._turn != turn_id and again:
            self._out.print(Text(plain(f"{turn_id} goes on"), "dim"), soft_wrap=True)
        self._turn = turn_id
