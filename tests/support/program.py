"""`turnkeeper`, the program for people, for tests that run its commands in their own process; and the processes of surfaces."""

from collections.abc import Iterator
from typing import Any

import typer

from turnkeeper import console
from turnkeeper.console.commands import Group
from turnkeeper.constellation.supervisor.daemons import OPTIONAL

app = console.program()
WEB, PEERS, DELIVERY, PROJECT = (
    next(one for one in OPTIONAL if one.name == name) for name in ("web", "peers", "delivery", "project")
)


def every_command(program: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each command of a built program with the words that call it, including groups."""
    yield path, program
    if isinstance(program, Group):
        context = typer.Context(program, info_name=path[-1])
        for name in program.list_commands(context):
            yield from every_command(program.get_command(context, name), (*path, name))
