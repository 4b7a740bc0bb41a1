"""A plugin for pytest that gives each request of aegra's end-to-end tests a key.

The tests take the server's URL from a variable, and know no keys. The tests of logins send the tokens of the project's
own login, and get no key.
"""

import os
from typing import Any

import httpx
import pytest

URL, KEY = os.environ["SERVER_URL"], os.environ["SUITE_KEY"]
running: list[pytest.Item] = []


def with_key(send: Any) -> Any:
    """Return the method of an HTTP client that sends a request, so that it adds the key to those for the server."""

    def sent(self: Any, request: httpx.Request, **how: Any) -> Any:
        logs_in = running[-1].get_closest_marker("manual_auth") is not None
        if str(request.url).startswith(URL) and not logs_in:
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
