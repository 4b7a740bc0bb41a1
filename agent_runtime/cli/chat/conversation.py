"""The commands `turnkeeper conversation` and `turnkeeper send`."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from agent_runtime.cli.chat.answer import told_sent
from agent_runtime.cli.chat.follow import Following, follow_on_terminal
from agent_runtime.cli.chat.screen import JsonView, LineView, Screen, View
from agent_runtime.cli.client import ANSWER_S, LOOK_S, again, change, complete_channel, find, read, refused
from agent_runtime.cli.rows import FOR_PEOPLE, asked, resolve_command
from agent_runtime.model.mapping import to_json
from turnkeeper import console as terminal
from turnkeeper.clock import SystemClock
from turnkeeper.config.surfaces import required
from turnkeeper.console import Output, OutputOption, console, note, show_rows, status
from turnkeeper.console.commands import App
from turnkeeper.console.lists import Listed, columns, listing
from turnkeeper.console.unseen import plain, prose, waiting_line
from turnkeeper.entropy import SystemEntropy
from turnkeeper.errors import Conflict, Denied, InvalidInput, NotFound, TurnkeeperError, misspelt
from turnkeeper.times import parse_duration
from turnkeeper.v1 import agent_runtime_pb2 as wire

app = App("The conversation of each channel: the trigger and the outcome of each turn.")
Channel = Annotated[
    str, typer.Argument(help="The channel's name, as `conversation list` shows it.", autocompletion=complete_channel)
]
Follow = Annotated[bool, typer.Option("-f", "--follow", help="Keep running and print changes, until Ctrl-C.")]
LONGEST_WAIT_S = 3600.0
_COLUMNS = columns(
    "CHANNEL #TURNS #WAITING #PROPOSED #DEVIATIONS LAST=last_at",
    waiting=lambda row: str(row["waiting"] or "-"),
    proposed=lambda row: str(row["proposed"] or "-"),
    deviations=lambda row: str(row["deviations"] or "-"),
)


@app.command("list")
@listing(_COLUMNS, "channel")
def list_(**page: Any) -> Listed:
    """List the channels that have a conversation, and the number of pending decisions in each channel.

    Example: turnkeeper conversation list
    """
    answer = read(wire.ListChannelsRequest(**page))
    rows = [to_json(channel) for channel in answer.channels]
    counts = {name: sum(row[name] for row in rows) for name in ("waiting", "proposed", "deviations")}
    return Listed(rows, waiting_line(**counts) if rows else "no conversations yet", answer)


@app.command("show")
def show(
    channel: Channel = "",
    thread: Annotated[str, typer.Option(help="Show only this thread; no channel is needed.")] = "",
    follow: Follow = False,
    cursor: Annotated[str, typer.Option(help="Show older turns: the cursor of the previous page.")] = "",
    limit: terminal.LimitOption = 50,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the conversation of a channel, or of a thread, oldest turn first: triggers, messages, calls and proposals.

    If a turn waits for you, the command that answers the turn is shown. `-o wide` shows the results of tools in full.

    Example: turnkeeper conversation show general --follow
    """
    if not channel and not thread:
        raise InvalidInput("name a channel, or a thread with --thread", where="CHANNEL")
    if thread:
        channel = channel or str(read(wire.GetThreadRequest(thread_id=thread)).channel)
    if follow:
        follow_channel(channel, limit, output, thread)
        return
    asked = wire.GetConversationRequest(channel=channel, limit=limit, thread_id=thread, cursor=cursor)
    found = read(asked)
    held_tasks = import_module(_LOOPS).held_tasks
    waits = [] if thread or cursor else held_tasks(channel)
    if not found.turns and not thread and not cursor and not waits:
        asked.channel = _channel_named(channel)
        found, waits = read(asked), held_tasks(asked.channel)
    _print_page(found, output, older=bool(cursor))
    for line in waits:
        note(line)


def _print_page(found: wire.Conversation, output: Output, *, older: bool) -> None:
    turns = list(found.turns)
    if output in FOR_PEOPLE:
        out, wide = console(), output is Output.WIDE
        view: View = Screen(out, wide=wide) if out.is_terminal else LineView(out, wide=wide)
        for turn in turns:
            view.take(turn)
    else:
        show_rows([to_json(turn) for turn in turns], (), output, name_key="turn_id")
    if not turns:
        note("there are no turns before these" if older else "no turn has begun here yet")
    if found.next_cursor:
        which = "" if older else "the newest "
        note(f"{which}{len(turns)} of {found.total} turns; for earlier turns: --cursor {found.next_cursor}")


def follow_channel(channel: str, limit: int, output: Output, thread: str = "") -> None:
    """Print each new turn and each change, until Ctrl-C."""
    people = output in FOR_PEOPLE
    if people and console().is_terminal and not console().is_dumb_terminal:
        follow_on_terminal(channel, limit=limit, wide=output is Output.WIDE, thread_id=thread)
        return
    following = Following(channel, limit=limit, live=people, thread_id=thread)
    following.start()
    note("following; Ctrl-C ends it")
    view: View = LineView(console(), wide=output is Output.WIDE) if people else JsonView()
    while True:
        following.show(view, LONGEST_WAIT_S)
        sys.stdout.flush()


ToChannel = Annotated[
    str,
    typer.Argument(
        help="The channel to write into; a new name begins a new conversation.", autocompletion=complete_channel
    ),
]
Words = Annotated[str, typer.Argument(metavar="TEXT", help="The message; `-` reads it from standard input.")]
Thread = Annotated[str, typer.Option("--thread", help="Continue this thread instead of the thread of the newest turn.")]
New = Annotated[bool, typer.Option("--new", help="Begin a new thread.")]
Graph = Annotated[
    str,
    typer.Option("--graph", help="The graph or assistant that answers; begins a new thread unless --thread is given."),
]
Context = Annotated[str, typer.Option("--context", help="The graph's context: a JSON object, or @FILE.")]
Config = Annotated[str, typer.Option("--config", help="LangGraph's configurable: a JSON object, or @FILE.")]
Input = Annotated[str, typer.Option("--input", help="Fields of the graph's input besides the message: JSON, or @FILE.")]
Keep = Annotated[bool, typer.Option("--keep-loop", help="A self-paced loop of that thread continues.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait for the answer and print it.")]
Patience = Annotated[str, typer.Option("--timeout", help="The longest time that --wait waits.")]
_POLL_S = 0.1
_LOOPS = "agent_runtime.cli.chat.loops"  # imports the runner's client, so it is loaded only where it is needed
_WAITING = frozenset({"interrupted", "paused"})
_KEPT = "kept"  # accepted, and held until the thread's questions are answered


def send(
    channel: ToChannel,
    text: Words,
    thread: Thread = "",
    new: New = False,
    new_channel: Annotated[
        bool, typer.Option(help="Begin this channel even if its name resembles another channel's.")
    ] = False,
    graph: Graph = "",
    context: Context = "",
    config: Config = "",
    input_: Input = "",
    agent: Annotated[str, typer.Option(help="The hosted agent that answers; default agent0.")] = "",
    category: Annotated[str, typer.Option(help="The turn's category; default conversation.")] = "",
    keep_loop: Keep = False,
    file: Annotated[list[str] | None, typer.Option(help="A text file to give with the message; several times.")] = None,
    wait: Wait = False,
    timeout: Patience = "10m",
) -> None:
    """Send a message into a channel's conversation.

    The message continues the thread of the channel's newest turn, so the agent knows its history; --new begins a new
    thread, and --thread continues another thread. A channel that does not exist begins with the message. If its name
    may be a misspelling of another channel, the command asks first, or without a terminal suggests the other name.

    Text that begins with /loop is about loops: /loop 15m PROMPT makes a loop in this conversation; /loop list; /loop
    stop. //loop is sent as /loop. Text from standard input is always a message.

    With --wait the exit code is 0 if the turn ended well, 1 if it failed or was cancelled, and 7 if it waits for you.

    Example: turnkeeper send general "When was the pump replaced?" --wait
    """
    if thread and new:
        raise InvalidInput("give only one of --thread and --new", where="thread")
    text, order = _read_loop(text)
    if order is not None:
        if order.does == "make" and not new_channel:
            _check_channel(channel)
        for line in import_module(_LOOPS).carry_out(order, channel, thread_id=thread, new=new):
            typer.echo(plain(line))
        return
    patience_s = parse_duration(timeout, field="--timeout").total_seconds()
    words = _words(text, file or [])
    given: dict[str, Any] = {"channel": channel, "thread_id": thread, "graph": graph, "agent": agent}
    given |= {"context_json": _json_of(context), "config_json": _json_of(config), "input_json": _json_of(input_)}
    request = wire.SendMessageRequest(
        **given,
        text=words,
        category=category,
        keep_loop=keep_loop,
        new_thread=new or bool(graph and not thread),
        request_id=SystemEntropy().hex(32),
    )
    _look_before(request, new_channel=new_channel)
    sent = change(request)
    _tell_sent(sent, words, chosen=bool(thread))
    if wait:
        with status("waiting for the answer"):
            turn = _await(sent.turn_id, patience_s)
        _print_answer(turn)


def _words(text: str, files: list[str]) -> str:
    """Return the text of a message, with its files."""
    words = sys.stdin.read() if text == "-" else text
    return required("prompt with documents", terminal.named_home(), words, files) if files else words


def _check_answer(sent: wire.SendMessageResponse) -> None:
    """Raise Conflict if a graph fails on the message that answered its question."""
    clock = SystemClock()
    until = clock.monotonic() + ANSWER_S
    while change(wire.GetTurnRequest(turn_id=sent.turn_id)).turn_id == sent.turn_id:
        if clock.monotonic() > until:  # the graph has not received the message yet
            return
        clock.block(LOOK_S)
    row = to_json(sent.answers) | {"decision": "answer"}
    if error := refused(row):
        raise Conflict(f"the graph failed on this answer: {error}", where=row["interrupt_id"], hint=again(row, error))


def _tell_sent(sent: wire.SendMessageResponse, text: str, *, chosen: bool) -> None:
    other = "; --new begins a new thread" if sent.continues and not (chosen or sent.pending_interrupts) else ""
    note(f"{told_sent(sent, text)}{other}")
    if sent.HasField("answers"):
        _check_answer(sent)
        note(f"for the rest: turnkeeper turns show {sent.answers.turn_id}")
    if sent.takes_over:
        note(f"{sent.takes_over}, a self-paced loop on this thread, ends because of this message")
    if sent.beside:
        note(f"{sent.beside} continues; to take it over, write into its own thread: --thread {sent.beside}")


def _read_loop(text: str) -> tuple[str, Any]:
    """Return the text as a message, with its order about loops, or None if the text contains no order."""
    if not text.lstrip().startswith(("/loop", "//loop")):
        return text, None
    loops = import_module(_LOOPS)
    return loops.message_of(text), loops.parse_order(text)


def _look_before(request: wire.SendMessageRequest, *, new_channel: bool) -> None:
    """Before sending, ask the author about a new channel, and about a loop that the message would take over."""
    to = wire.SendMessageRequest(
        channel=request.channel, thread_id=request.thread_id, new_thread=request.new_thread, look=True
    )
    look = change(to)
    if not (look.continues or request.thread_id or new_channel):
        _check_channel(request.channel)
    if look.takes_over and not (request.keep_loop or request.new_thread) and sys.stdin.isatty():
        question = (
            f"{look.takes_over} is a self-paced loop on this thread, which a message ends. End it? (n: keep it running)"
        )
        request.keep_loop = not typer.confirm(question, default=True, err=True)


def _check_channel(channel: str) -> None:
    """Ask the author whether to begin a new channel whose name resembles another's; without a terminal, print a note.

    Raises NotFound if the author declines.
    """
    known = [one.name for one in change(wire.ListChannelsRequest()).channels]
    near = misspelt(channel, known)
    if channel in known or not near:
        return
    if not sys.stdin.isatty():
        note(f"begins the new channel {channel}; did you mean {near}?")
    elif not typer.confirm(f"There is no channel {channel}. Did you mean {near}? Begin {channel}?", err=True):
        raise NotFound(f"no channel {channel!r}, so nothing was sent", hint=f"write to {near}: turnkeeper send {near}")


def _json_of(text: str) -> str:
    """Return an option's JSON; read it from a file if the option names one."""
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"cannot be read: {error}", where=text[1:]) from error


def _await(turn_id: str, patience_s: float) -> wire.Turn:
    """Wait until a turn has ended or waits for the author; return it.

    Raises:
        Denied: the thread waits for the author first, so the turn does not begin.
        TurnkeeperError: the turn took too long; it continues.
    """
    clock = SystemClock()
    deadline = clock.monotonic() + patience_s
    while clock.monotonic() < deadline:
        turn: wire.Turn = change(wire.GetTurnRequest(turn_id=turn_id))
        if turn.status in {"succeeded", "silent", "failed", "cancelled"} | _WAITING:
            return turn
        if turn.status == _KEPT:
            raise Denied(turn.summary, hint="see: turnkeeper triage, or turnkeeper turns list --status paused")
        clock.block(_POLL_S)
    hint = f"see: turnkeeper turns show {turn_id}"
    raise TurnkeeperError(f"no answer within {patience_s:.0f} s; the turn continues", hint=hint)


def _rows_of(turn: wire.Turn) -> list[dict[str, Any]]:
    found: Any = read(wire.GetConversationRequest(thread_id=turn.thread_id, limit=50))
    return [to_json(one) for one in found.turns if one.turn_id == turn.turn_id]


def _print_answer(turn: wire.Turn) -> None:
    rows = _rows_of(turn)
    for message in (message for row in rows for message in row["messages"] if message["role"] == "agent"):
        if message["text"].strip():
            typer.echo(prose(message["text"].strip()))
    if turn.status in {"failed", "cancelled"}:
        raise TurnkeeperError(f"the turn {turn.status}: {turn.error or 'no reason is recorded'}", where=turn.turn_id)
    if turn.status in _WAITING:
        pending = [one for row in rows for one in row["interrupts"] if one["status"] == "pending"]
        what = "; ".join(asked(one) for one in pending) or turn.status
        hint = f"answer with: {resolve_command(pending[0])}" if pending else "see: turnkeeper approvals list"
        raise Denied(f"the turn waits for you: {what}", hint=hint)


def _channel_named(given: str) -> str:
    """Return the only channel whose name begins with `given`. Raises NotFound, or Conflict if there are several."""
    channels = [to_json(one) for one in read(wire.ListChannelsRequest()).channels]
    try:
        return str(find([row for row in channels if row["channel"] != given], "channel", given, "channel")["channel"])
    except NotFound as error:
        known = error.hint if error.hint.startswith("did you mean") else "see: turnkeeper conversation list"
        raise NotFound(f"no conversation in channel {given[:80]!r}", hint=known) from None
