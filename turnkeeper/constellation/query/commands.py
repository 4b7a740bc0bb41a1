"""`turnkeeper query`: one SELECT on a snapshot of the home."""

import csv
import sys
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from typing import Annotated, Any

import typer

from turnkeeper.config.settings import load_settings
from turnkeeper.console import Grid, home, note
from turnkeeper.console.unseen import as_json, plain
from turnkeeper.constellation.query.snapshot import Snapshot, confine
from turnkeeper.constellation.query.tables import described
from turnkeeper.errors import Exhausted, InvalidInput
from turnkeeper.times import parse_duration

MOST_HELD_BYTES = 64 << 20  # bytes of the rows in an answer that is printed as a whole
_HELD_AS_OBJECT = 100  # bytes that a value needs in addition to its content
Rows = Iterator[Sequence[Any]]


class Format(StrEnum):
    """The format of the printed answer."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"


def query(
    sql: Annotated[str, typer.Argument(metavar="[SQL]", help="One SELECT.")] = "",
    tables: Annotated[bool, typer.Option(help="Print the tables and their columns.")] = False,
    limit: Annotated[
        int, typer.Option("-n", "--limit", min=0, max=2**31 - 1, help="At most this many rows; 0 for all.")
    ] = 10_000,
    timeout: Annotated[str, typer.Option(help="The time limit, up to 10m.")] = "30s",
    output: Annotated[
        Format, typer.Option("-o", "--output", help="table is for people; parquet needs turnkeeper[parquet].")
    ] = Format.TABLE,
) -> None:
    """Answer a question in SQL on a snapshot of the home: tasks, fires, turns, approvals, restarts and more.

    The command needs no daemon, writes nothing, and runs at a lower priority than the daemons. Instants are texts in
    UTC. Prompts, messages and arguments are null unless `[query] texts` is set in config.toml.

    Example: turnkeeper query "SELECT task, outcome, count(*) FROM fires GROUP BY 1, 2"
    """
    if tables:
        print(described(), end="")
        return
    if not sql.strip():
        raise InvalidInput("give a SELECT", where="SQL", hint="for the tables: turnkeeper query --tables")
    within_s = parse_duration(timeout, field="--timeout").total_seconds()
    if not 0 < within_s <= 600:
        raise InvalidInput("must be 1s to 10m", where="--timeout")
    show = _writer(output)
    place = home()
    snapshot = Snapshot(place, texts=load_settings(place).query.texts)
    try:
        rows = snapshot.run(sql, within_s=within_s, seize=confine)
        show([str(name) for name in next(rows)], islice(rows, limit) if limit else rows)
        if limit and next(rows, None) is not None:
            note(f"only the first {limit} rows are shown; for more: --limit")
    except InvalidInput as error:
        raise snapshot.unread or error from None
    finally:
        for line in snapshot.notes:
            note(line)
        snapshot.close()


def _writer(output: Format) -> Callable[[list[str], Rows], None]:
    if output is Format.PARQUET:
        if find_spec("pyarrow") is None:
            raise InvalidInput("pyarrow is not installed", where="-o parquet", hint="install turnkeeper[parquet]")
        if sys.stdout.isatty():
            raise InvalidInput("is for files", where="-o parquet", hint="write > FILE.parquet after the command")
    writers = {Format.TABLE: _table, Format.JSON: _json, Format.JSONL: _jsonl, Format.CSV: _csv}
    return writers.get(output, _parquet)


def _held(rows: Rows) -> list[Sequence[Any]]:
    """Return all rows. Raises Exhausted if the rows are too large to print as a whole."""
    held, size = [], 0
    for row in rows:
        size += sum(len(value) if isinstance(value, str | bytes) else 8 for value in row) + _HELD_AS_OBJECT * len(row)
        if size > MOST_HELD_BYTES:
            what = f"the answer is larger than {MOST_HELD_BYTES >> 20} MiB"
            raise Exhausted(what, where="SQL", hint="narrow it, or print it as it comes: -o csv or -o jsonl")
        held.append(row)
    return held


def _table(names: list[str], rows: Rows) -> None:
    held = _held(rows)
    cells = [[plain(_text(value)).replace("\n", " ") for value in row] for row in held]
    right = [any(isinstance(row[place], int | float) for row in held) for place in range(len(names))]
    width = import_module("shutil").get_terminal_size().columns if sys.stdout.isatty() else None
    lines, hidden = Grid(headers=[plain(name) for name in names], cells=cells, right=right).lines(width)
    for line in lines:
        print(line)
    if hidden:
        note(f"hidden columns: {', '.join(hidden)}; to show them: -o csv")


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return f"({len(value)} bytes)"
    return "" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)


def _json(names: list[str], rows: Rows) -> None:
    before = "[\n"
    for row in rows:
        print(before, as_json(_object(names, row)), sep="", end="")
        before = ",\n"
    print("[]" if before.startswith("[") else "\n]")


def _jsonl(names: list[str], rows: Rows) -> None:
    for row in rows:
        print(as_json(_object(names, row)))


def _object(names: list[str], row: Sequence[Any]) -> dict[str, Any]:
    values = [value.hex() if isinstance(value, bytes) else value for value in row]
    return dict(zip(names, values, strict=True))


def _csv(names: list[str], rows: Rows) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(rows)


def _parquet(names: list[str], rows: Rows) -> None:
    arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    columns = [*zip(*_held(rows), strict=True)] or [()] * len(names)
    made = arrow.Table.from_arrays([_column(arrow, column) for column in columns], names=names)
    parquet.write_table(made, sys.stdout.buffer)


def _column(arrow: Any, values: Sequence[Any]) -> Any:
    """Return a column. Convert its values to text if they have different types."""
    try:
        return arrow.array(values)
    except (arrow.ArrowInvalid, arrow.ArrowTypeError):
        return arrow.array([None if value is None else str(value) for value in values])
