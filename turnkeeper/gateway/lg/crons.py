"""Conversion of crons of LangGraph's clients to tasks and back. Pure.

A cron's metadata becomes tags of its task: text under `lg.KEY`, any other value as JSON under `lg.json.KEY`. Characters
that a tag cannot contain are percent-encoded.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote

from turnkeeper.errors import InvalidInput
from turnkeeper.gateway.lg.conversation import shown, time_of
from turnkeeper.gateway.lg.requests import RunRequest, graph_options, refuse, refuse_options
from turnkeeper.v1 import schedules_pb2 as wire
from turnkeeper.v1.agent_runtime_pb2 import Turn

_TAG, _JSON = "lg.", "lg.json."
_LONGEST_TAG = 64
LATER_TAG = "lg.later"
_UNDER_WAY = frozenset({"waiting", "pending", "sent", "accepted"})  # outcomes of a fire that can still get a turn
_OVERLAP = {"enqueue": "queue", "reject": "skip"}
_OWN = frozenset({"name", "kind", "turnkeeper"})  # the key in a cron's metadata for facts about its task
PERMITTED = frozenset(
    {
        *("schedule", "timezone", "input", "metadata", "config", "context", "assistant_id", "end_time", "enabled"),
        *("multitask_strategy", "on_run_completed", "stream_mode", "stream_subgraphs", "stream_resumable", "thread_id"),
        *("checkpoint_during", "durability"),
    }
)


def spec_of(
    body: Mapping[str, Any], *, thread_id: str, channel: str, name: str, category: str, graph: str
) -> wire.TaskSpec:
    """Return the task for a new cron.

    Args:
        thread_id: the thread that its fires continue; empty for a new thread for each fire.
        name: the task's name, unless the metadata contains one.
        category: the task's category, unless the metadata contains one.
        graph: its graph or assistant; empty for the default one.

    Raises:
        InvalidInput: the cron has a field that a task does not support.
    """
    _check(body)
    metadata = body.get("metadata") or {}
    own = _object(metadata, "turnkeeper")
    spec = wire.TaskSpec(
        name=metadata["name"] if isinstance(metadata.get("name"), str) else name,
        category=str(own.get("category") or category),
        channel=channel,
        thread_id=thread_id or "each",
        timezone=str(body.get("timezone") or "Etc/UTC"),
        graph=graph or None,
        tags=tags_of(metadata),
    )
    _change(spec, body)
    if not spec.cron:
        raise InvalidInput("is missing", where="schedule", hint="give five fields, such as '0 9 * * *'")
    if not spec.prompt and not spec.input_json:
        raise InvalidInput("is missing", where="input", hint="give the fields of the graph's input")
    return spec


def later_spec(asked: RunRequest, name: str, **where: Any) -> wire.TaskSpec:
    """Return the task that starts a client's run once, after the number of seconds that the client gives.

    Args:
        where: the thread, the channel, the graph and the category, as fields of a task.
    """
    prompt = asked.text.replace("{{", "\\{{")
    spec = wire.TaskSpec(name=name, timezone="Etc/UTC", prompt=prompt, tags={LATER_TAG: "yes"}, **where)
    setattr(spec, "in", f"{asked.after_s}s")
    spec.input_json = json.dumps(asked.input, ensure_ascii=False)
    spec.run_json = json.dumps(asked.run, ensure_ascii=False)
    for field, value in asked.options.items():
        setattr(spec, field, value)
    return spec


def later_turn(task: wire.Task, fires: Sequence[wire.Fire]) -> Turn:
    """Return a run that has not begun as a turn, from the task that starts it and its fires without a turn."""
    spec, status = task.spec, {"active": "accepted", "paused": "accepted", "disabled": "cancelled"}
    said = "accepted" if any(fire.outcome in _UNDER_WAY for fire in fires) else status.get(task.state, "failed")
    turn = Turn(turn_id=spec.name, task_name=spec.name, status=said, error=task.reason)
    for name in ("thread_id", "channel", "category", "graph", "run_json"):
        setattr(turn, name, getattr(spec, name))
    turn.started_at.CopyFrom(task.created_at)
    return turn


def changed_spec(task: wire.Task, body: Mapping[str, Any], graph: str | None) -> wire.TaskSpec:
    """Return a task's complete spec with a client's changes. Raises InvalidInput, as `spec_of` does."""
    _check(body)
    spec = wire.TaskSpec()
    spec.CopyFrom(task.spec)
    if "schedule" in body and not spec.cron:
        hint = f"change it with: turnkeeper task edit {task.spec.name}"
        raise InvalidInput(
            f"cannot be changed here: the task has no cron expression ({task.schedule})", where="schedule", hint=hint
        )
    if body.get("timezone"):
        spec.timezone = str(body["timezone"])
    if "metadata" in body:
        kept = {key: value for key, value in spec.tags.items() if not key.startswith(_TAG)}
        spec.ClearField("tags")
        spec.tags.update(kept | tags_of(body.get("metadata") or {}))
    if graph is not None:
        spec.graph = graph
    _change(spec, body)
    return spec


def _change(spec: wire.TaskSpec, body: Mapping[str, Any]) -> None:
    if body.get("schedule"):
        spec.cron = body["schedule"]
    if "end_time" in body:
        spec.ClearField("end_at")
        if body["end_time"]:
            spec.end_at = body["end_time"]
    if body.get("input") is not None:
        given = _object(body, "input")
        spec.prompt = _only_text(given.get("messages")).replace("{{", "\\{{")  # a client's text has no variables
        rest = {key: value for key, value in given.items() if key != "messages" or not spec.prompt}
        spec.input_json = json.dumps(rest, ensure_ascii=False) if rest else ""
    if strategy := body.get("multitask_strategy"):
        spec.overlap = _OVERLAP[strategy]
    for field, value in graph_options(body).items():
        setattr(spec, field, value)


def _only_text(messages: object) -> str:
    """Return the text of messages that are a single text message of a person. Return an empty string for any others."""
    one = messages[0] if isinstance(messages, list) and len(messages) == 1 else messages
    if isinstance(one, dict) and not isinstance(one.get("content"), str):
        return ""
    return shown(one)[0] if isinstance(one, dict | str) else ""


def _check(body: Mapping[str, Any]) -> None:
    refuse_options(body, PERMITTED)
    config = body.get("config") or {}
    if other := next((name for name, value in config.items() if name != "configurable" and value), ""):
        refuse(f"config.{other}", "only configurable is supported for crons", "leave it out, or start runs with it")
    if body.get("on_run_completed") not in {None, "keep"}:
        refuse("on_run_completed", "threads are kept", "leave it out; the answer says keep")
    if body.get("multitask_strategy") not in {None, *_OVERLAP}:
        refuse("multitask_strategy", "a fire never cancels another turn", "give enqueue or reject")


def _object(body: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = body.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidInput("is not an object", where=name)
    return value


def tags_of(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return metadata as tags of a task.

    >>> tags_of({"team": "ops", "priority": 3, "link": "https://example.org/a", "name": "digest"})
    {'lg.team': 'ops', 'lg.json.priority': '3', 'lg.link': 'https:%2F%2Fexample%2Eorg%2Fa'}

    Raises:
        InvalidInput: a value is longer than a tag may be.
    """
    found = {}
    for key, value in metadata.items():
        if key in _OWN:
            continue
        plain = isinstance(value, str) and value
        text = str(value) if plain else json.dumps(value, ensure_ascii=True, separators=(",", ":"))
        label, written = (_TAG if plain else _JSON) + _safe(key), _safe(text)
        if len(label) > _LONGEST_TAG or len(written) > _LONGEST_TAG:
            hint = f"keep keys and values below {_LONGEST_TAG - len(_JSON)} ASCII characters; put more into the input"
            raise InvalidInput("is too long for a task's label", where=f"metadata.{key[:40]}", hint=hint)
        found[label] = written
    return found


def _safe(text: str) -> str:
    kept = quote(text, safe=" !#$&'()*+,:;<=>?@[]^`{|}\"").replace(".", "%2E")
    return kept if kept == kept.strip() else kept.replace(" ", "%20")


def metadata_of(task: wire.Task) -> dict[str, Any]:
    """Return a cron's metadata: the client's own, and facts about its task."""
    found: dict[str, Any] = {}
    for key, value in task.spec.tags.items():
        if key.startswith(_JSON):
            found[unquote(key.removeprefix(_JSON))] = json.loads(unquote(value))
        elif key.startswith(_TAG):
            found[unquote(key.removeprefix(_TAG))] = unquote(value)
    kind = {} if task.spec.cron else {"kind": task.kind}
    own = {"category": task.spec.category, "channel": task.spec.channel, "state": task.state}
    return {**found, "name": task.spec.name, **kind, "turnkeeper": own}


def cron_of(task: wire.Task, assistant_id: str) -> dict[str, Any]:
    """Return a task as a cron. If the task has no cron expression, the schedule is text for people."""
    spec, metadata = task.spec, metadata_of(task)
    thread_id = spec.thread_id if spec.thread_id not in {"", "each"} else None
    said = {"messages": [{"role": "user", "content": spec.prompt.replace("\\{{", "{{")}]} if spec.prompt else {}
    said |= json.loads(spec.input_json or "{}")
    payload = {
        "assistant_id": assistant_id,
        "input": said,
        "config": {"configurable": json.loads(spec.config_json or "{}")},
        "context": json.loads(spec.context_json or "{}"),
        "metadata": metadata,
    }
    return {
        "cron_id": task.id,
        "assistant_id": assistant_id,
        "thread_id": thread_id,
        "on_run_completed": None if thread_id else "keep",
        "end_time": spec.end_at or None,
        "schedule": spec.cron or task.schedule,
        "timezone": spec.timezone,
        "created_at": time_of(task, "created_at"),
        "updated_at": time_of(task, "updated_at") or time_of(task, "created_at"),
        "user_id": None,
        "payload": payload,
        "next_run_date": time_of(task, "next_fire_at"),
        "metadata": metadata,
        "enabled": task.state == "active",
    }
