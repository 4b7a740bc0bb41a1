"""Wrong input: one clear line, the right exit code, and nothing written."""

import pytest

from tests.support.constellation import Constellation

pytestmark = pytest.mark.process

CREATE = ("task-runner", "create")
REST = ("--category", "catch-up-summary", "--channel", "general", "--prompt", "p")


@pytest.mark.parametrize(
    ("argv", "code", "says"),
    [
        ((*CREATE, "digest", "--cron", "61 * * * *", *REST), 2, "61"),
        ((*CREATE, "digest", "--cron", "* * * *", *REST), 2, "field"),
        ((*CREATE, "digest", "--cron", "0 0 30 2 *", *REST), 2, "never"),
        ((*CREATE, "digest", "--every", "0s", *REST), 2, "1 s"),
        ((*CREATE, "digest", "--every", "soon", *REST), 2, "duration"),
        ((*CREATE, "digest", *REST), 2, "--cron"),
        ((*CREATE, "digest", "--cron", "* * * * *", "--every", "5m", *REST), 2, "one"),
        ((*CREATE, "../digest", "--every", "5m", *REST), 2, "name"),
        ((*CREATE, "digest", "--every", "5m", *REST[:-1], "a </channel> b"), 2, "wrapper token"),
        ((*CREATE, "digest", "--every", "5m", "--category", "nosuch", "--channel", "c", "--prompt", "p"), 2, "catch-up-summary"),
        ((*CREATE, "digest", "--every", "5m", "--tz", "Mars/Base", *REST), 2, "Mars/Base"),
        ((*CREATE, "digest", "--every", "5m", "--catch-up", "maybe", *REST), 2, "run-once"),
        ((*CREATE, "digest", "--every", "5m", "--payload", "[1]", *REST), 2, "object"),
        ((*CREATE, "digest", "--every", "5m", "--payload", '{"a":' * 500 + "1" + "}" * 500, *REST), 2, "deeper than 32"),
        ((*CREATE, "digest", "--every", "5m", "--payload", '{"a": "\\ud83d"}', *REST), 2, "half a character"),
        ((*CREATE, "taken", "--every", "5m", *REST), 4, "taken"),
        (("task-runner", "list", "--state", "evil"), 2, "evil"),
        (("agent-runtime", "turns", "list", "--status", "evil"), 2, "evil"),
        (("task-runner", "show", "nosuch"), 3, "nosuch"),
        (("task-runner", "history", "nosuch"), 3, "nosuch"),
        (("task-runner", "delete", "nosuch"), 3, "nosuch"),
        (("task-runner", "serve"), 4, "already runs"),
        (("agent-runtime", "serve"), 4, "already runs"),
        (("agent-runtime", "turns", "show", "nosuch"), 3, "nosuch"),
        (("agent-runtime", "conversation", "show", "nosuch"), 3, "nosuch"),
        (("agent-runtime", "approvals", "resolve", "nosuch", "--approve"), 3, "nosuch"),
        (("task-runner", "lst"), 2, "list"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)  # fmt: skip
def test_one_clear_line(shared: Constellation, argv: tuple[str, ...], code: int, says: str) -> None:
    done = shared.attempt(*argv)
    first, *rest = done.stderr.splitlines()
    assert done.returncode == code, done.stderr
    assert first.startswith("error: ")
    assert says in first
    assert not any("Traceback" in line for line in rest)
    assert len(rest) <= 2, "a caret under the bad field, and no more"
    assert shared.ask("task-runner", "list", "-o", "json")[0]["name"] == "taken"
    assert len(shared.ask("task-runner", "list")) == 1, "nothing was written"


@pytest.fixture(scope="module")
def shared():
    import shutil
    import tempfile
    from pathlib import Path

    from turnkeeper.config.home import Home

    folder = Path(tempfile.mkdtemp(prefix="tk-"))
    made = Constellation(Home(root=folder / "home"))
    made.command("turnkeeper", "init")
    made.start()
    made.create("taken", "--cron", "0 0 1 1 *")
    yield made
    made.stop()
    shutil.rmtree(folder)


def test_with_the_daemons_down(stopped: Constellation) -> None:
    assert "nothing fires until" in stopped.attempt("task-runner", "create", "digest", "--every", "5m", *REST).stderr
    assert [task["name"] for task in stopped.ask("task-runner", "list")] == ["digest"]
    assert stopped.ask("agent-runtime", "conversation", "list") == []
    refused = stopped.attempt("agent-runtime", "send", "general", "hello")
    assert refused.returncode == 5
    assert "turnkeeper up" in refused.stderr


def test_without_a_home(stopped: Constellation) -> None:
    stopped.home.root.rename(stopped.home.root.with_name("moved"))
    refused = stopped.attempt("task-runner", "list")
    assert refused.returncode == 2
    assert "turnkeeper init" in refused.stderr
    stopped.home.root.with_name("moved").rename(stopped.home.root)


def test_an_unknown_key_in_the_settings_is_named_by_file_and_line(stopped: Constellation) -> None:
    stopped.home.config.write_text("[scheduler]\ngrase_s = 1\n")
    for argv in (("turnkeeper", "up"), ("turnkeeper", "config", "show")):
        refused = stopped.attempt(*argv)
        assert refused.returncode != 0
        assert f"{stopped.home.config}:2: scheduler.grase_s" in refused.stderr


def test_a_runtime_whose_keys_others_can_read_does_not_start_and_the_doctor_says_the_same(
    stopped: Constellation,
) -> None:
    stopped.home.environment.write_text("OPENAI_API_KEY=x\n")
    stopped.home.environment.chmod(0o644)
    says = f"{stopped.home.environment}: can be read by others"
    refused = stopped.attempt("agent-runtime", "serve")
    assert (refused.returncode, says in refused.stderr) == (2, True)
    assert "run: chmod 600" in refused.stderr
    examined = stopped.attempt("turnkeeper", "doctor")
    assert (examined.returncode, says in examined.stdout + examined.stderr) == (6, True)
    stopped.home.environment.chmod(0o600)
    stopped.start()
    assert stopped.attempt("turnkeeper", "doctor").returncode == 0
    stopped.stop()
