"""Posting an escalation to a webhook. A module of its own: an HTTP client is slow to load, and seldom needed."""

import json
import urllib.request
from urllib.error import HTTPError


def post(address: str, text: str, timeout_s: float) -> str:
    """POST `{"text": …}`, the form that chat servers take; return why it failed, or nothing.

    The answer never names the address, which often is a secret.
    """
    request = urllib.request.Request(  # noqa: S310  the settings take http and https only
        address, data=json.dumps({"text": text}).encode(), headers={"Content-Type": "application/json"}, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout_s):  # noqa: S310
            return ""
    except HTTPError as error:
        return f"status {error.code}"
    except (OSError, ValueError) as error:
        return type(error).__name__
