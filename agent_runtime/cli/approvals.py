"""The commands `turnkeeper approvals`, with the hidden alias `interrupts`."""

import importlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from agent_runtime.cli import rows as texts
from agent_runtime.cli.client import Ask, again, change, complete_channel, find, read, refused, rows
from agent_runtime.cli.rows import ID_DIGITS, asked, clipped, left, resolve_command
from agent_runtime.model.approval import DEEPEST_ARGS, EXPIRED, LONGEST_ARGS
from agent_runtime.model.mapping import Row, parsed, to_json
from turnkeeper import console as terminal
from turnkeeper.clock import SystemClock
from turnkeeper.config import json_text
from turnkeeper.config.surfaces import offered
from turnkeeper.console import Output, OutputOption, note, show_record, show_rows
from turnkeeper.console.commands import App
from turnkeeper.console.lists import Listed, columns, lines_of, listing, shown
from turnkeeper.errors import Conflict, InvalidInput
from turnkeeper.rpc import forms
from turnkeeper.v1 import agent_runtime_pb2 as wire

app = App("Approvals: calls and questions that wait for you.")
ApprovalId = Annotated[str, typer.Argument(metavar="ID", help="The approval's id, or the beginning of it.")]
ForTaskOption = Annotated[
    bool, typer.Option("--for-task", help="From now on, the same call of this task runs without approval.")
]
AnyValueOption = Annotated[
    list[str] | None,
    typer.Option("--any-value", metavar="ARG", help="With --for-task: allow any value of this argument."),
]
_KEYS = ("id", "decision", "message")  # keys of a decision in a JSON list, besides its args
_COLUMNS = columns(
    "ID=interrupt_id ~KIND CHANNEL TASK=task_name ~SINCE=created_at ~EXPIRES=expires_at ~STATUS +THREAD=thread_id "
    "+CATEGORY ASKS",
    interrupt_id=lambda row: str(row["interrupt_id"])[:ID_DIGITS],
    expires_at=lambda row: left(row, SystemClock().now()),
    status=lambda row: str(row["decision"] or row["status"]),
    asks=lambda row: clipped(asked(row), 100),
)


@app.command("list")
@listing(_COLUMNS, "interrupt_id")
def list_(
    channel: Annotated[
        str, typer.Option(help="Show only approvals of this channel.", autocompletion=complete_channel)
    ] = "",
    everything: Annotated[bool, typer.Option("--all", help="Also show decided approvals.")] = False,
    status: terminal.StatusOption = "",
    **page: Any,
) -> Listed:
    """List the approvals that wait for your decision: tool calls that a category does not grant, proposals, questions.

    Example: turnkeeper approvals list
    """
    request = wire.ListInterruptsRequest(channel=channel, all=everything, status=status, **page)
    answer = read(request)
    found = [to_json(one) for one in answer.interrupts]
    pending = [row for row in found if row["status"] == "pending"]
    first = f"answer with: {resolve_command(pending[0])}" if pending else ""
    more = offered("decisions about knowledge", channel) or ""
    footer = "; ".join(filter(None, (first, more))) or "nothing waits for you"
    return Listed(found, footer, answer)


@app.command("show")
def show(approval: ApprovalId, output: OutputOption = Output.TABLE) -> None:
    """Show one approval with its arguments in full.

    Example: turnkeeper approvals show 3f2a9c01
    """
    row = _find(approval, read)
    asks, question, waits = forms.request_in(row), forms.question_of(row), row["status"] == "pending"
    always = ["--approve --for-task"] if forms.can_stand(row) else []
    lines = lines_of(
        row,
        "approval=interrupt_id kind asks options shows arguments missing_scope category task=task_name "
        "turn=turn_id thread=thread_id channel since=created_at expires reminded=reminded_at alerted=escalated_at "
        "status because refused only_once=once_only answer_with to_grant",
        asks=_question(row) if asks is None else texts.request_text(asks),
        options=question.choices,
        shows=json.dumps(question.more, indent=2, ensure_ascii=False) if question.text and question.more else "",
        expires=_end_of(row),
        missing_scope="" if row["kind"] == "proposal" else row["missing_scope"],
        because="" if waits else row["message"],
        arguments=json.dumps(row["args"], indent=2, ensure_ascii=False) if row["tool"] else "",
        status=row["status"] + (f" ({row['decision']})" if row["decision"] else ""),
        refused=row["message"] if waits else "",
        only_once=row["once_only"] if waits and row["task_name"] else "",
        answer_with="\n".join([resolve_command(row), *always, *texts.ways(row)[1:]]) if waits else "",
        to_grant="\n".join(texts.grants(row)) if waits else "",
    )
    show_record(row, output, name_key="interrupt_id", lines=lines)


def _question(row: Row) -> str:
    """Return the question; write a JSON value from the graph as lines."""
    text = str(row["question"]) if row["kind"] == "question" else asked(row)
    value = parsed(text) if row["kind"] == "question" and text.startswith(("{", "[")) else None
    return json.dumps(value, indent=2, ensure_ascii=False) if value else text


def _end_of(row: Row) -> str:
    """Return an approval's expiry time and, while it is pending, the time left; empty if it never expires."""
    at = shown(row["expires_at"]) if row["expires_at"] else ""
    return f"{at} ({left(row, SystemClock().now())})" if at and row["status"] == "pending" else at


@app.command("resolve")
def resolve(
    approval: ApprovalId,
    why: Annotated[str, typer.Argument(metavar="[MSG]", help="With --reject: the reason, which the agent reads.")] = "",
    approve: Annotated[bool, typer.Option(help="Run the call unchanged, once.")] = False,
    reject: Annotated[bool, typer.Option(help="Do not run the call; the turn continues.")] = False,
    edit: Annotated[str | None, typer.Option(metavar="JSON", help="Run the call with these arguments.")] = None,
    respond: Annotated[str | None, typer.Option(metavar="TEXT", help="Use this text as the call's result.")] = None,
    answer: Annotated[
        str | None, typer.Option(metavar="TEXT|JSON", help="Answer a question: an option, or JSON, or text.")
    ] = None,
    call: Annotated[
        list[str] | None,
        typer.Option(
            metavar="'N WAY …'",
            help="Decide the Nth of several calls differently: '2 reject why', '3 edit {…}', '4 respond text'.",
        ),
    ] = None,
    for_task: ForTaskOption = False,
    any_value: AnyValueOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Decide an approval. Approving allows this call with these arguments, once, and grants nothing else.

    A graph may ask about several calls at once: --approve, --reject and --respond decide all, --call decides one.

    Example: turnkeeper approvals resolve 3f2a9c01 --reject "not today"
    """
    if (for_task or any_value) and not approve:
        hint = "add --approve" if answer is None else "omit --for-task: a question is answered each time"
        raise InvalidInput("only --approve can be extended to the task", where="--for-task", hint=hint)
    if any_value and not for_task:
        raise InvalidInput("is valid only with --for-task", where="--any-value")
    if why and not reject:
        raise InvalidInput("only --reject takes a message", where="MSG")
    ways = {"approve": "" if approve else None, "reject": why if reject else None}
    given = _decision(ways | {"edit": edit, "respond": respond, "answer": answer}, call)
    row = _find(approval, change)
    # The service accepts a repeated decision, in case the first answer was lost; for an expired one, it returns advice.
    if row["status"] != "pending" and row["decision"] != EXPIRED:
        what = f"was already decided: {row['decision']}" if row["decision"] else "is void because its turn has ended"
        raise Conflict(f"approval {row['interrupt_id']} {what}", hint="see: turnkeeper approvals list")
    standing: dict[str, Any] = {"for_task": for_task, "any_value": any_value or ()}
    asked_for = _request(row, *(given if not call else _call_by_call(row, given, call)), **standing)
    done = to_json(change(asked_for))
    _refuse_if_refused([done])
    lines = lines_of(done, "approval=interrupt_id decision turn=turn_id")
    show_record(done, output, name_key="interrupt_id", lines=lines)
    if answer is not None:
        read_as = "JSON" if asked_for.args_json else f"“{clipped(done['message'], 60)}”"
        note(f"the answer was read as {read_as}")
    _tell_effects(done, why)


def _tell_effects(done: Row, why: str) -> None:
    if why and done["kind"] == "question" and getattr(forms.request_in(done), "form", "inbox") == "inbox":
        note("this graph does not read reasons of rejections; the reason is only recorded")
    if number := done["exception"]:
        note(f"standing exception {number}: the same call of task {done['task_name']} now runs without approval")
        note(f"end it with: turnkeeper approvals exceptions revoke {number}")
    note(f"the turn continues: turnkeeper turns show {done['turn_id']}")


@app.command("approve")
def approve_(
    approval: ApprovalId,
    for_task: ForTaskOption = False,
    any_value: AnyValueOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Run the call unchanged, once; with --for-task, always, as a standing exception of its task.

    A standing exception allows the same tool with the same arguments, in turns that the task starts. `exceptions list`
    shows it and `exceptions revoke` ends it. It also ends when the task or its category is restricted.

    Example: turnkeeper approvals approve 3f2a9c01 --for-task
    """
    resolve(
        approval, approve=True, edit=None, respond=None, answer=None, call=None,
        for_task=for_task, any_value=any_value, output=output,
    )  # fmt: skip


@app.command("decide")
def decide(
    approve: Annotated[list[str] | None, typer.Option(metavar="ID", help="Run the call unchanged, once.")] = None,
    reject: Annotated[list[str] | None, typer.Option(metavar="'ID why'", help="Do not run the call.")] = None,
    edit: Annotated[
        list[str] | None, typer.Option(metavar="'ID JSON'", help="Run the call with these arguments.")
    ] = None,
    answer: Annotated[list[str] | None, typer.Option(metavar="'ID TEXT|JSON'", help="Answer a question.")] = None,
    decisions: Annotated[
        str,
        typer.Option(
            metavar="JSON|@FILE",
            help="A list of objects with id, decision (approve, reject, edit, answer), message and args.",
        ),
    ] = "",
    for_task: Annotated[bool, typer.Option(hidden=True)] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Decide several approvals at once: all, or none if one decision is not possible. Each turn resumes once.

    Example: turnkeeper approvals decide --approve 3f2a9c01 --reject "77b0e2d4 not today"
    """
    if for_task:
        raise _one_at_a_time()
    given = [
        *((id_, "approve", "", "") for id_ in approve or ()),
        *((id_, "reject", text, "") for id_, text in _parts(reject)),
        *((id_, "edit", "", _object(text, "--edit")) for id_, text in _parts(edit)),
        *((id_, "answer", text, None) for id_, text in _parts(answer)),
        *(_written(one) for one in _listed(decisions)),
    ]
    if not given:
        raise InvalidInput("give a decision: --approve, --reject, --edit, --answer or --decisions")
    found = rows(change, wire.ListInterruptsRequest(all=True))
    requests = [_request(_among(found, id_), way, text, args) for id_, way, text, args in given]
    answered = change(wire.ResolveInterruptsRequest(decisions=requests))
    done = [to_json(one) for one in answered.interrupts]
    _refuse_if_refused(done)
    show_rows(done, _COLUMNS, output, name_key="interrupt_id", footer="all of these are already decided")


def _refuse_if_refused(done: Sequence[Row]) -> None:
    """Raise Conflict if a graph failed on the answer just given, so that its question is pending again."""
    for row in done:
        if row["kind"] == "question" and (error := refused(row)):
            raise Conflict(
                f"the graph failed on this answer: {error}", where=row["interrupt_id"], hint=again(row, error)
            )


def _one_at_a_time() -> InvalidInput:
    what = "a standing exception is given with one approval, never with several decisions"
    return InvalidInput(what, where="--for-task", hint="run: turnkeeper approvals approve ID --for-task")


def _parts(given: list[str] | None) -> Iterator[tuple[str, str]]:
    return ((id_, text.strip()) for id_, _, text in (one.strip().partition(" ") for one in given or ()))


def _listed(text: str) -> list[Any]:
    if not text:
        return []
    if text.startswith("@"):  # the module that reads files imports TOML, which loads slowly
        text = importlib.import_module("turnkeeper.config.toml_file").read_text(Path(text[1:]))
    value = json_text.read_value(text, where="--decisions", longest=LONGEST_ARGS, deepest=DEEPEST_ARGS)
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        hint = 'write for example \'[{"id": "3f2a9c01", "decision": "approve"}]\''
        raise InvalidInput("is not a JSON list of objects", where="--decisions", hint=hint)
    return value


def _written(one: dict[str, Any]) -> tuple[str, str, str, str]:
    if "for_task" in one:
        raise _one_at_a_time()
    said = {"id": "", "decision": "", "message": ""} | {key: one[key] for key in one if key != "args"}
    if odd := [key for key, value in said.items() if not isinstance(value, str) or key not in _KEYS]:
        what = f"{odd[0]!r} is not a string" if odd[0] in _KEYS else f"unknown key {odd[0][:40]!r}"
        raise InvalidInput(what, where="--decisions", hint=f"the keys are {', '.join(_KEYS)}, args")
    args = one.get("args")
    return (*(said[key] for key in _KEYS), "" if args is None else json.dumps(args, ensure_ascii=False))


def _request(row: Row, decision: str, message: str, args_json: str | None, **standing: Any) -> Any:
    if args_json is None:
        message, args_json = _answer(forms.question_of(row), message)
    return wire.ResolveInterruptRequest(
        interrupt_id=row["interrupt_id"],
        decision=decision,
        message=message,
        args_json=args_json,
        args_hash=row["args_hash"],
        **standing,
    )


def _decision(ways: Mapping[str, str | None], calls: list[str] | None) -> tuple[str, str, str | None]:
    """Return the decision for all calls, its message and its JSON. The decision is empty if only --call is given.

    `ways` contains the text of each given option. The JSON is None for --answer, which is parsed later.
    """
    given = [(way, text) for way, text in ways.items() if text is not None]
    if len(given) > 1 or not (given or calls):
        what = "give exactly one of --approve, --reject, --edit, --respond and --answer"
        raise InvalidInput(what, where="decision")
    way, text = given[0] if given else ("", "")
    if way == "edit":
        return way, "", _object(text, "--edit")
    return ("answer", text, "") if way == "respond" else (way, text, None if way == "answer" else "")


def _answer(asks: forms.Question, answer: str) -> tuple[str, str]:
    """Return an answer's text and its JSON. The JSON is empty for an option, for a string and for plain text."""
    if asks.picked(answer) or (asks.is_closed and not answer.lstrip().startswith(("[", "{"))):
        return answer, ""
    try:
        value = json.loads(answer)
    except (ValueError, RecursionError):
        return answer, ""
    return (value, "") if isinstance(value, str) else (answer, answer)


def _call_by_call(row: Row, given: tuple[str, str, str | None], calls: list[str]) -> tuple[str, str, str]:
    """Return the answer with one decision per call: from `--call`, or else the decision `given` for all."""
    asks = forms.request_in(row)
    if asks is None or given[2] or (given[2] is None and _answer(forms.Question(), given[1])[1]):
        raise InvalidInput("decides one of several calls that a graph asks about at once", where="--call")
    ways = {"approve": "approve", "reject": "reject", "answer": "respond"}
    all_ = forms.Choice(way=ways[given[0]], text=given[1]) if given[0] else None
    own = dict(_choice(text, len(asks.calls)) for text in calls)
    found = [own.get(number, all_) for number in range(1, len(asks.calls) + 1)]
    if None in found:
        what = f"call {found.index(None) + 1} is not decided"
        raise InvalidInput(what, where="--call", hint="decide each call, or give --approve or --reject for the others")
    return "answer", "", json.dumps(forms.answer(asks, [one for one in found if one is not None]))


def _choice(text: str, most: int) -> tuple[int, forms.Choice]:
    number, way, said = (*text.split(maxsplit=2), "", "", "")[:3]
    if not (number.isascii() and number.isdigit() and 1 <= int(number[:9]) <= most) or way not in forms.WAYS:
        hint = f"write a number from 1 to {most}, one of {', '.join(forms.WAYS)}, and its text or arguments"
        raise InvalidInput(f"{text[:80]!r} does not decide a call", where="--call", hint=hint)
    if way == "edit":
        return int(number), forms.Choice(way=way, args=json.loads(_object(said, "--call")))
    if way == "approve" and said:
        raise InvalidInput("nothing may follow an approval", where="--call")
    return int(number), forms.Choice(way=way, text=said)


def _object(text: str, where: str) -> str:
    json_text.read_object(text, where=where, longest=LONGEST_ARGS, deepest=DEEPEST_ARGS)
    return text


def _find(given: str, ask: Ask) -> Row:
    return _among(rows(ask, wire.ListInterruptsRequest(all=True)), given)


def _among(found: list[Row], given: str) -> Row:
    waiting = [row for row in found if row["status"] == "pending"]
    among = waiting if any(row["interrupt_id"].startswith(given) for row in waiting) else found
    exact = [row for row in found if row["interrupt_id"] == given]
    return find(exact or among, "interrupt_id", given, "approval")


excepted = App("Standing exceptions: calls of tasks that run without a question.")
app.add_typer(excepted, name="exceptions")
_STAND = "+GIVEN=given_at +BY=given_by +CATEGORY +REVISION=category_revision +NEEDS=missing_scope"
_HOLD, _ALL = (
    columns(f"NO=number TASK=task_name CALL USES {more} {_STAND}", call=lambda row: clipped(_allowed(row), 32))
    for more in ("LAST_USED=last_used_at", "ENDED=ended_why +ENDED_AT=ended_at +LAST_USED=last_used_at")
)


def _allowed(row: Mapping[str, Any]) -> str:
    """Return the allowed call of an exception; arguments that may have any value are shown as a star."""
    parts = (
        f"{name}=*" if name in row["any_value"] else f"{name}={json.dumps(value, ensure_ascii=False)}"
        for name, value in row["args"].items()
    )
    return f"{row['tool']}({', '.join(parts)})"


@excepted.command("list")
@listing(_HOLD, "number")
def list_exceptions(
    task: Annotated[str, typer.Option(help="Show only exceptions of this task.")] = "",
    everything: Annotated[bool, typer.Option("--all", help="Also show ended exceptions, with the reason.")] = False,
) -> Listed:
    """List the calls of tasks that run without approval, newest first: `arg=*` may have any value.

    Example: turnkeeper approvals exceptions list
    """
    found = rows(read, wire.ListExceptionsRequest(all=everything))
    found = [row for row in found if task in {"", row["task_name"], row["task_id"]}]
    live = any(not row["ended_at"] for row in found)
    footer = "end one with: turnkeeper approvals exceptions revoke NO" if live else "there are no standing exceptions"
    return Listed(found, footer, columns=_ALL if everything else _HOLD)


@excepted.command("revoke")
def revoke(
    number: Annotated[int, typer.Argument(metavar="NO", min=1, help="The exception's number, as `list` shows it.")],
    output: OutputOption = Output.TABLE,
) -> None:
    """End a standing exception: later calls need your approval again. Past calls stay on record.

    Example: turnkeeper approvals exceptions revoke 3
    """
    done = to_json(change(wire.RevokeExceptionRequest(number=number)))
    words = "exception=number task=task_name call uses ended=ended_at why=ended_why"
    lines = lines_of(done, words, exception=str(number), call=_allowed(done), uses=str(done["uses"]))
    show_record(done, output, name_key="number", lines=lines)
