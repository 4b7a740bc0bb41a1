"""Parsing of requests for runs: the supported options, and refusals with a reason and an alternative. Pure.

Refusals are client errors. The JavaScript SDK would retry the server's own 501 like any failure.
"""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, NoReturn

from turnkeeper.errors import InvalidInput
from turnkeeper.gateway.lg.conversation import shown

MODES = frozenset(
    {
        *("values", "messages", "messages-tuple", "updates", "events", "tasks", "checkpoints", "debug", "custom"),
        *("tools", "lifecycle"),
    }
)
_IDS = frozenset({"thread_id", "run_id", "assistant_id", "graph_id", "user_id", "checkpoint_id", "checkpoint_ns"})
_REFUSED = {
    "webhook": ("a cron calls no webhook", "turnkeeper deliver add NAME --webhook URL --task TASK"),
    "feedback_keys": ("there is no feedback", "leave it out"),
    "supersteps": ("a thread's record is not written over HTTP", "use: turnkeeper threads import FILE"),
    "ttl": ("threads are kept", "leave it out"),
}
RUN = frozenset(
    {
        *("assistant_id", "input", "command", "config", "context", "stream_mode", "stream_subgraphs", "if_not_exists"),
        *("stream_resumable", "checkpoint", "checkpoint_id", "checkpoint_during", "multitask_strategy", "thread_id"),
        *("on_disconnect", "on_completion", "durability", "strict_resume", "langsmith_tracer"),
        *("interrupt_before", "interrupt_after", "metadata", "webhook", "after_seconds"),
    }
)
_CONFIG: Mapping[str, type] = {
    "max_concurrency": int, "metadata": dict, "recursion_limit": int, "run_name": str, "tags": list,
}  # fmt: skip
STRATEGIES = ("enqueue", "reject", "interrupt", "rollback")
LONGEST_AFTER_S = 366 * 24 * 3600
LONGEST_SHOWN = 4000  # characters of an input without a human message, in the conversation
MOST_UNSURE = 1024


class Unsupported(InvalidInput):
    """A valid request that is not supported. The hint names an alternative."""


class NoGraph(InvalidInput):
    """A write to a thread on which no graph has run. LangGraph's own server answers 400."""


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


_TEXTS = (
    *("as_node", "assistant_id", "checkpoint_id", "end_time", "graph_id", "if_exists", "if_not_exists", "key", "name"),
    *("method", "multitask_strategy", "on_completion", "on_disconnect", "on_run_completed", "query", "schedule"),
    *("description", "sort_by", "sort_order", "status", "thread_id", "timezone", "webhook"),
)
_OBJECTS = ("command", "config", "context", "filter", "metadata")
_TYPES: Mapping[str, tuple[str, Callable[[object], bool]]] = {
    **dict.fromkeys(_TEXTS, ("a string", _is_text)),
    **dict.fromkeys(_OBJECTS, ("an object", lambda value: isinstance(value, dict))),
    **dict.fromkeys(("ids", "run_ids", "channels"), ("a list of strings", _are_texts)),
    **dict.fromkeys(("stream_mode", "select"), ("a string or list of strings", lambda v: _is_text(v) or _are_texts(v))),
    "enabled": ("true or false", lambda value: isinstance(value, bool)),
}


def checked(body: dict[str, Any]) -> dict[str, Any]:
    """Return a client's object unchanged. Raise InvalidInput if a field has the wrong type."""
    for name, value in body.items():
        kind, fits = _TYPES.get(name, ("", None))
        if fits is not None and value is not None and not fits(value):
            raise InvalidInput(f"is not {kind}", where=name)
    if not isinstance(configurable(body), dict):
        raise InvalidInput("is not an object", where="config.configurable")
    return body


def refuse(where: str, why: str, instead: str) -> NoReturn:
    """Refuse an option that is not supported. Raises Unsupported."""
    raise Unsupported(f"is not supported: {why}", where=where, hint=instead)


def refuse_options(body: Mapping[str, Any], permitted: Collection[str]) -> None:
    """Raise InvalidInput for the first option that is not supported."""
    for name, value in body.items():
        if name not in permitted and value not in (None, [], {}, ""):
            refuse(name, *_REFUSED.get(name, ("the option is unknown", "leave it out")))


def configurable(body: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = (body.get("config") or {}).get("configurable") or {}
    return found


def graph_options(body: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields of a message or task for a client's `config` and `context`."""
    given = configurable(body).items()
    own = {key: value for key, value in given if key not in _IDS and not key.startswith("__")}
    said = {"config_json": own, "context_json": body.get("context")}
    return {field: json.dumps(value, ensure_ascii=False) for field, value in said.items() if value}


def run_options(body: Mapping[str, Any], modes: Collection[str]) -> dict[str, Any]:
    """Return the options of a run that are stored with its turn. Raises InvalidInput."""
    recorded = {"messages"} if "messages-tuple" in modes else set()
    found: dict[str, Any] = {"stream_modes": sorted({*modes, *recorded})}
    for name in ("interrupt_before", "interrupt_after"):
        if (nodes := body.get(name)) not in (None, []):
            if nodes != "*" and not _are_texts(nodes):
                raise InvalidInput("is not a list of nodes", where=name, hint="give the nodes' names, or '*'")
            found[name] = nodes
    found |= {name: body[name] for name in ("metadata", "webhook") if body.get(name)}
    found |= {"stream_subgraphs": True} if body.get("stream_subgraphs") else {}
    config: dict[str, Any] = {}
    for name, value in (body.get("config") or {}).items():
        if name == "configurable" or value in (None, [], {}, ""):
            continue
        if name not in _CONFIG:
            refuse(f"config.{name}", "the option is unknown", f"give {', '.join(_CONFIG)}")
        if not isinstance(value, _CONFIG[name]) or (name == "tags" and not _are_texts(value)):
            kind = "list of strings" if name == "tags" else _CONFIG[name].__name__
            raise InvalidInput("has the wrong type", where=f"config.{name}", hint=f"give a value of type {kind}")
        config[name] = value
    return found | ({"config": config} if config else {})


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """A client's request for a run.

    Attributes:
        assistant: the id or the name of the assistant.
        text: the text that shows the input in the conversation; empty for a decision.
        message_id: the id of the last human message, if the client gives one.
        input: the graph's whole input.
        run: the options that the turn keeps.
        resume: `command.resume`.
        decides: True if `command.resume` is present; its value may be None.
        rejects: True if `goto` names the end: reject all pending approvals, for agent-chat-ui's "Mark as Resolved".
        replays: True if there is neither an input nor a command: run the steps that follow a state.
        checkpoint_id: the state at which the run begins; empty for the newest.
        if_busy: one of :data:`STRATEGIES`.
        options: `config_json` and `context_json`.
        after_s: the seconds after which the run begins; 0 for now.
    """

    assistant: str
    text: str = ""
    message_id: str = ""
    input: Mapping[str, Any]
    run: Mapping[str, Any]
    resume: Any = None
    decides: bool = False
    rejects: bool = False
    replays: bool = False
    checkpoint_id: str = ""
    modes: frozenset[str] = frozenset({"values"})
    subgraphs: bool = False
    if_busy: str = "enqueue"
    must_exist: bool = True
    options: Mapping[str, str]
    after_s: int = 0

    @property
    def is_decision(self) -> bool:
        return self.decides or self.rejects


def read_run(body: Mapping[str, Any]) -> RunRequest:
    """Parse a request for a run. Raises InvalidInput for an option that is not supported."""
    refuse_options(body, RUN)
    if body.get("on_completion") == "delete":
        refuse("on_completion", "threads are kept", "leave it out, or give 'keep'")
    if (busy := body.get("multitask_strategy") or "enqueue") not in STRATEGIES:
        raise InvalidInput("is not a strategy", where="multitask_strategy", hint=f"one of {', '.join(STRATEGIES)}")
    command = _command(body.get("command") or {})
    replays = not command and body.get("input") is None
    text, message_id, given = ("", "", {}) if command or replays else _input(body["input"])
    modes = read_modes(body.get("stream_mode"))
    # A message may answer a question of the graph. Any other input does not.
    says = command or replays or shown(given.get("messages"))[0]
    return RunRequest(
        assistant=_assistant(body),
        text=text,
        message_id=message_id,
        input=given,
        run=run_options(body, modes) | ({} if says else {"no_answer": True}),
        resume=command.get("resume"),
        decides="resume" in command,
        rejects=command.get("goto") == "__end__",
        replays=replays,
        checkpoint_id=_checkpoint(body),
        modes=modes,
        subgraphs=bool(body.get("stream_subgraphs")),
        if_busy=str(busy),
        must_exist=body.get("if_not_exists") != "create",
        options=graph_options(body),
        after_s=_after(body),
    )


def _after(body: Mapping[str, Any]) -> int:
    """Return the seconds after which a run begins, or 0 for now. Raises InvalidInput."""
    after = body.get("after_seconds") or 0
    if isinstance(after, bool) or not isinstance(after, int | float) or not 0 <= after <= LONGEST_AFTER_S:
        hint = "give at most a year, or make a cron"
        raise InvalidInput("is not a number of seconds", where="after_seconds", hint=hint)
    if not after:
        return 0
    if body.get("input") is None and not body.get("command"):
        refuse_missing()
    given = {"command": body.get("command"), "checkpoint": _checkpoint(body), "webhook": body.get("webhook")}
    given["multitask_strategy"] = body.get("multitask_strategy") not in {None, "enqueue"}
    if with_it := next((name for name, value in given.items() if value), ""):
        refuse(with_it, "a run that begins later cannot have it", f"leave {with_it} out, or after_seconds")
    return ceil(after)


def read_write(body: Mapping[str, Any]) -> RunRequest:
    """Parse a request that writes values into a state. Raises InvalidInput."""
    refuse_options(body, {"values", "as_node", "checkpoint", "checkpoint_id"})
    values = body.get("values")
    each: list[Any] = values if isinstance(values, list) else [values]
    if not each or not all(isinstance(one, dict) and one for one in each):
        raise InvalidInput("is not an object with fields", where="values", hint="give the fields to write")
    write = {"as_node": body.get("as_node"), "checkpoint_id": _checkpoint(body), "then": each[1:]}
    text = f"Write the state: {json.dumps(values, ensure_ascii=False)}"[:LONGEST_SHOWN]
    run = {"write": {name: value for name, value in write.items() if value}}
    return RunRequest(assistant="", text=text, input=each[0], run=run, if_busy="reject", options={})


def _assistant(body: Mapping[str, Any]) -> str:
    if not body.get("assistant_id"):
        raise InvalidInput("is missing", where="assistant_id", hint="give the name of a graph, such as agent0")
    return str(body["assistant_id"])


def _command(command: Mapping[str, Any]) -> dict[str, Any]:
    """Return the command. A command takes precedence over an input, which agent-chat-ui sends as an empty object."""
    if command.get("update") or command.get("goto") not in (None, [], "__end__"):
        part = "update" if command.get("update") else "goto"
        why = "a command cannot change a thread's state or choose its next node"
        refuse(f"command.{part}", why, "send a message, or a decision as resume")
    return {name: command[name] for name in ("resume", "goto") if name in command and (name != "goto" or command[name])}


def _input(given: object) -> tuple[str, str, dict[str, Any]]:
    """Return the text that shows an input, the id of its last human message, and the input."""
    whole = given if isinstance(given, dict) else {"input": given}
    rest = {key: value for key, value in whole.items() if not (key == "context" and value == {})}
    text, message_id = shown(rest.get("messages"))
    return text or json.dumps(rest, ensure_ascii=False)[:LONGEST_SHOWN], message_id, rest


def _checkpoint(body: Mapping[str, Any]) -> str:
    given = body.get("checkpoint")
    if isinstance(given, dict) and given.get("checkpoint_ns"):
        what = "a state of a subgraph is neither written nor forked"
        refuse("checkpoint.checkpoint_ns", what, "name a state of the graph")
    found = given.get("checkpoint_id") if isinstance(given, dict) else given
    found = found or body.get("checkpoint_id") or configurable(body).get("checkpoint_id") or ""
    if not isinstance(found, str):
        raise InvalidInput("is not a string", where="checkpoint_id")
    return found


def forked(asked: RunRequest, newest: Mapping[str, Any], state: Mapping[str, Any]) -> RunRequest:
    """Return a request whose turn begins at `state` of its thread, or at the newest state if that is the same state.

    Raises:
        InvalidInput: nothing can run from this state without an input.
    """
    if not asked.replays:
        fork = {"checkpoint_id": state["checkpoint_id"]} if state["checkpoint_id"] != newest["checkpoint_id"] else {}
        return replace(asked, run={**asked.run, **fork})
    if not state["checkpoint_id"]:
        refuse_missing()
    source = (state["metadata"] or {}).get("source")
    if source == "update":
        refuse("input", "no steps run after a write into the state", "give an input")
    # A fork has the state of its parent. If the newest checkpoint is a fork, LangGraph adds no checkpoint at the
    # beginning. Without a checkpoint of its own, a turn that is killed would start over.
    place = state["parent_checkpoint_id"] if source == "fork" and state is newest else state["checkpoint_id"]
    run = {**asked.run, "checkpoint_id": place, "replays": True}
    return replace(asked, text="Run again from an earlier state", run=run)


def refuse_missing() -> NoReturn:
    """Refuse a request without an input on a thread without a state. Raises InvalidInput."""
    hint = "give input={…}, the fields of the graph's input, or command={'resume': …}"
    raise InvalidInput("is missing", where="input", hint=hint)


def read_modes(given: object) -> frozenset[str]:
    """Return the modes of a stream. Raises InvalidInput if one is unknown."""
    if given in (None, "", []):
        return frozenset({"values"})
    modes = given if isinstance(given, list) else [given]
    unknown = next((mode for mode in modes if mode not in MODES), None)
    if unknown is not None:
        hint = f"one of {', '.join(sorted(MODES))}"
        raise InvalidInput(f"no stream has the mode {str(unknown)[:40]!r}", where="stream_mode", hint=hint)
    return frozenset(map(str, modes))


class Once:
    """Ids of requests. A repeated request has the same id, and therefore only one effect.

    Clients send no idempotency key, and one SDK retries a request after a server error. A message of agent-chat-ui has
    an id. Any other request that failed with an unknown effect is kept in memory until it is repeated.
    """

    def __init__(self, draw: Any, most: int = MOST_UNSURE) -> None:
        """Make ids with `draw`, which returns a new text at each call."""
        self._draw = draw
        self._most = most
        self._unsure: OrderedDict[str, str] = OrderedDict()

    def id_of(self, about: str, name: str = "", by: str = "") -> str:
        """Return the id of a request.

        Args:
            about: the whole content of the request, and its destination.
            name: the client's id for the request: its `Idempotency-Key`, or the ids of thread and message; may be
                empty.
            by: the id of the client's API key: a name is valid only for this key.
        """
        if name:
            return _digest(f"{by}/{name}")
        return self._unsure.pop(_digest(about), None) or str(self._draw())

    def is_unsure(self, about: str, id_: str) -> None:
        """Record that a request with this id failed and may have had its effect."""
        self._unsure[_digest(about)] = id_
        while len(self._unsure) > self._most:
            self._unsure.popitem(last=False)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
