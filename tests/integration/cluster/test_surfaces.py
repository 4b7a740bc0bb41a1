"""The page, LangGraph's API, MCP and the command line on one machine, while another one runs the turns."""

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest

from agent_runtime.store.database import open_database
from tests.acceptance.test_mcp_clients import FORM, answered, approval, ask, client
from tests.support.constellation import AGENT_RUNTIME, Constellation
from tests.support.langgraph import ASKS, CATEGORY, Lg, said
from tests.support.web import Web, free_port, settings
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.rpc.channel import is_serving
from turnkeeper.storage.server.handover import SCHEMA
from turnkeeper.storage.server.url import in_schema

pytestmark = pytest.mark.process
PATIENCE_S = 60.0
# Threads belong to the runtime whose process is named, as if it were always the first to take them.
ONLY_ONE = """
CREATE TABLE runtime.worker (pid text);
CREATE FUNCTION runtime.only_one() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF NEW.owner = '' OR NEW.owner LIKE '%/' || (SELECT pid FROM runtime.worker) || '/%' THEN RETURN NEW; END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER only_one BEFORE INSERT OR UPDATE ON runtime.threads FOR EACH ROW EXECUTE FUNCTION runtime.only_one()
"""


class Cluster(Lg):
    """A machine with a runner, a runtime and the gateway; the turns run on another one, which has a runtime alone."""

    def __init__(self, constellation: Constellation, web: Web, worker: Home) -> None:
        super().__init__(constellation, web)
        self.worker = worker

    def events(self, *options: str) -> set[str]:
        """Return the kinds of what the first machine tells, and who says it, of what only the other one did."""
        return {one["event"] for one in self.constellation.ask("turnkeeper", "events", *options)}


@pytest.fixture(scope="module")
def cluster(postgres_server: Any) -> Iterator[Cluster]:
    if postgres_server is None:
        pytest.skip("machines share a server's database: --database postgres")
    url = postgres_server.create()
    open_database(in_schema(url, SCHEMA)).close()
    with psycopg.connect(url, autocommit=True) as database:
        database.execute(ONLY_ONE.encode())
    with ExitStack() as stack:
        stack.callback(postgres_server.drop, url)
        front, worker = (
            Home(root=Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tk-"))) / "home") for _ in range(2)
        )
        port, made = free_port(), Constellation(front)
        for home in (front, worker):
            home.create()
            home.config.write_text(f'[store]\nurl = "{url}"\n{settings(port)}')
        made.command("turnkeeper", "init")
        process = subprocess.Popen([sys.executable, "-m", "agent_runtime.daemon", "--home", str(worker.root)])
        stack.callback(process.wait)
        stack.callback(process.kill)
        with psycopg.connect(url, autocommit=True) as database:
            database.execute("INSERT INTO runtime.worker VALUES (%s)", (str(process.pid),))
        serves = SystemClock().poll(lambda: is_serving(worker.socket(AGENT_RUNTIME.name)), timeout_s=60, every_s=0.05)
        assert serves
        stack.callback(made.stop)
        made.start()
        web = Web(front, port)
        web.start()
        stack.callback(web.stop)
        found = Cluster(made, web, worker)
        stack.callback(found.http.close)
        yield found


def test_what_one_machine_asks_another_does_and_all_can_see_it(cluster: Cluster) -> None:
    with cluster.sync_client() as client:
        thread_id = client.threads.create()["thread_id"]
        assert client.runs.wait(thread_id, "agent0", input=said("Hello"))["messages"][-1]["type"] == "ai"
        parts = list(client.runs.stream(thread_id, "agent0", input=said("And now?"), stream_mode="values"))
        assert (parts[0].event, parts[-1].event, parts[-2].data["messages"][-1]["type"]) == ("metadata", "end", "ai")
        cron = client.crons.create_for_thread(
            thread_id, "agent0", schedule="0 0 1 1 *", input=said(ASKS), metadata={"name": "yearly", **CATEGORY}
        )
    (asked,) = cluster.fire(cron, thread_id)["interrupts"]
    decide_on_the_page(cluster, asked)
    cluster.constellation.until_outcome("yearly", "succeeded")
    (fire,) = cluster.constellation.history("yearly")
    trails = "".join(path.read_text() for path in cluster.worker.logs.glob("events-*"))
    assert fire["turn_id"] in trails, "the other machine ran it"
    assert {"fire.sent", "turn.started", "tool.called", "interrupt.resolved"} <= cluster.events("--limit", "0")
    assert {"fire.sent", "turn.started", "turn.stopped"} <= cluster.events("--trace", fire["turn_id"])
    assert {"fire.settled", "turn.stopped"} <= followed(cluster, fire["fire_id"])
    (row,) = cluster.constellation.ask(
        "turnkeeper", "query", "SELECT count(*) AS n FROM turns WHERE status <> 'failed'"
    )
    assert row["n"] == 4
    assert "</html>" in cluster.constellation.command("turnkeeper", "report", "--since", "1d")


def decide_on_the_page(cluster: Cluster, asked: str) -> None:
    """Approve what is asked, by the form that the page shows for it."""
    web = cluster.web
    web.log_in()
    page = web.ask("/ui/decisions", cookie=web.cookie).body
    card = page.partition(f'id="card-{asked}"')[2]
    form = {name: card.partition(f'name="{name}" value="')[2].partition('"')[0] for name in ("page_key", "args_hash")}
    form["page_key"] = form["page_key"] or page.partition('name="page_key" value="')[2].partition('"')[0]
    answer = web.post(f"/ui/decisions/interrupt/{asked}", {"do": "approve", "next": "/ui/decisions", **form})
    assert answer.status == 303, answer
    assert f'id="card-{asked}"' not in web.ask("/ui/decisions", cookie=web.cookie).body


def followed(cluster: Cluster, before: str) -> set[str]:
    """Return the kinds of what `events --follow` tells of a fire after the one `before`."""
    command = [sys.executable, "-m", "turnkeeper.constellation", "--home", str(cluster.constellation.home.root)]
    found: set[str] = set()
    with subprocess.Popen(
        [*command, "events", "--follow", "--task", "yearly", "-o", "jsonl"], stdout=subprocess.PIPE, text=True
    ) as process:
        late = threading.Timer(PATIENCE_S, process.kill)
        late.start()
        assert process.stdout
        assert process.stdout.readline(), "what was before is told"
        cluster.constellation.command("task-runner", "edit", "yearly", "--prompt", "What is new?")
        cluster.constellation.command("task-runner", "run", "yearly")
        for told in map(json.loads, process.stdout):
            found |= {told["event"]} if told.get("fire_id", before) != before else set()
            if {"fire.settled", "turn.stopped"} <= found:
                process.terminate()
                break
        late.cancel()
    return found


async def test_a_client_of_mcp_waits_for_a_turn_of_another_machine(cluster: Cluster) -> None:
    home = cluster.constellation.home
    async with client(home, "auto", FORM, elicitation_callback=answered("accept", decision="approve")) as to:
        waits = await approval(to, "by-mcp")
        done = await ask(to, "approval_request_decision", interrupt_id=waits["interrupt_id"])
        assert (done["status"], done["decision"]) == ("decided", "approve")
        assert (await ask(to, "turn_get", turn_id=waits["turn_id"], wait_s=30))["status"] == "succeeded"


def test_a_machine_whose_daemons_are_down_reads_the_database(cluster: Cluster) -> None:
    running = cluster.constellation.ask("agent-runtime", "turns", "list")
    cluster.constellation.stop(AGENT_RUNTIME)
    assert cluster.constellation.ask("agent-runtime", "turns", "list") == running != []
    assert cluster.constellation.ask("agent-runtime", "conversation", "show", "general") != []
    done = cluster.constellation.attempt("agent-runtime", "threads", "import", str(cluster.worker.config))
    assert "turnkeeper up" in done.stderr, done
    cluster.constellation.start()
