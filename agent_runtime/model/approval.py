"""Interrupts: what a graph asks an author, what the author decides, and what the graph is resumed with. Pure.

The guard raises an interrupt whose value :func:`ask` builds, and records it; the runtime keeps it as a
:class:`RaisedInterrupt`. The author's decision returns to the graph as the value that :func:`resume_value` builds, and
the guard checks it with :func:`answers_call`. Any other interrupt is a question of the graph's own, whatever its value
looks like: its answer is text, JSON, True or False, or has the form that the question has (:mod:`.forms`).
"""

import base64
import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Literal

from agent_runtime.model import forms
from agent_runtime.model.trigger import Trigger
from agent_runtime.model.turn import InterruptRecord, TurnRecord
from turnkeeper.config import json_text
from turnkeeper.errors import Conflict, InvalidInput
from turnkeeper.times import format_duration, rfc3339
from turnkeeper.v1 import agent_runtime_pb2 as wire

Kind = Literal["permission", "proposal", "question", "pause"]
EXPIRED = "expired"  # in place of a decision: nobody made one in time
UNANSWERED = "its approval expired"  # begins what is reported of a turn whose approval did; the runner knows it
DECISIONS = frozenset({"approve", "reject", "edit", "answer", EXPIRED})
LONGEST_PAUSE_S = 86_400
GUARDED = frozenset({"permission", "proposal"})
_VERSION = "3."  # begins each binding and each digest of a tool; those of earlier versions fit no call
ASKED_BEFORE = "an earlier version asked about it"
APPROVED_WITH = "approved with "  # begins the message of an approval that came of a question of the graph's own
LONGEST_TEXT = 256 << 10  # bytes
LONGEST_ARGS = 4 << 20  # bytes
DEEPEST_ARGS = 100
_DECISIONS_ON: dict[str, tuple[str, ...]] = {
    "permission": ("approve", "reject", "edit"),
    "proposal": ("approve", "reject", "edit"),
    "question": ("approve", "reject", "edit", "answer"),
}


@dataclass(frozen=True, kw_only=True)
class RaisedInterrupt:
    """An interrupt, read.

    Attributes:
        interrupt_id: LangGraph's id.
        kind: what is asked: permission for a call, a proposal to go on, a question, or nothing: a bounded pause.
        missing_scope: what would have to be granted.
        allows_text: an ordinary message may answer it.
        timeout_s: of a bounded pause.
        args: of a call; of a question in a form that graphs share, what it asks about (:mod:`.forms`).
        told: of a call, whether its tool's name and its arguments, as they are shown, tell all that is asked for.
        tool_hash: of a call, a digest of its tool's name, scope and code; empty where an earlier version asked.
        arg_hashes: likewise a digest of each argument's content, by name.
        once_only: likewise why an approval of it can only be for this one call; empty where it can be for its task.
    """

    interrupt_id: str
    kind: Kind
    tool: str = ""
    args: Mapping[str, Any] | None = None
    args_hash: str = ""
    call_id: str = ""
    missing_scope: str = ""
    question: str = ""
    allows_text: bool = False
    timeout_s: int = 0
    told: bool = False
    tool_hash: str = ""
    arg_hashes: Mapping[str, str] = field(default_factory=dict)
    once_only: str = ""


@dataclass(frozen=True, kw_only=True)
class AuthorDecision:
    """An author's decision about one interrupt.

    Attributes:
        decision: approve, reject, edit or answer.
        message: why it was rejected, or the answer's text.
        args: the arguments to run with instead; of an answer, its JSON; None for none.
    """

    decision: str
    message: str = ""
    args: Any = None


def canonical(value: object) -> str:
    """Return the one JSON text of a value: sorted keys, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)


@dataclass(frozen=True, kw_only=True)
class AskedCall:
    """A tool call as it is put to the author: all that an approval is bound to.

    Attributes:
        tool: the name that it was called by.
        scope: what a category would grant it by.
        code: a digest of what the tool runs and holds; of a tool of ours, where its code is.
        call_id: equal whenever the graph makes this call again.
        shown: its arguments as the author reads them.
        content: a digest of what its arguments hold.
        plain: the arguments are JSON as it stands, of which an earlier version knew the content too.
        lacking: everything that it needs and the turn was not granted.
        missing_scope: the first of these, or the scope.
        told: name and arguments tell all: no other tool has the name, and nothing but its grant is lacking.
        arg_hashes: a digest of each argument's content, by name.
        once_only: why an approval can only be for this one call; empty where it can be for the task.
    """

    tool: str
    scope: str
    code: str
    call_id: str
    shown: Mapping[str, Any]
    content: str
    plain: bool
    lacking: tuple[str, ...] = ()
    missing_scope: str = ""
    told: bool = False
    arg_hashes: Mapping[str, str] = field(default_factory=dict)
    once_only: str = ""

    @property
    def tool_hash(self) -> str:
        """What tells the tool from every other one."""
        return tool_hash(self.tool, self.scope, self.code)

    @property
    def key(self) -> str:
        """What the call is known by in its turn: some servers number the calls of each message from one."""
        return f"{self.call_id}:{self._binding}"

    @property
    def args_hash(self) -> str:
        """What the author decides on: the call, and what it lacks. At most 64 characters."""
        return f"{self._binding}.{_digest(self.lacking)[:16]}"

    @property
    def _binding(self) -> str:
        return _VERSION + _digest([self.tool, self.scope, self.code, self.content])

    def was_asked(self, keys: Collection[str]) -> bool:
        """Return whether this call is among those whose keys (:func:`call_key`) these are."""
        return self.key in keys


def tool_hash(tool: str, scope: str, code: str) -> str:
    """Return a digest of a tool's name, scope and code."""
    return _VERSION + _digest([tool, scope, code])


def call_key(asked: InterruptRecord | RaisedInterrupt) -> str:
    """Return the key of the call that was put to the author; what is lacking is no part of it."""
    if asked.args_hash.startswith(_VERSION):
        return f"{asked.call_id}:{asked.args_hash.rpartition('.')[0]}"
    return f"{asked.call_id}:{asked.tool}:{asked.args_hash}"


def _digest(value: object) -> str:
    raw = hashlib.sha256(canonical(value).encode("utf-8", "surrogatepass")).digest()
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def ask(kind: Literal["permission", "proposal"], call: AskedCall, why: str) -> dict[str, Any]:
    """Return the value of a guard's interrupt: JSON, as a checkpoint can hold it."""
    return {
        "kind": kind,
        "tool": call.tool,
        "args": dict(call.shown),
        "args_hash": call.args_hash,
        "call_id": call.call_id,
        "scope": call.missing_scope,
        "why": why,
        "told": call.told,
        "tool_hash": call.tool_hash,
        "arg_hashes": dict(call.arg_hashes),
        "once_only": call.once_only,
    }


def read_interrupt(
    interrupt_id: str, value: object, recorded: object = None, asks: forms.Request | None = None
) -> RaisedInterrupt:
    """Read an interrupt's value.

    Args:
        interrupt_id: LangGraph's id.
        value: what was asked, by whoever asked it.
        recorded: what the guard recorded that it asked under this id; None for nothing. Only this makes a question one
            of the guard's: the value may come from a model.
        asks: the calls that it asks about, where it has a form that graphs share.
    """
    said = value if isinstance(value, dict) else {}
    if recorded is not None and said == recorded:
        return RaisedInterrupt(
            interrupt_id=interrupt_id,
            kind=said["kind"],
            tool=said["tool"],
            args=said["args"],
            args_hash=said["args_hash"],
            call_id=said["call_id"],
            missing_scope=said["scope"],
            question=said["why"],
            told=said.get("told") is True,
            tool_hash=said.get("tool_hash", ""),
            arg_hashes=said.get("arg_hashes", {}),
            once_only=said.get("once_only", ASKED_BEFORE),
        )
    if said.get("resume_on") == "trigger":
        return RaisedInterrupt(interrupt_id=interrupt_id, kind="pause", timeout_s=_pause_s(said.get("timeout_s")))
    if asks is not None:
        about = canonical(asks.to_dict())
        return RaisedInterrupt(
            interrupt_id=interrupt_id,
            kind="question",
            args=asks.to_dict(),
            args_hash=_digest(about),
            question=", ".join(call.tool for call in asks.calls),
            allows_text=len(asks.calls) == 1 and "respond" in asks.calls[0].takes,
        )
    plain = forms.Question(value=json.loads(canonical(value)))
    return RaisedInterrupt(
        interrupt_id=interrupt_id,
        kind="question",
        args=plain.to_dict(),
        question=plain.text or canonical(said.get("question") or said.get("q") or value),
        allows_text=said.get("allows_text") is not False,
    )


def answer_to(asked: InterruptRecord | RaisedInterrupt, thread_id: str, decided: AuthorDecision) -> object:
    """Return the value that an interrupt is resumed with."""
    if asked.kind in GUARDED:
        return {
            "decision": decided.decision,
            "message": decided.message,
            "args": decided.args,
            "args_hash": asked.args_hash,
            "call_id": asked.call_id,
            "thread_id": thread_id,
            "tool": asked.tool,
            "kind": asked.kind,
            "scope": asked.missing_scope,
        }
    if decided.decision == "answer" and decided.args is not None:
        return decided.args
    asks = request_of(asked)
    if asks is not None and (decided.decision != EXPIRED or all("reject" in call.takes for call in asks.calls)):
        return forms.answer(asks, [_choice(decided)] * len(asks.calls))
    if decided.decision == "answer":
        return next(iter(question_of(asked).picked(decided.message)), decided.message)
    # True or False alone: a graph that tests `if interrupt(…)` takes any object for a yes, whatever is in it.
    return (decided.args or {}) if decided.decision == "edit" else decided.decision == "approve"


def request_of(asked: InterruptRecord | RaisedInterrupt) -> forms.Request | None:
    """Return the calls that a question of the graph's own asks about; None where it has no form that we know."""
    if asked.kind != "question":
        return None
    if isinstance(asked, RaisedInterrupt):
        return forms.from_dict(asked.args)
    return forms.from_dict(json.loads(asked.args_json)) if asked.args_json else None


def question_of(asked: InterruptRecord | RaisedInterrupt) -> forms.Question:
    """Return a question as it stands; one without a value for anything else, and for what an earlier version asked."""
    if asked.kind != "question":
        return forms.Question()
    if isinstance(asked, RaisedInterrupt):
        return forms.question_in(asked.args)
    return forms.question_in(json.loads(asked.args_json) if asked.args_json else None)


def _choice(decided: AuthorDecision) -> forms.Choice:
    """Return what one decision about all calls of a request says about each."""
    way = {"answer": "respond", EXPIRED: "reject"}.get(decided.decision, decided.decision)
    return forms.Choice(way=way, text=decided.message, args=decided.args)


def answers_call(answer: object, call: AskedCall, thread_id: str) -> bool:
    """Return whether an answer is the author's, about exactly this call: tool, scope, arguments, id and thread."""
    if not isinstance(answer, dict) or answer.get("decision") not in DECISIONS:
        return False
    if (answer.get("call_id"), answer.get("thread_id"), answer.get("tool")) != (call.call_id, thread_id, call.tool):
        return False
    about = str(answer.get("args_hash"))
    return about.startswith(_VERSION) and about.rpartition(".")[0] == call.args_hash.rpartition(".")[0]


def why_not_bound(answer: object, call: AskedCall) -> str:
    """Return why the author's yes about a call of this tool and id does not cover it; empty for any other answer."""
    if not isinstance(answer, dict) or answer.get("decision") not in {"approve", "edit"}:
        return ""
    if (answer.get("call_id"), answer.get("tool")) != (call.call_id, call.tool):
        return ""
    if not str(answer.get("args_hash")).startswith(_VERSION):
        return "an earlier version asked, which did not record what the tool holds"
    return "its tool or its arguments have changed since"


def is_earlier(tool_hash: str) -> bool:
    """Return whether an earlier version made a digest of a tool."""
    return not tool_hash.startswith(_VERSION)


def covers(answer: Mapping[str, Any], call: AskedCall) -> bool:
    """Return whether a yes about this call is a yes to all that it lacks now: its category may have been narrowed."""
    return not call.lacking or answer.get("args_hash") == call.args_hash


def approved_before(asked: Iterable[InterruptRecord], call: RaisedInterrupt) -> str:
    """Return what names the author's approval of exactly this call in a question of the graph's own; empty for none.

    Each approval is good for one call: one that a call was approved with before is none any more.

    Args:
        asked: what the turn asked so far.
        call: what the guard asks.
    """
    records = list(asked)
    used = {one.message for one in records if one.kind in GUARDED and one.decision}
    for one in records:
        asks = request_of(one)
        if asks is None or one.status != "resolved" or one.decision in {"reject", EXPIRED}:
            continue
        approved = forms.approved(asks, forms.choices_in(asks, resume_value(one)))
        for number, own in enumerate(approved, 1):
            mark = f"{APPROVED_WITH}{one.interrupt_id}, call {number}"
            same = (own.tool, canonical(own.args)) == (call.tool, canonical(call.args))
            known = own.call_id in ("", call.call_id) and own.tool_hash in ("", call.tool_hash)
            if same and known and mark not in used:
                return mark
    return ""


def _pause_s(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= LONGEST_PAUSE_S:
        return LONGEST_PAUSE_S
    return max(1, int(value))


def read_decision(request: wire.ResolveInterruptRequest, asked: InterruptRecord) -> AuthorDecision:
    """Return the decision. Raises InvalidInput if it does not fit what was asked."""
    takes = _DECISIONS_ON[asked.kind]
    if request.decision not in takes:
        what = f"{request.decision[:40]!r} does not decide a {asked.kind}"
        raise InvalidInput(what, where="decision", hint=f"one of {', '.join(takes)}")
    if len(request.message.encode()) > LONGEST_TEXT:
        raise InvalidInput(f"is longer than {LONGEST_TEXT} bytes", where="message")
    if request.decision == "answer" and not (request.message or request.args_json):
        raise InvalidInput("an answer needs its text", where="message")
    if request.args_json and request.decision not in {"edit", "answer"}:
        raise InvalidInput("only an edit takes arguments, and an answer JSON", where="args_json")
    decided = AuthorDecision(
        decision=request.decision, message=request.message or request.args_json, args=_given(request)
    )
    if request.decision == "edit":
        decided = replace(decided, message=request.message)
    _check_fits(asked, decided)
    if not request.args_hash and request_of(asked) is not None:  # the decision may count for the guard
        raise InvalidInput("which calls were shown is not said", where="args_hash", hint="give that of the question")
    return decided


def _given(request: wire.ResolveInterruptRequest) -> Any:
    """Return the arguments of an edit, or the JSON of an answer that is more than text."""
    if request.decision == "edit":
        return json_text.read_object(request.args_json, where="args_json", longest=LONGEST_ARGS, deepest=DEEPEST_ARGS)
    if not request.args_json:
        return None
    value = json_text.read_value(request.args_json, where="args_json", longest=LONGEST_ARGS, deepest=DEEPEST_ARGS)
    if value is None:
        raise InvalidInput("null answers nothing", where="args_json")
    return value


def _check_fits(asked: InterruptRecord, decided: AuthorDecision) -> None:
    """Raise InvalidInput unless a graph that asks this way can take the decision."""
    if asked.kind in GUARDED:
        return
    if isinstance(decided.args, dict) and {"decision", "args_hash"} <= set(decided.args):
        what = "looks like the answer to a tool call, and this is a question of the graph"
        raise InvalidInput(what, where="args_json", hint="leave out decision or args_hash")
    asks = request_of(asked)
    if asks is None:
        return
    if decided.decision == "answer" and decided.args is not None:
        forms.choices_in(asks, decided.args)
    elif decided.decision == "edit" and len(asks.calls) > 1:
        raise InvalidInput("the graph asks about several calls; say which one is edited", where="args_json")
    else:
        answer_to(asked, asked.thread_id, decided)


def recorded_decision(item: InterruptRecord) -> AuthorDecision:
    """Return what the author decided, as it is on record."""
    args = json.loads(item.edited_json) if item.edited_json else None
    return AuthorDecision(decision=item.decision, message=item.message, args=args)


def resume_value(item: InterruptRecord) -> object:
    """Return what the graph is given for a decision that is on record."""
    return answer_to(item, item.thread_id, recorded_decision(item))


@dataclass(frozen=True, kw_only=True)
class Waits:
    """How long an approval waits for its author, in seconds from when it was asked; 0 for no end.

    Attributes:
        reminder_s: until the author is reminded of it, once.
        escalation_s: until an alert is raised about it, once.
        timeout_s: until it ends unanswered.
    """

    reminder_s: float = 0
    escalation_s: float = 0
    timeout_s: float = 0

    def from_time(self, asked_at: datetime) -> dict[str, datetime]:
        """Return the instants that are set, by the names of an interrupt's fields."""
        after = {"remind_at": self.reminder_s, "escalate_at": self.escalation_s, "expires_at": self.timeout_s}
        return {name: asked_at + timedelta(seconds=wait_s) for name, wait_s in after.items() if wait_s}


FOR_EVER = Waits()


def waits_of(turn: TurnRecord, without_task: Waits) -> Waits:
    """Return how long a turn's approvals wait: as its task says, or as the settings say of a turn that has none."""
    if turn.task_id:
        own = turn.approval_reminder_s, turn.approval_escalation_s, turn.approval_timeout_s
        return Waits(reminder_s=own[0], escalation_s=own[1], timeout_s=own[2])
    return without_task


def expired(asked: InterruptRecord) -> AuthorDecision:
    """Return what stands in place of a decision about an approval that nobody answered in time."""
    assert asked.expires_at is not None, "only what has an end expires"
    within = format_duration(asked.expires_at - asked.created_at)
    return AuthorDecision(decision=EXPIRED, message=f"nobody answered within {within}")


def too_late(asked: InterruptRecord) -> Conflict:
    """Return what an author is told whose answer came too late."""
    at = f" at {rfc3339(asked.resolved_at.replace(microsecond=0))}" if asked.resolved_at else ""
    what = f"approval {asked.interrupt_id} expired{at}: {asked.message}; its call was refused, and its turn went on"
    again = (
        f"run the task again: turnkeeper task run {asked.task_name}" if asked.task_name else "write to the agent again"
    )
    return Conflict(what, where="interrupt_id", hint=again)


def pause_value(trigger: Trigger) -> dict[str, Any]:
    """Return what a bounded pause is resumed with."""
    return {
        "prompt": trigger.prompt,
        "payload": trigger.payload_json,
        "fire_id": trigger.fire_id,
        "nominal_at": trigger.to_meta()["nominal_at"],
    }
