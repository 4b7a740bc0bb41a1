"""The gRPC face of :class:`task_runner.service.service.Service`; errors become statuses in the server's interceptor."""

from typing import Any

from protos.turnkeeper.v1 import schedules_pb2 as wire
from task_runner.service.service import Service

# Wire method: the service's own.
METHODS = {
    method.name: "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in method.name).lstrip("_")
    for method in wire.DESCRIPTOR.services_by_name["Schedules"].methods
}


class Servicer:
    """Hands each call to the service; made from the contract, so that no method can be forgotten."""

    def __init__(self, service: Service) -> None:
        """Take the service."""
        for method, own in METHODS.items():
            setattr(self, method, _handler(getattr(service, own)))


def _handler(operation: Any) -> Any:
    async def handle(request: Any, _context: object) -> Any:
        return await operation(request)

    return handle
