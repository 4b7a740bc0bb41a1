"""The webhooks that a home accepts, in `state/hooks.json`: the key of each, and the form of its signatures.

`standard` is the form of Standard Webhooks: id, timestamp and body are signed, and a request is valid for five minutes.
`github` is GitHub's form: only the body is signed. A body counts once for each id of a delivery, `X-GitHub-Delivery`.
"""

import base64
import hashlib
import hmac
import re
from collections.abc import Mapping
from datetime import datetime

from pydantic import BaseModel, ConfigDict, TypeAdapter

from turnkeeper.config.home import Home
from turnkeeper.entropy import Entropy
from turnkeeper.errors import Denied, InvalidInput
from turnkeeper.storage.files import Entries

STANDARD, GITHUB = STYLES = ("standard", "github")
WINDOW_S = 300.0
_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}", re.ASCII)
_PREFIX = "whsec_"
_HEADERS = ("webhook-id", "webhook-timestamp", "webhook-signature")
_OF_GITHUB = "X-Hub-Signature-256"
CAUSE, DELIVERY, PING = "x-github-event", "x-github-delivery", "ping"  # headers of GitHub, and the event of a test
_SIGNING = "sign with the webhook's key as Standard Webhooks or GitHub specify; see: Webhooks in docs/events.md"
_RESERVED = "decide"
_NAMING = f"use a-z, 0-9 and -, begin with a letter, at most 32; not {_RESERVED}"


class Hook(BaseModel):
    """One webhook. Each of its requests becomes an event with the name `event`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    event: str
    secret: str
    style: str = STANDARD


FILE = Entries[Hook]("hooks", "webhook", "turnkeeper hooks", TypeAdapter(dict[str, Hook]))


def add(home: Home, name: str, hook: Hook) -> None:
    if not _NAME.fullmatch(name) or name == _RESERVED:
        raise InvalidInput(f"{name[:40]!r} is not a valid webhook name", where="NAME", hint=_NAMING)
    if hook.style not in STYLES:
        raise InvalidInput(f"no style {hook.style[:40]!r}", where="--style", hint=f"use one of: {', '.join(STYLES)}")
    FILE.add(home, name, hook)


def new_secret(entropy: Entropy) -> str:
    return _PREFIX + base64.b64encode(bytes.fromhex(entropy.hex(64))).decode()


def check(hook: Hook | None, headers: Mapping[str, str], body: bytes, now: datetime) -> str:
    """Return the id of a signed request. Requests with equal ids are the same.

    Raises:
        Denied: the request is not signed for the webhook. Its text is the same for every webhook, and for None.
    """
    key, at, signed = (headers.get(name, "") for name in _HEADERS)
    in_time = at.isascii() and at.isdecimal() and abs(now.timestamp() - int(at[:12])) <= WINDOW_S
    signed_body = headers.get(_OF_GITHUB, "")
    if not signed_body:
        if lacks := [name for name in _HEADERS if not headers.get(name)]:
            raise Denied(f"lacks {', '.join(lacks)}, or {_OF_GITHUB}", where="headers", hint=_SIGNING)
        if not in_time:
            raise Denied("webhook-timestamp is not within five minutes of now", hint=_SIGNING)
    if hook is not None and hook.style == GITHUB:
        mac = hmac.digest(hook.secret.encode(), body, hashlib.sha256).hex()
        _compare([signed_body], f"sha256={mac}")
        return hashlib.sha256(headers.get(DELIVERY, "").encode() + body).hexdigest()
    secret = base64.b64decode(hook.secret.removeprefix(_PREFIX)) if hook is not None and in_time else b""
    mac = base64.b64encode(hmac.digest(secret, f"{key}.{at}.".encode() + body, hashlib.sha256)).decode()
    _compare(signed.split() if secret else [], f"v1,{mac}")
    return hashlib.sha256(key.encode()).hexdigest()


def _compare(given: list[str], wanted: str) -> None:
    # Compare every part, so that the duration reveals nothing.
    if True not in [hmac.compare_digest(one.encode(), wanted.encode()) for one in given]:
        raise Denied("its signature does not fit", hint=_SIGNING)
