"""The next fire of a cron expression in a zone with daylight saving: ours beside croniter's.

Run `python -m benchmarks.bench_next_fire`.
"""

import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from croniter import croniter

from task_runner.timetable import cron, parse_cron, zone

PLACE = "America/New_York"
EXPRESSIONS = ("* * * * *", "*/15 * * * *", "0 9 * * 1-5", "30 2 * * *", "0 0 1 * *")
START = datetime(2026, 1, 1, tzinfo=UTC)
FIRES = 400
PARSES = 60
REPETITIONS = 7


def measure() -> dict[str, Any]:
    """Return the medians in microseconds and the ratios croniter / ours for each expression.

    `next` takes fire after fire from an object constructed once. `parse_next` constructs it anew for each single
    fire; ours is also made to forget the parsing that it would share between equal expressions.
    """
    # The zone's year is probed when it is first asked for, once in a process: not part of a fire's cost.
    for expression in EXPRESSIONS:
        _ours(expression)
    return {
        "zone": PLACE,
        "repetitions": REPETITIONS,
        "expressions": {expression: _beside(expression) for expression in EXPRESSIONS},
    }


def _beside(expression: str) -> dict[str, float]:
    found: dict[str, float] = {}
    works = {"next": (_ours, _croniter, FIRES), "parse_next": (_ours_parsing, _croniter_parsing, PARSES)}
    for name, (ours, theirs, fires) in works.items():
        pairs = [(_us(ours, expression, fires), _us(theirs, expression, fires)) for _ in range(REPETITIONS)]
        ours_us, theirs_us = (statistics.median(column) for column in zip(*pairs, strict=True))
        found |= {f"{name}_us": ours_us, f"croniter_{name}_us": theirs_us, f"{name}_ratio": theirs_us / ours_us}
    return found


def _us(work: Callable[[str], object], expression: str, fires: int) -> float:
    started = time.perf_counter()
    work(expression)
    return (time.perf_counter() - started) / fires * 1e6


def _ours(expression: str) -> datetime:
    cron = parse_cron(expression, name="bench", zone=zone(PLACE))
    at: datetime | None = START
    for _ in range(FIRES):
        assert at is not None
        at = cron.next_after(at)
    assert at is not None
    return at


def _croniter(expression: str) -> datetime:
    cron = croniter(expression, START.astimezone(zone(PLACE)))
    at = START
    for _ in range(FIRES):
        at = cron.get_next(datetime)
    return at


def _ours_parsing(expression: str) -> None:
    for _ in range(PARSES):
        cron.parsed.cache_clear()  # to measure the parser; the cache of single items stays
        parse_cron(expression, name="bench", zone=zone(PLACE)).next_after(START)


def _croniter_parsing(expression: str) -> None:
    local = START.astimezone(zone(PLACE))
    for _ in range(PARSES):
        croniter(expression, local).get_next(datetime)


def main() -> None:
    """Print a table."""
    result = measure()
    print(f"next fire in {result['zone']}, microseconds, medians of {result['repetitions']}")
    print(f"{'expression':<14} {'ours':>6} {'croniter':>9} {'ratio':>6}   {'+parse':>6} {'croniter':>9} {'ratio':>6}")
    for expression, row in result["expressions"].items():
        once = f"{row['next_us']:>6.2f} {row['croniter_next_us']:>9.1f} {row['next_ratio']:>6.1f}"
        anew = f"{row['parse_next_us']:>6.1f} {row['croniter_parse_next_us']:>9.1f} {row['parse_next_ratio']:>6.1f}"
        print(f"{expression:<14} {once}   {anew}")


if __name__ == "__main__":
    main()
