"""Makes the pictures for the README from a real run in a temporary home: `make pictures`.

The picture of the terminal is the output of the commands on a terminal of 80 columns. The page's picture is a
screenshot by Chromium, which `make test-services` installs.
"""

import fcntl
import io
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from contextlib import suppress
from inspect import signature
from pathlib import Path
from socket import socket

from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.text import Text

from examples.demo.driver import Driver
from turnkeeper.config.home import Home
from turnkeeper.config.toml_file import with_key
from turnkeeper.rpc.channel import is_serving

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
COLUMNS, ROWS = 80, 60
PATIENCE_S = 60
PACKAGES = {"task-runner": "task_runner", "agent-runtime": "agent_runtime", "turnkeeper": "turnkeeper.constellation"}
NOTES = {
    "plan.md": "# Plan\n\nThe pump needs a new seal before May.\n",
    "plots.txt": "Plot 7 is free, plot 9 is let until May.\n",
}
ASKS = "turnkeeper task create seal --cron '0 9 * * 1-5' --category folder-report \\\n"
ASKS += "    --channel general --prompt 'Then remember: order the seal'"
WEEKLY = "--cron '0 17 * * 5' --category catch-up-summary --channel garden --prompt 'What happened this week?'"
STORY = (
    ("turnkeeper task run whats-new --wait", ()),
    (ASKS, ()),
    ("turnkeeper task run seal --wait", ()),
    ("kill -9 $(cat ~/.turnkeeper/state/run/agent-runtime.pid)", ()),
    ("turnkeeper triage", (("> ", "a"),)),
)
# The template of rich loads its fonts from another host. Where this is refused, a picture would show less.
_GIVEN = str(signature(Console.export_svg).parameters["code_format"].default)
TEMPLATE = re.sub(r"@font-face \{\{.*?\n    \}\}\n", "", _GIVEN, flags=re.DOTALL)


class Author:
    """A person at a terminal of 80 columns, with a separate home folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.notes, programs = folder, folder / "notes", folder / "bin"
        self.notes.mkdir()
        programs.mkdir()
        for name, text in NOTES.items():
            (self.notes / name).write_text(text)
        for name, package in PACKAGES.items():
            (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} -P -m {package} "$@"\n')
            (programs / name).chmod(0o755)
        own = {"HOME": str(folder), "PATH": f"{programs}:{os.environ['PATH']}", "TZ": "UTC", "TERM": "xterm-256color"}
        self.home = Home(root=folder / ".turnkeeper")
        self.environ = {name: value for name, value in os.environ.items() if name != "TURNKEEPER_HOME"} | own

    def type(self, command: str, answers: tuple[tuple[str, str], ...] = ()) -> str:
        """Return the output of a command on the terminal, with its colours. Type each answer after its question."""
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        argv = ["bash", "-c", command]
        process = subprocess.Popen(  # noqa: S603
            argv, cwd=self.notes, env=self.environ, stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        said, left = "", [*answers]
        with suppress(OSError):  # the terminal is closed when the command has ended
            while select.select([ours], [], [], PATIENCE_S)[0] and (read := os.read(ours, 4096)):
                said += read.decode()
                if left and said.endswith(left[0][0]):
                    os.write(ours, f"{left.pop(0)[1]}\n".encode())
        os.close(ours)
        process.wait(PATIENCE_S)
        return seen(said).replace(str(self.folder), "~")


def seen(said: str) -> str:
    """Return the final content of the screen, with its colours. Leave out lines that were erased or overwritten."""
    lines, row = [""], 0
    for part in re.findall(r"\x1b\[[\d;?]*[A-Za-z]|[\r\n]|[^\x1b\r\n]+", said.replace("\r\n", "\n")):
        if part == "\n":
            row += 1
            lines += [""] * (row == len(lines))
        elif part.startswith("\x1b[") and part.endswith("A"):
            row = max(0, row - int(part[2:-1] or 1))
        elif part in {"\r", "\x1b[2K"}:
            lines[row] = ""
        elif part.endswith("m") or not part.startswith("\x1b["):
            lines[row] += part
    return "\n".join(lines)


def draw(transcript: str, path: Path) -> None:
    """Write a transcript, with its colours, as a picture of a terminal."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.from_ansi(transcript), highlight=False)
    path.write_text(console.export_svg(title="Turnkeeper", code_format=TEMPLATE, unique_id="turnkeeper"))


def photograph(address: str, path: Path) -> None:
    """Write a screenshot of the page in Chromium to a picture."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        page = browser.new_page(viewport={"width": 1180, "height": 740}, locale="en-GB", color_scheme="light")
        page.goto(address)
        page.wait_for_url("**/ui/")
        page.wait_for_load_state("networkidle")
        page.screenshot(path=path)
        browser.close()


def main() -> None:
    """Do the run, and write both pictures."""
    PICTURES.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="tk-"))
    author = Author(folder)
    driver = Driver(author.home, author.environ)
    try:
        author.type("turnkeeper init --example")
        with socket() as bound:
            bound.bind(("127.0.0.1", 0))
            port = bound.getsockname()[1]
        config = with_key(author.home.config.read_text(), "web", "port", port)
        author.home.config.write_text(with_key(config, "web", "enabled", value=True))
        author.type("turnkeeper up && turnkeeper task apply")
        lines = []
        for command, answers in STORY:
            driver.until("agent-runtime to answer", lambda: is_serving(author.home.socket("agent-runtime")))
            lines += [f"\x1b[1m$ {command}\x1b[0m", author.type(command, answers).rstrip()]
        draw("\n".join(line for line in lines if line), PICTURES / "terminal.svg")
        author.type("turnkeeper send garden 'The supplier promised the seal for Monday.' --wait")
        author.type(f"turnkeeper task create digest {WEEKLY} && turnkeeper task run digest --wait")
        author.type("turnkeeper task run seal --wait")
        photograph(author.type("turnkeeper web open --print").strip(), PICTURES / "page.png")
    finally:
        driver.stop()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
