"""`agent-runtime approvals`: what waits for your decision. `interrupts` is a hidden alias."""

import json
from typing import Annotated

import typer

from agent_runtime.cli.client import Ask, change, complete_channel, find, read, rows
from agent_runtime.cli.rows import ID_DIGITS, asked, clipped, columns, left, lines_of, resolve_command, shown
from agent_runtime.model.approval import EXPIRED
from agent_runtime.model.mapping import Row, to_json
from protos.turnkeeper.v1 import agent_runtime_pb2 as wire
from turnkeeper.clock import SystemClock
from turnkeeper.console import Output, OutputOption, note, show_record, show_rows
from turnkeeper.errors import Conflict, InvalidInput

app = typer.Typer(help="Approvals: what waits for your decision.", rich_markup_mode=None)
ApprovalId = Annotated[str, typer.Argument(metavar="ID", help="The approval's id, or the beginning of it.")]
_COLUMNS = columns(
    "ID=interrupt_id KIND CHANNEL TASK=task_name SINCE=created_at EXPIRES=expires_at STATUS +THREAD=thread_id "
    "+CATEGORY ASKS",
    interrupt_id=lambda row: str(row["interrupt_id"])[:ID_DIGITS],
    expires_at=lambda row: left(row, SystemClock().now()),
    status=lambda row: str(row["decision"] or row["status"]),
    asks=lambda row: clipped(asked(row), 100),
)


@app.command("list")
def list_(
    channel: Annotated[
        str, typer.Option("--channel", help="Only those of this channel.", autocompletion=complete_channel)
    ] = "",
    everything: Annotated[bool, typer.Option("--all", help="Also those that are decided.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """List what waits for your decision: tool calls that a category does not grant, proposals, questions.

    Example: agent-runtime approvals list
    """
    found = rows(read, "ListInterrupts", wire.ListInterruptsRequest(channel=channel, all=everything))
    pending = [row for row in found if row["status"] == "pending"]
    footer = f"answer with: {resolve_command(pending[0])}" if pending else "nothing waits for you"
    show_rows(found, _COLUMNS, output, name_key="interrupt_id", footer=footer)


@app.command("show")
def show(approval: ApprovalId, output: OutputOption = Output.TABLE) -> None:
    """Show one approval with its arguments in full.

    Example: agent-runtime approvals show 3f2a9c01
    """
    row = _find(approval, read)
    lines = lines_of(
        row,
        "approval=interrupt_id kind asks arguments missing_scope category task=task_name turn=turn_id thread=thread_id "
        "channel since=created_at expires reminded=reminded_at alerted=escalated_at status because=message "
        "answer_with",
        asks=asked(row),
        expires=f"{shown(row['expires_at'])} ({left(row, SystemClock().now())})" if row["expires_at"] else "",
        arguments=json.dumps(row["args"], indent=2, ensure_ascii=False) if row["tool"] else "",
        status=row["status"] + (f" ({row['decision']})" if row["decision"] else ""),
        answer_with=resolve_command(row) if row["status"] == "pending" else "",
    )
    show_record(row, output, name_key="interrupt_id", lines=lines)


@app.command("resolve")
def resolve(
    approval: ApprovalId,
    why: Annotated[str, typer.Argument(metavar="[MSG]", help="With --reject: the reason, which the agent reads.")] = "",
    approve: Annotated[bool, typer.Option("--approve", help="Run the call as it is, once.")] = False,
    reject: Annotated[bool, typer.Option("--reject", help="Do not run the call; the turn goes on without it.")] = False,
    edit: Annotated[
        str | None, typer.Option("--edit", metavar="JSON", help="Run the call with these arguments.")
    ] = None,
    answer: Annotated[str | None, typer.Option("--answer", metavar="TEXT", help="Answer a question.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Decide what waits. Approving allows this call with these arguments, once, and grants nothing else.

    Example: agent-runtime approvals resolve 3f2a9c01 --reject "not today"
    """
    decision, message, args_json = _decision(approve=approve, reject=reject, edit=edit, answer=answer, why=why)
    row = _find(approval, change)
    # The service takes the same decision twice, for callers whose answer was lost; of what expired it says what to do.
    if row["status"] != "pending" and row["decision"] != EXPIRED:
        what = f"was decided before: {row['decision']}" if row["decision"] else "is void: its turn is over"
        raise Conflict(f"approval {row['interrupt_id']} {what}", hint="see: agent-runtime approvals list")
    request = wire.ResolveInterruptRequest(
        interrupt_id=row["interrupt_id"],
        decision=decision,
        message=message,
        args_json=args_json,
        args_hash=row["args_hash"],
    )
    done = to_json(change("ResolveInterrupt", request))
    lines = lines_of(done, "approval=interrupt_id decision turn=turn_id")
    show_record(done, output, name_key="interrupt_id", lines=lines)
    note(f"the turn goes on: agent-runtime turns show {done['turn_id']}")


def _decision(*, approve: bool, reject: bool, edit: str | None, answer: str | None, why: str) -> tuple[str, str, str]:
    given = [approve, reject, edit is not None, answer is not None]
    if given.count(True) != 1:
        raise InvalidInput("give exactly one of --approve, --reject, --edit and --answer", where="decision")
    if why and not reject:
        raise InvalidInput("only --reject takes a message", where="MSG")
    if edit is not None:
        return "edit", "", _object(edit)
    if answer is not None:
        return "answer", answer, ""
    return ("approve", "", "") if approve else ("reject", why, "")


def _object(text: str) -> str:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidInput(f"is not JSON: {error}", where="--edit") from error
    if not isinstance(value, dict):
        raise InvalidInput("is not a JSON object", where="--edit", hint='write for example \'{"tier": "channel"}\'')
    return text


def _find(given: str, ask: Ask) -> Row:
    found = rows(ask, "ListInterrupts", wire.ListInterruptsRequest(all=True))
    waiting = [row for row in found if row["status"] == "pending"]
    among = waiting if any(row["interrupt_id"].startswith(given) for row in waiting) else found
    exact = [row for row in found if row["interrupt_id"] == given]
    return find(exact or among, "interrupt_id", given, "approval")
