"""Schedules in words: converts the words that a person types to the runner's form, and the runner's form to words."""

import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime

from turnkeeper.errors import InvalidInput
from turnkeeper.times import parse_duration, written_time

_WEEKDAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_NUMBERS = {day[:3].lower(): str(number) for number, day in enumerate(_WEEKDAYS[:7])}
_MINUTES_OF_HOUR, _HOURS_OF_DAY = 60, 24
_CRON = re.compile(r"@\w+|(?:[\d*?/,-]+\s+){2}\S+(?:\s+\S+){2,3}")
_TOKEN = re.compile(r"\d{1,2}[:.]\d\d|\d+(?:st|nd|rd|th)?|[a-z]+|[^\s,]")
_RECURS = re.compile(r"every|each|daily|hourly|monthly|week(?:day|end)|days\b|\w+day to ")
_HOURS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven")
_SPOKEN = ("midnight", *_HOURS, "noon")
_JOINTS = {"to": "-", "-": "-", "until": "-", "and": ",", "or": ","}
_BEGINS = frozenset(["every", "each", "on"])  # a number after such a word is not a time of day
_FILLERS = _BEGINS | {"the", "of", "clock", "o"}
_DAYS = {"weekday": "1-5", "weekend": "0,6", "daily": "*", "day": "*"}
_NTH = {"1": "first", "2": "second", "3": "third", "4": "fourth", "5": "fifth"}
_UNITS = {"d": "day", "h": "hour", "m": "minute", "s": "second"}
_OF_RULE = {day[:2].upper(): str(number) for number, day in enumerate(_WEEKDAYS[:7])}
_SPAN = re.compile(r"(\d+)([dhms])")
_HINT = "write for example: weekdays at 9:00, every 2 hours, tomorrow 8am, or a cron expression"


def typed(text: str, now: datetime) -> tuple[str, str]:
    """Return a typed schedule as its kind (cron, every, at, rrule) and the expression that the runner parses.

    >>> now = datetime(2026, 11, 20, 15, 30)
    >>> typed("weekdays at nine", now), typed("every 2 hours", now), typed("Tuesdays and Fridays at 7:30 pm", now)
    (('cron', '0 9 * * 1-5'), ('every', '2 hours'), ('cron', '30 19 * * 2,5'))
    >>> typed("every 15 minutes from 8 to 18 on weekdays", now), typed("on the 1st of each month at noon", now)
    (('cron', '*/15 8-17 * * 1-5'), ('cron', '0 12 1 * *'))
    >>> typed("tomorrow 9am", now), typed("0 8 * * 1-5", now), typed("90m", now)
    (('at', '2026-11-21T09:00:00'), ('cron', '0 8 * * 1-5'), ('every', '90m'))

    Args:
        now: the present time in the zone of the task; a future time is a wall time of this zone.

    Raises:
        InvalidInput: the words are not understood, or a single cron expression cannot express them.
    """
    given = text.strip()
    words = given.lower()
    if "freq=" in words:
        return "rrule", given
    if _CRON.fullmatch(given):
        return "cron", given
    if _RECURS.search(words) and (cron := _Spoken(words).cron()):
        return "cron", cron
    with suppress(InvalidInput):
        parse_duration(words)
        return "every", words.removeprefix("every ")
    try:
        datetime.fromisoformat(at := written_time(given, now))
    except ValueError:
        raise InvalidInput(f"{given[:80]!r} is not a schedule", where="times", hint=_HINT) from None
    return "at", at


def _weekday(word: str) -> str:
    """Return the number of a weekday from at least its first three letters. Empty for any other word."""
    number, name = _NUMBERS.get(word[:3], ""), word.removesuffix("s")
    return number if number and _WEEKDAYS[int(number)].lower().startswith(name) else ""


class _Spoken:
    """Words about a repeated schedule, read one by one. After any other word, `understood` is False."""

    def __init__(self, words: str) -> None:
        self.understood, self._is_monthly, self._counts = True, False, False
        self._place, self._joint = "", ","
        self._number = self._unit = self._step = self._minute = self._days = ""
        self._times: dict[str, list[tuple[int, int]]] = {"at": [], "from": []}
        for word in _TOKEN.findall(words):
            self.understood &= self._read(word)

    def _read(self, word: str) -> bool:
        if word in _JOINTS or word in _FILLERS:
            self._joint = _JOINTS.get(word, self._joint)
            self._place, self._counts = "" if word in _BEGINS else self._place, False
            return True
        joint, self._joint, one = self._joint, ",", word.removesuffix("s")
        unit, counts, self._counts = one.removesuffix("ly"), self._counts, False
        days = _DAYS.get(one) or _weekday(word)
        if counts and (days or unit == "month"):
            return False  # "every 2nd Sunday" is not each Sunday
        if word in self._times:
            self._place = word
        elif word in {"am", "pm"}:
            self._half(word)
        elif days:
            self._days = f"{self._days}{joint}{days}" if self._days not in {"", "*"} else days
        elif unit == "month":
            self._is_monthly = True
        elif unit == "minute" and self._place == "at" and not self._times["at"]:
            self._place = unit
        elif unit in {"hour", "minute"} and not self._unit:
            self._unit, self._step, self._number, self._place = unit, self._number or "1", "", ""
        else:
            return self._numeral(word, joint)
        return True

    def _half(self, half: str) -> None:
        """Read am or pm, after a time of day."""
        if self._number and self._place not in self._times:
            self._place = "at"
            self._times["at"].append((int(self._number), 0))
            self._number = ""
        if times := self._times.get(self._place):
            times[-1] = times[-1][0] % 12 + 12 * (half == "pm"), times[-1][1]

    def _numeral(self, word: str, joint: str) -> bool:
        bare = re.sub(r"(?<=\d)[a-z]+", "", word)  # "2nd" is not a time of day
        hour, _, minute = bare.replace(".", ":").partition(":")
        hour = str(_SPOKEN.index(word)) if word in _SPOKEN else hour
        if not hour.isdecimal() or int(hour) >= _MINUTES_OF_HOUR or int(minute or 0) >= _MINUTES_OF_HOUR:
            return False
        if minute or (self._place in self._times and bare == word) or word in {"noon", "midnight"}:
            if self._place != "from" and joint == "-":
                return False
            self._times[self._place if self._place in self._times else "at"].append((int(hour), int(minute or 0)))
        elif self._place == "minute":
            self._minute = hour
        else:
            is_first, self._number, self._counts = not self._number, hour, True
            return is_first
        return True

    def _fits(self) -> bool:
        """Return False if a word is not understood, or if the expression would leave a word out."""
        if not self.understood or (self._number if not self._is_monthly else self._days not in {"", "*"}):
            return False
        if not self._unit:
            return not self._times["from"]
        has_minute = self._unit == "minute" and bool(self._minute)
        return len(self._times["from"]) in {0, 2} and not self._times["at"] and not has_minute

    def cron(self) -> str:
        """Return the cron expression. Empty if the words are not understood, or are only an interval."""
        span, step, days = "*", int(self._step or 1), self._days or "*"
        if not self._fits() or (step > 1 and not (self._days or self._minute or self._times["from"])):
            return ""
        if self._is_monthly and not self._number:
            raise InvalidInput("says no day of the month", where="times", hint=_HINT)
        days = f"{self._number} * *" if self._is_monthly else f"* * {days}"
        if len(self._times["from"]) == 2:
            (first, begins), (last, minute) = self._times["from"]
            if self._unit == "minute" and (begins or minute not in {0, _MINUTES_OF_HOUR - step}):
                raise InvalidInput("such a span begins and ends on the hour", where="times", hint=_HINT)
            if self._unit == "hour" and minute < int(self._minute or begins):
                last -= 1
            self._minute = self._minute or str(begins)
            span = f"{first}-{last - (self._unit == 'minute' and not minute and last > first)}"
        if self._unit == "minute":
            if _MINUTES_OF_HOUR % step:
                raise InvalidInput(
                    f"{step} minutes do not divide an hour", where="times", hint="choose 5, 10, 15 or 30"
                )
            return f"{'*' if step == 1 else f'*/{step}'} {span} {days}"
        if self._unit == "hour":
            if span == "*" and _HOURS_OF_DAY % step:
                raise InvalidInput(f"{step} hours do not divide a day", where="times", hint="choose 2, 3, 4, 6 or 8")
            return f"{self._minute or 0} {span if step == 1 else f'{span}/{step}'} {days}"
        return f"{self._clock()} {days}"

    def _clock(self) -> str:
        """Return the minute and the hours of the times of day."""
        if not self._times["at"]:
            raise InvalidInput("says no time of day", where="times", hint=_HINT)
        hours, minutes = zip(*self._times["at"], strict=True)
        if len({*minutes}) > 1:
            what = "the times of day do not all have the same minute"
            raise InvalidInput(what, where="times", hint="create one task for each time")
        return f"{minutes[0]} {','.join(map(str, hours))}"


def in_words(schedule: str) -> str:
    """Describe a common schedule, in the runner's form, in words. Empty for any other.

    >>> in_words("0 2 * * *"), in_words("30 9 * * mon-fri"), in_words("5 8 1 * *"), in_words("15 * * * *")
    ('each day at 02:00', 'Monday to Friday at 09:30', 'on day 1 of each month at 08:05', 'each hour at minute 15')
    >>> in_words("*/15 8-18 * * 1-5"), in_words("0 7,13 * * *")
    ('every 15 minutes from 08:00 to 18:45, Monday to Friday', 'each day at 07:00 and 13:00')
    >>> in_words("0 */3 * * *"), in_words("5 8-18 * * *")
    ('every 3 hours', 'each hour from 08:05 to 18:05')
    >>> in_words("*/15 * * * *"), in_words("*/7 * * * *"), in_words("0 2 1 * mon"), in_words("every 1h30m, exactly")
    ('every 15 minutes', '', '', 'every 1 hour 30 minutes')
    >>> in_words("FREQ=WEEKLY;BYDAY=MO,WE;BYHOUR=9;BYMINUTE=30"), in_words("FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=9")
    ('each Monday and Wednesday at 09:30', '')
    """
    given = (_of_rule(schedule) if "FREQ=" in schedule else schedule).lower().split()
    if given[:1] == ["every"] and given[2:] == ["exactly"]:
        parts = [f"{many} {_UNITS[unit]}{'s' * (many != '1')}" for many, unit in _SPAN.findall(given[1])]
        return f"every {' '.join(parts) if len(parts) > 1 else parts[0].removeprefix('1 ')}"
    minute, hour, day, month, weekday = given if len(given) == 5 else ["?"] * 5
    days, (is_clock, times) = _days(day, weekday), _times(minute, hour)
    if month != "*" or not (days and times):
        return ""
    if is_clock:
        return f"{days} at {times}"
    return times if days == "each day" else f"{times}, {days}"


def _of_rule(rule: str) -> str:
    """Return the cron expression of a simple recurrence rule. Empty for any other."""
    parts = dict(part.split("=", 1) for part in rule.split(";") if "=" in part)
    needed = {"FREQ", "BYHOUR", "BYMINUTE"}
    if parts.keys() - needed - {"BYDAY", "BYMONTHDAY", "BYSECOND"} or not needed <= parts.keys():
        return ""
    weekdays = ",".join(_OF_RULE.get(day, "?") for day in parts["BYDAY"].split(",")) if "BYDAY" in parts else ""
    needs = {"DAILY": True, "WEEKLY": bool(weekdays), "MONTHLY": "BYMONTHDAY" in parts}.get(parts["FREQ"], False)
    when = f"{parts['BYMINUTE']} {parts['BYHOUR']} {parts.get('BYMONTHDAY', '*')} * {weekdays or '*'}"
    return when if needs and parts.get("BYSECOND", "0") == "0" else ""


def _days(day: str, weekday: str) -> str:
    if weekday == "*":
        which = "the last day" if day == "l" else f"day {int(day)}" if day.isdecimal() else ""
        return "each day" if day == "*" else f"on {which} of each month" if which else ""
    one, _, nth = weekday.partition("#")
    number = _NUMBERS.get(one.strip("l"), one.strip("l"))
    if day == "*" and number in {*"01234567"} and (which := "last" if "l" in weekday else _NTH.get(nth, "")):
        return f"on the {which} {_WEEKDAYS[int(number)]} of each month"
    names = [_NUMBERS.get(one, one) for one in re.split("[-,]", weekday)]
    if day != "*" or not all(one in "01234567" and len(one) == 1 for one in names):
        return ""
    words = [_WEEKDAYS[int(one)] for one in names]
    if "-" in weekday:
        return f"{words[0]} to {words[1]}" if "," not in weekday and len(words) == 2 else ""
    return f"each {_listed(words)}"


def _times(minute: str, hour: str) -> tuple[bool, str]:
    """Describe the minutes and hours of a cron expression. Also return True if the text lists times of day."""
    first, _, last = hour.partition("-")
    if step := _step(minute, _MINUTES_OF_HOUR):
        every = f"every {step} minutes" if step > 1 else "every minute"
        if first.isdecimal() and last.isdecimal():
            return False, f"{every} from {int(first):02}:00 to {int(last):02}:{60 - step:02}"
        return False, every if hour == "*" else ""
    if not minute.isdecimal():
        return False, ""
    at = int(minute)
    if step := _step(hour, _HOURS_OF_DAY):
        at_minute = f" at minute {at}" if at else ""
        return False, f"every {step} hours{at_minute}" if step > 1 else f"each hour{at_minute}"
    if first.isdecimal() and last.isdecimal():
        return False, f"each hour from {int(first):02}:{at:02} to {int(last):02}:{at:02}"
    hours = hour.split(",")
    listed = [f"{int(one):02}:{at:02}" for one in hours if one.isdecimal()]
    return True, _listed(listed) if len(listed) == len(hours) else ""


def _step(part: str, whole: int) -> int:
    """Return the step of a part of a cron expression that divides the whole evenly, or 0 if there is none."""
    step = part.removeprefix("*/") if part != "*" else "1"
    return int(step) if (part == "*" or part != step) and step.isdecimal() and whole % max(int(step), 1) == 0 else 0


def _listed(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else words[0]
