"""The vectors file: what each expression means, case by case, forwards and backwards."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from task_runner.timetable import CronTimetable, parse_cron, zone

FILE = Path(__file__).with_name("cron_vectors.txt")
LEAST_CASES = 300


@dataclass(frozen=True)
class Case:
    line: int
    zone: str
    expression: str
    after: datetime
    expected: tuple[str, ...]
    name: str

    @property
    def cron(self) -> CronTimetable:
        return parse_cron(self.expression, name=self.name, zone=zone(self.zone))


def read_cases() -> list[Case]:
    cases = []
    for number, text in enumerate(FILE.read_text(encoding="utf-8").splitlines(), 1):
        if not text.strip() or text.startswith("#"):
            continue
        place, expression, after, expected, *name = text.split(" | ")
        cases.append(
            Case(
                line=number,
                zone=place,
                expression=expression.replace("\\t", "\t"),
                after=datetime.fromisoformat(after),
                expected=tuple(expected.split(", ")),
                name=name[0] if name else "task",
            )
        )
    return cases


CASES = read_cases()


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"line {case.line}: {case.expression} in {case.zone}")
def test_an_expression_means_what_the_vectors_say(case: Case) -> None:
    wanted = [datetime.fromisoformat(text) for text in case.expected]
    local = [at.astimezone(zone(case.zone)).isoformat() for at in case.cron.upcoming(case.after, len(wanted))]
    assert local == [at.isoformat() for at in wanted]
    instants = [at.astimezone(UTC) for at in wanted]
    assert case.cron.last_n(case.after, instants[-1], len(wanted) + 1) == instants
    assert case.cron.count(case.after, instants[-1]) == len(wanted)
    assert case.cron.count(case.after, instants[-1] - timedelta(seconds=1)) == len(wanted) - 1


def test_there_are_enough_of_them_and_no_two_ask_the_same() -> None:
    asked = {(case.zone, case.expression, case.after, case.name) for case in CASES}
    assert len(asked) == len(CASES) >= LEAST_CASES
