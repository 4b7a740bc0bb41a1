"""The tools that the author supplies, as the built-in agent calls them.

A call is recorded before it is sent, and its answer is recorded before the model sees it. So a call that runs again
after a crash gets its answer. If there is no answer, it asks the author, because the first run may have had its effect.
If a server gave no answer to a call, the other calls of the server in the turn ask as well.

Just before a call, the server lists its tools once more. The call is sent only if the tool is what the gate judged.
"""

import asyncio
import importlib.util
import json
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from langchain_core.tools import StructuredTool, ToolException
from langgraph.types import interrupt
from sqlalchemy import Connection, insert, select, update

from agent_runtime.graph.context import Content, ToolSpec
from agent_runtime.graph.guard.identity import identity
from agent_runtime.store.idempotency import Call, refuse_ended
from agent_runtime.store.schema import effects
from agent_runtime.tools.call import Runtime, call_of
from agent_runtime.tools.supplied import offers
from agent_runtime.tools.supplied.offers import Answer, Lost, Offered, Source
from turnkeeper.bus.envelope import check_text
from turnkeeper.config.started import add_files
from turnkeeper.errors import InvalidInput, TurnkeeperError
from turnkeeper.rpc.process import Failpoints
from turnkeeper.times import to_us

_PACKAGE = "turnkeeper_tools"  # prefix of the files' module names, by which a tool's digest names them
LONGEST_ANSWER = 16_000  # characters
LOOK_EVERY_S = 60.0
MOST_JUDGED = 1024
_RUNTIME = "turnkeeper_runtime"  # the argument that LangGraph adds
AGAIN, LEAVE = "run it", "leave it"
BEGUN, DONE, LOST, OVER = "begun", "done", "lost", "over"  # the state of a call in its row


class ToolFile:
    """One file of `[tools] files`: each function with LangChain's `@tool` is a tool.

    A function runs in the runtime's process, in a thread or on its event loop. No object of LangGraph reaches the
    function: it gets the arguments that the model gave, and returns text or a value that JSON can represent.
    """

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path
        self._tools: dict[str, StructuredTool] = {}

    def load(self) -> list[Offered]:
        """Import the file; return its tools. Raises InvalidInput with file and line."""
        tools = [one for one in vars(self._imported()).values() if isinstance(one, StructuredTool)]
        if not tools:
            hint = "write @tool above a function: from langchain_core.tools import tool"
            raise InvalidInput("contains no function with @tool", where=self.name, hint=hint)
        self._tools = {tool.name: tool for tool in tools}
        return [self._offered(tool) for tool in self._tools.values()]

    def now(self, name: str) -> Offered:
        """Return a tool with its present code and values."""
        return self._offered(self._tools[name])

    async def listing(self) -> list[Offered]:
        """Return the tools as they were loaded: a file that changes later has no effect until a restart."""
        return [self._offered(tool) for tool in self._tools.values()]

    async def call(self, name: str, args: Mapping[str, Any]) -> Answer:
        """Call a function. An exception of the function is its answer, marked as an error."""
        tool = self._tools[name]
        try:
            given = _checked(tool, args)
        except ValueError as error:
            return Answer(text=str(error), ok=False)
        try:
            if tool.coroutine is not None:
                found = await tool.coroutine(**given)
            else:
                function: Any = tool.func
                found = await asyncio.to_thread(function, **given)
        except ToolException as error:
            return Answer(text=str(error), ok=False)
        except Exception as error:  # noqa: BLE001  the author's function may raise anything
            return Answer(text=f"{type(error).__name__}: {error} ({_line(error, self._path)})", ok=False)
        return Answer(text=found if isinstance(found, str) else json.dumps(found, ensure_ascii=False, default=str))

    async def close(self) -> None:
        """Do nothing, because a function has no connection."""

    def _imported(self) -> Any:
        name = f"{_PACKAGE}.{self._path.stem}"
        spec = importlib.util.spec_from_file_location(name, self._path)
        if spec is None or spec.loader is None or not self._path.is_file():
            hint = "[tools] files names files that end in .py"
            raise InvalidInput("is not a Python file", where=self.name, hint=hint)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        if (folder := str(self._path.parent)) not in sys.path:
            sys.path.append(folder)  # for modules that the file imports from its own folder
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            what = f"cannot be imported: {type(error).__name__}: {offers.shortened(str(error))}"
            raise InvalidInput(what, where=_line(error, self._path)) from error
        return module

    def _offered(self, tool: StructuredTool) -> Offered:
        kind: Any = tool.tool_call_schema
        schema = kind.model_json_schema()
        if injected := _parameters(tool).model_fields.keys() - schema.get("properties", {}).keys():
            what = f"{tool.name} takes {', '.join(sorted(injected))}, which no model gives"
            raise InvalidInput(what, where=self.name)
        held = identity(tool)
        return Offered(
            scope=f"tools:{tool.name}",
            source=self.name,
            name=tool.name,
            description=tool.description,
            schema=schema,
            basis=held.digest,
            inexact=held.inexact,
        )


def _checked(tool: StructuredTool, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments, converted to the types of the function. Raises ValueError."""
    read = _parameters(tool).model_validate(dict(args))
    return {name: getattr(read, name) for name in type(read).model_fields}


def _parameters(tool: StructuredTool) -> Any:
    return tool.get_input_schema()


def _line(error: BaseException, path: Path) -> str:
    """Return the innermost line of the file in an error's traceback."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    place, step = str(path), error.__traceback__
    while step is not None:
        place = f"{path}:{step.tb_lineno}" if step.tb_frame.f_code.co_filename == str(path) else place
        step = step.tb_next
    return place


def supplied_tools(basis: Any, store: Any, own: Sequence[ToolSpec]) -> list[ToolSpec]:
    """Return the tools of the home's servers and files for the built-in agent, and check the servers from now on.

    The function waits for no server. `status` reports the problems of a server or a file; they do not prevent a start.
    """
    if basis.graphs.default is not None:
        return []
    found = Supply(store, basis)
    specs = found.load(basis.settings, {spec.tool.name for spec in own})
    if files := [Path(name).expanduser() for name in basis.settings.tools.files]:
        add_files(basis.home, offers.PROCESS, [*basis.graphs.files, *(basis.home.root / file for file in files)])
    if found.sources:
        watch = asyncio.create_task(found.watch())
        basis.stack.push_async_callback(found.close, watch)
    return specs


def facts(settings: Any, home: Any) -> dict[str, tuple[str, str]]:
    """Return scope and effect of each supplied tool, by its name for models. The function asks no server."""
    accepted = [one for one in offers.read_accepted(home).values() if one.source in settings.mcp_servers]
    return {one.model_name: (one.scope, one.effect) for one in accepted}


def open_sources(settings: Any, home: Any, environ: Any) -> tuple[dict[str, Source], dict[str, ToolFile]]:
    """Return the home's servers and files, by name; nothing is connected or imported. Raises InvalidInput."""
    servers: dict[str, Source] = {}
    if settings.mcp_servers:
        try:
            kind = importlib.import_module("agent_runtime.tools.supplied.servers").Server
        except ImportError as error:
            hint = "run: pip install 'turnkeeper[mcp]'"
            raise InvalidInput("needs a package that is not installed", where="[mcp_servers]", hint=hint) from error
        servers = {name: kind(name, one, home, environ) for name, one in settings.mcp_servers.items()}
    files = [ToolFile(home.root / Path(name).expanduser()) for name in settings.tools.files]
    return servers, {file.name: file for file in files}


class SuppliedTool(StructuredTool):
    """A tool whose arguments may have any names, because they do not become parameters of a Python function."""

    def _to_args_and_kwargs(self, tool_input: Any, tool_call_id: str | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
        del tool_call_id
        given = dict(tool_input)
        return (), {_RUNTIME: given.pop(_RUNTIME, None), "given": given}


class Supply:
    """The supplied tools of a runtime."""

    def __init__(self, store: Any, basis: Any) -> None:
        self.sources: dict[str, Source] = {}
        self._store, self._basis, self._home = store, basis, basis.home
        self._failpoints = Failpoints(basis.environ)
        self._files: dict[str, ToolFile] = {}  # by scope
        self._accepted: dict[str, Offered] = {}
        self._now: dict[str, Offered | None] = {}  # the tools by scope, as they were last listed
        self._judged: dict[str, str] = {}  # by call: the content that the gate judged
        self._problems: dict[str, str] = {}
        self._written: dict[str, str] | None = None

    def load(self, settings: Any, taken: Collection[str]) -> list[ToolSpec]:
        """Import the files, and read which tools of the servers the author accepted. Return the tools.

        A function with one of the names `taken` is refused, because it could pass for a built-in tool.
        """
        try:
            servers, files = open_sources(settings, self._home, self._basis.environ)
            accepted = offers.read_accepted(self._home)
        except TurnkeeperError as error:
            self._report({"tools": str(error)})
            return []
        self.sources = servers
        self._accepted = {scope: one for scope, one in accepted.items() if one.source in servers}
        specs = [self._spec(one) for one in self._accepted.values()]
        problems = dict[str, str]()
        for name, file in files.items():
            try:
                for one in file.load():
                    if one.scope in self._files or one.name in taken:
                        raise InvalidInput(f"another tool is called {one.name}", where=name, hint="rename the function")
                    self._files[one.scope] = file
                    specs.append(self._spec(one))
            except TurnkeeperError as error:
                problems[name] = str(error)
        self._report(problems)
        return specs

    async def watch(self) -> None:
        """Check each server regularly, so that its state is known before a call."""
        while True:
            await asyncio.gather(*(self._look(source) for source in self.sources.values()))
            await self._basis.clock.sleep(LOOK_EVERY_S)

    async def close(self, watch: "asyncio.Task[None]") -> None:
        """End all connections."""
        watch.cancel()
        await asyncio.gather(*(source.close() for source in self.sources.values()), return_exceptions=True)

    def _spec(self, offered: Offered) -> ToolSpec:
        async def run(turnkeeper_runtime: Runtime, given: Mapping[str, Any]) -> str:
            call = call_of(turnkeeper_runtime)
            return await self._run(offered, call, str(turnkeeper_runtime.tool_call_id), given)

        tool = SuppliedTool(
            name=offered.model_name,
            description=offered.description or offered.name,
            args_schema=dict(offered.schema),
            coroutine=run,
            handle_tool_error=True,
        )
        return ToolSpec(
            tool=tool,
            scope=offered.scope,
            effect=offered.effect,
            content=lambda call: self._content(offered, call),
        )

    def _content(self, offered: Offered, call: str) -> Content:
        """Return the content that the gate judges a call by, and remember the content until just before the call."""
        scope = offered.scope
        if scope in self._files:
            now = self._files[scope].now(offered.name)
            return Content(digest=now.content, inexact=now.inexact)
        seen = self._now.get(scope, offered)
        digest = seen.content if seen is not None else ""
        self._judged[call] = digest
        while len(self._judged) > MOST_JUDGED:
            del self._judged[next(iter(self._judged))]
        why = offered.changed(seen)
        return Content(digest=digest, asks=f"{scope}: {why}: turnkeeper tools list" if why else "")

    async def _run(self, offered: Offered, call: Call, call_id: str, args: Mapping[str, Any]) -> str:
        """Run an admitted call, once. Raises ToolException with the text for the model."""
        judged = self._judged.pop(f"{call.context.turn_id}|{call_id}", None)
        earlier = await self._store.read(_rows, call.context.turn_id)
        own = earlier.get(call.key, {})
        if own.get("state") == DONE:
            return _told(offered, Answer(text=own["text"], ok=own["ok"]))
        lost = [key for key, one in earlier.items() if one["state"] == LOST and one["source"] == offered.source]
        asks = offered.effect == "write" and own.get("state") != OVER and bool(own or lost)
        if asks:
            self._ask(offered, args, itself=bool(own))
        source: Source | None = self._files.get(offered.scope)
        if source is None:
            source = self.sources[offered.source]
            await self._look_before(source, offered, judged)
        before = [*(lost if asks else ()), *([call.key] * bool(own))]  # a read leaves a lost write to be asked about
        await self._store.write(_begin, call, offered, to_us(self._basis.clock.now()), before)
        self._failpoints.reach("tool.begun")
        try:
            answer = await source.call(offered.name, args)
        except Lost as error:
            await self._store.write(_set, call.key, {"state": LOST, "source": offered.source})
            self._report({**self._problems, offered.source: str(error)})
            raise ToolException(f"{error}; it may have had its effect, so do not repeat it unasked") from error
        except TurnkeeperError as error:
            answer = Answer(text=str(error), ok=False)
        self._failpoints.reach("tool.answered")
        text = _cut(answer.text)
        done = {"state": DONE, "source": offered.source, "text": text, "ok": answer.ok}
        await self._store.write(_set, call.key, done)
        self._failpoints.reach("tool.written")
        return _told(offered, Answer(text=text, ok=answer.ok))

    def _ask(self, offered: Offered, args: Mapping[str, Any], *, itself: bool) -> None:
        """Ask the author whether a call should run although it, or an earlier call, may have had its effect already."""
        began = "This call began before" if itself else f"An earlier call of {offered.source} in this turn began"
        question = f"{began}, and its answer was lost: it may have had its effect. Run {offered.scope} now?"
        asked = {"question": question, "options": [AGAIN, LEAVE], "allows_text": False}  # a message decides nothing
        said = interrupt(asked | {"tool": offered.scope, "args": dict(args)})
        if said not in (AGAIN, True):
            raise ToolException("the author left it: an earlier call may have had its effect; this call was not run")

    async def _look_before(self, source: Source, offered: Offered, judged: str | None) -> None:
        """List the tools of a server once more; refuse the call if its tool is not the one that the gate judged."""
        if why := await self._look(source):
            raise ToolException(f"{why}; nothing was sent")
        now = self._now.get(offered.scope)
        if now is None:
            raise ToolException(f"{offered.source} no longer offers {offered.name}; nothing was sent")
        if judged != now.content:
            raise ToolException(f"{offered.scope} has just changed, so this call was not sent; call it again")

    async def _look(self, source: Source) -> str:
        """List the tools of a server; return why the list cannot be read."""
        try:
            listed = {one.scope: one for one in await source.listing()}
        except TurnkeeperError as error:
            self._report({**self._problems, source.name: str(error)})
            return str(error)
        own = {scope: one for scope, one in self._accepted.items() if one.source == source.name}
        self._now |= {scope: listed.get(scope) for scope in own}
        found = {scope: why for scope, one in own.items() if (why := one.changed(listed.get(scope)))}
        if fresh := listed.keys() - own.keys():
            found[source.name] = f"offers {len(fresh)} tools that you have not accepted: turnkeeper tools accept"
        others = {name: why for name, why in self._problems.items() if name not in {source.name, *own}}
        self._report(others | found)
        return ""

    def _report(self, problems: Mapping[str, str]) -> None:
        """Write the problems for `status`, if they changed; log the new ones."""
        if problems == self._written:
            return
        for name, why in problems.items() - self._problems.items():
            self._basis.log.emit("tools.problem", name=name, reason=why)
        self._problems = self._written = dict(problems)
        offers.write_problems(self._home, problems)


def _rows(connection: Connection, turn_id: str) -> dict[str, Any]:
    """Return the calls of supplied tools in a turn, by key."""
    found = connection.execute(select(effects.c.effect_key, effects.c.scope, effects.c.result_json)
                               .where(effects.c.turn_id == turn_id)).all()  # fmt: skip
    return {key: json.loads(said) for key, scope, said in found if scope.startswith(("mcp:", "tools:"))}


def _begin(connection: Connection, call: Call, offered: Offered, at_us: int, before: Sequence[str]) -> None:
    """Record that a call is about to be sent. Raises Denied if its turn has ended."""
    refuse_ended(connection, call.context)
    begun = {"state": BEGUN, "source": offered.source}
    for key in before:
        _set(connection, key, {"state": OVER, "source": offered.source} if key != call.key else begun)
    if call.key not in before:
        row = {"effect_key": call.key, "turn_id": call.context.turn_id, "scope": offered.scope, "at_us": at_us}
        connection.execute(insert(effects).values(row | {"result_json": json.dumps(begun)}))


def _set(connection: Connection, key: str, said: Mapping[str, Any]) -> None:
    connection.execute(update(effects).where(effects.c.effect_key == key).values(result_json=json.dumps(said)))


def _cut(text: str) -> str:
    """Return text that contains no wrapper's token, with at most as many characters as a model should read."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    try:
        check_text(text)
    except InvalidInput:
        text = text.encode("ascii", "backslashreplace").decode().replace("<", "\\u003c")
    return text if len(text) <= LONGEST_ANSWER else f"{text[:LONGEST_ANSWER]} … ({len(text)} characters in all)"


def _told(offered: Offered, answer: Answer) -> str:
    """Return an answer as one JSON text, so that no part of it looks like the words of another speaker."""
    said = json.dumps({"from": offered.scope, "result": answer.text}, ensure_ascii=False)
    if not answer.ok:
        raise ToolException(said)
    return said
