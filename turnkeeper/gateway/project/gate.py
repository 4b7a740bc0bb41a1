"""The LangGraph API together with an author's project: the project's routes, and the users of its login.

The API answers all requests for its own paths, with any method. The gate passes requests for other paths below `/lg` on
to the project. A user of the login may make only requests whose routes name an act, within the scopes of `[project]`.
The gate first asks the login's handlers about such a request. Values that the handlers change replace the client's
values, and the user does not see objects that their filters exclude.

The project's process runs foreign code. So the gate limits each call of that process in time and size, and sends it no
key and no cookie of the home. Pages of the project run in a sandbox, because they share the origin of the home's page.
"""

import asyncio
import hashlib
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpcore2
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match, Route

from turnkeeper.config.json_text import read_object
from turnkeeper.errors import Denied, InvalidInput, NotFound, TurnkeeperError
from turnkeeper.gateway.calls import Gateway, Offered, Streams, Who
from turnkeeper.gateway.keys import KEY, Scope
from turnkeeper.gateway.streams import gone, send_part

HEAD_S = 30.0  # seconds until an answer begins, and between its parts
LOGIN_S = 10.0
LONGEST_S = 3600.0
LARGEST_ANSWER = 64 << 20
LARGEST_CHECK = 16 << 20
SANDBOX = "sandbox allow-scripts allow-forms allow-popups allow-downloads; frame-ancestors 'none'"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"})
_ODD = re.compile(rb"//|\\|%2[ef]|%5c|%00|/\.{1,2}(/|$)", re.IGNORECASE)  # two servers could read this path differently
_HOPS = rb"connection|keep-alive|proxy-.*|te|trailer|transfer-encoding|upgrade"
_NOT_SENT = re.compile(_HOPS + rb"|content-length|expect|forwarded|x-forwarded-.*|x-real-ip")
_NOT_ANSWERED = re.compile(
    _HOPS + rb"|date|server|access-control-.*|alt-svc|clear-site-data|service-worker-allowed|strict-transport-security"
)
Header = tuple[bytes, bytes]
Check = Callable[[dict[str, Any]], dict[str, Any]]
_SCOPES = {"read": Scope.READ, "chat": Scope.WORK, "decide": Scope.DECIDE}
_PLAIN, _ID = re.compile(r"[A-Za-z0-9._-]{1,56}"), re.compile(r"[0-9a-fA-F-]{32,}")
_OF_RUNS = frozenset({"assistant_id", "if_not_exists", "metadata", "multitask_strategy"})


def without_secrets(headers: Iterable[Header]) -> list[Header]:
    """Return a request's headers without keys of this home and without the page's cookies."""
    found = []
    for name, value in headers:
        parts = [one for one in value.split(b";") if name != b"cookie" or not one.strip().startswith(b"turnkeeper-")]
        if (kept := b";".join(parts).strip()) and not KEY.search(kept.decode("latin-1")):
            found.append((name, kept))
    return found


class Project:
    """The project's process, for calls from the gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._run, self._streams = gateway.home.run, Streams()
        self._proto = b"https" if gateway.settings.web.public_origin else b"http"
        self.app = httpcore2.AsyncConnectionPool(uds=str(gateway.home.http("project")), max_connections=64)

    async def check(self, scope: Any, acts: Sequence[Any]) -> dict[str, Any]:
        """Return a caller's identity, and the login's answer for each act. Raises HTTPException if it refuses."""
        headers = [[each.decode("latin-1") for each in one] for one in without_secrets(scope["headers"])]
        path, query = scope["path"].removeprefix(scope["root_path"]), scope["query_string"].decode("latin-1")
        found = await self.ask(method=scope["method"], path=path, query=query, headers=headers, acts=acts)
        if "status" in found:
            raise HTTPException(found["status"], found["detail"])
        return found

    async def ask(self, **asked: Any) -> dict[str, Any]:
        """Return the process's answer to a question. Raises HTTPException."""
        async with _bounded(LOGIN_S):
            reader, writer = await asyncio.open_unix_connection(self._run / "project.auth", limit=LARGEST_CHECK)
            try:
                writer.write(json.dumps(asked).encode() + b"\n")
                line = await reader.readline()
            finally:
                writer.close()
        try:
            return dict(json.loads(line))
        except ValueError:
            raise HTTPException(500, "the project's login failed; see logs/project.log") from None

    async def forward(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on to the project's application, and its answer back to the caller. Raises HTTPException."""
        path, query, mount = scope["raw_path"], scope["query_string"], scope["root_path"].encode()
        if scope["method"] not in _METHODS or not path.startswith(mount + b"/") or _ODD.search(path):
            raise HTTPException(404, "there is nothing here")
        if KEY.search((path + query).decode("latin-1")):
            raise HTTPException(400, "send a key of this home only in the header x-api-key")
        body, client = await Request(scope, receive).body(), (scope.get("client") or ("",))[0].encode()
        headers = [one for one in without_secrets(scope["headers"]) if not _NOT_SENT.fullmatch(one[0])]
        headers += [(b"content-length", b"%d" % len(body)), (b"x-forwarded-for", client)]
        headers += [(b"x-forwarded-proto", self._proto)]
        target = path.removeprefix(mount) + (b"?" + query if query else b"")
        if (counted := self._streams.enter(scope["who"])) is None:
            raise HTTPException(429, "too many requests of the project's routes are open", {"retry-after": "5"})
        try:
            await self._pass(scope, receive, send, target, headers, body)
        finally:
            self._streams.leave(counted)

    async def _pass(
        self, scope: Any, receive: Any, send: Any, target: bytes, headers: list[Header], body: bytes
    ) -> None:
        has_begun, url = False, httpcore2.URL(scheme=b"http", host=b"project", port=None, target=target)
        how: Any = {"timeout": dict.fromkeys(("connect", "read", "write", "pool"), HEAD_S)}
        asked = self.app.stream(scope["method"], url, headers=headers, content=body, extensions=how)
        leaving = asyncio.create_task(gone(receive))
        try:
            async with _bounded(HEAD_S) as until, asked as answer:
                until.reschedule(asyncio.get_running_loop().time() + LONGEST_S)
                scope["added"]["content-security-policy"] = SANDBOX
                kept = [(name.lower(), value) for name, value in answer.headers if _is_passed(name.lower(), value)]
                await send({"type": "http.response.start", "status": answer.status, "headers": kept})
                has_begun = True
                await _pump(answer, send, leaving)
        except HTTPException:
            if not has_begun:
                raise
            scope["state"]["abort"]()  # an incomplete answer must not look complete
        finally:
            leaving.cancel()


@asynccontextmanager
async def _bounded(seconds: float) -> AsyncIterator[asyncio.Timeout]:
    """Limit a call of the process in time. Raises HTTPException for its faults."""
    try:
        async with asyncio.timeout(seconds) as until:
            yield until
    except (TimeoutError, httpcore2.TimeoutException):
        raise HTTPException(504, "the project's process did not answer in time; see: turnkeeper status") from None
    except (httpcore2.NetworkError, httpcore2.ProtocolError, OSError, ValueError):
        detail = "the project's process does not run, or its answer broke off; see: turnkeeper status"
        raise HTTPException(503, detail, {"retry-after": "5"}) from None


async def _pump(answer: Any, send: Any, leaving: "asyncio.Task[None]") -> None:
    size = 0
    async for part in answer.aiter_stream():
        size += len(part)
        if leaving.done() or size > LARGEST_ANSWER:
            raise HTTPException(502, "the caller left, or the answer is too long")
        await send_part(send, part)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _is_passed(name: bytes, value: bytes) -> bool:
    """Return True if a header of the project's answer is passed to the caller."""
    return not (_NOT_ANSWERED.fullmatch(name) or (name == b"set-cookie" and value.strip().startswith(b"turnkeeper-")))


class Visit:
    """A request of a user of the login, and the handlers' changes to it.

    Attributes:
        id: the thread or assistant that it names; empty if it names none.
        values: the values of a run, also if a command starts it; else the body.
        assistant: the id of a run's assistant; empty if the run names a graph.
    """

    def __init__(self, request: Request, act: str, things: Mapping[str, str], body: dict[str, Any]) -> None:
        self.scope, self.method, self.body = request.scope, request.method, body
        self.resource, _, self.action = act.partition(".")
        self.name = f"{self.resource[:-1]}_id"
        params = body.get("params") if request.scope["path"].endswith("/commands") else None
        self.values: dict[str, Any] = params if isinstance(params, dict) else body
        self.id = things.get(self.name) or str(body.get(self.name) or "" if self.action == "create" else "")
        given = self.values.get("assistant_id") if self.action == "create_run" else None
        self.assistant = given if isinstance(given, str) and _ID.fullmatch(given) else ""
        self.who = Who(surface="api")

    def acts(self) -> list[tuple[str, str, dict[str, Any]]]:
        """Return the acts about which the handlers are asked. An act on an object also needs the right to read it."""
        named = {self.name: self.id} if self.id else {}
        found = [(self.resource, self.action, {**self.body, **named})]
        if self.action == "create_run":
            kwargs = {name: value for name, value in self.values.items() if name not in _OF_RUNS}
            value = {name: value for name, value in self.values.items() if name in _OF_RUNS}
            found = [(self.resource, self.action, {"metadata": {}, **value, **named, "kwargs": kwargs})]
            found += [("assistants", "read", {"assistant_id": self.assistant})] if self.assistant else []
        return [*found, (self.resource, "read", named)] if self.id and self.action != "read" else found

    def apply(self, value: dict[str, Any]) -> None:
        """Put what a handler made of the first act's value into the body. Raises InvalidInput if it changed an id."""
        asked = self.acts()[0][2]
        if moved := [name for name in ("thread_id", "assistant_id") if value.get(name) != asked.get(name)]:
            raise InvalidInput("was changed by a handler of the project's login", where=moved[0])
        if self.action == "create_run":
            asked |= asked["kwargs"]
            value = value["kwargs"] | {name: one for name, one in value.items() if name in _OF_RUNS}
        elif self.action == "search" or self.method == "PATCH":
            value = {name: one for name, one in value.items() if name != self.name}
        elif self.action != "create":
            return
        for name in asked.keys() - value.keys():
            self.values.pop(name, None)
        self.values.update(value)


class Gate:
    def __init__(self, gateway: Gateway, app: Any, refused: Callable[..., Awaitable[Response]], checked: Check) -> None:
        """Guard `app`. Answer errors in the same way, with `refused`, and check bodies with `checked`."""
        self._app, self._refused, self._checked, self.project = app, refused, checked, Project(gateway)
        self._routes = [one for one in app.routes if isinstance(one, Route)]
        self._settings, self._channel = gateway.settings.project, gateway.settings.web.langgraph_channel

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] == "websocket":  # for callers with a key only
            answer = self._app if scope["who"].scope is not None else JSONResponse({"detail": "give a key"}, 403)
            await answer(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            await self._answer(request, send)
        except HTTPException as error:
            name = "unauthorized" if error.status_code == 401 else "refused"
            said = JSONResponse({"detail": error.detail, "error": name}, error.status_code, error.headers)
            await said(scope, receive, send)
        except TurnkeeperError as error:
            await (await self._refused(request, error))(scope, receive, send)

    async def _answer(self, request: Request, send: Any) -> None:
        scope, (route, things) = request.scope, self._own(request.scope)
        is_spec = (request.method, scope["path"]) == ("GET", f"{scope['root_path']}/openapi.json")
        is_known = scope["who"].scope is not None or (route is not None and not scope["who"].surface)
        if not is_known and (is_spec or (route is None and not self._settings.public)):
            await self._check(scope, [])
        if is_spec:
            await JSONResponse(await self._described())(scope, request.receive, send)
        elif route is None:
            await self.project.forward(scope, request.receive, send)
        elif is_known:
            await self._app(scope, request.receive, send)
        else:
            await self._guest(request, route, things, send)

    def _own(self, scope: Any) -> tuple[Route | None, Mapping[str, str]]:
        """Return our route for the path of a request, and the ids in the path."""
        found = [(one, *one.matches(scope)) for one in self._routes]
        fits = sorted((one for one in found if one[1] is not Match.NONE), key=lambda one: -one[1].value)
        return (fits[0][0], fits[0][2].get("path_params", {})) if fits else (None, {})

    async def _check(self, scope: Any, acts: list[Any]) -> dict[str, Any]:
        if not self._settings.scopes:
            raise HTTPException(401, "a valid key is needed in the header x-api-key")
        return await self.project.check(scope, acts)

    async def _described(self) -> dict[str, Any]:
        """Return an OpenAPI description of our paths and of the project's."""
        ours: dict[str, Any] = {}
        for one in self._routes:
            about = {"summary": (one.endpoint.__doc__ or "").partition("\n")[0], "responses": {}}
            ours.setdefault(one.path, {}).update({method.lower(): about for method in one.methods or ()})
        paths = await self.project.ask(paths=True) | ours
        return {"openapi": "3.1.0", "info": {"title": "LangGraph API", "version": "1"}, "paths": paths}

    async def _guest(self, request: Request, route: Route, things: Mapping[str, str], send: Any) -> None:
        """Answer a user of the login. Raises HTTPException, TurnkeeperError."""
        act = route.name if request.method in (route.methods or set()) - {"HEAD"} else ""
        text = (await request.body()).decode("utf-8", "replace") if request.method in {"POST", "PATCH"} else ""
        body = read_object(text, where="body", longest=LARGEST_CHECK) if text.strip() else {}
        if isinstance(params := body.get("params"), dict):
            body["params"] = self._given(params)
        visit = Visit(request, act, things, self._given(body))
        said = await self._check(request.scope, visit.acts() if act else [])
        needed = "read" if visit.action in {"read", "search"} else "chat"
        if not act or needed not in self._settings.scopes:
            hint = "use a key: turnkeeper web keys make NAME; [project] scopes names what users of the login may do"
            raise Denied("users of the project's login may not do this", hint=hint)
        await self._admit(visit, str(said["identity"]), said["answers"])
        request.scope["who"] = visit.who
        await self._app(request.scope, _reading(json.dumps(visit.body).encode(), request.receive), send)

    def _given(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of a body that are not null. Raises InvalidInput for a wrong type."""
        return {name: value for name, value in self._checked(body).items() if value is not None}

    async def _admit(self, visit: Visit, identity: str, answers: list[Any]) -> None:
        """Apply the answer of the login. Raises NotFound for objects hidden from this user, Denied, InvalidInput."""
        digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
        key = f"user.{identity}" if _PLAIN.fullmatch(identity) else f"user-{digest}"
        scope = max(_SCOPES[one] for one in self._settings.scopes)
        visit.apply(answers[0]["value"])
        kinds = [resource for resource, _, _ in visit.acts()]
        filters = [one["filters"] for kind, one in zip(kinds, answers, strict=True) if kind == visit.resource]
        if visit.resource == "threads":
            filters.append({"turnkeeper": {"$contains": {"channel": self._channel}}})
        if visit.action == "search" and visit.method == "GET":
            filters.append(visit.body.get("metadata") or {})  # a handler's values, although the request has no body
        visit.who = Who(surface="api", scope=scope, key=key, is_guest=True, filters=filters)
        visit.who.sees({})  # an unknown filter is refused before anything is read
        if visit.assistant:
            await self._find(visit, "assistants", visit.assistant, replace(visit.who, filters=[answers[1]["filters"]]))
        is_made = visit.values is not visit.body or visit.values.get("if_not_exists") == "create"
        may_lack = visit.action == "create" or (visit.action == "create_run" and is_made)
        found = visit.id and await self._find(visit, visit.resource, visit.id, visit.who, may_lack=may_lack)
        if visit.action == "create_run":
            await self._admit_run(visit, makes_thread=not found)

    async def _admit_run(self, visit: Visit, *, makes_thread: bool) -> None:
        """Create the thread of a run in the form that the login requires. Raises Denied, HTTPException."""
        if barred := [name for name in ("after_seconds", "webhook") if visit.values.get(name)]:
            raise Denied(f"users of the project's login may not give {barred[0]}")
        if not makes_thread:
            return
        act = ("threads", "create", {"metadata": {}, **({"thread_id": visit.id} if visit.id else {})})
        value = (await self._check(visit.scope, [act]))["answers"][0]["value"]
        status, made = await self._inner(visit, "POST", "/threads", value)
        if status != 200:
            raise HTTPException(status, made["detail"])
        if not visit.id:
            mount, path = visit.scope["root_path"], visit.scope["path"]
            visit.scope["path"] = f"{mount}/threads/{made['thread_id']}{path.removeprefix(mount)}"

    async def _find(self, visit: Visit, resource: str, id_: str, who: Who, *, may_lack: bool = False) -> bool:
        """Return True if a thread or assistant exists. Raises NotFound if the metadata does not match the filters."""
        status, found = (404, {}) if "/" in id_ else await self._inner(visit, "GET", f"/{resource}/{id_}")
        if (status == 404 and not may_lack) or (status == 200 and not who.sees(found["metadata"] or {})):
            raise NotFound(f"{resource[:-1]} {id_[:80]!r} not found", hint=f"see: {resource}.search()")
        if status not in {200, 404}:
            raise HTTPException(status, found["detail"])
        return status == 200

    async def _inner(self, visit: Visit, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Return the status and the JSON of the API's answer to a request of this user before any filter."""
        found: list[Any] = []

        async def sent(message: Any) -> None:
            found.append(message)

        asked = {"method": method, "path": visit.scope["root_path"] + path, "query_string": b"", "headers": []}
        reads = _reading(json.dumps(body).encode())
        key = "look" if method == "GET" else visit.who.key  # the user does not see the objects that the gate reads
        await self._app({**visit.scope, **asked, "who": replace(visit.who, filters=(), key=key)}, reads, sent)
        return found[0]["status"], json.loads(b"".join(one.get("body", b"") for one in found) or b"null")


def _reading(body: bytes, then: Any = None) -> Callable[[], Awaitable[Any]]:
    """Return a `receive` that yields a body, and then the events of the client."""
    left = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        return left.pop() if left or then is None else await then()

    return receive


def around(gateway: Gateway, app: Any, refused: Callable[..., Awaitable[Response]], checked: Check) -> Offered | None:
    """Return the LangGraph API with the project around it. None if `[project]` does not enable the project."""
    gate = Gate(gateway, app, refused, checked) if gateway.settings.project.enabled else None
    return None if gate is None else Offered(gate, lambda: gate.project.app)
