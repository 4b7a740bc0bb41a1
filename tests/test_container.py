"""The Dockerfile and the compose file are what the page on containers says."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import yaml

from tests.support.clean_root import ROOT, Step, stages
from turnkeeper.config.home import Home
from turnkeeper.config.settings import load_settings

STAGES = stages((ROOT / "Dockerfile").read_text())
FINAL = {step.name: step for step in STAGES[-1]}
HOME = "/var/lib/turnkeeper"
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())


def test_an_instruction_may_take_several_lines() -> None:
    text = '# note\nFROM a AS b\nRUN one \\\n  && two\nCMD ["x", "y z"]\n'
    ((from_, run, cmd),) = stages(text)
    assert (from_, run) == (Step("FROM", "a AS b"), Step("RUN", "one && two"))
    assert cmd.words == ["x", "y z"]


def test_two_stages_leave_nothing_of_the_build_in_the_image() -> None:
    assert [found[0].text for found in STAGES] == [STAGES[1][0].text + " AS build", STAGES[1][0].text]
    assert [step.text for step in STAGES[-1] if step.name == "COPY"] == ["--from=build /opt/turnkeeper /opt/turnkeeper"]
    assert "pip" not in " ".join(step.text for step in STAGES[-1])


def test_packages_come_from_the_lock_with_their_hashes_alone() -> None:
    download, *others = [step.text for step in STAGES[0] if step.name == "RUN"]
    assert {"--require-hashes", "--no-deps", "requirements.lock"} <= set(download.split())
    environ = next(step.text for step in STAGES[0] if step.name == "ENV")
    assert {"PIP_NO_INDEX=1", "PIP_FIND_LINKS=/packages"} <= set(environ.split())
    assert all("index" not in other for other in others)
    (extras,) = re.findall(r"\[([\w,-]+)\]", others[-1])
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    locked = set(re.findall(r"^([\w.-]+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    for extra in extras.split(","):
        named = {re.match(r"[\w.-]+", requirement)[0].lower() for requirement in declared[extra]}
        assert named <= locked, f"the lock has nothing for the extra {extra}"


def test_a_backup_is_written_where_it_can_be_copied_from() -> None:
    page = (ROOT / "docs/container.md").read_text()
    written, copied = re.search(r"turnkeeper backup (\S+)`", page), re.search(r"compose cp turnkeeper:(\S+) ", page)
    assert written is not None
    assert copied is not None
    assert written[1] == copied[1]
    assert written[1].startswith(f"{HOME}/"), "on the volume: docker cp copies nothing from a tmpfs"


def test_it_runs_as_nobody_else_with_its_home_on_a_volume_and_a_supervisor_as_process_1() -> None:
    assert FINAL["USER"].text == "10001", "a number: an orchestrator can tell that it is not root"
    assert FINAL["VOLUME"].text == HOME
    assert f"TURNKEEPER_HOME={HOME}" in FINAL["ENV"].text
    assert "--mode 0700 --owner turnkeeper" in FINAL["RUN"].text
    words = json.loads(FINAL["CMD"].text)
    assert words[-1].endswith("exec turnkeeper up --foreground"), "the shell does not stay as process 1"
    assert FINAL["HEALTHCHECK"].text.endswith('CMD ["turnkeeper", "status", "--quiet"]')


def test_the_builder_is_sent_what_the_wheel_is_made_of_and_no_home() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert lines[0] == "*"
    built = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert {f"!{name}" for name in built["packages"]} < set(lines)
    assert all((ROOT / line[1:]).exists() for line in lines if line.startswith("!"))


def test_compose_keeps_the_home_publishes_to_this_machine_alone_and_gives_time_to_stop() -> None:
    (service,) = COMPOSE["services"].values()
    (volume,) = service["volumes"]
    assert volume == f"home:{HOME}"
    assert "home" in COMPOSE["volumes"]
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert service["stop_grace_period"] == "2m"
    assert service["read_only"] is True
    assert (service["cap_drop"], service["security_opt"]) == (["ALL"], ["no-new-privileges:true"])
    assert "privileged" not in service
    assert "user" not in service


def test_a_linter_finds_nothing() -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    done = subprocess.run([hadolint, str(ROOT / "Dockerfile")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


CLUSTER = ROOT / "examples" / "cluster"
NODES: dict[str, Any] = yaml.safe_load((CLUSTER / "compose.yaml").read_text())["services"]


def test_the_cluster_has_a_database_two_runners_three_runtimes_and_the_page(home: Home) -> None:
    does = {}
    for name, service in NODES.items():
        configs = [volume.partition(":")[0] for volume in service["volumes"] if volume.endswith(".toml:ro")]
        for config in configs:
            home.config.write_text((CLUSTER / config).read_text())
            settings = load_settings(home)
            does[name] = *settings.node.roles, *(["web"] if settings.web.enabled else [])
            assert settings.store.url == "postgresql://turnkeeper@db/turnkeeper"
            assert (service["hostname"], settings.node.name) == (name, "")
    runners, runtimes = (
        {f"{role}-{n}": (role,) for n in range(1, most)} for role, most in (("runner", 3), ("runtime", 4))
    )
    assert does == {**runners, **runtimes, "web": ("web",)}


def test_each_container_of_the_cluster_is_as_the_one_alone_with_a_volume_of_its_own() -> None:
    (alone,) = COMPOSE["services"].values()
    kept = yaml.safe_load((CLUSTER / "compose.yaml").read_text())["volumes"]
    assert list(kept) == list(NODES)
    for name, service in NODES.items():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
        assert service["volumes"][0].partition(":")[0] == name
        if name != "db":
            same = ("restart", "stop_grace_period", "read_only", "tmpfs", "cap_drop", "security_opt")
            assert {key: service[key] for key in same} == {key: alone[key] for key in same}
            assert service["command"][-1].endswith("exec turnkeeper up --foreground")
            assert service["depends_on"] == {"db": {"condition": "service_healthy"}}
    assert re.match(r"postgres:1[5-9]", NODES["db"]["image"])
    assert "command" not in NODES["db"], "its settings are PostgreSQL's own, which keep what is acknowledged"


def test_a_container_of_the_cluster_starts_with_the_commands_that_it_is_given(home: Home) -> None:
    words = [*NODES["runner-1"]["command"][:2], NODES["runner-1"]["command"][2].replace("$$", "$")]
    words[2] = (
        words[2]
        .replace("/etc/turnkeeper.toml", str(CLUSTER / "runner.toml"))
        .replace("exec turnkeeper up", "exec echo up")
    )
    place = Path(sys.executable).parent
    volume = Home(root=home.root.with_name("volume"))
    environ = os.environ | {"TURNKEEPER_HOME": str(volume.root), "PATH": f"{place}:{os.environ['PATH']}"}
    for _ in range(2):  # also where the volume has a home already
        done = subprocess.run(words, env=environ, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "up --foreground"), done.stderr
    assert load_settings(volume).node.roles == ("runner",)
