"""`turnkeeper report`: a home's activity over some days, as one page with plots."""

import sys
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.config.surfaces import offered
from turnkeeper.console import Output, home, note, show_rows
from turnkeeper.console.lists import columns
from turnkeeper.console.unseen import as_json
from turnkeeper.constellation.query.report import QUESTIONS, page
from turnkeeper.constellation.query.snapshot import Snapshot, confine
from turnkeeper.constellation.timeline.commands import instant, zone_of
from turnkeeper.errors import InvalidInput
from turnkeeper.storage.files import write_new

_TURNS = columns(
    "TASK #TURNS #READ=tokens_in #WROTE=tokens_out #MONEY",
    money=lambda row: f"{row['money']:,.2f}" if "money" in row else "-",
)
_WITHIN_S = 60.0  # the time limit for each SELECT


class Format(StrEnum):
    """The format of the report."""

    TABLE = "table"
    HTML = "html"
    JSON = "json"


def report(
    since: Annotated[str, typer.Option(help="The start: 7d, yesterday, 2026-11-22T02:00.")] = "7d",
    to: Annotated[Path | None, typer.Option(metavar="FILE", help="Write it to this new file.")] = None,
    output: Annotated[
        Format | None,
        typer.Option(
            "-o", "--output", help="table: turns, tokens and money by task, the default on a terminal; html; json."
        ),
    ] = None,
) -> None:
    """Write one page with plots: fires by outcome, lateness, turns, tokens, approvals, restarts.

    It needs no daemon. The page loads nothing, and contains no prompts, messages or arguments. The page is written to
    standard output unless `--to` names a file.

    Example: turnkeeper report --since 7d --to report.html
    """
    on_terminal = to is None and sys.stdout.isatty()
    output = output or (Format.TABLE if on_terminal else Format.HTML)
    if output is Format.HTML and on_terminal:
        raise InvalidInput("is a page for a browser", where="-o html", hint="write it to a file: --to report.html")
    place = home()
    now = SystemClock().now()
    begin, end = _written(instant(since, zone_of(place), "--since")), _written(now)
    if begin >= end:
        raise InvalidInput("must be in the past", where="--since")
    answers, notes = _answers(place, begin, end)
    if (prices := offered("read prices", place)) is not None:
        for row in answers["models"]:
            row["money"] = prices.money(row["model"], row["tokens_in"], row["tokens_out"]) / 1e6
        for by, name in (("task", "turns"), ("day", "days")):
            for row in answers[name]:
                row["money"] = round(sum(one["money"] for one in answers["models"] if one[by] == row[by]), 6)
    if output is Format.TABLE and to is None:
        show_rows(answers["turns"], _TURNS, Output.TABLE, name_key="task", footer="more: --to report.html, or -o json")
    elif output is Format.JSON:
        _write(as_json({"since": begin, "until": end, **answers, "notes": notes}, indent=2) + "\n", to)
    else:
        _write(page(begin, end, answers, notes), to)
    for line in notes:
        note(line)


def _answers(place: Home, since: str, until: str) -> tuple[dict[str, list[dict[str, Any]]], list[str]]:
    """Return the rows of each section from one snapshot, and notes about the parts that could not be read."""
    answers: dict[str, list[dict[str, Any]]] = {}
    snapshot = Snapshot(place, texts=False)
    try:
        confine()
        for name, question in QUESTIONS.items():
            answers[name] = []
            if snapshot.has(question.table):
                asked = question.select(since, until)
                columns, *rows = snapshot.run(asked, within_s=_WITHIN_S, seize=lambda: None)
                answers[name] = [dict(zip(columns, row, strict=True)) for row in rows]
    finally:
        snapshot.close()
    return answers, [*dict.fromkeys(snapshot.notes)]


def _written(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _write(text: str, to: Path | None) -> None:
    if to is None:
        sys.stdout.write(text)
    else:
        write_new(to, text.encode())
