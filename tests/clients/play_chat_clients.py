"""Plays agent-chat-ui and agent-inbox in Chromium against a real constellation, and keeps a picture of each step.

Both are taken from local checkouts, which are never part of this repository. They are built with fonts of this machine,
as the build would fetch others. Run it after a change to what the LangGraph API answers:

    python -m tests.clients.play_chat_clients --chat DIR --inbox DIR --out DIR
"""

import argparse
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from playwright.sync_api import Page, expect, sync_playwright

from tests.support.langgraph import CATEGORY, Lg, constellation_with_web, said
from tests.support.web import free_port
from turnkeeper.clock import SystemClock

FONT = "https://fonts.googleapis.com/css2?family=Inter:wght@100..900&display=swap"
CSS = "@font-face { font-family: 'Inter'; font-weight: 100 900; font-display: swap; src: local('sans-serif'); }"
PATIENCE_MS = 30_000
RULE = "Written by the rule-based offline model"


def install(checkout: Path) -> None:
    """Install what a checkout's lock file names, with the package manager that it names, without install scripts."""
    if (checkout / "node_modules").is_dir():
        return
    manager = json.loads((checkout / "package.json").read_text())["packageManager"].partition("+")[0]
    extra = ["--ignore-engines"] if manager.startswith("yarn") else []
    command = ["npx", "-y", manager, "install", "--frozen-lockfile", "--ignore-scripts", *extra]
    subprocess.run(command, cwd=checkout, check=True)


def build(checkout: Path, out: Path) -> None:
    """Build a checkout, unless it is built."""
    if (checkout / ".next" / "BUILD_ID").is_file():
        return
    fonts = out / "fonts.js"
    fonts.write_text(f"module.exports = {json.dumps({FONT: CSS})};\n")
    environ = {"NEXT_FONT_GOOGLE_MOCKED_RESPONSES": str(fonts.resolve()), "NEXT_TELEMETRY_DISABLED": "1"}
    subprocess.run(["npx", "next", "build"], cwd=checkout, check=True, env={**os.environ, **environ})


@contextmanager
def started(checkout: Path, port: int) -> Iterator[str]:
    """Serve a built checkout on this machine; yield its address."""
    command = ["node", "node_modules/next/dist/bin/next", "start", "-H", "127.0.0.1", "-p", str(port)]
    environ = {**os.environ, "NEXT_TELEMETRY_DISABLED": "1"}
    process = subprocess.Popen(command, cwd=checkout, env=environ, stdout=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        try:
            return bool(urlopen(address, timeout=5).status == 200)
        except OSError:
            return False

    try:
        assert SystemClock().poll(answers, timeout_s=60, every_s=0.2), f"{checkout} does not answer"
        yield address
    finally:
        process.terminate()
        process.wait(30)


class Player:
    """A person before a browser, who takes a picture of each step."""

    def __init__(self, page: Page, lg: Lg, out: Path) -> None:
        self.page, self.lg, self.out, self.steps, self.what = page, lg, out, 0, ""
        page.set_default_timeout(PATIENCE_MS)
        page.route("https://fonts.googleapis.com/**", lambda route: route.fulfill(content_type="text/css", body=CSS))
        expect.set_options(timeout=PATIENCE_MS)
        self.api_url = lg.url.replace("127.0.0.1", "localhost")

    def picture(self, name: str) -> None:
        """Take one."""
        self.steps += 1
        self.page.screenshot(path=self.out / f"{self.steps:02}-{name}.png")

    def waiting(self, what: str, thread_id: str = "") -> str:
        """Have a task ask for a call of a tool; return its thread."""
        made, self.what = thread_id or self.lg.thread(), what
        text = f"Summarise the garden, then remember: {what}"
        return str(self.lg.fire(self.lg.cron(made, input=said(text), metadata=CATEGORY), made)["thread_id"])

    def decided(self, thread_id: str) -> dict[str, Any]:
        """Return the newest approval of a thread, once it is decided."""
        found: dict[str, Any] = self.lg.constellation.until(
            "a decision", lambda: next((one for one in self._approvals(thread_id) if one["status"] != "pending"), None)
        )
        return found

    def _approvals(self, thread_id: str) -> list[dict[str, Any]]:
        listed = self.lg.constellation.ask("agent-runtime", "approvals", "list", "--all")
        return [one for one in listed if one["thread_id"] == thread_id]


def play_chat(player: Player, address: str) -> None:
    """Log in, chat, reload, and approve what a task asks for."""
    page = player.page
    page.goto(address)
    page.fill("#apiUrl", player.api_url)
    page.fill("#assistantId", "agent0")
    page.fill("#apiKey", player.lg.keys["decide"])
    player.picture("chat-login")
    page.get_by_role("button", name="Continue").click()
    box = page.get_by_placeholder("Type your message...")
    box.fill("remember: the gate squeaks")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_text(RULE).first).to_be_visible()
    player.picture("chat-answered")
    page.reload()
    expect(page.get_by_text("remember: the gate squeaks").first).to_be_visible()
    player.picture("chat-reloaded")
    thread_id = page.url.partition("threadId=")[2].partition("&")[0]
    player.waiting("the pump was replaced", thread_id)
    page.reload()
    expect(page.get_by_text("the pump was replaced").last).to_be_visible()
    approve = page.get_by_role("button", name="Approve").first
    approve.scroll_into_view_if_needed()
    player.picture("chat-asked")
    approve.click()
    assert player.decided(thread_id)["decision"] == "approve"
    expect(page.get_by_text("Remembered it in").last).to_be_visible()
    player.picture("chat-approved")


def play_inbox(player: Player, address: str) -> None:
    """Accept, edit, respond, ignore and resolve what tasks ask for.

    The inbox is added by what its dialog would write down, and threads are opened by their addresses: in the Chromium
    that this was written with, a build of agent-inbox does not follow its own links, and loads itself again instead.
    """
    page = player.page
    inbox = {"id": "turnkeeper", "graphId": "agent0", "deploymentUrl": player.api_url, "selected": True}
    stored = {"inbox:agent_inboxes": json.dumps([inbox]), "inbox:langchain_api_key": player.lg.keys["decide"]}
    page.add_init_script(
        f"for (const [name, value] of Object.entries({json.dumps(stored)})) localStorage[name] = value"
    )
    thread_id = player.waiting("the shed leaks")
    listed = f"{address}/?agent_inbox={inbox['id']}&offset=0&limit=10&inbox=interrupted"
    for name, act, decision in INBOX:
        page.goto(listed)
        expect(page.get_by_text("asks to call memory_put")).to_have_count(1)
        player.picture(f"inbox-{name}-list")
        page.goto(f"{listed}&view_state_thread_id={thread_id}")
        expect(page.get_by_text(player.what).last).to_be_visible()
        page.wait_for_load_state("networkidle")
        player.picture(f"inbox-{name}")
        act(page)
        decided = player.decided(thread_id)
        assert decided["decision"] == decision, decided
        player.picture(f"inbox-{name}-done")
        thread_id = player.waiting(f"it was to be {name}")


def accept(page: Page) -> None:
    page.get_by_role("button", name="Accept", exact=True).click()


def edit(page: Page) -> None:
    page.locator("textarea").first.fill("the shed leaks on the left")
    page.get_by_role("button", name="Submit").click()


def respond(page: Page) -> None:
    page.get_by_placeholder("Your response here...").fill("Not now, please.")
    page.get_by_role("button", name="Send Response").click()


def ignore(page: Page) -> None:
    """Ignore a call: the button of that name is for questions alone."""
    page.get_by_role("button", name="Mark as Resolved").click()


INBOX = (
    ("accept", accept, "approve"),
    ("edit", edit, "edit"),
    ("respond", respond, "reject"),
    ("ignore", ignore, "reject"),
)


def main() -> None:
    """Build and play both."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--chat", "--inbox", "--out"):
        parser.add_argument(name, type=Path, required=True)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for checkout in (given.chat, given.inbox):
        install(checkout)
        build(checkout, given.out)
    ports = free_port(), free_port()
    origins = json.dumps([f"http://127.0.0.1:{port}" for port in ports])
    with (
        started(given.chat, ports[0]) as chat,
        started(given.inbox, ports[1]) as inbox,
        constellation_with_web(more=f"origins = {origins}\n") as lg,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        player = Player(browser.new_page(viewport={"width": 1280, "height": 900}), lg, given.out)
        try:
            play_chat(player, chat)
            play_inbox(player, inbox)
        finally:
            player.picture("last")
            browser.close()
    print(f"{player.steps} pictures in {given.out}")  # noqa: T201 - a program for people


if __name__ == "__main__":
    main()
