"""Chromium's tabs that show the page, with what the browser complained of."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.support.constellation import Constellation

PATIENCE_MS = 30_000
expect.set_options(timeout=PATIENCE_MS)


def absent(what: str) -> Any:
    return pytest.fail(what) if "CI" in os.environ else pytest.skip(what)


@contextmanager
def chromium() -> Iterator[Browser]:
    binary = shutil.which("chromium") or absent("Chromium is not installed: make test-services")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=binary)
        yield launched
        launched.close()


class Tab:
    """An open page, with what the browser complained of."""

    def __init__(self, page: Page, origin: str) -> None:
        self.page, self.origin = page, origin
        self.complaints: list[str] = []
        page.on("console", lambda said: self.complaints.append(said.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def go(self, path: str) -> Page:
        answer = self.page.goto(f"{self.origin}{path}")
        assert answer is not None
        assert answer.status == 200, path
        return self.page


def asks(constellation: Constellation, name: str, prompt: str) -> dict[str, Any]:
    """Let a task fire now whose turn asks for more than its category grants; return what it asks."""
    constellation.create(name, "--in", "1s", "--thread", name, "--prompt", prompt, channel="desk")
    constellation.until_outcome(name, "interrupted")
    return next(one for one in constellation.ask("agent-runtime", "approvals", "list") if one["task_name"] == name)


def decision(constellation: Constellation, interrupt: dict[str, Any]) -> str:
    found: str = constellation.ask("agent-runtime", "approvals", "show", interrupt["interrupt_id"])["decision"]
    return found
