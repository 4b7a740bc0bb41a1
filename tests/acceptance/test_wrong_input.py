"""Wrong input: one clear line, the right exit code, and nothing written."""

import grpc
import pytest

from tests.support.constellation import Constellation
from turnkeeper.rpc.errors import from_rpc
from turnkeeper.v1 import agent_runtime_pb2, schedules_pb2

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
        (("task-runner", "next", "taken", "--from", "0001-01-01T00:00:00+14:00"), 2, "--from"),
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


def test_the_last_and_first_days_of_the_calendar(shared: Constellation) -> None:
    """They are shown and left out like any other, also east and west of Greenwich."""
    told = []
    for zone in ("Asia/Tokyo", "America/New_York"):
        days = ("--exclude", "0001-01-03", "--exclude", "9999-12-31")
        told += [
            shared.attempt(*argv, TZ=zone)
            for argv in (
                (*CREATE, "far", "--at", "9999-12-31T23:59:00Z", "--tz", zone, *REST),
                (*CREATE, "but", "--every", "1d", "--tz", zone, *days, *REST),
                ("task-runner", "list"),
                ("task-runner", "show", "far"),
                ("task-runner", "next", "far"),
                ("task-runner", "delete", "far"),
                ("task-runner", "delete", "but"),
            )
        ]
    assert [(done.returncode, done.stderr) for done in told if done.returncode] == []


def test_no_list_has_a_negative_length(shared: Constellation) -> None:
    refused = {}
    for daemon, wire in (("agent-runtime", agent_runtime_pb2), ("task-runner", schedules_pb2)):
        (service,) = wire.DESCRIPTOR.services_by_name.values()
        with grpc.insecure_channel(f"unix:{shared.home.socket(daemon)}") as channel:
            for method in service.methods:
                if "limit" in method.input_type.fields_by_name:
                    asked = getattr(wire, method.input_type.name)(limit=-1).SerializeToString()
                    kind = channel.unary_stream if method.server_streaming else channel.unary_unary
                    call = kind(f"/{service.full_name}/{method.name}")
                    with pytest.raises(grpc.RpcError) as raised:
                        list(call(asked, timeout=20))
                    refused[method.name] = str(from_rpc(raised.value, daemon))
    assert len(refused) >= 9
    assert set(refused.values()) == {"limit: is negative"}


def test_a_search_for_a_very_long_word_finds_nothing(shared: Constellation) -> None:
    shared.command("agent-runtime", "memory", "put", "tone", "Write in British English.", "--tier", "workspace")
    assert shared.ask("agent-runtime", "memory", "search", "x" * 100_000) == []
    assert len(shared.ask("agent-runtime", "memory", "search", "x" * 100_000 + " British" + " y" * 1000)) == 1
    assert shared.ask("agent-runtime", "memory", "search", " ".join(map(chr, range(0x4E00, 0x5E00)))) == []


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
    stopped.command("turnkeeper", "up")
    stopped.home.environment.chmod(0o644)
    refused = stopped.attempt("turnkeeper", "restart", "--reason", "a new key")
    assert (refused.returncode != 0, says in refused.stderr) == (True, True), refused.stderr
    stopped.stop()
