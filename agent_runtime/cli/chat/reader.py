"""Printing a conversation line by line, as a pipe or a dumb terminal takes it: what is new, and never twice."""

from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from agent_runtime.cli.chat.news import Known, News, known_of, news_of
from agent_runtime.cli.chat.plain import hung, label_line, news_lines
from protos.turnkeeper.v1 import agent_runtime_pb2 as wire
from turnkeeper.console import plain

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
