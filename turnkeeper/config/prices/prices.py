"""Prices of models, per million tokens, in the author's currency: `[prices."openai:gpt-5"]` in config.toml.

Tokens cost the price of their model. If the model has no price or is unknown, they cost the price of `[model] name`.
The date that a provider appends to a name is ignored: openai:gpt-5-2025-08-07. Sums are whole millionths.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from turnkeeper.config.home import Home
from turnkeeper.config.models import OFFLINE, full_name
from turnkeeper.config.settings import load_settings
from turnkeeper.config.toml_file import said_in
from turnkeeper.errors import InvalidInput, TurnkeeperError

MONEY = "money_per_day"
MILLION, LONGEST = 1_000_000, 6  # digits before and after the decimal point
MOST_NAMED = 5  # most tasks that one text names
_DATE = re.compile(r"-(\d{8}|\d{4}-\d{2}-\d{2})$")


class Price(NamedTuple):
    """The price of a million input tokens, and of a million output tokens."""

    read: float
    written: float

    def money(self, tokens_in: int, tokens_out: int) -> int:
        """Return the cost of tokens, in millionths of the currency.

        >>> Price(1.25, 10.0).money(1000, 200)
        3250
        """
        return round(tokens_in * self.read + tokens_out * self.written)


class Prices(NamedTuple):
    """The prices of a home.

    Attributes:
        priced: the prices, by the full names of models.
        model: the full name of the home's model.
    """

    priced: Mapping[str, Price]
    model: str

    def own(self, model: str) -> Price | None:
        """Return the price of a model. None if the model has no price."""
        name = known_as(model)
        return self.priced.get(name, self.priced.get(_DATE.sub("", name)))

    def money(self, model: str, tokens_in: int, tokens_out: int) -> int:
        """Return the cost of tokens of a model, in millionths. 0 if neither it nor the home's model has a price."""
        price = self.own(model) or self.own(self.model)
        return 0 if price is None else price.money(tokens_in, tokens_out)

    def of_turn(self, models: Mapping[str, Mapping[str, int]], tokens_in: int, tokens_out: int) -> int:
        """Return the cost of a turn, in millionths. Tokens without a model count for an unknown model."""
        return sum(self.money(*one) for one in _by_model(models, tokens_in, tokens_out))


def known_as(model: str) -> str:
    """Return a model's name with its provider, so that gpt-5 and openai:gpt-5 are the same model."""
    try:
        return full_name(model)
    except InvalidInput:
        return model


class _Used:
    """The prices that this process uses, and the settings that contain them."""

    home: Home | None = None
    prices: Prices | None = None
    changed_ns = 0


def use(home: Home) -> Prices | None:
    """Use the prices of a home in this process from now on, even if the settings change later."""
    _Used.home, _Used.changed_ns = home, 0
    return current()


def current() -> Prices | None:
    """Return the prices in use. None if there are none."""
    try:
        if _Used.home is not None and (at := _Used.home.config.stat().st_mtime_ns) != _Used.changed_ns:
            _Used.prices, _Used.changed_ns = prices_of(_Used.home), at
    except (OSError, TurnkeeperError):
        return _Used.prices  # while the settings cannot be read, the last prices apply
    return _Used.prices


def prices_of(home: Home) -> Prices | None:
    """Return the prices of a home. None if its settings contain no prices."""
    said = said_in(home.config, "prices")
    priced = {known_as(name): _price(one) for name, one in said.items()} if isinstance(said, dict) else {}
    return Prices(priced, _model_of(home)) if priced else None


def _model_of(home: Home) -> str:
    model = said_in(home.config, "model")
    return known_as(str(model.get("name", OFFLINE)) if isinstance(model, dict) else OFFLINE)


def _price(said: Any) -> Price:
    known = said if isinstance(said, dict) else {}
    return Price(*(float(value) if isinstance(value := known.get(key, 0), int | float) else 0 for key in Price._fields))


def money_of(models_json: str, tokens_in: int, tokens_out: int) -> int:
    """Return the cost of a turn at the prices in use, in millionths, or 0 if no price is known."""
    prices = current()
    return 0 if prices is None else prices.of_turn(json.loads(models_json or "{}"), tokens_in, tokens_out)


def unpriced(models_json: str, tokens_in: int, tokens_out: int) -> str:
    """Return the tokens of a turn that no price in use covers, by model, as JSON. Empty if there are none."""
    if _is_known():
        return ""
    prices, by_model = current(), _by_model(json.loads(models_json or "{}"), tokens_in, tokens_out)
    found = {model: used for model, *used in by_model if any(used) and (prices is None or prices.own(model) is None)}
    return json.dumps(found) if found else ""


def added(one: str, other: str) -> str:
    """Return the sum of two texts of :func:`unpriced`."""
    first, second = (json.loads(text or "{}") for text in (one, other))
    both = {name: list(map(sum, zip(first.get(name, (0, 0)), used, strict=True))) for name, used in second.items()}
    return json.dumps(first | both) if first or second else ""


def money_of_unpriced(text: str) -> int:
    """Return the cost of tokens that had no price, at the prices in use, in millionths. 0 if no price is known."""
    prices = current()
    return 0 if prices is None else sum(prices.money(name, *used) for name, used in json.loads(text or "{}").items())


def _by_model(models: Mapping[str, Mapping[str, int]], tokens_in: int, tokens_out: int) -> list[tuple[str, int, int]]:
    """Return the tokens of a turn by model. The rest, which no model has, counts for a model without a name."""
    named = [(model, one["tokens_in"], one["tokens_out"]) for model, one in models.items()]
    return [*named, ("", tokens_in - sum(one[1] for one in named), tokens_out - sum(one[2] for one in named))]


def _is_known() -> bool:
    prices = current()
    return prices is not None and prices.own(prices.model) is not None


def check(budget: Mapping[str, int]) -> None:
    """Raise InvalidInput if a budget is in money and no price is known, or if the settings are not valid."""
    if MONEY in budget and not _is_known():
        model = OFFLINE if _Used.home is None else _model_of(_Used.home)
        hint = f'write read = … and written = … below [prices."{model}"] in config.toml'
        try:
            _ = _Used.home and load_settings(_Used.home)
        except InvalidInput as error:  # such as a price outside the table of a model
            error.hint = hint if ": prices" in error.where else error.hint
            raise
        raise InvalidInput(f"{MONEY} needs the price of {model}", where="budget", hint=hint)


class Watch:
    """An observer of the runner. At each beat, it looks for budgets in money that have no effect.

    Attributes:
        trouble: the tasks whose budgets in money have no effect without a price; empty if there are none.
    """

    def __init__(self, home: Home, runner: Any, _settings: object, _clock: object) -> None:
        self.trouble = ""
        self._runner, self._mark = runner, home.run / "prices"  # exists if some budget may be in money
        read = current() is not None or self._mark.exists()  # a home that never had prices reads no tasks at its start
        self._seen_ns = -1 if read else _Used.changed_ns

    async def look(self) -> None:
        """Name the tasks with a budget in money if no price is known.

        Without a price, no new task can have such a budget. The tasks are read if the settings changed since the last
        successful look, or if a budget had no effect then.
        """
        known, changed_ns = _is_known(), _Used.changed_ns
        if not self.trouble and self._seen_ns == changed_ns:
            return
        tasks = () if known else await self._runner.store.read(lambda session: session.tasks.listed())
        names = [task.definition.name for task in tasks if MONEY in dict(task.definition.budget)]
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        fix = "write its price below [prices.MODEL] in config.toml, or remove the budget"
        what = f"{MONEY} of {', '.join(names[:MOST_NAMED])}{more} does not count: the model has no price; {fix}"
        if known or names:
            self._mark.touch()
        else:
            self._mark.unlink(missing_ok=True)
        self.trouble = what if names and not _is_known() else ""
        self._seen_ns = changed_ns


def shown(budget: Mapping[str, int]) -> dict[str, float]:
    """Return a budget in the form of files and JSON: an amount of money in the currency, not in millionths."""
    return {key: limit / MILLION if key == MONEY else limit for key, limit in budget.items()}


def amount_of(key: str, text: str) -> int | None:
    """Return an amount of money, such as 2.50, in millionths. None for other limits and other text."""
    whole, point, part = text.partition(".")
    digits = whole + part if point else whole
    is_amount = digits.isascii() and digits.isdecimal() and 0 < len(whole) <= LONGEST and len(part) <= LONGEST
    return round(float(text) * MILLION) if key == MONEY and is_amount else None
