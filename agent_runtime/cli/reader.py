"""Printing a conversation line by line, as a pipe or a dumb terminal takes it: what is new, and never twice."""

from rich.console import Console
from rich.text import Text

from agent_runtime.cli.news import Known, News, known_of, news_of
from agent_runtime.cli.view import call_line, hung, label_line, news_lines
from protos.turnkeeper.v1 import agent_runtime_pb2 as wire
from turnkeeper.console import plain

MOST_KNOWN = 2000  # turns of which it is remembered what was shown
ROOM = 78
_MARGIN = 13


class Reader:
    """Shows turns, and the pieces of what they say, on a console."""

    def __init__(self, out: Console, *, wide: bool = False) -> None:
        self._out = out
        self._wide = wide
        self._known: dict[str, Known] = {}
        self._turn = ""  # whose lines were printed last
        self._open: tuple[str, str] | None = None  # the turn and message whose line has no end yet
        self._said: dict[str, str] = {}  # by turn: what was printed of the message that is being written
        self._message: dict[str, str] = {}
        self._called: set[str] = set()  # calls printed before they were on record

    def take(self, turn: wire.ConversationTurn) -> None:
        """Show what is new of a turn, or a piece of what it says."""
        if turn.HasField("speech"):
            self._take_speech(turn)
            return
        news = news_of(turn, self._known.get(turn.turn_id))
        for one in news:
            self._show(one)
        self._known.pop(turn.turn_id, None)
        self._known[turn.turn_id] = known_of(turn)
        if len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]

    def end(self) -> None:
        """Nothing more comes."""
        self._close()

    def _show(self, news: News) -> None:
        turn_id = news.turn.turn_id
        said = self._said.pop(turn_id, "") if news.kind == "message" and news.message.role == "agent" else ""
        if said and news.message.text.strip().startswith(said.strip()):
            self._rest(news, said)
            return
        self._begin(turn_id, again=news.kind != "begun")
        for line in news_lines(news, width=self._out.width, wide=self._wide):
            if line.plain not in self._called:
                self._out.print(hung(line, self._out), soft_wrap=True)
            self._called.discard(line.plain)

    def _rest(self, news: News, said: str) -> None:
        """Print what of a message was not printed while it was written."""
        rest = news.message.text.strip()[len(said.strip()) :]
        if rest.strip():
            self._piece(news.turn.turn_id, self._message.get(news.turn.turn_id, ""), rest)
        self._close()
        calls = wire.Message(role="agent", tool_calls=news.message.tool_calls)
        turn = wire.ConversationTurn(turn_id=news.turn.turn_id, messages=[calls])
        self._show(News(kind="message", turn=turn))

    def _take_speech(self, turn: wire.ConversationTurn) -> None:
        speech, turn_id = turn.speech, turn.turn_id
        if speech.message != self._message.get(turn_id):
            self._said.pop(turn_id, None)
            self._message[turn_id] = speech.message
        if speech.text and speech.offset == len(self._said.get(turn_id, "")):
            self._piece(turn_id, speech.message, speech.text)
            self._said[turn_id] = self._said.get(turn_id, "") + speech.text
        for call in speech.calls:
            line = call_line(call.name, call.args_json, ROOM, wide=self._wide)
            if call.state == "running" and line.plain not in self._called:
                self._begin(turn_id, again=True)
                self._out.print(hung(line, self._out), soft_wrap=True)
                self._called.add(line.plain)

    def _piece(self, turn_id: str, message: str, text: str) -> None:
        if self._open != (turn_id, message):
            text = text.lstrip()
            if not text:
                return
            self._begin(turn_id, again=True)
            self._out.print(label_line("agent", ""), end="", soft_wrap=True)
            self._open = (turn_id, message)
        shown = plain(text).replace("\n", "\n" + " " * _MARGIN)
        self._out.print(Text(shown), end="", soft_wrap=True)

    def _begin(self, turn_id: str, *, again: bool) -> None:
        """Stand at the beginning of a line, under the turn's name where another turn's lines came between."""
        self._close()
        if self._turn != turn_id:
            if self._turn:
                self._out.print()
            if again:
                self._out.print(Text(plain(f"  {turn_id} goes on"), "dim"))
        self._turn = turn_id

    def _close(self) -> None:
        if self._open is not None:
            self._out.print()
            self._open = None
