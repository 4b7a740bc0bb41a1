"""What an interrupt is answered with: an author's decision off the wire and off its row, or a fire. Pure."""

import json
from typing import Any

from agent_runtime.model.approval import Decided, answer_to
from agent_runtime.model.records import InterruptRecord
from agent_runtime.model.trigger import Trigger
from protos.turnkeeper.v1 import agent_runtime_pb2 as wire
from turnkeeper.errors import InvalidInput

LONGEST_TEXT = 256 << 10
_TAKES: dict[str, tuple[str, ...]] = {
    "permission": ("approve", "reject", "edit"),
    "proposal": ("approve", "reject", "edit"),
    "question": ("approve", "reject", "edit", "answer"),
}


def read_decision(request: wire.ResolveInterruptRequest, asked: InterruptRecord) -> Decided:
    """Return the decision. Raises InvalidInput if it does not fit what was asked."""
    takes = _TAKES[asked.kind]
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
        return Decided(decision=request.decision, message=request.message)
    try:
        args = json.loads(request.args_json)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"is not JSON: {error}", where="args_json") from error
    if not isinstance(args, dict):
        raise InvalidInput("is not a JSON object", where="args_json")
    return Decided(decision="edit", message=request.message, args=args)


def decided_of(item: InterruptRecord) -> Decided:
    """Return what the author decided, as it is on record."""
    args = json.loads(item.edited_json) if item.edited_json else None
    return Decided(decision=item.decision, message=item.message, args=args)


def value_of(item: InterruptRecord) -> object:
    """Return what the graph is given for a decision that is on record."""
    return answer_to(item.kind, item.args_hash, item.call_id, item.thread_id, decided_of(item))


def woken_by(trigger: Trigger) -> dict[str, Any]:
    """Return what a bounded pause is resumed with."""
    return {
        "prompt": trigger.prompt,
        "payload": trigger.payload_json,
        "fire_id": trigger.fire_id,
        "nominal_at": trigger.to_meta()["nominal_at"],
    }
