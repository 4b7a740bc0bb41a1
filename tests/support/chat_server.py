"""A model server on loopback with scripted answers, including faults: late, in pieces, cut off, or none at all.

It serves OpenAI's chat completions at any path, and Anthropic's messages at paths that end with `/messages`.
"""

import json
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

USAGE = (11, 5)
KEY = "sk-planted-0123456789abcdef"


@dataclass(frozen=True, kw_only=True)
class Reply:
    """One answer of the server.

    Attributes:
        text: the model's text.
        calls: the tools it calls, each a name and arguments; a string is sent as it is.
        usage: tokens read and written; None leaves it out.
        status: other than 200: an error with this status.
        error: the error's message.
        code: the error's code.
        headers: additional headers.
        ending: the finish reason; by default the matching one.
        cut: close the connection after this many pieces, as if that were the end.
        broken: with `cut`, reset the connection instead of closing it.
        hang: after the headers, or the pieces before the cut, send nothing until the server stops.
        raw: the whole body, in place of all fields above.
        usage_first: send the usage in the first piece, not in the last.
        index: number the calls, as clients need it to put pieces together.
        ids: the calls' ids; by default each has its own.
        refusal: the model's refusal, in its own field.
    """

    text: str = ""
    calls: Sequence[tuple[str, Any]] = ()
    usage: tuple[int, int] | None = USAGE
    status: int = 200
    error: str = "trouble"
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    ending: str = ""
    cut: int | None = None
    broken: bool = False
    hang: bool = False
    raw: str | None = None
    usage_first: bool = False
    index: bool = True
    ids: Sequence[str] = ()
    refusal: str | None = None


class ChatServer:
    """The server's requests so far and its next answers: the script in order, then `done`."""

    def __init__(self) -> None:
        self.script: list[Reply] = []
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.asked = threading.Semaphore(0)
        self.closed = threading.Event()
        self.url = ""
        self._lock = threading.Lock()
        self._number = 0

    def next(self, request: dict[str, Any], key: str) -> tuple[Reply, int]:
        with self._lock:
            self.requests.append(request)
            self.keys.append(key)
            self._number += 1
            return (self.script.pop(0) if self.script else Reply(text="done")), self._number


@contextmanager
def serving() -> Iterator[ChatServer]:
    """Serve on a free port of loopback, in threads."""
    state = ChatServer()

    class Handler(_Handler):
        chat = state

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        state.closed.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    """One request. HTTP/1.0: the end of the connection ends a stream, complete or not."""

    chat: ChatServer

    def log_message(self, *_args: Any) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        """List the models; GET serves nothing else."""
        found = self.path == "/v1/models"
        self._begin(200 if found else 404, "application/json", {})
        self.wfile.write(json.dumps({"object": "list", "data": [{"id": "stub-model"}] if found else []}).encode())

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.answer_model(request)

    def answer_model(self, request: dict[str, Any]) -> None:
        key = self.headers.get("Authorization", self.headers.get("x-api-key", "")).removeprefix("Bearer ")
        reply, number = self.chat.next(request, key)
        self.chat.asked.release()
        anthropic = self.path.partition("?")[0].endswith("/messages")
        try:
            if anthropic and reply.status == 200:
                self._answer_anthropic(reply, number, streamed=bool(request.get("stream")))
            else:
                self._answer(reply, number, streamed=bool(request.get("stream")))
        except OSError:
            return  # the client disconnected: a cancelled turn

    def _answer_anthropic(self, reply: Reply, number: int, *, streamed: bool) -> None:
        if not streamed:
            self._begin(200, "application/json", reply.headers)
            self.wfile.write(json.dumps(_anthropic_message(reply, number)).encode())
            return
        self._begin(200, "text/event-stream", reply.headers)
        for event in _anthropic_events(reply, number):
            self.wfile.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
            self.wfile.flush()

    def _answer(self, reply: Reply, number: int, *, streamed: bool) -> None:
        if reply.status != 200:
            said = {"error": {"message": reply.error, "type": "stub", "code": reply.code}}
            self._begin(reply.status, "application/json", reply.headers)
            self.wfile.write(json.dumps(said).encode())
        elif streamed:
            self._begin(200, "text/event-stream", reply.headers)
            self._stream(reply, number)
        else:
            self._begin(200, "application/json", reply.headers)
            self.wfile.write(
                reply.raw.encode() if reply.raw is not None else json.dumps(_whole(reply, number)).encode()
            )

    def _begin(self, status: int, kind: str, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _stream(self, reply: Reply, number: int) -> None:
        if reply.raw is not None:
            self.wfile.write(reply.raw.encode())
            return
        pieces = [*_pieces(reply, number)]
        for piece in pieces if reply.cut is None else pieces[: reply.cut]:
            self.wfile.write(f"data: {json.dumps(piece)}\n\n".encode())
            self.wfile.flush()
        if reply.hang:
            self.chat.closed.wait()
        elif reply.broken:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            self.connection.close()
        elif reply.cut is None:
            self.wfile.write(b"data: [DONE]\n\n")


def _pieces(reply: Reply, number: int) -> Iterator[dict[str, Any]]:
    """Yield the pieces of a stream: the role, words, calls in halves, the ending, the usage."""
    usage = _usage(reply)
    yield _piece(number, {"role": "assistant", "content": ""}) | ({"usage": usage} if reply.usage_first else {})
    for word in reply.text.split(" ") if reply.text else ():
        yield _piece(number, {"content": f"{word} "})
    if reply.refusal is not None:
        yield _piece(number, {"refusal": reply.refusal})
    for at, call in enumerate(_calls(reply, number)):
        text = call["function"]["arguments"]
        half = len(text) // 2
        place = {"index": at} if reply.index else {}
        named = {"name": call["function"]["name"], "arguments": text[:half]}
        yield _piece(number, {"tool_calls": [place | {"id": call["id"], "type": "function", "function": named}]})
        yield _piece(number, {"tool_calls": [place | {"function": {"arguments": text[half:]}}]})
    yield _piece(number, {}, ending=_ending(reply))
    if usage and not reply.usage_first:
        yield {**_piece(number, {}), "choices": [], "usage": usage}


def _piece(number: int, delta: Mapping[str, Any], *, ending: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": ending}
    return {
        "id": f"chat-{number}", "object": "chat.completion.chunk", "created": 0, "model": "stub-model",
        "choices": [choice],
    }  # fmt: skip


def _whole(reply: Reply, number: int) -> dict[str, Any]:
    message = {"role": "assistant", "content": reply.text or None, "tool_calls": _calls(reply, number) or None}
    choice = {"index": 0, "message": message | {"refusal": reply.refusal}, "finish_reason": _ending(reply)}
    return {
        "id": f"chat-{number}", "object": "chat.completion", "created": 0, "model": "stub-model",
        "choices": [choice], "usage": _usage(reply),
    }  # fmt: skip


def _calls(reply: Reply, number: int) -> list[dict[str, Any]]:
    ids = reply.ids or [f"call_{number}_{at}" for at in range(len(reply.calls))]
    return [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": args if isinstance(args, str) else json.dumps(args)}}
        for call_id, (name, args) in zip(ids, reply.calls, strict=True)
    ]  # fmt: skip


def _ending(reply: Reply) -> str:
    return reply.ending or ("tool_calls" if reply.calls else "stop")


def _usage(reply: Reply) -> dict[str, int] | None:
    if reply.usage is None:
        return None
    taken, given = reply.usage
    return {"prompt_tokens": taken, "completion_tokens": given, "total_tokens": taken + given}


def _anthropic_message(reply: Reply, number: int) -> dict[str, Any]:
    taken, given = reply.usage or (0, 0)
    calls = [
        {"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": json.loads(call["function"]["arguments"])}
        for call in _calls(reply, number)
    ]  # fmt: skip
    return {
        "id": f"msg-{number}", "type": "message", "role": "assistant", "model": "stub-model",
        "content": ([{"type": "text", "text": reply.text}] if reply.text else []) + calls,
        "stop_reason": reply.ending or ("tool_use" if calls else "end_turn"), "stop_sequence": None,
        "usage": {"input_tokens": taken, "output_tokens": given},
    }  # fmt: skip


def _anthropic_events(reply: Reply, number: int) -> Iterator[dict[str, Any]]:
    """Yield the events of a stream: the message's start, each block in two halves, the ending, the usage."""
    whole = _anthropic_message(reply, number)
    yield {"type": "message_start", "message": whole | {"content": [], "stop_reason": None}}
    for at, block in enumerate(whole["content"]):
        is_text = block["type"] == "text"
        text = block["text"] if is_text else json.dumps(block["input"])
        yield {
            "type": "content_block_start",
            "index": at,
            "content_block": block | ({"text": ""} if is_text else {"input": {}}),
        }
        for half in (text[: len(text) // 2], text[len(text) // 2 :]):
            delta = (
                {"type": "text_delta", "text": half} if is_text else {"type": "input_json_delta", "partial_json": half}
            )
            yield {"type": "content_block_delta", "index": at, "delta": delta}
        yield {"type": "content_block_stop", "index": at}
    ending = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": ending, "usage": {"output_tokens": whole["usage"]["output_tokens"]}}
    yield {"type": "message_stop"}
