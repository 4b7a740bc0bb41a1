"""The page in Chromium: the form of a task, how its times are shown, and what is said while it waits."""

import json
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.support.constellation import Constellation
from tests.support.tabs import PATIENCE_MS, Tab, asks
from tests.support.web import Web
from turnkeeper.constellation.delivery import outbox

pytestmark = [
    pytest.mark.process,
    pytest.mark.client,
    pytest.mark.sqlite_only("a form and its looks, whatever the store"),
]


@pytest.fixture(scope="module")
def constellation(unsupervised: Constellation) -> Constellation:
    return unsupervised


@pytest.fixture
def tab(browser: Browser, web: Web) -> Iterator[Tab]:
    context = browser.new_context(locale="en-GB")
    context.set_default_timeout(PATIENCE_MS)
    made = Tab(context.new_page(), web.origin)
    made.page.goto(f"{web.origin}/#token={web.token()}")
    made.page.wait_for_url("**/ui/")
    yield made
    context.close()
    assert made.complaints == [], "the console stays empty under the policy"


def test_a_task_is_given_its_graphs_input_and_follows_others_as_at_the_command_line(
    tab: Tab, constellation: Constellation
) -> None:
    constellation.create("collect", "--every", "10h")
    page = tab.go("/ui/new")
    page.get_by_label("Name").fill("sort")
    page.get_by_label("After other tasks").fill("collect, nothing-like-it")
    page.get_by_role("button", name="Show when it would run").click()
    warned = constellation.attempt(
        *("task-runner", "create", "sort", "--after", "collect,nothing-like-it", "--prompt", "x", "--dry-run"),
        *("--category", "catch-up-summary", "--channel", "general"),
    )
    assert "nothing-like-it" in warned.stderr
    expect(page.locator("#preview")).to_contain_text("nothing-like-it")
    page.get_by_label("After other tasks").fill("collect")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("alert")).to_contain_text("prompt: is required; say what the agent must do")
    page.get_by_text("Input of a graph of yours").click()
    field, options = page.get_by_label("Input, as a JSON object"), ("--category", "loop", "--channel", "general")
    for wrong in ("[1]", '{"topic": "soil"}'):
        field.fill(wrong)
        page.get_by_role("button", name="Show when it would run").click()
        said = constellation.attempt("task-runner", "create", "sort", "--on", "x", "--input", wrong, *options).stderr
        expect(page.get_by_role("alert")).to_contain_text(said.strip().removeprefix("error: "))
    given = {"messages": [{"role": "user", "content": "Sort the soil."}]}
    field.fill(json.dumps(given))
    page.get_by_role("button", name="Show when it would run").click()
    page.get_by_role("button", name="Create").click()
    page.wait_for_url("**/ui/tasks/sort")
    made = constellation.ask("task-runner", "show", "sort")
    assert (made["on"], made["filters"], made["input"]) == ("task.succeeded", ["after=collect"], given)
    assert made["prompt"] == "", "a graph may need none"
    expect(page.get_by_label("Input", exact=True)).to_contain_text("Sort the soil.")
    page.goto(f"{tab.origin}/ui/tasks/sort/edit")
    expect(page.get_by_label("After other tasks")).to_have_value("collect")
    page.get_by_label("After other tasks").fill("")
    page.get_by_label("Times").fill("every 3 hours")
    field.fill(json.dumps(given).replace("soil", "seeds"))
    page.get_by_role("button", name="Show what would change").click()
    expect(page.get_by_label("input, before and after").locator(".added")).to_contain_text("seeds")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("status")).to_contain_text("input")
    made = constellation.ask("task-runner", "show", "sort")
    assert (made["on"], made["filters"], made["every"]) == (None, [], "3h")
    assert "seeds" in str(made["input"])
    assert tab.complaints.pop().startswith("Failed to load resource"), "Chromium says that the answer was a 422"


def test_an_edit_of_far_times_fits_its_column_and_a_last_day_is_said_in_words(
    tab: Tab, constellation: Constellation
) -> None:
    zone = "America/Argentina/Buenos_Aires"
    constellation.create("month-end", "--cron", "0 18 L * *", "--tz", zone, "--prompt", "Close the books.")
    page = tab.go("/ui/tasks/month-end")
    expect(page.get_by_text("On the last day of each month at 18:00")).to_be_visible()
    page.get_by_role("link", name="Edit", exact=True).first.click()
    page.get_by_label("Times").fill("0 17 L * *")
    page.get_by_role("button", name="Show what would change").click()
    expect(page.locator("#preview")).to_contain_text("the schedule is then: On the last day of each month at 17:00")
    for width in (360, 800, 1280, 1400):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_timeline_that_leaves_fires_out_leads_to_a_shorter_time(tab: Tab, constellation: Constellation) -> None:
    constellation.create("dense", "--every", "5s", "--start", "1h", "--prompt", "Look.")
    page = tab.go("/ui/timeline")
    expect(page.locator(".note.warn")).to_contain_text("More than 1,000 fires")
    page.locator(".note.warn").get_by_role("link", name="a shorter time").click()
    page.wait_for_url("**/ui/timeline?span=6h")
    constellation.command("task-runner", "delete", "dense")


def test_an_open_conversation_says_that_a_task_waits_until_its_question_is_answered_elsewhere(
    tab: Tab, constellation: Constellation
) -> None:
    asked = asks(constellation, "shed", "Remember: the shed is locked")
    page = tab.go(f"/ui/conversations/{asked['channel']}")
    waits = page.locator("p.note", has=page.get_by_role("link", name="shed", exact=True))
    expect(waits).to_have_text("Task shed waits for you: decide.")
    expect(waits.get_by_role("link", name="decide")).to_have_attribute("href", "/ui/decisions")
    constellation.command("agent-runtime", "approvals", "approve", asked["interrupt_id"])
    expect(waits).to_have_count(0, timeout=PATIENCE_MS)


def test_an_approval_from_now_on_is_confirmed_with_the_exception_that_it_makes(
    tab: Tab, constellation: Constellation
) -> None:
    asked = asks(constellation, "cellar", "Remember: the cellar is dry.")
    page = tab.go("/ui/decisions")
    card = page.locator(f"[id='card-{asked['interrupt_id']}']")
    card.get_by_role("checkbox", name="from now on").check()
    card.get_by_role("button", name="Approve", exact=True).click()
    said = r"Approved: memory_put “.*”, asked by cellar\. The call runs now\. cellar makes this very call without a question"
    expect(page.get_by_role("status")).to_contain_text(re.compile(f"{said} from now on: standing exception [0-9]+\\."))


def test_today_says_what_is_paused_until_a_date_and_which_deliveries_fail(
    tab: Tab, constellation: Constellation
) -> None:
    constellation.create("journey", "--every", "1h", "--tz", "Europe/Berlin")
    constellation.command("task-runner", "pause", "journey", "--until", "2099-12-01T08:00:00Z", "--note", "away")
    config = constellation.home.config
    config.write_text(f"{config.read_text()}\n[delivery]\n")
    store = outbox.open_outbox(constellation.home)
    assert store is not None
    failed = outbox.Delivery(
        "a", "failure", outbox.WAITING, 0, 0, target="phone", body="{}", reason="status 500", tries=1
    )
    store.submit(lambda it: outbox.put(it, [failed])).result()
    store.close()
    page = tab.go("/ui/")
    paused = page.locator("section", has=page.get_by_role("heading", name="Paused until a date"))
    expect(paused.locator("li")).to_have_text("journey awayuntil Tuesday 1 Dec 2099, 09:00 CET")
    failing = "1 delivery to phone failed: status 500; they are tried again; see: turnkeeper deliver log --waiting"
    expect(page.get_by_role("status").filter(has_text="phone")).to_have_text(failing)
    assert failing in constellation.attempt("turnkeeper", "status").stderr
