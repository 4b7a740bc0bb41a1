"""The servers that public projects are given in place of the real ones: models, embeddings, search, mail, any web page.

The models speak OpenAI's and Anthropic's protocol. What they answer follows from the request and a project's plan: a tool of
the plan that is offered and was not called yet is called; an answer that has to have a form is filled in by its schema;
otherwise the answer says what the model has read, so that a later fire shows whether it knows of an earlier one.
"""

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import ThreadingHTTPServer
from typing import Any, cast

from tests.support.chat_server import ChatServer, Reply, _Handler

DIMENSIONS = 1536
MODELS = ("/chat/completions", "/messages")


@dataclass
class Plan:
    """What the models of one project do.

    Attributes:
        calls: tools to call in each turn, in order, once each: a name and arguments.
        values: what a field of a form or an argument gets, by its name; others get what their schema allows.
        last: the tool that ends a turn, where a model is told to call one and none of `calls` is left.
    """

    calls: Sequence[tuple[str, Mapping[str, Any]]] = ()
    values: Mapping[str, Any] = field(default_factory=dict)
    last: str = ""


@dataclass(frozen=True)
class Line:
    """One message as a model reads it: who speaks, what, the tools that it calls."""

    role: str
    text: str
    calls: tuple[str, ...] = ()


@dataclass(frozen=True)
class Asked:
    """A request to a model, in either protocol.

    Attributes:
        tools: schemas of the tools' arguments by their names.
        must: `any`, or the name of the tool that must be called; empty: none must.
        form: the schema that the answer must have; None: free text.
    """

    lines: tuple[Line, ...]
    tools: Mapping[str, Mapping[str, Any]]
    must: str = ""
    form: Mapping[str, Any] | None = None


def read_request(request: Mapping[str, Any]) -> Asked:
    if any("function" in tool for tool in request.get("tools") or ()) or "response_format" in request:
        tools = {one["function"]["name"]: one["function"].get("parameters") or {} for one in request.get("tools") or ()}
    else:
        tools = {one["name"]: one["input_schema"] for one in request.get("tools") or () if "input_schema" in one}
    lines = [line for message in request["messages"] for line in _lines(message)]
    return Asked(lines=tuple(lines), tools=tools, must=_must(request.get("tool_choice")), form=_form(request))


def _lines(message: Mapping[str, Any]) -> Iterator[Line]:
    content = message.get("content") or ""
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    text = " ".join(str(one.get("text", "")) for one in blocks if one.get("type") == "text")
    calls = [call["function"]["name"] for call in message.get("tool_calls") or ()]
    calls += [one["name"] for one in blocks if one.get("type") == "tool_use"]
    results = [one for one in blocks if one.get("type") == "tool_result"]
    if results and not text:
        yield from (Line("tool", json.dumps(one.get("content"))) for one in results)
    else:
        yield Line(message["role"], text, tuple(calls))


def _must(choice: Any) -> str:
    if isinstance(choice, str):
        return "any" if choice in {"required", "any"} else ""
    kind = (choice or {}).get("type")
    if kind == "function":
        return str(choice["function"]["name"])
    return str(choice["name"]) if kind == "tool" else "any" if kind == "any" else ""


def _form(request: Mapping[str, Any]) -> Mapping[str, Any] | None:
    said = request.get("response_format") or {}
    if said.get("type") == "json_schema":
        return said["json_schema"]["schema"]  # type: ignore[no-any-return]
    if said.get("type") == "json_object":
        return {"type": "object", "properties": {}}
    other = (request.get("output_config") or {}).get("format") or request.get("output_format") or {}
    return other.get("schema")


def answer(asked: Asked, plan: Plan) -> Reply:
    """Return what a model of this plan answers."""
    if asked.form is not None:
        return Reply(text=json.dumps(fill(asked.form, plan.values)))
    since = max((at for at, line in enumerate(asked.lines) if line.role == "user"), default=0)
    called = [name for line in asked.lines[since:] for name in line.calls]
    left = [(name, dict(args)) for name, args in plan.calls if name in asked.tools]
    for name in called:
        left = _without(left, name)
    if asked.must and asked.must in asked.tools:
        args = next((given for name, given in plan.calls if name == asked.must), {})
        return Reply(calls=[(asked.must, fill(asked.tools[asked.must], plan.values | dict(args)))])
    if not left and asked.must:
        left = [(plan.last if plan.last in asked.tools else next(iter(asked.tools)), {})]
    if left:
        name, args = left[0]
        return Reply(calls=[(name, fill(asked.tools[name], plan.values | args))])
    read = [line.text for line in asked.lines if line.role == "user"]
    return Reply(text=f"I read {len(read)} requests, the first: {read[0][:60] if read else 'none'}")


def _without(left: list[tuple[str, dict[str, Any]]], name: str) -> list[tuple[str, dict[str, Any]]]:
    at = next((at for at, one in enumerate(left) if one[0] == name), None)
    return left if at is None else left[:at] + left[at + 1 :]


def fill(
    schema: Mapping[str, Any], values: Mapping[str, Any], root: Mapping[str, Any] | None = None, name: str = ""
) -> Any:
    """Return a value that a JSON schema allows; fields that `values` names get those."""
    root = root or schema
    if name in values:
        return values[name]
    if "$ref" in schema:
        return fill(_target(schema["$ref"], root), values, root, name)
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return fill(schema[key][0], values, root, name)
    if "const" in schema or "enum" in schema:
        return schema["const"] if "const" in schema else schema["enum"][0]
    return _filled(schema, values, root, name)


def _target(reference: str, root: Mapping[str, Any]) -> Mapping[str, Any]:
    target: Any = root
    for part in reference.removeprefix("#/").split("/"):
        target = target[part]
    return cast("Mapping[str, Any]", target)


def _filled(schema: Mapping[str, Any], values: Mapping[str, Any], root: Mapping[str, Any], name: str) -> Any:
    kind = schema.get("type", "object" if "properties" in schema else "string")
    if kind == "object":
        wanted = {*schema.get("required", ()), *values}
        properties = schema.get("properties", {})
        return {key: fill(one, values, root, key) for key, one in properties.items() if key in wanted}
    if kind == "array":
        return [fill(schema["items"], values, root)] if schema.get("items") else []
    return {"integer": 1, "number": 1, "boolean": False, "null": None}.get(kind, f"a {name or 'text'}")


def embed(text: str) -> list[float]:
    """Return a vector for a text: equal texts have equal ones."""
    digest = sha256(text.encode()).digest()
    return [(digest[at % len(digest)] - 127.5) / 127.5 for at in range(DIMENSIONS)]


class Stubs(ChatServer):
    """The running servers.

    Attributes:
        root: the address.
        plan: what the models do.
        seen: the requests: which stub, the path, what was sent.
    """

    def __init__(self) -> None:
        super().__init__()
        self.root, self.plan = "", Plan()
        self.seen: list[tuple[str, str, Any]] = []
        self._held, self._caught, self._freed = "", threading.Event(), threading.Event()

    def next(self, request: dict[str, Any], key: str) -> tuple[Reply, int]:
        _, number = super().next(request, key)
        return answer(read_request(request), self.plan), number

    def hold(self, stub: str) -> None:
        """Let the next request to a stub wait until `free`."""
        self._caught.clear()
        self._freed.clear()
        self._held = stub

    def caught(self) -> bool:
        return self._caught.is_set()

    def free(self) -> None:
        self._held = ""
        self._freed.set()

    def take(self, stub: str, path: str, sent: Any) -> None:
        """Note a request, and keep it if one of this stub is to be held."""
        self.seen.append((stub, path, sent))
        if self._held == stub:
            self._caught.set()
            self._freed.wait(120)

    def count(self, stub: str) -> int:
        return sum(name == stub for name, _, _ in self.seen)


class Handler(_Handler):
    """One request to any of the stubs."""

    chat: Stubs

    def do_GET(self) -> None:
        self._serve("")

    def do_POST(self) -> None:
        self._serve(self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode(errors="replace"))

    def _serve(self, body: str) -> None:
        sent = json.loads(body) if body.startswith(("{", "[")) else body
        path = self.path.partition("?")[0]
        stub = stub_of(path)
        self.chat.take(stub, path, sent)
        if stub == "model":
            self.answer_model(sent)
            return
        kind, data = ("text/html", PAGE) if stub == "page" else ("application/json", json.dumps(ANSWERS[stub](sent)))
        try:
            self._begin(200, kind, {})
            self.wfile.write(data.encode())
        except OSError:
            return  # the client was killed


def stub_of(path: str) -> str:
    if path.endswith(MODELS):
        return "model"
    if path.endswith("/embeddings"):
        return "embeddings"
    if "tavily" in path or path == "/search":
        return "search"
    if "wikipedia" in path:
        return "encyclopedia"
    return "mail" if path == "/mail" or "gmail" in path else "page"


def _search(sent: Any) -> dict[str, Any]:
    query = sent.get("query", "") if isinstance(sent, dict) else ""
    found = {
        "title": "Stub",
        "url": "http://example.com/stub",
        "content": f"About {query}.",
        "score": 0.9,
        "raw_content": "All.",
    }
    return {
        "query": query,
        "results": [found],
        "answer": None,
        "images": [],
        "follow_up_questions": None,
        "response_time": 0.1,
    }


def _embeddings(sent: Any) -> dict[str, Any]:
    given = sent["input"] if isinstance(sent["input"], list) else [sent["input"]]
    data = [{"object": "embedding", "index": at, "embedding": embed(str(one))} for at, one in enumerate(given)]
    return {"object": "list", "data": data, "model": "stub", "usage": {"prompt_tokens": 1, "total_tokens": 1}}


def _mail(sent: Any) -> dict[str, Any]:
    headers = [{"name": name, "value": f"{name} of the stub"} for name in ("Subject", "From", "To", "Message-ID")]
    return {"id": "mail-1", "threadId": "thread-1", "messages": [], "payload": {"headers": headers}, "sent": bool(sent)}


PAGE = "<html><head><title>Stub</title></head><body><h1>Stub</h1><p>A page of the stub.</p></body></html>"
ANSWERS = {
    "search": _search, "embeddings": _embeddings, "mail": _mail,
    "encyclopedia": lambda _sent: {"batchcomplete": True, "query": {"search": []}},
}  # fmt: skip


@contextmanager
def serving_stubs() -> Iterator[Stubs]:
    """Serve on a free port of loopback, in threads."""
    state = Stubs()

    class Bound(Handler):
        chat = state

    server = ThreadingHTTPServer(("127.0.0.1", 0), Bound)
    server.daemon_threads = True
    state.root = f"http://127.0.0.1:{server.server_address[1]}"
    state.url = f"{state.root}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        state.free()
        state.closed.set()
        server.shutdown()
        server.server_close()
        thread.join()
