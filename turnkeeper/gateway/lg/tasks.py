"""Handlers of crons, which are tasks, and of assistants: those of config.toml, and those that clients make."""

import json
from collections.abc import Mapping
from functools import partial
from typing import Any
from uuid import UUID  # noqa: TID251 - the digits come from the gateway's entropy

from starlette.responses import JSONResponse, Response

from turnkeeper.config.json_text import is_within
from turnkeeper.errors import Conflict, InvalidInput, NotFound, Unreachable
from turnkeeper.gateway.keys import Scope
from turnkeeper.gateway.lg import api as lg
from turnkeeper.gateway.lg.api import Call
from turnkeeper.gateway.lg.conversation import is_uuid, time_of
from turnkeeper.gateway.lg.crons import LATER_TAG, changed_spec, cron_of, spec_of
from turnkeeper.gateway.lg.requests import graph_options, refuse, refuse_options, run_options
from turnkeeper.v1 import agent_runtime_pb2 as runtime
from turnkeeper.v1 import schedules_pb2 as runner

_OURS = "assistants are declared in config.toml"
_FIELDS = ("graph_id", "name", "description", "config", "context", "metadata")
_SWITCHES: Mapping[tuple[bool | None, str], Any] = {  # by `enabled` and the state of the task
    (False, "active"): runner.DisableTaskRequest,
    (False, "paused"): runner.DisableTaskRequest,
    (True, "disabled"): runner.EnableTaskRequest,
    (True, "paused"): runner.ResumeTaskRequest,
    (True, "quarantined"): runner.ResumeTaskRequest,
}
AWAY = 19  # more attempts to reach a daemon that is unavailable while it creates a task


async def _assistants(call: Call) -> list[dict[str, Any]]:
    """Return the assistants that a client asks for: those of config.toml by name, then those that clients made."""
    found = [_declared(call, one) for one in await call.assistants()]
    found.sort(key=lambda one: str(one["name"]))
    found += [_made(one) for one in (await call.ask(runtime.ListAssistantsRequest())).assistants]
    body = call.body
    wanted = {"graph_id": call.api.name_of(body["graph_id"])} if body.get("graph_id") else {}
    said = str(body.get("name") or "").lower()
    fits = (one for one in found if is_within(wanted, one) and said in str(one["name"]).lower())
    metadata = body.get("metadata") or {}
    return [one for one in fits if call.who.sees(one["metadata"]) and is_within(metadata, one["metadata"])]


def _declared(call: Call, one: runtime.Graph) -> dict[str, Any]:
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
        "created_at": call.api.since,
        "updated_at": call.api.since,
    }


async def search_assistants(call: Call) -> Response:
    """Answer with the assistants of config.toml by name, then those that clients made, unless asked otherwise."""
    found = await _assistants(call)
    return lg.page(lg.ordered(found, call.body, "name") if call.body.get("sort_by") else found, call.body)


async def list_assistants(call: Call) -> dict[str, Any]:
    """Answer with all assistants, as servers of the Agent Protocol do."""
    found = await _assistants(call)
    return {"assistants": found, "total": len(found)}


async def count_assistants(call: Call) -> int:
    return len(await _assistants(call))


async def get_assistant(call: Call) -> dict[str, Any]:
    given = call.path["assistant_id"]
    made = await call.made(given)
    return _declared(call, await call.graph_of(given)) if made is None else _made(made)


async def _described(call: Call, **how: Any) -> tuple[str, runtime.GraphDescription]:
    """Return the name and the description of the graph in a request's path."""
    known = await call.graph_of(call.path["assistant_id"])
    described = await call.ask(runtime.DescribeGraphRequest(graph=lg.in_daemons(known), **how))
    return known.graph if known.is_assistant else known.name, described


async def schemas(call: Call) -> dict[str, Any]:
    name, described = await _described(call)
    return {"graph_id": name, **json.loads(described.schemas_json)}


async def graph(call: Call) -> Any:
    """Answer with a graph's nodes and edges. With `xray`, add those of its subgraphs."""
    given = call.query.get("xray", "").lower()
    depth = {"": 0, "false": 0, "true": -1}.get(given)
    _, described = await _described(call, xray=lg.number(given, "xray", 0) if depth is None else depth)
    return json.loads(described.graph_json)


async def subgraphs(call: Call) -> dict[str, Any]:
    """Answer with the schemas of a graph's subgraphs, by namespace."""
    name, described = await _described(call, namespace=call.path.get("namespace", ""), recurse=call.says("recurse"))
    found = json.loads(described.subgraphs_json)
    return {place: {"graph_id": name, **inner} for place, inner in found.items()}


async def create_assistant(call: Call) -> dict[str, Any]:
    """Make an assistant, or answer with an existing one if the client allows it."""
    refuse_options(call.body, {*_FIELDS, "assistant_id", "if_exists"})
    fields = await _fields(call)
    if "graph_id" not in fields:
        raise InvalidInput("is missing", where="graph_id", hint="give the name of a graph, such as agent0")
    given = str(call.body.get("assistant_id") or UUID(hex=call.api.gateway.entropy.hex(32), version=4))
    if not is_uuid(given):
        raise InvalidInput("is not a UUID", where="assistant_id", hint="leave it out")
    known = await call.made(given)
    if known is not None and call.body.get("if_exists") == "do_nothing":
        return _made(known)
    if given in {lg.assistant_id(one.name) for one in await call.assistants()}:
        raise Conflict(f"assistant {given} already exists", where="assistant_id", hint="leave it out")
    return await _put(call, given, fields, must_be_new=True)


async def _fields(call: Call) -> dict[str, Any]:
    """Return the fields of an assistant in a client's body. Raises InvalidInput, NotFound."""
    graph_options(call.body)
    run_options(call.body, ())
    found = {name: call.body[name] for name in _FIELDS if call.body.get(name) is not None}
    if "graph_id" in found:
        known = await call.graph_of(found["graph_id"])
        if known.is_assistant or is_uuid(found["graph_id"]):
            refuse("graph_id", "it is an assistant", f"name its graph: {known.graph or known.name}")
        found["graph_id"] = known.name
    return found


async def _put(call: Call, given: str, fields: dict[str, Any], **how: Any) -> dict[str, Any]:
    text = json.dumps(fields, ensure_ascii=False)
    return _made(await call.ask(runtime.PutAssistantRequest(assistant_id=given, fields_json=text, **how)))


async def _own(call: Call) -> str:
    """Return the id of the assistant in a request's path. Refuse one that config.toml declares."""
    given: str = call.path["assistant_id"]
    if await call.made(given) is None:
        await call.graph_of(given)
        refuse("assistant", _OURS, "change [graphs] or [assistants] there, then: turnkeeper restart")
    return given


async def update_assistant(call: Call) -> dict[str, Any]:
    """Add a version with changed fields, and make it the current one."""
    given = await _own(call)
    refuse_options(call.body, _FIELDS)
    return await _put(call, given, await _fields(call))


async def set_latest(call: Call) -> dict[str, Any]:
    given = await _own(call)
    version = lg.number(call.body.get("version"), "version", 0)
    if not version:
        raise InvalidInput("is missing", where="version")
    return await _put(call, given, {}, version=version)


async def list_versions(call: Call) -> Response:
    """Answer with the versions of an assistant, newest first."""
    made = await call.made(call.path["assistant_id"])
    each = [await get_assistant(call)] if made is None else [_made(made, one) for one in made.versions_json][::-1]
    wanted = call.body.get("metadata") or {}
    shown, headers = lg.page_of([one for one in each if is_within(wanted, one["metadata"])], call.body)
    return JSONResponse(shown, headers=headers)


async def delete_assistant(call: Call) -> Response:
    """Delete an assistant. Its threads stay, and runs that began with it continue."""
    given = await _own(call)
    if call.says("delete_threads"):
        refuse("delete_threads", "threads belong to a graph", "delete them: threads.delete(THREAD_ID)")
    await call.ask(runtime.DropAssistantRequest(assistant_id=given))
    return Response(status_code=204)


def _made(one: runtime.Assistant, version_json: str = "") -> dict[str, Any]:
    """Return an assistant that a client made, in its current version or another one."""
    fields = json.loads(version_json or one.fields_json)
    times = {"created_at": fields["created_at"]} if version_json else {}
    known = {name: time_of(one, name) for name in ("created_at", "updated_at")}
    return {"assistant_id": one.assistant_id, **fields, **known, **times}


def _cron(call: Call, task: runner.Task) -> dict[str, Any]:
    return cron_of(task, lg.assistant_id(call.api.name_of(task.spec.graph)))


async def create_cron(call: Call) -> dict[str, Any]:
    """Create a task with a cron's schedule."""
    body, channel = await call.completed(call.body), call.api.channel
    if call.thread_id:
        channel = (await call.thread()).channel or channel
    graph = lg.in_daemons(await call.graph_of(str(body.get("assistant_id") or "")))
    about = json.dumps([call.who.key, call.thread_id, body], sort_keys=True)
    id_ = call.api.once.id_of(about, call.key, call.who.key)
    where = {"thread_id": call.thread_id, "channel": channel, "graph": graph, "category": call.api.category}
    spec = spec_of(body, name=f"cron-{id_[:12]}", **where)
    spec.paused = body.get("enabled") is False  # pause it at the start, so that it is never enabled first
    try:
        return _cron(call, await call.ask_until_answered(partial(_create, call, spec), AWAY))
    except Unreachable:
        call.api.once.is_unsure(about, id_)
        raise


async def _create(call: Call, spec: runner.TaskSpec) -> runner.Task:
    """Create a task. Return the existing one if the daemon was unavailable before it could answer."""
    try:
        made: runner.Task = (await call.ask(runner.CreateTaskRequest(spec=spec))).task
    except Conflict:
        if not spec.name.startswith("cron-"):
            raise
        made = await call.ask(runner.GetTaskRequest(name=spec.name))
    return made if not spec.paused else await call.ask(runner.DisableTaskRequest(name=made.id))


async def _task(call: Call) -> runner.Task:
    """Return the task in a request's path. Raises NotFound."""
    cron_id = call.path["cron_id"]
    try:
        found: runner.Task = await call.ask(runner.GetTaskRequest(name=cron_id))
    except NotFound as error:
        raise NotFound(f"no cron {cron_id[:80]!r}", hint="see: turnkeeper task list") from error
    return found


async def update_cron(call: Call) -> dict[str, Any]:
    """Change a task. Enable or disable it."""
    task = await _task(call)
    body = await call.completed(call.body)
    graph = None
    if body.get("assistant_id"):
        graph = lg.in_daemons(await call.graph_of(str(body["assistant_id"])))
    spec = changed_spec(task, body, graph)
    if spec != task.spec:
        change = runner.UpdateTaskRequest(name=task.id, spec=spec, revision=task.revision)
        task = (await call.ask(change)).task
    switch = _SWITCHES.get((body.get("enabled"), task.state))
    return _cron(call, task if switch is None else await call.ask(switch(name=task.id)))


async def delete_cron(call: Call) -> Response:
    """Delete a task. For a day, a command can restore it."""
    await call.ask(runner.DeleteTaskRequest(name=(await _task(call)).id))
    return Response(status_code=204)


async def _crons(call: Call) -> list[dict[str, Any]]:
    body = call.body
    tasks = (await call.ask(runner.ListTasksRequest())).tasks
    found = [_cron(call, task) for task in tasks if LATER_TAG not in task.spec.tags]
    wanted = {name: body[name] for name in ("thread_id", "enabled") if body.get(name) is not None}
    if body.get("assistant_id"):
        wanted["assistant_id"] = lg.assistant_id((await call.graph_of(body["assistant_id"])).name)
    return [one for one in found if is_within(wanted, one) and is_within(body.get("metadata") or {}, one["metadata"])]


async def search_crons(call: Call) -> Response:
    return lg.page(lg.ordered(await _crons(call), call.body, "created_at"), call.body)


async def count_crons(call: Call) -> int:
    return len(await _crons(call))


_ASSISTANT = "/assistants/{assistant_id}"
ROUTES: lg.Routes = (
    ("GET", "/assistants", list_assistants, Scope.READ, "assistants.search"),
    ("POST", "/assistants", create_assistant, Scope.WORK, "assistants.create"),
    ("POST", "/assistants/search", search_assistants, Scope.READ, "assistants.search"),
    ("POST", "/assistants/count", count_assistants, Scope.READ, "assistants.search"),
    ("GET", _ASSISTANT, get_assistant, Scope.READ, "assistants.read"),
    ("PATCH", _ASSISTANT, update_assistant, Scope.WORK, "assistants.update"),
    ("DELETE", _ASSISTANT, delete_assistant, Scope.WORK, "assistants.delete"),
    ("GET", f"{_ASSISTANT}/graph", graph, Scope.READ, "assistants.read"),
    ("GET", f"{_ASSISTANT}/schemas", schemas, Scope.READ, "assistants.read"),
    ("GET", f"{_ASSISTANT}/subgraphs", subgraphs, Scope.READ, "assistants.read"),
    ("GET", f"{_ASSISTANT}/subgraphs/{{namespace}}", subgraphs, Scope.READ, "assistants.read"),
    ("POST", f"{_ASSISTANT}/versions", list_versions, Scope.READ, "assistants.read"),
    ("POST", f"{_ASSISTANT}/latest", set_latest, Scope.WORK, "assistants.update"),
    ("POST", "/runs/crons", create_cron, Scope.WORK, ""),
    ("POST", "/runs/crons/search", search_crons, Scope.READ, ""),
    ("POST", "/runs/crons/count", count_crons, Scope.READ, ""),
    ("PATCH", "/runs/crons/{cron_id}", update_cron, Scope.WORK, ""),
    ("DELETE", "/runs/crons/{cron_id}", delete_cron, Scope.WORK, ""),
    ("POST", "/threads/{thread_id}/runs/crons", create_cron, Scope.WORK, ""),
)
