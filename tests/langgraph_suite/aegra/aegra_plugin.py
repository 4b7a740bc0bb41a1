"""A plugin for pytest that gives each request of aegra's end-to-end tests a key.

The tests take the server's URL from a variable, and know no keys. The tests of logins send the tokens of a login of
their own: the plugin stands for that login, and exchanges a token of the right form for a key. Their other requests
get no key.
"""

import os
import re
from typing import Any

import httpx
import pytest

URL, KEY = os.environ["SERVER_URL"], os.environ["SUITE_KEY"]
TOKEN = re.compile(r"Bearer mock-jwt-\w+-\w+-\w+")
running: list[pytest.Item] = []


def with_key(send: Any) -> Any:
    """Return the method of an HTTP client that sends a request, so that it adds the key to those for the server."""

    def sent(self: Any, request: httpx.Request, **how: Any) -> Any:
        logs_in = running[-1].get_closest_marker("manual_auth") is not None
        known = TOKEN.fullmatch(request.headers.get("authorization", "")) is not None
        if str(request.url).startswith(URL) and (known or not logs_in):
            request.headers["x-api-key"] = KEY
        return send(self, request, **how)

    return sent


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "manual_auth: of logins")
    for client in (httpx.Client, httpx.AsyncClient):
        client.send = with_key(client.send)  # type: ignore[method-assign]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    running.append(item)
