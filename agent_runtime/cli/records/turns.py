"""The commands `turnkeeper turns` and `turnkeeper threads`."""

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from agent_runtime.cli.client import Ask, change, complete_channel, find, held, read, rows
from agent_runtime.cli.rows import FOR_PEOPLE, asked, clipped, span
from agent_runtime.model.approval import EXPIRED
from agent_runtime.model.decide import FINISHED
from agent_runtime.model.mapping import Row, to_json
from agent_runtime.model.turn import LONGEST_SUMMARY
from agent_runtime.permissions.exceptions import ALLOWED_BY
from turnkeeper import console as terminal
from turnkeeper.config.json_text import read_object, read_value
from turnkeeper.config.surfaces import offered
from turnkeeper.console import Output, OutputOption, note, show_record, show_rows
from turnkeeper.console.commands import App
from turnkeeper.console.lists import Listed, columns, lines_of, listing, shown
from turnkeeper.console.unseen import from_words, in_words
from turnkeeper.errors import InvalidInput, NotFound, TurnkeeperError, Unreachable
from turnkeeper.v1 import agent_runtime_pb2 as wire

app = App("Runs of the agent, whatever started them.")
threads_app = App("Threads: each is a sequence of turns that share one history.")
TurnId = Annotated[str, typer.Argument(metavar="TURN", help="The turn's id, or the beginning of it.")]
ThreadId = Annotated[str, typer.Argument(metavar="THREAD", help="The thread's id, or the beginning of it.")]
Metadata = Annotated[
    list[str] | None,
    typer.Option("--metadata", metavar="KEY=VALUE", help="Metadata of the thread: key=value, or a JSON object."),
]
_LONGEST_METADATA = 1 << 20
_MOST_LOOKED_AT = 1000
_DECIDED = {"approve": "approved", "edit": "approved with changes", "reject": "rejected", "answer": "answered"}
LONGEST_QUESTION = 300  # characters


def _all_tokens(row: Mapping[str, Any]) -> str:
    return f"{row['tokens_in'] + row['tokens_out']:,}"


_TURNS = columns(
    "TURN=turn_id STATUS TRIGGER ~CHANNEL ~CATEGORY ~STARTED=started_at ~#TOOK ~#TOKENS +THREAD=thread_id +AGENT "
    "+FIRE=fire_id +#ATTEMPT +GRAPH SUMMARY",
    status=lambda row: in_words(row["status"]),
    trigger=lambda row: str(row["task_name"] or row["trigger"]),
    took=lambda row: span(row["started_at"], row["ended_at"]),
    tokens=_all_tokens,
    attempt=lambda row: str(row["attempt"] or "-"),
    summary=lambda row: clipped(str(row["error"] or row["summary"]), 60),
)
_THREADS = columns(
    "THREAD=thread_id CHANNEL TASK=task_name STATE=status #WAITING #TURNS LAST=last_at AGENT +CATEGORY +GRAPH +#TOKENS "
    "+FIRST=first_at +LAST_TURN=last_turn_id",
    status=lambda row: in_words(row["status"]),
    waiting=lambda row: str(row["waiting"] or "-"),
    tokens=_all_tokens,
)


@app.command("list")
@listing(_TURNS, "turn_id", limit=50, watch=("--follow",))
def list_(
    channel: Annotated[str, typer.Option(help="Only turns of this channel.", autocompletion=complete_channel)] = "",
    thread: Annotated[str, typer.Option(help="Only turns of this thread.")] = "",
    status: Annotated[str, typer.Option(help="Only turns of this status: running, interrupted, failed, …")] = "",
    **page: Any,
) -> Listed:
    """List turns, newest first.

    Example: turnkeeper turns list --status failed -n 10
    """
    request = wire.ListTurnsRequest(channel=channel, thread_id=thread, status=from_words(status), **page)
    answer = read(request)
    found = [to_json(turn) for turn in answer.turns]
    if (prices := offered("read prices", terminal.named_home())) is not None:
        cost = [prices.of_turn(row["models"], row["tokens_in"], row["tokens_out"]) / 1e6 for row in found]
        found = [row | {"money": money} for row, money in zip(found, cost, strict=True)]
    footer = f"{answer.total} turn{'' if answer.total == 1 else 's'}" if answer.total else "no such turns"
    if answer.next_cursor and answer.total > len(found):
        footer += f", of which {len(found)} are shown; the next: --cursor {answer.next_cursor}"
    return Listed(found, footer)


@app.command("show")
def show(turn: TurnId, output: OutputOption = Output.TABLE) -> None:
    """Show one turn: its trigger, its state, and its outcome.

    Example: turnkeeper turns show turn-8ddc61
    """
    row = _turn(turn, read)
    show_record(row, output, name_key="turn_id", lines=_lines(row))
    if output in FOR_PEOPLE and row["summary"]:
        note(f"all its messages: turnkeeper conversation show --thread {row['thread_id']}")


@app.command("cancel")
def cancel(
    turn: TurnId,
    reason: Annotated[str, typer.Option(help="A reason to store with the turn.")] = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Cancel a turn: it stops at its next await, its checkpoints stay, and its thread can continue.

    The cancellation is on disk when this command returns, even if the turn needs a moment to stop.

    Example: turnkeeper turns cancel turn-8ddc61 --reason "wrong prompt"
    """
    turn_id = _turn(turn, change)["turn_id"]
    answer = change(wire.CancelTurnRequest(turn_id=turn_id, reason=reason))
    row = to_json(answer)
    show_record(row, output, name_key="turn_id", lines=_lines(row))
    if answer.status == "running":
        note("the turn stops at its next await")
    elif answer.status in FINISHED:
        note("the turn had already ended; nothing changed")


def _turn(given: str, ask: Ask) -> Row:
    try:
        return to_json(ask(wire.GetTurnRequest(turn_id=given)))
    except NotFound:
        return find(rows(ask, wire.ListTurnsRequest(limit=_MOST_LOOKED_AT)), "turn_id", given, "turn")


def _lines(row: Row) -> list[tuple[str, str]]:
    cause = f"task {row['task_name']}, fire {row['fire_id']}, attempt {row['attempt']}" if row["fire_id"] else "author"
    summary = row["summary"] + "…" * (len(row["summary"]) >= LONGEST_SUMMARY)
    asked = " (cancel requested)" if row["cancel_requested"] and row["status"] not in FINISHED else ""
    return lines_of(
        row,
        "turn=turn_id status started_by via channel thread=thread_id agent graph category started ended took tokens "
        "summary error",
        status=in_words(row["status"]) + asked,
        started_by=cause,
        started=shown(row["started_at"]),
        ended=shown(row["ended_at"]),
        took=span(row["started_at"], row["ended_at"]),
        tokens=_tokens(row),
        summary=offered("fields in words", summary) or summary,
    )


def _tokens(row: Row) -> str:
    models = ", ".join(model for model in row.get("models", ()) if model)
    return f"{row['tokens_in']:,} read, {row['tokens_out']:,} written{f' by {models}' if models else ''}"


@threads_app.command("list")
@listing(_THREADS, "thread_id", limit=50)
def list_threads(
    channel: Annotated[str, typer.Option(help="Only threads of this channel.", autocompletion=complete_channel)] = "",
    status: terminal.StatusOption = "",
    metadata: Metadata = None,
    **page: Any,
) -> Listed:
    """List threads, newest turn first; with --metadata, only threads with all of this metadata.

    Example: turnkeeper threads list --channel general
    """
    request = wire.ListThreadsRequest(channel=channel, status=from_words(status), **page)
    request.metadata_json = _metadata(metadata)
    answer = read(request)
    found = [to_json(one) for one in answer.threads]
    waiting = sum(row["waiting"] for row in found)
    plural = "s" if waiting > 1 else ""
    footer = f"{waiting} decision{plural} waiting: turnkeeper approvals list" if waiting else ""
    return Listed(found, footer if found else "no such threads", answer)


@threads_app.command("show")
def show_thread(thread: ThreadId, limit: terminal.LimitOption = 20, output: OutputOption = Output.TABLE) -> None:
    """Show a thread: whether it waits or runs, and its newest turns.

    Example: turnkeeper threads show task-5877fe71
    """
    row = _thread(thread)
    lines = lines_of(
        row,
        "thread=thread_id state=status waiting channel agent graph task=task_name category turns tokens "
        "first_turn=first_at last_turn=last_at metadata",
        metadata=json.dumps(row["metadata"], ensure_ascii=False) if row["metadata"] else "",
        state=in_words(row["status"]),
        waiting=f"{row['waiting']}: turnkeeper approvals list" if row["waiting"] else "",
        tokens=_tokens(row),
    )
    found = rows(read, wire.ListTurnsRequest(thread_id=row["thread_id"], limit=limit))
    show_record(row | {"newest_turns": found}, output, name_key="thread_id", lines=lines)
    if output in FOR_PEOPLE:
        typer.echo()
        show_rows(found, _TURNS, output, name_key="turn_id")
        if row["turns"] > len(found):
            more = f"turnkeeper turns list --thread {row['thread_id']}"
            note(f"the newest {len(found)} of {row['turns']} turns: {more}")


def questions(turn_id: str) -> list[str]:
    """Return sentences, for `explain`, about a turn's questions and their decisions, with the person and the time.

    If the daemon does not answer, they come from the store.
    """
    if not turn_id:
        return []
    try:
        thread = _answer(wire.GetTurnRequest(turn_id=turn_id)).thread_id
        found = _answer(wire.ListInterruptsRequest(all=True, thread_id=thread)).interrupts
        used = any(one.turn_id == turn_id and one.message.startswith(ALLOWED_BY) for one in found)
        excepted = _answer(wire.ListExceptionsRequest(all=True)).exceptions if used else ()
    except TurnkeeperError as error:
        return [] if isinstance(error, NotFound) else [f"The questions of its turn cannot be read: {error}."]
    asked_ = sorted((to_json(one) for one in found if one.turn_id == turn_id), key=lambda row: str(row["created_at"]))
    given = {one.number: to_json(one) for one in excepted}
    return [line for row in asked_ for line in _question(row, given)]


def _answer(request: Any) -> Any:
    try:
        return change(request)
    except Unreachable:
        return held(request)


def _question(row: Row, given: Mapping[int, Row]) -> Iterator[str]:
    asks = clipped(asked(row), LONGEST_QUESTION)
    if (exception := given.get(row["exception"])) and row["message"].startswith(ALLOWED_BY):
        by = f", by {exception['given_by']}" if exception["given_by"] else ""
        yield f"It was {row['message']} (given at {exception['given_at']}{by}), so it did not ask you: {asks}."
        return
    yield f"It asked you at {row['created_at']}: {asks}{'' if asks.endswith(('.', '?', '!')) else '.'}"
    if row["decision"] == EXPIRED:
        yield f"Its request expired at {row['resolved_at']}: {row['message']}."
    elif row["decision"]:
        by = f", by {row['decided_by']}" if row["decided_by"] else ""
        why = f": {clipped(row['message'], LONGEST_QUESTION)}" if row["message"] else ""
        yield f"It was {_DECIDED[row['decision']]} at {row['resolved_at']}{by}{why}."


@threads_app.command("put")
def put_thread(
    thread: Annotated[str, typer.Argument(metavar="THREAD", help="The thread's id; default a new thread.")] = "",
    channel: Annotated[str, typer.Option(help="The channel of a new thread.", autocompletion=complete_channel)] = "",
    metadata: Metadata = None,
    new: Annotated[bool, typer.Option(help="Refuse a thread that already exists.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Set your own metadata of a thread, even before its first turn. `key=null` removes a key.

    Example: turnkeeper threads put --channel general --metadata owner=ada
    """
    request = wire.PutThreadRequest(thread_id=thread, channel=channel, must_be_new=new)
    request.metadata_json = _metadata(metadata)
    row = to_json(change(request))
    said = json.dumps(row["metadata"], ensure_ascii=False)
    show_record(
        row, output, name_key="thread_id", lines=lines_of(row | {"metadata": said}, "thread=thread_id channel metadata")
    )


def _metadata(texts: list[str] | None) -> str:
    """Return the metadata options as a JSON object; empty if there are none. Raises InvalidInput."""
    found: dict[str, Any] = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if text.startswith("{"):
            found |= read_object(text, where="--metadata", longest=_LONGEST_METADATA)
        elif key and equals:
            found[key] = _value(value)
        else:
            raise InvalidInput(f"{text[:40]!r} is not metadata", where="--metadata", hint="write key=value, or JSON")
    return json.dumps(found) if found else ""


def _value(text: str) -> Any:
    try:
        return read_value(text, where="--metadata", longest=_LONGEST_METADATA)
    except InvalidInput:
        return text


def _thread(given: str) -> Row:
    exact = rows(read, wire.ListThreadsRequest(thread_id=given))
    all_ = exact or rows(read, wire.ListThreadsRequest(limit=_MOST_LOOKED_AT))
    return find(all_, "thread_id", given, "thread")


offered("threads-import-command", threads_app)
