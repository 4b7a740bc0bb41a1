"""Interrupts: what a graph asks an author, what the author decides, and what the graph is resumed with. Pure.

The guard raises an interrupt whose value :func:`ask` builds; the runtime keeps it as a :class:`RaisedInterrupt`. The
author's decision returns to the graph as the value that :func:`answer_to` builds, and the guard checks it with
:func:`answers_call`. Any other interrupt is a question of a foreign graph: its answer is plain text, arguments, True or
False.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from agent_runtime.model.trigger import Trigger
from agent_runtime.model.turn import InterruptRecord
from protos.turnkeeper.v1 import agent_runtime_pb2 as wire
from turnkeeper.errors import InvalidInput

Kind = Literal["permission", "proposal", "question", "pause"]
DECISIONS = frozenset({"approve", "reject", "edit", "answer"})
LONGEST_PAUSE_S = 86_400
_GUARDED = frozenset({"permission", "proposal"})
LONGEST_TEXT = 256 << 10  # bytes
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


@dataclass(frozen=True, kw_only=True)
class AuthorDecision:
    """An author's decision about one interrupt.

    Attributes:
        decision: approve, reject, edit or answer.
        message: why it was rejected, or the answer's text.
        args: the arguments to run with instead.
    """

    decision: str
    message: str = ""
    args: Mapping[str, Any] | None = None


def canonical(value: object) -> str:
    """Return the one JSON text of a value: sorted keys, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)


def hash_args(args: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a call's arguments in canonical JSON.

    >>> hash_args({"a": 1, "b": 2}) == hash_args({"b": 2, "a": 1})
    True
    """
    return hashlib.sha256(canonical(args).encode("utf-8", "surrogatepass")).hexdigest()


def call_key(call_id: str, args_hash: str) -> str:
    """Return what a call is known by in its turn: some servers number the calls of each message from one."""
    return f"{call_id}:{args_hash}"


def ask(
    kind: Literal["permission", "proposal"], *, tool: str, args: Mapping[str, Any], call_id: str, scope: str, why: str
) -> dict[str, Any]:
    """Return the value of a guard's interrupt."""
    return {
        "kind": kind,
        "tool": tool,
        "args": json.loads(canonical(args)),  # as the author reads them, and as a checkpoint can hold them
        "args_hash": hash_args(args),
        "call_id": call_id,
        "scope": scope,
        "why": why,
    }


def read_interrupt(interrupt_id: str, value: object) -> RaisedInterrupt:
    """Read an interrupt's value, whoever raised it."""
    said = value if isinstance(value, dict) else {}
    kind = said.get("kind")
    if kind in _GUARDED and isinstance(said.get("args"), dict):
        return RaisedInterrupt(
            interrupt_id=interrupt_id,
            kind=kind,
            tool=str(said.get("tool", "")),
            args=said["args"],
            args_hash=hash_args(said["args"]),
            call_id=str(said.get("call_id", "")),
            missing_scope=str(said.get("scope", "")),
            question=str(said.get("why", "")),
        )
    if said.get("resume_on") == "trigger":
        return RaisedInterrupt(interrupt_id=interrupt_id, kind="pause", timeout_s=_pause_s(said.get("timeout_s")))
    question = said.get("question") or said.get("q") or value
    text = question if isinstance(question, str) else canonical(question)
    return RaisedInterrupt(
        interrupt_id=interrupt_id, kind="question", question=text, allows_text=said.get("allows_text") is not False
    )


def answer_to(kind: str, args_hash: str, call_id: str, thread_id: str, decided: AuthorDecision) -> object:
    """Return the value that an interrupt of `kind` is resumed with."""
    if kind in _GUARDED:
        return {
            "decision": decided.decision,
            "message": decided.message,
            "args": None if decided.args is None else dict(decided.args),
            "args_hash": args_hash,
            "call_id": call_id,
            "thread_id": thread_id,
        }
    if decided.decision == "answer":
        return decided.message
    if decided.decision == "edit":
        return dict(decided.args or {})
    if decided.decision == "reject" and decided.message:
        return {"approved": False, "message": decided.message}
    return decided.decision == "approve"


def answers_call(answer: object, *, args: Mapping[str, Any], call_id: str, thread_id: str) -> bool:
    """Return whether an answer is the author's, about exactly this call with exactly these arguments."""
    if not isinstance(answer, dict) or answer.get("decision") not in DECISIONS:
        return False
    about = (answer.get("args_hash"), answer.get("call_id"), answer.get("thread_id"))
    return about == (hash_args(args), call_id, thread_id)


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
    if request.decision == "answer" and not request.message:
        raise InvalidInput("an answer needs its text", where="message")
    if request.args_json and request.decision != "edit":
        raise InvalidInput("only an edit takes arguments", where="args_json")
    if request.decision != "edit":
        return AuthorDecision(decision=request.decision, message=request.message)
    try:
        args = json.loads(request.args_json)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"is not JSON: {error}", where="args_json") from error
    if not isinstance(args, dict):
        raise InvalidInput("is not a JSON object", where="args_json")
    return AuthorDecision(decision="edit", message=request.message, args=args)


def recorded_decision(item: InterruptRecord) -> AuthorDecision:
    """Return what the author decided, as it is on record."""
    args = json.loads(item.edited_json) if item.edited_json else None
    return AuthorDecision(decision=item.decision, message=item.message, args=args)


def resume_value(item: InterruptRecord) -> object:
    """Return what the graph is given for a decision that is on record."""
    return answer_to(item.kind, item.args_hash, item.call_id, item.thread_id, recorded_decision(item))


def pause_value(trigger: Trigger) -> dict[str, Any]:
    """Return what a bounded pause is resumed with."""
    return {
        "prompt": trigger.prompt,
        "payload": trigger.payload_json,
        "fire_id": trigger.fire_id,
        "nominal_at": trigger.to_meta()["nominal_at"],
    }
