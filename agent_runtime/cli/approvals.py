"""`agent-runtime approvals`: what waits for your decision. `interrupts` is a hidden alias."""

import json
from typing import Annotated, Any

import typer

from agent_runtime.cli.client import Ask, change, complete_channel, pick, read
from agent_runtime.cli.rows import ID_DIGITS, asked, clipped, resolve_command, shown
from agent_runtime.model.mapping import Row, to_json
from protos.turnkeeper.v1 import agent_runtime_pb2 as wire
from turnkeeper.console import Column, Output, OutputOption, note, show_record, show_rows
from turnkeeper.errors import Conflict, InvalidInput

app = typer.Typer(help="What waits for your decision.", rich_markup_mode=None)
InterruptId = Annotated[str, typer.Argument(metavar="ID", help="The approval's id, or the beginning of it.")]
_COLUMNS = (
    Column("ID", lambda row: str(row["interrupt_id"])[:ID_DIGITS]),
    Column("KIND", lambda row: str(row["kind"])),
    Column("CHANNEL", lambda row: str(row["channel"])),
    Column("TASK", lambda row: str(row["task_name"] or "-")),
    Column("SINCE", lambda row: shown(row["created_at"])),
    Column("STATUS", lambda row: str(row["decision"] or row["status"])),
    Column("THREAD", lambda row: str(row["thread_id"]), wide=True),
    Column("CATEGORY", lambda row: str(row["category"]), wide=True),
    Column("ASKS", lambda row: clipped(asked(row), 100)),
)


@app.command("list")
def list_(
    channel: Annotated[
        str, typer.Option("--channel", help="Only those of this channel.", autocompletion=complete_channel)
    ] = "",
    everything: Annotated[bool, typer.Option("--all", help="Also those that are decided.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """List what waits for your decision: tool calls past a category, proposals, questions.

    Example: agent-runtime approvals list
    """
    answer = read("ListInterrupts", wire.ListInterruptsRequest(channel=channel, all=everything))
    rows = [to_json(interrupt) for interrupt in answer.interrupts]
    pending = [row for row in rows if row["status"] == "pending"]
    footer = f"answer with: {resolve_command(pending[0])}" if pending else "nothing waits for you"
    show_rows(rows, _COLUMNS, output, name_key="interrupt_id", footer=footer)


@app.command("show")
def show(interrupt: InterruptId, output: OutputOption = Output.TABLE) -> None:
    """Show one decision with its arguments in full.

    Example: agent-runtime approvals show 3f2a9c01
    """
    row = _find(interrupt, read)
    lines = [
        ("approval", row["interrupt_id"]),
        ("kind", row["kind"]),
        ("asks", asked(row)),
        ("arguments", json.dumps(row["args"], indent=2, ensure_ascii=False) if row["tool"] else ""),
        ("missing scope", row["missing_scope"]),
        ("category", row["category"]),
        ("task", row["task_name"]),
        ("turn", row["turn_id"]),
        ("thread", row["thread_id"]),
        ("channel", row["channel"]),
        ("since", shown(row["created_at"])),
        ("status", row["status"] + (f" ({row['decision']})" if row["decision"] else "")),
        ("answer with", resolve_command(row) if row["status"] == "pending" else ""),
    ]
    show_record(row, output, name_key="interrupt_id", lines=[(key, value) for key, value in lines if value])


@app.command("resolve")
def resolve(
    interrupt: InterruptId,
    why: Annotated[str, typer.Argument(metavar="[MSG]", help="With --reject: why, for the agent to read.")] = "",
    approve: Annotated[bool, typer.Option("--approve", help="Run the call as it is, this once.")] = False,
    reject: Annotated[bool, typer.Option("--reject", help="Do not run it; the turn goes on without.")] = False,
    edit: Annotated[str | None, typer.Option("--edit", metavar="JSON", help="Run it with these arguments.")] = None,
    answer: Annotated[str | None, typer.Option("--answer", metavar="TEXT", help="Answer a question.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Decide. An approval holds for this call with these arguments, once, and grants nothing else.

    Example: agent-runtime approvals resolve 3f2a9c01 --reject "not today"
    """
    decision, message, args_json = _decision(approve=approve, reject=reject, edit=edit, answer=answer, why=why)
    row = _find(interrupt, change)
    if row["status"] != "pending":  # the service takes the same decision twice, for callers whose answer was lost
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
    lines = [("approval", done["interrupt_id"]), ("decision", done["decision"]), ("turn", done["turn_id"])]
    show_record(done, output, name_key="interrupt_id", lines=lines)
    note(f"the turn goes on: agent-runtime turns show {done['turn_id']}")


def _decision(*, approve: bool, reject: bool, edit: str | None, answer: str | None, why: str) -> tuple[str, str, str]:
    given = [approve, reject, edit is not None, answer is not None]
    if given.count(True) != 1:
        raise InvalidInput("wants exactly one of --approve, --reject, --edit and --answer", where="decision")
    if why and not reject:
        raise InvalidInput("a message goes with --reject only", where="MSG")
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
    answer: Any = ask("ListInterrupts", wire.ListInterruptsRequest(all=True))
    rows = {interrupt.interrupt_id: to_json(interrupt) for interrupt in answer.interrupts}
    waiting = [key for key, row in rows.items() if row["status"] == "pending"]
    among = waiting if any(key.startswith(given) for key in waiting) and given not in rows else list(rows)
    return rows[pick(among, given, "approval")]
