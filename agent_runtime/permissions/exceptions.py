"""Standing exceptions: an author's approval of one tool call of a task, and of later calls like it. Pure.

An author gives a standing exception with the approval of one call, never for several calls at once. It covers the same
tool, the same missing scopes and exactly the same arguments, except arguments that the author excluded. A covered call
is still stored as a question, which is approved at once. So it is on record and passes the gate like any approved call.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from agent_runtime.model.approval import GUARDED, RaisedInterrupt, is_earlier
from agent_runtime.model.mapping import canonical
from agent_runtime.model.turn import Category, InterruptRecord, TurnRecord
from agent_runtime.permissions.judge import intersect
from turnkeeper.errors import Conflict, InvalidInput
from turnkeeper.times import rfc3339

MOST_OF_TASK = 100
ALLOWED_BY = "allowed by standing exception "  # start of the message of such a decision
REVOKED = "revoked by its author"


@dataclass(frozen=True, kw_only=True)
class ForTask:
    """A request to approve the same call of a task permanently, together with an approval.

    Attributes:
        any_value: the arguments that may have any value.
    """

    any_value: tuple[str, ...]
    category: Category


@dataclass(frozen=True, kw_only=True)
class StandingException:
    """One row of the table. The attributes are named after the columns.

    Attributes:
        interrupt_id: the question that was approved together with the exception.
        kind, tool, missing_scope, args_json, args_hash, tool_hash, arg_hashes_json: copied from the question.
        any_value_json: a JSON array of the arguments that may have any value.
        category_json: the task's category at that time.
        given_by: the client that sent the decision.
        uses: the number of calls that the exception allowed.
        ended_why: the reason why the exception ended; empty while it is valid.
    """

    number: int
    interrupt_id: str
    task_id: str
    task_name: str
    kind: str
    tool: str
    missing_scope: str
    args_json: str
    args_hash: str
    tool_hash: str
    arg_hashes_json: str
    any_value_json: str
    category: str
    category_json: str
    given_by: str
    given_at: datetime
    uses: int
    last_used_at: datetime | None
    ended_at: datetime | None
    ended_by: str
    ended_why: str

    @property
    def any_value(self) -> tuple[str, ...]:
        """The arguments that may have any value."""
        return tuple(json.loads(self.any_value_json))

    @property
    def category_revision(self) -> str:
        """A short hash of the category when the exception was given."""
        return hashlib.sha256(self.category_json.encode()).hexdigest()[:12]


def check_may_give(asked: InterruptRecord, turn: TurnRecord, any_value: tuple[str, ...]) -> None:
    """Raise InvalidInput or Conflict unless a standing exception may be given for this question."""
    if asked.kind not in GUARDED:
        what = f"a {asked.kind} needs an answer each time"
        raise InvalidInput(what, where="for_task", hint="answer it without --for-task")
    if asked.once_only:
        what = f"this call can only be approved once: {asked.once_only}"
        raise InvalidInput(what, where="for_task", hint="approve it without --for-task")
    if not turn.fire_id or not turn.task_id:
        raise InvalidInput("no task started this turn; only tasks can have standing exceptions", where="for_task")
    if asked.status != "pending" and not asked.exception:
        what = f"was already decided: {asked.decision or asked.status}"
        hint = "a standing exception is given together with a decision: wait for the next question about this call"
        raise Conflict(f"approval {asked.interrupt_id} {what}", where="for_task", hint=hint)
    known = json.loads(asked.args_json or "{}")
    for name in any_value:
        if name not in known:
            hint = f"its arguments are {', '.join(known)}" if known else "it has no arguments"
            raise InvalidInput(f"the call has no argument {name[:60]!r}", where="any_value", hint=hint)


def allows(exception: StandingException, asked: RaisedInterrupt) -> bool:
    """Return whether an exception covers the call of a question.

    The missing scopes are compared as a whole. If an argument with any value determines the missing scope, such as the
    host of an address, the exception covers only calls with the same missing scope.
    """
    if asked.kind not in GUARDED or asked.kind != exception.kind or asked.once_only or not asked.tool_hash:
        return False
    if asked.args_hash == exception.args_hash:
        return True
    any_value, then = exception.any_value, json.loads(exception.arg_hashes_json)
    same_lack = asked.args_hash.rpartition(".")[2] == exception.args_hash.rpartition(".")[2]
    if not any_value or not same_lack or asked.tool_hash != exception.tool_hash:
        return False
    return _without(asked.arg_hashes, any_value) == _without(then, any_value)


def _without(hashes: Mapping[str, str], any_value: tuple[str, ...]) -> dict[str, str]:
    return {name: "" if name in any_value else digest for name, digest in hashes.items()}


def is_same(exception: StandingException, asked: InterruptRecord, wanted: ForTask) -> bool:
    same = (exception.kind, exception.args_hash) == (asked.kind, asked.args_hash)
    return same and exception.any_value == tuple(sorted(wanted.any_value))


def is_other_code(exception: StandingException, asked: RaisedInterrupt) -> bool:
    """Return whether a tool of the same name and scope now has different code or values."""
    same = (asked.tool, asked.missing_scope, asked.kind) == (exception.tool, exception.missing_scope, exception.kind)
    return same and bool(asked.tool_hash) and asked.tool_hash != exception.tool_hash


def why_other_tool(exception: StandingException) -> str:
    """Return why an exception ended after its tool's digest changed."""
    if is_earlier(exception.tool_hash):
        return f"an earlier version made it, and that version did not record the values of the tool {exception.tool}"
    return f"the tool {exception.tool} now has other code or other values"


@dataclass(frozen=True, kw_only=True)
class TaskNow:
    """The current state of a task, as its task runner reports it."""

    state: str
    category: str
    read_only: bool


def ended_why(exception: StandingException, task: TaskNow | None, category: Category | None) -> str:
    """Return why an exception is no longer valid; empty if it is valid.

    Args:
        task: the exception's task; None if the task runner did not answer.
        category: the current category of that name; None if it was deleted.
    """
    if task is not None and task.state == "deleted":
        return "its task was deleted"
    if task is not None and task.category != exception.category:
        return f"its task's category is {task.category} now"
    if task is not None and task.read_only:
        return "its task is now read-only"
    if category is None:
        return f"category {exception.category} was deleted"
    then = Category.from_dict(json.loads(exception.category_json))
    return f"category {exception.category} was narrowed" if intersect(then, category) != then else ""


def too_late(exception: StandingException) -> str:
    """Return when and why an exception ended."""
    at = rfc3339(exception.ended_at.replace(microsecond=0)) if exception.ended_at else ""
    return f"it ended at {at}: {exception.ended_why}"


def frozen(category: Category) -> str:
    return canonical(category.to_dict())


def row_of(asked: InterruptRecord, turn: TurnRecord, wanted: ForTask) -> dict[str, Any]:
    """Return the columns of an exception that come from the question, its turn and the author's request."""
    names = ("interrupt_id", "kind", "tool", "missing_scope", "args_json", "args_hash", "tool_hash", "arg_hashes_json")
    return {
        **{name: getattr(asked, name) for name in names},
        "task_id": turn.task_id,
        "task_name": turn.task_name,
        "any_value_json": canonical(sorted(wanted.any_value)),
        "category": turn.category,
        "category_json": frozen(wanted.category),
    }
