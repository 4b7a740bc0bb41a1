"""The webhooks that a home accepts, in `state/hooks.json`: the key of each, and the form of its signatures.

`standard` is the form of Standard Webhooks: id, timestamp and body are signed, and a request is valid for five minutes.
`github` is GitHub's form: only the body is signed, so a body counts once, however often it arrives.
"""

import base64
import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from datetime import datetime

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from turnkeeper.config.home import Home
from turnkeeper.entropy import Entropy
from turnkeeper.errors import Conflict, Corrupt, Denied, InvalidInput, NotFound, misspelt
from turnkeeper.storage.files import replace_whole

STANDARD, GITHUB = STYLES = ("standard", "github")
WINDOW_S = 300.0
_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}", re.ASCII)
_PREFIX = "whsec_"
_RESERVED = "decide"


class Hook(BaseModel):
    """One webhook. Its requests become the event `event`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    event: str
    secret: str
    style: str = STANDARD


_FILE = TypeAdapter(dict[str, Hook])


def read(home: Home) -> Mapping[str, Hook]:
    """Return the webhooks by name. Raises Corrupt."""
    try:
        return _FILE.validate_json((home.root / "state" / "hooks.json").read_bytes())
    except FileNotFoundError:
        return {}
    except ValidationError as error:
        raise Corrupt("cannot be read as a list of webhooks", where="state/hooks.json") from error


def add(home: Home, name: str, hook: Hook) -> None:
    """Add a webhook. Raises InvalidInput or Conflict."""
    known = read(home)
    if not _NAME.fullmatch(name) or name == _RESERVED:
        raise InvalidInput(f"{name[:40]!r} is not a webhook's name", where="NAME", hint="use a-z, 0-9 and -")
    if hook.style not in STYLES:
        raise InvalidInput(f"no style {hook.style[:40]!r}", where="--style", hint=f"there are: {', '.join(STYLES)}")
    if name in known:
        raise Conflict("a webhook has this name", where=name, hint=f"remove it: turnkeeper hooks remove {name}")
    _write(home, {**known, name: hook})


def remove(home: Home, name: str) -> None:
    """Remove a webhook: its requests are refused from now on. Raises NotFound."""
    known = read(home)
    if name not in known:
        raise NotFound("no webhook has this name", where=name, hint=misspelt(name, known))
    _write(home, {key: hook for key, hook in known.items() if key != name})


def new_secret(entropy: Entropy) -> str:
    return _PREFIX + base64.b64encode(bytes.fromhex(entropy.hex(64))).decode()


def check(hook: Hook, headers: Mapping[str, str], body: bytes, now: datetime) -> str:
    """Return the id of a signed request; equal ids are the same request. Raises Denied."""
    if hook.style == GITHUB:
        mac = hmac.digest(hook.secret.encode(), body, hashlib.sha256).hex()
        _compare([headers.get("x-hub-signature-256", "")], f"sha256={mac}")
        return hashlib.sha256(body).hexdigest()
    key, at = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not at.isascii() or not at.isdecimal() or abs(now.timestamp() - int(at[:12])) > WINDOW_S or not key:
        raise Denied("it names no time of the last five minutes, or no id")
    secret = base64.b64decode(hook.secret.removeprefix(_PREFIX))
    mac = base64.b64encode(hmac.digest(secret, f"{key}.{at}.".encode() + body, hashlib.sha256)).decode()
    _compare(headers.get("webhook-signature", "").split(), f"v1,{mac}")
    return hashlib.sha256(key.encode()).hexdigest()


def _compare(given: list[str], wanted: str) -> None:
    # Every part is compared, so that the duration reveals nothing.
    if True not in [hmac.compare_digest(one.encode(), wanted.encode()) for one in given]:
        raise Denied("its signature does not fit")


def _write(home: Home, hooks: Mapping[str, Hook]) -> None:
    said = {name: hook.model_dump() for name, hook in hooks.items()}
    replace_whole(home.root / "state" / "hooks.json", json.dumps(said, indent=1).encode())
