"""Sends every HTTP request for another machine to the local stubs, as https://api.tavily.com/search to STUBS/api.tavily.com/search.

Python imports this by itself in a process whose PYTHONPATH has this folder, so that a project's own code stays as it is
where a library has its provider's address written into it. `STUBS` is the address of the stubs; unset, nothing changes.
"""

import importlib.abc
import importlib.util
import os
import sys
from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

LOCAL = {"localhost", "127.0.0.1", "::1", "testserver", None}


def redirected(url: Any) -> Any:
    parts = urlsplit(str(url))
    if parts.hostname in LOCAL or parts.scheme not in {"http", "https"}:
        return url
    rest = parts.path + (f"?{parts.query}" if parts.query else "")
    return type(url)(f"{os.environ['STUBS']}/{parts.hostname}{rest}")


def first_of_url(method: Callable[..., Any], at: int) -> Callable[..., Any]:
    """Wrap a method whose argument number `at` is a URL, by place or by name."""

    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        if "url" in kwargs:
            kwargs["url"] = redirected(kwargs["url"])
        elif len(args) > at:
            args = (*args[:at], redirected(args[at]), *args[at + 1 :])
        return method(*args, **kwargs)

    return call


def given_url(method: Callable[..., Any], _at: int) -> Callable[..., Any]:
    """Wrap a method that gives the whole URL."""
    return wraps(method)(lambda *args: redirected(method(*args)))


PLACES = {  # module: class, method, the place of the URL among its arguments, how to wrap it
    "requests.sessions": ("Session", "request", 2, first_of_url),
    "aiohttp.client": ("ClientSession", "_request", 2, first_of_url),
    "httpx._client": ("BaseClient", "_merge_url", 0, given_url),
    "httpx2._client": ("BaseClient", "_merge_url", 0, given_url),
    "httplib2": ("Http", "request", 1, first_of_url),
}


class _After(importlib.abc.Loader):
    def __init__(self, loader: Any, name: str) -> None:
        self.loader, self.name = loader, name

    def create_module(self, spec: Any) -> Any:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        kind, method, at, wrap = PLACES[self.name]
        owner = getattr(module, kind)
        setattr(owner, method, wrap(getattr(owner, method), at))


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name not in PLACES:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            spec.loader = _After(spec.loader, name)
        return spec


if "STUBS" in os.environ:
    sys.meta_path.insert(0, _Finder())
