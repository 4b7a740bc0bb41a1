"""The refusal of a cron expression, which can point at the place.

Instants as whole seconds since 1970 in UTC: what all timetables compute with.
"""

from datetime import UTC, datetime, timedelta

from turnkeeper.errors import InvalidInput

_SHOWN = 72


class InvalidCron(InvalidInput):
    """A cron expression that cannot be taken.

    Attributes:
        caret: two lines, the expression and carets under its bad field; cut where the expression is very long.
    """

    def __init__(self, what: str, *, expression: str, start: int, width: int, hint: str = "") -> None:
        super().__init__(what, where="cron", hint=hint)
        # A control character would break the line that the carets stand under.
        shown = "".join(sign if sign.isprintable() else "?" for sign in expression)
        if len(shown) > _SHOWN:
            cut = min(start, len(shown) - 1) if start + width > _SHOWN else 0
            before, after = "..." if cut else "", "..." if cut + _SHOWN < len(shown) else ""
            shown, start = before + shown[cut : cut + _SHOWN] + after, start - cut + len(before)
            width = min(width, len(shown) - start)
        self.caret = f"{shown}\n{' ' * start}{'^' * max(width, 1)}"


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SECONDS_PER_DAY = 86_400
# A year is kept free at both ends of what datetime can hold, so that no offset can lead out of it.
EARLIEST_S = -62_104_060_800
LATEST_S = 253_370_764_800


def to_seconds(at: datetime) -> int:
    """Convert an aware datetime to whole seconds since 1970 in UTC; a fraction is rounded down.

    >>> to_seconds(datetime(1970, 1, 1, 0, 0, 1, 999_999, tzinfo=UTC))
    1

    Raises:
        TypeError: `at` is naive.
    """
    since = at - EPOCH
    return since.days * SECONDS_PER_DAY + since.seconds


def from_seconds(second: int) -> datetime:
    """Convert whole seconds since 1970 to an aware datetime in UTC.

    >>> from_seconds(86_400).isoformat()
    '1970-01-02T00:00:00+00:00'
    """
    return EPOCH + timedelta(0, second)
