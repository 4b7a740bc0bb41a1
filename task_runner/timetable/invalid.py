"""The refusal of a cron expression, which can point at the place."""

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
