"""The process `python -m turnkeeper.constellation.peers HOME`. The supervisor runs it if `[peers] enabled = true`.

Like the daemons, it holds its lock, reports its progress, and answers the health service on `state/run/peers.sock`. It
listens for peers on the TCP address of `[peers] listen`.
"""

import asyncio
import json
import os
import signal
import sys
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from functools import partial
from pathlib import Path

import sqlalchemy as sa

from turnkeeper.bus.event_log import EventLog
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.config.settings import NodeSettings, Settings, load_settings
from turnkeeper.constellation.peers import pairing
from turnkeeper.constellation.peers.door import Door, Known, listen
from turnkeeper.constellation.peers.exchange import Courier, Place, ToDeliver, ToPair
from turnkeeper.entropy import SystemEntropy
from turnkeeper.errors import Conflict, InvalidInput, MachineTrouble, TurnkeeperError
from turnkeeper.rpc.process import Progress, together
from turnkeeper.rpc.server import UnixServer, keep_reachable, run_daemon
from turnkeeper.storage import nodes, schema_revision
from turnkeeper.storage.database import Database, make_schemas
from turnkeeper.storage.files import replace_whole
from turnkeeper.storage.locking import ProcessLock
from turnkeeper.storage.server.url import in_schema
from turnkeeper.storage.statements import TEXT, Statement, now_us, upsert
from turnkeeper.v1 import peers_pb2, peers_pb2_grpc

PROCESS = "peers"
LOOK_S = 1.0
CLAIM_S = 15.0
NICE = 10  # if processor time is scarce, peers and strangers wait, and fires do not
_GRACE_S = 2.0
_SERVICE = peers_pb2.DESCRIPTOR.services_by_name["Peers"]


_NOW = Statement(sa.select(now_us()))


class Claim:
    """The right to do a task that one home does for all homes of a shared database. Renewed every few seconds.

    Attributes:
        holder: the home that held the claim when it was last read.
    """

    def __init__(self, database: Database, name: str, home: Home, node: NodeSettings) -> None:
        """Claim `name` for a home. The same home can renew the claim at once, even after its process was killed."""
        self._database, self._name = database, name
        self.mine = f"{nodes.name_of(node)} ({nodes.name_of(NodeSettings())}:{home.root})"
        self.holder = ""

    async def take(self) -> bool:
        """Take or renew the claim for 15 seconds. Return False if another home holds it."""
        self.holder = await self._database.run(self._take)
        return self.holder == self.mine

    def _take(self, connection: sa.Connection) -> str:
        at = int(_NOW.value(connection))
        _CLAIM.run(connection, name=self._name, holder=self.mine, until_us=at + int(CLAIM_S * 1e6))
        return str(_HOLDER.value(connection, of=self._name))

    async def let_go(self) -> None:
        """Release the claim, so that another home can take it at once."""
        await self._database.run(lambda connection: _LET_GO.run(connection, of=self._name, mine=self.mine))


_slots = sa.Table(
    "slots", sa.MetaData(schema=nodes.SCHEMA), sa.Column("name", TEXT, primary_key=True), sa.Column("holder", TEXT),
    sa.Column("until_us", sa.BigInteger),
)  # fmt: skip
# A claim that lasts longer than `CLAIM_S` was made before the server's clock was set back.
_lasts = _slots.c.until_us.between(now_us(), now_us() + int(CLAIM_S * 1e6))
_free = ~_lasts | (_slots.c.holder == sa.literal_column("excluded.holder"))
_CLAIM = Statement(upsert(_slots, [_slots.c.name], ["holder", "until_us"], where=_free))
_HOLDER = Statement(sa.select(_slots.c.holder).where(_slots.c.name == sa.bindparam("of")))
_LET_GO = Statement(
    sa.delete(_slots).where(_slots.c.name == sa.bindparam("of"), _slots.c.holder == sa.bindparam("mine"))
)


class Served:
    """The servers, couriers and door of the process, which follow the registry."""

    def __init__(self, place: Place, identity: pairing.Identity) -> None:
        self._place, self._identity = place, identity
        self._wake = asyncio.Event()
        self._registry = pairing.Registry()
        self._servers: dict[str, UnixServer] = {}
        self._couriers: dict[str, tuple[Courier, asyncio.Task[None]]] = {}
        self._made_at: datetime | None = None
        self.door = Door(self._known(), place.clock, place.log)

    async def run(self) -> None:
        """Call :meth:`look` once a second until cancelled."""
        while True:
            await self.look()
            self._wake.clear()
            await self._place.clock.wait(self._wake, LOOK_S)

    async def look(self) -> None:
        """Start and stop servers and couriers, so that they match the registry."""
        place, now = self._place, self._place.clock.now()
        try:
            found = await asyncio.to_thread(pairing.read_registry, place.home)
        except (TurnkeeperError, OSError) as error:
            place.log.emit("peers.unreadable", reason=f"{type(error).__name__}: {error}"[:300])
            return
        found = pairing.Registry(peers=found.peers, invitations=tuple(found.open_at(now)))
        old = self._made_at is None or now - self._made_at > pairing.LASTS / 2
        if found != self._registry or old:
            before, self._registry = self._registry, found
            await self._serve(before)
            self.door.known = self._known()
        await self._keep_delivering()
        await asyncio.to_thread(self._say)

    async def close(self) -> None:
        for _, task in self._couriers.values():
            task.cancel()
        await asyncio.gather(*(task for _, task in self._couriers.values()), return_exceptions=True)
        await asyncio.gather(*(server.stop(_GRACE_S) for server in self._servers.values()))

    async def _serve(self, before: pairing.Registry) -> None:
        wanted: dict[str, peers_pb2_grpc.PeersServicer] = {
            pairing.fingerprint_of(one.root): ToPair(self._place, one) for one in self._registry.invitations
        }
        wanted |= {one.fingerprint: ToDeliver(self._place, one) for one in self._registry.peers}
        changed = {one.fingerprint for one in before.peers if one not in self._registry.peers}
        for fingerprint in [one for one in self._servers if one not in wanted or one in changed]:
            await self._servers.pop(fingerprint).stop(_GRACE_S)
        for fingerprint, servicer in wanted.items():
            if fingerprint not in self._servers:
                server = UnixServer(self._socket(fingerprint))
                server.add(peers_pb2_grpc.add_PeersServicer_to_server, servicer, _SERVICE)
                await server.start()
                self._servers[fingerprint] = server

    async def _keep_delivering(self) -> None:
        peers = {one.name: one for one in self._registry.peers}
        for name, (courier, task) in list(self._couriers.items()):
            if courier.peer != peers.get(name) or task.done():
                task.cancel()
                (ended,) = await asyncio.gather(task, return_exceptions=True)
                del self._couriers[name]
                if isinstance(ended, Exception) and courier.peer == peers.get(name):
                    self._place.log.emit("peers.not_delivering", peer=name, reason=f"{ended}"[:300])
        for name, peer in peers.items():
            if name not in self._couriers:
                courier = Courier(self._place, peer, self._identity, self._wake)
                self._couriers[name] = courier, asyncio.create_task(courier.run(), name=f"courier to {name}")

    def _known(self) -> Known:
        """Return the homes that may connect, with a new certificate of this home."""
        now = self._place.clock.now()
        certificate, key = self._identity.certificate(now)
        own = self._place.home.run / "peers.pem"
        replace_whole(own, certificate + key)
        roots = {one.fingerprint: one.root for one in self._registry.peers}
        roots |= {pairing.fingerprint_of(one.root): one.root for one in self._registry.invitations}
        self._made_at = now
        sockets = {fingerprint: self._socket(fingerprint) for fingerprint in self._servers}
        return Known(pairing.trusting(roots, own), roots, sockets)

    def _socket(self, fingerprint: str) -> Path:
        return self._place.home.run / f"p-{fingerprint.replace('-', '')[:12]}"

    def _say(self) -> None:
        says = {name: asdict(courier.contact) for name, (courier, _) in self._couriers.items()}
        path, data = self._place.home.run / "peers.contacts", json.dumps(says).encode()
        with suppress(TurnkeeperError, OSError):
            if not path.is_file() or path.read_bytes() != data:
                replace_whole(path, data)


async def _claimed(home: Home, settings: Settings) -> Claim | None:
    """Claim the right to exchange messages with peers for all homes of the store. Raises Conflict if another has it."""
    if not settings.store.is_shared:
        return None
    make_schemas(settings.store.url)
    store = Database(in_schema(settings.store.url, nodes.SCHEMA), migrations=schema_revision.STORES[nodes.SCHEMA])
    claim = Claim(store, PROCESS, home, settings.node)
    if not await claim.take():
        raise _taken(claim)
    return claim


async def _keep(claim: Claim, clock: SystemClock) -> None:
    """Renew the claim. Raises Conflict if another home has it, or MachineTrouble if it could not be renewed in time."""
    kept = clock.monotonic()
    while True:
        await clock.sleep(CLAIM_S / 3)
        began = clock.monotonic()
        try:
            if not await claim.take():
                raise _taken(claim)
            kept = began
        except MachineTrouble:
            if clock.monotonic() - kept >= CLAIM_S:
                raise


def _taken(claim: Claim) -> Conflict:
    what = f"{claim.holder} speaks with peers for all machines that share the store"
    return Conflict(what, where="[peers] enabled", hint="set it to false here, or there and run: turnkeeper up")


async def serve(home: Home, lock: ProcessLock) -> None:
    """Serve until SIGTERM or SIGINT. The caller holds the process's lock; this function restores its file if needed."""
    clock, entropy, loaded, stop = SystemClock(), SystemEntropy(), load_settings(home), asyncio.Event()
    settings = loaded.peers
    if not settings.listen:
        raise InvalidInput("is not set", where="[peers] listen", hint='set the address: listen = "HOST:PORT"')
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    log, claim = EventLog(home.logs, PROCESS, clock), await _claimed(home, loaded)
    served = Served(Place(home, clock, entropy, log), pairing.open_identity(home, entropy, clock.now()))
    listener, health = listen(settings.listen), UnixServer(home.socket(PROCESS))
    try:
        await served.look()
        await health.start()
        log.emit("process.started", listen=settings.listen)
        replace_whole(home.run / "peers.listens", settings.listen.encode())
        progress = Progress(home, PROCESS, os.getpid())
        await together(
            served.door.run(listener),
            served.run(),
            progress.run(clock, lambda: keep_reachable(lock, health, log)),
            stop.wait(),
            *([_keep(claim, clock)] if claim is not None else []),
            until=asyncio.FIRST_COMPLETED,
        )
    finally:
        listener.close()
        await served.close()
        await health.stop(_GRACE_S)
        if claim is not None:
            await asyncio.gather(claim.let_go(), return_exceptions=True)  # without the timeout, the claim would expire
        log.emit("process.stopped")


main = partial(run_daemon, process=PROCESS, serve=serve, nice=NICE)

if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(main(sys.argv[1:]))
