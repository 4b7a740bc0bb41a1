"""A turn on a terminal: its mark, what was said, called, proposed and asked, one line of text each."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from agent_runtime.cli.rows import Row, conversation_row
from agent_runtime.cli.words import ID_DIGITS, asked, call_text, clipped, resolve_command, shown, span
from agent_runtime.conversation import mark_text
from protos.turnkeeper.v1 import agent_runtime_pb2 as wire
from turnkeeper.console import plain

_LABEL = 11
_NARROWEST = 60
_WIDEST = 160
_STYLES = {"author": "bold green", "agent": "bold cyan", "tool": "dim", "trigger": "bold magenta"}
_STATUS_STYLES = {"succeeded": "green", "silent": "dim", "failed": "bold red", "cancelled": "yellow"}


def turn_lines(turn: wire.ConversationTurn, candidates: Sequence[Row], *, width: int, wide: bool) -> list[Text]:
    """Return a turn's lines. Text from prompts, models and tools is shown, never obeyed.

    Args:
        turn: the turn.
        candidates: what it proposed.
        width: of the terminal; tool calls and answers are shortened to it.
        wide: show tool answers in full.
    """
    row = conversation_row(turn)
    room = max(_NARROWEST, min(width, _WIDEST)) - _LABEL - 2
    lines = [_header(turn, row), _identity(turn, row)]
    for message in row["messages"]:
        lines += _message(message, room, wide=wide)
    for candidate in candidates:
        lines += _candidate(candidate)
    for interrupt in row["interrupts"]:
        lines += _interrupt(interrupt, room)
    if turn.error:
        lines.append(_labelled("error", turn.error, "bold red", "red"))
    return lines


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


def _header(turn: wire.ConversationTurn, row: Row) -> Text:
    title = mark_text(turn.trigger) if turn.HasField("trigger") else _cause(row)
    return Text.assemble((shown(row["started_at"]), "bold"), "  ", (plain(title), "bold magenta"))


def _cause(row: Row) -> str:
    return "the author wrote" if any(message["role"] == "author" for message in row["messages"]) else "continued"


def _identity(turn: wire.ConversationTurn, row: Row) -> Text:
    took = span(row["started_at"], row["ended_at"])
    status = turn.status if took == "-" else f"{turn.status} in {took}"
    style = _STATUS_STYLES.get(turn.status, "yellow")
    return Text.assemble("  ", (plain(f"{turn.turn_id}  thread {turn.thread_id}  "), "dim"), (plain(status), style))


def _message(message: Row, room: int, *, wide: bool) -> Iterator[Text]:
    role = str(message["role"])
    if role == "tool":
        yield _indented(f"← {message['text'] if wide else clipped(message['text'], room - 2)}")
        return
    if message["text"].strip():
        yield _labelled("prompt" if role == "trigger" else role, message["text"].strip(), _STYLES.get(role, "bold"))
    for call in message.get("tool_calls", []):
        text = f"→ {call_text(call['name'], call['args'])}"
        yield _indented(text if wide else clipped(text, room))


def _candidate(candidate: Row) -> Iterator[Text]:
    short = str(candidate["candidate_id"])
    yield _labelled("proposed", f"{candidate['title']}  [{candidate['kind']}, {candidate['lifecycle']}]", "bold yellow")
    if candidate["lifecycle"] == "candidate":
        yield _indented(f"read it:   agent-runtime candidates show {short}")
        yield _indented(f"decide:    agent-runtime candidates accept {short}")


def _interrupt(interrupt: Row, room: int) -> Iterator[Text]:
    if interrupt["status"] != "pending":
        decision = interrupt["decision"] or interrupt["status"]
        yield _labelled("asked", f"{clipped(asked(interrupt), room)}  [{decision}]", "dim")
        return
    yield _labelled(
        "waits", f"{interrupt['kind']} {interrupt['interrupt_id'][:ID_DIGITS]}", "bold yellow", "bold yellow"
    )
    yield _indented(asked(interrupt))
    yield _indented(f"answer it: {resolve_command(interrupt)}")
    if interrupt["kind"] != "question":
        yield _indented(f'       or: {resolve_command(interrupt).removesuffix("--approve")}--reject "why"')


def _labelled(label: str, text: str, label_style: str, style: str = "") -> Text:
    body = plain(text).replace("\n", "\n" + " " * (_LABEL + 2))
    return Text.assemble("  ", (f"{label:<{_LABEL}}", label_style), (body, style))


def _indented(text: str) -> Text:
    body = plain(text).replace("\n", "\n" + " " * (_LABEL + 4))
    return Text.assemble(" " * (_LABEL + 2), (body, "dim"))
