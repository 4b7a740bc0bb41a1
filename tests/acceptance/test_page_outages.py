"""The page in Chromium while a process behind it is killed or suspended: what a person still sees, and what is said."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect

from tests.support.constellation import Constellation, suspended
from tests.support.http_proxy import proxying
from tests.support.program import WEB
from tests.support.tabs import PATIENCE_MS, Tab, asks, decision
from tests.support.web import Web
from turnkeeper.clock import SystemClock
from turnkeeper.constellation.supervisor.daemons import AGENT_RUNTIME, TASK_RUNNER, Daemon
from turnkeeper.gateway.page.stores import outages

pytestmark = [
    pytest.mark.process,
    pytest.mark.client,
    pytest.mark.sqlite_only("a process of this machine that ends or hangs, whatever its store"),
]
FORMER_WAIT_MS = 15_000  # a page waited 20 s for a suspended daemon; it now waits 2 s
COMPLAINT = re.compile(
    r"Failed to load resource|htmx:error: Failed to fetch|net::ERR_|the server responded with a status of 503"
)


@pytest.fixture(scope="module")
def constellation(unsupervised: Constellation) -> Constellation:
    return unsupervised


@pytest.fixture
def context(browser: Browser, web: Web) -> Iterator[BrowserContext]:
    made = browser.new_context(locale="en-GB")
    made.set_default_timeout(PATIENCE_MS)
    page = made.new_page()
    page.goto(f"{web.origin}/#token={web.token()}")
    page.wait_for_url("**/ui/")
    page.close()
    yield made
    made.close()


@pytest.fixture
def tab(context: BrowserContext, web: Web) -> Iterator[Tab]:
    made = Tab(context.new_page(), web.origin)
    yield made
    made.page.close()
    assert [one for one in made.complaints if not COMPLAINT.search(one)] == []


def bar(page: Page, daemon: Daemon) -> Any:
    return page.get_by_role("status").filter(has_text=f"{daemon.name} has not answered since")


def test_a_killed_runtime_is_said_at_once_and_what_was_known_of_it_stays_with_its_time(
    tab: Tab, constellation: Constellation
) -> None:
    one, _ = [asks(constellation, f"killed-{number}", "Remember: the code is 4711") for number in range(2)]
    page = tab.go("/ui/")
    link = page.locator(f"[href$='card-{one['interrupt_id']}']")
    expect(link).to_be_visible()
    page = tab.go("/ui/decisions")
    cards = page.locator(".card.waits")
    expect(cards).to_have_count(3)  # two calls, and one with what both turns propose
    constellation.kill(AGENT_RUNTIME)
    expect(bar(page, AGENT_RUNTIME)).to_be_visible()
    expect(cards).to_have_count(3)
    expect(page.get_by_role("heading", name=re.compile(r"Decisions 4 as of \d\d:\d\d"))).to_be_visible()
    expect(page.locator("nav[aria-label=Pages] .count")).to_have_text("4 waiting")
    for path, shown in (("/ui/", link), ("/ui/decisions", cards.first)):
        tab.go(path)
        expect(bar(page, AGENT_RUNTIME)).to_be_visible()
        expect(page.get_by_text("Nothing waits for you")).to_have_count(0)
        expect(shown).to_be_visible()
    tab.go("/ui/memory")
    expect(page.get_by_text("Not known: agent-runtime does not answer.")).to_be_visible()
    expect(page.get_by_text("Nothing is remembered")).to_have_count(0)
    expect(page.get_by_role("heading", name="Memory", exact=True)).to_be_visible()
    constellation.start()
    expect(bar(page, AGENT_RUNTIME)).to_have_count(0)
    expect(page.get_by_text("Nothing is remembered")).to_be_visible()


def test_what_is_unknown_after_a_start_of_the_gateway_is_not_said_to_be_empty(
    tab: Tab, constellation: Constellation, web: Web
) -> None:
    for daemon in (AGENT_RUNTIME, TASK_RUNNER):
        constellation.kill(daemon)
    with serving_anew(web):
        page = tab.go("/ui/")
        for daemon in (AGENT_RUNTIME, TASK_RUNNER):
            expect(bar(page, daemon)).to_contain_text("Nothing of it is known here.")
        for said in ("Nothing waits for you", "Everything ran as planned", "No task fires by itself", "went wrong"):
            expect(page.get_by_text(said)).to_have_count(0)
        expect(page.get_by_text("Not known: task-runner does not answer.")).to_have_count(2)
        expect(page.locator("nav[aria-label=Pages] .count")).to_have_text("? waiting")
    constellation.start()
    expect(bar(page, AGENT_RUNTIME)).to_have_count(0)
    expect(bar(page, TASK_RUNNER)).to_have_count(0)


def test_an_open_tab_says_that_the_gateway_was_killed_and_is_logged_in_when_it_is_back(
    tab: Tab, constellation: Constellation, web: Web
) -> None:
    page = tab.go("/ui/tasks")
    gone = page.get_by_role("status").filter(has_text="Turnkeeper has not answered since")
    health = page.get_by_text("answers", exact=True)
    expect(health).to_have_count(2)
    web.kill()
    expect(gone).to_be_visible()
    expect(gone.locator("time")).to_have_text(re.compile(r"^\d\d:\d\d:\d\d [A-Z]{2,}"))  # with the zone
    expect(health.first).to_be_hidden()
    constellation.create("meanwhile", "--in", "5h")
    expect(page.get_by_role("link", name="meanwhile")).to_have_count(0)
    web.start()
    expect(gone).to_have_count(0)
    expect(page.get_by_role("link", name="meanwhile")).to_be_visible()
    expect(health.first).to_be_visible()
    tab.go("/ui/decisions")


def test_an_open_tab_says_within_three_seconds_that_the_gateway_hangs_and_continues_when_it_does_not(
    tab: Tab, constellation: Constellation
) -> None:
    page = tab.go("/ui/tasks")
    gone = page.get_by_role("status").filter(has_text="Turnkeeper has not answered since")
    seen = page.evaluate_handle(
        """() => { const seen = []; new MutationObserver(() => seen.push(Date.now())).observe(
        document.getElementById('gone'), {attributeFilter: ['hidden']}); return seen; }"""
    )
    with suspended(constellation, WEB):
        stopped_ms = page.evaluate("Date.now()")
        expect(gone).to_be_visible()
        assert seen.json_value()[0] - stopped_ms < 3000
        expect(page.get_by_text("answers", exact=True).first).to_be_hidden()
        constellation.create("while-it-hung", "--in", "5h")
    expect(gone).to_have_count(0)
    expect(page.get_by_role("link", name="while-it-hung")).to_be_visible()
    expect(page.get_by_text("answers", exact=True).first).to_be_visible()


def note(place: Page | Locator, role: Any, text: str) -> Locator:
    return place.get_by_role(role).filter(has_text=text).first


def card_of(page: Page, asked: dict[str, Any]) -> Locator:
    return page.locator(f"[id='card-{asked['interrupt_id']}']")


def approve(page: Page, asked: dict[str, Any]) -> Locator:
    """Click on Approve, and check that the button shows at once that it works."""
    button = card_of(page, asked).get_by_role("button", name="Approve", exact=True)
    assert button.evaluate("(button) => { button.click(); return button.getAttribute('aria-busy'); }") == "true"
    return button


def test_a_decision_that_a_suspended_runtime_does_not_answer_is_said_to_be_unknown_and_then_what_became_of_it(
    tab: Tab, constellation: Constellation
) -> None:
    asked = asks(constellation, "held-up", "Remember: the code is 4712")
    page = tab.go("/ui/decisions")
    with suspended(constellation, AGENT_RUNTIME):
        approve(page, asked)
        expect(note(page, "alert", "Your decision may still be recorded: memory_put")).to_be_visible()
        expect(bar(page, AGENT_RUNTIME)).to_be_visible()
        tab.go("/ui/tasks")
        expect(note(page, "alert", "may still be recorded")).to_be_visible()
    expect(note(page, "status", "Your decision was recorded. Approved: memory_put")).to_be_visible()
    assert decision(constellation, asked) == "approve"


def test_a_decision_that_a_runtime_did_not_get_before_it_was_killed_is_said_not_to_be_recorded(
    tab: Tab, constellation: Constellation
) -> None:
    asked = asks(constellation, "cut-off", "Remember: the code is 4713")
    page = tab.go("/ui/decisions")
    with suspended(constellation, AGENT_RUNTIME):
        approve(page, asked)
        expect(note(page, "alert", "may still be recorded")).to_be_visible()
        constellation.kill(AGENT_RUNTIME)
    constellation.start()
    expect(note(page, "alert", "Your decision was not recorded, and this still waits for you")).to_be_visible()
    assert decision(constellation, asked) in {"", None}
    constellation.kill(AGENT_RUNTIME)
    approve(page, asked)
    expect(note(page, "alert", "Not decided: agent-runtime cannot be reached")).to_be_visible()
    constellation.start()
    expect(bar(page, AGENT_RUNTIME)).to_have_count(0)
    approve(page, asked)
    expect(note(page, "status", "Approved: memory_put")).to_be_visible()
    assert decision(constellation, asked) == "approve"


def test_a_button_says_that_the_gateway_was_killed_and_the_page_then_says_that_nothing_was_recorded(
    tab: Tab, constellation: Constellation, web: Web
) -> None:
    asked = asks(constellation, "no-server", "Remember: the code is 4714")
    page = tab.go("/ui/decisions")
    card = card_of(page, asked)
    web.kill()
    card.get_by_role("button", name="Approve", exact=True).click()
    expect(note(card, "status", "Turnkeeper does not answer")).to_be_visible()
    web.start()
    expect(note(card, "status", "Your decision was not recorded: decide again")).to_be_visible()
    approve(page, asked)
    expect(note(page, "status", "Approved: memory_put")).to_be_visible()


@pytest.fixture
def proxied(browser: Browser, web: Web) -> Iterator[Tab]:
    """A tab of a browser whose requests all go through a proxy, which answers for a gateway that is down."""
    with proxying() as address:
        made = browser.new_context(locale="en-GB", proxy={"server": address, "bypass": "<-loopback>"})
        made.set_default_timeout(PATIENCE_MS)
        tab = Tab(made.new_page(), web.origin)
        tab.page.goto(f"{web.origin}/#token={web.token()}")
        tab.page.wait_for_url("**/ui/")
        yield tab
        made.close()


def test_a_proxys_answer_for_a_gateway_that_is_down_is_shown_as_none_and_loses_nothing(
    proxied: Tab, constellation: Constellation, web: Web
) -> None:
    asked = asks(constellation, "behind-a-proxy", "Remember: the code is 4716")
    page = proxied.go("/ui/decisions")
    card = card_of(page, asked)
    gone = page.get_by_role("status").filter(has_text="Turnkeeper has not answered since")
    card.get_by_text("Reject…").click()
    card.get_by_label("Reason, which the agent reads").fill("not today")
    web.kill()
    expect(gone).to_be_visible()
    card.get_by_role("button", name="Reject", exact=True).click()
    expect(note(card, "status", "Turnkeeper does not answer")).to_be_visible()
    expect(card.get_by_label("Reason, which the agent reads")).to_have_value("not today")
    page.evaluate("htmx.trigger(document.getElementById('content'), 'refresh')")  # as a change would, just before
    expect(page.get_by_role("heading", name="502 Bad Gateway")).to_have_count(0)
    expect(card).to_be_visible()
    web.start()
    expect(note(card, "status", "Your decision was not recorded: decide again")).to_be_visible()
    expect(gone).to_have_count(0)
    card.get_by_role("button", name="Reject", exact=True).click()
    expect(note(page, "status", "Rejected: memory_put")).to_contain_text("Reason: “not today”")
    assert decision(constellation, asked) == "reject"


def test_a_button_says_when_the_gateway_itself_is_suspended(tab: Tab, constellation: Constellation) -> None:
    asked = asks(constellation, "slow-server", "Remember: the code is 4715")
    page = tab.go("/ui/decisions")
    with suspended(constellation, WEB):
        approve(page, asked)
        expect(note(card_of(page, asked), "status", "No answer came within 2 seconds")).to_be_visible()
    expect(note(page, "status", "Approved: memory_put")).to_be_visible()


def test_a_message_that_is_not_answered_stays_in_its_field_and_reaches_the_agent_once(
    tab: Tab, constellation: Constellation
) -> None:
    page = tab.go("/ui/conversations/letters")
    field, send = page.get_by_role("textbox", name="Message to the agent"), page.get_by_role("button", name="Send")
    with suspended(constellation, AGENT_RUNTIME):
        field.fill("search: compost")
        send.click()
        expect(note(page, "alert", "You can send it again: the agent gets it once.")).to_be_visible()
        expect(field).to_have_value("search: compost")
        expect(send).not_to_have_attribute("aria-busy", "true")  # a renewed page may show the alert before the answer
    send.click()
    expect(note(page, "status", "Sent")).to_be_visible()
    expect(field).to_have_value("")
    expect(page.locator(".turn .state").first).to_have_text("succeeded")
    assert len(constellation.conversation("letters")) == 1


def test_a_change_of_a_task_is_shown_as_it_became_when_a_suspended_runner_answers_again(
    tab: Tab, constellation: Constellation
) -> None:
    constellation.create("slow-task", "--every", "1h")
    page = tab.go("/ui/tasks/slow-task")
    with suspended(constellation, TASK_RUNNER):
        page.keyboard.press("p")
        page.get_by_role("button", name="Pause", exact=True).click()
        expect(note(page, "alert", "task-runner did not answer within 2 seconds")).to_be_visible()
        tab.page.goto(f"{tab.origin}/ui/tasks/slow-task/edit")
        page.get_by_label("Times").fill("2h")
        page.get_by_role("button", name="Show what would change").click()
        expect(page.locator(".slow").last).to_contain_text("task-runner did not answer within 2 seconds")
        expect(page.get_by_label("Times")).to_have_value("2h")
    tab.go("/ui/tasks/slow-task")
    shown = page.locator(".head .state").first
    constellation.until(
        "the present state",
        lambda: shown.inner_text() == constellation.ask("task-runner", "show", "slow-task")["state"],
    )


@contextmanager
def serving_anew(web: Web) -> Iterator[None]:
    web.kill()
    web.start()
    yield


@pytest.mark.parametrize("daemon", [AGENT_RUNTIME, TASK_RUNNER], ids=lambda daemon: daemon.name)
def test_a_suspended_daemon_holds_up_no_page_and_an_open_tab_says_so(
    tab: Tab, constellation: Constellation, daemon: Daemon
) -> None:
    page = tab.go("/ui/")
    expect(bar(page, daemon)).to_have_count(0)
    with suspended(constellation, daemon):
        page.goto(f"{tab.origin}/ui/timeline", timeout=FORMER_WAIT_MS)
        expect(bar(page, daemon)).to_be_visible()
    expect(bar(page, daemon)).to_have_count(0)
    with suspended(constellation, daemon):
        expect(bar(page, daemon)).to_be_visible()
    expect(bar(page, daemon)).to_have_count(0)


def test_the_timeline_shows_when_the_runtime_was_away_though_nothing_was_due_and_says_why_on_a_click(
    tab: Tab, constellation: Constellation
) -> None:
    constellation.kill(AGENT_RUNTIME)
    page = tab.go("/ui/timeline?span=10m")
    expect(page.get_by_role("link", name=re.compile("agent-runtime: .*does not answer"))).to_be_visible()
    constellation.until("an outage in the ledger", lambda: recorded(constellation) > 1)
    constellation.start()
    expect(bar(page, AGENT_RUNTIME)).to_have_count(0)
    tab.go("/ui/timeline?span=10m")
    page.get_by_role("link", name=re.compile("agent-runtime: .*agent runtime away")).last.click()
    expect(page.locator("tr:target")).to_contain_text("agent runtime away")


def recorded(constellation: Constellation) -> float:
    """Return the seconds of the newest recorded outage of the runtime that lasts."""
    now = SystemClock().now()
    found = [one for one in outages(constellation.home, "", now) if one.daemon == AGENT_RUNTIME.name and one.end == now]
    return max(((one.end - one.begin).total_seconds() for one in found), default=0)
