"""LangGraph's React hook in Chromium, over a graph with a state of its author's own: edits, questions, a reload."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.acceptance.test_langgraph_clients import MAJORS
from tests.support import pages
from tests.support.langgraph import CLIENTS, Lg
from tests.support.machines import constellation_on, new_home
from tests.support.tabs import PATIENCE_MS, absent
from tests.support.web import configure, serving

pytestmark = [
    pytest.mark.process,
    pytest.mark.client,
    pytest.mark.sqlite_only("how a page uses the API, whatever the store"),
]
GRAPH = """
import time
from itertools import count
from operator import add
from pathlib import Path
from typing import Annotated, TypedDict
from langchain_core.messages import AIMessage
from langgraph.config import get_stream_writer
from langgraph.graph import START, StateGraph, add_messages
from langgraph.types import interrupt

numbers = count(1)

class State(TypedDict, total=False):
    messages: Annotated[list, add_messages]
    topic: str
    steps: Annotated[list[str], add]
    report: str

def plan(state: State) -> State:
    get_stream_writer()({"step": "planned"})
    return {"topic": state["messages"][-1].text, "steps": ["plan"]}

def draft(state: State) -> State:
    if state["topic"] == "which":
        return {"topic": interrupt({"question": "Which pumps?", "options": ["old", "new"]}), "steps": ["draft"]}
    while state["topic"] == "slow" and not (Path(__file__).parent / "go").exists():
        time.sleep(0.02)
    return {"steps": ["draft"]}

def publish(state: State) -> State:
    report = f"report {next(numbers)} about {state['topic']}"
    return {"report": report, "messages": [AIMessage(report)], "steps": ["publish"]}

builder = StateGraph(State)
builder.add_sequence([plan, draft, publish])
builder.add_edge(START, "plan")
graph = builder.compile()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hook")


@pytest.fixture(scope="module")
def site() -> Iterator[pages.Site]:
    """The server of the page. Chromium lets only pages of this machine ask this machine without a person's consent."""
    with pages.serving() as made:
        yield made


@pytest.fixture(scope="module")
def lg(browser: Browser, site: pages.Site, folder: Path) -> Iterator[Lg]:
    del browser  # where there is none, nothing is started
    file = folder / "reporting.py"
    file.write_text(GRAPH)
    graph = f"[agents.agent0]\ngraph = {json.dumps(f'{file}:graph')}\n"
    with new_home() as home, constellation_on(None, home) as constellation:
        configure(home, graph)
        constellation.start()
        with serving(home, f'origins = ["{site.url("", "localhost")}"]\n{graph}') as web:
            made = Lg(constellation, web)
            yield made
            made.http.close()


@pytest.fixture(scope="module", params=MAJORS)
def script(request: pytest.FixtureRequest, folder: Path) -> str:
    """The page's script with one major of the SDK."""
    bundler = CLIENTS / "node_modules" / ".bin" / "esbuild"
    if shutil.which("node") is None or not bundler.exists():
        absent("the bundler is not installed: make test-services")
    made = folder / f"hook-{request.param}.js"
    how = ("--bundle", "--jsx=automatic", f"--alias:langgraph-sdk=langgraph-sdk-{request.param}", f"--outfile={made}")
    subprocess.run([bundler, "hook.jsx", *how, "--log-level=error"], check=True, cwd=CLIENTS, timeout=110)
    return made.read_text()


@pytest.fixture
def page(browser: Browser, lg: Lg, site: pages.Site, script: str) -> Iterator[Page]:
    """A tab of another page's origin, with a key that may decide."""
    given = json.dumps({"apiUrl": lg.url.replace("127.0.0.1", "localhost"), "apiKey": lg.keys["decide"]})
    body = f"<!doctype html><body><script>window.settings = {given}</script><script>{script}</script>"
    site.pages["/"] = pages.Answer(body=body.encode())
    context = browser.new_context()
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    page.goto(site.url("/", "localhost"))
    yield page
    context.close()


def say(page: Page, text: str, button: str = "Send") -> None:
    page.locator("input").fill(text)
    press(page, button)


def press(page: Page, button: str) -> None:
    page.get_by_role("button", name=button, exact=True).first.click()


def shows(page: Page, **texts: str) -> None:
    """Wait until parts of the page have these texts, and no error is shown."""
    for name, text in texts.items():
        expect(page.locator(f"#{name}")).to_have_text(text)
    expect(page.locator("#error")).to_have_text("")


def reports(page: Page, about: str) -> str:
    """Wait for a report; return it."""
    shows(page, status="rests")
    expect(page.locator("#report")).to_contain_text(f"about {about}")
    return page.locator("#report").inner_text()


def test_an_edit_and_a_regeneration_are_branches_of_the_authors_own_state(page: Page) -> None:
    say(page, "pumps")
    first = reports(page, "pumps")
    shows(page, steps="plan draft publish", heard="planned")
    say(page, "pipes", "Edit")
    edited = reports(page, "pipes")
    shows(page, steps="plan draft publish")
    expect(page.locator("li p")).to_have_text(["pipes", edited])
    expect(page.locator("li i")).to_have_text(["2 of 2"])
    press(page, "Regenerate")
    expect(page.locator("li.ai i")).to_have_text(["2 of 2"])
    again = reports(page, "pipes")
    assert again != edited
    shows(page, steps="plan draft publish")
    page.locator("li.human").get_by_role("button", name="Earlier").click()
    shows(page, report=first)
    expect(page.locator("li p")).to_have_text(["pumps", first])


def test_a_question_shows_its_options_and_one_of_them_answers_it(page: Page) -> None:
    say(page, "which")
    shows(page, question="Which pumps?", steps="plan", status="rests")
    page.reload()
    shows(page, question="Which pumps?", steps="plan")
    press(page, "new")
    reports(page, "new")
    shows(page, steps="plan draft publish")
    expect(page.locator("#question")).to_have_count(0)
    expect(page.locator("li.human")).to_have_count(1)


def test_a_page_that_is_loaded_again_rejoins_its_run(page: Page, folder: Path) -> None:
    (folder / "go").unlink(missing_ok=True)
    say(page, "slow")
    shows(page, steps="plan", status="runs")
    page.reload()
    shows(page, heard="planned", steps="plan", status="runs")
    (folder / "go").touch()
    reports(page, "slow")
    shows(page, steps="plan draft publish")
    expect(page.locator("li")).to_have_count(2)
