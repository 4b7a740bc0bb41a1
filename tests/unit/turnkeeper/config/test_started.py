"""What a daemon started with, and what of it has changed since."""

import os
import re
from pathlib import Path

import pytest

from turnkeeper.config.home import Home
from turnkeeper.config.settings import Settings
from turnkeeper.config.started import READS, changes, read_start, settings_now, write_start

ROOT = Path(__file__).parents[4]
PACKAGES = {
    "agent-runtime": "agent_runtime",
    "task-runner": "task_runner",
    "web": "turnkeeper/gateway",
    "peers": "turnkeeper/constellation/peers",
}


def test_a_changed_setting_is_told_with_both_values_unless_it_is_an_address(home: Home) -> None:
    home.config.write_text('[model]\nname = "offline"\nbase_url = "http://me:word@host/v1"\n')
    write_start(home, "agent-runtime")
    start = read_start(home, "agent-runtime", os.getpid())
    assert start is not None
    assert changes(start.settings, settings_now(home, "agent-runtime")) == []
    assert b"word" not in (home.run / "agent-runtime.started").read_bytes(), "a digest stands for an address"
    home.config.write_text('[model]\nname = "openai:gpt-5"\n[agents.agent0]\nworkers = 2\n[scheduler]\ngrace_s = 1\n')
    home.environment.write_text("OPENAI_API_KEY=planted\n")
    told = changes(start.settings, settings_now(home, "agent-runtime"))
    assert [one.partition(" ")[0] for one in told] == [
        *(".env", "agents.agent0.workers"),
        *("model.base_url", "model.name"),
    ], "not what the runtime does not read"
    assert told[-2:] == ["model.base_url", "model.name ('offline', now 'openai:gpt-5')"]
    assert "planted" not in " ".join(told)


def test_a_file_of_another_process_tells_nothing(home: Home) -> None:
    write_start(home, "task-runner")
    assert read_start(home, "task-runner", os.getpid() + 1) is None
    assert read_start(home, "web", os.getpid()) is None


@pytest.mark.parametrize("process", PACKAGES)
def test_each_section_that_a_daemon_reads_is_compared(process: str) -> None:
    """A section that a command alone reads may be compared too: a restart that was not needed does no harm."""
    read = re.compile(rf"(?:settings|loaded)(?:\(home\))?\.({'|'.join(Settings.model_fields)})\b")
    files = [
        path
        for path in (ROOT / PACKAGES[process]).rglob("*.py")
        if path.name != "commands.py" and "cli" not in path.parts
    ]
    used = {name for path in files for name in read.findall(path.read_text("utf-8"))}
    assert used, "this test finds where settings are read"
    assert used <= READS[process]
