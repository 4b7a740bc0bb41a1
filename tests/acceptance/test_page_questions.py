"""The page in Chromium: a graph's question with options is answered by a button, a key or a text, on a desk or a phone."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.support.constellation import Constellation
from tests.support.tabs import Tab, chromium
from tests.support.web import Web, free_port
from turnkeeper.config.home import Home
from turnkeeper.config.toml_file import with_key

pytestmark = [
    pytest.mark.process,
    pytest.mark.client,
    pytest.mark.sqlite_only("how a question is answered in a browser, whatever the store"),
]
GRAPH = """
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt


def order(state):
    question = {"question": "Order the hose at 12.50 EUR?", "options": ["yes", "wait a week", "never"]}
    question |= {"allows_text": "words" in state["messages"][-1].content}
    question = "Which colour?" if "colour" in state["messages"][-1].content else question
    return {"messages": [AIMessage(f"I heard: {interrupt(question)}")]}


graph = StateGraph(MessagesState).add_node(order).add_edge(START, "order").compile()
"""
TASKS = ("hose", "seeds", "soil", "gate", "fence", "pond")


@pytest.fixture
def asking(home: Home, tmp_path: Path) -> Iterator[Constellation]:
    """Turns of a graph that wait for an answer."""
    (tmp_path / "shop.py").write_text(GRAPH)
    made = Constellation(home)
    made.command("turnkeeper", "init", "--graph", f"{tmp_path / 'shop.py'}:graph")
    made.start()
    prompts = {"soil": "Ask, and take other words too."} | dict.fromkeys(TASKS[3:], "Ask for the colour.")
    for name in TASKS:
        made.create(name, "--in", "1s", "--prompt", prompts.get(name, "Ask."), channel=name)
    for name in TASKS:
        made.until_outcome(name, "interrupted")
    yield made
    made.stop()


@pytest.fixture
def page(asking: Constellation) -> Iterator[Page]:
    web = Web(asking.home, free_port())
    text = with_key(asking.home.config.read_text(), "web", "port", value=web.port)
    asking.home.config.write_text(with_key(text, "web", "enabled", value=True))
    web.start()
    with chromium() as browser:
        tab = Tab(browser.new_page(), web.origin)
        tab.page.goto(f"{web.origin}/#token={web.token()}")
        tab.page.wait_for_url("**/ui/")
        yield tab.go("/ui/decisions")
        assert tab.complaints == []
    web.stop()


def heard(asking: Constellation, channel: str, outcome: str = "succeeded") -> str:
    asking.until_outcome(channel, outcome)
    return str(asking.conversation(channel)[-1]["messages"][-1]["text"])


def test_a_question_is_answered_by_its_buttons_by_a_key_or_in_words(page: Page, asking: Constellation) -> None:
    cards = {name: page.locator(".card.waits", has=page.get_by_role("link", name=name).first) for name in TASKS}
    expect(cards["hose"]).to_contain_text("Order the hose at 12.50 EUR?")
    expect(cards["hose"].locator(".options button")).to_have_text(["1 yes", "2 wait a week", "3 never"])
    expect(cards["hose"].get_by_role("button", name="Approve")).to_have_count(0)
    expect(cards["hose"].get_by_text("Another answer")).to_have_count(0)
    page.set_viewport_size({"width": 390, "height": 844})
    cards["hose"].get_by_role("button", name="wait a week").click()
    expect(page.get_by_role("status")).to_contain_text("Answer: “wait a week”. The agent continues with your answer.")
    assert heard(asking, "hose") == "I heard: wait a week"
    page.set_viewport_size({"width": 1280, "height": 900})
    cards["seeds"].focus()
    page.keyboard.press("3")
    expect(page.get_by_role("status")).to_contain_text("Answer: “never”.")
    assert heard(asking, "seeds") == "I heard: never"
    cards["soil"].focus()
    page.keyboard.press("t")
    page.keyboard.type("two bags")
    page.keyboard.press("Enter")
    expect(page.get_by_role("status")).to_contain_text("Answer: “two bags”.")
    assert heard(asking, "soil") == "I heard: two bags"
    field = cards["gate"].get_by_role("textbox", name="Answer")
    expect(field).to_be_visible()
    expect(cards["gate"].locator("button.main")).to_have_text("Answer t")
    expect(cards["gate"].get_by_role("button", name="Yes")).to_be_visible()
    expect(cards["gate"].get_by_role("button", name="Approve")).to_have_count(0)
    cards["gate"].focus()
    page.keyboard.press("t")
    expect(field).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("the answer: is empty")
    field.fill("green")
    cards["gate"].get_by_role("button", name="Answer", exact=True).click()
    expect(page.get_by_role("status")).to_contain_text("Answer: “green”. The agent continues with your answer.")
    assert heard(asking, "gate") == "I heard: green"
    cards["fence"].get_by_role("button", name="Yes").click()
    expect(page.get_by_role("status")).to_contain_text("asked by fence. Answer: “yes”. The agent continues with your")
    assert heard(asking, "fence") == "I heard: True"
    cards["pond"].get_by_text("No…").click()
    cards["pond"].get_by_role("button", name="No", exact=True).click()
    expect(page.get_by_role("status")).to_contain_text("asked by pond. Answer: “no”. The agent continues with your")
    assert heard(asking, "pond", "rejected") == "I heard: False"
    expect(page.locator(".empty")).to_contain_text("Nothing waits for you.")
