"""Interrupts: a graph's question, the author's decision, and the value that resumes the graph. Pure.

The guard raises an interrupt with a value from :func:`ask`, and records it; the runtime stores it as a
:class:`RaisedInterrupt`. Then :func:`resume_value` turns the author's decision into the value that resumes the graph,
and the guard checks this value with :func:`answers_call`. Any other interrupt is a question that the graph itself asks,
whatever its value looks like. Its answer is text, JSON, a Boolean or a value in the question's form (:mod:`.forms`).
"""

import base64
import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Literal

from agent_runtime.model.mapping import canonical
from agent_runtime.model.trigger import Trigger
from agent_runtime.model.turn import InterruptRecord, TurnRecord
from turnkeeper.config import json_text
from turnkeeper.errors import Conflict, InvalidInput
from turnkeeper.rpc import forms
from turnkeeper.times import format_duration, rfc3339
from turnkeeper.v1 import agent_runtime_pb2 as wire

Kind = Literal["permission", "proposal", "question", "pause"]
EXPIRED = "expired"  # stored as the decision if the author did not decide in time
UNANSWERED = "its approval expired"  # start of the error of a turn whose approval expired; the runner parses it
REFUSED = "its approval was rejected"  # start of the error if the author rejected a call; the runner parses it
DECISIONS = frozenset({"approve", "reject", "edit", "answer", EXPIRED})
LONGEST_PAUSE_S = 86_400
Guarded = Literal["permission", "proposal"]
GUARDED = frozenset({"permission", "proposal"})
_VERSION = "3."  # prefix of each binding and each tool digest; digests of earlier versions match no call
ASKED_BEFORE = "an earlier version asked about the call"
APPROVED_WITH = "approved with "  # start of the message of an approval that comes from a graph's own question
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
    """A parsed interrupt.

    Attributes:
        interrupt_id: LangGraph's id.
        kind: permission for a call, a proposal to continue, a question, or a bounded pause, which asks no question.
        allows_text: True if an ordinary message may answer the interrupt.
        timeout_s: the limit of a bounded pause.
        args: the arguments of a call, or the calls that a question in a shared form is about (:mod:`.forms`).
        told: for a call, True if the tool's name and the shown arguments are complete.
        tool_hash: for a call, a digest of its tool's name, scope and code; empty if an earlier version asked.
        arg_hashes: for a call, a digest of each argument's content, by name.
        once_only: why an approval covers only this one call; empty if a standing exception is possible.
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
        message: the reason of a rejection, or the text of an answer.
        args: the new arguments of an edit, or the JSON of an answer; None for any other decision.
    """

    decision: str
    message: str = ""
    args: Any = None


@dataclass(frozen=True, kw_only=True)
class AskedCall:
    """A tool call as shown to the author. An approval is bound to all of these values.

    Attributes:
        scope: the scope that a category would have to grant.
        code: a digest of the tool's code and values; for a built-in tool, the location of its code.
        call_id: an id that stays the same whenever the graph makes this call again.
        plain: True if the arguments are plain JSON, whose digest earlier versions recorded too.
        lacking: all grants that the call needs and the turn does not have.
        told: True if name and arguments are complete: the tool's name is unique, and only its grant is missing.
        once_only: why an approval covers this one call only; empty if a standing exception is possible.
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
        return tool_hash(self.tool, self.scope, self.code)

    @property
    def key(self) -> str:
        """The key of the call in its turn. An id may repeat: some servers number the calls of each message from one."""
        return f"{self.call_id}:{self._binding}"

    @property
    def args_hash(self) -> str:
        """A digest of what the author decides on: the call and its missing grants. At most 64 characters."""
        return f"{self._binding}.{_digest(self.lacking)[:16]}"

    @property
    def _binding(self) -> str:
        return _VERSION + _digest([self.tool, self.scope, self.code, self.content])

    def was_asked(self, keys: Collection[str]) -> bool:
        """Return whether this call's key (:func:`call_key`) is among `keys`."""
        return self.key in keys


def tool_hash(tool: str, scope: str, code: str) -> str:
    return _VERSION + _digest([tool, scope, code])


def call_key(asked: InterruptRecord | RaisedInterrupt) -> str:
    """Return the key of a call that was shown to the author; the key does not include the missing grants."""
    if asked.args_hash.startswith(_VERSION):
        return f"{asked.call_id}:{asked.args_hash.rpartition('.')[0]}"
    return f"{asked.call_id}:{asked.tool}:{asked.args_hash}"


def _digest(value: object) -> str:
    raw = hashlib.sha256(canonical(value).encode("utf-8", "surrogatepass")).digest()
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def ask(kind: Guarded, call: AskedCall, why: str) -> dict[str, Any]:
    """Return the value of a guard's interrupt, as JSON for the checkpoint."""
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
        recorded: the guard's record for this id; None for no record. Only this record proves that the guard asked,
            because a model can write any value.
        asks: the calls that the question is about, if it has a shared form.
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
    asks = forms.request_in(asked)
    if asks is not None and (decided.decision != EXPIRED or all("reject" in call.takes for call in asks.calls)):
        return forms.answer(asks, [_choice(decided)] * len(asks.calls))
    if decided.decision == "edit":
        return decided.args or {}
    said = decided.message if decided.decision == "answer" else decided.decision
    if picked := forms.question_of(asked).picked(said):
        return picked[0]
    # A graph may test `if interrupt(…)`, and any object would count as a yes, so return True or False.
    return said if decided.decision == "answer" else decided.decision == "approve"


def _choice(decided: AuthorDecision) -> forms.Choice:
    """Return one decision about all calls as the choices for the single calls."""
    way = {"answer": "respond", EXPIRED: "reject"}.get(decided.decision, decided.decision)
    return forms.Choice(way=way, text=decided.message, args=decided.args)


def answers_call(answer: object, call: AskedCall, thread_id: str) -> bool:
    """Return whether an answer is the author's answer to this call: same tool, scope, arguments, id and thread."""
    if not isinstance(answer, dict) or answer.get("decision") not in DECISIONS:
        return False
    if (answer.get("call_id"), answer.get("thread_id"), answer.get("tool")) != (call.call_id, thread_id, call.tool):
        return False
    about = str(answer.get("args_hash"))
    return about.startswith(_VERSION) and about.rpartition(".")[0] == call.args_hash.rpartition(".")[0]


def why_not_bound(answer: object, call: AskedCall) -> str:
    """Return why an author's approval for this tool and id does not cover the call; empty for any other answer."""
    if not isinstance(answer, dict) or answer.get("decision") not in {"approve", "edit"}:
        return ""
    if (answer.get("call_id"), answer.get("tool")) != (call.call_id, call.tool):
        return ""
    if not str(answer.get("args_hash")).startswith(_VERSION):
        return "an earlier version asked, which did not record the tool's values"
    return "its tool or its arguments have changed since"


def is_earlier(tool_hash: str) -> bool:
    """Return whether a tool digest comes from an earlier version."""
    return not tool_hash.startswith(_VERSION)


def covers(answer: Mapping[str, Any], call: AskedCall) -> bool:
    """Return whether an approval covers all grants that the call lacks now. The category may have become narrower."""
    return not call.lacking or answer.get("args_hash") == call.args_hash


def approved_before(asked: Iterable[InterruptRecord], call: RaisedInterrupt) -> str:
    """Return a mark if the author approved this exact call in a graph's own question; otherwise an empty text.

    Each approval covers one call; a used approval does not count again.
    """
    records = list(asked)
    used = {one.message for one in records if one.kind in GUARDED and one.decision}
    for one in records:
        asks = forms.request_in(one)
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
    """Return the decision of a request. Raises InvalidInput if the decision does not fit the question."""
    takes = _DECISIONS_ON[asked.kind]
    if request.decision not in takes:
        what = f"{request.decision[:40]!r} cannot decide a {asked.kind}"
        raise InvalidInput(what, where="decision", hint=f"one of {', '.join(takes)}")
    if len(request.message.encode()) > LONGEST_TEXT:
        raise InvalidInput(f"is longer than {LONGEST_TEXT} bytes", where="message")
    if request.decision == "answer" and not (request.message or request.args_json):
        raise InvalidInput("an answer needs text", where="message")
    if request.args_json and request.decision not in {"edit", "answer"}:
        raise InvalidInput("only an edit or an answer takes arguments", where="args_json")
    decided = AuthorDecision(
        decision=request.decision, message=request.message or request.args_json, args=_given(request)
    )
    if request.decision == "edit":
        decided = replace(decided, message=request.message)
    _check_fits(asked, decided)
    if decided.decision == "answer" and decided.args is None:
        decided = replace(decided, message=forms.question_of(asked).named(decided.message))
    if not request.args_hash and forms.request_in(asked) is not None:  # the guard may use the decision
        raise InvalidInput("omits which calls were shown", where="args_hash", hint="copy it from the question")
    return decided


def _given(request: wire.ResolveInterruptRequest) -> Any:
    """Return the arguments of an edit, or the JSON of an answer; None for an answer that is only text."""
    if request.decision == "edit":
        return json_text.read_object(request.args_json, where="args_json", longest=LONGEST_ARGS, deepest=DEEPEST_ARGS)
    if not request.args_json:
        return None
    value = json_text.read_value(request.args_json, where="args_json", longest=LONGEST_ARGS, deepest=DEEPEST_ARGS)
    if value is None:
        raise InvalidInput("null answers nothing", where="args_json")
    return value


def _check_fits(asked: InterruptRecord, decided: AuthorDecision) -> None:
    """Raise InvalidInput unless the graph can take the decision."""
    if asked.kind in GUARDED:
        return
    if isinstance(decided.args, dict) and {"decision", "args_hash"} <= set(decided.args):
        what = "looks like the answer to a tool call, but this is the graph's own question"
        raise InvalidInput(what, where="args_json", hint="omit decision or args_hash")
    asks = forms.request_in(asked)
    if asks is None:
        if decided.args is None:
            forms.question_of(asked).check(decided.message if decided.decision == "answer" else decided.decision)
    elif decided.decision == "answer" and decided.args is not None:
        forms.choices_in(asks, decided.args)
    elif decided.decision == "edit" and len(asks.calls) > 1:
        raise InvalidInput("the graph asks about several calls; name the edited call", where="args_json")
    else:
        answer_to(asked, asked.thread_id, decided)


def recorded_decision(item: InterruptRecord) -> AuthorDecision:
    args = json.loads(item.edited_json) if item.edited_json else None
    return AuthorDecision(decision=item.decision, message=item.message, args=args)


def resume_value(item: InterruptRecord) -> object:
    """Return the value that resumes the graph, for a stored decision."""
    return answer_to(item, item.thread_id, recorded_decision(item))


@dataclass(frozen=True, kw_only=True)
class Waits:
    """Times of an approval, in seconds after the question; 0 disables a step.

    Attributes:
        reminder_s: until the author is reminded, once.
        escalation_s: until an alert is raised, once.
        timeout_s: until the approval expires.
    """

    reminder_s: float = 0
    escalation_s: float = 0
    timeout_s: float = 0

    def from_time(self, asked_at: datetime) -> dict[str, datetime]:
        """Return the instant of each enabled step, by the name of the interrupt's field."""
        after = {"remind_at": self.reminder_s, "escalate_at": self.escalation_s, "expires_at": self.timeout_s}
        return {name: asked_at + timedelta(seconds=wait_s) for name, wait_s in after.items() if wait_s}


FOR_EVER = Waits()


def waits_of(turn: TurnRecord, without_task: Waits) -> Waits:
    """Return the times of a turn's approvals: its task's times, or the settings' times if it has no task."""
    if turn.task_id:
        own = turn.approval_reminder_s, turn.approval_escalation_s, turn.approval_timeout_s
        return Waits(reminder_s=own[0], escalation_s=own[1], timeout_s=own[2])
    return without_task


def expired(asked: InterruptRecord) -> AuthorDecision:
    """Return the decision for an approval that expired without an answer."""
    assert asked.expires_at is not None, "an approval without a timeout cannot expire"
    within = format_duration(asked.expires_at - asked.created_at)
    return AuthorDecision(decision=EXPIRED, message=f"no answer within {within}")


def too_late(asked: InterruptRecord) -> Conflict:
    """Return the error for an answer that came too late."""
    at = f" at {rfc3339(asked.resolved_at.replace(microsecond=0))}" if asked.resolved_at else ""
    what = f"approval {asked.interrupt_id} expired{at}: {asked.message}; its call was refused, and its turn continued"
    again = (
        f"run the task again: turnkeeper task run {asked.task_name}" if asked.task_name else "write to the agent again"
    )
    return Conflict(what, where="interrupt_id", hint=again)


def pause_value(trigger: Trigger) -> dict[str, Any]:
    """Return the value that resumes a bounded pause."""
    return {
        "prompt": trigger.prompt,
        "payload": trigger.payload_json,
        "fire_id": trigger.fire_id,
        "nominal_at": trigger.to_meta()["nominal_at"],
    }
