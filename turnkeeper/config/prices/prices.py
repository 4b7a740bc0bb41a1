"""Prices of models: `[prices."openai:gpt-5"]` in config.toml, in a currency of the owner's, per million tokens.

Tokens count at the price of the model that `[model] name` names now. Sums are whole millionths of the currency.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from turnkeeper.config.home import Home
from turnkeeper.config.toml_file import said_in
from turnkeeper.errors import InvalidInput

MONEY = "money_per_day"
MILLION, LONGEST = 1_000_000, 6  # digits before and behind the point
MOST_NAMED = 5  # tasks


class Price(NamedTuple):
    """The price of a million tokens that a model reads, and of a million that it writes."""

    read: float
    written: float

    def money(self, tokens_in: int, tokens_out: int) -> int:
        """Return the cost of tokens, in millionths of the currency.

        >>> Price(1.25, 10.0).money(1000, 200)
        3250
        """
        return round(tokens_in * self.read + tokens_out * self.written)


class _Used:
    """The price that this process uses, and the settings from which it was read.

    Attributes:
        trouble: the tasks whose budgets in money do not count without a price; empty if there are none.
    """

    home: Home | None = None
    price: Price | None = None
    changed_ns = 0
    trouble = ""


def use(home: Home) -> Price | None:
    """Use the price of a home's model in this process from now on, also if the settings change later."""
    _Used.home, _Used.changed_ns = home, 0
    return current()


def current() -> Price | None:
    """Return the price in use. None if no price is known."""
    try:
        if _Used.home is not None and (at := _Used.home.config.stat().st_mtime_ns) != _Used.changed_ns:
            _Used.price, _Used.changed_ns = price_of(_Used.home), at
    except Exception:  # noqa: BLE001  while the settings cannot be read, the last price counts
        return _Used.price
    return _Used.price


def price_of(home: Home) -> Price | None:
    """Return the price of a home's model. None if its settings have none."""
    prices, model = said_in(home.config, "prices"), said_in(home.config, "model")
    name = model.get("name", "offline") if isinstance(model, dict) else ""
    said = prices.get(name) if isinstance(prices, dict) else None
    if not isinstance(said, dict):
        return None
    known = {key: value for key, value in said.items() if isinstance(value, int | float)}
    return Price(float(known.get("read", 0)), float(known.get("written", 0)))


def money_of(tokens_in: int, tokens_out: int) -> int:
    """Return the cost of tokens at the price in use, in millionths. 0 if no price is known."""
    price = current()
    return 0 if price is None else price.money(tokens_in, tokens_out)


def check(budget: Mapping[str, int]) -> None:
    """Raise InvalidInput if a budget is in money, and no price is known."""
    if MONEY in budget and current() is None:
        hint = "write it below [prices] in config.toml"
        raise InvalidInput(f"{MONEY} needs the price of the model", where="budget", hint=hint)


def trouble() -> str:
    """Return which budgets in money do not count, since the model has no price. Empty if all count."""
    return _Used.trouble


class Watch:
    """An observer of the runner, which looks with each beat for budgets in money that do not count."""

    def __init__(self, home: Home, runner: Any, _settings: object, _clock: object) -> None:
        self._runner, read = runner, current() is not None or said_in(home.config, "prices")
        self._seen_ns = -1 if read else _Used.changed_ns  # a home without prices reads no tasks at its start

    async def look(self) -> None:
        """Name the tasks with a budget in money if no price is known. Without a price, no new task may have one.

        The tasks are read if the settings changed since the last look that succeeded, or a budget did not count.
        """
        price, changed_ns = current(), _Used.changed_ns
        if price is None and not _Used.trouble and self._seen_ns == changed_ns:
            return
        tasks = await self._runner.store.read(lambda session: session.tasks.listed()) if price is None else ()
        names = [task.definition.name for task in tasks if MONEY in dict(task.definition.budget)]
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        fix = "write the price below [prices] in config.toml, or remove the budget"
        what = f"{MONEY} of {', '.join(names[:MOST_NAMED])}{more} does not count: the model has no price; {fix}"
        _Used.trouble = what if names and current() is None else ""
        self._seen_ns = changed_ns


def amount_of(key: str, text: str) -> int | None:
    """Return an amount of money, such as 2.50, in millionths. None if it is none, or for another limit."""
    whole, point, part = text.partition(".")
    digits = whole + part if point else whole
    is_amount = digits.isascii() and digits.isdecimal() and 0 < len(whole) <= LONGEST and len(part) <= LONGEST
    return round(float(text) * MILLION) if key == MONEY and is_amount else None
