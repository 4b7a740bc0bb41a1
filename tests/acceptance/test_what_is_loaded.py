"""What a new interpreter loads for the daemons and the commands: nothing that a home does not use."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from agent_runtime.store.database import open_database
from tests.support.machines import new_home

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[2]
# One interpreter loads more at each step, and each step says what has been loaded up to it.
STEPS = """
import asyncio, importlib, json, sys
from pathlib import Path

def loaded():
    print(json.dumps(sorted(sys.modules)))

def load(*packages, without):
    for package in packages:
        for path in Path(package).rglob("*.py"):
            if {"migrations", "gateway"}.isdisjoint(path.parts) and not any(map(path.match, without)):
                importlib.import_module(".".join(path.with_suffix("").parts))

CLIENT = "*/tools/supplied/servers.py"  # imported if a home names an MCP server
PROGRAMS = "turnkeeper/constellation/__main__.py", "task_runner/__main__.py", "agent_runtime/__main__.py"
async def serve():
    async with assemble(Home(root=Path(sys.argv[1])), Settings(), environ={}) as runtime:
        await runtime.worker.start()
        await runtime.worker.stop(1.0)

importlib.import_module("task_runner.daemon.__main__")
loaded()
from agent_runtime.daemon.assembly import assemble
loaded()
from turnkeeper.config.home import Home
from turnkeeper.config.settings import Settings
asyncio.run(serve())
loaded()
load("task_runner", "agent_runtime", "turnkeeper/constellation/supervisor", without=["*/__main__.py", "*/checkpointer/postgres.py", CLIENT])
loaded()
load("turnkeeper", "task_runner", "agent_runtime", without=[*PROGRAMS, CLIENT])
loaded()
"""


@pytest.fixture(scope="module")
def loaded() -> dict[str, set[str]]:
    """The modules after each step."""
    steps = "runner", "daemons", "served", "packages", "all"
    with new_home() as home:
        open_database(home.agent_db).close()
        argv = [sys.executable, "-c", STEPS, str(home.root)]
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {step: set(json.loads(line)) for step, line in zip(steps, done.stdout.splitlines(), strict=True)}


def of(loaded: set[str], *names: str) -> list[str]:
    """Return the loaded modules of these packages."""
    return [one for one in loaded if any(f"{one}.".startswith(f"{name}.") for name in names)]


def test_without_traces_and_scrapes_nothing_of_either_library_is_loaded_by_us(loaded: dict[str, set[str]]) -> None:
    # LangSmith loads OpenTelemetry's interfaces by itself if they are installed; no process loads what sends.
    assert of(loaded["runner"], "opentelemetry", "prometheus_client") == []
    assert of(loaded["daemons"], "opentelemetry.exporter", "prometheus_client") == []


def test_the_supervisor_loads_neither_an_event_loop_nor_grpc_nor_what_reads_settings() -> None:
    program = "import sys, turnkeeper.constellation.supervisor.__main__; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert of(set(done.stdout.split()), "asyncio", "ssl", "grpc", "pydantic", "sqlalchemy") == []


def test_a_home_of_one_machine_loads_no_driver_of_a_server(loaded: dict[str, set[str]]) -> None:
    """All of both daemons is loaded, and a runtime serves; what several machines need stays where it is."""
    assert of(loaded["served"], "psycopg", "psycopg_pool") == []


def test_a_store_whose_tables_are_up_to_date_is_opened_without_what_migrates(loaded: dict[str, set[str]]) -> None:
    assert of(loaded["served"], "alembic", "mako") == []


def test_a_home_that_names_no_mcp_server_loads_no_mcp_client(loaded: dict[str, set[str]]) -> None:
    assert of(loaded["served"], "mcp", "mcp_types") == []


def test_no_daemon_imports_the_driver_of_a_server(loaded: dict[str, set[str]]) -> None:
    assert of(loaded["packages"], "psycopg", "psycopg_binary", "psycopg2", "asyncpg") == []


def test_while_it_is_off_nothing_of_it_is_imported(loaded: dict[str, set[str]]) -> None:
    """It is the web server."""
    assert [name for name in of(loaded["all"], "turnkeeper.gateway") if not name.endswith(".surface")] == []
    assert {"grpc", "langgraph", "typer", "agent_runtime.daemon.__main__"} <= loaded["all"]
    assert of(loaded["all"], "starlette", "uvicorn", "jinja2", "mcp") == []
