"""Money: a price in config.toml, what turns cost in lists and reports, and a budget in money that pauses a task."""

import pytest

from tests.support.constellation import Constellation
from turnkeeper.config.home import Home
from turnkeeper.config.toml_file import with_key

pytestmark = pytest.mark.process


def name_a_price(home: Home, read: str = "1.25") -> None:
    with home.config.open("a") as file:
        file.write(f'\n[prices.offline]\nread = {read}\nwritten = 10.0\n\n[prices."openai:gpt-5"]\nread = 9\n')


def test_turns_and_reports_say_what_was_spent_by_the_price_of_the_model(constellation: Constellation) -> None:
    constellation.create("news", "--every", "1d")
    constellation.command("turnkeeper", "task", "run", "news", "--wait")
    (turn,) = constellation.ask("turnkeeper", "turns", "list")
    assert "money" not in turn
    for home in constellation.homes:
        name_a_price(home)
    (turn,) = constellation.ask("turnkeeper", "turns", "list")
    cost = round(turn["tokens_in"] * 1.25 + turn["tokens_out"] * 10) / 1e6
    assert turn["money"] == cost > 0
    report = constellation.ask("turnkeeper", "report")
    assert [row["money"] for row in report["turns"]] == [cost]
    assert sum(row["money"] for row in report["days"]) == cost


def test_a_budget_in_money_pauses_the_task_and_needs_a_price(constellation: Constellation) -> None:
    constellation.create("news", "--every", "1d")
    refused = constellation.attempt("turnkeeper", "task", "edit", "news", "--budget", "money_per_day=2.50")
    assert (refused.returncode, "needs the price of the model" in refused.stderr) == (2, True)
    for home in constellation.homes:
        name_a_price(home, "1000000.0")
    constellation.command("turnkeeper", "task", "edit", "news", "--budget", "money_per_day=0.50")
    assert constellation.ask("turnkeeper", "task", "show", "news")["budget"] == {"money_per_day": 500_000}
    constellation.command("turnkeeper", "task", "run", "news", "--wait")
    constellation.until(
        "the task to pause", lambda: constellation.ask("turnkeeper", "task", "show", "news")["state"] == "paused"
    )
    assert constellation.ask("turnkeeper", "task", "show", "news")["paused_note"].startswith(
        "budget: money_per_day is 0.5, "
    )


def test_a_budget_in_money_that_does_not_count_for_a_model_without_a_price_is_named(
    constellation: Constellation,
) -> None:
    def said() -> str:
        return constellation.attempt("turnkeeper", "status").stderr

    for home in constellation.homes:
        name_a_price(home)
    constellation.create("news", "--every", "1d", "--budget", "money_per_day=0.50")
    assert "does not count" not in said()
    for home in constellation.homes:
        home.config.write_text(with_key(home.config.read_text(), "model", "name", value="openai:gpt-4"))
    constellation.until("the budget to be named", lambda: "money_per_day of news does not count" in said())
    for home in constellation.homes:
        home.config.write_text(with_key(home.config.read_text(), "model", "name", value="openai:gpt-5"))
    constellation.until("the price to count", lambda: "does not count" not in said())


@pytest.mark.parametrize("limit", ["money_per_day=much", "money_per_day=-1", "money_per_day=0", "money_per_day=1e9"])
def test_an_amount_that_is_none_is_refused(stopped: Constellation, limit: str) -> None:
    name_a_price(stopped.home)
    done = stopped.attempt(
        "turnkeeper", "task", "create", "x", "--every", "1h", "--category", "loop", "--channel", "g", "--prompt", "p",
        "--budget", limit,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
