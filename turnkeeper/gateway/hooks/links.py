"""Links that decide one question: each is signed, contains its question's id, expires after a day, and is valid once.

Nothing is stored for an unused link. A used link leaves an empty file in `state/links-used`.
"""

import hashlib
import hmac
import os
import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

from turnkeeper.config.home import Home, make_private
from turnkeeper.config.settings import load_settings
from turnkeeper.errors import Conflict, Denied, TurnkeeperError
from turnkeeper.gateway.keys import Keys

LASTS = timedelta(days=1)
_TOKEN = re.compile(r"([0-9]{1,12})\.([A-Za-z0-9_-]{1,64})\.([0-9a-f]{64})", re.ASCII)


def link_to(home: Home, interrupt_id: str, now: datetime, about: str = "") -> str:
    """Return the link that decides a question. Empty if the page has no public address or never ran.

    The page shows `about`, the name of the task, if no daemon answers. The signature does not cover it.
    """
    with suppress(TurnkeeperError):
        if origin := load_settings(home).web.public_origin:
            said = f"{int((now + LASTS).timestamp())}.{interrupt_id}"
            return f"{origin}/hooks/decide/{said}.{_mac(home, said)}" + (f"?about={quote(about)}" if about else "")
    return ""


def ends_at(token: str) -> datetime:
    """Return the time until which a link is valid, to the second."""
    return datetime.fromtimestamp(int(token.partition(".")[0]), UTC)


def question_of(home: Home, token: str, now: datetime) -> str:
    """Return the question that a link decides. Raises Denied for a link that is forged or expired."""
    found = _TOKEN.fullmatch(token)
    if found is None or not hmac.compare_digest(_mac(home, f"{found[1]}.{found[2]}"), found[3]):
        raise Denied("this link is not one of ours")
    if int(found[1]) < now.timestamp():
        raise Denied("this link has expired: links are valid for one day")
    return found[2]


def use(home: Home, token: str) -> None:
    """Mark a link as used. Raises Conflict if another request has used it."""
    path = _used(home, token)
    make_private(home.root / "state" / "links-used")
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError as error:
        raise Conflict("this link was used: it is valid for one decision") from error


def give_back(home: Home, token: str) -> None:
    """Make a link usable again, because its decision reached no daemon."""
    with suppress(OSError):
        os.unlink(_used(home, token))  # noqa: PTH108


def _used(home: Home, token: str) -> str:
    return str(home.root / "state" / "links-used" / hashlib.sha256(token.encode()).hexdigest()[:32])


def _mac(home: Home, said: str) -> str:
    secret = bytes.fromhex(Keys(home).login_secret())
    return hmac.digest(secret, b"turnkeeper decision 1\0" + said.encode(), "sha256").hex()
