"""A turn on a terminal: its mark, what was said, called, proposed and asked, one line of text each."""

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from agent_runtime.cli.chat.news import News, news_of
from agent_runtime.cli.rows import Row, candidate_row, deviation_row, instant, interrupt_row
from agent_runtime.cli.words import ID_DIGITS, asked, call_text, clipped, loaded, resolve_command, shown, span
from agent_runtime.service.messages import mark_text
from protos.turnkeeper.v1 import agent_runtime_pb2 as wire
from turnkeeper.console import plain

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
        return list(_candidate(candidate_row(news.candidate), wide=wide))
    if news.kind == "deviation":
        return list(_deviation(deviation_row(news.deviation)))
    if news.kind == "interrupt":
        return list(_interrupt(interrupt_row(news.interrupt), room))
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
    text = f"→ {call_text(name, loaded(args_json))}"
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
