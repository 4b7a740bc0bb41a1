"""A conversation on a terminal: what is finished goes up and stays, what is being said stands below, then the prompt.

What is finished is printed once, as it will stand in the scrollback. Below it is a region of few lines that is drawn
anew at each change and never scrolls: the end of what agents write just now, the calls that run, what the reader should
know, and what the author types.
"""

from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.control import Control
from rich.segment import ControlType, Segment, Segments
from rich.text import Text

from agent_runtime.cli.chat.commands import Waiting
from agent_runtime.cli.chat.panels import Safe, blocks, calling, heading, saying
from agent_runtime.cli.chat.plain import ENDED, Known, News, known_of, news_of
from protos.turnkeeper.v1 import agent_runtime_pb2 as wire
from turnkeeper.console import plain

MOST_KNOWN = 2000  # turns of which it is remembered what was shown
MOST_SPEAKING = 3  # turns whose words are shown as they come
LONGEST_SAYING = 64 * 1024
_PROMPT = "> "


@dataclass(kw_only=True)
class _Saying:
    turn: wire.ConversationTurn
    after: int
    message: str
    text: str = ""
    calls: list[wire.RunningCall] = field(default_factory=list)


class Screen:
    """Shows turns, and what they say meanwhile."""

    def __init__(self, out: Console, *, wide: bool = False, typing: bool = False) -> None:
        """Take the console; with `typing` there is a prompt, and what waits is numbered."""
        self.waiting = Waiting()
        self._out = out
        self._wide = wide
        self._typing = typing
        self._known: dict[str, Known] = {}
        self._sayings: dict[str, _Saying] = {}
        self._last = ""  # whose lines were printed last
        self._typed = ""
        self._status = ""
        self._rows = 0

    def take(self, turn: wire.ConversationTurn) -> None:
        """Show what is new of a turn, or a piece of what it says."""
        if turn.HasField("speech"):
            self._hear(turn)
        else:
            self._show(turn)

    def tell(self, text: str) -> None:
        """Show something below; the next such replaces it."""
        self._status = text

    def print(self, text: str) -> None:
        """Show something that stays."""
        with self._out:
            self.clear()
            self._out.print(Safe(Text(plain(text), "dim")))

    def type(self, text: str) -> None:
        """Show what is typed so far."""
        self._typed = text

    def draw(self) -> None:
        """Draw the region anew."""
        lines = self._region()
        with self._out:
            self.clear()
            parted = [part for line in lines for part in (Segment.line(), *line)][1:]
            self._out.print(Segments(parted), end="")
        self._rows = len(lines)
        self._out.file.flush()

    def clear(self) -> None:
        """Take the region away."""
        if self._rows:
            up = [(ControlType.CURSOR_UP, 1), (ControlType.ERASE_IN_LINE, 2)] * (self._rows - 1)
            self._out.control(Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2), *up))
        self._rows = 0

    def _show(self, turn: wire.ConversationTurn) -> None:
        if self._typing:
            self.waiting.update(turn)
        news = news_of(turn, self._known.get(turn.turn_id))
        if news:
            with self._out:
                self.clear()
                self._print(turn, news)
        self._known.pop(turn.turn_id, None)
        self._known[turn.turn_id] = known_of(turn)
        if len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]
        saying = self._sayings.get(turn.turn_id)
        if saying is not None and (turn.status != "running" or _lines(turn) > saying.after):
            del self._sayings[turn.turn_id]

    def _print(self, turn: wire.ConversationTurn, news: list[News]) -> None:
        if self._last and self._last != turn.turn_id:
            self._out.print()
        if self._last != turn.turn_id and news[0].kind != "begun":
            self._out.print(Safe(heading(turn, self._out.width)))
        self._last = turn.turn_id
        for one in news:
            for block in blocks(one, numbers=self.waiting.numbers, wide=self._wide):
                self._out.print(Safe(block))

    def _hear(self, turn: wire.ConversationTurn) -> None:
        speech, known = turn.speech, self._known.get(turn.turn_id)
        if known is None or known.status in ENDED:
            return
        saying = self._sayings.get(turn.turn_id)
        if saying is None or (saying.after, saying.message) != (speech.after, speech.message):
            saying = _Saying(turn=turn, after=speech.after, message=speech.message)
            self._sayings.pop(turn.turn_id, None)
            self._sayings[turn.turn_id] = saying
        if speech.offset == len(saying.text):
            saying.text = (saying.text + speech.text)[:LONGEST_SAYING]
        saying.calls = list(speech.calls)

    def _region(self) -> list[list[Segment]]:
        height = max(3, self._out.height // 2)
        found: list[list[Segment]] = []
        for one in list(self._sayings.values())[-MOST_SPEAKING:]:
            found += self._lines(self._said(one))
        found = found[-height:]
        if self._status:
            found += self._lines(Text(plain(self._status), "yellow", no_wrap=True, overflow="ellipsis"))[:1]
        if self._typing:
            room = max(10, self._out.width - len(_PROMPT) - 2)
            tail = plain(self._typed)[-room:]
            found += self._lines(Text.assemble((_PROMPT, "bold green"), tail, no_wrap=True, overflow="crop"))[:1]
        return found

    def _said(self, one: _Saying) -> RenderableType:
        parts: list[RenderableType] = []
        if self._last != one.turn.turn_id:
            parts.append(Text(plain(f"── {one.turn.turn_id} goes on ──"), "dim"))
        if one.text.strip():
            parts.append(saying(f"{one.text} ▌"))
        parts += [calling(call.name, call.args_json, state=call.state) for call in one.calls]
        return Group(*parts)

    def _lines(self, what: RenderableType) -> list[list[Segment]]:
        options = self._out.options.update(width=max(20, self._out.width - 1))
        return self._out.render_lines(Safe(what), options, pad=False)


def _lines(turn: wire.ConversationTurn) -> int:
    return sum(message.role in {"agent", "tool"} for message in turn.messages)
