"""Pictures of every page in six states: `python -m tests.acceptance.pictures FOLDER [STATE ...]`.

The states are: empty, usual, phone (usual, 390 px wide, dark), many (200 tasks), down (the runtime is killed) and
suspended (the runtime hangs). A picture shows the whole page. Needs Chromium: make test-services.
"""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page

from tests.support.constellation import AGENT_RUNTIME, TASK_RUNNER, Constellation
from tests.support.machines import constellation_on, new_home
from tests.support.tabs import chromium
from tests.support.web import ROOT, configure, free_port, settings
from turnkeeper.constellation.supervisor.daemons import SUPERVISOR, process_of
from turnkeeper.rpc.process import last_beat

MANY = 200
MOST_HIGH = 4000
DESK = {"width": 1280, "height": 900}
PHONE = {"width": 390, "height": 844}
STATES = ("empty", "usual", "phone", "many", "down", "suspended")
PATHS = {
    "today": "/ui/", "decisions": "/ui/decisions", "conversations": "/ui/conversations", "tasks": "/ui/tasks",
    "loops": "/ui/loops", "timeline": "/ui/timeline", "timeline-hour": "/ui/timeline?span=1h", "pages": "/ui/pages",
    "memory": "/ui/memory", "new-task": "/ui/new", "tokens": "/ui/tokens", "machines": "/ui/machines",
}  # fmt: skip
USUAL = {
    "conversation": "/ui/conversations/general", "task": "/ui/tasks/digest", "edit": "/ui/tasks/digest/edit",
    "why": "/ui/tasks/digest/slot", "page": "/ui/pages/garden",
}  # fmt: skip
DAILY = (
    ("backup-check", "30 2 * * *", "Is last night's backup there, and how large is it?"),
    ("boiler", "0 7 * * *", "Read the pressure of the boiler. Below 1.2 bar, write to the service."),
    ("digest", "0 8 * * 1-5", "Summarise the garden."),
    ("inbox", "*/15 8-18 * * *", "Sort what is new in the inbox."),
    ("prices", "0 7,13 * * *", "What does the garden hose cost today?"),
    ("report", "0 */3 * * *", "Compare the orders with those of last week."),
)


def usual(made: Constellation) -> None:
    """Let tasks run, miss times, propose and ask, as after some days of work."""
    made.command("agent-runtime", "workspace", "import", str(ROOT / "examples" / "garden"))
    for name, cron, prompt in DAILY:
        made.create(name, "--cron", cron, "--tz", "Europe/Berlin", "--prompt", prompt)
    made.create(
        "build-watch", "--every", "1s", "--max-fires", "40", "--prompt", "Is the build green?", "--channel", "builds"
    )
    made.create("notes", "--every", "1s", "--max-fires", "3", "--prompt", "Summarise the garden.", channel="desk")
    made.create("errand", "--in", "1s", "--prompt", "Remember: the gate code is 4711", channel="desk")
    made.create("window", "--in", "1s", "--prompt", "Remember: the attic window is open", channel="desk")
    for task in ("errand", "window"):
        made.until_outcome(task, "interrupted")
    made.until_outcome("build-watch", "succeeded", 6)
    for daemon in (TASK_RUNNER, AGENT_RUNTIME):
        made.stop(daemon)
        made.start(daemon)
        made.until_outcome("build-watch", "succeeded", 8)
    for name in ("digest", "prices", "report"):
        made.command("task-runner", "run", name)
        made.until_settled(name)
    made.command("task-runner", "pause", "prices", "--note", "the shop is closed")
    made.command("agent-runtime", "send", "general", "search: compost", "--wait")
    made.command("task-runner", "loop", "create", "15m check the tests")


def many(made: Constellation) -> None:
    """Create tasks until there are 200."""
    for number in range(MANY - len(made.ask("task-runner", "list"))):
        cron = f"{number % 60} {number % 24} * * *"
        made.create(f"shop-{number:03}", "--cron", cron, "--prompt", f"Count the stock of shop {number}.")


def take(page: Page, origin: str, folder: Path, paths: dict[str, str]) -> None:
    """Write a picture of each page into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, path in paths.items():
        page.goto(f"{origin}{path}")
        size = page.viewport_size or DESK
        whole = min(MOST_HIGH, max(size["height"], page.evaluate("document.documentElement.scrollHeight")))
        page.set_viewport_size({**size, "height": whole})  # bars that keep their place stay at the edge
        page.screenshot(path=folder / f"{name}.png")
        page.set_viewport_size(size)


def opened(browser: Browser, made: Constellation, **options: Any) -> Page:
    """Return a tab of a browser that is logged in."""
    page = browser.new_context(locale="en-GB", viewport=DESK, **options).new_page()
    page.goto(made.command("turnkeeper", "web", "open", "--print").strip())
    page.wait_for_url("**/ui/")
    return page


def main(folder: Path, wanted: Sequence[str]) -> None:
    """Make one home, bring it into one state after another, and write the pictures of the wanted states."""
    with chromium() as browser, new_home() as home, constellation_on(None, home) as made:
        port = free_port()
        configure(home, settings(port))
        made.command("turnkeeper", "up")
        made.start()
        origin = f"http://turnkeeper.localhost:{port}"
        desk = opened(browser, made, color_scheme="light")
        if "empty" in wanted:
            take(desk, origin, folder / "empty", PATHS)
            stranger = browser.new_context(viewport=DESK).new_page()
            take(stranger, origin, folder / "empty", {"login": "/"})
        usual(made)
        if "usual" in wanted:
            take(desk, origin, folder / "usual", PATHS | USUAL)
        if "phone" in wanted:
            phone = opened(browser, made, color_scheme="dark")
            phone.set_viewport_size(PHONE)
            take(phone, origin, folder / "phone", PATHS | USUAL)
            stranger = browser.new_context(viewport=PHONE, color_scheme="dark").new_page()
            take(stranger, origin, folder / "phone", {"login": "/"})
        if "many" in wanted:
            many(made)
            take(desk, origin, folder / "many", PATHS)
        if "suspended" in wanted:
            beat = last_beat(home, AGENT_RUNTIME.name)
            os.kill(beat.pid, signal.SIGSTOP)
            take(desk, origin, folder / "suspended", PATHS | USUAL)
            os.kill(beat.pid, signal.SIGCONT)
        if "down" in wanted:
            supervisor = process_of(home, SUPERVISOR)
            os.kill(supervisor.pid, signal.SIGSTOP)  # or else it starts the runtime again
            made.kill(AGENT_RUNTIME)
            take(desk, origin, folder / "down", PATHS | USUAL)
            os.kill(supervisor.pid, signal.SIGCONT)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] or STATES)
