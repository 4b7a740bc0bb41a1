"""Three views of a growing conversation: `Screen` on a terminal, `LineView` in a pipe, `JsonView` for programs.

`Screen` prints finished output once, into the scrollback. Below it, a region of a few lines is redrawn at each change
and never scrolls. The region shows the end of the text that agents are writing, running calls, a message to the reader,
and the author's input.
"""

from dataclasses import dataclass, field
from typing import Any, Protocol

import typer
from rich.console import Console, Group, RenderableType
from rich.control import Control
from rich.segment import ControlType, Segment, Segments
from rich.text import Text

from agent_runtime.cli.chat import render as drawn
from agent_runtime.cli.chat import texts
from agent_runtime.cli.chat.answer import Waiting
from agent_runtime.cli.chat.blocks import Safe
from agent_runtime.model.mapping import to_json
from turnkeeper.console import note
from turnkeeper.console.unseen import as_json, plain, prose
from turnkeeper.v1 import agent_runtime_pb2 as wire

MOST_SPEAKING = 3  # turns whose text is shown while they write
MOST_REPORTED = 5  # reports of graphs shown at once
LONGEST_SPEECH = 64 * 1024
_PROMPT = "> "


class View(Protocol):
    """A view of a growing conversation."""

    def take(self, turn: wire.ConversationTurn) -> None:
        """Show the changes of a turn, or a piece of its text."""

    def tell(self, text: str) -> None:
        """Show a message to the reader."""


class JsonView:
    """A view that prints each turn as a line of JSON on each change."""

    def take(self, turn: wire.ConversationTurn) -> None:
        typer.echo(as_json(to_json(turn)))

    def tell(self, text: str) -> None:
        """Print a message on stderr."""
        note(text)


def reported(layout: drawn.Layout, report: wire.GraphReport) -> Any:
    """Return the rendered report of a running graph, after the name of its subgraph."""
    text = report.text if layout.wide else texts.answer_text(report.text)
    return layout.line("tells", f"{report.source}: {text}" if report.source else text, "dim")


@dataclass(kw_only=True)
class _Speech:
    """The shown part of the message that a turn is writing."""

    turn: wire.ConversationTurn
    after: int = 0
    message: str = ""
    text: str = ""
    calls: list[wire.RunningCall] = field(default_factory=list)
    reports: list[wire.GraphReport] = field(default_factory=list)


class LineView:
    """A view that prints turns and pieces of their text line by line, each once."""

    def __init__(self, out: Console, *, wide: bool = False) -> None:
        self._out = out
        self._layout = drawn.Lines(width=out.width, wide=wide)
        self._shown = drawn.Shown()
        self._turn = ""  # the turn whose lines were printed last
        self._open = ""  # the turn that has an unfinished line
        self._speeches: dict[str, _Speech] = {}

    def take(self, turn: wire.ConversationTurn) -> None:
        if turn.HasField("speech"):
            self._hear(turn)
            return
        for change in self._shown.take(turn):
            self._show(change)
        if turn.status != "running":
            self._speeches.pop(turn.turn_id, None)

    def tell(self, text: str) -> None:
        note(text)

    def _show(self, change: drawn.Change) -> None:
        if change.kind == "message" and change.message.role == "agent":
            change = self._unprinted(change)
        lines = drawn.render(change, self._layout)
        if lines:
            self._begin(change.turn.turn_id, again=change.kind != "begun")
        for line in lines:
            self._out.print(drawn.hung(line, self._out) if isinstance(line, Text) else line, soft_wrap=True)

    def _unprinted(self, change: drawn.Change) -> drawn.Change:
        """Print the rest of a message whose beginning was printed; return the remaining change."""
        turn_id, message = change.turn.turn_id, wire.Message()
        message.CopyFrom(change.message)
        before = self._speeches.pop(turn_id, None)
        said, text = before.text.lstrip() if before is not None else "", message.text.strip()
        if said.strip() and text.startswith(said.rstrip()):
            if len(text) > len(said):
                self._piece(turn_id, text[len(said) :])
            message.text = ""
        turn = wire.ConversationTurn(turn_id=turn_id, messages=[message])
        return drawn.Change(kind="message", turn=turn)

    def _hear(self, turn: wire.ConversationTurn) -> None:
        speech, turn_id = turn.speech, turn.turn_id
        before = self._speeches.setdefault(turn_id, _Speech(turn=turn))
        for one in speech.reports:
            self._begin(turn_id, again=True)
            self._out.print(drawn.hung(reported(self._layout, one), self._out), soft_wrap=True)
        if before.message != speech.message:
            before.message, before.text = speech.message, ""
        # One turn is shown while it writes; text of other turns is printed after it is recorded.
        if speech.text and speech.offset == len(before.text) and self._open in {"", turn_id}:
            self._piece(turn_id, speech.text)
            before.text += speech.text

    def _piece(self, turn_id: str, text: str) -> None:
        if self._open != turn_id:
            text = text.lstrip()
            if not text:
                return
            self._begin(turn_id, again=True)
            self._out.print(self._layout.said("agent", ""), end="", soft_wrap=True)
            self._open = turn_id
        self._out.print(Text(prose(text).replace("\n", "\n" + " " * drawn.MARGIN)), end="", soft_wrap=True)

    def _begin(self, turn_id: str, *, again: bool) -> None:
        """Begin a line; name the turn if lines of another turn came between."""
        if self._open:
            self._out.print()
            self._open = ""
        if self._turn != turn_id and self._turn:
            self._out.print()
        if self._turn != turn_id and again:
            self._out.print(Text(plain(f"{turn_id} continues"), "dim"), soft_wrap=True)
        self._turn = turn_id


class Screen:
    """A view of turns, and of the text that they are writing."""

    def __init__(self, out: Console, *, wide: bool = False, typing: bool = False) -> None:
        """Show a prompt and number pending items if `typing` is set."""
        self.waiting = Waiting()
        self._out = out
        self._layout = drawn.Panels(wide=wide)
        self._typing = typing
        self._shown = drawn.Shown()
        self._speeches: dict[str, _Speech] = {}
        self._last = ""  # the turn whose lines were printed last
        self._typed = ""
        self._status = ""
        self._loops: list[str] = []
        self._rows = 0

    def take(self, turn: wire.ConversationTurn) -> None:
        if turn.HasField("speech"):
            self._hear(turn)
        else:
            self._show(turn)

    def tell(self, text: str) -> None:
        """Show a message in the region; the next message replaces it."""
        self._status = text

    def show_loops(self, lines: list[str]) -> None:
        """Show the channel's loops above the prompt, from the next redraw on."""
        self._loops = lines

    def print(self, text: str) -> None:
        with self._out:
            self.clear()
            self._out.print(Safe(Text(plain(text), "dim")))

    def type(self, text: str) -> None:
        """Show the author's input."""
        self._typed = text

    def draw(self) -> None:
        lines = self._region()
        with self._out:
            self.clear()
            parted = [part for line in lines for part in (Segment.line(), *line)][1:]
            self._out.print(Segments(parted), end="")
        self._rows = len(lines)
        self._out.file.flush()

    def clear(self) -> None:
        if self._rows:
            up = [(ControlType.CURSOR_UP, 1), (ControlType.ERASE_IN_LINE, 2)] * (self._rows - 1)
            self._out.control(Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2), *up))
        self._rows = 0

    def _show(self, turn: wire.ConversationTurn) -> None:
        if self._typing:
            self.waiting.update(turn)
        changes = self._shown.take(turn)
        if changes:
            with self._out:
                self.clear()
                self._print(turn, changes)
        speech = self._speeches.get(turn.turn_id)
        if speech is not None and (turn.status != "running" or _said(turn) > speech.after):
            del self._speeches[turn.turn_id]

    def _print(self, turn: wire.ConversationTurn, changes: list[drawn.Change]) -> None:
        if self._last and self._last != turn.turn_id:
            self._out.print()
        if self._last != turn.turn_id and changes[0].kind != "begun":
            self._out.print(Safe(drawn.rule(turn, self._out.width)))
        self._last = turn.turn_id
        for change in changes:
            for block in drawn.render(change, self._layout, numbers=self.waiting.numbers):
                self._out.print(Safe(block))

    def _hear(self, turn: wire.ConversationTurn) -> None:
        if not self._shown.is_open(turn.turn_id):
            return
        piece, speech = turn.speech, self._speeches.get(turn.turn_id)
        if speech is None or (speech.after, speech.message) != (piece.after, piece.message):
            told = speech.reports if speech is not None else []
            speech = _Speech(turn=turn, after=piece.after, message=piece.message, reports=told)
            self._speeches.pop(turn.turn_id, None)
            self._speeches[turn.turn_id] = speech
        if piece.offset == len(speech.text):
            speech.text = (speech.text + piece.text)[:LONGEST_SPEECH]
        speech.calls = list(piece.calls)
        speech.reports = [*speech.reports, *piece.reports][-MOST_REPORTED:]

    def _region(self) -> list[list[Segment]]:
        height = max(3, self._out.height // 2)
        found: list[list[Segment]] = []
        for one in list(self._speeches.values())[-MOST_SPEAKING:]:
            found += self._lines(self._speaking(one))
        found = found[-height:]
        for line in self._loops:
            found += self._lines(Text(plain(f"⟳ {line}"), "cyan", no_wrap=True, overflow="ellipsis"))[:1]
        if self._status:
            found += self._lines(Text(plain(self._status), "yellow", no_wrap=True, overflow="ellipsis"))[:1]
        if self._typing:
            room = max(10, self._out.width - len(_PROMPT) - 2)
            tail = plain(self._typed)[-room:]
            found += self._lines(Text.assemble((_PROMPT, "bold green"), tail, no_wrap=True, overflow="crop"))[:1]
        return found

    def _speaking(self, speech: _Speech) -> RenderableType:
        parts: list[RenderableType] = []
        if self._last != speech.turn.turn_id:
            parts.append(Text(plain(f"── {speech.turn.turn_id} continues ──"), "dim"))
        if speech.text.strip():
            parts.append(self._layout.said("agent", f"{speech.text} ▌"))
        parts += [reported(self._layout, one) for one in speech.reports]
        parts += [drawn.tool_call(drawn.Panels(), call.name, call.args_json, state=call.state) for call in speech.calls]
        return Group(*parts)

    def _lines(self, what: RenderableType) -> list[list[Segment]]:
        options = self._out.options.update(width=max(20, self._out.width - 1))
        return self._out.render_lines(Safe(what), options, pad=False)


def _said(turn: wire.ConversationTurn) -> int:
    return sum(message.role in {"agent", "tool"} for message in turn.messages)
