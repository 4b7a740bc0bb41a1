"""The page in Chromium, over a real constellation: what a person sees and does, and what the browser complains of."""

import itertools
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.support.constellation import Constellation
from tests.support.machines import TwoMachines, constellation_on, new_home
from tests.support.postgres import Server
from tests.support.tabs import PATIENCE_MS, Tab, absent, asks, decision
from tests.support.web import ROOT, Web, configure, free_port, settings
from turnkeeper.gateway.page import stores

pytestmark = [pytest.mark.process, pytest.mark.client]
LOOKS = pytest.mark.sqlite_only("how a page looks, whatever its store")
LINES = """part => {
  const range = document.createRange()
  range.selectNodeContents(part)
  return new Set(Array.from(range.getClientRects(), one => one.top)).size
}"""  # the number of lines that an element's text takes
AXE = ROOT / "tests" / "clients" / "node_modules" / "axe-core" / "axe.min.js"
RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")
PAGES = (
    *("/ui/", "/ui/decisions", "/ui/conversations", "/ui/conversations/desk", "/ui/tasks", "/ui/tasks/daily", "/ui/tasks/daily/edit", "/ui/new"),
    *("/ui/tasks/daily/slot", "/ui/loops", "/ui/timeline", "/ui/timeline?span=1m", "/ui/timeline?span=1y", "/ui/pages", "/ui/pages/garden", "/ui/memory", "/ui/find", "/ui/tokens", "/ui/machines"),
)  # fmt: skip


@pytest.fixture(scope="module")
def constellation(browser: Browser, postgres_server: Server | None) -> Iterator[Constellation]:
    """Both daemons and the gateway, started once, with a few tasks and pages."""
    del browser  # where there is none, nothing is started
    with new_home() as home, constellation_on(postgres_server, home) as made:
        configure(home, settings(free_port()))
        made.command("turnkeeper", "up")
        made.start()
        made.command("agent-runtime", "workspace", "import", str(ROOT / "examples" / "garden"))
        made.create(
            "daily",
            "--cron",
            "0 9 * * *",
            "--tz",
            "Europe/Berlin",
            "--prompt",
            "Sum up <b>the mail</b> of **yesterday**.",
        )
        yield made


@pytest.fixture(scope="module")
def context(browser: Browser, constellation: Constellation) -> Iterator[BrowserContext]:
    """A browser that is logged in, as `turnkeeper web open` does it."""
    made = browser.new_context(locale="en-GB")
    made.set_default_timeout(PATIENCE_MS)
    page = made.new_page()
    address = constellation.command("turnkeeper", "web", "open", "--print").strip()
    page.goto(address.partition("#")[0])  # an open tab that is not logged in, into which the address is pasted
    page.goto(address)
    page.wait_for_url("**/ui/")
    assert "token" not in page.url
    expect(page.get_by_role("heading", name="Today")).to_be_visible()
    page.goto(address.partition("#")[0])
    page.wait_for_url("**/ui/")
    page.goto(address)
    page.wait_for_url("**/ui/login")
    expect(page.get_by_role("alert")).to_contain_text("was used before")
    page.close()
    yield made
    made.close()


@pytest.fixture
def tab(context: BrowserContext, constellation: Constellation) -> Iterator[Tab]:
    page = context.new_page()
    made = Tab(page, web_of(constellation).origin)
    yield made
    page.close()
    assert made.complaints == [], "the console stays empty under the policy"


def web_of(constellation: Constellation) -> Web:
    port = int(constellation.home.config.read_text().rpartition("port = ")[2].split()[0])
    return Web(constellation.home, port)


def test_the_button_that_sends_a_message_does_not_move_while_a_turn_appears(
    tab: Tab, constellation: Constellation
) -> None:
    page = tab.go("/ui/conversations/still")
    send = page.get_by_role("button", name="Send")
    before = send.bounding_box()
    constellation.create("still", "--in", "1s", "--prompt", "search: compost", channel="still")
    expect(page.locator(".turn .state").first).to_have_text("succeeded", timeout=PATIENCE_MS)
    assert send.bounding_box() == before, "a click at that moment would be lost"


def test_a_conversation_grows_while_a_task_fires_and_its_question_is_answered_in_place(
    tab: Tab, constellation: Constellation
) -> None:
    page = tab.go("/ui/conversations/desk")
    text = "Remember: <script>document.title = 'owned'</script> the gate code is 4711 " + "and more " * 20
    constellation.create("errand", "--in", "1s", "--thread", "errand", "--prompt", text, channel="desk")
    turn = page.locator(".turn", has=page.get_by_role("link", name="errand", exact=True)).first
    expect(turn).to_be_visible(timeout=PATIENCE_MS)
    card = turn.locator(".card.waits").first
    expect(card.get_by_text("gate code is 4711").first).to_be_visible(timeout=PATIENCE_MS)
    assert page.title().startswith("desk"), "what an agent wrote is shown, and never run"
    card.get_by_role("button", name="Approve", exact=True).click()
    expect(page.get_by_role("status")).to_contain_text("Approved: memory_put")
    expect(page.get_by_role("status")).to_contain_text("asked by errand. The call runs now.")
    expect(turn.locator(".state").first).to_have_text("succeeded")
    page.get_by_role("textbox", name="Message to the agent").fill("search: compost")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("status")).to_contain_text("Sent")
    expect(page.locator(".said.agent", has_text="compost").last).to_be_visible(timeout=PATIENCE_MS)


@pytest.mark.sqlite_only("it says it in milliseconds, in which no other machine hears it: test_follow_conversation.py")
def test_what_an_agent_says_is_shown_while_it_says_it(tab: Tab, constellation: Constellation) -> None:
    constellation.command("agent-runtime", "send", "talk", "hello", "--wait")
    page = tab.go("/ui/conversations/talk")
    seen = page.evaluate_handle(
        """() => { const seen = []; new MutationObserver(() => { for (const one of document.querySelectorAll('.speech .words'))
        if (one.textContent && seen.at(-1) !== one.textContent) seen.push(one.textContent); }).observe(document.body,
        {subtree: true, childList: true, characterData: true}); return seen; }"""
    )
    page.get_by_role("textbox", name="Message to the agent").fill("search: compost")
    page.evaluate("document.querySelector('.composer').setAttribute('target', 'elsewhere')")  # this document stays
    constellation.command("agent-runtime", "send", "talk", "search: compost")
    expect(page.locator(".turn")).to_have_count(2)
    expect(page.locator(".turn").last.locator(".state").first).to_have_text("succeeded")
    pieces = seen.json_value()
    assert len(pieces) > 2
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(pieces))
    expect(page.get_by_role("textbox", name="Message to the agent")).to_have_value("search: compost")


def test_decisions_are_made_by_keys_one_at_a_time_and_for_what_was_shown_alone(
    tab: Tab, constellation: Constellation
) -> None:
    edited, rejected, stale = (
        asks(constellation, name, f"Remember: note of {name}") for name in ("edited", "rejected", "stale")
    )
    page = tab.go("/ui/decisions")
    assert page.get_by_role("button", name="Approve all").count() == 0

    def choose(one: dict[str, Any]) -> None:
        for _ in range(20):
            page.keyboard.press("j")
            if page.evaluate("document.activeElement.id") == f"card-{one['interrupt_id']}":
                return
        raise AssertionError("no key leads to it")

    choose(edited)
    page.keyboard.press("e")
    page.locator("textarea:focus").fill('{"tier": "channel", "text": "changed"}')
    page.locator(f"[id='card-{edited['interrupt_id']}']").get_by_role("button", name="Approve with these").click()
    expect(page.get_by_role("status")).to_contain_text("Approved with your arguments")
    assert decision(constellation, edited) == "edit"
    page.reload()
    menu = page.locator("nav[aria-label=Pages] .count")
    waiting = int(menu.inner_text().split()[0])
    choose(rejected)
    card = page.locator(f"[id='card-{rejected['interrupt_id']}']")
    expect(card.get_by_label("Reason, which the agent reads")).to_be_hidden()
    page.keyboard.press("r")
    page.keyboard.type("not today")
    page.keyboard.press("Enter")
    expect(page.get_by_role("status")).to_contain_text("Rejected: memory_put")
    expect(page.get_by_role("status")).to_have_class("note warn")  # what was refused does not look like what goes on
    expect(page.get_by_role("status")).to_contain_text("asked by rejected. Reason: “not today”. The agent is told so")
    expect(menu).to_have_text(f"{waiting - 1} waiting")
    found = constellation.ask("agent-runtime", "approvals", "show", rejected["interrupt_id"])
    assert (found["decision"], found["message"]) == ("reject", "not today")
    assert found["decided_by"].startswith("gateway/web")
    card = page.locator(f"[id='card-{stale['interrupt_id']}']")
    # In one step: between two the page may show the card anew, as it was.
    card.get_by_role("button", name="Approve", exact=True).evaluate(
        "(button) => { button.form.elements.args_hash.value = '0'.repeat(64); button.click(); }"
    )
    expect(page.get_by_role("alert")).to_contain_text("the arguments differ from those that were shown")
    assert decision(constellation, stale) in {"", None}


def test_made_decisions_are_listed_newest_first_with_their_time_origin_and_reason(
    tab: Tab, constellation: Constellation
) -> None:
    early, late = (asks(constellation, name, f"Remember: note of {name}") for name in ("early", "late"))
    constellation.command("agent-runtime", "approvals", "resolve", early["interrupt_id"], "--reject", "too soon")
    page = tab.go("/ui/decisions")
    page.locator(f"[id='card-{late['interrupt_id']}']").get_by_role("button", name="Approve", exact=True).click()
    expect(page.get_by_role("status")).to_contain_text("Approved: memory_put")
    rows = page.locator("section", has=page.get_by_role("heading", name="Decided")).locator("tbody tr")
    for row, name, said, origin in ((0, "late", "approved", "the page"), (1, "early", "rejected", "the command line")):
        expect(rows.nth(row).locator("td[data-label=About]")).to_have_text(f"{name} memory_put")
        expect(rows.nth(row).locator(".state")).to_have_text(said)
        expect(rows.nth(row).locator("td[data-label=By]")).to_have_text(origin)
        expect(rows.nth(row).locator("time")).to_be_visible()
    expect(rows.nth(1)).to_contain_text("too soon")


@LOOKS
def test_of_a_made_decision_a_long_name_and_the_origin_each_stay_on_one_line(
    tab: Tab, constellation: Constellation
) -> None:
    name = "remember-the-code-of-the-gate-and-of-the-cellar"
    asked = asks(constellation, name, "Remember: the gate code is 4711")["interrupt_id"]
    constellation.command("agent-runtime", "approvals", "resolve", asked, "--reject", "too soon")
    page = tab.go("/ui/decisions")
    page.set_viewport_size({"width": 1100, "height": 800})
    row = page.locator("tbody tr", has=page.get_by_role("link", name=name, exact=True))
    expect(row.get_by_text("the command line")).to_be_visible()
    for part in (row.get_by_role("link", name=name, exact=True), row.get_by_text("the command line")):
        assert part.evaluate(LINES) == 1
    assert page.evaluate("document.documentElement.scrollWidth") <= 1100


def test_several_proposals_are_decided_at_once_and_only_those_that_are_ticked(
    tab: Tab, constellation: Constellation
) -> None:
    for name in ("first", "second", "third"):
        constellation.create(name, "--in", "1s", "--prompt", "Summarise the garden.", channel=f"papers-{name}")
        constellation.until_outcome(name, "succeeded")
    listed = constellation.ask("agent-runtime", "candidates", "list")
    ids = {one["task_name"]: one["candidate_id"] for one in listed}
    page = tab.go("/ui/decisions")
    box = page.locator("#card-proposals")
    boxes = box.locator("input[type=checkbox]")
    expect(boxes).to_have_count(len(listed))
    assert not any(one.is_checked() for one in boxes.all()), "nothing is ticked for the person"
    box.focus()
    page.keyboard.press("a")
    expect(page.get_by_role("alert")).to_contain_text("nothing is ticked")
    for name in ("first", "second"):
        box.locator(f"[name='pick-{ids[name]}']").focus()
        page.keyboard.press("Space")
    page.keyboard.press("a")
    expect(page.get_by_role("status")).to_contain_text("Accepted: 2 proposals: Catch-up for papers-first")
    rest = {one["candidate_id"] for one in constellation.ask("agent-runtime", "candidates", "list")}
    assert rest == {one["candidate_id"] for one in listed} - {ids["first"], ids["second"]}
    card = page.locator(f".card.waits:has([name='pick-{ids['third']}']), #card-{ids['third']}").first
    if (pick := card.locator(f"[name='pick-{ids['third']}']")).count():
        pick.check()
    card.focus()
    page.keyboard.press("r")
    page.keyboard.type("too short")
    page.keyboard.press("Enter")
    expect(page.get_by_role("status")).to_contain_text("Reason: “too short”.")
    found = constellation.ask("agent-runtime", "candidates", "show", ids["third"])
    assert (found["lifecycle"], found["note"]) == ("rejected", "too short")


def test_an_edit_shows_old_and_new_times_before_it_is_saved_and_only_of_what_was_looked_at(
    tab: Tab, constellation: Constellation
) -> None:
    constellation.create("weekly", "--cron", "0 9 * * 1", "--tz", "Europe/Berlin")
    page = tab.go("/ui/tasks/weekly/edit")
    page.get_by_label("Times").fill("30 7 * * 1")
    page.get_by_role("button", name="Show what would change").click()
    row = page.locator("tbody tr").first
    expect(row.locator("time").nth(0)).to_contain_text("09:00")
    difference = page.get_by_label("times, before and after")
    expect(difference.locator(".removed")).to_contain_text("0 9 * * 1")
    expect(difference.locator(".added")).to_contain_text("30 7 * * 1")
    expect(row.locator("time").nth(1)).to_contain_text("07:30")
    assert "UTC" in str(row.locator("time").nth(0).get_attribute("title"))
    assert constellation.ask("task-runner", "show", "weekly")["revision"] == 1, "nothing was saved"
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("status")).to_contain_text("Saved: schedule changed")
    page.goto(f"{tab.origin}/ui/tasks/weekly/edit")
    constellation.command("task-runner", "edit", "weekly", "--prompt", "Something else.")
    page.get_by_label("Times").fill("0 8 * * 1")
    page.get_by_role("button", name="Show what would change").click()
    expect(page.get_by_role("alert")).to_contain_text("was edited in the meantime")
    assert tab.complaints.pop().startswith("Failed to load resource"), "Chromium says that the answer was a 409"


def test_a_task_is_created_after_its_times_were_shown_then_run_and_followed_deleted_and_brought_back(
    tab: Tab, constellation: Constellation
) -> None:
    page = tab.go("/ui/")
    page.keyboard.press("n")
    page.wait_for_url("**/ui/new")
    expect(page.get_by_label("Name")).to_be_focused()
    page.get_by_label("Name").fill("fresh")
    page.get_by_label("Prompt").fill("Summarise the garden.")
    page.get_by_label("Times").fill("0 8 * * 1-5")
    page.get_by_label("Time zone").fill("Europe/Berlin")
    page.get_by_label("Category").select_option("catch-up-summary")
    page.get_by_label("Channel").fill("fresh-news")
    page.get_by_role("button", name="Show when it would run").click()
    preview = page.locator("#preview")
    expect(preview).to_contain_text("Monday to Friday at 08:00")
    expect(preview.locator(".times li")).to_have_count(3)
    expect(preview).to_contain_text("before any other call")
    assert all(task["name"] != "fresh" for task in constellation.ask("task-runner", "list")), "nothing was created"
    page.get_by_role("button", name="Create").click()
    page.wait_for_url("**/ui/tasks/fresh")
    expect(page.get_by_role("status")).to_contain_text("fresh is created")
    assert constellation.ask("task-runner", "show", "fresh")["schedule"] == "0 8 * * 1-5"
    page.get_by_label("More", exact=True).click()
    page.get_by_role("button", name="Run now and follow").click()
    page.wait_for_url("**/ui/conversations/fresh-news")
    expect(page.locator(".turn", has_text="run by hand").locator(".state").first).to_have_text("succeeded")
    page.goto(f"{tab.origin}/ui/tasks/fresh")
    page.get_by_label("More", exact=True).click()
    page.get_by_role("button", name="Delete").click()
    page.wait_for_url("**/ui/tasks")
    expect(page.get_by_role("link", name="fresh", exact=True)).to_have_count(0)
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_role("status")).to_contain_text("fresh is back, as it was")
    assert constellation.ask("task-runner", "show", "fresh")["state"] == "active"


def test_the_palette_finds_by_name_and_does_what_the_page_can_do_by_keys_alone(
    tab: Tab, constellation: Constellation
) -> None:
    page = tab.go("/ui/")
    page.keyboard.press("Control+k")
    palette = page.get_by_role("dialog", name="Find or do")
    expect(palette.get_by_role("combobox")).to_be_focused()
    expect(palette.get_by_role("option", name="garden")).to_have_count(1)
    page.keyboard.type("task dail")
    expect(palette.get_by_role("option")).to_have_count(1)
    faults = violations(page, AXE.read_text(), RULES) if AXE.exists() else []
    assert faults == []
    page.keyboard.press("Enter")
    page.wait_for_url("**/ui/tasks/daily")
    page.keyboard.press("Control+k")
    page.keyboard.type("do run now")
    page.keyboard.press("Enter")
    expect(page.get_by_role("status")).to_contain_text("daily fires now")
    page.wait_for_load_state()  # by then the scripts listen
    page.keyboard.press("Control+k")
    page.keyboard.type("go timeline")
    page.keyboard.press("Enter")
    page.wait_for_url("**/ui/timeline")
    page.wait_for_load_state()
    page.keyboard.press("/")
    expect(palette).to_be_visible()
    page.keyboard.press("Escape")
    expect(palette).to_be_hidden()


def test_each_list_is_filtered_by_its_search_field_also_without_scripts(tab: Tab, constellation: Constellation) -> None:
    page = tab.go("/ui/conversations")
    constellation.command("agent-runtime", "send", "attic", "hello", "--wait")
    expect(page.get_by_role("link", name="attic")).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("ATT")
    page.keyboard.press("Enter")
    page.wait_for_url("**/ui/conversations?q=ATT")
    expect(page.locator("tbody tr")).to_have_count(1)
    for path in ("/ui/pages?q=garden", "/ui/find?q=page+garden"):
        page.goto(f"{tab.origin}{path}")
        expect(page.get_by_role("link", name=re.compile("garden", re.IGNORECASE)).first).to_be_visible()
    expect(page.locator("[data-found] li", has_text="Tasks")).to_have_count(0)


def test_times_tick_and_tokens_stand_by_day_and_by_task(tab: Tab, constellation: Constellation) -> None:
    constellation.create("spends", "--in", "1s", "--prompt", "Summarise the garden.", channel="spends")
    constellation.until_outcome("spends", "succeeded")
    page = tab.go("/ui/")
    tokens = page.locator("section", has=page.get_by_role("heading", name="Tokens today"))
    expect(tokens.locator("tr", has_text="all")).to_be_visible()
    tokens.get_by_role("link", name="Earlier days").click()
    page.wait_for_url("**/ui/tokens")
    expect(page.locator(".chart g")).to_have_count(14)
    page.get_by_role("link", name="spends").click()
    page.wait_for_url("**/ui/tokens?days=14&task=spends")
    days = page.locator("section", has=page.get_by_role("heading", name="Days of spends")).locator("tbody tr")
    expect(days).to_have_count(1)
    (turn,) = (one for one in constellation.ask("agent-runtime", "turns", "list") if one["task_name"] == "spends")
    expect(days.locator("td[data-label=read]")).to_have_text(f"{turn['tokens_in']:,}")
    models = page.locator("section", has=page.get_by_role("heading", name="Models of spends")).locator("tbody tr")
    expect(models).to_have_count(1)
    expect(models).to_contain_text("offline")
    page.goto(f"{tab.origin}/ui/pages")
    page.evaluate(
        """() => { document.getElementById('content').dataset.topics = '';  // so that only the clock changes it
        document.querySelector('[data-since]').setAttribute('datetime', '2020-01-01T00:00:00Z'); }"""
    )
    expect(page.locator("[data-since]").first).to_have_text(re.compile(r"^\d{4,}d .*ago$"))


def test_the_timeline_moves_and_zooms_by_keys_and_a_lane_has_no_overlaps(
    tab: Tab, constellation: Constellation
) -> None:
    constellation.create("often", "--every", "1s", "--max-fires", "5")
    constellation.until_outcome("often", "succeeded", 5)
    page = tab.go("/ui/timeline")
    lane = page.locator(".lane", has_text="often")
    expect(lane.locator("rect.merged.fired")).to_have_count(1)
    expect(lane.locator(".mark.fired")).to_have_count(0)
    page.keyboard.press("+")
    page.wait_for_url("**/ui/timeline?span=6h")
    page.wait_for_load_state()
    page.keyboard.press("ArrowLeft")
    page.wait_for_url("**/ui/timeline?span=6h&move=-1")
    page.wait_for_load_state()
    expect(page.locator("line.now")).to_have_count(0)
    page.keyboard.press("0")
    page.wait_for_url("**/ui/timeline?span=6h")
    expect(page.locator("line.now").first).to_be_attached()
    page.goto(f"{tab.origin}/ui/timeline?span=1y&move=-999")
    expect(page.locator(".empty")).to_contain_text("Nothing fired in this time")


def test_a_new_task_that_cannot_be_is_refused_with_its_reason_and_keeps_what_was_typed(
    tab: Tab, constellation: Constellation
) -> None:
    page = tab.go("/ui/new")
    page.get_by_label("Name").fill("odd")
    page.get_by_label("Prompt").fill("Look.")
    page.get_by_label("Times").fill("99 8 * * *")
    page.get_by_role("button", name="Show when it would run").click()
    expect(page.get_by_role("alert")).to_contain_text("cron")
    expect(page.get_by_label("Times")).to_have_value("99 8 * * *")
    expect(page.get_by_role("button", name="Create")).to_have_count(0)


def test_times_typed_in_words_are_shown_while_one_types_with_what_the_task_would_ask(
    tab: Tab, constellation: Constellation
) -> None:
    page = tab.go("/ui/new")
    preview = page.locator("#preview")
    expect(preview).to_contain_text("before any other call")
    page.get_by_label("Times").fill("every other tuesday at 9")
    expect(preview).to_contain_text("'every other tuesday at 9' is not a schedule; write for example: weekdays at 9:00")
    expect(page.get_by_role("button", name="Create")).to_have_count(0)
    page.get_by_label("Times").fill("weekdays at nine")
    expect(preview).to_contain_text("Monday to Friday at 09:00, in this machine's time zone")
    expect(preview.locator("[title='0 9 * * 1-5']")).to_be_visible()
    expect(preview.locator(".times li")).to_have_count(3)
    expect(page.get_by_label("Times")).to_be_focused()
    page.get_by_label("Category").select_option("research-sweep")
    expect(preview).not_to_contain_text("summary.propose")
    page.get_by_label("Name").fill("spoken")
    page.get_by_label("Prompt").fill("Look.")
    page.get_by_role("button", name="Create").click()
    page.wait_for_url("**/ui/tasks/spoken")
    assert constellation.ask("task-runner", "show", "spoken")["schedule"] == "0 9 * * 1-5"
    page.goto(f"{tab.origin}/ui/tasks/spoken/edit")
    page.get_by_label("Times").fill("every 2 hours")
    expect(preview).to_contain_text("the schedule is then: Every 2 hours")
    expect(preview.get_by_label("times, before and after").locator(".added")).to_contain_text("every 2 hours")


def test_a_task_is_paused_until_monday_explained_and_resumed(tab: Tab, constellation: Constellation) -> None:
    constellation.create("pausing", "--every", "1h", "--tz", "Europe/Berlin")
    page = tab.go("/ui/tasks/pausing")
    expect(page.locator(".times li")).to_have_count(10)
    expect(page.get_by_label("for how long")).to_be_hidden()
    page.keyboard.press("p")
    choices = page.get_by_label("for how long")
    expect(choices).to_be_focused()
    monday = choices.locator("option", has_text="until Monday").last.inner_text()
    choices.locator("option").last.evaluate("(option) => { option.selected = true; }")
    page.get_by_label("note").fill("holiday")
    page.get_by_role("button", name="Pause", exact=True).click()
    expect(page.get_by_role("status")).to_contain_text(f"pausing is paused {monday}")
    until = datetime.fromisoformat(constellation.ask("task-runner", "show", "pausing")["paused_until"])
    assert (until.astimezone(UTC).weekday(), until.astimezone(UTC).hour) in {(6, 22), (6, 23)}, "Monday begins"
    times = page.locator(".times time").evaluate_all("(all) => all.map((one) => one.dateTime)")
    skipped = sum(datetime.fromisoformat(one) < until for one in times)
    assert page.locator(".times li", has_text="skipped by the pause").count() == skipped
    page.goto(f"{tab.origin}/ui/tasks/pausing/slot")
    expect(page.locator(".reasons")).to_contain_text("paused")
    expect(page.get_by_role("link", name="change the catch-up policy")).to_be_visible()
    page.goto(f"{tab.origin}/ui/tasks/pausing")
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("status")).to_contain_text("fires again")
    page.get_by_role("button", name="Run now").click()
    expect(page.locator("section", has_text="History").last.locator("tbody tr").first).to_contain_text("succeeded")
    page.goto(f"{tab.origin}/ui/timeline")
    assert page.locator(".lane", has_text="pausing").locator(".mark.fired").count() == 1
    assert page.locator(".lane", has_text="pausing").locator(".mark.planned").count() >= 5
    assert page.locator("details tbody tr", has_text="pausing").count() >= 6, "the same as a table"
    page.locator(".lane", has_text="pausing").locator("a:has(.mark.fired)").click()
    page.wait_for_url("**/ui/tasks/pausing/slot?at=*")
    page.goto(f"{tab.origin}/ui/tasks?state=active&q=pausing")
    expect(page.locator("tbody tr")).to_have_count(1)


@LOOKS
def test_every_page_is_readable_on_a_phone_without_scripts_and_has_no_fault_that_axe_finds(
    tab: Tab, constellation: Constellation, browser: Browser, context: BrowserContext
) -> None:
    if not AXE.exists():
        absent("axe-core is not installed: make test-services")
    axe, faults = AXE.read_text(), dict[str, list[str]]()
    for path in PAGES:
        page = tab.go(path)
        for width in (360, 800, 1400):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{path} is wider than {width}"
        faults[path] = violations(page, axe, RULES)
        page.emulate_media(color_scheme="dark")
        faults[f"{path} in the dark"] = violations(page, "", ("wcag2aa",))
        page.emulate_media(color_scheme="light")
    assert {path: found for path, found in faults.items() if found} == {}
    plain = browser.new_context(java_script_enabled=False, storage_state=context.storage_state())
    page = plain.new_page()
    for path in PAGES:
        page.goto(f"{tab.origin}{path}")
        assert page.locator("h1").inner_text()
    plain.close()


@LOOKS
def test_words_in_tables_stay_whole_and_sentences_together(tab: Tab, constellation: Constellation) -> None:
    name = f"wordy-{'and-' * 12}long"
    constellation.create(name, "--in", "5h", "--prompt", "Say it.", channel="desk")
    page = tab.go("/ui/timeline")
    page.get_by_text("Everything as a table").click()
    page.set_viewport_size({"width": 650, "height": 800})
    why = page.locator("tbody tr", has=page.get_by_role("link", name=name, exact=True)).get_by_text("details")
    assert why.first.evaluate("link => link.getClientRects().length") == 1, "a word is broken"
    page.goto(f"{tab.origin}/ui/tasks?q=wordy")
    page.set_viewport_size({"width": 390, "height": 800})
    cell = page.locator("td[data-label=Schedule]")
    gap = "cell => { const range = document.createRange(); range.selectNodeContents(cell.firstChild);"
    gap += " return cell.querySelector('time').getBoundingClientRect().left - range.getBoundingClientRect().right; }"
    assert cell.evaluate(gap) < 8, "the time stands apart from its sentence"


def test_the_list_shows_the_last_runs_of_each_task_as_marks_that_tell_their_time_and_outcome(
    tab: Tab, constellation: Constellation
) -> None:
    constellation.create("hourly", "--cron", "0 * * * *", "--tz", "UTC", "--prompt", "Look.", channel="hours")
    constellation.create("asks", "--in", "1s", "--prompt", "Remember: the tap drips", channel="hours")
    constellation.command("turnkeeper", "task", "backfill", "hourly", "--from", "14h ago", "--to", "1m ago", "--all")
    constellation.until_outcome("hourly", "succeeded", 14)
    constellation.until_outcome("asks", "interrupted")
    page = tab.go("/ui/tasks")
    row = page.locator("tr", has=page.get_by_role("link", name="hourly", exact=True))
    strip = row.get_by_role("img", name="The last 12 runs: 12 succeeded. The newest: succeeded")
    expect(strip.locator(".mark")).to_have_count(stores.MOST_RUNS)
    newest = constellation.history("hourly")[0]
    told = strip.locator("title").last.text_content() or ""
    assert re.search(rf"{newest['nominal_at'][11:16]} UTC: succeeded", told), told
    other = page.locator("tr", has=page.get_by_role("link", name="asks", exact=True))
    expect(other.get_by_role("img", name="The last 1 run: 1 waits for you")).to_be_visible()


def test_machines_that_share_a_store_are_listed_as_in_status_and_one_that_dies_is_seen(
    tab: Tab, constellation: Constellation
) -> None:
    if not isinstance(constellation, TwoMachines):
        pytest.skip("of several machines, which share a server: --database postgres")
    page = tab.go("/ui/machines")
    listed = page.locator("section", has=page.get_by_role("heading", name="Machines that share the store"))
    rows = listed.locator("tbody tr")
    for width in (360, 800, 1400):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    expect(rows).to_have_count(2)
    for row, name in zip(rows.all(), ("runner", "runtime"), strict=True):
        expect(row.locator("td[data-label=Node]")).to_have_text(name)
        expect(row.locator("td[data-label=Roles]")).to_have_text(name)
        expect(row.locator(".state")).to_have_text("ready")
    expect(listed).to_contain_text("no envelope waits")
    constellation.command("agent-runtime", "send", "dying", "hello", "--wait")
    constellation.kill_worker()
    constellation.silence("runtime", 42)
    expect(rows.nth(1).locator(".state")).to_have_text("stale")
    expect(rows.nth(0).locator(".state")).to_have_text("ready")
    status = {row["node"]: row["status"] for row in constellation.ask("turnkeeper", "status") if "node" in row}
    assert status == {"runner": "ready", "runtime": "stale"}
    expect(rows.nth(1)).to_contain_text(re.compile(r"4\ds ago"))
    constellation.start()
    expect(rows.nth(1).locator(".state")).to_have_text("ready")


def violations(page: Page, axe: str, rules: Iterable[str]) -> list[str]:
    """Run axe-core from the tool's side, which the page's policy does not concern."""
    client = page.context.new_cdp_session(page)
    client.send("Runtime.evaluate", {"expression": axe})
    asked = f"axe.run(document, {{runOnly: {[*rules]}}})"
    told = "found => found.violations.map(one => one.id + ': ' + one.nodes.map(node => node.target).join(' '))"
    expression = {"expression": f"{asked}.then({told})", "awaitPromise": True, "returnByValue": True}
    said = client.send("Runtime.evaluate", expression)
    client.detach()
    found: list[str] = said["result"]["value"]
    return found
