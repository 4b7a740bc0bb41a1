"""`kill -9` at each step of an inbound webhook: what was answered 2xx runs, and no delivery id fires its task twice.

The sender does what Standard Webhooks asks of it: it sends a request again, under the same id, until it is answered.
"""

import hashlib
import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from typing import Any

import pytest

from examples.demo.history import Outside
from tests.acceptance.test_hooks import open_to_all, send, signed
from tests.support.constellation import AGENT_RUNTIME, TASK_RUNNER, Constellation, Daemon
from tests.support.program import WEB
from tests.support.web import Web
from turnkeeper.constellation.supervisor.daemons import process_of
from turnkeeper.rpc.process import VARIABLE
from turnkeeper.storage.locking import is_held

pytestmark = [pytest.mark.process, pytest.mark.sqlite_only("on a server, the lease of a killed process lasts a minute")]
OF_THE_GATEWAY = ("hooks.checked", "hooks.emitted")
OF_THE_RUNNER = ("runner.sent", "runner.receipt")
OF_THE_RUNTIME = tuple(f"runtime.{step}" for step in ("accepted", "claimed", "started", "finished", "recorded"))


class Sender:
    """A sender of signed requests, and a task that waits for each."""

    def __init__(self, place: Constellation, web: Web) -> None:
        self.place, self.web = place, web
        self.secret = place.command("turnkeeper", "hooks", "add", "deploys").strip()
        self.ids: list[str] = []
        self.sent: list[dict[str, Any]] = []

    def awaited(self, id_: str) -> None:
        """Create the task that one request fires."""
        self.ids.append(id_)
        name = id_.replace(".", "-")
        self.place.create(name, "--on", "hook.deploys", "--filter", f"release={id_}", "--debounce", "0s")

    def settled(self, id_: str) -> None:
        """Wait until the fire of a request has succeeded."""
        self.place.await_outcome(id_.replace(".", "-"), "succeeded")

    def attempt(self, id_: str) -> tuple[int, bool]:
        """Send a request once. Return the status, or 0 if no answer came, and whether it was a duplicate."""
        body = json.dumps({"release": id_}).encode()
        status, is_again = 0, False
        try:
            answer = send(self.web, body, signed(self.secret, body, key=id_))
            status, is_again = answer.status, answer.status == 202 and json.loads(answer.body)["duplicate"]
        except (OSError, HTTPException):
            pass  # no answer came
        event_id = f"deploys-{hashlib.sha256(id_.encode()).hexdigest()[:40]}"
        self.sent.append({"event_id": event_id, "status": status, "duplicate": is_again})
        return status, is_again

    def delivers(self, id_: str) -> bool:
        """Send a request until it is taken. Return True if it was taken before, too."""
        status, is_again = self.place.until(f"{id_} to be taken", lambda: taken(self.attempt(id_)))
        assert status == 202
        return is_again

    def fired_once_each(self) -> None:
        """Each request fired its task once, with its body; a request that comes once more fires nothing."""
        for id_ in self.ids:
            self.settled(id_)
            assert self.delivers(id_)
        for id_ in self.ids:
            (entry,) = self.place.history(id_.replace(".", "-"))
            assert (entry["outcome"], entry["count"]) == ("succeeded", 1)
        prompts = [turn["messages"][0]["text"] for turn in self.place.conversation()]
        assert [sum(f'"{id_}"' in prompt for prompt in prompts) for id_ in self.ids] == [1] * len(self.ids)
        assert self.place.violations(outside=Outside(hooks=self.sent)) == []


def taken(answer: tuple[int, bool]) -> tuple[int, bool] | None:
    return answer if answer[0] == 202 else None


def test_the_gateway_dies_before_and_after_the_event_is_on_record(constellation: Constellation) -> None:
    with open_to_all(constellation) as web:
        sender = Sender(constellation, web)
        for step in OF_THE_GATEWAY:
            sender.awaited(step)
            web.stop()
            web.start(**{VARIABLE: step})
            assert sender.attempt(step) == (0, False)
            constellation.until_dead(WEB)
            web.start()
            assert sender.delivers(step) is (step == "hooks.emitted"), "the event was on record, without an answer"
        sender.fired_once_each()


def test_the_runner_dies_while_it_holds_a_request_unread(constellation: Constellation) -> None:
    with open_to_all(constellation) as web, ThreadPoolExecutor(1) as pool:
        sender = Sender(constellation, web)
        sender.awaited("unread")
        process = process_of(constellation.home, TASK_RUNNER)
        assert process is not None
        os.kill(process.pid, signal.SIGSTOP)
        answer = pool.submit(sender.attempt, "unread")
        constellation.kill(TASK_RUNNER)
        assert answer.result() == (503, False)
        constellation.start()
        assert not sender.delivers("unread")
        sender.fired_once_each()


@pytest.mark.parametrize(("daemon", "steps"), [(TASK_RUNNER, OF_THE_RUNNER), (AGENT_RUNTIME, OF_THE_RUNTIME)])
def test_a_daemon_dies_after_the_event_is_on_record(
    constellation: Constellation, daemon: Daemon, steps: tuple[str, ...]
) -> None:
    with open_to_all(constellation) as web:
        sender = Sender(constellation, web)
        for step in steps:
            sender.awaited(step)
            constellation.stop(daemon)
            constellation.start(daemon, **{VARIABLE: step})
            constellation.until(
                f"{step} to be taken, or to end {daemon.name}",
                lambda step=step: sender.attempt(step)[0] == 202 or not is_held(constellation.home, daemon.name),
            )
            constellation.until_dead(daemon)
            constellation.start()
            assert sender.delivers(step), "the event is on record, whether or not the sender was told"
            sender.settled(step)  # else its turn could meet the next step's death before the daemon answers
        sender.fired_once_each()
