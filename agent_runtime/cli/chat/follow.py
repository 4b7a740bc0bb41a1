"""Following of a conversation across restarts of the runtime, and answers typed meanwhile in a terminal."""

import codecs
import os
import queue
import select
import signal
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from agent_runtime.cli.chat.answer import HELP, REFUSED, Command, parse, perform, would_end
from agent_runtime.cli.chat.screen import Screen, View
from agent_runtime.cli.client import change_in_conversation, held, runtime
from turnkeeper.console import console
from turnkeeper.entropy import SystemEntropy
from turnkeeper.errors import TurnkeeperError, Unreachable
from turnkeeper.v1 import agent_runtime_pb2 as wire

AGAIN_S = 0.5
LOOPS = "agent_runtime.cli.chat.loops"
MOST_WAITING = 256  # turns and pieces read but not shown; above this, the runtime sends fewer and longer pieces


@dataclass(frozen=True)
class Disconnected:
    """The runtime does not answer; the follower retries until it does."""


@dataclass(frozen=True)
class Reconnected:
    """The runtime answers again."""


Event = wire.ConversationTurn | Disconnected | Reconnected | TurnkeeperError


class Following:
    """Follower of a channel in a background thread; `next` returns the events in order."""

    def __init__(
        self, channel: str, *, limit: int, live: bool, thread_id: str = "", on_event: Callable[[], object] | None = None
    ) -> None:
        """Call `on_event` on each event, in the background thread. With `thread_id`, follow only that thread."""
        self._on_event = on_event
        self._request = wire.WatchConversationRequest(channel=channel, limit=limit, live=live, thread_id=thread_id)
        self._waiting: queue.Queue[Event] = queue.Queue(MOST_WAITING)
        self._over = threading.Event()
        self._caller: Any = None
        self._thread = threading.Thread(target=self._run, name="follow", daemon=True)

    def start(self) -> None:
        """Start the background thread, which ends with the process at the latest."""
        self._thread.start()

    def stop(self) -> None:
        """Stop following; return after the thread has ended."""
        self._over.set()
        if (caller := self._caller) is not None:
            caller.close()
        self._thread.join()

    def next(self, timeout_s: float | None = None) -> Event | None:
        """Return the next event; None if no event arrived in time."""
        try:
            return self._waiting.get(timeout_s != 0.0, timeout_s)
        except queue.Empty:
            return None

    def show(self, view: View, timeout_s: float) -> bool:
        """Show the next event; return True if an event arrived in time. Raises the errors of the runtime."""
        event = self.next(timeout_s)
        if isinstance(event, TurnkeeperError):
            raise event
        if isinstance(event, Disconnected):
            view.tell("agent-runtime does not answer; waiting for it")
        elif isinstance(event, Reconnected):
            view.tell("agent-runtime answers again")
        elif event is not None:
            view.take(event)
        return event is not None

    def _run(self) -> None:
        for event in self._events():
            while not self._over.is_set():
                try:
                    self._waiting.put(event, timeout=AGAIN_S)
                except queue.Full:
                    continue  # the reader is slow, so the runtime sends no more until it has caught up
                break
            if self._on_event is not None and not self._over.is_set():
                self._on_event()

    def _events(self) -> Iterator[Event]:
        lost, shown = False, False
        while not self._over.is_set():
            try:
                for turn in self._watch():
                    if lost:
                        yield Reconnected()
                    lost, shown = False, True
                    yield turn
            except Unreachable:
                pass
            except TurnkeeperError as error:
                if not self._over.is_set():
                    yield error
                return
            if not lost:
                yield Disconnected()
                if not shown:
                    yield from self._stored()
            lost = shown = True
            self._over.wait(AGAIN_S)

    def _watch(self) -> Iterator[wire.ConversationTurn]:
        caller = self._caller = runtime()
        if self._over.is_set():
            return
        try:
            yield from caller.WatchConversation(self._request)
        finally:
            caller.close()

    def _stored(self) -> Iterator[wire.ConversationTurn]:
        watched = self._request
        asked = wire.GetConversationRequest(channel=watched.channel, limit=watched.limit, thread_id=watched.thread_id)
        found: Any = held(asked)
        yield from found.turns


LONGEST_LINE = 4000
_ESCAPE = "\x1b"
_FINAL = range(0x40, 0x7F)  # the final byte of a key's escape sequence


class Typed:
    """The line that is being typed. Other classes show `text` on a terminal."""

    def __init__(self) -> None:
        self.text = ""
        self.ended = False  # Ctrl-D on an empty line sets this
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._sequence = ""

    def feed(self, data: bytes) -> list[str]:
        r"""Process bytes from the keyboard; return the finished lines.

        >>> typed = Typed()
        >>> typed.feed(b"ab\x7f\x1b[Ac\rd"), typed.text
        (['ac'], 'd')
        """
        lines: list[str] = []
        for character in self._decode(data):
            if self._in_sequence(character):
                continue
            if character in "\r\n":
                lines.append(self.text)
                self.text = ""
            else:
                self._edit(character)
        return lines

    def _in_sequence(self, character: str) -> bool:
        """Skip the escape sequences of arrows and other keys."""
        if character == _ESCAPE:
            self._sequence = character
        elif self._sequence == _ESCAPE and character in "[O":
            self._sequence += character
        elif len(self._sequence) > 1:
            self._sequence = "" if ord(character) in _FINAL else self._sequence
        elif self._sequence:
            self._sequence = ""  # a key together with Alt
        else:
            return False
        return True

    def _edit(self, character: str) -> None:
        if character in "\x7f\x08":
            self.text = self.text[:-1]
        elif character == "\x15":
            self.text = ""
        elif character == "\x17":
            kept = self.text.rstrip()
            self.text = kept[: len(kept) - len(kept.split(" ")[-1])] if kept else ""
        elif character == "\x04":
            self.ended = not self.text
        elif character == "\t" or character.isprintable():
            self.text = (self.text + character.replace("\t", " "))[:LONGEST_LINE]


@contextmanager
def key_by_key(descriptor: int) -> Iterator[None]:
    """Make a terminal deliver each key at once without echo; restore it afterwards. Ctrl-C still interrupts."""
    before = termios.tcgetattr(descriptor)
    changed = termios.tcgetattr(descriptor)
    changed[3] &= ~(termios.ICANON | termios.ECHO)
    termios.tcsetattr(descriptor, termios.TCSADRAIN, changed)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def read_keys(descriptor: int) -> bytes:
    """Return the bytes typed so far; empty if the terminal was closed."""
    try:
        return os.read(descriptor, LONGEST_LINE)
    except OSError:
        return b""


def follow_on_terminal(channel: str, *, limit: int, wide: bool, thread_id: str = "") -> None:
    """Follow until the author leaves. Raises the errors of the runtime."""
    typing = sys.stdin.isatty() and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()  # a background job has no keyboard
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # restores the terminal also after SIGTERM
    screen = Screen(console(), wide=wide, typing=typing)
    with ExitStack() as stack:
        keyboard = sys.stdin.fileno() if typing else None
        news, wake = stack.enter_context(_wake_pipe())
        if keyboard is not None:
            stack.enter_context(key_by_key(keyboard))
        stack.callback(screen.clear)
        following = Following(channel, limit=limit, live=True, thread_id=thread_id, on_event=wake)
        following.start()
        stack.callback(following.stop)

        def show_loops(lines: list[str]) -> None:
            screen.show_loops(lines)
            wake()

        loops = import_module(LOOPS).LoopPoller(channel, show_loops)
        loops.start()
        stack.callback(loops.stop)
        screen.tell("following; ? helps, q ends it" if typing else "following; Ctrl-C ends it")
        Dialogue(channel, screen, following, thread_id=thread_id).run(keyboard, news)


class Dialogue:
    """A loop that shows events and carries out the author's lines."""

    def __init__(self, channel: str, screen: Screen, following: Following, *, thread_id: str = "") -> None:
        self._channel, self._thread_id = channel, thread_id
        self._screen = screen
        self._following = following
        self._typed = Typed()
        self._unsent: Command | None = None  # a message that would end a loop, until the author confirms the message

    def run(self, keyboard: int | None, news: int) -> None:
        """Show events and carry out lines until the author leaves; `news` and `keyboard` are descriptors to poll."""
        watched = [news] if keyboard is None else [news, keyboard]
        while True:
            self._screen.draw()
            ready, _, _ = select.select(watched, [], [])
            if news in ready:
                os.read(news, 4096)
                while self._following.show(self._screen, 0.0):
                    pass
            if keyboard is not None and keyboard in ready and not self._take_keys(read_keys(keyboard)):
                return

    def _take_keys(self, data: bytes) -> bool:
        lines = self._typed.feed(data)
        self._screen.type(self._typed.text)
        return bool(data) and all(self._do(line) for line in lines) and not self._typed.ended

    def _do(self, line: str) -> bool:
        if line.lstrip().startswith(("/loop", "//loop")):
            loops = import_module(LOOPS)  # imports the runner's client, so it is loaded only where it is needed
            if order := loops.parse_order(line):
                self._order(loops, order)
                return True
            line = f"say {loops.message_of(line)}"
        command = self._decided(line) or parse(line, self._screen.waiting)
        if command.does == "quit":
            return False
        if command.does == "help":
            self._screen.print(HELP)
        elif command.does == "list":
            self._screen.print("\n".join(self._screen.waiting.lines()) or "no item waits for you")
        elif command.does in {"problem", "nothing"}:
            self._screen.tell(command.text)
        elif command is not self._unsent and command.does == "say" and (loop := self._ends(command)):
            self._screen.tell(f"{loop} ends because of this message. Enter: send; n: send, the loop continues")
        else:
            self._unsent = None
            said = (self._channel, SystemEntropy().hex(32), change_in_conversation)
            self._screen.tell(perform(command, *said, thread_id=self._thread_id))
        return True

    def _order(self, loops: Any, order: Any) -> None:
        self._unsent = None
        try:
            self._screen.print("\n".join(loops.carry_out(order, self._channel, surface="conversation")))
        except TurnkeeperError as error:
            self._screen.tell(f"{REFUSED}{error}")

    def _ends(self, command: Command) -> str:
        loop = would_end(self._channel, change_in_conversation, thread_id=self._thread_id)
        self._unsent = command if loop else None
        return loop

    def _decided(self, line: str) -> Command | None:
        """Return the unsent message with the author's choice about the loop, or None for any other line."""
        if self._unsent is None or line.strip() not in {"", "y", "n"}:
            self._unsent = None
        elif line.strip() == "n":
            self._unsent = replace(self._unsent, keep=True)
        return self._unsent


@contextmanager
def _wake_pipe() -> Iterator[tuple[int, Callable[[], None]]]:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)

    def wake() -> None:
        with suppress(OSError):  # the pipe is full or closed
            os.write(writing, b".")

    try:
        yield reading, wake
    finally:
        os.close(reading)
        os.close(writing)
