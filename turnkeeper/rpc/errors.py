"""Conversion of our errors to gRPC status codes and back.

The server raises a :class:`~turnkeeper.errors.TurnkeeperError`, and the client raises the same class. The status
contains the invalid field in `google.rpc.BadRequest`, and the advice in `google.rpc.Help`. A `google.rpc.ErrorInfo`
reports trouble of the server's machine.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from google.protobuf import any_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from turnkeeper import errors
from turnkeeper.config.home import Home
from turnkeeper.storage.locking import way_to


class AlreadyExists(errors.Conflict):
    """A name or id that is taken."""


_CODES: dict[type[errors.TurnkeeperError], int] = {
    errors.InvalidInput: code_pb2.INVALID_ARGUMENT,
    errors.NotFound: code_pb2.NOT_FOUND,
    AlreadyExists: code_pb2.ALREADY_EXISTS,
    errors.Conflict: code_pb2.FAILED_PRECONDITION,
    errors.Exhausted: code_pb2.RESOURCE_EXHAUSTED,
    errors.Denied: code_pb2.PERMISSION_DENIED,
    errors.Unreachable: code_pb2.UNAVAILABLE,
    errors.Degraded: code_pb2.UNAVAILABLE,
    errors.Corrupt: code_pb2.DATA_LOSS,
    errors.NotInstalled: code_pb2.UNIMPLEMENTED,
}
_TROUBLES = {"MACHINE_TROUBLE": errors.MachineTrouble, "SERVER_TROUBLE": errors.ServerTrouble}
# If several errors have the same code, the client raises the error that a caller can act on.
_ERRORS: dict[int, type[errors.TurnkeeperError]] = {code: kind for kind, code in _CODES.items()} | {
    code_pb2.UNAVAILABLE: errors.Unreachable,
    code_pb2.DEADLINE_EXCEEDED: errors.Unreachable,
}


def code_of(error: errors.TurnkeeperError) -> int:
    return next((_CODES[kind] for kind in type(error).__mro__ if kind in _CODES), code_pb2.INTERNAL)


def error_of(code: int, what: str, *, where: str = "", hint: str = "") -> errors.TurnkeeperError:
    """Return an error of the class for a `google.rpc.Code`."""
    return _ERRORS.get(code, errors.TurnkeeperError)(what, where=where, hint=hint)


def to_status(error: errors.TurnkeeperError) -> Any:
    status = status_pb2.Status(code=code_of(error), message=error.what)
    if error.where:
        violation = error_details_pb2.BadRequest.FieldViolation(field=error.where, description=error.what)
        _attach(status, error_details_pb2.BadRequest(field_violations=[violation]))
    if error.hint:
        link = error_details_pb2.Help.Link(description=error.hint)
        _attach(status, error_details_pb2.Help(links=[link]))
    if isinstance(error, errors.MachineTrouble):
        reason = "SERVER_TROUBLE" if isinstance(error, errors.ServerTrouble) else "MACHINE_TROUBLE"
        _attach(status, error_details_pb2.ErrorInfo(reason=reason, domain="turnkeeper"))
    return rpc_status.to_status(status)


@contextmanager
def raising_ours(peer: str, home: Home | None = None) -> Iterator[None]:
    """Raise our error for a failed call to a daemon, as returned by :func:`from_rpc`."""
    try:
        yield
    except grpc.RpcError as error:
        raise from_rpc(error, peer, home) from error


def does_not_answer(peer: str) -> errors.Unreachable:
    """Return the error for a daemon that runs but does not answer."""
    hint = "it may wait for its store, or be stopped; to see which, run: turnkeeper doctor"
    return errors.Unreachable(f"{peer} does not answer in time", hint=hint)


def from_rpc(error: grpc.RpcError, peer: str, home: Home | None = None) -> errors.TurnkeeperError:
    """Convert a failed call to our error. `peer` is the name of the called daemon, and `home` its home if known."""
    code = error.code()
    number = code.value[0]
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return does_not_answer(peer)
    if code is grpc.StatusCode.UNAVAILABLE:
        hint = "start it with: turnkeeper up" if home is None else way_to(home, peer)
        return errors.Unreachable(f"{peer} cannot be reached", hint=hint)
    where, hint, trouble = _details(error)
    if trouble is not None:
        return trouble(error.details() or code.name, where=where, hint=hint)
    return error_of(number, error.details() or code.name, where=where, hint=hint)


def _attach(status: status_pb2.Status, detail: Any) -> None:
    packed = any_pb2.Any()
    packed.Pack(detail)
    status.details.append(packed)


def _details(error: grpc.RpcError) -> tuple[str, str, type[errors.MachineTrouble] | None]:
    """Return the field, the advice, and the kind of trouble of the server's machine or database, if any."""
    where, hint, trouble = "", "", None
    metadata: Any = error.trailing_metadata() or ()
    for key, value in metadata:
        if key != "grpc-status-details-bin":
            continue
        for packed in status_pb2.Status.FromString(value).details:
            bad, help_ = error_details_pb2.BadRequest(), error_details_pb2.Help()
            info = error_details_pb2.ErrorInfo()
            if packed.Unpack(bad) and bad.field_violations:
                where = bad.field_violations[0].field
            elif packed.Unpack(help_) and help_.links:
                hint = help_.links[0].description
            elif packed.Unpack(info):
                trouble = _TROUBLES.get(info.reason, errors.MachineTrouble)
    return where, hint, trouble
