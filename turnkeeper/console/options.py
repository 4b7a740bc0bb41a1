"""Options that many commands share."""

from enum import StrEnum
from typing import Annotated

import typer


class Output(StrEnum):
    """How a command prints its data."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    JSONL = "jsonl"
    NAME = "name"


OutputOption = Annotated[
    Output,
    typer.Option("-o", "--output", help="table and wide are for people; json, jsonl and name are stable, for scripts."),
]
LimitOption = Annotated[int, typer.Option("-n", "--limit", min=1, help="Show at most so many.")]
