"""Handlers of crons and assistants."""

import json
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from turnkeeper.errors import Conflict, NotFound, Unreachable
from turnkeeper.gateway.keys import Scope
from turnkeeper.gateway.lg import api as lg
from turnkeeper.gateway.lg.conversation import holds
from turnkeeper.gateway.lg.crons import changed_spec, cron_of, spec_of
from turnkeeper.gateway.lg.requests import refuse
from turnkeeper.v1 import agent_runtime_pb2 as runtime_wire
from turnkeeper.v1 import schedules_pb2 as wire

_OURS = "assistants are declared in config.toml"
AWAY = 20  # attempts to reach a daemon that is away while it creates a task


class Assistants(lg.Handlers):
    """The handlers of assistants: the graphs and assistants that config.toml declares."""

    def routes(self) -> list[Route]:
        one = "/assistants/{assistant_id}"
        return lg.routes_of(
            ("POST", "/assistants", self.refused),
            ("POST", "/assistants/search", self.search),
            ("POST", "/assistants/count", self.count),
            ("GET", one, self.get),
            ("PATCH", one, self.refused),
            ("DELETE", one, self.refused),
            ("GET", f"{one}/graph", self.graph),
            ("GET", f"{one}/schemas", self.schemas),
            ("GET", f"{one}/subgraphs", self.subgraphs),
            ("GET", f"{one}/subgraphs/{{namespace}}", self.subgraphs),
            ("POST", f"{one}/versions", self.refused),
            ("POST", f"{one}/latest", self.refused),
        )

    async def _found(self, request: Request) -> list[dict[str, Any]]:
        _, runtime = self._api.asks(request)
        body = await lg.read_body(request)
        found = [self._shown(one) for one in await self._api.assistants(runtime)]
        wanted = {name: body[name] for name in ("graph_id", "name") if body.get(name)}
        wanted |= {"graph_id": self._api.name_of(wanted["graph_id"])} if "graph_id" in wanted else {}
        return [one for one in found if holds(one, wanted) and holds(one["metadata"], body.get("metadata") or {})]

    def _shown(self, one: runtime_wire.Graph) -> dict[str, Any]:
        about = {"created_by": "system", "turnkeeper": {"reference": one.reference, "problem": one.problem or None}}
        return {
            "assistant_id": lg.assistant_id(one.name),
            "graph_id": one.graph if one.is_assistant else one.name,
            "name": one.name,
            "description": one.description or None,
            "config": {"configurable": json.loads(one.config_json or "{}")},
            "context": json.loads(one.context_json or "{}"),
            "metadata": about,
            "version": 1,
            "created_at": self._api.since,
            "updated_at": self._api.since,
        }

    async def search(self, request: Request) -> Response:
        body = await lg.read_body(request)
        found = sorted(await self._found(request), key=lambda one: str(one["name"]))
        return self.page(found, body)

    async def count(self, request: Request) -> Response:
        return lg.reply(len(await self._found(request)))

    async def _one(self, request: Request) -> dict[str, Any]:
        _, runtime = self._api.asks(request)
        name, _ = await self._api.graph_of(runtime, request.path_params["assistant_id"])
        known = {one.name: one for one in await self._api.assistants(runtime)}
        return self._shown(known[name])

    async def get(self, request: Request) -> Response:
        return lg.reply(await self._one(request))

    async def _described(self, request: Request, **how: Any) -> tuple[str, runtime_wire.GraphDescription]:
        """Return the name and the description of the graph in a request's path."""
        _, runtime = self._api.asks(request)
        name, graph = await self._api.graph_of(runtime, request.path_params["assistant_id"])
        known = {one.name: one for one in await self._api.assistants(runtime)}[name]
        asked = runtime_wire.DescribeGraphRequest(graph=graph, **how)
        return known.graph if known.is_assistant else name, await runtime.DescribeGraph(asked)

    async def schemas(self, request: Request) -> Response:
        name, described = await self._described(request)
        return lg.reply({"graph_id": name, **json.loads(described.schemas_json)})

    async def graph(self, request: Request) -> Response:
        """Answer with a graph's nodes and edges; with `xray`, also those of its subgraphs."""
        given = request.query_params.get("xray", "").lower()
        depth = {"": 0, "false": 0, "true": -1}.get(given)
        _, described = await self._described(request, xray=lg.number(given, "xray", 0) if depth is None else depth)
        return lg.reply(json.loads(described.graph_json))

    async def subgraphs(self, request: Request) -> Response:
        """Answer with the schemas of a graph's subgraphs, by namespace."""
        recurse = request.query_params.get("recurse", "").lower() in {"1", "true"}
        named = request.path_params.get("namespace", "")
        name, described = await self._described(request, namespace=named, recurse=recurse)
        found = json.loads(described.subgraphs_json)
        return lg.reply({place: {"graph_id": name, **schemas} for place, schemas in found.items()})

    async def refused(self, request: Request) -> Response:
        self._api.asks(request, Scope.WORK)
        refuse("assistant", _OURS, "change [graphs] or [assistants] there, then: turnkeeper restart")


class Crons(lg.Handlers):
    """The handlers of crons, which are tasks."""

    def routes(self) -> list[Route]:
        return lg.routes_of(
            ("POST", "/runs/crons", self.create),
            ("POST", "/runs/crons/search", self.search),
            ("POST", "/runs/crons/count", self.count),
            ("PATCH", "/runs/crons/{cron_id}", self.update),
            ("DELETE", "/runs/crons/{cron_id}", self.delete),
            ("POST", "/threads/{thread_id}/runs/crons", self.create),
        )

    def _shown(self, task: wire.Task) -> dict[str, Any]:
        return cron_of(task, lg.assistant_id(self._api.name_of(task.spec.graph)))

    async def create(self, request: Request) -> Response:
        """Create a task with a cron's schedule."""
        who, runtime = self._api.asks(request, Scope.WORK)
        body, thread_id = await lg.read_body(request), request.path_params.get("thread_id", "")
        channel = self._api.channel
        if thread_id:
            channel = (await self._api.thread(runtime, thread_id)).channel or channel
        _, graph = await self._api.graph_of(runtime, str(body.get("assistant_id") or ""))
        about = json.dumps([who.key, thread_id, body], sort_keys=True)
        id_ = self._api.once.id_of(about, request.headers.get("idempotency-key", ""), who.key)
        spec = spec_of(
            body, thread_id=thread_id, channel=channel, graph=graph, name=f"cron-{id_[:12]}",
            category=self._api.gateway.settings.web.langgraph_category,
        )  # fmt: skip
        spec.paused = body.get("enabled") is False  # paused from the start, not enabled first
        try:
            task = await self._made(self._api.gateway.daemons(who), spec)
        except Unreachable:
            self._api.once.is_unsure(about, id_)
            raise
        return lg.reply(self._shown(task))

    async def _made(self, runner: Any, spec: wire.TaskSpec) -> wire.Task:
        """Create a task once, even if the daemon goes away before it has answered."""
        for left in reversed(range(AWAY)):
            try:
                task = await self._create(runner, spec)
                return task if not spec.paused else await runner.DisableTask(wire.DisableTaskRequest(name=task.id))
            except Unreachable:
                if not left:
                    raise
                await self._api.gateway.clock.sleep(0.5)
        raise AssertionError("the last attempt returns or raises")

    @staticmethod
    async def _create(runner: Any, spec: wire.TaskSpec) -> wire.Task:
        try:
            made: wire.Task = (await runner.CreateTask(wire.CreateTaskRequest(spec=spec))).task
        except Conflict:
            if not spec.name.startswith("cron-"):
                raise
            made = await runner.GetTask(wire.GetTaskRequest(name=spec.name))
        return made

    async def _task(self, request: Request, scope: Scope) -> tuple[Any, Any, wire.Task]:
        who, runtime = self._api.asks(request, scope)
        runner, cron_id = self._api.gateway.daemons(who), request.path_params["cron_id"]
        try:
            return runtime, runner, await runner.GetTask(wire.GetTaskRequest(name=cron_id))
        except NotFound as error:
            raise NotFound(f"no cron {cron_id[:80]!r}", hint="see: turnkeeper task list") from error

    async def update(self, request: Request) -> Response:
        """Change a task, and whether it is enabled."""
        runtime, runner, task = await self._task(request, Scope.WORK)
        body = await lg.read_body(request)
        graph = None
        if body.get("assistant_id"):
            _, graph = await self._api.graph_of(runtime, str(body["assistant_id"]))
        spec = changed_spec(task, body, graph)
        if spec != task.spec:
            change = wire.UpdateTaskRequest(name=task.id, spec=spec, revision=task.revision)
            task = (await runner.UpdateTask(change)).task
        return lg.reply(self._shown(await self._switched(runner, task, body.get("enabled"))))

    @staticmethod
    async def _switched(runner: Any, task: wire.Task, enabled: object) -> wire.Task:
        found: Any = task
        if enabled is False and task.state in {"active", "paused"}:
            found = await runner.DisableTask(wire.DisableTaskRequest(name=task.id))
        elif enabled is True and task.state == "disabled":
            found = await runner.EnableTask(wire.EnableTaskRequest(name=task.id))
        elif enabled is True and task.state in {"paused", "quarantined"}:
            found = await runner.ResumeTask(wire.ResumeTaskRequest(name=task.id))
        return found  # type: ignore[no-any-return]

    async def delete(self, request: Request) -> Response:
        """Delete a task; for a day, a command can restore it."""
        _, runner, task = await self._task(request, Scope.WORK)
        await runner.DeleteTask(wire.DeleteTaskRequest(name=task.id))
        return Response(status_code=204)

    async def _found(self, request: Request) -> list[dict[str, Any]]:
        who, runtime = self._api.asks(request)
        body = await lg.read_body(request)
        tasks = (await self._api.gateway.daemons(who).ListTasks(wire.ListTasksRequest())).tasks
        found = [self._shown(task) for task in tasks]
        wanted = {name: body[name] for name in ("thread_id", "enabled") if body.get(name) is not None}
        if body.get("assistant_id"):
            name, _ = await self._api.graph_of(runtime, str(body["assistant_id"]))
            wanted["assistant_id"] = lg.assistant_id(name)
        return [one for one in found if holds(one, wanted) and holds(one["metadata"], body.get("metadata") or {})]

    async def search(self, request: Request) -> Response:
        body = await lg.read_body(request)
        return self.page(lg.ordered(await self._found(request), body, "created_at"), body)

    async def count(self, request: Request) -> Response:
        return lg.reply(len(await self._found(request)))
