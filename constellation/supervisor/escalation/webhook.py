"""Posting an escalation to a webhook. A module of its own: an HTTP client is slow to load, and seldom needed."""

import json
import logging
import urllib.request
from urllib.error import HTTPError


def post(address: str, text: str, timeout_s: float) -> str:
    """POST `{"text": …}`, the form that chat servers take; return why it failed, or nothing.

    The answer never names the address, which often is a secret.
    """
    if not address.startswith(("http://", "https://")):
        return _by_apprise(address, text)
    request = urllib.request.Request(  # noqa: S310  http and https only, as looked at above
        address, data=json.dumps({"text": text}).encode(), headers={"Content-Type": "application/json"}, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout_s):  # noqa: S310
            return ""
    except HTTPError as error:
        return f"status {error.code}"
    except (OSError, ValueError) as error:
        return type(error).__name__


def _by_apprise(address: str, text: str) -> str:
    try:
        import apprise  # noqa: PLC0415  an optional extra
    except ImportError:
        return "this kind of address needs a package: pip install 'turnkeeper[notify]'"
    logging.getLogger("apprise").disabled = True  # it would name the address
    sender = apprise.Apprise()
    if not sender.add(address):
        return "apprise does not know this kind of address"
    return "" if sender.notify(body=text) else "apprise could not deliver it"
