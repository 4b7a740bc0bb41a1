"""Settings: every key has a default and a place it came from; a mistake is named by file, line and key."""

import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agent_runtime.permissions.categories import CategoryFile
from turnkeeper.config.home import Home, locate
from turnkeeper.config.settings import (
    AgentSettings,
    AssistantSettings,
    McpServerSettings,
    PriceSettings,
    QueueSettings,
    Settings,
    effective,
    load_settings,
)
from turnkeeper.config.toml_file import read_toml, reason
from turnkeeper.constellation.delivery.targets import Target
from turnkeeper.constellation.install.init import config_text
from turnkeeper.errors import InvalidInput


def test_without_a_file_the_defaults_hold(home: Home) -> None:
    assert load_settings(home) == Settings()


def test_several_threads_read_settings_at_once(home: Home) -> None:
    home.config.write_text("[web]\nport = 8123\n")
    with ThreadPoolExecutor(8) as pool:
        assert {settings.web.port for settings in pool.map(load_settings, [home] * 200)} == {8123}
    assert "PYDANTIC_DISABLE_PLUGINS" not in os.environ


def test_the_config_that_init_writes_says_what_holds_anyway(home: Home) -> None:
    home.config.write_text(config_text())
    settings = load_settings(home)
    assert settings.model_dump() == Settings().model_dump()
    sources = {key: source for key, _, source in effective(settings, home)}
    assert sources["categories.autonomous_allowed"] == str(home.config)
    assert sources["scheduler.grace_s"] == "default"


def test_init_writes_durations_with_their_units() -> None:
    assert {'# keep_history = "90d"', '# grace_s = "1m"', "# catch_up_stagger_s = 0.2"} <= set(
        config_text().splitlines()
    )


def test_every_documented_key_can_be_uncommented(home: Home) -> None:
    lines = config_text().splitlines()
    is_key = [line.startswith("# [") or (" = " in line and line[:2] == "# " and line[2].islower()) for line in lines]
    home.config.write_text("\n".join(line[2:] if key else line for line, key in zip(lines, is_key, strict=True)))
    named = {"agents": {"agent0": AgentSettings()}, "assistants": {"NAME": AssistantSettings()}}
    named |= {"mcp_servers": {"NAME": McpServerSettings()}, "prices": {"NAME": PriceSettings()}}
    named |= {"queues": {"NAME": QueueSettings()}}
    assert load_settings(home) == Settings().model_copy(update=named)


def test_the_config_that_init_writes_names_every_section_and_every_key() -> None:
    text = config_text().replace("# [", "[")
    assert "[agents.agent0]\n" in text
    assert "[assistants.NAME]\n" in text
    assert re.search(r"^\[graphs\]\n# .+\n# NAME = ", text, re.MULTILINE)
    said = set(re.findall(r"^(?:# )?(\w+) = ", text, re.MULTILINE))
    assert {*AgentSettings.model_fields, *AssistantSettings.model_fields} <= said


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("[scheduler]\ngrace_s = '1s'\ngrase = 2\n", ":3: scheduler.grase", "unknown key"),
        ("\n[modle]\nname = 'x'\n", ":2: modle", "unknown key"),
        ("[scheduler]\ncatch_up_concurrency = 0\n", ":2: scheduler.catch_up_concurrency", "greater than or equal"),
        ("[watchdog]\ninterval_s = 'soon'\n", ":2: watchdog.interval_s", "is not a duration; write for example 90s"),
        ("[approvals]\ntimeout_s = 'soon'\n", ":2: approvals.timeout_s", "is not a duration; write for example 90s"),
        ("[approvals]\ntimeout_s = '1h'\nreminder_s = '1h'\n", ":1: approvals", "must be less than timeout_s"),
        ("[approvals]\ntimeout_s = -1\n", ":2: approvals.timeout_s", "greater than or equal"),
        ("[notify]\non = ['everything']\n", ":2: notify.on", "input should be"),
        ("[store]\nurl = 'postgresql://h/d'\n[node]\nroles = ['web']\n", ":4: node.roles", "should be 'runner' or"),
        ("[node]\nroles = ['runner']\n", ":1: node", "set [store] url"),
        (
            "[web]\npublic_origin = 'http://x.org'\n",
            ":2: web.public_origin",
            "should be https://NAME or https://NAME:443",
        ),
        ("[store]\nurl = 'postgresql://h/d'\n[node]\nroles = []\n", ":3: node", "nothing would run"),
        (
            "[store]\nurl = 'postgresql://h/d'\n[node]\nroles = ['runner']\ntags = ['gpu']\n",
            ":3: node",
            "only a runtime begins turns",
        ),
        ("[a]\n[a]\n", "", "not valid TOML"),
        ("x = " + "[" * 40 + "]" * 40, "", "nested deeper"),
    ],
)
def test_a_mistake_is_named_by_file_line_and_key(home: Home, text: str, where: str, what: str) -> None:
    home.config.write_text(text)
    with pytest.raises(InvalidInput) as refused:
        load_settings(home)
    assert refused.value.where == f"{home.config}{where}"
    assert what in refused.value.what


def patterns(value: object) -> Iterator[str]:
    """Yield the patterns in a schema of JSON."""
    for key, inside in (
        value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ())
    ):
        yield from [inside] if key == "pattern" and isinstance(inside, str) else patterns(inside)


def test_no_mistake_shows_a_pattern() -> None:
    """Each pattern of a setting, a category and a delivery has the words for people in its comment."""
    found = [one for model in (Settings, CategoryFile, Target) for one in patterns(model.model_json_schema())]
    assert len(found) >= 10
    for pattern in found:
        said = reason("string_pattern_mismatch", f"String should match pattern '{pattern}'")
        assert said == f"should be {pattern.rpartition('$ # ')[2]}"
        assert "^" not in said


def test_a_table_that_stands_there_twice_is_named_with_what_to_do(home: Home) -> None:
    home.config.write_text(config_text() + "\n[peers]\nenabled = true\n")
    with pytest.raises(InvalidInput, match="not valid TOML") as refused:
        load_settings(home)
    assert refused.value.hint == "[peers] occurs twice: write all its keys under the first one"


@pytest.mark.parametrize(
    "text",
    [
        "[model]\nbase_url = ['SECRET']\n",
        "[model]\nbase_url = 'SECRET\n",
        "[model]\nbase_url = 'SECRET'\nnome = 1\n",
        "[watchdog]\nwebhook = 'ftp:SECRET'\n",
        "[watchdog]\ninterval_s = 'SECRET'\n",
    ],
)
def test_a_mistake_is_named_without_what_was_written_there(home: Home, text: str) -> None:
    home.config.write_text(text.replace("SECRET", "https://user:pass-w0rd@models.example"))
    with pytest.raises(InvalidInput) as refused:
        load_settings(home)
    assert "pass-w0rd" not in str(refused.value)


@pytest.mark.parametrize("make", ["link", "pipe", "folder", "large", "latin"])
def test_only_plain_small_utf8_files_are_read(tmp_path: Path, make: str) -> None:
    path = tmp_path / "file.toml"
    if make == "link":
        path.symlink_to("/etc/hostname")
    elif make == "pipe":
        os.mkfifo(path)
    elif make == "folder":
        path.mkdir()
    elif make == "large":
        path.write_text("#" * ((1 << 20) + 1))
    else:
        path.write_bytes(b'name = "\xe9"')
    with pytest.raises(InvalidInput):
        read_toml(path)


def test_a_home_must_be_its_owners_alone(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(real)
    with pytest.raises(InvalidInput, match="symbolic link"):
        Home(root=tmp_path / "link").create()
    real.chmod(0o777)
    with pytest.raises(InvalidInput, match="written by other users"):
        Home(root=real).check()


def test_the_option_wins_over_the_environment_over_the_default(tmp_path: Path) -> None:
    environ = {"TURNKEEPER_HOME": "/srv/b", "HOME": "/srv/me"}
    assert locate(tmp_path, environ).root == tmp_path
    assert locate(None, environ).root == Path("/srv/b")
    assert locate(None, {"HOME": "/srv/me"}).root == Path("/srv/me/.turnkeeper")


def test_a_socket_path_that_is_too_long_is_said_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="socket paths"):
        Home(root=tmp_path / ("x" * 100)).check_sockets()
