"""Results reach people: real daemons, a signed webhook, a mail server and a command, all on loopback."""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from examples.demo.history import Outside
from tests.support.constellation import Constellation
from tests.support.program import DELIVERY
from tests.support.receivers import Hook, Letterbox, Request, is_signed, opened
from tests.support.web import serving
from turnkeeper.clock import SystemClock
from turnkeeper.config.toml_file import with_key
from turnkeeper.constellation.delivery import outbox
from turnkeeper.constellation.delivery.commands import _check_url
from turnkeeper.constellation.delivery.send import send
from turnkeeper.constellation.delivery.targets import FILE, Target
from turnkeeper.constellation.supervisor.daemons import TASK_RUNNER, process_of
from turnkeeper.entropy import SystemEntropy
from turnkeeper.errors import EXIT_DENIED, EXIT_NOT_FOUND, EXIT_UNREACHABLE, EXIT_USAGE, Denied, InvalidInput
from turnkeeper.gateway.keys import Keys
from turnkeeper.rpc.channel import Caller
from turnkeeper.rpc.process import VARIABLE
from turnkeeper.times import parse_rfc3339, to_us
from turnkeeper.v1 import schedules_pb2 as schedules

pytestmark = pytest.mark.process
STEPS = ("heard", "written", "settling", "settled", "sending", "sent", "recorded")


@pytest.fixture
def hook() -> Iterator[Hook]:
    with opened(Hook()) as made:
        yield made


def allow(place: Constellation, *hosts: str) -> None:
    config = place.home.config
    said = config.read_text() if config.exists() else ""
    config.write_text(with_key(with_key(said, "delivery", "enabled", value=True), "delivery", "allow", hosts))


def add(place: Constellation, name: str, *options: str) -> str:
    """Add a target; return what the command prints, the key of a webhook."""
    return place.command("turnkeeper", "deliver", "add", name, *options).strip()


@contextmanager
def delivering(place: Constellation, **environ: str) -> Iterator[None]:
    place.start(DELIVERY, **environ)
    yield
    kill(place)


def kill(place: Constellation) -> None:
    if process := process_of(place.home, DELIVERY):
        os.kill(process.pid, signal.SIGKILL)
        place.until_dead(DELIVERY)


def log_of(place: Constellation) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = place.ask("turnkeeper", "deliver", "log")
    return found


def until(place: Constellation, hook: Hook, task: str, count: int = 1) -> list[Request]:
    place.until(f"{count} requests about {task}", lambda: len(hook.about(task)) >= count)
    return hook.about(task)


def test_success_failure_and_a_question_arrive_once_for_each_fire_signed_with_their_text(
    constellation: Constellation, hook: Hook
) -> None:
    allow(constellation, hook.place)
    secret = add(constellation, "ops", "--webhook", f"http://{hook.place}/in?a=1")
    Keys(constellation.home).create(SystemEntropy())
    config = constellation.home.config
    config.write_text(with_key(config.read_text(), "web", "public_origin", "https://home.example"))
    with delivering(constellation):
        constellation.create("news", "--in", "1s", "--prompt", "Summarise the day.")
        (good,) = until(constellation, hook, "news")
        (fire,) = constellation.until_outcome("news", "succeeded")
        assert (good.said["type"], good.said["data"]["fire_id"]) == ("task.succeeded", fire["fire_id"])
        answer = constellation.conversation()[-1]["messages"][-1]["text"]
        assert good.said["data"]["text"] == answer
        assert is_signed(good, secret)
        assert not is_signed(good._replace(body=good.body + b" "), secret)
        assert good.path == "/in?a=1"

        constellation.create("boiler", "--in", "1s", "--prompt", "Remember: the boiler is old")
        (asked,) = until(constellation, hook, "boiler")
        (waiting,) = constellation.ask("agent-runtime", "approvals", "list")
        assert (asked.said["type"], asked.said["data"]["tool"]) == ("approval.waits", waiting["tool"])
        assert asked.said["data"]["decide"].startswith("https://home.example/hooks/decide/")
        constellation.command("agent-runtime", "approvals", "resolve", waiting["interrupt_id"], "--reject", "no")
        _, ended = until(constellation, hook, "boiler", 2)
        assert (ended.said["type"], ended.said["data"]["outcome"]) == ("task.rejected", "rejected")
        assert "its approval was rejected" in ended.said["data"]["reason"]

        constellation.until(
            "all to be on record", lambda: [row["state"] for row in log_of(constellation)] == ["delivered"] * 3
        )
    assert len({one.key for one in hook.requests}) == len(hook.requests) == 3
    told = constellation.command("turnkeeper", "task", "explain", "news")
    assert f"{good.key} (success) to ops was delivered" in told
    (row,) = constellation.ask("turnkeeper", "task", "history", "news")
    assert row["deliveries"] == ["ops: delivered"]
    assert "DELIVERED" in constellation.command("turnkeeper", "task", "history", "news")
    (row,) = constellation.ask("turnkeeper", "task", "history", "boiler")
    assert row["deliveries"] == ["ops: delivered", "ops: delivered"]
    with serving(constellation.home, "\n[delivery]\nenabled = true\n") as web:
        web.log_in()
        assert f"{good.key} (success) to ops was delivered" in web.ask("/ui/tasks/news/slot", cookie=web.cookie).body


def test_a_command_gets_the_arguments_of_the_call_that_waits_and_the_link_that_decides_it(
    constellation: Constellation,
) -> None:
    allow(constellation)
    told = constellation.home.root / "told"
    names = ("TEXT", "TOOL", "ARGUMENTS", "DECIDE")
    given = " ".join(f'"$TURNKEEPER_{name}"' for name in names)
    add(
        constellation,
        "here",
        "--command",
        f"printf '%s\\0' {given} > {told}.new; mv {told}.new {told}",
        "--on",
        "waits",
    )
    Keys(constellation.home).create(SystemEntropy())
    config = constellation.home.config
    config.write_text(with_key(config.read_text(), "web", "public_origin", "https://home.example"))
    with delivering(constellation):
        constellation.create("boiler", "--in", "1s", "--prompt", "Remember: the boiler is old")
        constellation.until("the command to run", told.exists)
    text, tool, arguments, link, _ = told.read_text().split("\0")
    (waiting,) = constellation.ask("agent-runtime", "approvals", "list")
    assert (tool, json.loads(arguments)) == (waiting["tool"], waiting["args"])
    assert "the boiler is old" in arguments
    assert link.startswith("https://home.example/hooks/decide/")
    assert text.endswith(f"{tool}: {arguments}\n\nDecide it here, once, within a day: {link}")


@pytest.mark.sqlite_only("the file of tools and the category lie in the home of the machine that is asked")
def test_a_task_whose_tool_raises_has_failed_for_its_history_its_followers_and_those_who_are_told(
    stopped: Constellation, hook: Hook
) -> None:
    allow(stopped, hook.place)
    config, source = stopped.home.config, stopped.home.root / "garden.py"
    config.write_text(with_key(config.read_text(), "tools", "files", ["garden.py"]))
    raises = 'raise ConnectionError("the pump does not answer")'
    tool = f'@tool\ndef water(bed: str) -> str:\n    """Water a bed."""\n    {raises}\n'
    source.write_text(f"from langchain_core.tools import tool\n\n\n{tool}")
    stopped.command("turnkeeper", "categories", "grant", "loop", "tools:water")
    stopped.start()
    add(stopped, "ops", "--webhook", f"http://{hook.place}/", "--on", "failure")
    with delivering(stopped):
        order = 'use tools:water: {"bed": "roses"}'
        stopped.create("water", "--every", "365d", "--category", "loop", "--prompt", order)
        stopped.create("after", "--after", "water")
        stopped.create("alarm", "--on", "task.failed", "--filter", "task=water")
        stopped.command("task-runner", "run", "water")
        (told,) = until(stopped, hook, "water")
        stopped.until_outcome("alarm", "succeeded")
    (fire,) = stopped.history("water")
    assert (fire["outcome"], "the pump does not answer" in fire["reason"]) == ("failed", True)
    assert (told.said["type"], told.said["data"]["reason"]) == ("task.failed", fire["reason"])
    assert f": {fire['reason']}." in stopped.command("turnkeeper", "task", "explain", "water")
    assert stopped.history("after") == []


def test_a_stop_by_the_budget_is_delivered_once_to_those_who_are_told_of_failures(
    constellation: Constellation, hook: Hook
) -> None:
    def spend(name: str) -> None:
        constellation.create(name, "--every", "1d", "--budget", "tokens_per_fire=1")
        constellation.command("turnkeeper", "task", "run", name, "--wait")

    allow(constellation, hook.place)
    add(constellation, "ops", "--webhook", f"http://{hook.place}/", "--on", "failure")
    with delivering(constellation):
        spend("news")
        (told,) = until(constellation, hook, "news")
        (task,) = constellation.ask("turnkeeper", "task", "list")
        stop = "its budget stops it until you resume it: tokens_per_fire is 1, "
        assert (told.said["type"], told.said["data"]["outcome"]) == ("task.stopped", "stopped")
        assert told.said["data"]["reason"].startswith(stop)
        assert told.said["data"]["channel"] == task["channel"]
        constellation.until("the delivery to be on record", lambda: log_of(constellation)[0]["state"] == "delivered")
    with delivering(constellation):  # it looks at all stops again, before it reads the next one
        spend("weather")
        until(constellation, hook, "weather")
    assert [len(hook.about(name)) for name in ("news", "weather")] == [1, 1]
    told_first = constellation.command("turnkeeper", "task", "explain", "news").partition("\n")[0]
    assert re.match(
        r"The budget of news stops it since .+ until you resume the task .*: tokens_per_fire is 1, ", told_first
    )
    with serving(constellation.home) as web:
        web.log_in()
        assert "Stopped by a budget" in (page := web.ask("/ui/", cookie=web.cookie).body)
        assert re.search(r"<strong>weather</strong> .*tokens_per_fire is 1, .*until you resume it", page)
        constellation.command("turnkeeper", "task", "resume", "news")
        constellation.command("turnkeeper", "task", "resume", "weather")
        constellation.until("no stop", lambda: "Stopped by a budget" not in web.ask("/ui/", cookie=web.cookie).body)


def test_a_stop_by_the_budget_that_ends_while_nothing_delivers_is_delivered_once(
    constellation: Constellation, hook: Hook
) -> None:
    allow(constellation, hook.place)
    add(constellation, "ops", "--webhook", f"http://{hook.place}/", "--on", "failure")
    with delivering(constellation):
        pass  # its first start
    constellation.create("brief", "--every", "1d", "--budget", "tokens_per_fire=1")
    constellation.command("turnkeeper", "task", "run", "brief", "--wait")
    constellation.until("its stop", lambda: constellation.ask("task-runner", "show", "brief")["state"] == "paused")
    constellation.command("turnkeeper", "task", "resume", "brief")
    for _ in range(2):
        with delivering(constellation):
            (told,) = until(constellation, hook, "brief")
            constellation.until("its delivery", partial(is_delivered, constellation, "brief"))
            constellation.create("after", "--in", "1s", "--budget", "tokens_per_fire=1")
            until(constellation, hook, "after")
            constellation.command("turnkeeper", "task", "delete", "after", "--yes")
            hook.requests[:] = hook.about("brief")
    assert told.said["data"]["outcome"] == "stopped"
    assert "tokens_per_fire is 1, " in told.said["data"]["reason"]
    assert told.said["data"]["task"] == "brief"


def test_a_time_that_was_missed_is_delivered_as_a_failure_once(constellation: Constellation, hook: Hook) -> None:
    allow(constellation, hook.place)
    add(constellation, "ops", "--webhook", f"http://{hook.place}/", "--on", "failure")
    with delivering(constellation):
        pass  # its first start
    constellation.create("late", "--in", "1s", "--catch-up", "skip", "--grace", "0s")
    due = constellation.ask("task-runner", "show", "late")["next_fire_at"]
    constellation.kill(TASK_RUNNER)
    constellation.until("its time to pass", lambda: SystemClock().now() > parse_rfc3339(due) + timedelta(seconds=1))
    constellation.start(TASK_RUNNER)
    constellation.until("its end", lambda: constellation.history("late"))
    with delivering(constellation):
        (request,) = until(constellation, hook, "late")
        constellation.until("its delivery", partial(is_delivered, constellation, "late"))
    (row,) = constellation.ask("turnkeeper", "task", "history", "late")
    assert (row["fire_id"], row["deliveries"]) == (None, ["ops: delivered"])
    told = constellation.command("turnkeeper", "task", "explain", "late", "--at", due)
    assert "(failure) to ops was delivered" in told
    with delivering(constellation):
        constellation.create("next", "--in", "1s", "--prompt", "Summarise.")
        constellation.await_outcome("next", "succeeded")
    said = request.said["data"]
    assert (request.said["type"], said["outcome"], said["channel"]) == ("task.skipped", "skipped", "general")
    assert "too late to start" in said["reason"]
    assert len(hook.about("late")) == 1


def is_delivered(place: Constellation, task: str) -> bool:
    return [row["state"] for row in log_of(place) if row["task"] == task] == ["delivered"]


@pytest.mark.sqlite_only("on a server, the lease of a killed process lasts a minute")
def test_a_kill_at_any_step_loses_nothing_and_repeats_only_with_the_same_key(
    constellation: Constellation, hook: Hook
) -> None:
    allow(constellation, hook.place)
    add(constellation, "ops", "--webhook", f"http://{hook.place}/", "--on", "success")
    with delivering(constellation):
        pass  # its first start: from now on every result is delivered
    for step in STEPS:
        constellation.start(DELIVERY, **{VARIABLE: f"delivery.{step}"})
        constellation.create(step, "--in", "1s", "--prompt", "Summarise.")
        constellation.until_dead(DELIVERY)
        with delivering(constellation):
            constellation.until("its delivery", partial(is_delivered, constellation, step))
    found = {step: hook.about(step) for step in STEPS}
    assert {step: len(requests) for step, requests in found.items()} == {
        step: 2 if step == "sent" else 1 for step in STEPS
    }
    assert len({one.key for one in hook.requests}) == len(STEPS)
    received = [{"key": one.key, "body": one.body} for one in hook.requests]
    assert constellation.violations(outside=Outside(received=received)) == []
    assert {one.invariant for one in constellation.violations(outside=Outside(received=received[2:]))} == {"I8"}


def test_a_receiver_that_is_away_gets_it_later_and_one_that_is_gone_never_again(
    constellation: Constellation, hook: Hook
) -> None:
    allow(constellation, hook.place)
    add(constellation, "ops", "--webhook", f"http://{hook.place}/", "--on", "success")
    with delivering(constellation):
        hook.statuses[:], hook.headers["Location"] = [503, 302], f"http://{hook.place}/elsewhere"
        constellation.create("late", "--in", "1s")
        first, *_ = until(constellation, hook, "late", 3)
        assert {(one.key, one.path, one.body) for one in hook.requests} == {(first.key, "/", first.body)}
        (row,) = constellation.until("its end", lambda: [one for one in log_of(constellation) if not one["next_at"]])
        assert (row["state"], row["tries"]) == ("delivered", 2)

        hook.statuses[:] = [410]
        constellation.create("gone", "--in", "1s")
        until(constellation, hook, "gone")
        constellation.until("its end", lambda: log_of(constellation)[0]["state"] == "given up")
        assert "410" in log_of(constellation)[0]["reason"]
        alerts = constellation.home.root / "state"
        constellation.until(
            "an alert", lambda: [one for one in alerts.rglob("*") if "delivery" in one.name and "msg_" in one.name]
        )
    assert "given up" in constellation.command("turnkeeper", "task", "explain", "gone")


def test_what_points_to_this_machine_is_refused_unless_it_is_allowed(stopped: Constellation, hook: Hook) -> None:
    allow(stopped)
    port = hook.place.partition(":")[2]
    for url in (
        f"http://{hook.place}/",
        f"http://localhost:{port}/",
        f"http://[::1]:{port}/",
        "http://10.1.2.3/",
        "http://0/",
    ):
        done = stopped.attempt("turnkeeper", "deliver", "add", "ops", "--webhook", url)
        assert (done.returncode, "[delivery] allow" in done.stderr) == (EXIT_DENIED, True), (url, done.stderr)
    assert stopped.ask("turnkeeper", "deliver", "list") == []

    allow(stopped, hook.place)
    add(stopped, "ops", "--webhook", f"http://{hook.place}/")
    stopped.command("turnkeeper", "deliver", "test", "ops")
    allow(stopped)  # it was allowed when it was added
    done = stopped.attempt("turnkeeper", "deliver", "test", "ops")
    assert done.returncode
    assert "this machine" in done.stderr
    assert len(hook.requests) == 1


def test_a_service_gets_the_text_as_mail_and_keeps_to_the_same_policy(stopped: Constellation) -> None:
    with opened(Letterbox()) as box:
        allow(stopped, f"localhost:{box.port}")
        mail = f"mailto://localhost:{box.port}?from=agent@example.org&to=ada@example.org&mode=insecure"
        add(stopped, "ada", "--service", mail)
        stopped.command("turnkeeper", "deliver", "test", "ada")
        ((subject, text),) = box.texts()
        assert (subject, "deliveries reach you" in text) == ("a test of Turnkeeper succeeded", True)
        allow(stopped)
        done = stopped.attempt("turnkeeper", "deliver", "test", "ada")
        assert done.returncode
        assert "[delivery] allow" in done.stderr
        assert "example.org" not in done.stderr
        assert len(box.letters) == 1


def test_a_mail_keeps_the_lines_of_an_answer_and_shows_its_marks_as_they_are() -> None:
    data = {"task": "news", "outcome": "succeeded", "text": "Two items:\n- <b>the pump</b>\n- the seal"}
    with opened(Letterbox()) as box:
        mail = f"mailto://localhost:{box.port}?from=agent@example.org&to=ada@example.org&mode=insecure"
        sending = send(
            Target(service=mail), "k", "success", json.dumps({"data": data}), SystemClock().now(), allowed=["localhost"]
        )
        assert asyncio.run(sending) == ""
        ((_, text),) = box.texts()
        assert [letter.get_content_type() for letter in box.letters] == ["text/plain"]
    assert text.split("\r\n") == ["Two items:", "- <b>the pump</b>", "- the seal", ""]


def test_a_service_that_cannot_be_reached_leads_to_the_program_that_says_why(stopped: Constellation) -> None:
    allow(stopped, "localhost:9")
    add(stopped, "ada", "--service", "mailto://ada:planted@localhost:9?to=ada@example.org&mode=insecure")
    done = stopped.attempt("turnkeeper", "deliver", "test", "ada")
    assert (done.returncode, "apprise -vv" in done.stderr, "planted" in done.stderr) == (EXIT_UNREACHABLE, True, False)


def test_adding_or_testing_a_target_while_no_process_delivers_says_so(stopped: Constellation) -> None:
    allow(stopped)
    for command in (("add", "ada", "--command", "true"), ("test", "ada")):
        done = stopped.attempt("turnkeeper", "deliver", *command)
        assert "nothing is delivered yet: the process that delivers does not run; run: turnkeeper up" in done.stderr
        assert "set enabled" not in done.stderr
    config = stopped.home.config
    config.write_text(with_key(config.read_text(), "delivery", "enabled", value=False))
    assert "set enabled = true below [delivery]" in stopped.attempt("turnkeeper", "deliver", "test", "ada").stderr


def test_explain_says_nothing_of_deliveries_while_delivery_is_off(constellation: Constellation) -> None:
    config = constellation.home.config
    said = config.read_text() if config.exists() else ""
    config.write_text(with_key(said, "delivery", "enabled", value=False))
    constellation.create("news", "--in", "1s")
    constellation.until_outcome("news", "succeeded")
    assert "deliver" not in constellation.command("task-runner", "explain", "news")


def test_adding_or_testing_a_target_says_what_keeps_real_results_from_it(constellation: Constellation) -> None:
    allow(constellation)
    constellation.create("news", "--every", "365d")
    done = constellation.attempt("turnkeeper", "deliver", "add", "ada", "--command", "true", "--task", "news")
    assert (done.returncode, "no task" in done.stderr, "nothing is delivered yet" in done.stderr) == (0, False, True)
    with delivering(constellation):
        done = constellation.attempt("turnkeeper", "deliver", "add", "bob", "--command", "true", "--task", "newz")
        assert (done.returncode, "warning: there is no task newz yet" in done.stderr) == (0, True)
        constellation.command("turnkeeper", "task", "delete", "news")
        done = constellation.attempt("turnkeeper", "deliver", "add", "eve", "--command", "true", "--task", "news")
        assert "warning: there is no task news yet" in done.stderr
        assert "older settings" not in constellation.attempt("turnkeeper", "deliver", "test", "ada").stderr
        allow(constellation, "nas.local")
        said = constellation.attempt("turnkeeper", "deliver", "test", "ada").stderr
        assert "ada took it" in said
        assert "older settings (delivery.allow); then run: turnkeeper up --restart" in " ".join(said.split())


def test_a_digest_at_the_time_of_a_fire_is_warned_of(constellation: Constellation) -> None:
    allow(constellation)
    constellation.create("news", "--cron", "0 8 * * *", "--tz", "Europe/Berlin")
    for digest, is_early in (("08:00", True), ("18:00", False)):
        options = ("--command", "true", "--task", "news", "--digest", digest, "--tz", "Europe/Berlin")
        done = constellation.attempt("turnkeeper", "deliver", "add", f"at-{digest[:2]}", *options)
        assert (done.returncode, "the digest goes out before the answer of news" in done.stderr) == (0, is_early)


def held(place: Constellation, *names: str) -> None:
    """Write results into the outbox that wait for the digest of ada."""
    store = outbox.open_outbox(place.home)
    assert store is not None
    at, body = to_us(SystemClock().now() + timedelta(days=1)) // 2 * 2, '{"data": {}}'
    rows = [
        outbox.Delivery(name, "success", outbox.GATHERED, at, at, target="ada", body=body, reason="daily digest")
        for name in names
    ]
    with closing(store):
        store.submit(partial(outbox.put, rows=rows)).result()


def test_what_waits_for_a_digest_is_sent_by_command_or_dropped_with_its_target(stopped: Constellation) -> None:
    add(stopped, "ada", "--command", "true", "--digest", "08:00")
    assert "sent now: 0" in stopped.attempt("turnkeeper", "deliver", "send", "ada").stderr
    held(stopped, "one", "two")
    assert [row["reason"] for row in log_of(stopped)] == ["daily digest"] * 2
    assert "sent now: 2" in stopped.attempt("turnkeeper", "deliver", "send", "ada").stderr
    assert all(parse_rfc3339(row["next_at"]) <= SystemClock().now() for row in log_of(stopped))
    assert "are dropped: 2" in stopped.attempt("turnkeeper", "deliver", "delete", "ada").stderr
    assert [(row["state"], row["reason"]) for row in log_of(stopped)] == [("dropped", "its target was removed")] * 2
    assert stopped.attempt("turnkeeper", "deliver", "send", "ada").returncode == EXIT_NOT_FOUND


def test_an_edited_target_keeps_what_is_not_given(stopped: Constellation, hook: Hook) -> None:
    allow(stopped, hook.place)
    secret = add(stopped, "ops", "--webhook", f"http://{hook.place}/", "--task", "news", "--on", "failure")
    done = stopped.attempt("turnkeeper", "deliver", "edit", "ops", "--digest", "18:00", "--tz", "Europe/Berlin")
    assert (done.returncode, done.stdout) == (0, "")
    was = FILE.one(stopped.home, "ops")
    assert (was.secret, was.webhook, was.on) == (secret, f"http://{hook.place}/", ("failure",))
    assert (was.tasks, was.digest, was.timezone) == (("news",), "18:00", "Europe/Berlin")
    assert "Europe/Berlin" in stopped.command("turnkeeper", "deliver", "list")

    stopped.command("turnkeeper", "deliver", "edit", "ops", "--task", "none", "--digest", "none", "--command", "true")
    now = FILE.one(stopped.home, "ops")
    assert (now.way, now.secret, now.tasks, now.digest, now.on) == ("command", "", (), "", ("failure",))
    refused = stopped.attempt("turnkeeper", "deliver", "edit", "ops")
    assert (refused.returncode, "nothing to change" in refused.stderr) == (EXIT_USAGE, True)
    assert stopped.attempt("turnkeeper", "deliver", "edit", "ada", "--on", "waits").returncode == EXIT_NOT_FOUND


def test_a_command_gets_the_text_in_its_variables_and_the_whole_on_its_standard_input(stopped: Constellation) -> None:
    said = stopped.home.root / "said"
    add(stopped, "here", "--command", f'{{ echo "$TURNKEEPER_TITLE: $TURNKEEPER_TEXT"; cat; }} > {said}')
    stopped.command("turnkeeper", "deliver", "test", "here")
    assert said.read_text().startswith("a test of Turnkeeper succeeded: Turnkeeper's deliveries reach you here.\n{")
    add(stopped, "broken", "--command", "echo no such printer >&2; exit 3")
    done = stopped.attempt("turnkeeper", "deliver", "test", "broken")
    assert "no such printer" in done.stderr
    again = stopped.attempt("turnkeeper", "deliver", "add", "broken", "--command", "true")
    assert "delete it: turnkeeper deliver delete broken" in again.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "exactly one"),
        (("--webhook", "ftp://example.org/"), "http"),
        (("--webhook", "https://example.org/", "--command", "true"), "exactly one"),
        (("--command", "true", "--quiet-hours", "25:00-07:00"), "time of day"),
        (("--service", "malto://ada@example.org"), "Unparseable URL"),
        (("--service", "mailto://ada:secret@127.0.0.1:2587?to=a@example.org"), "Invalid ~From~"),
        (("--command", "true", "--quiet-hours", "07:00-07:00"), "quiet"),
        (("--command", "true", "--digest", "noon"), "digest"),
        (("--command", "true", "--tz", "Mars/Base"), "zone"),
        (("--command", "true", "--on", "nothing"), "'success', 'failure', 'waits' or 'run'"),
        (("--service", "nothing"), "apprise"),
    ],
)
def test_bad_input_is_refused_and_nothing_is_written(
    stopped: Constellation, options: tuple[str, ...], said: str
) -> None:
    done = stopped.attempt("turnkeeper", "deliver", "add", "ops", *options)
    assert (done.returncode, said in done.stderr) == (EXIT_USAGE, True), done.stderr
    assert "Traceback" not in done.stderr
    assert stopped.ask("turnkeeper", "deliver", "list") == []


def test_a_service_without_its_package_is_refused_with_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    with pytest.raises(InvalidInput, match="needs a package that is not installed") as refused:
        _check_url(Target(service="mailtos://ada:secret@example.org"), ())
    assert "turnkeeper[notify]" in refused.value.hint


def test_a_task_that_follows_another_gets_its_answer_as_data_once(constellation: Constellation) -> None:
    allow(constellation)
    add(constellation, "chain", "--event", "answers", "--on", "success", "--task", "first")
    with delivering(constellation):
        constellation.create("second", "--on", "answers", "--filter", "data.outcome=succeeded", "--debounce", "0s")
        constellation.create("first", "--in", "1s", "--prompt", "Summarise the day.")
        constellation.await_outcome("second", "succeeded")
        answer = next(
            turn["messages"][-1]["text"]
            for turn in constellation.conversation()
            if (turn["trigger"] or {})["task"] == "first"
        )
        prompt = constellation.conversation()[-1]["messages"][0]["text"]
        assert json.dumps(answer)[1:-1] in prompt
    assert len(constellation.history("second")) == 1


def test_a_task_does_not_fire_for_the_answers_that_its_own_fires_caused(constellation: Constellation) -> None:
    allow(constellation)
    add(constellation, "chain", "--event", "answers", "--on", "success")
    with delivering(constellation):
        constellation.create("echo", "--on", "answers", "--debounce", "0s", "--prompt", "Summarise the answer.")
        constellation.create("first", "--in", "1s", "--prompt", "Summarise the day.")
        constellation.await_outcome("echo", "skipped")
    (skipped,) = [fire for fire in constellation.history("echo") if fire["outcome"] == "skipped"]
    assert skipped["reason"] == "storm: own chain"
    asked = schedules.EmitEventRequest(name="answers", fire_id=constellation.history("first")[0]["fire_id"])
    with pytest.raises(Denied, match="fire_id"), closing(Caller(constellation.home, via="delivery/api")) as caller:
        caller.EmitEvent(asked)
