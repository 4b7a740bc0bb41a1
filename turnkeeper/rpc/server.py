"""A gRPC server on a Unix socket that only the owner can reach."""

import asyncio
import logging
import os
import stat
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from turnkeeper.bus import LARGEST_BYTES
from turnkeeper.bus.event_log import EventLog
from turnkeeper.config.home import Home
from turnkeeper.config.started import write_start
from turnkeeper.config.surfaces import Surface, imported, surfaces
from turnkeeper.config.toml_file import read_toml
from turnkeeper.errors import InvalidInput, TurnkeeperError, exit_code_of, machine_trouble
from turnkeeper.rpc.callers import Door, socket_id
from turnkeeper.rpc.errors import to_status
from turnkeeper.storage.damage import StoreWatch
from turnkeeper.storage.locking import ProcessLock, ReaderLock, identity_of

OPTIONS: Sequence[tuple[str, int]] = (
    ("grpc.max_receive_message_length", LARGEST_BYTES),
    ("grpc.max_send_message_length", 16 * LARGEST_BYTES),
)
_MODE = 0o600
_OLD_GRACE_S = 2.0  # seconds for calls that arrived before the socket was bound again


class UnixServer:
    """A gRPC server on one socket, with our services and the standard services for health and reflection.

    The server binds a temporary name and renames it to `path`. This replaces any file there. When gRPC stops, it
    removes only the name that it bound, so it cannot remove a later server's socket. The daemon holds its process lock.
    """

    def __init__(self, path: Path, door: Door | None = None) -> None:
        """Serve at `path`; `door` identifies the callers of our services."""
        self._path, self._door = path, door
        self._health = HealthServicer()
        self._services: list[tuple[Callable[[Any, Any], None], Any]] = [
            (health_pb2_grpc.add_HealthServicer_to_server, self._health)
        ]
        self._names: list[str] = [health_pb2.DESCRIPTOR.services_by_name["Health"].full_name]
        self._server: Any = None
        self._bound = (0, 0)
        self._times_bound = 0
        self._ending: set[asyncio.Task[None]] = set()

    def add(self, register: Callable[[Any, Any], None], servicer: Any, service: Any = None) -> None:
        """Serve `servicer`, which `register` adds to a server. `service` is its descriptor, for reflection."""
        self._services.append((register, servicer))
        if service is not None:
            self._names.append(service.full_name)

    async def start(self) -> None:
        """Bind the socket with mode 0600, and report SERVING."""
        self._server = await self._bind()
        for name in ("", *self._names):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def keep(self) -> list[str]:
        """If the socket's file was removed or replaced, bind again. Restore the file's mode. Return the faults found.

        Calls on existing connections run to their end. Raises OSError if the socket cannot be bound.
        """
        try:
            found = self._path.lstat()
        except FileNotFoundError:
            wrong = "was removed"
        else:
            if (found.st_dev, found.st_ino) == self._bound:
                if stat.S_IMODE(found.st_mode) == _MODE:
                    return []
                self._path.chmod(_MODE)
                return [f"{self._path} had mode {stat.S_IMODE(found.st_mode):04o}"]
            wrong = "was replaced"
        before, self._server = self._server, await self._bind()
        ending = asyncio.create_task(before.stop(_OLD_GRACE_S))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
        return [f"{self._path} {wrong}"]

    async def stop(self, grace_s: float) -> None:
        """Report NOT_SERVING, give running calls `grace_s` seconds to end, and close the server."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_s)
        await asyncio.gather(*self._ending)
        if identity_of(self._path) == self._bound:
            self._path.unlink(missing_ok=True)

    async def _bind(self) -> Any:
        doors = [self._door] if self._door else []
        server = grpc.aio.server(interceptors=[ErrorInterceptor(), *doors], options=list(OPTIONS))
        for register, servicer in self._services:
            register(servicer, server)
        reflection.enable_server_reflection([*self._names, reflection.SERVICE_NAME], server)
        # The name is not longer than the final one, because the path of a socket has a short limit.
        own = self._path.with_name(f".{self._path.name[0]}{self._times_bound}")
        self._times_bound += 1
        own.unlink(missing_ok=True)
        server.add_insecure_port(f"unix:{own}")
        await server.start()
        try:
            own.chmod(_MODE)
            bound = identity_of(own)
            if self._door:
                self._door.proofs.bound(socket_id(own))
            own.rename(self._path)
        except OSError:
            await server.stop(None)
            raise
        self._bound = bound
        return server


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """The interceptor that converts TurnkeeperError or machine trouble in a handler to a gRPC status.

    Any other exception is our bug: the caller gets an internal error, and the log gets the traceback. A request with a
    negative `limit` is refused before its handler runs.
    """

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None:
            return handler
        forms = _reading(handler.request_deserializer), handler.response_serializer
        if handler.unary_unary:
            return grpc.unary_unary_rpc_method_handler(_guard_unary(handler.unary_unary), *forms)
        if handler.unary_stream:
            return grpc.unary_stream_rpc_method_handler(_guard_stream(handler.unary_stream), *forms)
        return handler


def _typed(error: Exception) -> TurnkeeperError:
    """Convert any exception to one of our errors. Log the traceback if it is a bug."""
    found = error if isinstance(error, TurnkeeperError) else machine_trouble(error)
    if found is None:
        logging.getLogger(__name__).error("a call failed", exc_info=error)
        what = f"failed by a mistake of its own ({type(error).__name__})"
        found = TurnkeeperError(what, hint="its log says more: turnkeeper logs")
    return found


class _Malformed:
    """A request that cannot be parsed as a message of the contract. gRPC itself would report an unknown error."""


def _reading(deserializer: Any) -> Any:
    def read(data: bytes) -> Any:
        try:
            return deserializer(data)
        except DecodeError:
            return _Malformed()

    return read if deserializer is not None else None


def _check(request: Any) -> None:
    if isinstance(request, _Malformed):
        raise InvalidInput("is not a message of this method", where="request")
    if getattr(request, "limit", 0) < 0:
        raise InvalidInput("is negative", where="limit")


def _guard_unary(behaviour: Any) -> Any:
    async def call(request: Any, context: Any) -> Any:
        try:
            _check(request)
            return await behaviour(request, context)
        except Exception as error:  # noqa: BLE001  its caller is told of it
            await context.abort_with_status(to_status(_typed(error)))

    return call


def _guard_stream(behaviour: Any) -> Any:
    async def call(request: Any, context: Any) -> AsyncIterator[Any]:
        try:
            _check(request)
            async for item in behaviour(request, context):
                yield item
        except Exception as error:  # noqa: BLE001  its caller is told of it
            await context.abort_with_status(to_status(_typed(error)))

    return call


class Observers:
    """The observers of a daemon or of its turns, which the installed surfaces provide.

    An observer of a daemon has `keep` and `close`, or else `look`, which is awaited once in each beat. If a look is
    still running at the next beat, another one is not started.
    """

    def __init__(self, process: str, *given: Any) -> None:
        """Create the observers with the arguments `given`. Raises the errors of their constructors.

        The first argument is the home. An observer is created later if nothing is declared for it yet.
        """
        self._process, self._given = process, given
        self._undeclared = [one for one in surfaces().values() if process in one.observers]
        self._made: list[Any] = []
        self._looks: dict[Any, asyncio.Task[str]] = {}
        self._stamp, self._sections = (0, 0), frozenset[str]()
        self._create()

    @property
    def trouble(self) -> str:
        """The first trouble of an observer; empty if there is none."""
        return next(filter(None, (getattr(one, "trouble", "") for one in self._made)), "")

    def _create(self) -> None:
        """Create the observers that have something to observe by now."""
        found = [one for one in self._undeclared if self._is_declared(one)]
        self._undeclared = [one for one in self._undeclared if one not in found]
        made = (imported(one.observers[self._process])(*self._given) for one in found)
        self._made += [one for one in made if one is not None]

    def _is_declared(self, one: Surface) -> bool:
        if not one.declared_in:
            return True
        home: Home = self._given[0]
        with suppress(OSError, TurnkeeperError):  # config.toml is read again after it is repaired
            found = home.config.stat()
            if (stamp := (found.st_mtime_ns, found.st_size)) != self._stamp:
                said = read_toml(home.config).data
                self._sections, self._stamp = frozenset(name for name in said if said[name]), stamp
        has_file = any((home.root / file).exists() for file in one.declared_in)
        return has_file or not self._sections.isdisjoint(one.settings)

    def callbacks(self, turn_id: str) -> list[Any]:
        """Return LangChain's callbacks for one interval of a turn."""
        return [callback for one in self._made for callback in one.callbacks(turn_id)]

    def keep(self, log: EventLog) -> None:
        """Let each observer restore files that were removed, or look. Called at each beat."""
        self._create()
        for one in self._made:
            last = self._looks.get(one)
            if not hasattr(one, "look"):
                one.keep()
            elif last is None or last.done():
                before = "" if last is None or last.cancelled() else last.result()
                self._looks[one] = asyncio.create_task(_look(one, log, before))

    def close(self) -> None:
        for look in self._looks.values():
            look.cancel()
        for one in self._made:
            if not hasattr(one, "look"):
                one.close()


async def _look(one: Any, log: EventLog, before: str) -> str:
    """Let an observer look. Return why the look failed, or an empty string. Log the reason if it differs from `before`.

    A failed look does not end the daemon. The next beat looks again.
    """
    try:
        await one.look()
    except Exception as error:  # noqa: BLE001  recorded
        reason = f"{type(error).__name__}: {error}"[:500]
        if reason != before:
            log.emit("look.failed", observer=type(one).__module__, reason=reason)
        return reason
    return ""


async def keep_reachable(
    lock: ProcessLock,
    server: UnixServer,
    log: EventLog,
    readers: Sequence[ReaderLock] = (),
    observers: Observers | None = None,
) -> None:
    """Restore the files that lead clients to a daemon: locks, pid file, folder and socket.

    If the daemon's store was removed, the process ends instead. The event `run.repaired` records each fault. While a
    file cannot be restored, `run.unreachable` records the reason.

    Raises:
        Conflict: another process has taken a lock meanwhile, so this process must end.
    """
    repaired: list[str] = []
    try:
        if StoreWatch.active is not None:
            StoreWatch.active.keep()
        repaired += lock.keep()
        for reader in readers:
            repaired += reader.keep()
        repaired += await server.keep()
        if observers is not None:
            observers.keep(log)
    except (OSError, RuntimeError) as error:
        log.emit("run.unreachable", reason=f"{type(error).__name__}: {error}"[:500])
    for what in repaired:
        log.emit("run.repaired", what=what)
    if log.trouble:  # an idle daemon writes no events, so it tries a write to find out whether the disk has space again
        log.emit_all([])


Serve = Callable[[Home, ProcessLock], Coroutine[Any, Any, None]]


def run_daemon(argv: Sequence[str], process: str, serve: Serve, nice: int = 0) -> int:
    """Serve the home that `argv` names until the process receives a stop signal. Return the exit code."""
    os.nice(nice)
    home = Home(root=Path(argv[0]))

    def serve_home() -> None:
        home.check()
        home.check_taken_over()
        home.create()
        home.check_sockets()
        with ProcessLock(home, process) as lock:
            write_start(home, process)
            asyncio.run(serve(home, lock))

    return exit_code_of(serve_home)
