"""Handlers of crons and assistants."""

import json
from typing import Any
from uuid import UUID  # noqa: TID251 - the digits come from the gateway's entropy

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from turnkeeper.errors import Conflict, InvalidInput, NotFound, Unreachable
from turnkeeper.gateway.keys import Scope
from turnkeeper.gateway.lg import api as lg
from turnkeeper.gateway.lg.conversation import holds, is_uuid, time_of
from turnkeeper.gateway.lg.crons import LATER_TAG, changed_spec, cron_of, spec_of
from turnkeeper.gateway.lg.requests import graph_options, refuse, refuse_options, run_options
from turnkeeper.v1 import agent_runtime_pb2 as runtime_wire
from turnkeeper.v1 import schedules_pb2 as wire

_OURS = "assistants are declared in config.toml"
_FIELDS = ("graph_id", "name", "description", "config", "context", "metadata")
AWAY = 20  # attempts to reach a daemon that is unavailable while it creates a task


class Assistants(lg.Handlers):
    """The handlers of assistants: the graphs and assistants that config.toml declares, and those that clients make."""

    def routes(self) -> list[Route]:
        one = "/assistants/{assistant_id}"
        return lg.routes_of(
            ("GET", "/assistants", self.listed),
            ("POST", "/assistants", self.create),
            ("POST", "/assistants/search", self.search),
            ("POST", "/assistants/count", self.count),
            ("GET", one, self.get),
            ("PATCH", one, self.update),
            ("DELETE", one, self.delete),
            ("GET", f"{one}/graph", self.graph),
            ("GET", f"{one}/schemas", self.schemas),
            ("GET", f"{one}/subgraphs", self.subgraphs),
            ("GET", f"{one}/subgraphs/{{namespace}}", self.subgraphs),
            ("POST", f"{one}/versions", self.versions),
            ("POST", f"{one}/latest", self.latest),
        )

    async def _found(self, request: Request) -> list[dict[str, Any]]:
        who, runtime = self._api.asks(request)
        body = await lg.read_body(request)
        found = sorted(map(self._shown, await self._api.assistants(runtime)), key=lambda one: str(one["name"]))
        made = (await runtime.ListAssistants(runtime_wire.ListAssistantsRequest())).assistants
        found += [_made(one) for one in made]
        wanted = {"graph_id": self._api.name_of(body["graph_id"])} if body.get("graph_id") else {}
        said = str(body.get("name") or "").lower()
        fits = (one for one in found if holds(one, wanted) and said in str(one["name"]).lower())
        return [one for one in fits if who.sees(one["metadata"]) and holds(one["metadata"], body.get("metadata") or {})]

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
        """Answer with the assistants of config.toml by name, then those that clients made, unless asked otherwise."""
        body, found = await lg.read_body(request), await self._found(request)
        return self.page(lg.ordered(found, body, "name") if body.get("sort_by") else found, body)

    async def listed(self, request: Request) -> Response:
        """Answer with all assistants, as servers of the Agent Protocol do."""
        found = await self._found(request)
        return lg.reply({"assistants": found, "total": len(found)})

    async def count(self, request: Request) -> Response:
        return lg.reply(len(await self._found(request)))

    async def _one(self, request: Request) -> dict[str, Any]:
        _, runtime = self._api.asks(request)
        given = request.path_params["assistant_id"]
        if (made := await self._api.made(runtime, given)) is not None:
            return _made(made)
        return self._shown(await self._api.graph_of(runtime, given))

    async def get(self, request: Request) -> Response:
        return lg.reply(await self._one(request))

    async def _described(self, request: Request, **how: Any) -> tuple[str, runtime_wire.GraphDescription]:
        """Return the name and the description of the graph in a request's path."""
        _, runtime = self._api.asks(request)
        known = await self._api.graph_of(runtime, request.path_params["assistant_id"])
        asked = runtime_wire.DescribeGraphRequest(graph=lg.in_daemons(known), **how)
        return known.graph if known.is_assistant else known.name, await runtime.DescribeGraph(asked)

    async def schemas(self, request: Request) -> Response:
        name, described = await self._described(request)
        return lg.reply({"graph_id": name, **json.loads(described.schemas_json)})

    async def graph(self, request: Request) -> Response:
        """Answer with a graph's nodes and edges. With `xray`, add those of its subgraphs."""
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

    async def create(self, request: Request) -> Response:
        """Make an assistant, or answer with an existing one if the client allows it."""
        _, runtime = self._api.asks(request, Scope.WORK)
        body = await lg.read_body(request)
        refuse_options(body, {*_FIELDS, "assistant_id", "if_exists"})
        fields = await self._fields(runtime, body)
        if "graph_id" not in fields:
            raise InvalidInput("is missing", where="graph_id", hint="give the name of a graph, such as agent0")
        given = str(body.get("assistant_id") or UUID(hex=self._api.gateway.entropy.hex(32), version=4))
        if not is_uuid(given):
            raise InvalidInput("is not a UUID", where="assistant_id", hint="leave it out")
        known = await self._api.made(runtime, given)
        if known is not None and body.get("if_exists") == "do_nothing":
            return lg.reply(_made(known))
        if given in {lg.assistant_id(one.name) for one in await self._api.assistants(runtime)}:
            raise Conflict(f"assistant {given} already exists", where="assistant_id", hint="leave it out")
        return lg.reply(_made(await self._put(runtime, given, fields, must_be_new=True)))

    async def _fields(self, runtime: Any, body: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of an assistant in a client's body. Raises InvalidInput, NotFound."""
        graph_options(body)
        run_options(body, ())
        found = {name: body[name] for name in _FIELDS if body.get(name) is not None}
        if "graph_id" in found:
            known = await self._api.graph_of(runtime, found["graph_id"])
            if known.is_assistant or is_uuid(found["graph_id"]):
                refuse("graph_id", "it is an assistant", f"name its graph: {known.graph or known.name}")
            found["graph_id"] = known.name
        return found

    async def _put(self, runtime: Any, given: str, fields: dict[str, Any], **how: Any) -> runtime_wire.Assistant:
        text = json.dumps(fields, ensure_ascii=False)
        put = runtime_wire.PutAssistantRequest(assistant_id=given, fields_json=text, **how)
        made: runtime_wire.Assistant = await runtime.PutAssistant(put)
        return made

    async def _own(self, request: Request) -> tuple[Any, str]:
        """Return the runtime and the id of the assistant in a request's path. Refuse one that config.toml declares."""
        _, runtime = self._api.asks(request, Scope.WORK)
        given = request.path_params["assistant_id"]
        if await self._api.made(runtime, given) is None:
            await self._api.graph_of(runtime, given)
            refuse("assistant", _OURS, "change [graphs] or [assistants] there, then: turnkeeper restart")
        return runtime, given

    async def update(self, request: Request) -> Response:
        """Add a version with changed fields, and make it the current one."""
        runtime, given = await self._own(request)
        body = await lg.read_body(request)
        refuse_options(body, _FIELDS)
        return lg.reply(_made(await self._put(runtime, given, await self._fields(runtime, body))))

    async def latest(self, request: Request) -> Response:
        runtime, given = await self._own(request)
        version = lg.number((await lg.read_body(request)).get("version"), "version", 0)
        if not version:
            raise InvalidInput("is missing", where="version")
        return lg.reply(_made(await self._put(runtime, given, {}, version=version)))

    async def versions(self, request: Request) -> Response:
        """Answer with the versions of an assistant, newest first."""
        _, runtime = self._api.asks(request)
        body = await lg.read_body(request)
        made = await self._api.made(runtime, request.path_params["assistant_id"])
        each = [await self._one(request)] if made is None else [_made(made, one) for one in made.versions_json][::-1]
        shown, headers = lg.page_of([one for one in each if holds(one["metadata"], body.get("metadata") or {})], body)
        return lg.reply(shown, headers=headers)

    async def delete(self, request: Request) -> Response:
        """Delete an assistant. Its threads stay, and runs that began with it continue."""
        runtime, given = await self._own(request)
        if request.query_params.get("delete_threads", "").lower() in {"1", "true"}:
            refuse("delete_threads", "threads belong to a graph", "delete them: threads.delete(THREAD_ID)")
        await runtime.DropAssistant(runtime_wire.DropAssistantRequest(assistant_id=given))
        return Response(status_code=204)


def _made(one: runtime_wire.Assistant, version_json: str = "") -> dict[str, Any]:
    """Return an assistant that a client made, in its current version or another one."""
    fields = json.loads(version_json or one.fields_json)
    times = {"created_at": fields["created_at"]} if version_json else {}
    known = {name: time_of(one, name) for name in ("created_at", "updated_at")}
    return {"assistant_id": one.assistant_id, **fields, **known, **times}


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
        body = await self._api.completed(runtime, body)
        if thread_id:
            channel = (await self._api.thread(runtime, thread_id)).channel or channel
        graph = lg.in_daemons(await self._api.graph_of(runtime, str(body.get("assistant_id") or "")))
        about = json.dumps([who.key, thread_id, body], sort_keys=True)
        id_ = self._api.once.id_of(about, request.headers.get("idempotency-key", ""), who.key)
        spec = spec_of(
            body, thread_id=thread_id, channel=channel, graph=graph, name=f"cron-{id_[:12]}",
            category=self._api.gateway.settings.web.langgraph_category,
        )  # fmt: skip
        spec.paused = body.get("enabled") is False  # pause it at the start, so that it is never enabled first
        try:
            task = await self._made(self._api.gateway.daemons(who), spec)
        except Unreachable:
            self._api.once.is_unsure(about, id_)
            raise
        return lg.reply(self._shown(task))

    async def _made(self, runner: Any, spec: wire.TaskSpec) -> wire.Task:
        """Create a task once, even if the daemon becomes unavailable before it answers."""
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
        """Change a task. Enable or disable it."""
        runtime, runner, task = await self._task(request, Scope.WORK)
        body = await self._api.completed(runtime, await lg.read_body(request))
        graph = None
        if body.get("assistant_id"):
            graph = lg.in_daemons(await self._api.graph_of(runtime, str(body["assistant_id"])))
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
        """Delete a task. For a day, a command can restore it."""
        _, runner, task = await self._task(request, Scope.WORK)
        await runner.DeleteTask(wire.DeleteTaskRequest(name=task.id))
        return Response(status_code=204)

    async def _found(self, request: Request) -> list[dict[str, Any]]:
        who, runtime = self._api.asks(request)
        body = await lg.read_body(request)
        tasks = (await self._api.gateway.daemons(who).ListTasks(wire.ListTasksRequest())).tasks
        found = [self._shown(task) for task in tasks if LATER_TAG not in task.spec.tags]
        wanted = {name: body[name] for name in ("thread_id", "enabled") if body.get(name) is not None}
        if body.get("assistant_id"):
            known = await self._api.graph_of(runtime, str(body["assistant_id"]))
            wanted["assistant_id"] = lg.assistant_id(known.name)
        return [one for one in found if holds(one, wanted) and holds(one["metadata"], body.get("metadata") or {})]

    async def search(self, request: Request) -> Response:
        body = await lg.read_body(request)
        return self.page(lg.ordered(await self._found(request), body, "created_at"), body)

    async def count(self, request: Request) -> Response:
        return lg.reply(len(await self._found(request)))
