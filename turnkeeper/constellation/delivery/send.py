"""One attempt of one delivery: to a signed webhook, to a service of apprise, or to a command.

A webhook is signed according to Standard Webhooks, with the headers `webhook-id`, `webhook-timestamp` and
`webhook-signature`. The child process `python -m turnkeeper.constellation.delivery.send` sends to services, because
their libraries open connections themselves. There, the policy for hosts applies to every name that is resolved.
"""

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import os
import re
import ssl
import sys
from collections.abc import Collection, Mapping
from datetime import datetime
from importlib import import_module
from string import punctuation
from typing import Any
from urllib.parse import quote, urlsplit

import httpcore2

from turnkeeper.config.build import install_command
from turnkeeper.console.unseen import plain
from turnkeeper.constellation.delivery import hosts
from turnkeeper.constellation.delivery.targets import Target, secret_bytes
from turnkeeper.errors import Denied, TurnkeeperError

LONGEST_S = 20.0
LONGEST_TEXT = 32_000  # characters, in the variables of a command and in the text of a service
_PASSED_ON = ("PATH", "HOME", "USER", "LANG", "DISPLAY", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS", "SSL_CERT_FILE")
_FAULTS = (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException)
_NOT_TAKEN = "the service could not be reached, or did not take it; to see why, run: apprise -vv -b hello URL"
_SERVE = [sys.executable, "-P", "-m", "turnkeeper.constellation.delivery.send"]
_OVER = 410  # the status Gone: the receiver no longer accepts deliveries
_SPELLED = {"success": "succeeded", "failure": "failed", "waits": "waits for you", "digest": "digest"}
_TIME_OF_FIRE = re.compile(r"@(\d{8}T\d{6}Z)")
_ENDED = {"rejected": "was rejected", "cancelled": "was cancelled", "skipped": "did not run", "stopped": "was stopped"}


class Refused(TurnkeeperError):
    """The error of a delivery that can never succeed and is not tried again."""


def signature(secret: str, key: str, at: datetime, body: bytes) -> Mapping[str, str]:
    """Return the headers that prove the sender and the time of a request."""
    seconds = str(int(at.timestamp()))
    mac = hmac.digest(secret_bytes(secret), f"{key}.{seconds}.".encode() + body, hashlib.sha256)
    signed = f"v1,{base64.b64encode(mac).decode()}"
    return {"webhook-id": key, "webhook-timestamp": seconds, "webhook-signature": signed}


def title(data: Mapping[str, Any], kind: str) -> str:
    """Return the subject of a delivery, with the time of its fire in the machine's zone."""
    ended = _ENDED.get(data.get("outcome", ""), _SPELLED[kind])
    at = _TIME_OF_FIRE.search(data.get("fire_id", ""))
    of = f", {datetime.strptime(at[1], '%Y%m%dT%H%M%S%z').astimezone():%Y-%m-%d %H:%M}" if at else ""
    return plain(f"{data.get('task') or data.get('channel') or 'Turnkeeper'} {ended}{of}")


def text_of(data: Mapping[str, Any]) -> str:
    """Return the text of a delivery, for people: the reason, the answer, the question with its call, and how to decide.

    If the text is too long, cut its end, but not how to decide.
    """
    said = [data.get("reason"), data.get("text"), data.get("question")]
    if data.get("arguments"):
        said.append(f"{data.get('tool') or 'asked'}: {data['arguments']}")
    text = plain("\n\n".join(str(part) for part in said if part))
    cut = f"… {len(text) - LONGEST_TEXT:,} more characters" if len(text) > LONGEST_TEXT else ""
    link = f"Decide it here, once, within a day: {data['decide']}" if data.get("decide") else ""
    if not link and data.get("interrupt_id"):
        how = "--approve or --reject" if data.get("tool") else "-h"
        link = f"Decide it: turnkeeper triage, or turnkeeper approvals resolve {data['interrupt_id'][:10]} {how}"
    return "\n\n".join(part for part in (text[:LONGEST_TEXT] + cut, link) if part)


async def send(target: Target, key: str, kind: str, body: str, at: datetime, *, allowed: Collection[str]) -> str:
    """Send one delivery once. Return why it failed, or an empty string if it succeeded. Raises Refused.

    The reason never contains the whole address, because an address is often a secret.
    """
    try:
        async with asyncio.timeout(LONGEST_S):
            if target.webhook:
                headers = signature(target.secret, key, at, body.encode()) if target.secret else {"webhook-id": key}
                return await post(target.webhook, body.encode(), headers, allowed)
            data = json.loads(body)["data"]
            said = {"TITLE": title(data, kind), "TEXT": text_of(data), "KEY": key, "EVENT": kind}
            if target.service:
                asked = {"address": target.service, "allowed": sorted(allowed), **said}
                return await _run(_SERVE, json.dumps(asked), {})
            for name in ("task", "channel", "fire_id", "turn_id", "outcome", "reason", "tool", "arguments", "decide"):
                said[name.upper()] = plain(str(data.get(name) or ""))[:LONGEST_TEXT]
            named = {f"TURNKEEPER_{name}": value.replace("\0", "") for name, value in said.items()}
            return await _run(["/bin/sh", "-c", target.command], body, named)
    except TimeoutError:
        return f"took longer than {LONGEST_S:.0f} s"
    except Refused:
        raise
    except Denied as error:
        raise Refused(str(error)) from error
    except (TurnkeeperError, OSError, ValueError, *_FAULTS) as error:
        return str(error) or type(error).__name__


async def post(url: str, body: bytes, headers: Mapping[str, str], allowed: Collection[str]) -> str:
    """POST a JSON body. Return why it failed, or an empty string if it succeeded. Follow no redirect.

    Raises:
        Denied: the host is this machine or is on a private network, and is not allowed.
        Refused: the receiver answered 410 Gone.
    """
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    found = await asyncio.to_thread(hosts.resolve, host, port, allowed)
    target = quote(f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}", safe=punctuation)
    named = parts.netloc.rpartition("@")[2].encode("idna").decode()  # a name in any script, as DNS and TLS spell it
    sent = {"Host": named, "Content-Type": "application/json", **headers}
    if parts.username:
        pair = f"{parts.username}:{parts.password or ''}".encode()
        sent["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
    where = httpcore2.URL(scheme=parts.scheme, host=found[0][4][0], port=port, target=target)
    async with httpcore2.AsyncConnectionPool(max_connections=1, ssl_context=ssl.create_default_context()) as pool:
        how = {"sni_hostname": host.encode("idna").decode()}
        async with pool.stream("POST", where, headers=list(sent.items()), content=body, extensions=how) as answer:
            status = int(answer.status)
    if status == _OVER:
        raise Refused(f"status {status}: the receiver wants no more")
    return "" if 200 <= status < 300 else f"status {status}"


async def _run(argv: list[str], given: str, environ: Mapping[str, str]) -> str:
    """Run a program in its own session with the text on its stdin. Return why it failed, or "" if it succeeded."""
    passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    process = await asyncio.create_subprocess_exec(
        *argv,
        env=passed | dict(environ),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        _, said = await process.communicate(given.encode())
    finally:
        if process.returncode is None:
            os.killpg(process.pid, 9)
            await process.wait()
    last = said.decode("utf-8", "replace").strip().rpartition("\n")[2][:300]
    return "" if process.returncode == 0 else plain(last) or f"exit status {process.returncode}"


async def refusal(address: str) -> str:
    """Return why apprise refuses the address of a service, without secrets. Empty if it does not."""
    return await _run(_SERVE, json.dumps({"address": address, "allowed": []}), {})


def _refusal(apprise: Any, address: str) -> str:
    said, log = list[str](), logging.getLogger("apprise")
    told = logging.Handler()
    told.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    log.addHandler(told)
    if apprise.Apprise.instantiate(address) is not None:
        return ""
    return next(iter(said), "it is not known").replace(address, "the URL")


def serve(asked: Mapping[str, Any]) -> str:
    """Send the text to a service from this process. Return why it failed, or an empty string if it succeeded."""
    refused = hosts.guard(asked["allowed"])
    try:
        apprise = import_module("apprise")
    except ImportError:
        return f"services need a package: {install_command('turnkeeper[notify]')}"
    if "TITLE" not in asked:
        return _refusal(apprise, asked["address"])
    logging.getLogger("apprise").disabled = True  # errors of the library contain the address
    sender = apprise.Apprise()
    if not sender.add(asked["address"]):
        return "apprise does not know this kind of address"
    taken = sender.notify(title=asked["TITLE"], body=asked["TEXT"] or asked["TITLE"], body_format="text")
    return "" if taken else (refused or [_NOT_TAKEN])[0]


if __name__ == "__main__":
    sys.exit(serve(json.loads(sys.stdin.read())) or 0)
