"""The page in Chromium while a process behind it is killed or suspended: what a person still sees, and what is said."""

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.support.constellation import Constellation
from tests.support.machines import constellation_on, new_home
from tests.support.tabs import PATIENCE_MS, Tab, asks, chromium
from tests.support.web import Web, serving
from turnkeeper.constellation.supervisor.daemons import AGENT_RUNTIME, TASK_RUNNER, Daemon
from turnkeeper.storage.locking import holder_pid

pytestmark = [
    pytest.mark.process,
    pytest.mark.client,
    pytest.mark.sqlite_only("a process of this machine that ends or hangs, whatever its store"),
]
FORMER_WAIT_MS = 15_000  # a page waited 20 s for a suspended daemon; it now waits 2 s
COMPLAINT = re.compile(r"Failed to load resource|net::ERR_|the server responded with a status of 503")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as launched:
        yield launched


@pytest.fixture(scope="module")
def constellation(browser: Browser) -> Iterator[Constellation]:
    """Both daemons without a supervisor, so that what is killed stays dead until a test starts it again."""
    del browser  # where there is none, nothing is started
    with new_home() as home, constellation_on(None, home) as made:
        made.start()
        yield made


@pytest.fixture(scope="module")
def web(constellation: Constellation) -> Iterator[Web]:
    with serving(constellation.home) as made:
        yield made


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


@contextmanager
def suspended(constellation: Constellation, daemon: Daemon) -> Iterator[None]:
    """Stop a daemon's process in the middle of what it does, as a debugger or a full swap does."""
    pid = holder_pid(constellation.home, daemon.name)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


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
    expect(cards).to_have_count(4)  # two calls, and what both turns propose
    constellation.kill(AGENT_RUNTIME)
    expect(bar(page, AGENT_RUNTIME)).to_be_visible()
    expect(cards).to_have_count(4)
    expect(page.get_by_role("heading", name=re.compile(r"Decisions as of \d\d:\d\d"))).to_be_visible()
    expect(page.locator("nav[aria-label=Pages] .count")).to_have_text("4 waiting")
    for path, shown in (("/ui/", link), ("/ui/decisions", cards.first)):
        tab.go(path)
        expect(bar(page, AGENT_RUNTIME)).to_be_visible()
        expect(page.get_by_text("Nothing waits for you")).to_have_count(0)
        expect(shown).to_be_visible()
    tab.go("/ui/memory")
    expect(page.get_by_text("Not known: agent-runtime does not answer.")).to_be_visible()
    expect(page.get_by_text("Nothing is remembered")).to_have_count(0)
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
        for said in ("Nothing waits for you", "Everything ran as planned", "No task fires by itself"):
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
    gone = page.get_by_role("status").filter(has_text="The server of this page has not answered since")
    web.kill()
    expect(gone).to_be_visible()
    constellation.create("meanwhile", "--in", "5h")
    expect(page.get_by_role("link", name="meanwhile")).to_have_count(0)
    web.start()
    expect(gone).to_have_count(0)
    expect(page.get_by_role("link", name="meanwhile")).to_be_visible()
    tab.go("/ui/decisions")


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
