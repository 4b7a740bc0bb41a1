"""`turnkeeper deliver`: the targets of deliveries, and the state of each delivery."""

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC
from functools import partial
from importlib.util import find_spec
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer
from pydantic import ValidationError

from turnkeeper import console
from turnkeeper.bus.event_log import record_act
from turnkeeper.clock import SystemClock
from turnkeeper.config.build import install_command
from turnkeeper.config.home import Home
from turnkeeper.config.settings import load_settings
from turnkeeper.config.started import changes, read_start, settings_now
from turnkeeper.config.toml_file import reason
from turnkeeper.console.commands import App
from turnkeeper.console.lists import Listed, columns, listing
from turnkeeper.constellation.delivery import hosts, outbox, targets
from turnkeeper.constellation.delivery.send import refusal, send
from turnkeeper.entropy import SystemEntropy
from turnkeeper.errors import InvalidInput, NotFound, TurnkeeperError, Unreachable
from turnkeeper.rpc.channel import Caller
from turnkeeper.storage.locking import is_held
from turnkeeper.storage.statements import cursor_at, number_of
from turnkeeper.times import from_us, rfc3339
from turnkeeper.v1 import schedules_pb2 as schedules

app = App("Deliver results and questions of tasks to people: by a command, a webhook, e-mail or a chat.")
Name = Annotated[str, typer.Argument(metavar="NAME", help="The target's name.")]
_TARGETS = columns("NAME WAY ON TASKS CHANNELS QUIET DIGEST ZONE=timezone")
_LOG = columns(
    "MADE=made_at KIND TASK TARGET STATE #TRIES NEXT=next_at REASON +KEY +FIRE=fire_id",
    tries=lambda row: str(row["tries"] or "-"),
)
_TEST = "Turnkeeper's deliveries reach you here."
_PROCESS = "delivery"
_SECRETS = {"webhook", "service", "command", "secret"}
_WAYS = {"webhook", "service", "command", "event"}
_SET = "nothing is delivered yet: set enabled = true below [delivery] in config.toml; then run: turnkeeper up"
_SERVICE = "such as mailtos://USER:PASSWORD@HOST, or mailto://HOST:25?from=A@HOST&to=B@HOST for a local server"
_DOWN = "nothing is delivered yet: the process that delivers does not run; run: turnkeeper up"


def _option(said: str, *names: str, of: Any = str, **more: Any) -> Any:
    return Annotated[of | None, typer.Option(*names, help=said, **more)], None


_OPTIONS = {
    "webhook": _option("POST signed JSON to this http or https URL."),
    "service": _option("Send by a URL of apprise: mailtos://…, slack://…, tgram://…, ntfy://…; -: asked for."),
    "command": _option("Run this shell command; the text is in TURNKEEPER_TEXT."),
    "event": _option("Emit this event of the home: tasks that wait for it get the answer."),
    "on": _option(
        "What: success, failure (what you reject or cancel, and skipped times, too), waits or run; by default all but"
        " run, which names an address.",
        of=list[str],
    ),
    "tasks": _option("Only of this task; may be repeated.", "--task", of=list[str]),
    "channels": _option("Only of this channel; may be repeated.", "--channel", of=list[str]),
    "quiet": _option("Hours of each day when nothing is sent.", "--quiet-hours", metavar="HH:MM-HH:MM"),
    "digest": _option("Send results once a day, at this time.", metavar="HH:MM"),
    "timezone": _option("IANA zone of both; default that of new tasks.", "--tz"),
}


def _with_options(command: Any) -> Any:
    """Give a command that takes a name the options that describe a target."""
    return console.declared(command, command, _OPTIONS)


@app.command()
@_with_options
def add(name: Name, **given: Any) -> None:
    """Add a target. It gets the results of tasks, and the questions that wait for you.

    Each success, failure and question of a fire is sent once, with its text. A webhook's key is printed once.

    Example: turnkeeper deliver add ops --webhook https://example.org/hook --on failure --on waits --task backup
    """
    _write(name, {}, given, "added", targets.add)


@app.command()
@_with_options
def edit(name: Name, **given: Any) -> None:
    """Change a target. Options that you omit stay, also the address and its key; `none` removes a value.

    Deliveries that wait keep their times.

    Example: turnkeeper deliver edit ops --digest 18:00 --task none
    """
    if not any(given.values()):
        raise InvalidInput("nothing to change", where="deliver edit", hint="give an option, for example --digest")
    _write(name, targets.FILE.one(console.home(), name).model_dump(), given, "changed", targets.replace)


def _write(name: str, was: dict[str, Any], given: dict[str, Any], done: str, write: Any) -> None:
    """Write a target: the values that it was made of, with the given ones in their places."""
    place, clock = console.home(), SystemClock()
    settings = load_settings(place)
    made = _target(was, given, settings.scheduler.timezone)
    _check_url(made, settings.delivery.allow)
    write(place, name, made)
    record_act(place.logs, _PROCESS, f"deliver {'edit' if was else 'add'}", f"{name} {made.way}", clock)
    console.note(f"{done} {name}: {made.way}")
    if made.secret != was.get("secret", "") and made.secret:
        console.note("the key of its signatures, shown this once:")
        print(made.secret)
    for warning in _warnings(place, made):
        console.note(f"warning: {warning}")
    _note_state(place)


def _target(was: dict[str, Any], given: dict[str, Any], zone: str) -> targets.Target:
    said = {key: value for key, value in given.items() if value}
    if said.get("service") == "-":
        ask = partial(typer.prompt, "Service", hide_input=True, err=True)
        said["service"] = ask() if sys.stdin.isatty() else sys.stdin.read().strip()
    kept = {key: value for key, value in was.items() if not (key in _WAYS and said.keys() & _WAYS)}
    whole = {key: value for key, value in ({"timezone": zone} | kept | said).items() if value not in ("none", ["none"])}
    whole["on"] = tuple(dict.fromkeys(whole.get("on", targets.KINDS)))
    whole["secret"] = (whole.get("secret") or targets.new_secret(SystemEntropy())) if whole.get("webhook") else ""
    try:
        return targets.Target.model_validate(whole)
    except ValidationError as error:
        found = error.errors(include_url=False)[0]
        where = ".".join(map(str, found["loc"])) or f"deliver {'edit' if was else 'add'}"
        raise InvalidInput(reason(found["type"], found["msg"]), where=where) from error


def _warnings(place: Home, target: targets.Target) -> Iterator[str]:
    """Yield a warning for each task of a target that is missing, or that fires shortly before the digest."""
    with suppress(TurnkeeperError), closing(Caller(place, via="turnkeeper/cli", deadline_s=5.0)) as caller:
        for name in target.tasks:
            task = _task(caller, name)
            if task is None:
                yield f"there is no task {name} yet; see: turnkeeper task list"
            elif task.HasField("next_fire_at") and target.is_early_for(task.next_fire_at.ToDatetime(UTC)):
                yield f"the digest goes out before the answer of {name} is there: choose a later --digest"


def _task(caller: Any, name: str) -> schedules.Task | None:
    """Return a task; None if no task has the name."""
    with suppress(NotFound):
        found: schedules.Task = caller.GetTask(schedules.GetTaskRequest(name=name))
        if found.spec.name == name and found.state != "deleted":
            return found
    return None


def _note_state(place: Home) -> None:
    """Print a note if nothing is delivered yet, or if the running process still has older settings."""
    start = read_start(place, _PROCESS)
    if not is_held(place, _PROCESS):
        console.note(_DOWN if load_settings(place).delivery.enabled else _SET)
    elif start and (older := changes(start.settings, settings_now(place, _PROCESS))):
        console.note(f"deliveries still use older settings ({', '.join(older)}); {hosts.RELOAD}")


def _check_url(target: targets.Target, allowed: tuple[str, ...]) -> None:
    """Raise InvalidInput if the target's URL has the wrong form, or Denied if its host is not allowed."""
    if target.service and find_spec("apprise") is None:
        hint = f"run: {install_command('turnkeeper[notify]')}"
        raise InvalidInput("needs a package that is not installed", where="--service", hint=hint)
    if target.service and (why := asyncio.run(refusal(target.service))):
        raise InvalidInput(f"apprise does not take it: {why}", where="--service", hint=_SERVICE)
    if not target.webhook:
        return
    try:
        parts = urlsplit(target.webhook)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidInput(f"is not a URL: {error}", where="--webhook") from error
    if parts.scheme not in {"http", "https"} or not host:
        raise InvalidInput("is not an http or https URL", where="--webhook")
    try:
        hosts.resolve(host, port or (443 if parts.scheme == "https" else 80), allowed)
    except Unreachable as error:
        console.note(f"{error}; it is tried again at each delivery")


@app.command("list")
@listing(_TARGETS, "name")
def list_() -> Listed:
    """List the targets, without their secrets.

    Example: turnkeeper deliver list
    """
    rows = [
        {"name": name, "way": one.way, **one.model_dump(mode="json", exclude=_SECRETS)}
        for name, one in targets.FILE.read(console.home()).items()
    ]
    return Listed(rows, "" if rows else "no target yet: turnkeeper deliver add NAME")


@app.command()
def delete(name: Name) -> None:
    """Delete a target. Deliveries that wait for it are dropped, and recorded as `dropped`.

    Example: turnkeeper deliver delete ops
    """
    place, clock = console.home(), SystemClock()
    targets.FILE.remove(place, name)
    dropped = outbox.changed(place, partial(outbox.drop, target=name, now=clock.now()))
    record_act(place.logs, _PROCESS, "deliver delete", name, clock)
    console.note(f"{name} deleted; deliveries that waited for it and are dropped: {dropped}")


@app.command("send")
def send_now(name: Name) -> None:
    """Send now what waits for a target's digest, or for the end of its quiet hours.

    Example: turnkeeper deliver send ops
    """
    place, clock = console.home(), SystemClock()
    targets.FILE.one(place, name)
    sent = outbox.changed(place, partial(outbox.release, target=name, now=clock.now()))
    record_act(place.logs, _PROCESS, "deliver send", name, clock)
    console.note(f"deliveries to {name} that waited and are sent now: {sent}")
    _note_state(place)


@app.command()
def test(name: Name) -> None:
    """Send a test delivery to a target at once, and say if the target accepted it.

    A test is not recorded in the outbox. Example: turnkeeper deliver test ops
    """
    place, now = console.home(), SystemClock().now()
    target = targets.FILE.one(place, name)
    if target.event:
        raise InvalidInput("is an event, which cannot be tested", where=name, hint=f"turnkeeper emit {target.event}")
    data = {"task": "a test of Turnkeeper", "channel": "", "outcome": "succeeded", "reason": "", "text": _TEST}
    body = json.dumps({"type": "task.succeeded", "timestamp": rfc3339(now), "data": data})
    key = f"msg_{SystemEntropy().hex(32)}"
    why = asyncio.run(send(target, key, "success", body, now, allowed=load_settings(place).delivery.allow))
    if why:
        raise Unreachable(f"the target did not take it: {why}", where=name)
    console.note(f"{name} took it")
    _note_state(place)


@app.command()
@listing(_LOG, "key", limit=50)
def log(
    waiting: Annotated[bool, typer.Option(help="Only deliveries that are not over.")] = False,
    **page: Any,
) -> Listed:
    """Show deliveries, newest first: which ones were accepted, which ones wait for a retry, and why.

    Example: turnkeeper deliver log --waiting
    """
    store, rows = outbox.open_outbox(console.home(), read_only=True), []
    if store is not None:
        limit, after = page["limit"], number_of(page["cursor"])
        with closing(store):
            read = store.submit(lambda it: outbox.rows_of(it, limit=limit, after=after, only_open=waiting))
            rows = [_row(dict(row)) for row in read.result()]
    last = cursor_at(rows[-1]["number"]) if len(rows) == page["limit"] else ""
    return Listed(rows, f"older ones: --cursor {last}" if last else "" if rows else "no delivery")


def _row(row: dict[str, Any]) -> dict[str, Any]:
    for name in ("next", "made", "ended"):
        us = row.pop(f"{name}_us")
        row[f"{name}_at"] = None if us is None else rfc3339(from_us(us))
    del row["body"], row["address"]
    return row
