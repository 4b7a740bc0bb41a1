"""Standing exceptions: an author's yes to one tool call of one task, from now on. Pure.

An author gives one with the approval of one call, and never for several at once. It holds for that tool, what that call
lacked and its arguments: all of them exactly, but for those that the author named. A call that it allows is still put
to the author as a question, and this question is decided with it at once, so that it is on record as every approval is
and passes the gate as every approval does.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from agent_runtime.model.approval import GUARDED, RaisedInterrupt, canonical, is_earlier
from agent_runtime.model.turn import Category, InterruptRecord, TurnRecord
from agent_runtime.permissions.judge import intersect
from turnkeeper.errors import Conflict, InvalidInput
from turnkeeper.times import rfc3339

MOST_OF_TASK = 100
ALLOWED_BY = "allowed by standing exception "  # begins the message of a decision that came of one
REVOKED = "revoked by its author"


@dataclass(frozen=True, kw_only=True)
class ForTask:
    """What an author asks for beside an approval: that the same call of the task passes from now on.

    Attributes:
        any_value: the arguments whose values do not matter.
        category: the task's category as it is now.
    """

    any_value: tuple[str, ...]
    category: Category


@dataclass(frozen=True, kw_only=True)
class StandingException:
    """One row of the table. Names are those of the columns.

    Attributes:
        interrupt_id: the question with whose approval it was given.
        kind, tool, missing_scope, args_json, args_hash, tool_hash, arg_hashes_json: as in that question.
        any_value_json: a JSON array of the arguments whose values do not matter.
        category_json: what the task's category granted when it was given.
        given_by: by what the decision came.
        uses: how many calls it allowed.
        ended_why: why it holds no more; empty while it holds.
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
        """The arguments whose values do not matter."""
        return tuple(json.loads(self.any_value_json))

    @property
    def category_revision(self) -> str:
        """A name for what the category granted when it was given."""
        return hashlib.sha256(self.category_json.encode()).hexdigest()[:12]


def check_may_give(asked: InterruptRecord, turn: TurnRecord, any_value: tuple[str, ...]) -> None:
    """Raise InvalidInput or Conflict unless the approval of this question may hold for its task from now on."""
    if asked.kind not in GUARDED:
        raise InvalidInput(f"a {asked.kind} is answered each time it is asked", where="for_task")
    if asked.once_only:
        what = f"this call can only be approved once: {asked.once_only}"
        raise InvalidInput(what, where="for_task", hint="approve it without --for-task")
    if not turn.fire_id or not turn.task_id:
        raise InvalidInput("no task began this turn, so there is none to make an exception for", where="for_task")
    if asked.status != "pending" and not asked.exception:
        what = f"was decided before: {asked.decision or asked.status}"
        hint = "a standing exception is given with the decision: wait until the call is asked about again"
        raise Conflict(f"approval {asked.interrupt_id} {what}", where="for_task", hint=hint)
    known = json.loads(asked.args_json or "{}")
    for name in any_value:
        if name not in known:
            hint = f"its arguments are {', '.join(known)}" if known else "it has no arguments"
            raise InvalidInput(f"the call has no argument {name[:60]!r}", where="any_value", hint=hint)


def allows(exception: StandingException, asked: RaisedInterrupt) -> bool:
    """Return whether a question is about a call that its author allowed in advance.

    What the call lacks counts as a whole: where an argument's value does not matter and decides what is lacking, such
    as the host of an address, only calls that lack the same are allowed.
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
    """Return whether an exception allows just what one would that is given with a question."""
    same = (exception.kind, exception.args_hash) == (asked.kind, asked.args_hash)
    return same and exception.any_value == tuple(sorted(wanted.any_value))


def is_other_code(exception: StandingException, asked: RaisedInterrupt) -> bool:
    """Return whether a tool of the same name and scope runs other code or holds other values by now."""
    same = (asked.tool, asked.missing_scope, asked.kind) == (exception.tool, exception.missing_scope, exception.kind)
    return same and bool(asked.tool_hash) and asked.tool_hash != exception.tool_hash


def why_other_tool(exception: StandingException) -> str:
    """Return why an exception ended whose tool has another digest now."""
    if is_earlier(exception.tool_hash):
        return f"an earlier version made it, which did not record what the tool {exception.tool} holds"
    return f"the tool {exception.tool} runs other code or holds other values now"


@dataclass(frozen=True, kw_only=True)
class TaskNow:
    """What the task runner says of a task at this moment."""

    state: str
    category: str
    read_only: bool


def ended_why(exception: StandingException, task: TaskNow | None, category: Category | None) -> str:
    """Return why an exception holds no more; empty where it holds.

    Args:
        exception: one that held until now.
        task: its task; None where the task runner cannot be asked.
        category: the category that it was given under, as it is now; None where there is none any more.
    """
    if task is not None and task.state == "deleted":
        return "its task was deleted"
    if task is not None and task.category != exception.category:
        return f"its task's category is {task.category} now"
    if task is not None and task.read_only:
        return "its task only reads now"
    if category is None:
        return f"category {exception.category} is gone"
    then = Category.from_dict(json.loads(exception.category_json))
    return f"category {exception.category} was narrowed" if intersect(then, category) != then else ""


def too_late(exception: StandingException) -> str:
    """Return when and why an exception ended."""
    at = rfc3339(exception.ended_at.replace(microsecond=0)) if exception.ended_at else ""
    return f"it ended at {at}: {exception.ended_why}"


def frozen(category: Category) -> str:
    """Return what a category grants, as a row keeps it."""
    return canonical(category.to_dict())


def row_of(asked: InterruptRecord, turn: TurnRecord, wanted: ForTask) -> dict[str, Any]:
    """Return the columns of an exception that come from the question, its turn and what the author asked for."""
    names = ("interrupt_id", "kind", "tool", "missing_scope", "args_json", "args_hash", "tool_hash", "arg_hashes_json")
    return {
        **{name: getattr(asked, name) for name in names},
        "task_id": turn.task_id,
        "task_name": turn.task_name,
        "any_value_json": canonical(sorted(wanted.any_value)),
        "category": turn.category,
        "category_json": frozen(wanted.category),
    }
