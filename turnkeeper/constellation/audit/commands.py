"""The commands for the signed records of decisions and outcomes."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from turnkeeper.console import home, note
from turnkeeper.console.commands import App
from turnkeeper.console.unseen import counted
from turnkeeper.constellation.audit import verify
from turnkeeper.constellation.audit.records import examine
from turnkeeper.constellation.audit.records import export as exported
from turnkeeper.errors import EXIT_FAILURE

audit = App("Check that no record of a decision or an outcome was changed.")


@audit.command("verify")
def verify_records(
    keys: Annotated[
        list[str] | None,
        typer.Option("--key", help="For a shared store: trust only this public key (repeatable) and the home's."),
    ] = None,
) -> None:
    """Check the records of both stores and their signatures, and that the stores match the records. Exit with 1 if not.

    The command works while the daemons run. Each finding is one line on standard output.

    Example: turnkeeper audit verify
    """
    place = home()
    outcome = examine(place, keys or ())
    for line in verify.told(outcome):
        typer.echo(line)
    if outcome.faults:
        note(f"{counted(len(outcome.faults), 'fault')}: the records or the stores were changed by another program")
        raise typer.Exit(EXIT_FAILURE)
    note("every record is unchanged, and the outcomes and decisions in the stores match the records")


@audit.command()
def export(
    verifier: Annotated[
        bool, typer.Option(help="Print the program that checks an export, instead of the export.")
    ] = False,
) -> None:
    """Print the records as JSON Lines, with their signatures. The records contain ids, names and hashes, but no texts.

    The recipient checks the export with Python and the package cryptography: python verify.py history.jsonl

    Example: turnkeeper audit export > history.jsonl
    """
    if verifier:
        sys.stdout.write(Path(verify.__file__).read_text(encoding="utf-8"))
        return
    place = home()
    for line in exported(place):
        sys.stdout.write(f"{json.dumps(line, sort_keys=True)}\n")
