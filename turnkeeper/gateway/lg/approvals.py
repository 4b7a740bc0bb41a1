"""Approvals as interrupts for LangGraph's clients, and the three forms of clients' decisions. Pure.

    {"decisions": [{"type": "approve"}, …]}      agent-chat-ui, in the form of LangChain's middleware
    [{"type": "accept", "args": …}, …]           agent-inbox
    {interrupt_id: one of these, …}              the SDKs; the only form if several approvals wait

A tool call has one object for both clients: agent-chat-ui reads `args`, and agent-inbox reads `arguments`. Without
`arguments`, agent-inbox would show none, and a person would decide without seeing them.
"""

import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from turnkeeper.console.unseen import as_json, plain
from turnkeeper.errors import Conflict, InvalidInput
from turnkeeper.rpc import forms
from turnkeeper.v1 import agent_runtime_pb2 as wire

_ALLOWED = ("approve", "edit", "reject")
_WAYS = {
    "approve": "approve", "accept": "approve", "edit": "edit", "reject": "reject", "ignore": "reject",
    "respond": "respond", "response": "respond",
}  # fmt: skip
_WHERE = "command.resume"
FORMS = "give {'decisions': [{'type': 'approve'}]}, [{'type': 'accept', 'args': null}] or {INTERRUPT_ID: either}"
LOOK_AGAIN = "look at the thread again, then decide; or name the interrupt: {INTERRUPT_ID: decision}"
MOST_SERVED = 4096


def to_interrupt(asked: wire.Interrupt) -> dict[str, Any]:
    """Return an approval as an interrupt. A graph's own question keeps the value that the graph gave."""
    if asked.kind == "question" and not _calls(asked):
        return {"id": asked.interrupt_id, "value": value_of(asked)}
    return {"id": asked.interrupt_id, "value": value_of(asked), "when": "during", "resumable": True, "ns": []}


def value_of(asked: wire.Interrupt) -> Any:
    """Return the part of an approval that a person sees. For a plain question, this is the graph's own value."""
    calls = _calls(asked)
    if not calls:
        return forms.question_of(asked).value or plain(asked.question)
    named = [
        {"name": one.tool, "args": one.args, "arguments": one.args, "description": _seen(one.note, one.args)}
        for one in calls
    ]
    configs = [{"action_name": one.tool, "allowed_decisions": list(one.takes)} for one in calls]
    return {"action_requests": named, "review_configs": configs, "turnkeeper": _about(asked)}


def _calls(asked: wire.Interrupt) -> Sequence[forms.Call]:
    """Return the calls that an approval is about. Empty for a plain question."""
    if asked.kind != "question":
        args = json.loads(asked.args_json or "{}")
        return [forms.Call(tool=asked.tool, args=args, takes=_ALLOWED, note=_described(asked))]
    request = forms.request_in(asked)
    return () if request is None else request.calls


def _described(asked: wire.Interrupt) -> str:
    asks, why = f"{asked.task_name or 'The agent'} asks to call {asked.tool}", asked.question.strip().rstrip(".")
    return f"{asks}: {why}." if why else f"{asks}."


def _seen(note: str, args: Any) -> str:
    """Return a note about a call, with its arguments if they contain characters that a client would hide."""
    written = as_json(args)
    hides = written != json.dumps(args, ensure_ascii=False)
    return plain(note) + (f" Hidden characters, escaped: {written}" if hides else "")


def _about(asked: wire.Interrupt) -> dict[str, Any]:
    names = ("kind", "task_name", "category", "missing_scope", "args_hash", "turn_id")
    return {name: getattr(asked, name) for name in names if getattr(asked, name)}


@dataclass(frozen=True, kw_only=True)
class Choice(forms.Choice):
    """A client's decision about one call, with the name of the tool if the client gives it.

    `args` are the arguments to run with, or the arguments that were shown; None if none are given.
    """

    name: str = ""


def read_choices(value: object) -> list[Choice] | None:
    """Return a client's decisions, one for each call, or None if the value has neither form.

    >>> read_choices({"decisions": [{"type": "reject", "message": "too dear"}]})
    [Choice(way='reject', text='too dear', args=None, name='')]
    >>> read_choices([{"type": "response", "args": "Tuesday"}])
    [Choice(way='respond', text='Tuesday', args=None, name='')]
    """
    found = value.get("decisions") if isinstance(value, dict) and "decisions" in value else value
    said = found if isinstance(found, list) else [found]
    if not said or not all(isinstance(one, dict) and one.get("type") in [*_WAYS] for one in said):
        return None
    return [_choice(one) for one in said]


def _choice(said: Any) -> Choice:
    way, args = _WAYS[str(said["type"])], said.get("args")
    edited = said.get("edited_action") if isinstance(said.get("edited_action"), dict) else None
    if edited is None and isinstance(args, dict):
        edited = {"name": args.get("action"), "args": args.get("args")}
    text = args if isinstance(args, str) else said.get("message")
    text = text if isinstance(text, str) else "ignored" if said["type"] == "ignore" else ""
    inner = edited.get("args") if edited else None
    name = edited.get("name") if edited else None
    return Choice(
        way=way, text=text, args=inner if isinstance(inner, dict) else None, name=name if isinstance(name, str) else ""
    )


def decide(asked: wire.Interrupt, value: object) -> wire.ResolveInterruptRequest:
    """Return the decision about one approval that a client's answer expresses.

    Raises:
        InvalidInput: this approval does not accept an answer of this form.
        Conflict: the answer is about a different call than the pending one.
    """
    choices, calls = read_choices(value), _calls(asked)
    request = wire.ResolveInterruptRequest(interrupt_id=asked.interrupt_id, args_hash=asked.args_hash)
    if not calls:
        return _answer(request, choices, value, forms.question_of(asked))
    if choices is None or len(choices) not in {1, len(calls)}:
        what = f"one call of {calls[0].tool}" if len(calls) == 1 else f"{len(calls)} calls"
        raise InvalidInput(f"is not a decision about {what}", where=_WHERE, hint=FORMS)
    each = choices if len(choices) == len(calls) else choices * len(calls)
    for call, choice in zip(calls, each, strict=True):
        if choice.name and choice.name != call.tool:
            what = f"is a decision about {choice.name[:80]}, but the pending call is {call.tool}"
            raise Conflict(what, where=_WHERE, hint=LOOK_AGAIN)
    asks = forms.request_in(asked)
    return _about_call(request, calls[0], each[0]) if asks is None else _in_form(request, asks, each)


def _about_call(
    request: wire.ResolveInterruptRequest, call: forms.Call, choice: Choice
) -> wire.ResolveInterruptRequest:
    changed = choice.args is not None and choice.args != call.args
    if choice.way == "edit" and choice.args is None:
        raise InvalidInput("an edit needs its arguments", where=_WHERE, hint=FORMS)
    if choice.way in {"approve", "edit"}:
        request.decision = "edit" if changed else "approve"
        request.args_json = json.dumps(choice.args, ensure_ascii=False) if changed else ""
        return request
    request.decision, request.message = "reject", choice.text  # the text is the reason for not running the call
    return request


def _in_form(
    request: wire.ResolveInterruptRequest, asks: forms.Request, each: Sequence[Choice]
) -> wire.ResolveInterruptRequest:
    """Return a decision in the form that the graph asked for, from either of the clients' forms."""
    given = [replace(choice, args=choice.args or call.args) for call, choice in zip(asks.calls, each, strict=True)]
    answer: Any = forms.answer(asks, given)
    if asks.form == "inbox":  # in this form, an acceptance has no arguments
        answer = [{**one, "args": None} if one["type"] == "accept" else one for one in answer]
    request.decision, request.args_json = "answer", json.dumps(answer, ensure_ascii=False)
    return request


def _answer(
    request: wire.ResolveInterruptRequest, choices: Sequence[Choice] | None, value: object, question: forms.Question
) -> wire.ResolveInterruptRequest:
    """Return the answer to a plain question: the text of an inbox's answer, or else the client's whole value."""
    if choices is not None and len(choices) == 1:
        way = choices[0].way
        request.decision, request.message = "answer" if way == "respond" else way, choices[0].text
        if way == "edit":
            request.args_json = json.dumps(choices[0].args or {}, ensure_ascii=False)
        return request
    if value is None or value == "":
        raise InvalidInput("is empty", where=_WHERE, hint=FORMS)
    request.decision = "answer"
    if isinstance(value, str) and question.takes(value):
        request.message = value
    else:
        request.args_json = json.dumps(value, ensure_ascii=False)
    return request


def rejection(asked: wire.Interrupt) -> wire.ResolveInterruptRequest:
    """Return the decision that ends a thread's run. A question that accepts only options gets the answer `false`."""
    request = wire.ResolveInterruptRequest(interrupt_id=asked.interrupt_id, args_hash=asked.args_hash)
    if forms.question_of(asked).is_closed:
        request.decision, request.args_json = "answer", "false"
    else:
        request.decision, request.message = "reject", "ignored"
    return request


class Served:
    """The approvals of each thread that each key was last shown. They are only in memory and may be lost.

    agent-chat-ui sends no id with its decision, so a repeated or late click could apply to the next question. Therefore
    a decision without an id is valid only for the one approval that its key was shown, while that approval is pending.
    """

    def __init__(self, most: int = MOST_SERVED) -> None:
        self._most = most
        self._shown: OrderedDict[tuple[str, str], dict[str, str]] = OrderedDict()

    def show(self, key: str, thread_id: str, asked: Iterable[wire.Interrupt]) -> None:
        """Record the approvals of a thread that a key was shown. If none is pending, keep the previous record.

        So a decision that is sent again because its answer was lost is the same decision, and changes nothing.
        """
        if shown := {one.interrupt_id: one.args_hash for one in asked}:
            self._shown.pop((key, thread_id), None)
            self._shown[key, thread_id] = shown
        while len(self._shown) > self._most:
            self._shown.popitem(last=False)

    def decisions(
        self, key: str, thread_id: str, asked: Sequence[wire.Interrupt], value: object
    ) -> list[wire.ResolveInterruptRequest]:
        """Return the decisions in a client's `command.resume`. A repeated decision is returned unchanged.

        Args:
            asked: the thread's approvals, including decided ones.

        Raises:
            Conflict: no approval is pending, or the decision is ambiguous.
            InvalidInput: the approval does not accept a value of this form.
        """
        known = {one.interrupt_id: one for one in asked}
        if isinstance(value, dict) and value and set(value) & set(known):
            if unknown := set(value) - set(known):
                raise Conflict(f"there is no approval {min(unknown)[:64]}", where=_WHERE, hint=LOOK_AGAIN)
            return [decide(known[id_], answer) for id_, answer in value.items()]
        return [decide(self._meant(self._shown.get((key, thread_id), {}), asked), value)]

    def _meant(self, shown: Mapping[str, str], asked: Sequence[wire.Interrupt]) -> wire.Interrupt:
        """Return the only approval that a decision without an id can mean."""
        waiting = [one for one in asked if one.status == "pending"]
        if len(waiting) > 1:
            what = f"{len(waiting)} approvals wait: {', '.join(one.interrupt_id for one in waiting)[:200]}"
            raise Conflict(what, where=_WHERE, hint="name each approval: {INTERRUPT_ID: decision}")
        found = [one for one in asked if shown.get(one.interrupt_id) == one.args_hash]
        if len(shown) != 1 or not found:
            if not waiting:
                what = "nothing waits for a decision on this thread"
                raise Conflict(what, where=_WHERE, hint="send a message instead")
            raise Conflict(
                f"approval {waiting[0].interrupt_id} was not shown to this key", where=_WHERE, hint=LOOK_AGAIN
            )
        return found[0]
