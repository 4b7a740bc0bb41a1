"""Facts from the suites of croniter, cronsim and python-dateutil, and the examples of RFC 5545; each difference has a kind."""

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import pytest

from task_runner.timetable import LEAST, Timetable, parse_cron, zone
from task_runner.timetable.rrule import parse_rrule
from turnkeeper.errors import InvalidInput

START = datetime(1997, 9, 2, 9, tzinfo=UTC)
# What is refused here, and how the refusal begins to say why.
REFUSED = {
    "years": "it has 7 fields",
    "nearest-weekday": "day of month",
    "question-mark": "cannot be read",
    "step-over-end": "a step cannot run over the end",
    "finer-than-minute": "finer than a minute",
    "bysetpos-times": "BYSETPOS needs a single time of day",
    "interval-not-dividing": "do not divide",
    "no-meaning": "has no meaning with",
    "other-part": "is not a part of a rule",
    "out-of-range": "is out of range",
}
# What is read otherwise here, and how.
OTHERWISE = {
    "star-in-list": "a list with a star names every day; croniter keeps the counted weekday alone",
    "nth-beside-day": "a counted weekday beside a day of month: either matches; in croniter the day of month is ignored",
    "equal-range": "a range from a value to itself is that value; in croniter the whole field",
    "star-step": "a field that begins with a star is a star in cronsim, as in classic cron",
    "overlap": "a fixed time that is shown twice fires the first time; a wildcard fires in both passes",
}
# What is taken here and refused there.
TAKEN = {
    "range-over-end": "a range that runs over the end of the field",
    "last-weekday": "the last weekday of the month, by its name before the L",
    "list-with-nth": "counted weekdays beside others in one list",
}


def lines(name: str) -> list[list[str]]:
    text = (Path(__file__).parent / name).read_text()
    return [line.split(" | ") for line in text.splitlines() if line and not line.startswith("#")]


def walked(table: Timetable, start: datetime, *, back: bool) -> Iterator[datetime]:
    at = table.last_at_or_before(start - LEAST) if back else table.next_after(start)
    while at is not None:
        yield at
        at = table.last_at_or_before(at - LEAST) if back else table.next_after(at)


def instants(text: str) -> list[datetime]:
    return [datetime.fromisoformat(part) for part in text.split(", ")]


@pytest.mark.parametrize("verdict", sorted({"same"} | {row[1] for row in lines("cron_times.txt")}))
def test_cron_expressions_fire_when_the_suites_of_others_say(verdict: str) -> None:
    for suite, found, place, expression, asked, times in lines("cron_times.txt"):
        if found != verdict:
            continue
        case = f"{suite}: {expression} in {place} {asked}"
        if verdict in REFUSED:
            with pytest.raises(InvalidInput, match=REFUSED[verdict]):
                parse_cron(expression, name="", zone=zone(place))
            continue
        way, start = asked.split()
        table = parse_cron(expression, name="", zone=zone(place))
        ours = list(islice(walked(table, *instants(start), back=way == "before"), len(instants(times))))
        assert verdict == "same" or verdict in OTHERWISE
        assert (ours == instants(times)) == (verdict == "same"), case


def test_expressions_that_others_refuse_are_refused_but_for_what_is_offered() -> None:
    for suite, verdict, expression in lines("cron_refused.txt"):
        try:
            parse_cron(expression, name="", zone=zone("UTC"))
        except InvalidInput:
            assert verdict == "same", f"{suite}: {expression}"
        else:
            assert verdict in TAKEN, f"{suite}: {expression}"


@pytest.mark.parametrize("verdict", sorted({row[1] for row in lines("rules.txt")}))
def test_rules_fire_when_dateutil_and_the_rfc_say(verdict: str) -> None:
    for suite, found, rule, times in lines("rules.txt"):
        if found != verdict:
            continue
        if verdict != "same":
            with pytest.raises(InvalidInput, match=REFUSED[verdict]):
                parse_rrule(rule, zone=zone("UTC"), anchor=START)
            continue
        expected = [at.replace(tzinfo=UTC) for at in instants(times)]
        table = parse_rrule(rule, zone=zone("UTC"), anchor=START)
        assert table.upcoming(datetime(1960, 1, 1, tzinfo=UTC), len(expected)) == expected, f"{suite}: {rule}"
