"""Which expressions are taken, what they mean, and how the others are refused."""

from datetime import UTC, datetime

import pytest

from task_runner.timetable import InvalidCron, parse_cron, zone
from turnkeeper.errors import InvalidInput

START = datetime(2026, 1, 1, tzinfo=UTC)  # a Thursday


def fires(expression: str, limit: int, *, name: str = "task") -> list[str]:
    nominals = parse_cron(expression, name=name, zone=zone("UTC")).upcoming(START, limit)
    return [f"{at:%m-%d %H:%M:%S}".removesuffix(":00") for at in nominals]


MEANINGS = [
    ("*/20 * * * *", ["01-01 00:20", "01-01 00:40", "01-01 01:00"]),
    ("10/20 * * * *", ["01-01 00:10", "01-01 00:30", "01-01 00:50", "01-01 01:10"]),
    ("10-40/20 * * * *", ["01-01 00:10", "01-01 00:30", "01-01 01:10"]),
    ("5,1-2 3 * * *", ["01-01 03:01", "01-01 03:02", "01-01 03:05", "01-02 03:01"]),
    ("5-5 3 * * *", ["01-01 03:05", "01-02 03:05"]),
    ("0 22-1 * * *", ["01-01 01:00", "01-01 22:00", "01-01 23:00", "01-02 00:00"]),
    ("*/30 0 0 * * *", ["01-01 00:00:30", "01-02 00:00", "01-02 00:00:30"]),
    ("0 9 * * MON-fri", ["01-01 09:00", "01-02 09:00", "01-05 09:00"]),
    ("0 9 * * fri-mon", ["01-02 09:00", "01-03 09:00", "01-04 09:00", "01-05 09:00", "01-09 09:00"]),
    ("0 9 * feb,MAR sun", ["02-01 09:00", "02-08 09:00"]),
    ("0 0 1 nov-feb *", ["02-01 00:00", "11-01 00:00"]),
    ("0 9 * * 0", ["01-04 09:00", "01-11 09:00"]),
    ("0 9 * * 7", ["01-04 09:00", "01-11 09:00"]),
    ("0 9 * * 5-7", ["01-02 09:00", "01-03 09:00", "01-04 09:00", "01-09 09:00"]),
    ("0 9 * * 7-1", ["01-04 09:00", "01-05 09:00", "01-11 09:00"]),
    ("0 9 * * 3/2", ["01-02 09:00", "01-07 09:00"]),
    ("0 0 L * *", ["01-31 00:00", "02-28 00:00", "03-31 00:00", "04-30 00:00"]),
    ("0 0 15,L * *", ["01-15 00:00", "01-31 00:00", "02-15 00:00"]),
    ("0 0 * * 5L", ["01-30 00:00", "02-27 00:00", "03-27 00:00", "04-24 00:00"]),
    ("0 0 * * friL", ["01-30 00:00", "02-27 00:00"]),
    ("0 0 * * L5", ["01-30 00:00", "02-27 00:00"]),
    ("0 0 * * 1#2", ["01-12 00:00", "02-09 00:00"]),
    ("0 0 * * sat#5", ["01-31 00:00", "05-30 00:00"]),
    ("0 0 * * 7#1,3", ["01-04 00:00", "01-07 00:00", "01-14 00:00"]),
    ("0 0 29-L * *", ["01-29 00:00", "01-30 00:00", "01-31 00:00", "03-29 00:00"]),
    ("0 0 * * mon-tue#2", ["01-12 00:00", "01-13 00:00", "02-09 00:00", "02-10 00:00"]),
    # Both restricted: either. A day of month that is a step restricts; one that is a star does not.
    ("0 0 13 * fri", ["01-02 00:00", "01-09 00:00", "01-13 00:00", "01-16 00:00"]),
    ("0 0 */10 * mon", ["01-05 00:00", "01-11 00:00", "01-12 00:00"]),
    ("0 0 13 * 5#2", ["01-09 00:00", "01-13 00:00", "02-13 00:00"]),
    ("0 0 1-31 * mon", ["01-02 00:00", "01-03 00:00"]),
    ("0 0 1-31 * *", ["01-02 00:00", "01-03 00:00"]),
    ("@hourly", ["01-01 01:00", "01-01 02:00"]),
    ("@daily", ["01-02 00:00", "01-03 00:00"]),
    ("@midnight", ["01-02 00:00", "01-03 00:00"]),
    ("@Weekly", ["01-04 00:00", "01-11 00:00"]),
    ("@monthly", ["02-01 00:00", "03-01 00:00"]),
    ("@yearly", ["01-01 00:00"]),
    ("@annually", ["01-01 00:00"]),
    ("  0   9\t* * * \n", ["01-01 09:00", "01-02 09:00"]),
]


@pytest.mark.parametrize(("expression", "expected"), MEANINGS)
def test_an_expression_means(expression: str, expected: list[str]) -> None:
    assert fires(expression, len(expected)) == expected


# The expression, where the first caret stands, how many there are, and what the message names.
REFUSALS = [
    ("0 9 * *", 8, 1, "4 fields"),
    ("0 0 9 * * 1 2026", 12, 4, "7 fields"),
    ("", 1, 1, "0 fields"),
    ("*/0 * * * *", 0, 3, "at least 1"),
    ("0 1-5/0 * * *", 2, 5, "at least 1"),
    ("0 H/0 * * *", 2, 3, "at least 1"),
    ("0 5-5/0 * * *", 2, 5, "at least 1"),
    ("60 * * * *", 0, 2, "minute '60': 60 is out of range, 0 to 59"),
    ("0 6 * * 0 2027", 8, 1, "month '0': 0 is out of range, 1 to 12; of six fields, the first is seconds"),
    ("60 0 * * * *", 0, 2, "second '60'"),
    ("0 24 * * *", 2, 2, "hour '24'"),
    ("0 0 0 * *", 4, 1, "day of month '0'"),
    ("0 0 32 * *", 4, 2, "day of month '32'"),
    ("0 0 * 13 *", 6, 2, "month '13'"),
    ("0 0 * * 8", 8, 1, "weekday '8'"),
    ("0 0 * * 1#6", 8, 3, "# takes 1 to 5"),
    ("0 0 * * 1#0", 8, 3, "# takes 1 to 5"),
    ("0 0 * * L", 8, 1, "cannot be read"),
    ("0 0 L-3 * *", 4, 3, "cannot be read"),
    ("0 0 1W * *", 4, 2, "cannot be read"),
    ("0 0 ? * *", 4, 1, "cannot be read"),
    ("1,,2 * * * *", 0, 4, "empty"),
    ("-1 * * * *", 0, 2, "cannot be read"),
    ("1.5 * * * *", 0, 3, "cannot be read"),
    ("0 0 * JAM *", 6, 3, "JAM is not a month"),
    ("0 0 MON * *", 4, 3, "MON is not a day of month"),
    ("0 22-2/2 * * *", 2, 6, "write the values as a list"),
    ("R * * * *", 0, 1, "H chooses a value"),
    ("0 R(0-5) * * *", 2, 6, "H chooses a value"),
    ("H(30-10) * * * *", 0, 8, "ascending"),
    ("0 0 H(1-32) * *", 4, 7, "out of range"),
    ("0 0 * * H(0-7)", 8, 6, "ascending"),
    ("@reboot", 0, 7, "@reboot is not known"),
    ("@never", 0, 6, "@daily"),
    ("0 0 30 2 *", 4, 2, "never fires"),
    ("0 0 0 30,31 feb *", 6, 5, "never fires"),
    ("0 0 31 4,6,9,11 *", 4, 2, "never fires"),
    ("٣ * * * *", 0, 1, "no meaning"),
    ("0 ５ * * *", 2, 1, "no meaning"),
    ("0\u00a09 * * * *", 1, 1, "no meaning"),
    ("0 9\n* * *", 3, 1, "no meaning"),
]


@pytest.mark.parametrize(("expression", "start", "width", "reason"), REFUSALS)
def test_a_refusal_says_why_and_points_at_the_place(expression: str, start: int, width: int, reason: str) -> None:
    with pytest.raises(InvalidCron) as refusal:
        parse_cron(expression, name="task", zone=zone("UTC"))
    assert reason in str(refusal.value)
    assert "\n" not in str(refusal.value)
    shown, carets = refusal.value.caret.split("\n")
    assert carets == " " * start + "^" * width
    assert len(shown) == len(expression)
    assert isinstance(refusal.value, InvalidInput)
    assert refusal.value.exit_code == 2


def test_256_characters_are_taken_and_one_more_is_refused() -> None:
    longest = "0 0 * * " + "1," * 123 + "11"[: 256 - 8 - 246 - 1]
    assert len(longest) == 255
    assert fires(longest + " ", 1) == ["01-05 00:00"]
    padded = longest.replace("0 0", "00 0")
    assert len(padded) == 256
    assert fires(padded, 1) == ["01-05 00:00"]
    with pytest.raises(InvalidCron, match="257 characters"):
        fires(padded.replace("00 0", "00 00"), 1)


def test_the_caret_of_a_long_expression_stays_in_sight() -> None:
    with pytest.raises(InvalidCron) as refusal:
        fires("0" + " " * 200 + "9 * * 99", 1)
    shown, carets = refusal.value.caret.split("\n")
    assert len(shown) < 80
    assert shown[carets.index("^") :].startswith("99")


def test_hash_is_the_names_own_and_stays() -> None:
    names = [f"task-{number}" for number in range(300)]
    first = {name: fires("H H * * *", 1, name=name) for name in names}
    assert first == {name: fires("h h * * *", 1, name=name) for name in names}
    minutes = {at[0][-2:] for at in first.values()}
    hours = {at[0][-5:-3] for at in first.values()}
    assert len(minutes) > 50
    assert len(hours) == 24


def test_hash_is_the_same_for_ever() -> None:
    # A change here moves the fires of every task that uses H.
    assert fires("H H * * *", 1, name="nightly-report") == ["01-01 00:18"]


@pytest.mark.parametrize("name", ["a", "b", "c", "report", "task-1234"])
def test_hash_keeps_to_its_range_and_step(name: str) -> None:
    (minute,) = {at[-2:] for at in fires("H(10-19) * * * *", 24, name=name)}
    assert 10 <= int(minute) <= 19
    quarters = sorted({int(at[-2:]) for at in fires("H/15 * * * *", 24, name=name)})
    assert quarters == [quarters[0] + 15 * number for number in range(4)]
    assert quarters[0] < 15
    steps = sorted({int(at[-2:]) for at in fires("H(0-29)/10 * * * *", 24, name=name)})
    assert steps == [steps[0], steps[0] + 10, steps[0] + 20]


@pytest.mark.parametrize("name", [f"task-{number}" for number in range(40)])
def test_a_hashed_day_comes_in_every_month(name: str) -> None:
    assert len({at[:2] for at in fires("H H H * *", 12, name=name)}) == 12


def test_hash_counts_as_a_fixed_time_and_with_a_step_as_a_step() -> None:
    assert parse_cron("H H * * *", name="a", zone=zone("UTC")).pattern.fixed
    assert not parse_cron("H/5 1 * * *", name="a", zone=zone("UTC")).pattern.fixed


def test_it_describes_itself_as_typed() -> None:
    assert parse_cron("0 9 * * Mon-Fri", name="a", zone=zone("UTC")).describe() == "0 9 * * Mon-Fri"
    assert parse_cron("@daily", name="a", zone=zone("UTC")).describe() == "@daily"


def test_a_leap_day_comes_over_the_turn_of_the_century() -> None:
    cron = parse_cron("0 0 29 2 *", name="a", zone=zone("UTC"))
    assert cron.next_after(datetime(2096, 3, 1, tzinfo=UTC)) == datetime(2104, 2, 29, tzinfo=UTC)
    assert cron.last_at_or_before(datetime(2104, 2, 28, tzinfo=UTC)) == datetime(2096, 2, 29, tzinfo=UTC)


def test_a_fifth_sunday_in_february_is_waited_for() -> None:
    cron = parse_cron("0 0 * 2 0#5", name="a", zone=zone("America/New_York"))
    first = cron.next_after(datetime(2088, 3, 1, tzinfo=UTC))
    assert first == datetime(2128, 2, 29, 5, tzinfo=UTC)


def test_time_begins_and_ends() -> None:
    cron = parse_cron("0 0 1 1 *", name="a", zone=zone("America/New_York"))
    assert cron.next_after(datetime.max.replace(tzinfo=UTC)) is None
    assert cron.last_at_or_before(datetime.min.replace(tzinfo=UTC)) is None
    assert cron.next_after(datetime.min.replace(tzinfo=UTC)) is not None
    assert cron.last_at_or_before(datetime.max.replace(tzinfo=UTC)) is not None
