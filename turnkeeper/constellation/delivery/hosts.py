"""The policy for hosts: nothing is delivered to this machine or a private network unless the settings allow the host.

Each request resolves the name, checks every address, and connects to a checked address. So it does not matter if the
name resolves to another address a moment later. The web reader decides which addresses are public.
"""

import socket
from collections.abc import Collection
from ipaddress import ip_address
from typing import Any

from turnkeeper.config.surfaces import offered
from turnkeeper.errors import Denied, Unreachable

RELOAD = "then run: turnkeeper up --restart"
_resolve = socket.getaddrinfo


def resolve(host: str, port: int, allowed: Collection[str]) -> list[Any]:
    """Return the addresses of a host, as `socket.getaddrinfo` does.

    Args:
        allowed: hosts, each as HOST or HOST:PORT, with addresses that are not checked.

    Raises:
        Denied: an address is not public, and the host is not allowed.
        Unreachable: the name cannot be resolved.
    """
    try:
        found: list[Any] = list(_resolve(host, port, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError) as error:
        raise Unreachable(f"{host} cannot be resolved", where="host") from error
    if not {host.lower(), f"{host.lower()}:{port}"} & {*allowed}:
        for *_, address in found:
            try:
                offered("refuse_private", ip_address(address[0]))
            except Denied as error:
                hint = f'to permit it, add "{host}:{port}" to [delivery] allow in config.toml; {RELOAD}'
                raise Denied(error.what, where=f"{host}:{port}", hint=hint) from error
    return found


def guard(allowed: Collection[str]) -> list[str]:
    """Apply the policy to every name that this process resolves from now on. Use it only in a child process.

    Return a list that each refusal is added to.
    """
    refused: list[str] = []

    def guarded(host: Any, port: Any, *_given: Any, **_named: Any) -> list[Any]:
        name = host.decode("ascii") if isinstance(host, bytes) else str(host)
        try:
            return resolve(name, int(port or 0), allowed)
        except (Denied, Unreachable) as error:
            refused.append(str(error))
            raise OSError(str(error)) from error

    socket.getaddrinfo = guarded
    return refused
