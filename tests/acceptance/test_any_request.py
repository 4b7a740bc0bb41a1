"""Whatever a client sends, the gateway does it or answers that the client erred: never that it failed itself."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.support.langgraph import Lg, constellation_with_web, said
from tests.support.postgres import Server

pytestmark = pytest.mark.process
MOST = 150
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "langgraph-api.md"
ROWS = re.findall(r"^\| `([A-Z]+) (/\S*)` \|", PAGE.read_text(), re.MULTILINE)
REQUESTS = [row for row in ROWS if row[0] != "SOCKET"]
WITH_BODY = [(method, path) for method, path in REQUESTS if method in {"POST", "PUT", "PATCH"}]
FIELDS = [
    "as_node",
    "assistant_id",
    "before",
    "channels",
    "checkpoint",
    "checkpoint_id",
    "command",
    "config",
    "context",
    "enabled",
    "end_time",
    "filter",
    "graph_id",
    "id",
    "ids",
    "if_exists",
    "if_not_exists",
    "index",
    "input",
    "interrupt_before",
    "key",
    "limit",
    "max_depth",
    "metadata",
    "method",
    "multitask_strategy",
    "name",
    "namespace",
    "namespace_prefix",
    "offset",
    "on_completion",
    "on_disconnect",
    "on_run_completed",
    "params",
    "prefix",
    "query",
    "run_ids",
    "schedule",
    "select",
    "sort_by",
    "sort_order",
    "status",
    "stream_mode",
    "suffix",
    "supersteps",
    "thread_id",
    "timezone",
    "ttl",
    "value",
    "values",
    "webhook",
]
INNER = [
    "a",
    "configurable",
    "content",
    "decisions",
    "goto",
    "messages",
    "name",
    "responses",
    "resume",
    "role",
    "turnkeeper",
    "type",
    "update",
    "$gt",
]
ODD: Any = st.sampled_from(
    [None, True, 0, -1, 1.5, 10**400, "", "x", "human", "approve", "\0", "\ud800", "agent0", "2026-13-01", "9" * 5000]
)
NESTED = st.recursive(
    ODD,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(INNER), inner, max_size=2),
    max_leaves=4,
)
USUAL = {
    "assistant_id": "agent0", "input": said("Hello"), "schedule": "0 9 * * *", "key": "k", "namespace": ["n"], "value": {},
    "metadata": {"a": 1}, "filter": {"a": {"$gt": 1}}, "method": "run.start", "params": {}, "channels": ["values"],
}  # fmt: skip
WRONG: Any = [
    {"metadata": [1]}, {"stream_mode": {}}, {"multitask_strategy": [1]}, {"status": {"a": 1}}, {"enabled": [1]},
    {"select": {"a": 1}}, {"on_run_completed": [1]}, {"filter": [1]}, {"limit": 10**400}, {"metadata": {"a": "\ud800"}},
]  # fmt: skip
ODDLY = st.dictionaries(st.sampled_from(FIELDS), NESTED, max_size=3)
BODIES = st.one_of(
    st.sampled_from(WRONG).map(json.dumps),
    ODDLY.map(lambda odd: json.dumps({**USUAL, **odd})),
    ODDLY.map(json.dumps),
    NESTED.map(json.dumps),
    st.sampled_from(['{"limit": 1e400}', '{"metadata": {"a": NaN}}', "[" * 9999, "\ufeff{}", "{", "\x00", '"\udfff"']),
)
QUERIES = st.dictionaries(
    st.sampled_from(FIELDS), st.sampled_from(["", "[", "[[]]", "-1", "1e400", "\0", "x"]), max_size=2
)


# Requests that change nothing, beside those by GET.
READS = {
    *(
        "/assistants/search",
        "/assistants/count",
        "/assistants/{assistant_id}/versions",
        "/threads/search",
        "/threads/count",
    ),
    *("/threads/{thread_id}/history", "/threads/{thread_id}/state/checkpoint", "/threads/{thread_id}/stream/events"),
    *("/runs/crons/search", "/runs/crons/count", "/store/items/search", "/store/namespaces"),
}
RESPONDS = {
    "id": 1,
    "method": "input.respond",
    "params": {"interrupt_id": "i", "response": {"type": "accept", "args": None}},
}
RESUMES = {"assistant_id": "agent0", "command": {"resume": {"decisions": [{"type": "approve"}]}}}
# Requests that decide about what waits, if their body says so.
DECIDES = [
    ("/threads/{thread_id}/runs", RESUMES),
    ("/threads/{thread_id}/runs/stream", RESUMES),
    ("/threads/{thread_id}/runs/wait", RESUMES),
    ("/threads/{thread_id}/commands", RESPONDS),
    ("/threads/{thread_id}/state", {"values": None, "as_node": "__end__"}),
]


@pytest.fixture(scope="module")
def lg(postgres_server: Server | None) -> Iterator[Lg]:
    with constellation_with_web(postgres_server) as found:
        yield found


def answered(lg: Lg, method: str, path: str, body: str) -> int:
    """Return the status of an answer, without waiting for all of a stream."""
    with lg.http.stream(method, path, content=body.encode("utf-8", "surrogatepass")) as answer:
        return answer.status_code


def test_a_key_that_may_only_read_changes_nothing(lg: Lg) -> None:
    read = {"x-api-key": lg.keys["read"]}
    lg.ask("GET", f"/threads/{lg.thread()}", headers=read)
    for method, path in (("POST", "/threads"), ("POST", "/runs"), ("PUT", "/store/items"), ("POST", "/runs/crons")):
        assert "scope work" in lg.refused(method, path, {}, status=403, headers=read)


def test_a_key_of_a_smaller_scope_is_refused_by_every_request_that_changes_or_decides_something(lg: Lg) -> None:
    waits = lg.waiting()
    ids = {
        "thread_id": waits["thread_id"],
        "run_id": "turn-1",
        "assistant_id": "agent0",
        "cron_id": lg.cron()["cron_id"],
    }
    ask = {scope: {"x-api-key": lg.keys[scope]} for scope in ("read", "work")}
    statuses = {
        f"{method} {path}": lg.http.request(method, path.format(**ids), json=USUAL, headers=ask["read"]).status_code
        for method, path in REQUESTS
        if method != "GET" and path not in READS
    }
    assert len(statuses) > 20
    assert {one: status for one, status in statuses.items() if status != 403} == {}
    for path, body in DECIDES:
        refused = lg.http.post(path.format(**ids), json=body, headers=ask["work"])
        assert (refused.status_code, "decide" in refused.text) == (403, True), (path, refused.text)
    assert lg.ask("GET", f"/threads/{ids['thread_id']}")["interrupts"].keys() == waits["interrupts"].keys()


@pytest.mark.parametrize(
    ("path", "body", "why"),
    [
        ("/threads", {"metadata": {"a": "\ud800"}}, "body: holds half a character (a lone surrogate)"),
        ("/threads/search", '{"limit": 1e400}', "body: is not JSON: 1e400 is not a JSON number"),
        ("/threads/search", {"metadata": [1]}, "metadata: is not an object"),
        ("/threads/{thread_id}/runs/stream", {"stream_mode": {}}, "stream_mode: is not a string or list of strings"),
        ("/threads/{thread_id}/runs", {"multitask_strategy": [1]}, "multitask_strategy: is not a string"),
        ("/runs/crons", {"enabled": []}, "enabled: is not true or false"),
        ("/runs/batch", [{"assistant_id": {}}], "assistant_id: is not a string"),
    ],
)
def test_a_field_that_is_not_of_its_type_is_named(lg: Lg, path: str, body: Any, why: str) -> None:
    body = body if isinstance(body, str) else json.dumps(body | USUAL | body if isinstance(body, dict) else body)
    found = lg.http.post(path.format(thread_id=lg.thread()), content=body)
    assert (found.status_code, found.json()["detail"]) == (422, why)


def test_every_body_of_every_request_is_answered_and_no_answer_says_that_the_server_failed(lg: Lg) -> None:
    ids = {"thread_id": lg.thread(), "run_id": "turn-1", "assistant_id": "agent0", "cron_id": lg.cron()["cron_id"]}
    failed = []

    def check(method: str, path: str, body: str, query: dict[str, str]) -> None:
        place = re.sub(r"{(\w+)}", lambda name: ids.get(name[1], "%00"), path)
        status = answered(lg, method, f"{place}?{urlencode(query)}", body)
        if status >= 500:
            failed.append((method, path, query, body, status))

    @settings(max_examples=MOST, deadline=None, database=None, derandomize=True, phases=[Phase.generate])
    @given(st.sampled_from(REQUESTS), BODIES, QUERIES)
    def ask(request: tuple[str, str], body: str, query: dict[str, str]) -> None:
        check(*request, body, query)

    for request in WITH_BODY:
        for odd in WRONG:
            check(*request, json.dumps(USUAL | odd), {})
    ask()
    assert failed == []
    assert lg.ask("GET", "/ok")
