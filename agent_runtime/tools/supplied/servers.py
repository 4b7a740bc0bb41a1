"""MCP servers as sources of tools, on stdio and over HTTP.

A connection is made at the first use and kept. A separate task owns the connection, because the library must close a
connection in the task that opened it. Each wait has a limit, so a server that hangs delays only the calls of its tools.
A server gets no model, no files and no answers of the author, because it is offered none of these parts of MCP.
"""

import asyncio
import contextlib
import contextvars
import os
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Self, TextIO

import httpx2
from dotenv import dotenv_values
from mcp import Client, MCPError, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from agent_runtime.graph.models.make import SHORTEST, redact
from agent_runtime.tools.supplied.offers import Answer, Lost, Offered, digest_of, shortened
from turnkeeper.config.home import Home
from turnkeeper.config.settings import McpServerSettings
from turnkeeper.errors import InvalidInput, TurnkeeperError, Unreachable

CONNECT_S = 10.0  # limit for a connection, and for the list of tools
CLOSE_S = 5.0
KEPT_OF_STDERR = 64_000  # bytes
MOST_TOOLS, MOST_PAGES = 200, 50
LONGEST_DESCRIPTION, LARGEST_SCHEMA = 8_000, 64_000
_NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")  # models accept at most 64 characters, including the server's name
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
_NOT_RUN = frozenset({-32600, -32601, -32602})  # invalid request, unknown method, invalid arguments
_SHAPED = ("command", "args", "env", "url", "headers", "reads")  # the settings that an approval is bound to


class _Stderr:
    """The standard error of a server. It is read as it arrives, and only its end is kept."""

    def __init__(self) -> None:
        self._end = b""
        self._read, write = os.pipe()
        os.set_blocking(self._read, False)
        self.file = os.fdopen(write, "w")
        asyncio.get_running_loop().add_reader(self._read, self._take)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        asyncio.get_running_loop().remove_reader(self._read)
        self.file.close()
        os.close(self._read)

    def last_line(self) -> str:
        self._take()
        lines = self._end.decode("utf-8", "replace").splitlines()
        return next((line for line in reversed(lines) if line.strip()), "")

    def _take(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._end = (self._end + os.read(self._read, KEPT_OF_STDERR))[-KEPT_OF_STDERR:]


class _Connection:
    """A connection. It ends after it is dropped and its last call has ended."""

    def __init__(self) -> None:
        self.ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self.over = asyncio.Event()
        self.holder: asyncio.Task[None] | None = None
        self._calls, self._is_dropped = 0, False

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """Keep the connection for the duration of a call."""
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1
            self._end_if_unused()

    def drop(self) -> None:
        self._is_dropped = True
        self._end_if_unused()

    def _end_if_unused(self) -> None:
        if self._is_dropped and not self._calls:
            self.over.set()


class Server:
    """One server of `[mcp_servers]`."""

    def __init__(self, name: str, settings: McpServerSettings, home: Home, environ: Mapping[str, str]) -> None:
        self.name = name
        self._settings, self._home, self._environ = settings, home, environ
        self._basis = digest_of(settings.model_dump(mode="json", include=set(_SHAPED)))
        self._secrets: frozenset[str] = frozenset()
        self._opening = asyncio.Lock()
        self._current: _Connection | None = None
        self._open: set[_Connection] = set()  # the current connection, and those whose last calls are running

    async def listing(self) -> list[Offered]:
        """Return the tools that the server offers, without tools that no model could call.

        Raises:
            Unreachable: the server cannot be started or reached, or does not answer in time.
            InvalidInput: its configuration names a variable that is not set.
        """
        tools, cursor = list[Any](), None
        used = await self._connected()
        client = used.ready.result()
        try:
            async with asyncio.timeout(CONNECT_S):
                for _ in range(MOST_PAGES):
                    page = await client.list_tools(cursor=cursor, cache_mode="bypass")
                    tools += page.tools
                    if (cursor := page.next_cursor) is None or len(tools) > MOST_TOOLS:
                        break
        except Exception as error:
            self._drop(used)
            raise self._unreachable(error) from error
        names = [tool.name for tool in tools]
        return [self._offered(tool) for tool in tools[:MOST_TOOLS] if names.count(tool.name) == 1 and _is_usable(tool)]

    async def call(self, name: str, args: Mapping[str, Any]) -> Answer:
        """Call a tool.

        Raises:
            Lost: the call was sent and got no answer.
            Unreachable: nothing was sent.
        """
        used = await self._connected()
        try:
            with used.call():
                async with asyncio.timeout(self._settings.timeout_s):
                    result = await used.ready.result().session.call_tool(name, dict(args))
        except MCPError as error:
            if error.error.code in _NOT_RUN:
                return Answer(text=self._said(error), ok=False)
            raise self._lost(used, error) from error
        except Exception as error:
            raise self._lost(used, error) from error
        return Answer(text=redact(_text(result), self._secrets), ok=not result.is_error)

    async def close(self) -> None:
        """End all connections, and the server if it runs on stdio."""
        for one in self._open:
            one.over.set()
        if holders := [one.holder for one in self._open if one.holder is not None]:
            await asyncio.wait(holders, timeout=CLOSE_S)

    def _offered(self, tool: Any) -> Offered:
        return Offered(
            scope=f"mcp:{self.name}.{tool.name}",
            source=self.name,
            name=tool.name,
            description=tool.description or "",
            schema=tool.input_schema,
            basis=self._basis,
            effect="external-read" if tool.name in self._settings.reads else "write",
        )

    async def _connected(self) -> _Connection:
        async with self._opening:
            if self._current is not None:
                return self._current
            made = _Connection()
            # Use a separate context, because the connection outlives the turn that opens it.
            made.holder = asyncio.create_task(self._hold(made), context=contextvars.Context())
            try:
                async with asyncio.timeout(CONNECT_S):
                    await made.ready
            except TimeoutError as error:
                made.holder.cancel()
                raise self._unreachable(error) from error
            self._current = made
            return made

    async def _hold(self, made: _Connection) -> None:
        self._open.add(made)
        with _Stderr() as said:
            try:
                async with self._opened(said.file) as client:
                    made.ready.set_result(client)
                    await made.over.wait()
            except TurnkeeperError as error:
                made.ready.set_exception(error)
            except Exception as error:  # noqa: BLE001  a server may fail in any way
                if not made.ready.done():
                    made.ready.set_exception(self._unreachable(error, said.last_line()))
            finally:
                self._open.discard(made)

    @contextlib.asynccontextmanager
    async def _opened(self, said: TextIO) -> AsyncIterator[Client]:
        settings, how = self._settings, dict[str, Any](cache=None, read_timeout_seconds=None)
        async with contextlib.AsyncExitStack() as stack:
            if not settings.command and not settings.url:
                raise InvalidInput("needs a command or a url", where=f"{self._home.config}: mcp_servers.{self.name}")
            if settings.command:
                own = StdioServerParameters(
                    command=settings.command, args=[*settings.args], env=self._filled(settings.env), cwd=self._home.root
                )
                transport: Any = stdio_client(own, errlog=said)
            else:
                limits = httpx2.Timeout(CONNECT_S, read=settings.timeout_s)
                given = httpx2.AsyncClient(headers=self._filled(settings.headers), timeout=limits)
                transport = streamable_http_client(settings.url, http_client=await stack.enter_async_context(given))
            yield await stack.enter_async_context(Client(transport, **how))

    def _filled(self, named: Mapping[str, str]) -> dict[str, str]:
        """Return texts with each $NAME replaced, from the environment, else from the home's `.env`."""
        self._home.check_keys()
        env = self._home.environment
        known = dotenv_values(env, interpolate=False) if env.is_file() else {}
        known = {**known, **os.environ, **self._environ}
        found = set[str]()

        def value(match: re.Match[str]) -> str:
            name = match[1] or match[2]
            if not (text := known.get(name)):
                where = f"{self._home.config}: mcp_servers.{self.name}"
                raise InvalidInput(f"${name} is not set", where=where, hint=f"put {name}=… into {env}")
            found.add(text)
            return text

        filled = {key: _VARIABLE.sub(value, text) for key, text in named.items()}
        self._secrets = self._secrets.union(text for text in found if len(text) >= SHORTEST)
        return filled

    def _drop(self, used: _Connection) -> None:
        """Forget a connection; the next use makes a new connection."""
        if self._current is used:
            self._current = None
        used.drop()

    def _lost(self, used: _Connection, error: Exception) -> Lost:
        self._drop(used)
        return Lost(f"the server {self.name} gave no answer to the call ({self._said(error)})")

    def _unreachable(self, error: Exception, said: str = "") -> Unreachable:
        why = f"{self._said(error)}{f': {said}' if said else ''}"
        return Unreachable(f"cannot be used: {shortened(redact(why, self._secrets))}", where=f"mcp server {self.name}")

    def _said(self, error: BaseException) -> str:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, TimeoutError):
            return "it does not answer in time"
        return shortened(redact(str(error) or type(error).__name__, self._secrets))


def _is_usable(tool: Any) -> bool:
    """Return whether a model could call a tool, and its author could read the tool's description."""
    if not _NAME.fullmatch(tool.name) or len(tool.description or "") > LONGEST_DESCRIPTION:
        return False
    return len(str(tool.input_schema)) <= LARGEST_SCHEMA and tool.input_schema.get("type") == "object"


def _text(result: Any) -> str:
    """Return the texts of a result; for other content, its kind and size."""
    parts = [*_texts(result)]
    if not parts and result.structured_content is not None:
        return str(result.structured_content)
    return "\n".join(parts)


def _texts(result: Any) -> Iterator[str]:
    for one in result.content:
        text = getattr(getattr(one, "resource", one), "text", None)
        left_out = f"({one.type}, {len(str(getattr(one, 'data', '')))} characters, left out)"
        yield text if isinstance(text, str) else left_out
