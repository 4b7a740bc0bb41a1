"""Alerts to the author without a daemon: sent by a command, else by a webhook, else retried later.

An alert is written to disk before the first attempt, under a name made from its cause, and is removed after a route has
accepted it. So it is delivered at least once, even after a crash.
"""

import json
import logging
import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from importlib import import_module
from pathlib import Path
from typing import Any

from turnkeeper.bus.event_log import EventLog
from turnkeeper.clock import Clock
from turnkeeper.config.build import install_command
from turnkeeper.config.home import Home
from turnkeeper.console.unseen import plain
from turnkeeper.constellation.supervisor import markers
from turnkeeper.errors import InvalidInput

LONGEST_S = 10.0
LONGEST_BYTES = 4096
_AUTHOR = "author"
_PASSED_ON = ("PATH", "HOME", "USER", "LANG", "DISPLAY", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS")


@dataclass(frozen=True, kw_only=True)
class Routes:
    """The routes for alerts.

    Attributes:
        command: a shell command; empty for none.
        webhook: an http or https address, or one of apprise's; empty for none.
        announce: True to report each verified start of agent-runtime.
    """

    command: str = ""
    webhook: str = ""
    announce: bool = False


def escalate(home: Home, process: str, key: str, text: str) -> None:
    """Write an alert to disk, which :func:`send_all` sends. A second call with the same key changes nothing."""
    path = markers.ESCALATION.at(home, process=process, ts=key)
    if not os.path.lexists(path):
        markers.write_marker(path, {"text": f"turnkeeper: {process}: {text} ({home.root})", "tried_at": None})


def check_alert(text: str) -> None:
    """Raise InvalidInput for text that cannot be sent."""
    if not text.strip() or "\0" in text or len(os.fsencode(text)) > LONGEST_BYTES:
        raise InvalidInput(f"give 1 to {LONGEST_BYTES} bytes of text", where="TEXT")


def send_now(home: Home, text: str, routes: Routes, environ: Mapping[str, str], clock: Clock) -> bool:
    """Send an author's own alert. Return True if a route accepted it. If none did, keep it for later ticks."""
    now = clock.now()
    marker = markers.ESCALATION.at(home, process=_AUTHOR, ts=f"{now.astimezone(UTC):%Y%m%dT%H%M%S.%fZ}")
    says = {"text": f"turnkeeper: {text} ({home.root})", "tried_at": now.timestamp()}
    return _try(marker, says, routes, EventLog(home.logs, "turnkeeper", clock), environ)


def settle(home: Home, process: str, at: str) -> None:
    """Mark the alerts about a verified process as over. The alerts still wait to be read."""
    for path in markers.found(home, markers.ESCALATION):
        says = markers.read_marker(path) if path.name.endswith(f"-{process}") else None
        if isinstance(says, dict) and not says.get("over_at"):
            markers.write_marker(path, says | {"over_at": at})


def send_all(
    home: Home, routes: Routes, log: EventLog, environ: Mapping[str, str], *, now: float, every_s: float
) -> None:
    """Send the alerts that were not delivered and for which there was no attempt in the last `every_s` seconds.

    If there is no route, attempt nothing and keep the markers; `turnkeeper status` shows them.
    """
    if not (routes.command or routes.webhook):
        return
    for path in markers.found(home, markers.ESCALATION):
        says = markers.read_marker(path)
        if says is None:
            continue
        told: dict[str, Any] = says if isinstance(says, dict) else {}
        tried_at = told.get("tried_at")
        if isinstance(tried_at, int | float) and 0 <= now - tried_at < every_s:
            continue
        text = str(told.get("text") or f"turnkeeper: an alert that cannot be read: {path}")
        _try(path, told | {"text": text, "tried_at": now}, routes, log, environ)


def _try(path: Path, says: dict[str, Any], routes: Routes, log: EventLog, environ: Mapping[str, str]) -> bool:
    """Send an alert if it is due. Then clear its marker, or record that the attempt failed."""
    markers.write_marker(path, says | {"failed": False})
    sent = send(says["text"], routes, log, environ, marker=path.name)
    if sent:
        markers.clear_marker(path)
    elif isinstance(now := markers.read_marker(path), dict):  # meanwhile it can be withdrawn, or marked as over
        markers.write_marker(path, now | {"failed": True})
    return sent


def take_pending(home: Home) -> list[str]:
    """Clear the undelivered alerts and return their texts, which the caller shows to the author."""
    texts = []
    for path in markers.found(home, markers.ESCALATION):
        says = markers.read_marker(path)
        texts.append(str(says.get("text", path.name)) if isinstance(says, dict) else path.name)
        markers.clear_marker(path)
    return texts


def send(text: str, routes: Routes, log: EventLog, environ: Mapping[str, str], *, marker: str = "") -> bool:
    """Send an alert by the first route that accepts it. Return True if one did, or if no route is set.

    Write no marker. An alert may contain a name of a tool that a model made up, so invisible characters are escaped.
    """
    text = plain(text)
    passed = {name: environ[name] for name in _PASSED_ON if name in environ}
    for route in ("command", "webhook"):
        target = str(getattr(routes, route))
        if not target:
            continue
        try:
            failure = _by_command(target, text, passed) if route == "command" else post(target, text, LONGEST_S)
        except OSError as error:  # there is no free descriptor or process
            failure = error.strerror or str(error)
        if not failure:
            log.emit("escalate.done", marker=marker, route=route)
            return True
        log.emit("escalate.failed", marker=marker, route=route, reason=failure)
    return not (routes.command or routes.webhook)


def _by_command(command: str, text: str, environ: Mapping[str, str]) -> str:
    """Run the command in a new session. Return why it failed, or an empty string if it succeeded."""
    with subprocess.Popen(  # noqa: S602  the author's own command line
        command,
        shell=True,
        env=dict(environ) | {"TURNKEEPER_EVENT": "escalation", "TURNKEEPER_TEXT": text},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            code = process.wait(LONGEST_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return f"took longer than {LONGEST_S:.0f}s"
    return f"exit status {code}" if code else ""


def post(address: str, text: str, timeout_s: float) -> str:
    """POST `{"text": …}`, as chat servers accept it. Return why it failed, or an empty string if it succeeded.

    The reason never contains the address, because the address is often a secret.
    """
    if not address.startswith(("http://", "https://")):
        return _by_apprise(address, text)
    http = import_module("urllib.request")  # this import takes longer than the start of the supervisor
    request = http.Request(
        address, data=json.dumps({"text": text}).encode(), headers={"Content-Type": "application/json"}, method="POST"
    )
    try:
        with http.urlopen(request, timeout=timeout_s):
            return ""
    except (OSError, ValueError) as error:  # an HTTPError is an OSError with a code
        code = getattr(error, "code", None)
        return f"status {code}" if code else type(error).__name__


def _by_apprise(address: str, text: str) -> str:
    try:
        import apprise  # noqa: PLC0415  an optional extra
    except ImportError:
        return f"this kind of address needs a package: {install_command('turnkeeper[notify]')}"
    logging.getLogger("apprise").disabled = True  # the error would contain the address
    sender = apprise.Apprise()
    if not sender.add(address):
        return "apprise does not know this kind of address"
    return "" if sender.notify(body=text) else "apprise could not deliver it"
