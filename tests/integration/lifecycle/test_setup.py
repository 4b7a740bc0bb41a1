"""`turnkeeper init` and `turnkeeper model`, as a person in a terminal and as a script meets them."""

import os
import pty
import re
import select
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.chat_server import serving
from tests.support.forked_daemons import program
from turnkeeper.config.home import Home
from turnkeeper.config.models import key_name
from turnkeeper.config.settings import load_settings
from turnkeeper.config.toml_file import with_key
from turnkeeper.constellation.install import setup
from turnkeeper.constellation.install.init import config_text, initialise
from turnkeeper.constellation.install.setup import chosen_model

KEY = "sk-planted-0123456789abcdef"
PATIENCE_S = 60
CLEAN = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}


def typed(home: Home, *argv: str, answers: Sequence[tuple[str, str]]) -> tuple[int, str]:
    """Run a command on a terminal, typing each answer after its question; return the exit code and the screen."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*program("turnkeeper.constellation"), "--home", str(home.root), *argv],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=CLEAN,
        close_fds=True,
    )
    os.close(theirs)
    screen, left = "", [*answers]
    with suppress(OSError):  # the terminal is gone
        while select.select([ours], [], [], PATIENCE_S)[0] and (read := os.read(ours, 4096)):
            screen += read.decode()
            if left and left[0][0] in screen.rpartition("\n")[2] and screen.endswith(" "):  # it reads
                os.write(ours, f"{left.pop(0)[1]}\n".encode())
    os.close(ours)
    assert not left, screen
    return process.wait(PATIENCE_S), screen


def run(home: Home, *argv: str, text: str = "") -> subprocess.CompletedProcess[str]:
    command = [*program("turnkeeper.constellation"), "--home", str(home.root), *argv]
    return subprocess.run(command, input=text, capture_output=True, text=True, env=CLEAN, check=False)


@pytest.fixture
def home() -> Iterator[Home]:
    with tempfile.TemporaryDirectory(prefix="tk-") as folder:  # short, as the paths of sockets have to be
        yield Home(root=Path(folder) / "home")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_enter_four_times_makes_a_home(home: Home) -> None:
    questions = ("Model", "Time zone", "example", "service")
    code, screen = typed(home, "init", answers=[(question, "") for question in questions])
    assert (code, "next: turnkeeper up" in screen) == (0, True)
    assert load_settings(home).model.name == "offline"
    assert (home.tasks / "example.toml").exists()
    assert home.config.read_text() == with_key(config_text(), "folder", "path", str(Path.cwd()))


def test_the_example_reads_the_folder_where_init_is_typed_unless_the_settings_name_one(home: Home) -> None:
    assert run(home, "init").returncode == 0
    assert load_settings(home).folder.path == "", "without the example no turn reads a folder"
    home.config.write_text(with_key(home.config.read_text(), "folder", "path", "/srv/notes"))
    done = run(home, "init", "--example")
    assert (done.returncode, load_settings(home).folder.path) == (0, "/srv/notes")
    assert "each morning, whats-new reads /srv/notes" in done.stderr


def test_a_whole_home_folder_is_read_only_if_the_author_says_so(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(CLEAN, "HOME", str(tmp_path / "inner"))
    questions = ("Model", "Time zone", "example", "service")
    assert typed(home, "init", answers=[(question, "") for question in questions])[0] == 0
    assert (load_settings(home).folder.path, [*home.tasks.iterdir()]) == ("", [])


def test_a_model_its_key_and_a_zone_are_taken_and_the_key_is_never_shown(home: Home) -> None:
    answers = [
        ("Model", "openai:gpt-5"),
        ("Address", "http://127.0.0.1:9/v1"),
        ("OPENAI_API_KEY", KEY),
        ("Time zone", "Europe/Rigga"),
        ("Time zone", "Europe/Riga"),
        ("example", "n"),
        ("service", "n"),
    ]
    code, screen = typed(home, "init", answers=answers)
    assert (code, KEY in screen, "did you mean Europe/Riga?" in screen) == (0, False, True)
    settings = load_settings(home)
    assert settings.model.model_dump(exclude={"daily_token_cap"}) == {
        "name": "openai:gpt-5",
        "base_url": "http://127.0.0.1:9/v1",
    }
    assert settings.scheduler.timezone == "Europe/Riga"
    assert f"OPENAI_API_KEY={KEY}\n" in home.environment.read_text()
    assert (mode(home.environment), mode(home.config), [*home.tasks.iterdir()]) == (0o600, 0o600, [])


def test_nothing_is_asked_without_a_terminal_or_with_an_option(home: Home) -> None:
    done = run(home, "init")
    assert (done.returncode, done.stdout, "Model" in done.stderr) == (0, "", False)
    again = Home(root=home.root.with_name("again"))
    assert typed(again, "init", "--yes", answers=[])[0] == 0
    third = Home(root=home.root.with_name("third"))
    code, screen = typed(third, "init", "--tz", "Asia/Tokyo", "--example", answers=[])
    assert (code, "[offline]" in screen, load_settings(third).scheduler.timezone) == (0, False, "Asia/Tokyo")
    assert "already complete" in typed(third, "init", answers=[])[1]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--tz", "Mars/Base"), "is not a time zone"),
        (("--model", "two words"), "is not the name of a model"),
        (("--model", "openai:gpt-5", "--key-file", "-"), "is not one word"),
    ],
)
def test_wrong_options_write_nothing(home: Home, argv: tuple[str, ...], said: str) -> None:
    done = run(home, "init", *argv, text="two words")
    assert (done.returncode, said in done.stderr, home.root.exists()) == (2, True, False), done.stderr
    assert "two words" not in done.stderr or argv[1] == "two words"


def test_a_model_is_shown_and_changed_by_one_command_and_only_if_it_can_be_made(home: Home) -> None:
    run(home, "init")
    before = {path: path.read_bytes() for path in (home.config, home.environment)}
    done = run(home, "model", "openai:gpt-5")
    assert (done.returncode, "OPENAI_API_KEY" in done.stderr) == (2, True), done.stderr
    assert {path: path.read_bytes() for path in before} == before
    done = run(home, "model", "openai:gpt-5", "--base-url", "http://127.0.0.1:9/v1", "--key-file", "-", text=f"{KEY}\n")
    assert (done.returncode, KEY in done.stdout + done.stderr) == (0, False), done.stderr
    assert "http://127.0.0.1:9/v1 does not answer (Connection refused): turns fail until it does" in done.stderr
    shown = run(home, "model").stdout
    assert ("openai:gpt-5" in shown, "http://127.0.0.1:9/v1" in shown) == (True, True)
    assert (
        "http://127.0.0.1:9/v1, the address of the server for openai:gpt-5, is removed"
        in run(home, "model", "offline").stderr
    )
    assert load_settings(home).model.base_url == ""
    assert KEY in home.environment.read_text()


def test_a_models_key_is_rotated_in_the_documented_way(home: Home, tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "models.md").read_text()
    (documented,) = re.findall(r"^    turnkeeper (model .* --key-file new-key\.txt)$", page, re.MULTILINE)
    run(home, "init")
    new = tmp_path / "new-key.txt"
    words = documented.replace("new-key.txt", str(new)).split()
    for key in (KEY, f"{KEY}-rotated"):
        new.write_text(f"{key}\n")
        done = run(home, *words)
        assert (done.returncode, key in done.stdout + done.stderr) == (0, False), done.stderr
        assert re.findall(r"^OPENAI_API_KEY=.*$", home.environment.read_text(), re.MULTILINE) == [
            f"OPENAI_API_KEY={key}"
        ]
    assert mode(home.environment) == 0o600
    assert load_settings(home).model.name == "openai:gpt-5"


def test_a_server_of_ones_own_is_asked_which_models_it_offers(home: Home) -> None:
    initialise(home, example=False)
    with serving() as server:
        done = run(home, "model", "openai:x", "--base-url", server.url)  # nobody is there to give a key
        assert f"{server.url} answers; it offers openai:stub-model; x is not among them" in done.stderr, done.stderr
        assert f"for another: turnkeeper model openai:stub-model --base-url {server.url}\n" in done.stderr
        done = run(home, "model", "openai:stub-model")  # which keeps the address
        assert f"still asks the server at {server.url}" in done.stderr
        assert load_settings(home).model.base_url == server.url
        code, screen = typed(home, "model", "openai:y", answers=[("Use it anyway?", "")])
        assert (code, "nothing was changed" in screen) == (2, True), screen
        assert load_settings(home).model.name == "openai:stub-model"
        found = setup.Model(name="openai:stub-model", base_url=server.url)
        assert setup.of_server(found, KEY) == (f"{server.url} answers; it offers openai:stub-model", True)
        assert "does not list its models" in setup.of_server(replace(found, base_url=f"{server.url}/elsewhere"), "")[0]
        assert "is not an http address" in setup.of_server(replace(found, base_url="file:///etc"), "")[0]


def test_a_key_of_the_shell_is_kept_for_the_daemons(home: Home, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    initialise(home, example=False)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    assert chosen_model(home, "openai:gpt-5", None, None).key == KEY
    assert ("goes into .env" in (said := capsys.readouterr().err), KEY in said) == (True, False)
    home.environment.write_text("OPENAI_API_KEY=another\n")
    assert chosen_model(home, "openai:gpt-5", None, None).key == ""


def test_a_server_makes_a_name_one_of_openais_dialect_and_a_typed_key_is_kept_where_the_model_cannot_be_made(
    home: Home,
) -> None:
    rest = [("Time zone", ""), ("example", "n"), ("service", "n")]
    answers = [
        ("Model", "opnai:gpt-5"),
        ("Model", "llama3"),
        ("Address", ""),
        ("Address", "http://127.0.0.1:9/v1"),
        ("OPENAI_API_KEY", KEY),
    ]
    code, screen = typed(home, "init", answers=[*answers, *rest])
    assert (code, KEY in screen, "did you mean openai:gpt-5?" in screen) == (0, False, True), screen
    assert "'llama3' does not say its provider" in screen
    assert load_settings(home).model.name == "openai:llama3"
    again = Home(root=home.root.with_name("again"))
    answers = [("Model", "groq:x"), ("Address", ""), ("GROQ_API_KEY", KEY)]
    code, screen = typed(again, "init", answers=[*answers, *rest])
    assert (code, load_settings(again).model.name) == (0, "offline"), screen
    assert "needs a package that is not installed" in screen
    assert "langchain-groq" in screen
    assert f"GROQ_API_KEY={KEY}\n" in again.environment.read_text()


def test_yes_asks_for_no_key_and_nothing_of_a_server(home: Home) -> None:
    with serving() as server:
        code, screen = typed(home, "init", "--model", "gpt-5", "--base-url", server.url, "-y", answers=[])
    assert (code, load_settings(home).model.name) == (0, "openai:gpt-5"), screen
    assert "not among them" in " ".join(screen.split())


@pytest.mark.parametrize("graph", ["", '[agents.agent0]\ngraph = "some.module:graph"\n'])
def test_a_mistyped_provider_changes_nothing_whichever_graph_runs(home: Home, graph: str) -> None:
    initialise(home, example=False)
    before = f'{graph}[model]\nname = "openai:x"\nbase_url = "http://127.0.0.1:9/v1"\n'
    home.config.write_text(before)
    done = run(home, "model", "opnai:gpt-5")
    assert (done.returncode, "did you mean openai:gpt-5?" in done.stderr) == (2, True), done.stderr
    assert home.config.read_text() == before
    assert "pip" not in done.stderr


@pytest.mark.parametrize(("model", "key"), [("offline", ""), ("x", ""), ("xai:grok-4", "XAI_API_KEY")])
def test_a_provider_has_a_variable_for_its_key(model: Any, key: str) -> None:
    assert key_name(model) == key
