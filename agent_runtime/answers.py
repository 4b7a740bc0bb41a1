"""An author's decision off the wire, checked against what was asked."""

import json

from agent_runtime.approvals import Decided
from agent_runtime.records import InterruptRecord
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
