"""Schedules in words: typed by a person, and read by one."""

from datetime import UTC, datetime

import pytest

from turnkeeper.errors import InvalidInput
from turnkeeper.gateway.page.when import in_words, typed

NOW = datetime(2026, 11, 20, 15, 30, tzinfo=UTC)  # a Friday


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("* * * * *", "every minute"),
        ("0 * * * *", "each hour"),
        ("30 * * * *", "each hour at minute 30"),
        ("0 9 * * 1,3,5", "each Monday, Wednesday and Friday at 09:00"),
        ("0 9 * * 7", "each Sunday at 09:00"),
        ("5 */6 * * *", "every 6 hours at minute 5"),
        ("*/20 6-7 * * sat", "every 20 minutes from 06:00 to 07:40, each Saturday"),
        ("0 0 31 * *", "on day 31 of each month at 00:00"),
        ("0 18 L * *", "on the last day of each month at 18:00"),
        ("0 9 * * 1#2", "on the second Monday of each month at 09:00"),
        ("0 9,17 * * Lfri", "on the last Friday of each month at 09:00 and 17:00"),
        ("30 9 * * 7L", "on the last Sunday of each month at 09:30"),
        ("0 8-18 * * 1-5", "each hour from 08:00 to 18:00, Monday to Friday"),
        ("every 1s, exactly", "every second"),
        ("every 1d2h, exactly", "every 1 day 2 hours"),
        ("FREQ=DAILY;BYHOUR=7,13;BYMINUTE=0", "each day at 07:00 and 13:00"),
        ("FREQ=MONTHLY;BYMONTHDAY=1;BYHOUR=8;BYMINUTE=0", "on day 1 of each month at 08:00"),
    ],
)
def test_schedules_in_words(expression: str, words: str) -> None:
    assert in_words(expression) == words


@pytest.mark.parametrize(
    "expression",
    ["0 9 1 * 1", "0 9 * 2 *", "0 9 1 * 1#2", "0 9 * * l", "0 9 * * 1#2,5#3", "1-5 * * * *", "*/9 * * * *", "0 */5 * * *", "0 9 * * 1-3,5",
     "*/0 * * * *", "0 9 l,1 * *", "0 9 * *", "@daily", "*/10 8,9 * * *", "FREQ=WEEKLY;BYHOUR=9;BYMINUTE=0", "FREQ=DAILY;BYHOUR=7",
     "FREQ=DAILY;INTERVAL=2;BYHOUR=9;BYMINUTE=0", "FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=9", "every 1h, exactly, from 2026-01-01"],
)  # fmt: skip
def test_an_expression_that_no_short_sentence_covers_is_not_put_in_words(expression: str) -> None:
    assert in_words(expression) == ""


@pytest.mark.parametrize(
    ("words", "kind", "expression"),
    [
        ("weekdays at nine", "cron", "0 9 * * 1-5"),
        ("weekdays at eight", "cron", "0 8 * * 1-5"),
        ("Every weekday at 9", "cron", "0 9 * * 1-5"),
        ("9am every weekday", "cron", "0 9 * * 1-5"),
        ("weekends at 10.30", "cron", "30 10 * * 0,6"),
        ("daily at noon", "cron", "0 12 * * *"),
        ("every day at 12am and 6 pm", "cron", "0 0,18 * * *"),
        ("every monday at 9", "cron", "0 9 * * 1"),
        ("mondays and thursdays at 8am", "cron", "0 8 * * 1,4"),
        ("tue to sat at 7:15 every week", "at", ""),
        ("monthly on the 1st at 9", "cron", "0 9 1 * *"),
        ("hourly", "cron", "0 * * * *"),
        ("every minute", "cron", "* * * * *"),
        ("sundays and weekdays at 9", "cron", "0 9 * * 0,1-5"),
        ("every day from monday to friday at 9", "cron", "0 9 * * 1-5"),
        ("at 9 on the 2nd of each month", "cron", "0 9 2 * *"),
        ("every 2nd hour on weekdays", "cron", "0 */2 * * 1-5"),
        ("every hour from 8:30 to 18:15", "cron", "30 8-17 * * *"),
        ("from 8 to 18 every 15 minutes", "cron", "*/15 8-17 * * *"),
        ("every 2 hours on weekdays", "cron", "0 */2 * * 1-5"),
        ("every 2 hours from 8 to 18", "cron", "0 8-18/2 * * *"),
        ("every 10 minutes from 8am to 5pm", "cron", "*/10 8-16 * * *"),
        ("every 2 hours", "every", "2 hours"),
        ("1h30m", "every", "1h30m"),
        ("monday 9:00", "at", "2026-11-23T09:00:00"),
        ("in 2 hours", "at", "2026-11-20T17:30:00Z"),
        ("2026-11-30T09:00", "at", "2026-11-30T09:00"),
        ("0 9 * * mon", "cron", "0 9 * * mon"),
        ("@daily", "cron", "@daily"),
        ("FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=9", "rrule", "FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=9"),
    ],
)
def test_words_become_what_the_runner_parses(words: str, kind: str, expression: str) -> None:
    if not expression:
        with pytest.raises(InvalidInput, match="is not a schedule"):
            typed(words, NOW)
    else:
        assert typed(words, NOW) == (kind, expression)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("every monday", "no time of day"),
        ("every day at 7:00 and 13:30", "do not all have the same minute"),
        ("monthly at 9", "no day of the month"),
        ("every 45 minutes from 8 to 18", "do not divide an hour"),
        ("every 10 minutes from 8:30 to 17:00", "on the hour"),
        ("every other monday at 9", "is not a schedule"),
        ("soon", "is not a schedule"),
        ("every 2nd sunday at 6am", "is not a schedule"),
        ("every 2nd day at 6am", "is not a schedule"),
        ("every 3 sundays at 6am", "is not a schedule"),
        ("at 6 every 2nd sunday", "is not a schedule"),
        ("mondays at 9 2nd", "is not a schedule"),
        ("at 6am every 2 days", "is not a schedule"),
        ("every sunday at 6 on the 2nd", "is not a schedule"),
        ("every 2nd sunday of the month at 6am", "is not a schedule"),
        ("every 2nd day of the month at 9", "is not a schedule"),
        ("the 1st and 15th of each month at 9", "is not a schedule"),
        ("the 1st, 15 of each month at 9", "is not a schedule"),
        ("every 2 months at 9", "is not a schedule"),
        ("every 2nd month on the 1st at 9", "is not a schedule"),
        ("on the 1st of every 3rd month at 9", "is not a schedule"),
        ("monthly on the 1st on monday at 9", "is not a schedule"),
        ("every 5 minutes on weekdays at 9am", "is not a schedule"),
        ("every 10 minutes each hour on weekdays", "is not a schedule"),
        ("every hour at 15 minutes", "is not a schedule"),
        ("every 5 minutes at minute 3 on weekdays", "is not a schedule"),
        ("every day at 9 to 17", "is not a schedule"),
        ("every day at 9 from 8 to 18", "is not a schedule"),
        ("every hour from 8 on weekdays", "is not a schedule"),
        ("every 5 hours on weekdays", "do not divide a day"),
    ],
)
def test_words_that_name_no_schedule_are_refused_with_an_example(words: str, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        typed(words, NOW)


@pytest.mark.parametrize(
    "expression",
    ["0 2 * * *", "30 9 * * 1-5", "5 8 1 * *", "15 * * * *", "*/15 8-18 * * 1-5", "0 7,13 * * *", "0 9 * * 1,4", "5 8-18 * * *"],
)  # fmt: skip
def test_what_is_shown_in_words_can_be_typed(expression: str) -> None:
    assert typed(in_words(expression), NOW) == ("cron", expression)
