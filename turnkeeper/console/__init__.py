"""What the three command lines share: options, tables, JSON, times, errors and exit codes.

Data goes to stdout, notes and errors to stderr. JSON keys are stable, a list is an array, times are RFC 3339 in UTC.
"""

from turnkeeper.console.program import home, run, when
from turnkeeper.console.render import (
    Column,
    LimitOption,
    Output,
    OutputOption,
    as_json,
    console,
    note,
    plain,
    show_record,
    show_rows,
    status,
)

__all__ = [
    "Column",
    "LimitOption",
    "Output",
    "OutputOption",
    "as_json",
    "console",
    "home",
    "note",
    "plain",
    "run",
    "show_record",
    "show_rows",
    "status",
    "when",
]
