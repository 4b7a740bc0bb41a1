"""An MCP server whose tools and behaviour stand in a folder: `python mcp_server.py FOLDER [KEY]`.

`command` is the same program as a fork of a process that has imported the library, which takes most of a start.

It speaks on stdio. With a key it speaks over HTTP, to those who send the key, at the port that the file `port` names.

`tools.json` says what it offers at each listing. A call is written into `calls.jsonl` before it is answered. A file
`do` says how the next call ends: `die` (killed after the call), `hang`, `deaf` (no listing is answered either), `slow`
(nothing else is answered until something is written into the pipe `go`), `shout` (after much on stderr), or the text
of the answer.
"""

import asyncio
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import mcp_types as types
import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from starlette.responses import PlainTextResponse

ADD = {
    "name": "note",
    "description": "Write a note.",
    "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
}
SHOUTED = 50_000  # lines


class Folder:
    """The folder of a server, for the server and for its test."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def offer(self, *tools: dict[str, Any]) -> None:
        """Offer these tools at the next listing; without any, one that writes a note."""
        self.path.mkdir(exist_ok=True)
        (self.path / "tools.json").write_text(json.dumps(tools or [ADD]))

    def do(self, what: str) -> None:
        (self.path / "do").write_text(what)

    @property
    def listings(self) -> int:
        """The listings that the server has answered, or is about to."""
        path = self.path / "listings"
        return path.stat().st_size if path.exists() else 0

    @property
    def calls(self) -> list[Any]:
        """The calls that reached the server, each with its arguments."""
        path = self.path / "calls.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def pid(self) -> int:
        return int((self.path / "pid").read_text())


async def _end(folder: Path) -> str:
    try:
        what = (folder / "do").read_text()
    except FileNotFoundError:
        return f"done by {os.environ.get('WHO', 'nobody')}"
    (folder / "do").unlink()
    if what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if what in {"hang", "deaf"}:
        await asyncio.Event().wait()
    if what == "slow":
        (folder / "go").read_text()
    if what == "shout":
        sys.stderr.write(f"{'a' * 79}\n" * SHOUTED)
    return what


def make_server(folder: Path) -> Server[Any]:
    async def list_tools(_context: Any, _params: Any) -> types.ListToolsResult:
        if (folder / "do").exists() and (folder / "do").read_text() == "deaf":
            await asyncio.Event().wait()
        said = json.loads((folder / "tools.json").read_text())
        with (folder / "listings").open("a") as file:
            file.write(".")
        return types.ListToolsResult(tools=[types.Tool.model_validate(tool) for tool in said])

    async def call_tool(_context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        with (folder / "calls.jsonl").open("a") as file:
            file.write(json.dumps({params.name: params.arguments}) + "\n")
        text = await _end(folder)
        return types.CallToolResult(content=[types.TextContent(text=text)], is_error=text.startswith("error"))

    return Server("test", on_list_tools=list_tools, on_call_tool=call_tool)


async def serve(folder: Path) -> None:
    server = make_server(folder)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


async def serve_http(folder: Path, key: str) -> None:
    app = make_server(folder).streamable_http_app()

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and (b"authorization", f"Bearer {key}".encode()) not in scope["headers"]:
            await PlainTextResponse("no key", 401)(scope, receive, send)
            return
        await app(scope, receive, send)

    place = socket.create_server(("127.0.0.1", 0))
    (folder / "port").write_text(str(place.getsockname()[1]))
    await uvicorn.Server(uvicorn.Config(guarded, log_level="error")).serve(sockets=[place])


def command(folder: Path) -> list[str]:
    """Return the command line of a fork that serves this folder on stdio."""
    from tests.support.forked_daemons import fork_server, program

    fork_server().wait()  # a client gives a server that starts a few seconds
    return [*program("tests.support.mcp_server"), str(folder)]


def main(argv: list[str]) -> int:
    folder = Path(argv[0])
    (folder / "pid").write_text(str(os.getpid()))
    if (folder / "deaf").exists():
        sys.stdin.read()
    asyncio.run(serve(folder) if len(argv) < 2 else serve_http(folder, argv[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
