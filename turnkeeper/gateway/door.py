"""The checks that every request passes before it reaches a surface. `docs/security.md` gives the reason for each check.

The order is: the Host is ours; the Origin is the page's own, or for `/lg` and `/mcp` the settings name it; the caller
is known; a change on `/ui` comes from a page of this session. `/ui` accepts only a cookie, and every other path only a
key in a header. That includes unknown paths, so no answer tells a caller without a key which paths exist. Bodies are
limited in size and time, and every answer has headers that prevent a browser from running or framing foreign content.
"""

import asyncio
import html
from collections import OrderedDict
from collections.abc import Collection, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request, cookie_parser
from starlette.responses import HTMLResponse, JSONResponse, Response

from turnkeeper.clock import Clock
from turnkeeper.config.json_text import read_object
from turnkeeper.config.settings import WebSettings
from turnkeeper.errors import InvalidInput, TurnkeeperError
from turnkeeper.gateway.calls import Who
from turnkeeper.gateway.keys import KEY, Keys, Scope, Sessions

LARGEST_BODY = 4 << 20
BODY_S = 30.0
NAME = "turnkeeper.localhost"
PLAIN_HOSTS = ("127.0.0.1", "localhost")
PUBLIC = {"/", "/ui/login", "/lg/ok", "/lg/health", "/lg/info"}
STATIC = "/ui/static/"
PAGE_KEY = "x-turnkeeper-page"
FIELD = "page_key"
_SAFE = frozenset({"GET", "HEAD"})
_FORMS = ("application/json", "application/x-www-form-urlencoded")
_LONGEST_WAIT_S = 2.0
_MOST_REMEMBERED = 1000
_NO_PAGE = (
    "<p role=alert>There is no page at this address. The page is at <a href='/ui/'>/ui/</a>; a program needs a key.</p>"
)
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = {
    "content-security-policy": _POLICY,
    "referrer-policy": "same-origin",  # with no-referrer, browsers send a form with the Origin null
    "x-content-type-options": "nosniff",
    "x-turnkeeper": "gateway",  # the header that tells the page our answers from those of a proxy
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
_CORS = {
    "access-control-allow-methods": "GET, POST, PUT, PATCH, DELETE",
    "access-control-allow-headers": "x-api-key, authorization, content-type, last-event-id, idempotency-key, "
    "x-auth-scheme, mcp-session-id, mcp-protocol-version",
    "access-control-expose-headers": "Content-Location, Location, X-Pagination-Total, X-Pagination-Next, "
    "Mcp-Session-Id",
    "vary": "Origin",
}


def cookie_name(port: int) -> str:
    """Return the session cookie's name. Browsers send cookies to every port, so each gateway needs a different name."""
    return f"turnkeeper-{port}"


def hosts(settings: WebSettings) -> Mapping[str, str]:
    """Return each accepted Host, with the Origin of its pages."""
    found = {f"{name}:{settings.port}": f"http://{name}:{settings.port}" for name in (NAME, *PLAIN_HOSTS)}
    if settings.public_origin:
        found[settings.public_origin.partition("//")[2]] = settings.public_origin
    return found


def page_of(settings: WebSettings) -> str:
    return settings.public_origin or f"http://{NAME}:{settings.port}"


def surface_of(path: str) -> str:
    """Return the surface of a path: `web`, `api` or `mcp`; empty for any other path."""
    first = path.split("/", 2)[1] if path.startswith("/") else ""
    return {"": "web", "ui": "web", "lg": "api", "mcp": "mcp"}.get(first, "")


class Door:
    """An ASGI application that passes a request to another one, or answers the request itself."""

    has_guests = False  # True if `/lg` identifies callers without a key of ours; until then they have no scope

    def __init__(
        self, app: Any, keys: Keys, sessions: Sessions, settings: WebSettings, clock: Clock, open_: Collection[str] = ()
    ) -> None:
        """Guard `app`. The paths in `open_`, and the paths below them, check their callers themselves."""
        self._open = (STATIC, *(f"{path}/" for path in open_))
        self._app, self._keys, self._sessions, self._clock = app, keys, sessions, clock
        self._hosts, self._origins = hosts(settings), frozenset(settings.origins)
        self._cookie = cookie_name(settings.port)
        self._refused: OrderedDict[Any, int] = OrderedDict()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await self._socket(scope, receive, send)
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request, extra, answer = Request(scope, receive), dict(HEADERS), self._app
        scope["added"] = extra  # headers of every answer, whatever the surface sends
        try:
            self._check_host(request)
            extra.update(self._check_origin(request))
            if request.method == "OPTIONS":
                answer = Response(status_code=204)
            else:
                receive = _bounded(request, receive)
                scope["who"] = await self._who(request)
                await self._check_change(request, receive)
        except HTTPException as refused:
            answer = _refusal(request, refused)
        await answer(scope, receive, self._with(extra, scope, send))

    async def _socket(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass the WebSocket of a client with a key to the application, or refuse it before it opens."""
        request, answer = HTTPConnection(scope), self._app
        try:
            self._check_host(request)
            self._check_origin(request)
            _check_socket(request.scope["path"])
            scope["who"] = await self._client(request, "api")
        except HTTPException as refused:
            answer = _refusal(request, refused)

        async def sent(message: Any) -> None:
            if message["type"] == "websocket.send" and self._is_revoked(scope["who"]):
                scope["state"]["abort"]()
            await send(message)

        await answer(scope, receive, sent)

    def _check_host(self, request: HTTPConnection) -> None:
        given = request.headers.getlist("host")
        if len(given) != 1 or given[0].lower() not in self._hosts:
            raise HTTPException(421, f"this server is {', '.join(self._hosts)}, not another host")

    def _check_origin(self, request: HTTPConnection) -> Mapping[str, str]:
        """Return the headers that let a page of another origin read the answer. Return none for our own page."""
        origins = request.headers.getlist("origin")
        if not origins or origins == [self._own(request)]:
            return {}
        for_clients = surface_of(request.scope["path"]) in {"api", "mcp"}
        if len(origins) != 1 or origins[0] not in self._origins or not for_clients:
            raise HTTPException(403, "pages of other origins may not use this; [web] origins lists the permitted ones")
        return {**_CORS, "access-control-allow-origin": origins[0], "cross-origin-resource-policy": "cross-origin"}

    def _own(self, request: HTTPConnection) -> str:
        return self._hosts[request.headers["host"].lower()]

    async def _who(self, request: Request) -> Who:
        path: str = request.scope["path"]
        surface = surface_of(path)
        if path in PUBLIC or f"{path}/".startswith(self._open):  # their answers reveal nothing about the home
            return Who(surface="")
        if surface == "web":
            session = self._sessions.find(cookie_parser(request.headers.get("cookie", "")).get(self._cookie, ""))
            if session is None:
                raise HTTPException(401, "this browser is not logged in; run: turnkeeper web open")
            return Who(surface=surface, scope=Scope.DECIDE, session=session)
        return await self._client(request, surface or "api")

    async def _client(self, request: HTTPConnection, surface: str) -> Who:
        if surface == "api":
            name, given = "x-api-key", request.headers.get("x-api-key", "")
        else:
            name, (kind, _, given) = "Authorization: Bearer", request.headers.get("authorization", "").partition(" ")
            given = given.strip() if kind.lower() == "bearer" else ""
        try:
            key = self._keys.find(given)
        except TurnkeeperError as error:
            raise HTTPException(503, f"no key is taken: {error}") from error
        if key is None and self.has_guests and surface_of(request.scope["path"]) == "api" and not KEY.search(given):
            return Who(surface=surface)
        if key is None:
            await self._hold_up(request)
            hint = "make one: turnkeeper web keys make NAME"
            raise HTTPException(401, f"a valid key is needed in the header {name}, and nowhere else; {hint}")
        return Who(surface=surface, scope=key.allows, key=key.id)

    async def _hold_up(self, request: HTTPConnection) -> None:
        """Wait longer after each refusal on one connection."""
        count = self._refused.pop(request.scope.get("client"), 0) + 1
        self._refused[request.scope.get("client")] = count
        while len(self._refused) > _MOST_REMEMBERED:
            self._refused.popitem(last=False)
        if count > 1:
            await self._clock.sleep(min(_LONGEST_WAIT_S, 0.05 * 2.0 ** min(count, 10)))

    def _with(self, extra: Mapping[str, str], scope: Any, send: Any) -> Any:
        """Return a `send` that adds headers, and ends a long answer when its key is revoked or its browser logs out."""

        async def sent(message: Any) -> None:
            if message["type"] == "http.response.start":
                added = [(key.encode("latin-1"), value.encode("latin-1")) for key, value in extra.items()]
                kept = [(key, value) for key, value in message.get("headers", ()) if key.lower() not in dict(added)]
                message = {**message, "headers": [*kept, *added]}
            elif message.get("more_body") and self._is_revoked(scope["who"]):
                scope["state"]["abort"]()
            await send(message)

        return sent

    def _is_revoked(self, who: Who) -> bool:
        if who.session is not None:
            return not self._sessions.is_open(who.session)
        if who.is_guest:
            return False
        with suppress(TurnkeeperError):
            return bool(who.key) and who.key not in {key.id for key in self._keys.all()}
        return True

    async def _check_change(self, request: Request, receive: Any) -> None:
        """Refuse a change that a page of this session did not send. Parse the fields of other changes."""
        if request.method in _SAFE or surface_of(request.scope["path"]) != "web":
            return
        if request.headers.get("origin") != self._own(request):
            raise HTTPException(403, "a change must come from this page: the request lacks our Origin")
        if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
            raise HTTPException(403, "a change must come from this page, but the browser reports another site")
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in _FORMS:
            raise HTTPException(415, f"send {' or '.join(_FORMS)}")
        body = b"".join([chunk async for chunk in Request(request.scope, receive).stream()])
        request.scope["form"] = _fields(kind, body)
        session = request.scope["who"].session
        sent = request.headers.get(PAGE_KEY) or request.scope["form"].get(FIELD, "")
        if session is not None and sent != session.page_key:
            raise HTTPException(403, "this page belongs to another login; load it again")


def _check_socket(path: str) -> None:
    if surface_of(path) != "api":
        raise HTTPException(404, "there is no WebSocket here")


def _bounded(request: Request, receive: Any) -> Any:
    """Return a `receive` that limits the body in size and in time. Raises HTTPException 413 for a too large length."""
    length = request.headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()) or int(length) > LARGEST_BODY:
        raise HTTPException(413, f"a request may have at most {LARGEST_BODY >> 20} MiB")
    size, is_whole, until = 0, False, 0.0

    async def read() -> Any:
        nonlocal size, is_whole, until
        if is_whole:
            return await receive()
        until = until or asyncio.get_running_loop().time() + BODY_S
        try:
            async with asyncio.timeout_at(until):
                message = await receive()
        except TimeoutError:
            raise HTTPException(408, f"the body did not arrive within {BODY_S:.0f}s") from None
        size += len(message.get("body", b""))
        is_whole = not message.get("more_body", False)
        if size > LARGEST_BODY:
            raise HTTPException(413, f"a request may have at most {LARGEST_BODY >> 20} MiB")
        return message

    return read


def _fields(kind: str, body: bytes) -> Mapping[str, str]:
    """Return the text fields of a form or of a JSON object. Raises HTTPException."""
    try:
        if kind != _FORMS[0]:
            return {key: values[0] for key, values in parse_qs(body.decode(), keep_blank_values=True).items()}
        found = read_object(body.decode() or "{}", where="body", longest=LARGEST_BODY)
        return {key: value for key, value in found.items() if isinstance(value, str)}
    except (ValueError, InvalidInput):
        raise HTTPException(400, "the body does not match its content type") from None


def _refusal(request: HTTPConnection, refused: HTTPException) -> Response:
    # The rest of an unread body is not awaited.
    headers = {"connection": "close"} if refused.status_code in {408, 413} else {}
    if surface_of(request.scope["path"]) != "web":
        if refused.status_code == HTTPStatus.UNAUTHORIZED and "text/html" in request.headers.get("accept", ""):
            return HTMLResponse(plain_page("Turnkeeper", _NO_PAGE), refused.status_code)
        name = HTTPStatus(refused.status_code).name.lower()
        return JSONResponse({"detail": refused.detail, "error": name}, refused.status_code, headers)
    alert = f"<p role=alert>{html.escape(refused.detail)}</p>"
    return HTMLResponse(plain_page("Turnkeeper", alert), refused.status_code, headers)


def plain_page(title: str, body: str) -> str:
    """Return a page that needs no template. Its title and its body are HTML."""
    head = f"<meta charset=utf-8><meta name=viewport content='width=device-width'><title>{title}</title>"
    style = f"<link rel=stylesheet href='{STATIC}page.css'>"
    return f"<!doctype html><html lang=en>{head}{style}<main class=plain><h1>{title}</h1>{body}</main>"
