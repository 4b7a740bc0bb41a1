"""Both daemons and the gateway for LangGraph's clients: requests by hand, and by the SDKs."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from langgraph_sdk import get_client, get_sync_client

from tests.support.constellation import Constellation
from tests.support.machines import constellation_on, new_home
from tests.support.postgres import Server
from tests.support.web import Web, serving

CLIENTS = Path(__file__).parents[1] / "clients"
ASKS = "Summarise the garden, then remember: the pump was replaced"
CATEGORY = {"turnkeeper": {"category": "catch-up-summary"}}  # it does not grant the tool that `ASKS` needs


def said(text: str, **rest: Any) -> dict[str, Any]:
    """Return an input with one message of a person."""
    return {"messages": [{"role": "user", "content": text, **rest}]}


class Lg:
    """A constellation with its gateway.

    Attributes:
        http: a client with a key that may decide.
    """

    def __init__(self, constellation: Constellation, web: Web) -> None:
        self.constellation, self.web = constellation, web
        self.url = f"http://127.0.0.1:{web.port}/lg"
        self.keys = {scope: web.key(scope, scope) for scope in ("read", "work", "decide")}
        self.http = httpx.Client(base_url=self.url, headers={"x-api-key": self.keys["decide"]}, timeout=60)

    def client(self, scope: str = "decide") -> Any:
        """Return the SDK's asynchronous client."""
        return get_client(url=self.url, api_key=self.keys[scope])

    def sync_client(self, scope: str = "decide") -> Any:
        return get_sync_client(url=self.url, api_key=self.keys[scope])

    def ask(self, method: str, path: str, body: Any = None, *, status: int = 200, **rest: Any) -> Any:
        """Send one request, check its status, and return its JSON."""
        found = self.http.request(method, path, json=body, **rest)
        assert found.status_code == status, (method, path, found.status_code, found.text)
        return found.json() if found.content else None

    def refused(self, method: str, path: str, body: Any = None, status: int = 422, **rest: Any) -> str:
        """Send one request that is refused. Return the reason and the hint."""
        detail = str(self.ask(method, path, body, status=status, **rest)["detail"])
        assert "; " in detail, detail
        return detail

    def thread(self, **metadata: Any) -> str:
        """Return a new thread."""
        return str(self.ask("POST", "/threads", {"metadata": metadata})["thread_id"])

    def turn(self, thread_id: str, text: str = "Hello") -> str:
        """Return a finished run."""
        body = {"assistant_id": "agent0", "input": said(text)}
        answer = self.http.post(f"/threads/{thread_id}/runs/wait", json=body)
        assert answer.status_code == 200, answer.text
        return answer.headers["content-location"].rpartition("/")[2]

    def cron(self, thread_id: str = "", **rest: Any) -> dict[str, Any]:
        """Return a new cron, with or without a thread."""
        body = {"assistant_id": "agent0", "schedule": "0 9 * * *", "input": said("What is new?"), **rest}
        made: dict[str, Any] = self.ask(
            "POST", f"/threads/{thread_id}/runs/crons" if thread_id else "/runs/crons", body
        )
        return made

    def waiting(self, prompt: str = ASKS) -> dict[str, Any]:
        """Return a thread on which a tool call of a task waits for a decision."""
        thread_id = self.thread()
        cron = self.cron(thread_id, input=said(prompt), metadata=CATEGORY)
        return self.fire(cron, thread_id)

    def fire(self, cron: dict[str, Any], thread_id: str) -> dict[str, Any]:
        """Run a cron now. Return its thread once it waits."""
        self.constellation.command("task-runner", "run", cron["metadata"]["name"])
        return self.until_waiting(thread_id)

    def until_waiting(self, thread_id: str) -> dict[str, Any]:
        def probe() -> Any:
            found = self.http.get(f"/threads/{thread_id}").json()
            return found.get("status") == "interrupted" and found

        found: dict[str, Any] = self.constellation.until("an approval to wait", probe)
        return found

    def stream(
        self, path: str, body: Any = None, *, until: str = "end", then: Callable[[], object] = bool, **rest: Any
    ) -> list[tuple[str, Any]]:
        """Return the events of a stream, up to the first named `until`. Call `then` once the stream is open."""
        found: list[tuple[str, Any]] = []
        with self.http.stream("POST" if body is not None else "GET", path, json=body, **rest) as answer:
            assert answer.status_code == 200, answer.read()
            then()
            name = ""
            for line in answer.iter_lines():
                if line.startswith("event: "):
                    name = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    found.append((name, json.loads(line.removeprefix("data: "))))
                    if name == until:
                        break
        return found


@contextmanager
def constellation_with_web(server: Server | None = None, more: str = "") -> Iterator[Lg]:
    """Start both daemons and the gateway on a new home; with a server, on a machine whose turns another one runs."""
    with new_home() as home, constellation_on(server, home) as constellation:
        constellation.start()
        with serving(home, more) as web:
            made = Lg(constellation, web)
            yield made
            made.http.close()
