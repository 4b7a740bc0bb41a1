"""The command `turnkeeper categories rehearse`: what a proposed category would have allowed, and what it allows."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from turnkeeper.console import Output, OutputOption, home, status


def command() -> Callable[..., None]:
    return rehearse


def rehearse(
    file: Annotated[Path, typer.Argument(help="The proposed category, in a file of any name.")],
    channel: Annotated[str, typer.Option(help="Only turns of this channel.")] = "",
    task: Annotated[str, typer.Option(help="Only turns of this task, by name or id.")] = "",
    since: Annotated[str, typer.Option(help="Only turns after this time: 7d, 12h, or a time.")] = "",
    least: Annotated[bool, typer.Option(help="Print only the smallest sufficient category, as a file.")] = False,
    name: Annotated[
        str, typer.Option(help="The name of the smallest sufficient category; default that of the file.")
    ] = "",
    limit: Annotated[
        int, typer.Option("-n", "--limit", min=1, help="Replay at most this many of the newest turns.")
    ] = 200,
    output: OutputOption = Output.TABLE,
) -> None:
    """Replay the tool calls of past turns against a proposed category: which calls would ask, and which grants suffice.

    Without past turns, list the possible uses of each tool in a fire. The command runs no tool and changes nothing. It
    reads the store directly, whether or not the daemon runs.

    Example: turnkeeper categories rehearse draft.toml --task digest --since 30d
    """
    place = home()
    # The tools need LangChain, and the store needs SQLAlchemy, which no other command here imports.
    with status("reading past turns"):
        rehearsing = import_module("agent_runtime.cli.rehearse.past")
        found = rehearsing.rehearse_file(place, file, channel=channel, task=task, since=since, limit=limit, name=name)
    rehearsing.show(found, output, only_least=least)
