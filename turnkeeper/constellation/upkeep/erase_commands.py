"""`turnkeeper erase`: overwrite a person's texts in all data of a home."""

import sys
from typing import Annotated

import typer

from turnkeeper.clock import SystemClock
from turnkeeper.config.settings import load_settings
from turnkeeper.console import home, note
from turnkeeper.console.unseen import plain
from turnkeeper.constellation.upkeep.erase import Chosen, Eraser, Found, holds, mask_of
from turnkeeper.errors import EXIT_FAILURE, Conflict, InvalidInput


def erase(
    text: Annotated[list[str] | None, typer.Option(help="Every place that contains this text. Repeatable.")] = None,
    channel: Annotated[str, typer.Option(help="All turns of this channel.")] = "",
    thread: Annotated[str, typer.Option(help="All turns of this thread.")] = "",
    task: Annotated[str, typer.Option(help="All turns of this task, by its name or id.")] = "",
    turn: Annotated[str, typer.Option(help="This turn.")] = "",
    pages: Annotated[bool, typer.Option(help="Also from pages, their history, proposals and attachments.")] = False,
    dry_run: Annotated[bool, typer.Option(help="Print the places, and change nothing.")] = False,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """Overwrite a person's texts wherever the home keeps them. The history can still be verified.

    The command permanently overwrites them in conversations, checkpoints, envelopes, trails, logs, memory and arguments
    of tools. Nothing may run on the home: turnkeeper down first. The texts of a turn are also searched for outside it;
    --text ignores case. Ids, names, times and hashes stay. Copies in other places, such as backups, are not changed.
    Exit code 1 means that the home still contains some of the texts. The places are printed.

    Example: turnkeeper erase --text "Anna Schmidt" --dry-run
    """
    by = {"channel": channel, "thread_id": thread, "task": task, "turn_id": turn}
    named = {column: value for column, value in by.items() if value}
    if not text and not named:
        raise InvalidInput("say what to erase", where="erase", hint="--text, --channel, --thread, --task or --turn")
    place = home()
    if load_settings(place).store.is_shared:
        what = "turns and checkpoints are on a server, where this cannot overwrite them"
        raise InvalidInput(what, where="[store]", hint="see docs/security.md, Erasing")
    mask_of(text or ())
    with Eraser(place, pages=pages) as eraser:
        given = mask_of([*(text or ()), *(eraser.prompts(task) if task else ())])
        chosen = Chosen()
        for column, value in named.items():
            one = eraser.choose(column, value)
            both = {name: getattr(chosen, name) | getattr(one, name) for name in ("turns", "threads", "texts")}
            chosen = Chosen(**both)
        mask = mask_of([*(text or ()), *chosen.texts])
        found = eraser.find(mask, chosen)
        _tell(found)
        if found.blocked:
            raise Conflict(f"{min(found.blocked)}, first", where="erase")
        if dry_run:
            return
        if found.counts or chosen.threads:
            _confirm(yes=yes)
            eraser.erase(mask, chosen, found, SystemClock().now())
            note("erased; backups and other copies are not reached: remove them, and make new ones")
        left = holds(place, given) if given.patterns else []
    for name in left:
        typer.echo(f"still in {plain(name)}")
    if left:
        raise typer.Exit(EXIT_FAILURE)


def _confirm(*, yes: bool) -> None:
    if not yes and not sys.stdin.isatty():
        raise InvalidInput("would overwrite texts permanently", where="erase", hint="give --yes, or --dry-run")
    if not yes:
        typer.confirm("Overwrite them permanently?", abort=True, err=True)


def _tell(found: Found) -> None:
    for where, count in sorted(found.counts.items()):
        typer.echo(f"{plain(where)}: {count} {'place' if count == 1 else 'places'}")
    for why in sorted(found.stays):
        typer.echo(f"stays: {plain(why)}")
    if not found.counts:
        note("nothing to overwrite was found")
