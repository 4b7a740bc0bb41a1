"""Parts of daemons that never change, made once for all runs of an interpreter.

The simulation starts some fifty processes in each run. Otherwise, much of its time would go into compiling the same
statements, and into adding up the same frames of logs.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

from langchain_core.tools import structured
from sqlalchemy import Engine
from sqlalchemy.util import LRUCache

from turnkeeper.config import surfaces
from turnkeeper.storage import damage, database

_opened = database._open_file
_first: dict[str, Any] = {}
_made, _schemas = structured.create_schema_from_function, dict[Any, Any]()
_imported = cache(surfaces.imported)


def _open_file(*given: Any, **options: Any) -> Engine:
    """Open a file with the dialect and the compiled statements of the first engine."""
    engine = _opened(*given, **options)
    if not _first:
        _first.update(dialect=engine.dialect, compiled=LRUCache(2000))
    engine.dialect, engine._compiled_cache = _first["dialect"], _first["compiled"]
    return engine


@cache
def _weights(pairs: int) -> Any:
    """Return the weights of a log's last words, counted from its end, in the two halves of its checksum."""
    import numpy as np

    numbers = [1, 0]  # Fibonacci's: a sum of sums
    while len(numbers) <= 2 * pairs:
        numbers.append((numbers[-1] + numbers[-2]) % 2**32)
    halves = (np.array(numbers[start : start + 2 * pairs], np.uint32) for start in (0, 1))
    return np.stack([half.reshape(-1, 2)[::-1].ravel() for half in halves])


def checksum(data: bytes, before: tuple[int, ...], order: str) -> tuple[int, int]:
    """Return SQLite's checksum of a log as the daemons do: each half is a sum of the words with weights."""
    import numpy as np

    words = np.empty(2 + len(data) // 4, np.uint32)
    words[:2], words[2:] = before, np.frombuffer(data, f"{order}u4")
    words[3::2] += words[2::2]
    first, second = _weights(1 + 65_536 // 8)[:, -words.size :] @ words
    return int(first), int(second)


def _schema(name: str, function: Any, **options: Any) -> Any:
    """Make the schema of a tool's arguments once for each code of a tool."""
    if (key := (name, function.__code__)) not in _schemas:
        _schemas[key] = _made(name, function, **options)
    return _schemas[key]


@contextmanager
def reused() -> Iterator[None]:
    """Use the same parts again within the block."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(database, "_open_file", _open_file))
        if find_spec("numpy"):
            stack.enter_context(patch.object(damage, "_checksum", checksum))
        stack.enter_context(patch.object(structured, "create_schema_from_function", _schema))
        stack.enter_context(patch.object(surfaces, "imported", _imported))
        yield
