"""The cost of turns: a price for each model, money in reports, and a budget in money."""

from turnkeeper.config.surfaces import Surface

SURFACE = Surface(
    name="prices",
    settings=("prices",),
    observers={"task-runner": "turnkeeper.config.prices.prices:Watch"},
    declared_in=("state/run/prices",),
    offers={
        "prices of a home": "turnkeeper.config.prices.prices:use",
        "check of prices": "turnkeeper.config.prices.prices:check",
        "amount of money": "turnkeeper.config.prices.prices:amount_of",
        "shown budget": "turnkeeper.config.prices.prices:shown",
        "read prices": "turnkeeper.config.prices.prices:prices_of",
        "unpriced tokens": "turnkeeper.config.prices.prices:unpriced",
        "sum of unpriced tokens": "turnkeeper.config.prices.prices:added",
        "money of unpriced tokens": "turnkeeper.config.prices.prices:money_of_unpriced",
        "money of tokens": "turnkeeper.config.prices.prices:money_of",
    },
)
