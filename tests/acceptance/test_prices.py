"""Money: a price in config.toml, what turns cost in lists and reports, and a budget in money that pauses a task."""

import json
from collections import Counter

import pytest

from tests.support.chat_server import KEY, Reply, serving
from tests.support.constellation import Constellation
from turnkeeper.config.home import Home
from turnkeeper.config.prices.prices import Price, Prices
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


def test_each_model_counts_at_its_own_price_in_lists_and_reports(stopped: Constellation) -> None:
    with serving() as model:
        for home in stopped.homes:
            home.environment.write_text(f"OPENAI_API_KEY={KEY}\n")
            home.environment.chmod(0o600)
            name_a_price(home)
            with home.config.open("a") as file:
                file.write(f'\n[assistants.mine]\nconfig = {{ model = "gpt-5", base_url = "{model.url}" }}\n')
        stopped.start()
        stopped.create("plan", "--every", "1d")
        config = json.dumps({"model": "openai:gpt-5", "base_url": model.url})
        stopped.create("news", "--every", "1d", "--config", config)
        model.script = [Reply(text="new", usage=(100_000, 3))]
        for task in ("plan", "news"):
            stopped.command("turnkeeper", "task", "run", task, "--wait")
    turns = {turn["task_name"]: turn for turn in stopped.ask("turnkeeper", "turns", "list")}
    assert turns["news"]["models"] == {"openai:gpt-5": {"tokens_in": 100_000, "tokens_out": 3}}
    assert turns["news"]["money"] == 0.9
    plan = turns["plan"]
    cost = round(plan["tokens_in"] * 1.25 + plan["tokens_out"] * 10) / 1e6
    assert (plan["models"].keys(), plan["money"]) == ({"offline"}, cost)
    report = stopped.ask("turnkeeper", "report")
    assert {row["task"]: row["money"] for row in report["turns"]} == {"news": 0.9, "plan": cost}
    assert {(row["task"], row["model"], row["money"]) for row in report["models"]} == {
        ("news", "openai:gpt-5", 0.9), ("plan", "offline", cost),
    }  # fmt: skip
    days = Counter[str]()
    for row in report["models"]:
        days[row["day"]] += row["money"]
    assert {row["day"]: row["money"] for row in report["days"]} == {day: round(money, 6) for day, money in days.items()}
    assert "by openai:gpt-5" in stopped.command("turnkeeper", "turns", "show", turns["news"]["turn_id"])


def test_the_model_of_a_category_is_shown_and_counts_at_its_own_price_against_the_budget(
    stopped: Constellation,
) -> None:
    with serving() as server:
        for home in stopped.homes:
            home.environment.write_text(f"OPENAI_API_KEY={KEY}\n")
            home.environment.chmod(0o600)
            said = with_key(home.config.read_text(), "model", "name", value="openai:small")
            home.config.write_text(with_key(said, "model", "base_url", value=server.url))
            name_a_price(home)
            with home.config.open("a") as file:
                file.write('\n[prices."openai:small"]\nread = 1\n')
            (home.categories / "deep.toml").write_text('name = "deep"\nmodel = "openai:gpt-5"\n')
        assert "openai:gpt-5" in stopped.command("turnkeeper", "categories", "show", "deep")
        assert "the home's" in stopped.command("turnkeeper", "categories", "show", "loop")
        stopped.start()
        server.script = [Reply(text="cheap", usage=(100_000, 0)), Reply(text="dear", usage=(100_000, 0))]
        for task, category in (("plain", "loop"), ("news", "deep")):
            stopped.create(task, "--every", "1d", "--category", category, "--budget", "money_per_day=0.50")
            stopped.command("turnkeeper", "task", "run", task, "--wait")
        stopped.until(
            "the task to pause", lambda: stopped.ask("turnkeeper", "task", "show", "news")["state"] == "paused"
        )
    assert stopped.ask("turnkeeper", "task", "show", "plain")["state"] == "active"
    turns = {turn["task_name"]: turn for turn in stopped.ask("turnkeeper", "turns", "list")}
    assert {name: (*turn["models"], turn["money"]) for name, turn in turns.items()} == {
        "plain": ("openai:small", 0.1),
        "news": ("openai:gpt-5", 0.9),
    }


def test_a_model_without_a_price_counts_at_that_of_the_homes_model() -> None:
    prices = Prices({"openai:gpt-5": Price(1, 10), "offline": Price(2, 2)}, "offline")
    of_two = {"gpt-5-2025-08-07": {"tokens_in": 5, "tokens_out": 1}, "openai:other": {"tokens_in": 4, "tokens_out": 0}}
    assert prices.of_turn(of_two, 9, 1) == 5 + 10 + 4 * 2
    assert prices.of_turn(of_two, 12, 1) == 5 + 10 + 4 * 2 + 3 * 2, "tokens of an unknown model"
    assert Prices({"openai:gpt-5": Price(1, 10)}, "offline").money("openai:gpt-5-mini", 5, 5) == 0


def test_a_budget_in_money_pauses_the_task_and_needs_a_price(constellation: Constellation) -> None:
    constellation.create("news", "--every", "1d")
    refused = constellation.attempt("turnkeeper", "task", "edit", "news", "--budget", "money_per_day=2.50")
    assert (refused.returncode, '[prices."offline"] in config.toml' in refused.stderr) == (2, True)
    for home in constellation.homes:
        name_a_price(home, "1000000.0")
    constellation.command("turnkeeper", "task", "edit", "news", "--budget", "money_per_day=0.50")
    assert constellation.ask("turnkeeper", "task", "show", "news")["budget"] == {"money_per_day": 0.5}
    file = constellation.home.root / "tasks.toml"
    file.write_text(constellation.command("turnkeeper", "task", "export"))
    assert '"money_per_day" = 0.5}' in file.read_text()
    constellation.command("turnkeeper", "task", "apply", str(file))
    file.write_text(file.read_text().replace("0.5}", "500000}"))
    refused = constellation.attempt("turnkeeper", "task", "apply", str(file))
    assert (refused.returncode, "money_per_day cannot be 500000" in refused.stderr) == (2, True)
    assert "earlier versions wrote millionths" in refused.stderr
    assert constellation.ask("turnkeeper", "task", "show", "news")["budget"] == {"money_per_day": 0.5}
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


def test_a_budget_in_money_is_named_if_the_prices_were_removed_while_nothing_ran(constellation: Constellation) -> None:
    priced = {home: home.config.read_text() for home in constellation.homes}
    for home in constellation.homes:
        name_a_price(home)
    constellation.create("news", "--every", "1d", "--budget", "money_per_day=0.50")
    constellation.until("the price to be noticed", (constellation.home.run / "prices").exists)
    constellation.stop()
    for home, text in priced.items():
        home.config.write_text(text)
    constellation.start()
    named = "money_per_day of news does not count"
    constellation.until("the budget to be named", lambda: named in constellation.attempt("turnkeeper", "status").stderr)


@pytest.mark.parametrize("limit", ["money_per_day=much", "money_per_day=-1", "money_per_day=0", "money_per_day=1e9"])
def test_an_amount_that_is_none_is_refused(stopped: Constellation, limit: str) -> None:
    name_a_price(stopped.home)
    done = stopped.attempt(
        "turnkeeper", "task", "create", "x", "--every", "1h", "--category", "loop", "--channel", "g", "--prompt", "p",
        "--budget", limit,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
