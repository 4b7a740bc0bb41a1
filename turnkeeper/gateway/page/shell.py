"""Rendering of pages: ask the daemons, note which daemon is away, and fill a template with the answers."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import quote

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from turnkeeper.console.unseen import counted, in_words
from turnkeeper.errors import TurnkeeperError, Unreachable
from turnkeeper.gateway.calls import Gateway, Who, status_of, who_of
from turnkeeper.gateway.keys import Note
from turnkeeper.gateway.page import text, views
from turnkeeper.rpc.channel import daemon_of, method_of
from turnkeeper.v1 import agent_runtime_pb2 as agents

FOLDER = Path(__file__).parent
NOTE_S = 15.0
FRESH_S = 1.0


def environment() -> Environment:
    """Return the template environment: it escapes each value, and an undefined name is an error."""
    made = Environment(
        loader=FileSystemLoader(FOLDER / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, auto_reload=False, finalize=text.printed,
    )  # fmt: skip
    made.filters |= {"markdown": text.markdown, "tone": views.tone, "path": lambda part: quote(str(part), safe="")}
    made.globals |= {"span": text.span, "counted": counted, "why_of": views.why_of, "skips": views.skips}
    made.globals |= {"said_in": views.said_in, "cards_in": views.cards_in, "mark_of": views.mark_of}
    made.tests["open"] = lambda turn: turn.status in views.OPEN_TURN
    made.globals |= {"state_of": views.state_of, "in_words": in_words, "is_loop": views.is_loop}
    return made


class Answers:
    """A short-lived cache of the daemons' answers: many tabs with the same request cost the daemons as much as one."""

    def __init__(self, gateway: Gateway) -> None:
        self._daemons = gateway.daemons(Who(surface="web"))
        self._gateway = gateway
        self._asked: dict[tuple[str, bytes], tuple[float, asyncio.Task[Any]]] = {}

    async def ask(self, request: Message) -> Any:
        """Return the answer to a request; it may be up to a second old. Raises TurnkeeperError."""
        key = (request.DESCRIPTOR.name, request.SerializeToString(deterministic=True))
        return await self._once(key, lambda: self._daemons.ask(request))

    async def cluster(self) -> Any:
        """Return the state of the shared database; None if this machine has its own. Raises TurnkeeperError."""
        if not (url := self._gateway.settings.store.shared_url):
            return None
        nodes = import_module("turnkeeper.storage.nodes")  # imported here: no other home needs it
        return await self._once(("database", b""), lambda: asyncio.to_thread(nodes.read_cluster, url))

    async def _once(self, key: tuple[str, bytes], ask: Callable[[], Awaitable[Any]]) -> Any:
        now = self._gateway.clock.monotonic()
        self._asked = {one: found for one, found in self._asked.items() if now - found[0] < FRESH_S}
        if key not in self._asked:
            self._asked[key] = (now, asyncio.ensure_future(ask()))
        return await asyncio.shield(self._asked[key][1])

    def forget(self) -> None:
        """Clear the cache after a change."""
        self._asked = {}


class Shell:
    """Renders pages, and answers each change with a redirect to its page."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway, self.templates = gateway, environment()
        self.away: dict[str, datetime] = {}
        self.answers = Answers(gateway)
        self._turn = self.templates.from_string(
            '{% from "parts.html" import turn_item with context %}{{ turn_item(turn) }}'
        )

    async def ask(self, request: Message) -> Any:
        """Return the answer to a request; an empty one while its daemon is away. Raises TurnkeeperError."""
        daemon = daemon_of(request)
        try:
            answer = await self.answers.ask(request)
        except Unreachable:
            self.away.setdefault(daemon, self.gateway.clock.now())
            return GetMessageClass(method_of(request).output_type)()
        self.away.pop(daemon, None)
        return answer

    def times(self) -> text.Times:
        """Return a formatter of times relative to now."""
        return text.Times(self.gateway.clock.now())

    async def page(self, request: Request, template: str, status: int = 200, **shown: Any) -> Response:
        """Return a page. `topics` in `shown` names the kinds of changes that make the page outdated."""
        channels = (await self.ask(agents.ListChannelsRequest())).channels
        waiting = sum(one.waiting + one.proposed + one.deviations for one in channels)
        here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        about = {"topics": "", "live": "/ui/live", "here": here, "waiting": waiting, "note": self._note(request)}
        return HTMLResponse(self._render(request, template, **{**about, **shown}), status)

    def turn(self, request: Request, turn: agents.ConversationTurn) -> str:
        times, session = self.times(), who_of(request).session
        here = f"/ui/conversations/{quote(request.query_params.get('channel', ''), safe='')}"
        return self._turn.render(turn=turn, times=times, page_key=session.page_key if session else "", here=here)

    def _render(self, request: Request, template: str, **shown: Any) -> str:
        session = who_of(request).session
        common = {"times": self.times(), "page_key": session.page_key if session else "", "away": self.away}
        return self.templates.get_template(template).render(**{**common, **shown}, path=request.url.path)

    def _note(self, request: Request) -> Note | None:
        """Return the note on the last change: for the next page, and while that page is reloaded."""
        session, now, path = who_of(request).session, self.gateway.clock.monotonic(), request.url.path
        note = session.note if session else None
        if note is None or (note.path and (note.path != path or now >= note.until)):
            return None
        if not note.path:
            note.path, note.until = path, now + NOTE_S
        return note

    def plain(self, template: str, status: int = 200, **shown: Any) -> Response:
        """Return a page for a browser that is not logged in."""
        return HTMLResponse(self.templates.get_template(template).render(**shown), status)

    async def problem(self, request: Request, error: Exception) -> Response:
        """Answer an error that is meant for a person."""
        if not isinstance(error, TurnkeeperError):
            raise error
        return await self.page(request, "plain.html", status_of(error), title="This cannot be shown", error=error)

    def back(self, request: Request, said: str, default: str, *, tone: str = "good") -> Response:
        """Redirect to the page of the form, and show the result there as `good`, `warn` or `bad`."""
        session = who_of(request).session
        self.answers.forget()
        if session is not None:
            session.note = Note(tone=tone, text=said)
        return RedirectResponse(own(request.scope["form"].get("next", ""), default), 303)


def own(path: str, default: str) -> str:
    r"""Return a path if it belongs to this page, else the default, so that no redirect leaves the site.

    >>> own("/ui/tasks?q=a", "/ui/"), own("//evil.example/ui/", "/ui/"), own("/ui/\r\nx: y", "/ui/")
    ('/ui/tasks?q=a', '/ui/', '/ui/')
    """
    return path if path.startswith("/ui/") and path.isprintable() and path.isascii() and "\\" not in path else default


def query_of(request: Request, *names: str) -> Mapping[str, str]:
    return {name: request.query_params.get(name, "")[:200] for name in names}
