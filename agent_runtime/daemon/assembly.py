"""Putting the runtime together: for the daemon, and for tests that run it in their own process."""

import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from typing import Any

from agent_runtime.graph.agent.default import Build, MemoryRecall, build_graph
from agent_runtime.graph.agent.memory_store import MemoryStore, lend
from agent_runtime.graph.agent.subagents import Subagents
from agent_runtime.graph.checkpointer.saver import GroupedSaver, open_saver
from agent_runtime.graph.context import ToolSpec
from agent_runtime.graph.engine.engine import Engine
from agent_runtime.graph.engine.live_output import LiveOutput
from agent_runtime.graph.foreign.open import Opened, open_graph, targets
from agent_runtime.graph.guard import Gate, Guard, watching
from agent_runtime.graph.guard.tool_events import ToolEvents
from agent_runtime.graph.models import make_model, take_keys
from agent_runtime.graph.models.call import CallEnvironment, TokenBudget, model_calls
from agent_runtime.graph.models.secrets import known_secrets
from agent_runtime.graph.offline.model import NAME as OFFLINE
from agent_runtime.mailbox.acceptor import Acceptor
from agent_runtime.mailbox.agent_messages import AgentMessages
from agent_runtime.mailbox.mailboxes import Mailboxes
from agent_runtime.mailbox.terminal_deliveries import TerminalDeliveries
from agent_runtime.model.agents import hosted
from agent_runtime.model.signal import Signal
from agent_runtime.permissions.categories import Categories
from agent_runtime.permissions.judge import judge
from agent_runtime.permissions.narrowing import Narrowing
from agent_runtime.service.requests import FIRST_AGENT
from agent_runtime.service.runtime import Runtime
from agent_runtime.store.schema import open_database
from agent_runtime.store.turn_store import Store
from agent_runtime.tools.agents import agent_tools, subagent_tools
from agent_runtime.tools.loops import Loops, loop_tools
from agent_runtime.tools.restart import Lifecycle, lifecycle_tools
from agent_runtime.tools.workspace import workspace_tools
from agent_runtime.turns.handoff import HandoffIntake
from agent_runtime.turns.interval import Intervals
from agent_runtime.turns.notify import Notifier
from agent_runtime.turns.turns import Parts
from agent_runtime.turns.worker import Worker
from agent_runtime.workspace.workspace import Workspace
from turnkeeper.clock import Clock, SystemClock
from turnkeeper.config.home import Home
from turnkeeper.config.settings import Settings
from turnkeeper.entropy import Entropy, SystemEntropy
from turnkeeper.errors import InvalidInput
from turnkeeper.event_log import EventLog
from turnkeeper.process import Failpoints
from turnkeeper.storage.database import Database

PROCESS = "agent-runtime"
MOST_AT_ONCE = 32


@asynccontextmanager
async def assemble(
    home: Home,
    settings: Settings,
    *,
    environ: Mapping[str, str],
    clock: Clock | None = None,
    entropy: Entropy | None = None,
    build: Build | None = None,
) -> AsyncIterator[Runtime]:
    """Open the stores and put a runtime around them. The caller holds the process's lock.

    Args:
        home: the state directory.
        settings: from its config file.
        environ: the process's environment.
        clock: the machine's, unless a test passes another.
        entropy: likewise.
        build: makes the graph of tools, middleware and checkpointer; the one that the settings name, or the default
            agent's, unless a test passes another.

    Raises:
        Corrupt: a store cannot be read.
        InvalidInput: the settings name what cannot be run.
    """
    clock, entropy = clock or SystemClock(), entropy or SystemEntropy()
    async with AsyncExitStack() as stack:
        # An author's graph is loaded, and refused, before anything is opened or written.
        opened = await stack.enter_async_context(nullcontext() if build else _authors_graph(home, settings, environ))
        own = build or _builder(home, settings, environ, clock, opened)
        log = EventLog(home.logs, PROCESS, clock)
        stack.callback(log.close)
        database = open_database(home)
        stack.callback(database.close)
        checkpoints = await open_saver(home.checkpoints_db)
        stack.push_async_callback(checkpoints.aclose)
        yield await _wire(
            home,
            settings,
            environ,
            clock,
            entropy,
            log,
            database,
            checkpoints,
            own,
            stack,
            opened=opened,
        )


def _authors_graph(
    home: Home, settings: Settings, environ: Mapping[str, str]
) -> AbstractAsyncContextManager[Opened | None]:
    """Open the graph that the settings name, if they name one."""
    for name, agent in settings.agents.items():
        if agent.graph and name != FIRST_AGENT:
            what = f"agents.{name}.graph: only {FIRST_AGENT} has a graph, and its workers run the same"
            raise InvalidInput(what, where=str(home.config), hint=f"write it under [agents.{FIRST_AGENT}]")
    if FIRST_AGENT not in settings.agents or not settings.agents[FIRST_AGENT].graph:
        return nullcontext()
    take_keys(home, environ)
    trusted = targets(settings.categories.trusted_graphs, home.root)
    return open_graph(settings.agents[FIRST_AGENT].graph, home.root, trusted=trusted, environ=environ)


def _builder(home: Home, settings: Settings, environ: Mapping[str, str], clock: Clock, opened: Opened | None) -> Build:
    """Return what makes the author's graph, or the default agent's. Raises InvalidInput if that must not run."""
    if opened is None:
        return lambda specs, middleware, saver: build_graph(
            settings, home, specs, middleware=middleware, checkpointer=saver, clock=clock, environ=environ
        )
    opened.require()
    return lambda _specs, _middleware, saver: opened.bind(saver)


def _secrets(home: Home, settings: Settings, environ: Mapping[str, str], opened: Opened | None) -> frozenset[str]:
    if opened is None and settings.model.name == OFFLINE:
        return frozenset()  # nothing asks for a key, and no server can repeat it
    project = opened.loaded.reference.environment if opened else {}
    return known_secrets(home, {**os.environ, **environ}, settings.model.base_url, project)


def _around(
    settings: Settings, store: Store, clock: Clock, entropy: Entropy, log: EventLog, secrets: frozenset[str]
) -> CallEnvironment:
    cap = TokenBudget(settings.model.daily_token_cap, store, clock)
    return CallEnvironment(cap=cap, clock=clock, entropy=entropy, log=log, secrets=secrets)


def _workspace(database: Database, clock: Clock, entropy: Entropy, log: EventLog, store: Store) -> Workspace:
    def tell(event: str, fields: Mapping[str, Any]) -> None:
        log.emit(event, **fields)
        store.talk.notify()  # a conversation shows what became of what was proposed in it

    return Workspace(database, clock, entropy, tell, epoch=store.epoch)


def _engine(
    graph: Any, checkpoints: GroupedSaver, around: CallEnvironment, live: LiveOutput, *, foreign: bool
) -> Engine:
    # Our own agent asks before each model call; calls inside a foreign graph can only be counted afterwards.
    allow = around.cap.check if foreign else None
    return Engine(graph, checkpoints, foreign=foreign, allow=allow, secrets=around.secrets, live=live)


@contextmanager
def _watched(specs: Sequence[ToolSpec], narrowing: Narrowing, uses: ToolEvents, *, foreign: bool) -> Iterator[Gate]:
    """Watch every tool call; a foreign graph's tools are in no scope map, whatever they are called."""
    gate = Gate({} if foreign else {spec.tool.name: spec for spec in specs}, judge, narrowing)
    with watching(gate, uses):
        yield gate


def _tools(
    workspace: Workspace,
    agent_messages: AgentMessages,
    store: Store,
    categories: Categories,
    stack: AsyncExitStack,
    *,
    home: Home,
    clock: Clock,
    subagents: Subagents,
) -> list[ToolSpec]:
    """Return every tool there is; what they hold open is closed with the stack."""
    loops = Loops(store, categories, home=home, clock=clock)
    stack.push_async_callback(loops.close)
    return [
        *workspace_tools(workspace),
        *agent_tools(agent_messages),
        *lifecycle_tools(Lifecycle(store, home=home, clock=clock)),
        *loop_tools(loops),
        *subagent_tools(subagents),
    ]


def _worker(
    parts: Parts,
    terminal_deliveries: TerminalDeliveries,
    agent_messages: AgentMessages,
    arrived: Signal,
    notifier: Notifier,
    *,
    home: Home,
    clock: Clock,
) -> Worker:
    return Worker(
        parts,
        terminal_deliveries=terminal_deliveries,
        agent_messages=agent_messages,
        handoffs=HandoffIntake(parts.store, home=home, clock=clock, log=parts.log),
        arrived=arrived,
        notifier=notifier,
        clock=clock,
        most_at_once=MOST_AT_ONCE,
    )


async def _wire(
    home: Home,
    settings: Settings,
    environ: Mapping[str, str],
    clock: Clock,
    entropy: Entropy,
    log: EventLog,
    database: Database,
    checkpoints: GroupedSaver,
    build: Build,
    guards: AsyncExitStack,
    *,
    opened: Opened | None,
) -> Runtime:
    failpoints, arrived, live = Failpoints(environ), Signal(), LiveOutput()
    categories = Categories.load(home, settings)
    store = await Store.take_over(database, clock, entropy)
    workspace = _workspace(database, clock, entropy, log, store)
    mailboxes = Mailboxes(home, hosted(settings), process=PROCESS, clock=clock, entropy=entropy)
    terminal_deliveries = TerminalDeliveries(store, mailboxes, clock=clock, log=log)
    acceptor = Acceptor(
        store, mailboxes, terminal_deliveries, arrived, clock=clock, entropy=entropy, log=log, failpoints=failpoints
    )
    agent_messages = AgentMessages(store, acceptor, mailboxes, home=home, clock=clock)
    subagents = Subagents(lambda: make_model(settings.model, home, clock=clock, environ=environ))
    specs = _tools(workspace, agent_messages, store, categories, guards, home=home, clock=clock, subagents=subagents)
    narrowing = Narrowing(categories.get)
    foreign = opened is not None
    gate = guards.enter_context(_watched(specs, narrowing, ToolEvents(database, store, clock), foreign=foreign))
    around = _around(settings, store, clock, entropy, log, _secrets(home, settings, environ, opened))
    inner = [Guard(gate), *model_calls(settings.model, specs, around)]
    subagents.begin(gate, specs, inner)
    graph = lend(build(specs, [MemoryRecall(workspace), *inner], checkpoints), MemoryStore(workspace, gate))
    engine = _engine(graph, checkpoints, around, live, foreign=foreign)
    intervals = Intervals(store=store, engine=engine, narrowing=narrowing, log=log, failpoints=failpoints)
    parts = Parts(store=store, engine=engine, intervals=intervals, mailboxes=mailboxes, log=log, failpoints=failpoints)
    return Runtime(
        store=store,
        acceptor=acceptor,
        worker=_worker(
            parts,
            terminal_deliveries,
            agent_messages,
            arrived,
            Notifier(settings.notify, log, environ),
            home=home,
            clock=clock,
        ),
        mailboxes=mailboxes,
        categories=categories,
        workspace=workspace,
        live=live,
        log=log,
        clock=clock,
        entropy=entropy,
    )
