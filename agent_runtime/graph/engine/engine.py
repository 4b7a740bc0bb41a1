"""Running of intervals: continue a graph with input, answers or neither, to its end, an interrupt, a limit or a drain.

No other module runs graphs. This module knows threads, checkpoints and messages, but not the turn table.
"""

import asyncio
import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from langgraph.errors import GraphDrained
from langgraph.graph import END
from langgraph.runtime import RunControl
from langgraph.types import Command

from agent_runtime.graph.checkpointer.saver import GroupedSaver
from agent_runtime.graph.context import Questions, recording, turn_around
from agent_runtime.graph.engine import inputs, model_output, patches, questions, stops
from agent_runtime.graph.engine.protocol import CALLED, Answers, Continue, Ended, Engine, Input, OnStep, Order, Step
from agent_runtime.graph.guard.gate import LimitReached
from agent_runtime.graph.models.make import redact
from agent_runtime.model.decide import Position, ThreadState
from agent_runtime.model.mapping import canonical
from agent_runtime.model.trigger import Trigger
from agent_runtime.model.turn import TurnContext, Used
from turnkeeper.config.surfaces import offered, required
from turnkeeper.errors import TurnkeeperError, machine_trouble

MOST_SEALS = 50
MOST_THREADS_RECORDED = 4096  # the most threads with recorded questions; far more than concurrent turns
LONGEST_ERROR = 1000
patches.apply()
BEFORE = "before_turn"  # key in a checkpoint's metadata: the last message before a turn whose input is not a message


class TokenLimit(RuntimeError):
    """A turn used more tokens than its category allows."""


_OURS = (TurnkeeperError, TokenLimit, LimitReached)  # errors that end a turn, and that no answer caused


class _Progress:
    """The newest step of an interval, so that an interval that fails still records its messages and costs."""

    def __init__(self, on_step: OnStep, usage: model_output.ModelUsage | None, used: Used) -> None:
        self._on_step = on_step
        self.usage = usage
        self.subagents = model_output.SubagentUsage()
        self._used = used
        self.step = Step(messages=None)  # until the graph shows its messages, the stored messages stay

    def count(self) -> int | None:
        """Return the number of the turn's messages; None until the graph has shown them."""
        return None if self.step.messages is None else len(self.step.messages)

    async def record(self, newer: Step) -> Step:
        """Report a step if it differs from the last step."""
        known, self.step = self.step, newer
        if newer not in (known, Step()):
            await self._on_step(newer)
        return newer

    def counted(self, step: Step) -> Step:
        """Return the step with the tokens of all models in the turn, even if no message of the graph reports them."""
        if self.usage is None:
            now = self.subagents.unreported({line.tool_call_id for line in step.messages or ()})
            if now == step.of_subagents:
                return step
            return replace(step, used=step.used - step.of_subagents + now, of_subagents=now)
        return replace(step, used=max(step.used, self._used + self.usage.used, key=Used.total))

    async def record_cost(self) -> None:
        """Report the tokens used since the newest step, because the current step will not end."""
        counted = self.counted(self.step)
        if counted != self.step:
            await self._on_step(replace(counted, messages=None, wake_after_s=None))

    def with_cost(self, error: Exception) -> Step:
        """Return the newest step with the tokens of a failed model call, if the error reports them."""
        step, more = self.counted(self.step), getattr(error, "used", None)
        return replace(step, used=step.used + more) if more else step


class LocalEngine(Engine):
    """One compiled graph of this process and its checkpoints."""

    def __init__(
        self,
        graph: Any,
        checkpoints: GroupedSaver,
        *,
        foreign: bool = False,
        allow: Callable[[], Awaitable[None]] | None = None,
        secrets: Collection[str] = (),
        live: model_output.LiveOutput | None = None,
        callbacks: Callable[[str], Sequence[Any]] = lambda _turn_id: (),
        answered: model_output.ModelCallLog | None = None,
        hash_of: Callable[[str], str] = lambda _tool: "",
        events: Any = None,
        own: Any = None,
    ) -> None:
        """Make an engine of a graph that was compiled with `checkpoints`.

        An author's graph (`foreign`) has no `TurnContext`: it gets the defaults of its own context, and its guard uses
        `current_turn`. `allow` is called before each interval; its error fails the turn. The graph's errors never show
        one of the `secrets`. LangChain's `callbacks` of a turn are used in each of its intervals. `answered` records
        each model call of an author's graph. `hash_of` returns the digest of a tool of the graph. `events` records the
        events of runs, if a surface reads them. `own` contains the models of our own agent.
        """
        self._graph, self._own = graph, own
        self._checkpoints = checkpoints
        self._foreign = foreign
        self._allow = allow
        self._secrets = secrets
        self._live, self._events = live, events
        self._callbacks, self._answered, self._hash_of = callbacks, answered, hash_of
        self._schema = inputs.read_schema(graph)
        self._stops = foreign and stops.stops_anywhere(graph)
        self._configured: Any = required("context schema", graph.context_schema) if foreign else None
        self._controls: set[RunControl] = set()
        self._draining = False
        self._questions: OrderedDict[str, Questions] = OrderedDict()  # by thread: the guard's questions

    async def state(self, config: Any, *, subgraphs: bool = False) -> Any:
        return await self._graph.aget_state(config, subgraphs=subgraphs)

    def history(self, config: Any, before: Any) -> Any:
        return self._graph.aget_state_history(config, before=before)

    async def describe(self, xray: int | bool, namespace: str | None, recurse: bool) -> Any:
        return await required("description", self._graph, xray, namespace, recurse)

    async def read(self, thread_id: str, turn_ids: Sequence[str] = (), *, strict: bool = False) -> ThreadState:
        snapshot = await self._graph.aget_state(_config(thread_id))
        if snapshot.created_at is None:
            return ThreadState(end=snapshot)
        seen = {str((snapshot.metadata or {}).get("turn_id", ""))}  # an input may lack a message, or an id
        standing = await self._stop(thread_id, snapshot)
        pending = frozenset(item.id for item in (*snapshot.interrupts, *([standing] if standing else [])))
        left = stops.steps_left(snapshot)
        position = Position.INTERRUPTED if pending else Position.OPEN if left else Position.END
        if strict and not pending and (looking := offered("lost steps", *self._at(thread_id))) is not None:
            lost, pending = await looking
            position = Position.OPEN if lost else position
        end = snapshot if position is Position.END else None
        return ThreadState(position=position, inputs=frozenset(seen & set(turn_ids)), pending=pending, end=end)

    async def last_message(self, thread_id: str) -> str:
        snapshot = await self._graph.aget_state(_config(thread_id))
        return _last_id(snapshot.values)

    async def look(self, thread_id: str, mark: str) -> Ended:
        snapshot = await self._graph.aget_state(_config(thread_id))
        recorded = self._questions.get(thread_id, {})
        raised = await questions.read_questions(self._graph, _config(thread_id), snapshot, recorded, self._hash_of)
        if (standing := await self._stop(thread_id, snapshot)) is not None:
            raised = (*raised, standing.question())
        before = (snapshot.metadata or {}).get(BEFORE, "")
        step = self._step(snapshot.values, mark, before, at_end=not stops.steps_left(snapshot) and not raised)
        if (left := stops.steps_left(snapshot)) and not raised:
            return Ended(stopped="failed", error=f"stopped before {', '.join(left)}", step=step)
        if raised:
            return Ended(stopped="interrupted", interrupts=raised, step=step)
        told, talks = bool(step.text), self._foreign and self._schema.keeps_messages
        looks = talks and not (told and not self._schema.outcome(snapshot.values))
        looking = offered("returned values", self._checkpoints, snapshot, self._schema, told=told) if looks else None
        return Ended(stopped="end", step=step, returned=(None, "") if looking is None else await looking)

    async def _stop(self, thread_id: str, snapshot: Any) -> stops.Stop | None:
        """Return the stop at which the graph waits on a thread; None if there is none or the graph was continued."""
        stops_here = self._stops or any((snapshot.metadata or {}).get(name) for name in stops.WHEN)
        return await stops.find(*self._at(thread_id)) if stops_here else None

    async def run(
        self, order: Order, context: TurnContext, mark: str, on_step: OnStep, used: Used | None = None
    ) -> Ended:
        control = RunControl()
        self._controls.add(control)
        if self._draining:
            control.request_drain()
        usage = model_output.ModelUsage(context.turn_id, self._answered) if self._foreign else None
        progress = _Progress(on_step, usage, used or Used())
        limit = asyncio.timeout(context.category.seconds)
        given = await questions.given_so_far(*self._at(context.thread_id)) if isinstance(order, Answers) else {}
        try:
            async with limit:
                if self._allow is not None:
                    await self._allow()
                with (
                    turn_around(context),
                    recording(self._recorded(context.thread_id)),
                    model_output.counting_subagents(progress.subagents),
                    model_output.publishing(self._live, context, progress.count),
                ):
                    return await self._stream(order, context, mark, progress, control)
        except GraphDrained:
            await progress.record_cost()
            return Ended(stopped="drained")
        except asyncio.CancelledError:
            await progress.record_cost()
            raise
        except TimeoutError as error:
            step = progress.counted(progress.step)
            if limit.expired():
                return Ended(stopped="timeout", error=f"took longer than {context.category.seconds} s", step=step)
            return Ended(stopped="failed", error=_sentence(error, self._secrets), step=step)
        except Exception as error:
            trouble = machine_trouble(error, CALLED)
            if trouble is not None:
                await progress.record_cost()
                raise trouble from error
            return await self._failed(error, progress, context.thread_id, order, given)
        finally:
            self._controls.discard(control)

    async def _failed(
        self, error: Exception, progress: _Progress, thread_id: str, order: Order, given: questions.Given
    ) -> Ended:
        """Return the turn's failure with its costs; take back the answers that the graph refused."""
        refused: frozenset[str] = frozenset()
        if isinstance(order, Answers) and not isinstance(error, _OURS):
            refused = await questions.take_back(*self._at(thread_id), order.values, given)
        why = _sentence(error, self._secrets) + (offered("missing field", self._schema, error) or "")
        return Ended(stopped="failed", error=why, step=progress.with_cost(error), refused=refused)

    def _at(self, thread_id: str) -> tuple[Any, GroupedSaver, Any]:
        return self._graph, self._checkpoints, _config(thread_id)

    def _recorded(self, thread_id: str) -> Questions:
        """Return an empty record of the guard's questions on a thread: pending questions will be asked again."""
        while len(self._questions) >= MOST_THREADS_RECORDED:
            self._questions.popitem(last=False)
        self._questions[thread_id] = {}
        self._questions.move_to_end(thread_id)
        return self._questions[thread_id]

    def drain(self) -> None:
        self._draining = True
        for control in self._controls:
            control.request_drain()

    async def seal(self, thread_id: str) -> Any:
        """Bring a thread whose turn is over to its end: keep finished steps only. Return LangGraph's snapshot of it."""
        config = _config(thread_id)
        for _ in range(MOST_SEALS):
            snapshot = await self._graph.aget_state(config)
            if not stops.steps_left(snapshot):
                return snapshot
            await self._graph.aupdate_state(config, None, as_node=END)
        raise RuntimeError(f"thread {thread_id} did not reach its end in {MOST_SEALS} steps")

    def unread(self, trigger: Trigger) -> str:
        if self._foreign:
            self._configured.made(trigger.context_json, trigger.config_json)
        elif self._own is not None:
            self._own.check(trigger.context_json, trigger.config_json)
        if trigger.asks_for("write", "replays"):
            return ""
        given = trigger.prompt, trigger.payload_json, trigger.input_json
        unread = self._schema.unread(*given, trigger.run_json)
        return unread or (self._foreign and offered("unset fields", self._schema, *given)) or ""

    def flush(self) -> None:
        self._checkpoints.flush()

    async def prune(self, thread_id: str) -> None:
        await self._checkpoints.aprune_ended(thread_id)

    async def _given(self, order: Order, context: TurnContext) -> tuple[Any, str]:
        """Return the input of the graph, and the last message before the turn."""
        if isinstance(order, Input):
            run = json.loads(order.run_json or "{}")
            end = await required("fork", self._graph, context.thread_id, run) if "checkpoint_id" in run else order.end
            values = (end or await self.seal(context.thread_id)).values
            if run.get("replays"):
                return None, _last_id(values) or inputs.START
            # Our own agent's briefing includes the handoff; an author's graph gets the handoff only in a field for it.
            fields = self._schema.with_handoff(order.input_json, context.handoff)
            if self._schema.is_whole(order.prompt, order.payload_json, fields, order.run_json):
                window = None if self._foreign else inputs.OF_AUTHOR
                return self._schema.raw(context.turn_id, fields, inputs.messages_of(values), window)
            if not self._schema.keeps_messages:
                said = order.prompt, order.payload_json, order.note, fields
                return self._schema.value(context.turn_id, *said), _last_id(values)
            messages = inputs.opening(context.turn_id, order.prompt, order.payload_json, order.note)
            before = inputs.messages_of(values)
            # An author's graph itself decides which messages it forgets.
            window = inputs.OF_FIRE if context.started_by == "fire" and not context.by_agent else inputs.OF_AUTHOR
            forgotten = [] if self._foreign else inputs.outgrown(before, window)
            own = self._schema.beside_messages(fields)
            return own | {"messages": [*forgotten, *inputs.dangling(before), *own.get("messages", ()), *messages]}, ""
        given: Any = Command(resume=dict(order.values)) if isinstance(order, Answers) else None
        if self._schema.keeps_messages and not context.run_json:
            return given, ""
        snapshot = await self._graph.aget_state(_config(context.thread_id))
        return given, str((snapshot.metadata or {}).get(BEFORE, ""))

    def _parts(
        self, order: Order, given: Any, context: TurnContext, before: str, progress: _Progress, control: RunControl
    ) -> AsyncIterator[Mapping[str, Any]]:
        """Run the graph; return its states and custom events. The events that a client's run asks for are recorded."""
        run = json.loads(context.run_json or "{}")
        recorder = self._events.begin(context, run) if self._events is not None and run else None
        config = self._run_config(context, before, progress, recorder.callbacks if recorder else ())
        # An author's graph may ask to be woken, even from a subgraph. Streaming that costs additional tasks.
        modes = {"values", *(["custom"] if self._foreign else []), *(recorder.modes if recorder else ())}
        stream = self._graph.astream(
            given,
            required("client-run", config, run, isinstance(order, Input)) if run else config,
            context=self._configured.made(context.context_json, context.config_json)[0] if self._foreign else context,
            stream_mode=[*modes],
            subgraphs=self._foreign or (recorder is not None and recorder.subgraphs),
            durability="sync",
            version="v2",
            control=control,
            **{name: run[name] for name in stops.WHEN if run.get(name)},
        )
        parts: AsyncIterator[Mapping[str, Any]] = stream if recorder is None else recorder.recorded(stream)
        return parts

    async def _stream(
        self, order: Order, context: TurnContext, mark: str, progress: _Progress, control: RunControl
    ) -> Ended:
        order, over = await self._before(order, context, mark)
        if over is not None:
            return over
        looking = None if isinstance(order, Input) else offered("hidden steps", *self._at(context.thread_id))
        check = None if looking is None else await looking
        given, before = await self._given(order, context)
        wake: int | None = None
        newest, asked_any = None, False
        told = offered("reports", self._live, context, progress.count) if self._foreign else None
        async for part in self._parts(order, given, context, before, progress, control):
            if told is not None and (part["ns"] or part["type"] == "custom"):
                told.take(part)
            if part["type"] == "custom":
                if told is not None and (asked := told.wake(part["data"], wake)) != wake:
                    wake = asked  # before the step's checkpoint if possible, because the graph does not ask again
                    await progress.record(replace(progress.step, wake_after_s=wake))
                continue
            if part["ns"]:
                continue
            newest, asked_any = part["data"], asked_any or bool(part["interrupts"])
            newer = self._step(part["data"], mark, before, wake_after_s=wake)
            step = await progress.record(progress.counted(newer))
            used = step.used.total()
            if used > context.category.tokens:
                raise TokenLimit(f"used {used} tokens, but its category allows {context.category.tokens}")
        # After an input, the stream holds every question that the graph asks. After a resume, it omits a question that
        # was pending before, and an author's graph may stop without one: then only the checkpoint shows the result.
        whole = isinstance(order, Input) and not self._foreign and not context.run_json
        if whole and newest is not None and not asked_any:
            ended = Ended(stopped="end", step=self._step(newest, mark, before, at_end=True))
        else:
            ended = await self.look(context.thread_id, mark)
        if check is not None and ended.stopped == "end":
            await check()
        ended = self._unless_caught(ended, context.thread_id)
        return replace(ended, step=replace(progress.counted(ended.step), wake_after_s=wake))

    def _unless_caught(self, ended: Ended, thread_id: str) -> Ended:
        """Return the result of a run, which is a failure if the run ended although the guard had asked the author."""
        asked = {str(one["tool"]): str(one["scope"]) for one in self._questions.get(thread_id, {}).values()}
        if ended.stopped != "end" or not asked:
            return ended
        tools, scopes = ", ".join(sorted(asked)), " and ".join(sorted(asked.values()))
        what = f"the graph caught the question about {tools}, so the author was not asked"
        return replace(
            ended, stopped="failed", error=f"{what}: grant {scopes}, or let langgraph.errors.GraphBubbleUp pass"
        )

    async def _before(self, order: Order, context: TurnContext, mark: str) -> tuple[Order, Ended | None]:
        """Apply a client's write to the state, or pass a stop. Return the order to run, or the interval's result."""
        if "write" not in json.loads(context.run_json or "{}"):
            return await self._past_stop(order, context.thread_id, mark)
        place, refused = _config(context.thread_id, turn=context), ""
        if isinstance(order, Input):  # the write was made before a crash
            refused = await required("state-write", self._graph, place, context.run_json, order.input_json)
        return order, Ended(stopped="refused" if refused else "end", error=refused)

    async def _past_stop(self, order: Order, thread_id: str, mark: str) -> tuple[Order, Ended | None]:
        """Apply the author's decision about a stop of the graph; return the order to run, or the interval's result."""
        if isinstance(order, Input):
            return order, None
        standing = await self._stop(thread_id, await self._graph.aget_state(_config(thread_id)))
        if standing is None:
            return order, None
        answers = dict(order.values) if isinstance(order, Answers) else {}
        decided = answers.pop(standing.id, None)
        if decided is None:
            return order, await self.look(thread_id, mark)
        if decided["type"] == "reject":
            await self.seal(thread_id)
            return order, await self.look(thread_id, mark)
        if decided["type"] == "edit":
            try:
                await stops.change(self._graph, standing, decided["edited_action"]["args"])
            except Exception as error:  # noqa: BLE001  after any error in the edit, the author is asked again
                why = _sentence(error, self._secrets)
                return order, Ended(stopped="failed", error=why, refused=frozenset({standing.id}))
        return (Answers(values=answers) if answers else Continue()), None

    def _run_config(self, turn: TurnContext, before: str, progress: _Progress, more: Sequence[Any]) -> dict[str, Any]:
        """Return the config of an interval, without the options of a client's run."""
        config = _config(turn.thread_id, turn=turn, before=before)
        if self._foreign:
            given = self._configured.made(turn.context_json, turn.config_json)[1]
            config["configurable"] = given | config["configurable"]
        called = [*([progress.usage] if progress.usage is not None else []), *self._callbacks(turn.turn_id), *more]
        return config | ({"callbacks": called} if called else {})

    def _step(self, values: Any, mark: str, before: str, *, at_end: bool = False, **known: Any) -> Step:
        messages = inputs.messages_of(values)
        own = inputs.after(messages, mark)
        if own is None and (before or not self._schema.keeps_messages):
            own = inputs.after(messages, before)
        if self._schema.keeps_messages:
            lines = None if own is None else inputs.said(own)
            if lines is not None and own is not None and at_end:
                lines = inputs.with_structured(lines, own, values)
        else:
            lines = inputs.said_or_outcome(own or (), self._schema.outcome(values) if at_end else "")
        return Step(messages=lines, used=model_output.used_in(own or ()), **known)


def _config(thread_id: str, *, turn: TurnContext | None = None, before: str = "") -> dict[str, Any]:
    """Return the run's config. Each checkpoint's metadata contains the turn and its grant."""
    metadata = {"turn_id": turn.turn_id, "grant": canonical(turn.category.to_dict())} if turn else {}
    metadata |= {BEFORE: before} if before else {}
    return {"configurable": {"thread_id": thread_id}, "metadata": metadata}


def _last_id(values: Any) -> str:
    messages = inputs.messages_of(values)
    return str(messages[-1].id or "") if messages else ""


def _sentence(error: BaseException, secrets: Collection[str]) -> str:
    """Return an error as a sentence; only Turnkeeper's own errors need no type in front."""
    text = str(error) if isinstance(error, TurnkeeperError) else f"{type(error).__name__}: {error}"
    return redact(text, secrets)[:LONGEST_ERROR]
