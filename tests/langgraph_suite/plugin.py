"""A plugin for pytest that tells LangGraph's suite where the server is, and gives each of its requests the key.

The suite takes a URL from a variable, but one of its modules has the URL in its text, and no module knows keys. So the
plugin replaces that module's URL, and adds the key to the headers of HTTP clients and of WebSockets.
"""

import os
from typing import Any

import httpx
import pytest
from langgraph_sdk.stream.transport import ProtocolWebSocketTransport, SyncProtocolWebSocketTransport

URL, KEY = os.environ["LANGGRAPH_INTEGRATION_URL"], os.environ["LANGGRAPH_API_KEY"]
HEADERS = {"x-api-key": KEY}


def with_key(made: Any) -> Any:
    """Return the constructor of an HTTP client so that it adds the key to what it sends to the server."""

    def construct(self: Any, *args: Any, **options: Any) -> None:
        made(self, *args, **options)
        if str(self.base_url).startswith(URL):
            self.headers.update(HEADERS)

    return construct


def with_header(made: Any) -> Any:
    """Return the constructor of a WebSocket's client so that its handshake has the key."""

    def construct(self: Any, *args: Any, **options: Any) -> None:
        made(self, *args, **{**options, "headers": {**(options.get("headers") or {}), **HEADERS}})

    return construct


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "integration: of LangGraph's suite")
    for client in (httpx.Client, httpx.AsyncClient):
        client.__init__ = with_key(client.__init__)  # type: ignore[method-assign]
    for transport in (ProtocolWebSocketTransport, SyncProtocolWebSocketTransport):
        transport.__init__ = with_header(transport.__init__)  # type: ignore[method-assign]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        module = getattr(item, "module", None)
        if hasattr(module, "URL"):
            module.URL = URL  # type: ignore[union-attr]
