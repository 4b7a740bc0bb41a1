"""The process `python -m turnkeeper.gateway.project HOME`, which the supervisor runs if `[project]` enables it.

Of all processes, only this one runs the HTTP application and the login of a project. It reads no key of the home, and
restarts itself without the supervisor's variables. The application is at `state/run/project.http`. At
`state/run/project.auth`, the process answers the gateway's questions, one line each.

A login is an `Auth` of `langgraph_sdk`. Its handlers are chosen and called in the same way as in LangGraph Server.
`Auth` has no public interface for servers, so its fields are read.
"""

import asyncio
import importlib.util
import inspect
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, AuthenticationError
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse

from turnkeeper.bus.event_log import EventLog
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.config.settings import load_settings
from turnkeeper.config.surfaces import required
from turnkeeper.errors import InvalidInput, TurnkeeperError
from turnkeeper.rpc.process import Progress, together
from turnkeeper.rpc.server import UnixServer, keep_reachable, run_daemon
from turnkeeper.storage.locking import ProcessLock

PROCESS = "project"
NICE = 10  # if processor time is scarce, the project waits and fires do not
LARGEST_LINE = 16 << 20
_KEPT = ("HOME", "LANG", "LOGNAME", "PATH", "PYTHONPATH", "TMPDIR", "TZ", "USER", "VIRTUAL_ENV")
_AGAIN = "again"  # the last argument of the process with the reduced environment
_GRACE_S = 2
_GIVEN = frozenset({"authorization", "headers", "method", "path", "path_params", "query_params", "request", "scope"})


def opened(reference: Any) -> Any:
    """Import the object that a reference names. Raises InvalidInput if the import fails."""
    sys.path[:0] = [str(folder) for folder in reference.folders if str(folder) not in sys.path]
    name = reference.module or str(reference.file).replace("/", "_").replace(".", "_")
    try:
        if reference.file is not None and name not in sys.modules:
            spec: Any = importlib.util.spec_from_file_location(name, reference.file)
            sys.modules[name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(sys.modules[name])
        return getattr(importlib.import_module(name), reference.attribute)
    except (Exception, SystemExit) as error:
        what = f"cannot be imported: {type(error).__name__}: {error}"
        raise InvalidInput(what, where=reference.text) from error


class User(dict[str, Any]):
    """A user of the login. The fields of the user are items and attributes."""

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(name)


def user_of(found: Any) -> User:
    """Return the user that an authenticate handler returned as an identity, a mapping, or any object with the fields.

    Raises:
        Refused: there is no identity, or the user is not authenticated.
    """
    permissions, found = found if isinstance(found, tuple) and len(found) == 2 else ([], found)
    fields = {"identity": found} if isinstance(found, str) else found
    if not isinstance(fields, Mapping):
        names = (name for name in dir(found) if not name.startswith("_") and not callable(getattr(found, name)))
        fields = {name: getattr(found, name) for name in names}
    user = User({"is_authenticated": True, "permissions": permissions, **fields})
    if not isinstance(user.get("identity"), str) or not user["identity"] or not user["is_authenticated"]:
        raise Refused(401, "the login did not identify the caller")
    user.setdefault("display_name", user["identity"])
    return user


class Refused(AuthenticationError):
    """The error that the login refuses a request."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.said = {"status": status, "detail": detail}
        self.answer = JSONResponse({"detail": detail}, status)


class Login(AuthenticationBackend):
    """The login of a project."""

    def __init__(self, auth: Any, where: str) -> None:
        """Take an `Auth`. Raises InvalidInput if it has no authenticate handler, or one that cannot be called."""
        self._auth: Any = auth
        self._handler: Any = getattr(auth, "_authenticate_handler", None)
        if self._handler is None:
            raise InvalidInput("has no @auth.authenticate handler of langgraph_sdk.Auth", where=where)
        asked = inspect.signature(self._handler).parameters
        if lacking := [name for name, one in asked.items() if name not in _GIVEN and one.default is one.empty]:
            what = f"its authenticate handler asks for {', '.join(lacking)}"
            raise InvalidInput(what, where=where, hint=f"only these are given: {', '.join(sorted(_GIVEN))}")
        self._names = _GIVEN & asked.keys()

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, Any]:
        """Return the permissions and the user of a request. Raises Refused, or an error of the handler."""
        scope = conn.scope
        given = {"path_params": {}, **scope, "headers": dict(scope["headers"]), "query_params": conn.query_params}
        given |= {"authorization": conn.headers.get("authorization"), "request": Request(scope), "scope": scope}
        user = user_of(await _called(self._handler, **{name: given[name] for name in self._names}))
        return AuthCredentials(user["permissions"]), user

    async def _authorize(self, user: Any, resource: str, action: str, value: dict[str, Any]) -> dict[str, Any]:
        """Return the value after the handler, and the filters that the handler returned. Raises Refused."""
        known = self._auth._handlers  # noqa: SLF001
        places = ((resource, action), (resource, "*"), ("*", action), ("*", "*"))
        handlers = next((known[one] for one in places if known.get(one)), self._auth._global_handlers)  # noqa: SLF001
        about = {"user": user, "permissions": user["permissions"], "resource": resource, "action": action}
        context = self._auth.types.AuthContext(**about)
        answer = await _called(handlers[-1], ctx=context, value=value) if handlers else None
        if answer is False:
            raise Refused(403, "the project's login forbids this")
        if answer not in (None, True) and not isinstance(answer, Mapping):
            raise TypeError(f"a handler of the login returned {type(answer).__name__}")
        return {"value": value, "filters": answer if isinstance(answer, Mapping) else {}}

    async def check(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Return the identity of a caller, and the handlers' answer for each act that the request needs."""
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in asked["headers"]]
        query = asked["query"].encode("latin-1")
        about = {"type": "http", "scheme": "http", "server": None, "method": asked["method"], "path": asked["path"]}
        try:
            _, user = await self.authenticate(HTTPConnection({**about, "query_string": query, "headers": headers}))
            answers = [await self._authorize(user, *one) for one in asked["acts"]]
            return {"identity": user["identity"], "answers": answers}
        except Refused as error:
            return error.said


async def _called(handler: Callable[..., Any], **given: Any) -> Any:
    """Call a handler of the login. Raises Refused for its refusals: HTTP errors of any library, failed assertions."""
    try:
        is_async = inspect.iscoroutinefunction(handler)
        return await handler(**given) if is_async else await run_in_threadpool(handler, **given)
    except AssertionError as error:
        raise Refused(403, str(error)) from error
    except Exception as error:
        status = getattr(error, "status_code", None)
        if isinstance(status, int) and 400 <= status < 500:
            raise Refused(status, str(getattr(error, "detail", ""))) from error
        raise


def prepared(app: Any, stated: Mapping[str, Any], login: Login | None, where: str) -> Starlette:
    """Return the application. With `enable_custom_route_auth`, its routes ask the login. Raises InvalidInput."""
    if not isinstance(app, Starlette):
        raise InvalidInput("is not an application of Starlette or FastAPI", where=where)
    if stated.get("enable_custom_route_auth"):
        if login is None:
            raise InvalidInput("http.enable_custom_route_auth needs a login", where=where, hint="name it as auth.path")
        asks = Middleware(AuthenticationMiddleware, backend=login, on_error=lambda _conn, error: vars(error)["answer"])
        app.user_middleware.insert(
            0 if stated.get("middleware_order") == "auth_first" else len(app.user_middleware), asks
        )
    return app


def paths_of(app: Any) -> dict[str, Any]:
    """Return the paths of an application in the form of OpenAPI."""
    if hasattr(app, "openapi"):
        return dict(app.openapi().get("paths", {}))
    routes = [one for one in app.routes if getattr(one, "methods", None)]
    return {one.path: {method.lower(): {"responses": {}} for method in one.methods} for one in routes}


def loaded(home: Home) -> tuple[Any, Login | None]:
    """Import the application and the login of the default graph's project. Raises InvalidInput."""
    found = required("project of the default graph", load_settings(home), home)
    for name, value in (next(iter(found.values())).environment if found else {}).items():
        os.environ.setdefault(name, value)
    login = Login(opened(found["auth"]), found["auth"].text) if "auth" in found else None
    if "http" not in found:
        return Starlette(), login
    return prepared(opened(found["http"]), found["http"].stated["http"], login, found["http"].text), login


def listening(path: Any) -> socket.socket:
    """Return a socket that only the home's owner can reach. The caller holds the process's lock."""
    path.unlink(missing_ok=True)
    bound = socket.socket(socket.AF_UNIX)
    bound.bind(str(path))
    path.chmod(0o600)
    return bound


async def answer(app: Any, login: Login | None, reader: Any, writer: Any) -> None:
    """Answer a line from the gateway: a question about a caller, or for the paths of the application."""
    said: Any = {"status": 401, "detail": "a valid key is needed in the header x-api-key: the project has no login"}
    try:
        asked = json.loads(await reader.readline())
        if "paths" in asked:
            said = paths_of(app)
        elif login is not None:
            said = await login.check(asked)
        writer.write(json.dumps(said, default=str).encode() + b"\n")
        await writer.drain()
    finally:
        writer.close()


async def _set(event: asyncio.Event) -> None:
    event.set()


async def serve(home: Home, lock: ProcessLock) -> None:
    """Serve until SIGTERM or SIGINT. The caller holds the process's lock; this function restores its file if needed."""
    clock, (app, login), listens = SystemClock(), loaded(home), asyncio.Event()
    log, health = EventLog(home.logs, PROCESS, clock), UnixServer(home.socket(PROCESS))
    web = uvicorn.Server(uvicorn.Config(
        app, ws="none", loop="asyncio", log_config=None, access_log=False, root_path="/lg", proxy_headers=True,
        forwarded_allow_ips="*", timeout_graceful_shutdown=_GRACE_S, callback_notify=partial(_set, listens),
    ))  # fmt: skip
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, web.handle_exit, number, None)
    bound = listening(home.run / f"{PROCESS}.auth")
    takes = lambda reader, writer: answer(app, login, reader, writer)  # noqa: E731
    answers = await asyncio.start_unix_server(takes, sock=bound, limit=LARGEST_LINE)

    async def reports() -> None:
        await listens.wait()  # the application may need time to start
        await health.start()
        log.emit("process.started")
        try:
            await Progress(home, PROCESS, os.getpid()).run(clock, lambda: keep_reachable(lock, health, log))
        finally:
            await health.stop(_GRACE_S)
            log.emit("process.stopped")

    try:
        serves = web._serve([listening(home.http(PROCESS))])  # noqa: SLF001  signals are handled here
        await together(serves, reports(), until=asyncio.FIRST_COMPLETED)
    finally:
        answers.close()
    if not web.started:
        raise TurnkeeperError("the project's application did not start")


main = partial(run_daemon, process=PROCESS, serve=serve, nice=NICE)

if __name__ == "__main__":
    os.umask(0o077)
    if sys.argv[2:] != [_AGAIN]:  # once: Python itself, or what starts with it, may set a variable each time
        kept = {name: value for name, value in os.environ.items() if name in _KEPT or name.startswith("LC_")}
        again = [sys.executable, "-P", "-m", "turnkeeper.gateway.project", *sys.argv[1:2], _AGAIN]
        os.execve(sys.executable, again, kept)  # noqa: S606
    sys.exit(main(sys.argv[1:]))
