"""Inboxes in a store that several machines share, and the notifications between the machines."""

import asyncio
from collections.abc import Callable, Collection
from functools import partial

from sqlalchemy import Connection

from agent_runtime.daemon.assembly import PROCESS, Basis
from agent_runtime.daemon.cluster.runs import RUNS, Relay, RunRelay
from agent_runtime.graph.engine.model_output import LiveOutput
from agent_runtime.mailbox.shared import Ownership, SharedMailboxes
from agent_runtime.model.graphs import Catalog
from agent_runtime.model.trigger import hosted
from agent_runtime.permissions.categories import Categories
from agent_runtime.service.requests import read_again, read_fire
from agent_runtime.store.database import open_database
from agent_runtime.store.schema import audit
from agent_runtime.store.turn_events import Signal
from agent_runtime.store.turn_store import Store
from turnkeeper.clock import SharedClock
from turnkeeper.errors import Conflict, InvalidInput, NotFound
from turnkeeper.storage import chain, nodes
from turnkeeper.storage.server.following import listen, tell
from turnkeeper.storage.server.handover import FOLLOWED, NEWS, OUTCOMES, WORDS
from turnkeeper.v1 import agent_runtime_pb2


async def join(basis: Basis, shares: SharedClock | None) -> nodes.Beat | None:
    """Announce this process to the machines that share the database, and sign its records with the home's key.

    Set the clock by the database's clock, and return the part that reports that the process runs; None without a clock.
    """
    database, settings, entropy, beat = basis.database, basis.settings, basis.entropy, None
    if shares is not None:
        role, node_id = PROCESS if "runtime" in settings.node.roles else nodes.WEB, f"{PROCESS}-{entropy.hex(12)}"
        beat = nodes.Beat(database.run, shares, node_id=node_id, name=settings.node.name, role=role)
        database.check = nodes.refuse_restored(shares)
        await beat.once()
    if settings.store.is_shared:
        recorder = chain.Recorder.of(basis.home, basis.clock.now(), entropy, nodes.name_of(settings.node))
        await database.run(lambda connection: audit.write_as(connection, recorder))
    return beat


def open_mailboxes(
    basis: Basis, store: Store, arrived: Signal, categories: Categories, live: LiveOutput
) -> SharedMailboxes:
    """Open the inboxes of this machine's agents, and report this machine's abilities to the other machines."""
    beside = open_database(basis.url)
    basis.stack.callback(beside.close)
    beside.check = basis.database.check or nodes.refuse_restored(basis.clock)
    ownership = Ownership(beside, basis.home.run / "owner", clock=basis.clock, entropy=basis.entropy, log=basis.log)
    ownership.agents, ownership.node = hosted(basis.settings), nodes.name_of(basis.settings.node)
    ownership.lacks = lambda data: _lacked(data, categories, basis.graphs.catalog, basis.settings.node.tags)
    if basis.beat is not None:
        beat, digests, catalog = basis.beat, _digests_of_graphs(basis), basis.graphs.catalog
        ownership.lacking, ownership.others = lambda: beat.lacking, lambda: [each.facts for each in beat.alike]
        store.right.digest_of_graph = lambda name: digests.get(f"graph {catalog.graph_of(name)}", "")
        basis.beat.on_gone = partial(nodes.alert, basis.home, basis.log.emit)
        basis.beat.on_seen = partial(nodes.date_alerts, basis.home)
        basis.beat.owner, basis.beat.facts = lambda: ownership.owner, _facts(basis, categories, ownership)

    def trouble(why: str) -> None:
        basis.log.emit("store.unreachable", reason=why)

    async def say(channel: str, *texts: str) -> None:
        await basis.database.read(partial(_tell_all, channel, texts))

    node = basis.entropy.hex(12)
    relay = Relay(live, say, basis.clock, node=node)
    runs = RunRelay(lambda: live.runs, say, basis.clock, node=node)

    def on_news(channel: str, said: str) -> None:
        if channel == RUNS:
            runs.heard(said)
            return
        if channel in {FOLLOWED, WORDS}:
            relay.heard(channel, said)
            return
        of_others = said and said not in ownership.held and basis.beat and not basis.beat.is_first_for(said)
        if channel != OUTCOMES and not of_others:
            arrived.notify()
        for signal_ in (store.events, store.conversations):
            signal_.notify()

    async def listening() -> None:
        heard = basis.settings.store.heard(NEWS, OUTCOMES, FOLLOWED, WORDS, RUNS)
        announcing = [relay.run(), runs.run()] if heard else []
        await asyncio.gather(listen(basis.url, on_news, trouble, basis.clock, heard), *announcing)

    return SharedMailboxes(
        basis.home,
        hosted(basis.settings),
        process=PROCESS,
        clock=basis.clock,
        entropy=basis.entropy,
        database=basis.database,
        ownership=ownership,
        works="runtime" in basis.settings.node.roles,
        read_fire=lambda data: read_fire(agent_runtime_pb2.FireRequest.FromString(data), categories.get),
        read_again=lambda data: read_again(agent_runtime_pb2.FireRequest.FromString(data)),
        on_taken=basis.saver.acontinue,
        listening=listening,
    )


def _tell_all(channel: str, texts: Collection[str], connection: Connection) -> None:
    for said in texts:
        tell(connection, channel, said)


def _digests_of_graphs(basis: Basis) -> dict[str, str]:
    return {f"graph {name}": one.digest for name, one in basis.graphs.opened.items()}


def _facts(basis: Basis, categories: Categories, ownership: Ownership) -> Callable[[], dict[str, str]]:
    """Return a function that describes the categories, graphs, settings and cordon of this machine."""
    same = {name: nodes.digest(said) for name, said in basis.settings.common.items()}
    same |= {nodes.TAG + tag: "offered" for tag in basis.settings.node.tags}
    same |= _digests_of_graphs(basis) | {nodes.AGENTS: " ".join(hosted(basis.settings))}

    def now() -> dict[str, str]:
        found, since = categories.all(), ownership.at_rest()
        return (
            same
            | ({nodes.CORDONED: since} if since else {})
            | {
                f"category {one.name}": nodes.digest(one.category.to_dict())
                if one.category
                else nodes.UNUSABLE + one.problem[:300]
                for one in found
            }
        )

    return now


def _lacked(data: bytes, categories: Categories, catalog: Catalog, tags: Collection[str]) -> list[str]:
    """Return the category, graph and tag of a fire that this machine lacks; empty for a damaged request."""
    found = []
    try:
        request = agent_runtime_pb2.FireRequest.FromString(data)
        categories.get(request.category)
    except (InvalidInput, NotFound):
        found.append(f"category {request.category}")
    except Exception:  # noqa: BLE001  the reader of the envelope reports the fault
        return []
    try:
        catalog.require(request.graph)
    except Conflict:
        found.append(f"graph {catalog.graph_of(request.graph)}")
    if request.needs and request.needs not in tags:
        found.append(nodes.TAG + request.needs)
    return found
