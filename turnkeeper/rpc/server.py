"""Serving gRPC on a Unix socket that only its owner can reach."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from turnkeeper.bus.envelope import LARGEST_BYTES
from turnkeeper.rpc.errors import ErrorInterceptor

OPTIONS: Sequence[tuple[str, int]] = (
    ("grpc.max_receive_message_length", LARGEST_BYTES),
    ("grpc.max_send_message_length", 16 * LARGEST_BYTES),
)


class UnixServer:
    """A gRPC server on one socket, with the standard health and reflection services beside ours.

    The caller must hold the process's lock: gRPC binds over an existing socket without a word, and the loser's stop
    would delete the winner's socket.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._server = grpc.aio.server(interceptors=[ErrorInterceptor()], options=list(OPTIONS))
        self._health = HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self._names: list[str] = [health_pb2.DESCRIPTOR.services_by_name["Health"].full_name]

    @property
    def grpc(self) -> Any:
        """The server to add servicers to."""
        return self._server

    def announce(self, service: Any) -> None:
        """Name a service (its descriptor) for reflection and health."""
        self._names.append(service.full_name)

    async def start(self) -> None:
        """Bind, mode 0600, and report SERVING."""
        reflection.enable_server_reflection([*self._names, reflection.SERVICE_NAME], self._server)
        self._path.unlink(missing_ok=True)
        self._server.add_insecure_port(f"unix:{self._path}")
        await self._server.start()
        os.chmod(self._path, 0o600)  # noqa: PTH101  a socket, made under the caller's umask
        for name in ("", *self._names):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def stop(self, grace_s: float) -> None:
        """Report NOT_SERVING, let calls end for `grace_s` seconds, then close."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_s)
