"""The calls whose answers were recorded from LangGraph's development server, and what is compared of each answer.

An answer becomes facts: each path in it, with the set of values that were found there. Ids and times are left out. Parts
of a list share their paths, and so do the events of one name.

    python -m tests.golden.calls URL            record the answers of a server, as `recorded.json`
"""

import asyncio
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from langgraph_sdk import get_client

RECORDED = Path(__file__).parent / "recorded.json"
AGENT = {"messages": [], "value": "init", "items": []}
TOOLS = {"messages": [{"role": "user", "content": "search for v3"}]}
CHANNELS = ("values", "updates", "messages", "tools", "lifecycle", "input", "checkpoints", "tasks", "custom")
MODES = ("values", "updates", "messages", "messages-tuple", "custom", "tasks", "checkpoints", "debug", "events")
UNKNOWN = "01a208e1-0000-7000-8000-000000000000"
ERRORS: Mapping[str, tuple[str, str, Any]] = {
    "unknown_field": ("POST", "/threads/search", {"zzz": 1}),
    "bad_assistant": ("GET", f"/assistants/{UNKNOWN}", None),
    "bad_thread": ("GET", f"/threads/{UNKNOWN}", None),
    "nonuuid_thread": ("GET", "/threads/abc", None),
    "bad_mode": ("POST", "/runs/wait", {"assistant_id": "agent", "input": {}, "stream_mode": "nope"}),
    "no_input": ("POST", "/runs/wait", {"assistant_id": "agent"}),
    "store_missing": ("GET", "/store/items?namespace=a&key=b", None),
    "unknown_route": ("GET", "/nope", None),
}
_ID = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\b[0-9a-f]{32}\b|\b(?:turn|thread)-[0-9a-f]+(?:-in\d+)?\b"
)
_TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d)")
_NUMBERED = frozenset({"event_id", "seq", "timestamp"})  # keys whose values count, or tell the time
_LONGEST = 60
# What is compared of events that repeat others, or that hold the whole state at each step.
_PARTS: Mapping[str, tuple[str, ...]] = {"debug": ("type", "step"), "events": ("event", "name")}


async def protocol(client: httpx.AsyncClient, assistant: str, given: Any, answer: Any = None) -> dict[str, Any]:
    """Start a run by a command, and follow its thread by the newer protocol; answer the question that it asks."""
    thread = (await client.post("/threads", json={})).json()["thread_id"]
    start = {"id": 1, "method": "run.start", "params": {"assistant_id": assistant, "input": given}}
    commands, events = [await client.post(f"/threads/{thread}/commands", json=start)], list[dict[str, Any]]()
    async with client.stream("POST", f"/threads/{thread}/stream/events", json={"channels": [*CHANNELS]}) as answered:
        async for line in answered.aiter_lines():
            if not line.startswith("data:"):
                continue
            events.append(json.loads(line[5:]))
            params = events[-1]["params"]
            over = events[-1]["method"] == "lifecycle" and not params["namespace"] and params["data"]["event"]
            if over == "interrupted" and answer is not None and len(commands) == 1:
                asked = next(one["params"]["data"] for one in events if one["method"] == "input.requested")
                respond = {"namespace": [], "interrupt_id": asked["interrupt_id"], "response": answer}
                body = {"id": 2, "method": "input.respond", "params": respond}
                commands.append(await client.post(f"/threads/{thread}/commands", json=body))
            elif over in {"completed", "failed"}:
                break
    return compared_protocol([{"cmd": one.status_code, "body": one.json()} for one in commands] + events)


def compared_protocol(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the compared part of a thread's events: each command and channel, and the order within each channel."""
    events, order = defaultdict(list), defaultdict(list)
    for one in found:
        if "method" in one:
            place = "|".join(_plain(part) for part in one["params"]["namespace"])
            data = one["params"]["data"]
            events[one["method"]].append(one)
            order[one["method"]].append(f"{place}:{data.get('event', '')}".strip(":") or "-")
    commands = [one for one in found if "cmd" in one]
    return {"commands": commands, "events": events, "order": {name: ", ".join(of) for name, of in order.items()}}


async def streamed(url: str, key: str, assistant: str, given: Any) -> dict[str, Any]:
    """Stream a run in every mode, then read its state, run, thread and history."""
    async with get_client(url=url, api_key=key or None) as client:
        thread = (await client.threads.create())["thread_id"]
        stream = [
            {"event": part.event, "data": part.data}
            async for part in client.runs.stream(
                thread, assistant, input=given, stream_mode=[*MODES], stream_subgraphs=True
            )
        ]
        return compared_stream(
            {
                "stream": stream,
                "state": await client.threads.get_state(thread, subgraphs=True),
                "run": await client.runs.get(thread, stream[0]["data"]["run_id"]),
                "thread": await client.threads.get(thread),
                "history_n": len(await client.threads.get_history(thread)),
            }
        )


def compared_stream(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the compared part of a run: the names and order of its events, and the answers to later reads."""
    events = defaultdict(list)
    for one in found["stream"]:
        data = one["data"]
        if one["event"] in _PARTS:
            data = {name: data[name] for name in _PARTS[one["event"]]} | {"has": [*data]}
        events[one["event"]].append(data)
    order = [one["event"] for one in found["stream"] if one["event"] not in {"events", "end"}]
    return {**found, "stream": events, "order": ", ".join(order)}


async def refusals(client: httpx.AsyncClient) -> dict[str, Any]:
    found = {}
    for name, (method, path, body) in ERRORS.items():
        answer = (
            await client.request(method, path, json=body) if body is not None else await client.request(method, path)
        )
        found[name] = [answer.status_code, answer.text]
    thread = (await client.post("/threads", json={})).json()["thread_id"]
    answer = await client.post(f"/threads/{thread}/state", json={"values": {"a": 1}})
    found["update_nograph"] = [answer.status_code, answer.text]
    answer = await client.delete(f"/threads/{thread}")
    return {name: compared_refusal(*one) for name, one in found.items()} | {"delete_thread": [answer.status_code]}


def compared_refusal(status: int, text: str) -> dict[str, Any]:
    """Return the compared part of a refusal, without its text. Answers with data are compared by other functions."""
    if text.startswith('{"detail"'):
        return {"status": status, "body": {"detail": "text"}}
    return {"status": status, "body": json.loads(text) if text.startswith(("{", "null")) else "data"}


async def record(url: str, key: str = "") -> dict[str, list[Any]]:
    """Make all calls to a server. Return the facts of its answers."""
    async with httpx.AsyncClient(base_url=url, headers={"x-api-key": key}, timeout=60) as client:
        found: dict[str, Any] = {
            "v3_agent": await protocol(client, "agent", AGENT, "yes"),
            "v3_tools": await protocol(client, "tools_agent", TOOLS),
            "v1_agent": await streamed(url, key, "agent", AGENT),
            "v1_tools": await streamed(url, key, "tools_agent", TOOLS),
            "errors": await refusals(client),
        }
    return facts(found)


def facts(found: Any) -> dict[str, list[Any]]:
    """Return each path in a value, with the different values at its places.

    >>> facts({"a": [{"b": 1}, {"b": 2}], "at": "2026-01-01T00:00:00Z"})
    {'a.#.b': [1, 2], 'at': ['<time>']}
    """
    values: dict[str, list[Any]] = {}
    for path, value in _leaves(found, ""):
        known = values.setdefault(path.removeprefix("."), [])
        if value not in known:
            known.append(value)
    return {path: sorted(values[path], key=str) for path in sorted(values)}


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, one in value.items():
            yield from _leaves("<number>" if key in _NUMBERED else one, f"{path}.{_plain(key)}")
    elif isinstance(value, list) and value:
        for one in value:
            yield from _leaves(one, f"{path}.#")
    elif isinstance(value, dict | list):
        yield path, "{}" if isinstance(value, dict) else "[]"
    else:
        yield path, _plain(value) if isinstance(value, str) else value


def _plain(text: str) -> str:
    found = _TIME.sub("<time>", _ID.sub("<id>", text))
    return found if len(found) <= _LONGEST or ", " in found else f"{found[:_LONGEST]}…"


class Difference(NamedTuple):
    """A path at which two servers answer differently: `missing` here, `added` here, or another `value`."""

    kind: str
    path: str
    values: str = ""


def differences(theirs: Mapping[str, list[Any]], ours: Mapping[str, list[Any]]) -> list[Difference]:
    found = [Difference("missing", path) for path in theirs if path not in ours]
    found += [Difference("added", path) for path in ours if path not in theirs]
    both = (path for path in theirs if path in ours and theirs[path] != ours[path])
    return [*found, *(Difference("value", path, f"{theirs[path]} here {ours[path]}") for path in both)]


def covers(kind: str, pattern: str, one: Difference) -> bool:
    """Return True if a listed difference is this one."""
    return kind == one.kind and fnmatchcase(one.path, pattern)


def write(recorded: Mapping[str, list[Any]]) -> None:
    """Write facts as `recorded.json`, one path a line."""
    lines = [f"{json.dumps(path)}: {json.dumps(values, ensure_ascii=False)}" for path, values in recorded.items()]
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    write(asyncio.run(record(sys.argv[1])))
