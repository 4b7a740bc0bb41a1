"""The tools of MCP clients. No tool makes a decision: only the person decides approvals."""

import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from mcp.server.elicitation import AcceptedElicitation
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.resolve import Elicit, ElicitationResult, Resolve
from mcp.server.mcpserver.tools import Tool
from mcp_types import ToolAnnotations
from pydantic import Field

from turnkeeper.console.unseen import as_json, plain
from turnkeeper.entropy import SystemEntropy
from turnkeeper.errors import Denied, InvalidInput, NotFound, Unreachable
from turnkeeper.gateway.keys import Scope
from turnkeeper.gateway.mcp import model
from turnkeeper.gateway.mcp.desk import MADE_BY, Desk, caller_of, owner_of
from turnkeeper.rpc import forms
from turnkeeper.v1 import agent_runtime_pb2 as runtime
from turnkeeper.v1 import schedules_pb2 as runner

_NEWEST = 50  # newest turns of a thread that a search reads
LONGEST_FORM = 2000  # characters of arguments that a person can read in a form
Ctx = Context[Desk, Any]
Name = Annotated[str, Field(min_length=1, description="a task's name or id")]
Text = Annotated[str, Field(min_length=1)]
Limit = Annotated[int, Field(ge=1, le=200)]
Wait = Annotated[int, Field(ge=0, le=50, description="wait at most this many seconds for the turn to end")]
RequestId = Annotated[str, Field(description="any unique text: a repeated call with it has one effect")]
Instant = Annotated[str, Field(description="RFC 3339, or wall time in the task's zone")]
CatchUp = Literal["", "skip", "run-once", "run-all"]
Overlap = Literal["", "coalesce", "queue", "skip", "cancel-running"]


def _desk(ctx: Ctx) -> Desk:
    return ctx.request_context.lifespan_context


async def _call(ctx: Ctx, request: Any) -> Any:
    return await _desk(ctx).call(request, caller_of(ctx).via)


def _task(ctx: Ctx, task: Any) -> model.TaskView:
    return model.view(model.TaskView, task, may_change=_desk(ctx).may_change(task, caller_of(ctx)))


def _fill(spec: Any, given: Mapping[str, Any]) -> None:
    for name, value in given.items():
        if value not in ("", None):
            setattr(spec, name, value)


async def task_create(
    ctx: Ctx,
    *,
    name: Annotated[str, Field(description="1 to 63 of a-z, 0-9 and -")],
    when: model.When,
    prompt: Annotated[str, Field(min_length=1, description="what the agent must do, each time")],
    category: Annotated[str, Field(description="what its turns may do; empty: the first one allowed here")] = "",
    channel: Annotated[str, Field(description="where its turns appear")] = "general",
    timezone: Annotated[str, Field(description="IANA name; empty: the machine's")] = "",
    catch_up: CatchUp = "",
    overlap: Overlap = "",
    max_fires: int | None = None,
    end_at: Instant = "",
    dry_run: bool = False,
) -> model.TaskCreated:
    """Create standing work: an agent gets a prompt on a schedule, and the schedule survives crashes and restarts.

    The agent asks the person about calls that its category does not grant. Use dry_run to see the next times first.
    """
    tags = {MADE_BY: owner_of(caller_of(ctx))}
    spec = runner.TaskSpec(name=name, prompt=prompt, category=_desk(ctx).category(category), tags=tags)
    given = {"channel": channel, "timezone": timezone, "catch_up": catch_up, "overlap": overlap}
    _fill(spec, {**when.fields(), **given, "max_fires": max_fires, "end_at": end_at})
    await _desk(ctx).check_pace(spec, caller_of(ctx).via)
    answer = await _call(ctx, runner.CreateTaskRequest(spec=spec, dry_run=dry_run))
    times = model.views(model.TimeView, answer.next[:3])
    said = f"task {name} {'would fire' if dry_run else 'fires'} {answer.task.schedule}"
    summary = f"{said}; next {times[0].nominal_at}" if times else said
    return model.view(model.TaskCreated, answer, summary=summary, task=_task(ctx, answer.task), next=times)


async def task_list(ctx: Ctx, state: str = "", channel: str = "", limit: Limit = 50) -> model.TaskList:
    """List tasks by next fire time, soonest first."""
    answer = await _call(ctx, runner.ListTasksRequest(state=state, channel=channel, limit=limit))
    tasks = [_task(ctx, task) for task in answer.tasks]
    return model.view(model.TaskList, answer, summary=f"{len(tasks)} of {answer.total} tasks", tasks=tasks)


async def task_show(ctx: Ctx, name: Name, limit: Limit = 10) -> model.TaskShown:
    """Show one task, its revision, and the newest entries of its history: fires, skipped times, and reasons."""
    task = await _call(ctx, runner.GetTaskRequest(name=name))
    fires = await _call(ctx, runner.ListFiresRequest(name=task.id, limit=limit, without_folded=True))
    summary = f"task {task.spec.name} is {task.state}, revision {task.revision}; {fires.total} entries of history"
    return model.view(model.TaskShown, fires, summary=summary, task=_task(ctx, task))


async def task_update(
    ctx: Ctx,
    *,
    name: Name,
    revision: Annotated[int, Field(ge=1, description="from task_show; refused if there is a newer one")],
    when: Annotated[model.When | None, Field(description="replaces its schedule and its events")] = None,
    prompt: str = "",
    category: str = "",
    channel: str = "",
    timezone: str = "",
    catch_up: CatchUp = "",
    overlap: Overlap = "",
    max_fires: int | None = None,
    end_at: Instant = "",
    dry_run: bool = False,
) -> model.TaskChanged:
    """Change a task from now on. Omitted fields stay as they are. Use dry_run to see old and new times."""
    desk = _desk(ctx)
    task = await desk.own_task(name, caller_of(ctx))
    spec = task.spec
    if spec.thread_id in {task.id, f"{task.id}:{spec.graph}"}:  # the default thread, which the task gets anyway
        spec.ClearField("thread_id")
    given = {"prompt": prompt, "channel": channel, "timezone": timezone, "overlap": overlap, "end_at": end_at}
    if catch_up and not overlap:
        spec.ClearField("overlap")  # each policy has its own default
    if when is not None:
        for field in ("schedule", "on", *(() if when.on else ("filters", "debounce"))):
            spec.ClearField(field)
        given |= when.fields()
    _fill(spec, {**given, "category": category, "catch_up": catch_up, "max_fires": max_fires})
    desk.category(spec.category)
    if when is not None:
        await desk.check_pace(spec, caller_of(ctx).via)
    request = runner.UpdateTaskRequest(name=task.id, spec=spec, revision=revision, dry_run=dry_run)
    answer = await _call(ctx, request)
    would = "would be " if dry_run else ""
    summary = f"task {task.spec.name}: {', '.join(answer.changed_fields) or 'nothing'} {would}changed"
    times = {side: model.views(model.TimeView, getattr(answer, side)[:3]) for side in ("old_next", "new_next")}
    return model.view(model.TaskChanged, answer, summary=summary, task=_task(ctx, answer.task), **times)


async def task_control(
    ctx: Ctx,
    name: Name,
    action: Literal["pause", "resume", "disable", "enable", "run", "delete"],
    until: Annotated[str, Field(description="with pause: when it resumes by itself")] = "",
    request_id: RequestId = "",
) -> model.TaskControlled:
    """Pause, resume, disable, enable, run now or delete a task. Times that come due during a pause are skipped."""
    if until and action != "pause":
        raise InvalidInput("is valid only with action pause", where="until", hint="leave it out")
    task = await _desk(ctx).own_task(name, caller_of(ctx))
    asked: dict[str, Any] = {
        "pause": runner.PauseTaskRequest(name=task.id, until=until, note=f"by {caller_of(ctx).via}"),
        "resume": runner.ResumeTaskRequest(name=task.id),
        "disable": runner.DisableTaskRequest(name=task.id),
        "enable": runner.EnableTaskRequest(name=task.id),
        "run": runner.RunTaskRequest(name=task.id, request_id=request_id or SystemEntropy().hex(32)),
        "delete": runner.DeleteTaskRequest(name=task.id),
    }
    answer = await _call(ctx, asked[action])
    ran = action == "run"
    now = await _call(ctx, runner.GetTaskRequest(name=task.id)) if ran else answer
    summary = f"task {task.spec.name}: {action} is done; it is {'deleted' if action == 'delete' else now.state}"
    fire = model.view(model.FireView, answer) if ran else None
    return model.TaskControlled(summary=summary, task=_task(ctx, now), fire=fire)


async def task_explain(
    ctx: Ctx, name: Name, at: Annotated[str, Field(description="a time; empty: the latest due time")] = ""
) -> model.Explained:
    """Explain why a task ran, will run or does not run at a given time, and which rule decides."""
    answer = await _call(ctx, runner.ExplainFireRequest(name=name, at=at))
    return model.view(model.Explained, answer, summary=f"task {name}: {answer.verdict}")


async def schedule_preview(
    ctx: Ctx, when: model.When, timezone: str = "", count: Annotated[int, Field(ge=1, le=20)] = 5
) -> model.Previewed:
    """Show the times of a schedule without creating a task."""
    spec = runner.TaskSpec()
    _fill(spec, {**when.fields(), "timezone": timezone})
    answer = await _call(ctx, runner.PreviewScheduleRequest(spec=spec, count=count))
    times = model.views(model.TimeView, answer.nominals)
    return model.view(model.Previewed, answer, summary=f"{answer.schedule}: {len(times)} times", times=times)


async def message_send(
    ctx: Ctx,
    text: Text,
    channel: str = "general",
    thread_id: Annotated[str, Field(description="empty: the thread of the channel's newest turn")] = "",
    new_thread: bool = False,
    wait_s: Wait = 30,
    request_id: RequestId = "",
) -> model.TurnShown:
    """Send a message to the person's agent, and wait for its answer. If the wait ends first, the turn continues."""
    request = runtime.SendMessageRequest(
        channel=channel,
        text=text,
        thread_id=thread_id,
        new_thread=new_thread,
        request_id=request_id or SystemEntropy().hex(32),
        keep_loop=True,  # a program's message does not take over self-paced work
    )
    look = runtime.SendMessageRequest()
    look.CopyFrom(request)
    look.look = True
    try:
        if (found := await _call(ctx, look)).HasField("answers"):
            how = _desk(ctx).decides_at(found.answers.interrupt_id)
            hint = f"the person answers it, with {how['command']}" + (f" or at {how['url']}" if how["url"] else "")
            what = f"the thread waits for the person's answer to “{plain(found.answers.question)}”"
            raise Denied(what, where="thread_id", hint=f"{hint}; or start a new thread")
        sent = await _call(ctx, request)
        shown = await _turn_shown(ctx, sent.turn_id, wait_s)
    except Unreachable as error:
        hint = f"{error.hint}; then call again with request_id {request.request_id}: it is sent once"
        raise Unreachable(error.what, hint=hint) from error
    return shown.model_copy(update={"thread_id": sent.thread_id, "duplicate": sent.duplicate})


async def turn_get(
    ctx: Ctx, turn_id: Text, wait_s: Wait = 0, cancel: Annotated[bool, Field(description="end it")] = False
) -> model.TurnShown:
    """Show a turn's state and the agent's last message; or cancel the turn, which ends at its next step."""
    if cancel:
        caller_of(ctx).check(Scope.WORK)
        request = runtime.CancelTurnRequest(turn_id=turn_id, reason=f"by {caller_of(ctx).via}")
        await _call(ctx, request)
    else:
        await _call(ctx, runtime.GetTurnRequest(turn_id=turn_id))  # refuses an unknown turn
    return await _turn_shown(ctx, turn_id, wait_s)


async def _turn_shown(ctx: Ctx, turn_id: str, wait_s: float) -> model.TurnShown:
    async def beat(spent: float, status: str) -> None:
        await ctx.report_progress(spent, wait_s, f"the turn is {status}")

    turn = await _desk(ctx).wait(turn_id, wait_s, caller_of(ctx).via, beat)
    said = runtime.ConversationTurn()
    if turn.thread_id:  # the turn has begun
        request = runtime.GetConversationRequest(thread_id=turn.thread_id, limit=_NEWEST)
        told = (await _call(ctx, request)).turns
        turn_id = turn.turn_id  # another turn if the message answered its question
        said = next((one for one in told if one.turn_id == turn_id), said)
    reply = next((one.text for one in reversed(said.messages) if one.role == "agent" and one.text), "")
    asked = model.views(model.ApprovalView, (one for one in said.interrupts if one.status == "pending"))
    summary = f"turn {turn_id}{turn.thread_id and f' of thread {turn.thread_id}'} is {turn.status}"
    if asked:
        summary += "; it waits for the person to decide: approval_request_decision"
    return model.view(model.TurnShown, turn, summary=summary, reply=reply, interrupts=asked)


async def conversation_read(
    ctx: Ctx,
    channel: str = "general",
    thread_id: Annotated[str, Field(description="only turns of this thread, whatever its channel")] = "",
    limit: Limit = 10,
    cursor: Annotated[str, Field(description="older turns: next_cursor of the previous answer")] = "",
) -> model.Conversation:
    """Read the newest turns of a channel or a thread, oldest first."""
    place = {"thread_id": thread_id} if thread_id else {"channel": channel}
    request = runtime.GetConversationRequest(**place, limit=limit, cursor=cursor)
    answer = await _call(ctx, request)
    summary = f"{len(answer.turns)} of {answer.total} turns of {thread_id or channel}"
    return model.view(model.Conversation, answer, summary=summary)


async def inbox_list(ctx: Ctx, channel: str = "") -> model.Inbox:
    """List everything that waits for the person: approvals, proposed pages and summaries, contradictions."""
    asked = await _call(ctx, runtime.ListInterruptsRequest(channel=channel, limit=100))
    proposed = await _call(ctx, runtime.ListCandidatesRequest(channel=channel, limit=100))
    found = await _call(ctx, runtime.ListDeviationsRequest(channel=channel, limit=100))
    counts = f"{asked.total} approvals, {proposed.total} proposals and {found.total} contradictions"
    return model.Inbox(
        summary=f"{counts} wait for the person",
        **_desk(ctx).decides_at(),
        approvals=model.views(model.ApprovalView, asked.interrupts),
        candidates=model.views(model.CandidateView, proposed.candidates),
        deviations=model.views(model.DeviationView, found.deviations),
    )


async def _asked_about(interrupt_id: str, ctx: Ctx) -> Any:
    """Return the current state of the approval; each round of the dialogue reads it again."""
    waiting = (await _call(ctx, runtime.ListInterruptsRequest())).interrupts
    found = next((one for one in waiting if one.interrupt_id == interrupt_id), None)
    if found is None:
        raise NotFound(
            f"no pending approval has the id {interrupt_id[:80]!r}", where="interrupt_id", hint="see inbox_list"
        )
    return found


async def _ask(asked: Annotated[Any, Resolve(_asked_about)], ctx: Ctx) -> Elicit[model.Decision] | None:
    """Return the form for the person; None if the person decides elsewhere."""
    desk, args = _desk(ctx), asked.args_json
    able = _shows_forms(ctx) and caller_of(ctx).scope is Scope.DECIDE
    simple = asked.kind in {"permission", "proposal"} or (asked.allows_text and not asked.args_hash)
    if desk.settings.decide != "elicit" or not able or not simple or len(args) > LONGEST_FORM:
        return None
    said = [
        f"An agent asks you ({asked.kind}, channel {asked.channel}, task {asked.task_name or 'none'}).",
        *([f"It wants to call {asked.tool} with these arguments:", _indented(args)] if asked.tool else []),
        *(["The graph asks with this value:", _indented(args)] if asked.kind == "question" and args else []),
        *([f"It lacks: {asked.missing_scope}"] if asked.missing_scope and asked.kind != "proposal" else []),
        *([f"It says: {as_json(asked.question[:LONGEST_FORM])}"] if asked.question else []),
        *([f"Answer with one of: {choices}"] if (choices := forms.question_of(asked).choices) else []),
        f"Hash of the arguments: {asked.args_hash or 'none'}",
    ]
    return Elicit(plain("\n".join(said)), model.Decision)


def _indented(args_json: str) -> str:
    return as_json(json.loads(args_json or "{}"), indent=2)


def _shows_forms(ctx: Ctx) -> bool:
    """Return True if the client can show a form. A client that names no modes can; one that names only URLs cannot."""
    able = ctx.client_capabilities.elicitation if ctx.client_capabilities else None
    return able is not None and (able.form is not None or able.url is None)


async def approval_request_decision(
    ctx: Ctx,
    interrupt_id: Annotated[str, Field(min_length=1, description="from inbox_list")],
    asked: Annotated[Any, Resolve(_asked_about)],
    outcome: Annotated[ElicitationResult[model.Decision], Resolve(_ask)],
) -> model.DecisionAsked:
    """Ask the person to decide an approval: in a form of the client, or on Turnkeeper's page.

    You cannot decide it yourself: no argument carries a decision.
    """
    links = _desk(ctx).decides_at(interrupt_id)
    if isinstance(outcome, AcceptedElicitation) and outcome.data is None:
        where = links["url"] or f"a terminal and run: {links['command']}"
        summary = f"only the person can decide it; ask them to open {where}"
        return model.DecisionAsked(summary=summary, interrupt_id=interrupt_id, status="link", **links)
    if not isinstance(outcome, AcceptedElicitation):
        summary = "the person did not decide; the approval stays pending"
        return model.DecisionAsked(summary=summary, interrupt_id=interrupt_id, status="declined", **links)
    said: model.Decision = outcome.data
    request = runtime.ResolveInterruptRequest(
        interrupt_id=interrupt_id, decision=said.decision, message=said.note, args_hash=asked.args_hash
    )
    done = await _call(ctx, request)
    summary = f"the person decided: {done.decision}"
    return model.DecisionAsked(
        summary=summary, interrupt_id=interrupt_id, status="decided", decision=done.decision, **links
    )


_READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
_ADDS = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)
_CHANGES = ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=False)
_TOOLS: tuple[tuple[Callable[..., Any], ToolAnnotations, Scope], ...] = (
    (task_create, _ADDS, Scope.WORK),
    (task_list, _READS, Scope.READ),
    (task_show, _READS, Scope.READ),
    (task_update, _CHANGES, Scope.WORK),
    (task_control, _CHANGES, Scope.WORK),
    (task_explain, _READS, Scope.READ),
    (schedule_preview, _READS, Scope.READ),
    (message_send, ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=True), Scope.WORK),
    (turn_get, _CHANGES, Scope.READ),
    (conversation_read, _READS, Scope.READ),
    (inbox_list, _READS, Scope.READ),
    (approval_request_decision, _ADDS, Scope.READ),
)
SCOPES: Mapping[str, Scope] = {function.__name__: scope for function, _, scope in _TOOLS}


_SAID_BY_NAMES = frozenset({"title"})
# An answer shows its inner fields itself.
_LEFT_OUT_OF_ANSWERS = frozenset({"title", "default", "description", "$defs", "$ref"})


def tools() -> list[Tool]:
    """Return the tools. Each refuses unknown arguments. Their schemas are short, because a model reads all of them."""
    found = [Tool.from_function(function, annotations=hints) for function, hints, _ in _TOOLS]
    for tool in found:
        tool.parameters = {**_short(tool.parameters, _SAID_BY_NAMES), "additionalProperties": False}
        tool.fn_metadata.output_schema = _short(tool.fn_metadata.output_schema, _LEFT_OUT_OF_ANSWERS)
    return found


def _short(schema: Any, left_out: frozenset[str], *, is_schema: bool = True) -> Any:
    """Return a JSON schema without some keywords. A mapping of names to schemas keeps all of its keys."""
    if isinstance(schema, list):
        return [_short(one, left_out) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _short(one, left_out, is_schema=key not in {"properties", "$defs"})
        for key, one in schema.items()
        if not is_schema or key not in left_out
    }
