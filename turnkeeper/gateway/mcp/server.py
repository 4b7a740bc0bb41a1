"""The MCP server: tools, resources and prompts over the two daemons, for any transport.

Change notifications are hints. A client that missed one can read the resource again.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version
from typing import Any

import mcp_types
from mcp import MCPError
from mcp.server import Server as LowLevelServer
from mcp.server.connection import Connection
from mcp.server.mcpserver import Context, MCPServer, exceptions
from mcp.server.mcpserver.resources import FunctionResource
from mcp.server.subscriptions import InMemorySubscriptionBus, ResourceUpdated
from pydantic import ValidationError

from turnkeeper.console.unseen import as_json, plain
from turnkeeper.errors import InvalidInput, NotFound, TurnkeeperError
from turnkeeper.gateway.mcp import model
from turnkeeper.gateway.mcp.desk import Desk, caller_of
from turnkeeper.gateway.mcp.tools import SCOPES, tools
from turnkeeper.v1 import agent_runtime_pb2 as runtime
from turnkeeper.v1 import schedules_pb2 as runner

NAME = "turnkeeper"
JSON = "application/json"
TASKS, INBOX, CONVERSATIONS = "turnkeeper://tasks", "turnkeeper://inbox", "turnkeeper://conversations"
VIA = "turnkeeper/mcp"
MOST_SUBSCRIBED = 100  # per connection
_SLOWEST_S = 5.0
_AGAIN_S = 1.0  # seconds between attempts to follow a daemon that is unavailable
_NO_QUESTION = frozenset({runtime.TurnEvent.STARTED, runtime.TurnEvent.HELD})
Publish = Callable[[str], Awaitable[None]]
INSTRUCTIONS = f"""\
Turnkeeper gives an agent standing work. Tasks fire on schedules, also after crashes and sleep, and their turns ask the
person before they do what they were not granted.

- Schedule with task_create. Look before with schedule_preview, and afterwards with task_explain: did it run, why not.
- Decisions are the person's. When something waits, tell them, and call approval_request_decision: it asks them.
- Give request_id to message_send and task_control, so that a call that you repeat has one effect.
- {model.QUOTES}
"""


class Subscribers:
    """Subscribers of resources: through streams of the 2026 protocol, or subscriptions of the 2025 protocol."""

    def __init__(self) -> None:
        self.bus = InMemorySubscriptionBus()
        self._uris: dict[Connection, set[str]] = {}

    def serve(self, inner: LowLevelServer[Any]) -> None:
        """Handle subscriptions of the 2025 protocol."""
        inner.add_request_handler("resources/subscribe", mcp_types.SubscribeRequestParams, self._subscribe)
        inner.add_request_handler("resources/unsubscribe", mcp_types.UnsubscribeRequestParams, self._unsubscribe)

    async def publish(self, uri: str) -> None:
        """Notify all subscribers of a resource of its change; drop clients that do not read."""
        await self.bus.publish(ResourceUpdated(uri=uri))
        for connection in [one for one, uris in self._uris.items() if uri in uris]:
            try:
                async with asyncio.timeout(_SLOWEST_S):
                    await connection.send_resource_updated(uri)
            except TimeoutError:
                self._uris.pop(connection, None)

    async def _subscribe(self, ctx: Any, params: mcp_types.SubscribeRequestParams) -> mcp_types.EmptyResult:
        connection = ctx.session._connection  # noqa: SLF001  a handler is given no other way to it
        if connection not in self._uris:
            self._uris[connection] = set()
            connection.exit_stack.callback(self._uris.pop, connection, None)
        if len(self._uris[connection]) >= MOST_SUBSCRIBED:
            raise _refusal(f"a connection may follow at most {MOST_SUBSCRIBED} resources; unsubscribe from one")
        self._uris[connection].add(str(params.uri))
        return mcp_types.EmptyResult()

    async def _unsubscribe(self, ctx: Any, params: mcp_types.UnsubscribeRequestParams) -> mcp_types.EmptyResult:
        self._uris.get(ctx.session._connection, set()).discard(str(params.uri))  # noqa: SLF001
        return mcp_types.EmptyResult()


class Server(MCPServer[Desk]):
    """An MCP server that gives advice in its errors, and has tools that refuse unknown arguments."""

    @property
    def inner(self) -> LowLevelServer[Desk]:
        """The wrapped server. The SDK's transports need it, and only it supports subscriptions of the 2025 protocol."""
        return self._lowlevel_server

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Desk, Any] | None = None
    ) -> mcp_types.CallToolResult | mcp_types.InputRequiredResult:
        """Call a tool. Raises ToolError with the error, the argument and advice."""
        try:
            if context is not None and name in SCOPES:
                caller_of(context).check(SCOPES[name])
            await self._check_names(name, arguments)
            result = await super().call_tool(name, arguments, context)
        except TurnkeeperError as error:
            raise exceptions.ToolError(plain(model.naming_tools(str(error)))) from error
        except exceptions.ToolError as error:
            raise _explained(error) from error.__cause__
        if isinstance(result, mcp_types.CallToolResult) and result.structured_content is not None:
            result.structured_content = model.written(result.structured_content)
            text = as_json(model.compact(result.structured_content))
            result.content = [mcp_types.TextContent(type="text", text=text)]
        return result

    async def _check_names(self, name: str, arguments: dict[str, Any]) -> None:
        """Raise InvalidInput if an argument is unknown to the tool."""
        schema = next((tool.input_schema for tool in await self.list_tools() if tool.name == name), None)
        if schema is not None and (unknown := sorted(set(arguments) - set(schema["properties"]))):
            hint = f"it takes {', '.join(schema['properties'])}"
            raise InvalidInput(f"{name} has no argument of this name", where=unknown[0][:60], hint=hint)

    async def get_prompt(
        self, name: str, arguments: dict[str, Any] | None = None, context: Context[Desk, Any] | None = None
    ) -> mcp_types.GetPromptResult | mcp_types.InputRequiredResult:
        """Return a prompt. Raises MCPError if the prompt does not exist or its arguments are not valid."""
        prompts, given = {one.name: one for one in await self.list_prompts()}, set(arguments or {})
        if name not in prompts:
            raise _refusal(f"no prompt {name[:60]!r}; use one of: {', '.join(prompts)}")
        takes = {one.name: bool(one.required) for one in prompts[name].arguments or ()}
        wrong = sorted(given - set(takes)) or [one for one, needed in takes.items() if needed and one not in given]
        if wrong:
            needs = ", ".join(f"{one}{'' if needed else ' (optional)'}" for one, needed in takes.items())
            problem = "takes no argument" if wrong[0] in given else "needs the argument"
            raise _refusal(f"prompt {name} {problem} {wrong[0][:60]!r}; it takes {needs or 'none'}")
        return await super().get_prompt(name, arguments, context)

    async def read_resource(self, uri: Any, context: Context[Desk, Any] | None = None) -> Any:
        """Read a resource. Raises ResourceError with the error and advice."""
        try:
            return await super().read_resource(uri, context)
        except exceptions.ResourceError as error:
            cause = error.__cause__
            if isinstance(cause, NotFound):
                raise exceptions.ResourceNotFoundError(model.naming_tools(str(cause))) from cause
            if isinstance(cause, TurnkeeperError):
                raise exceptions.ResourceError(model.naming_tools(str(cause))) from cause
            raise


def _refusal(why: str) -> MCPError:
    """Return an error that is sent to the client and, unlike a handler's other exceptions, is not logged."""
    return MCPError(mcp_types.INVALID_PARAMS, why)


def _explained(error: exceptions.ToolError) -> exceptions.ToolError:
    """Return a tool's error in our words. Keep its cause."""
    cause = error.__cause__
    if isinstance(cause, TurnkeeperError):
        return exceptions.ToolError(model.naming_tools(str(cause)))
    if isinstance(cause, ValidationError):
        said = (f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in cause.errors(include_input=False))
        return exceptions.ToolError("; ".join(said))
    return error


def make_server(desk: Desk) -> tuple[Server, Subscribers]:
    """Return a server for one home, and its subscribers, which :func:`following` notifies."""

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[Desk]:
        yield desk

    subscribers = Subscribers()
    server = Server(
        NAME,
        title="Turnkeeper",
        description="Standing work for agents: schedules that survive crashes, turns within what was granted.",
        instructions=INSTRUCTIONS,
        version=version("turnkeeper"),
        tools=tools(),
        log_level="WARNING",
        lifespan=lifespan,
        subscriptions=subscribers.bus,
    )
    subscribers.serve(server.inner)
    _add_resources(server, desk)
    _add_prompts(server)
    return server, subscribers


def _add_resources(server: Server, desk: Desk) -> None:
    async def tasks() -> str:
        """List all tasks by next fire time, soonest first."""
        answer = await desk.call(runner.ListTasksRequest(limit=1000), VIA)
        return _document(tasks=model.views(model.TaskView, answer.tasks))

    async def inbox() -> str:
        """List all approvals that wait for the person."""
        answer = await desk.call(runtime.ListInterruptsRequest(limit=1000), VIA)
        return _document(approvals=model.views(model.ApprovalView, answer.interrupts))

    async def history(name: str) -> str:
        """List the fires and skipped times of a task with their reasons, newest first."""
        answer = await desk.call(runner.ListFiresRequest(name=name, limit=100), VIA)
        return _document(fires=model.views(model.FireView, answer.fires))

    async def conversation(channel: str) -> str:
        """List the newest turns of a channel, oldest first."""
        request = runtime.GetConversationRequest(channel=channel, limit=20)
        return _document(turns=model.views(model.TurnView, (await desk.call(request, VIA)).turns))

    async def page(id: str) -> str:  # noqa: A002  the name in the address
        """Return a page of the workspace."""
        return _document(page=model.view(model.PageView, await desk.call(runtime.GetPageRequest(page_id=id), VIA)))

    for uri, read in ((TASKS, tasks), (INBOX, inbox)):
        server.add_resource(FunctionResource.from_function(read, uri, mime_type=JSON))
    server.resource(f"{TASKS}/{{name}}/history", mime_type=JSON)(history)
    server.resource(f"{CONVERSATIONS}/{{channel}}", mime_type=JSON)(conversation)
    server.resource("turnkeeper://pages/{id}", mime_type=JSON)(page)


def _document(**found: Any) -> str:
    shown = {
        key: [one.model_dump() for one in value] if isinstance(value, list) else value.model_dump()
        for key, value in found.items()
    }
    return as_json(model.compact(model.written({"quotes": model.QUOTES, **shown})))


def _add_prompts(server: Server) -> None:
    @server.prompt()
    def schedule_work(what: str, when: str = "") -> str:
        """Schedule standing work for an agent."""
        return (
            f"Schedule this work with Turnkeeper: {what}\nWhen: {when or 'ask me'}\n"
            "Show me the next times with schedule_preview, and ask whether they are right. Then call task_create."
        )

    @server.prompt()
    def why_did_it_not_run(task: str, at: str = "") -> str:
        """Find out why a task did not run."""
        return (
            f"Why did the task {task} not run{f' at {at}' if at else ''}? Call task_explain, and task_show if need be. "
            "Tell me in two sentences what happened and which rule decided, and what I can change."
        )

    @server.prompt()
    def review_inbox() -> str:
        """Go through what waits for the person."""
        return (
            "Call inbox_list. For each thing that waits, tell me in a sentence what an agent wants to do and what "
            "speaks against it. Then call approval_request_decision for those that I name."
        )


@asynccontextmanager
async def following(desk: Desk, publish: Publish) -> AsyncIterator[None]:
    """During the block, publish changes and wake tools that wait for a turn. A daemon may be unavailable meanwhile."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_keep(desk, one, publish)) for one in (_follow_tasks, _follow_turns)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


async def _keep(desk: Desk, one: Callable[[Desk, Publish], Awaitable[None]], publish: Publish) -> None:
    while True:
        with suppress(TurnkeeperError):
            await one(desk, publish)
        await desk.clock.sleep(_AGAIN_S)
        for uri in (TASKS, INBOX):  # a change may have been missed
            await publish(uri)


async def _follow_tasks(desk: Desk, publish: Publish) -> None:
    async for change in desk.daemons.by(VIA).WatchTasks(runner.WatchTasksRequest(names_only=True)):
        if change.change != "watching":
            await publish(TASKS)
        if change.name:
            await publish(f"{TASKS}/{change.name}/history")


async def _follow_turns(desk: Desk, publish: Publish) -> None:
    request = runtime.WatchTurnsRequest(from_now=True, details=True)
    async for event in desk.daemons.by(VIA).WatchTurns(request):
        for changed in desk.watched.get(event.turn_id, ()):
            changed.set()
        if event.state not in _NO_QUESTION:
            await publish(INBOX)
        if event.channel:
            await publish(f"{CONVERSATIONS}/{event.channel}")
