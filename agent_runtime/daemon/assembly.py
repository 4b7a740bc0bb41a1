"""The runtime's process, which assembles its parts, serves them on a socket, and drains them at the end.

Tests assemble a runtime in their own process.
"""

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from agent_runtime.graph.agent.default import Build, MemoryRecall, Subagents, build_graph
from agent_runtime.graph.checkpointer.saver import GroupedSaver, open_saver
from agent_runtime.graph.context import ToolSpec
from agent_runtime.graph.engine.engine import LocalEngine
from agent_runtime.graph.engine.model_output import LiveOutput, ModelCallLog
from agent_runtime.graph.engine.protocol import Engine, Engines
from agent_runtime.graph.guard import Gate, Guard, ToolEvents, watching
from agent_runtime.graph.models.call import CallEnvironment, TokenBudget, model_calls
from agent_runtime.graph.models.make import Models, known_secrets, make_model
from agent_runtime.graph.offline.model import NAME as OFFLINE
from agent_runtime.mailbox.acceptor import Acceptor, TerminalDeliveries
from agent_runtime.mailbox.agent_messages import AgentMessages
from agent_runtime.mailbox.mailboxes import Mailboxes
from agent_runtime.model.graphs import Graphs
from agent_runtime.model.trigger import hosted
from agent_runtime.permissions.categories import Categories
from agent_runtime.permissions.judge import Narrowing, judge
from agent_runtime.service.servicer import RULES, Runtime, Servicer
from agent_runtime.store.database import open_database
from agent_runtime.store.schema import audit
from agent_runtime.store.turn_events import Signal
from agent_runtime.store.turn_store import Store
from agent_runtime.tools.agents import agent_tools, subagent_tools
from agent_runtime.tools.restart import Lifecycle, lifecycle_tools
from agent_runtime.tools.tasks import Tasks
from agent_runtime.tools.workspace import workspace_tools
from agent_runtime.turns import interval, pruning, turns, worker
from agent_runtime.turns.exceptions import StandingExceptions
from agent_runtime.workspace.memory import Namespaces
from agent_runtime.workspace.workspace import Workspace
from turnkeeper.bus.durable_writes import GroupingFiles
from turnkeeper.bus.event_log import EventLog
from turnkeeper.clock import Clock, SharedClock, SystemClock
from turnkeeper.config.home import Home
from turnkeeper.config.settings import Settings, load_settings, staffed
from turnkeeper.config.started import add_files
from turnkeeper.config.surfaces import offered, required
from turnkeeper.entropy import Entropy, SystemEntropy
from turnkeeper.errors import EXIT_FAILURE, Conflict, MachineTrouble
from turnkeeper.rpc.callers import Door
from turnkeeper.rpc.process import Failpoints, Progress, Troubles, keep_running, settle_heap
from turnkeeper.rpc.pruning import BelievedTime, Pruning
from turnkeeper.rpc.server import Observers, UnixServer, keep_reachable
from turnkeeper.storage import chain, nodes
from turnkeeper.storage.damage import StoreWatch
from turnkeeper.storage.database import Database, WorkerThread, make_schemas
from turnkeeper.storage.files import Files
from turnkeeper.storage.identity import require, take
from turnkeeper.storage.locking import ProcessLock, ReaderLock
from turnkeeper.storage.server.handover import SCHEMA
from turnkeeper.storage.server.url import in_schema
from turnkeeper.v1 import agent_runtime_pb2
from turnkeeper.v1.agent_runtime_pb2_grpc import add_AgentRuntimeServicer_to_server

MOST_AT_ONCE = 32
PROCESS = "agent-runtime"
MOST_THREADS = 1024  # started on demand; a thread that hangs is lost until the process ends
DRAIN_GRACE_S = 60.0  # time for running turns to reach a checkpoint
CALLS_GRACE_S = 2.0
LAST_GRACE_S = 8.0  # time for quick steps; a graph may have left a task that never ends


@contextlib.asynccontextmanager
async def assemble(
    home: Home,
    settings: Settings,
    *,
    environ: Mapping[str, str],
    clock: Clock | None = None,
    entropy: Entropy | None = None,
    build: Build | None = None,
    place: Path | str | None = None,
    shared: str = "",
    worker: type[WorkerThread] = WorkerThread,
    files: Files | None = None,
) -> AsyncIterator[Runtime]:
    """Open the stores and assemble a runtime. The caller holds the process's lock.

    Args:
        clock: by default the machine's clock; tests pass another clock.
        entropy: by default the machine's randomness; tests pass another source.
        build: makes the graph from tools, middleware and checkpointer; by default the configured graph or the default
            agent.
        place: the location of the turn table and the workspace; by default from the settings; tests pass another.
        shared: a database that several machines share, if the settings name one.
        worker: the threads of the stores; a simulation passes another class.
        files: by default the machine's files, synced in groups; a simulation passes files whose writes fail.

    Raises:
        Corrupt: a store cannot be read.
        InvalidInput: the settings name a graph or model that cannot run.
    """
    shares = SharedClock() if shared and clock is None else None
    clock, entropy = clock or shares or SystemClock(), entropy or SystemEntropy()
    async with contextlib.AsyncExitStack() as stack:
        # An author's graph is loaded or refused before any store is opened or written.
        graphs = Graphs() if build else await stack.enter_async_context(_authors_graphs(home, settings, environ))
        add_files(home, PROCESS, graphs.files)
        own = build or _builder(home, settings, environ, clock, graphs.default)
        log = EventLog(home.logs, PROCESS, clock)
        stack.callback(log.close)
        if shared:
            os.environ.setdefault("PGAPPNAME", f"turnkeeper {PROCESS} {nodes.name_of(settings.node)}")
            make_schemas(shared)
        url = in_schema(shared, SCHEMA) if shared else ""
        stores = () if url or place else (home.agent_db, home.checkpoints_db)
        require(home, *stores)
        database = open_database(url or place or home.agent_db, worker=worker)
        stack.callback(database.close)
        saver = await open_saver(url or home.checkpoints_db, fenced=bool(url), entropy=entropy, worker=worker)
        stack.push_async_callback(saver.aclose)
        basis = Basis(
            home=home, settings=settings, environ=environ, clock=clock, entropy=entropy, log=log, database=database,
            saver=saver, graphs=graphs, stack=stack, url=url, beat=None, files=files or GroupingFiles(),
        )  # fmt: skip
        if shared:
            basis = replace(basis, beat=await required("shared-beat", basis, shares))
        store = await Store.take_over(database, clock, entropy, shared=bool(url))
        await take(home, *stores, run=database.run, chain=audit, at=clock.now(), entropy=entropy, starts=True)
        yield basis.runtime(own, store)


async def check(home: Home) -> None:
    """Load the settings, the categories, the model with its keys and the author's graph; open and write no store.

    Raises:
        InvalidInput: the settings would prevent a start, or would hold fires of a category.
    """
    settings = staffed(load_settings(home), home)
    Categories(home, settings).require_all()
    async with _authors_graphs(home, settings, os.environ) as graphs:
        if graphs.default is not None:
            graphs.default.require()
        else:
            make_model(settings.model, home, clock=SystemClock(), environ=os.environ)


async def serve(home: Home, lock: ProcessLock) -> None:
    """Serve until SIGTERM or SIGINT, then drain. The caller holds the process's lock.

    The process ends within the sum of the grace periods above. If it is killed after that, nothing is lost.
    """
    use_threads()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    settings = staffed(load_settings(home), home)
    log = EventLog(home.logs, PROCESS, SystemClock())
    watch = StoreWatch(
        home.agent_db, home.checkpoints_db, report=lambda error: log.emit("store.damaged", reason=str(error))
    )
    async with (
        _reading(home, settings, watch) as readers,
        assemble(home, settings, environ=os.environ, shared=settings.store.shared_url) as runtime,
    ):
        runtime.log.emit(
            "session.began", durable=True, epoch=runtime.store.epoch, incarnation=runtime.store.incarnation
        )
        observers = Observers(PROCESS, home, runtime, settings, runtime.clock)
        await runtime.worker.start(on_shutdown=stop.set)
        server = UnixServer(home.socket(PROCESS), Door(home, RULES, runtime.log))
        servicer = Servicer(runtime)
        described = agent_runtime_pb2.DESCRIPTOR.services_by_name["AgentRuntime"]
        server.add(add_AgentRuntimeServicer_to_server, servicer, described)
        settle_heap()
        await server.start()
        runtime.log.emit("process.started", after=lock.after)
        kept = Progress(home, PROCESS, os.getpid(), runtime.trouble).run(
            runtime.clock, partial(keep_reachable, lock, server, runtime.log, readers, observers)
        )
        signer, others = _beside(home, runtime, settings)
        progress, stopping = asyncio.create_task(kept, name="progress"), asyncio.create_task(stop.wait())
        try:
            lost = [progress, *(part for part in others if part.get_name() == "Beat")]
            await _first_ended(stopping, lost)
        finally:
            last = threading.Timer(DRAIN_GRACE_S + CALLS_GRACE_S + LAST_GRACE_S, os._exit, (EXIT_FAILURE,))
            last.daemon = True
            last.start()
            stopping.cancel()
            grace_s = 0.0 if (is_lost := any(part.done() for part in lost)) else DRAIN_GRACE_S
            runtime.log.emit("process.draining", grace_s=grace_s)
            servicer.refuse_fires()
            await _tell(runtime.beat, nodes.Beat.drain)
            await runtime.worker.stop(grace_s)
            progress.cancel()
            for part in others:
                part.cancel()
            await _tell(runtime.beat, nodes.Beat.leave)
            if not is_lost:
                await signer.sign()
            servicer.close()  # only after the runtime has reported the outcomes of turns that ended meanwhile
            await server.stop(CALLS_GRACE_S)
            observers.close()
            runtime.mailboxes.close()
            runtime.log.emit("process.stopped")


async def _first_ended(stopping: asyncio.Task[Any], parts: list[asyncio.Task[Any]]) -> None:
    """Wait until `stopping` or a part ends. A part ends only by an error: another process has the home or the store."""
    await asyncio.wait([stopping, *parts], return_when=asyncio.FIRST_COMPLETED)
    for part in filter(asyncio.Task.done, parts):
        part.result()


def _beside(home: Home, runtime: Runtime, settings: Settings) -> tuple[chain.Signer, list[asyncio.Task[None]]]:
    """Start the background parts: signing of records, and deletion of old turns."""
    clock, log = runtime.clock, runtime.log
    sign = chain.signer_of(settings.store.is_shared)
    signer = sign(home, runtime.store.write, audit, clock=clock, entropy=runtime.entropy, emit=log.emit)
    pruner = pruning.Pruner(runtime.store, runtime.checkpoints, clock=clock, log=log, keep=settings.kept)
    believed = BelievedTime(home, PROCESS, clock, log.emit)
    pruned = Pruning(believed, pruner.pass_over, clock=clock, first_s=pruning.FIRST_AFTER_S)
    parts: list[Any] = [signer, pruned, *filter(None, [runtime.beat])]
    return signer, [
        asyncio.create_task(keep_running(part.run, clock, log.emit), name=type(part).__name__) for part in parts
    ]


class Threads(ThreadPoolExecutor):
    """The threads that run the synchronous code of graphs. The process does not wait for them at its end.

    A tool that hangs in a thread blocks only its own turn, because a thread can only be abandoned, not cancelled.
    """

    def __init__(self) -> None:
        super().__init__(max_workers=MOST_THREADS, thread_name_prefix="graph")

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002
        super().shutdown(wait=False, cancel_futures=True)


def use_threads() -> None:
    """Make the running loop use :class:`Threads`: its default executor has few threads, and waits for all of them."""
    asyncio.get_running_loop().set_default_executor(Threads())


async def _tell(beat: nodes.Beat | None, what: Callable[[nodes.Beat], Awaitable[None]]) -> None:
    """Notify the other machines, if any; if the database does not answer, they detect the change themselves."""
    if beat is not None:
        with contextlib.suppress(MachineTrouble, Conflict):
            await what(beat)


@contextlib.asynccontextmanager
async def _reading(home: Home, settings: Settings, watch: StoreWatch) -> AsyncIterator[list[ReaderLock]]:
    """Become the only reader of every hosted agent's inbox. Raises Conflict if there is another reader."""
    with contextlib.ExitStack() as locks, watch:
        yield [locks.enter_context(ReaderLock(home.inbox(agent), PROCESS)) for agent in hosted(settings)]


def _authors_graphs(
    home: Home, settings: Settings, environ: Mapping[str, str]
) -> contextlib.AbstractAsyncContextManager[Graphs]:
    """Return the context that opens the graphs which the settings name. Raises NotInstalled if that part is removed."""
    named = settings.graphs or settings.assistants or any(agent.graph for agent in settings.agents.values())
    opening: Any = (required if named else offered)("graphs", settings, home, environ)
    return opening or contextlib.nullcontext(Graphs())


def _builder(home: Home, settings: Settings, environ: Mapping[str, str], clock: Clock, opened: Any) -> Build:
    """Return the builder of the author's graph or the default agent. Raises InvalidInput if a graph must not run."""
    if opened is None:
        return lambda specs, middleware, saver: build_graph(
            settings, home, specs, middleware=middleware, checkpointer=saver, clock=clock, environ=environ
        )
    opened.require()
    return lambda _specs, _middleware, saver: opened.bind(saver)


@dataclass(frozen=True, kw_only=True)
class Basis:
    """The dependencies that the parts of a runtime need."""

    home: Home
    settings: Settings
    environ: Mapping[str, str]
    clock: Clock
    entropy: Entropy
    log: EventLog
    database: Database
    saver: GroupedSaver
    graphs: Graphs
    stack: contextlib.AsyncExitStack
    url: str
    beat: nodes.Beat | None
    files: Files

    def runtime(self, build: Build, store: Store) -> Runtime:
        """Assemble the parts; `build` makes the graph."""
        clock, log, categories = self.clock, self.log, Categories(self.home, self.settings)
        failpoints, arrived, live = Failpoints(self.environ), Signal(), LiveOutput(offered("run-events"))
        narrowing = Narrowing(categories.get)
        workspace = Workspace(self.database, clock, self.entropy, partial(store.report, log), right=store.right)
        mailboxes = self._mailboxes(store, arrived, categories, live)
        deliveries = TerminalDeliveries(store, mailboxes, clock=clock, log=log)
        common: dict[str, Any] = {"log": log, "failpoints": failpoints}
        acceptor = Acceptor(store, mailboxes, deliveries, arrived, clock=clock, entropy=self.entropy, **common)
        messages = AgentMessages(store, acceptor, mailboxes, home=self.home, clock=clock, log=log)
        subagents = Subagents(Models(self.settings, self.home, clock=clock, environ=self.environ))
        loops = offered("loops", store, categories, self.home, self.clock)
        tasks: Tasks = loops or Tasks(self.home)
        self.stack.push_async_callback(tasks.close)
        excepted = StandingExceptions(store, categories, tasks.task, log)
        specs = self._tools(workspace, messages, store, loops, subagents)
        engines = self._engines(build, store, workspace, specs, narrowing, subagents, live)
        parts = turns.Parts(
            **common,
            store=store,
            engines=engines,
            intervals=interval.Intervals(**common, store=store, engines=engines, narrowing=narrowing),
            mailboxes=mailboxes,
            agent_messages=messages,
            notifier=turns.Notifier(self.settings.notify, log, self.environ),
            settings=self.settings,
            exceptions=excepted,
            files=self.files,
        )
        around = (self.home, clock, self.entropy, log)
        working = worker.Worker(
            parts,
            terminal_deliveries=deliveries,
            outboxes=offered("outboxes", store, acceptor, mailboxes, categories, failpoints, *around),
            handoffs=worker.HandoffIntake(store, home=self.home, clock=clock, log=log, files=self.files),
            home=self.home,
            arrived=arrived,
            clock=clock,
            most_at_once=MOST_AT_ONCE,
        )
        return Runtime(
            store=store,
            checkpoints=self.saver,
            acceptor=acceptor,
            worker=working,
            mailboxes=mailboxes,
            namespaces={name: self._names(one) for name, one in self._graphs().items()},
            categories=categories,
            exceptions=excepted,
            catalog=self.graphs.catalog,
            engines=engines,
            workspace=workspace,
            live=live,
            log=log,
            clock=clock,
            entropy=self.entropy,
            trouble=Troubles(self.database, self.saver, working, log),
            beat=self.beat,
        )

    def _mailboxes(self, store: Store, arrived: Signal, categories: Categories, live: LiveOutput) -> Mailboxes:
        where = self.home, hosted(self.settings)
        how: dict[str, Any] = {"process": PROCESS, "clock": self.clock, "entropy": self.entropy}
        if not self.url:
            return Mailboxes(*where, files=self.files, **how)
        shared: Mailboxes = required("shared-mailboxes", self, store, arrived, categories, live)
        return shared

    def _tools(
        self, workspace: Workspace, messages: AgentMessages, store: Store, loops: Any, subagents: Subagents
    ) -> list[ToolSpec]:
        own = [
            *workspace_tools(workspace),
            *agent_tools(messages),
            *lifecycle_tools(Lifecycle(store, home=self.home, clock=self.clock, files=self.files)),
            *(offered("loop-tools", loops) or ()),
            *subagent_tools(subagents),
            *(offered("folder-tools", self.home, self.settings.folder.path, self.clock) or ()),
        ]
        return [*own, *(offered("supplied-tools", self, store, own) or ())]

    def _engines(
        self,
        build: Build,
        store: Store,
        workspace: Workspace,
        specs: list[ToolSpec],
        narrowing: Narrowing,
        subagents: Subagents,
        live: LiveOutput,
    ) -> Engines:
        """Make the graphs, with a guard on every tool call, and their engines."""
        settings, foreign, secrets = self.settings, self.graphs.default is not None, self._secrets()
        # The scope map contains only our own tools, not a foreign graph's tools with the same names.
        seen = {self.graphs.catalog.label(name): one.inspection for name, one in self.graphs.opened.items()}
        found, inside = ({at: getattr(one, what) for at, one in seen.items()} for what in ("held", "inside"))
        gate = Gate({} if foreign else {spec.tool.name: spec for spec in specs}, judge, narrowing, found, inside)
        self.stack.enter_context(watching(gate, ToolEvents(self.database, store, self.clock)))
        budget = TokenBudget(settings.model.daily_token_cap, store, self.clock)
        around = CallEnvironment(cap=budget, clock=self.clock, entropy=self.entropy, log=self.log, secrets=secrets)
        inner = [Guard(gate), *model_calls(settings.model, specs, around)]
        subagents.begin(gate, specs, inner)
        answered = ModelCallLog(emit=self.log.emit, steady=self.clock.monotonic)
        default, how = self.graphs.catalog.default, dict[str, Any](secrets=secrets, live=live, answered=answered)
        observers = Observers("turns", self.log, settings, self.clock)
        self.stack.callback(observers.close)
        how |= {"callbacks": observers.callbacks, "events": live.runs, "own": subagents.models}
        engines: dict[str, Engine] = {}
        for name, one in self._graphs().items():
            of_author = one is not None and (name != default or foreign)
            graph = (
                one.bind(self.saver)
                if one and name != default
                else build(specs, [MemoryRecall(workspace), *inner], self.saver)
            )
            graph = offered("memory of graphs", graph, workspace, gate, self._names(one), one) or graph
            # Our own agent checks limits before each model call; calls inside a foreign graph can only be counted
            # afterwards.
            allow = budget.check if of_author else None
            how["hash_of"] = partial(gate.hash_of, self.graphs.catalog.label(name))
            engines[name] = LocalEngine(graph, self.saver, foreign=of_author, allow=allow, **how)
        return Engines(engines, self.graphs.catalog, how["events"])

    def _names(self, opened: Any) -> Namespaces:
        tier = self.settings.memory.default_tier
        return Namespaces(tier=tier) if opened is None else opened.namespaces(tier)

    def _graphs(self) -> dict[str, Any]:
        """Return the graphs by name, the default one first; the value of our own agent is None."""
        return {self.graphs.catalog.default: None, **self.graphs.opened}

    def _secrets(self) -> frozenset[str]:
        if not self.graphs.opened and self.settings.model.name == OFFLINE:
            return frozenset()  # no key was given, so no server can return it
        of_projects = self.graphs.environment
        return known_secrets(self.home, {**os.environ, **self.environ}, self.settings.model.base_url, of_projects)
