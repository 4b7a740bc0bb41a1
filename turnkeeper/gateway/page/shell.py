"""Rendering of pages: ask the daemons, note which daemon is unavailable, fill a template with the newest answers."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from turnkeeper.config.surfaces import gathered, offered
from turnkeeper.console.unseen import counted, in_words
from turnkeeper.errors import MachineTrouble, TurnkeeperError, Unreachable
from turnkeeper.gateway.calls import SILENT, Gateway, Who, status_of, who_of
from turnkeeper.gateway.keys import Note, Settle
from turnkeeper.gateway.page import stores, text, views
from turnkeeper.rpc.channel import daemon_of, method_of
from turnkeeper.v1 import agent_runtime_pb2 as agents
from turnkeeper.v1 import schedules_pb2 as schedules

FOLDER = Path(__file__).parent
NOTE_S = 15.0
FRESH_S = 1.0
READ_S = 2.0  # seconds that a page waits for all of its answers
AWAY_S = 0.1  # seconds that it waits for a daemon that did not answer before
MOST_KEPT = 500  # answers that are kept for times when their daemon is unavailable
PROBES = (agents.ListChannelsRequest(), schedules.GetStatusRequest())  # one for each daemon; each page sends them


_CALLED = (  # functions that templates call by their names
    *(text.span, text.pairs_in, counted, in_words, views.why_of, views.skips, views.said_in, views.cards_in),
    *(
        views.origin_of,
        views.mark_of,
        views.state_of,
        views.is_loop,
        views.sign_of,
        views.run_text,
        views.strip_text,
        views.day_of,
    ),
)


def environment() -> Environment:
    """Return the template environment. It escapes each value, and treats an undefined name as an error."""
    made = Environment(
        loader=FileSystemLoader(FOLDER / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, auto_reload=False, finalize=text.printed,
    )  # fmt: skip
    made.filters |= {"markdown": text.markdown, "tone": views.tone, "path": lambda part: quote(str(part), safe="")}
    made.filters["thousands"] = "{:,}".format
    made.filters["documents"] = lambda said: offered("documents in words", said) or said
    made.filters["written"] = text.written
    made.filters["fields"] = lambda said, role="agent": text.cut(offered("fields in words", said, role) or "")
    made.tests["open"] = lambda turn: turn.status in views.OPEN_TURN
    made.tests["unmet"] = lambda turn: turn.error.startswith(views.UNMET)
    made.globals |= {"took": text.span} | {one.__name__: one for one in _CALLED}
    return made


@dataclass(kw_only=True)
class Silence:
    """A daemon that did not answer a page in time.

    Attributes:
        since: when it first did not answer.
        read_at: the time of the oldest of its earlier answers on the page; None if there is none.
        is_partly_unknown: True if the page shows nothing for at least one request.
        why: the trouble of its store; empty if the daemon itself does not answer.
    """

    since: datetime
    why: str = ""
    read_at: datetime | None = None
    is_partly_unknown: bool = False


class Reading:
    """The reads of a page: the time until which it waits for answers, and the daemons that did not answer."""

    def __init__(self, until: float) -> None:
        self.until, self.silent = until, dict[str, Silence]()


_reading: ContextVar[Reading] = ContextVar("reading")  # each request has its own context


class Answers:
    """The daemons' answers. Many tabs with the same request cost the daemons as much as one tab.

    The newest answer to each request is kept, and is shown while its daemon is unavailable.

    Attributes:
        away: the daemons that did not answer the last request, and since when.
        troubles: the trouble of a store, by the daemon that is away because of it.
        moved: called when a daemon stops answering or answers again.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._daemons = gateway.daemons(Who(surface="web"))
        self._gateway = gateway
        self._asked: dict[tuple[str, bytes], tuple[float, asyncio.Task[Any]]] = {}
        self._kept: OrderedDict[tuple[str, bytes], tuple[datetime, Message]] = OrderedDict()
        self.away: dict[str, datetime] = {}
        self.troubles: dict[str, str] = {}
        self.moved: Callable[[], None] = lambda: None

    async def ask(self, request: Message) -> Any:
        """Return the answer to a request. The answer may be up to a second old. Raises TurnkeeperError."""
        key = (request.DESCRIPTOR.name, request.SerializeToString(deterministic=True))
        return await self._once(key, lambda: self._answer(request))

    async def ask_within(self, request: Message, wait_s: float) -> Any:
        """Return the answer to a request, or raise Unreachable after `wait_s`, sooner if its daemon is unavailable."""
        daemon = daemon_of(request)
        try:
            async with asyncio.timeout(AWAY_S if daemon in self.away else max(wait_s, AWAY_S)):
                return await self.ask(request)
        except TimeoutError:
            self.note(daemon, is_away=True)
            raise Unreachable(f"{daemon} does not answer in time") from None

    async def _answer(self, request: Message) -> Any:
        """Ask a daemon, and keep its answer even if the page no longer waits."""
        try:
            answer = await self._daemons.ask(request)
        except TurnkeeperError as error:
            self.note_error(daemon_of(request), error)
            raise
        if not isinstance(request, agents.ListCategoriesRequest):  # which needs no store
            self.note(daemon_of(request), is_away=False)
        key = _kept_as(request)
        self._kept[key] = self._gateway.clock.now(), answer
        self._kept.move_to_end(key)
        while len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        return answer

    def kept(self, request: Message) -> tuple[datetime, Any] | None:
        """Return the newest answer to a request with its time, or None if there never was an answer."""
        return self._kept.get(_kept_as(request))

    def note_error(self, daemon: str, error: BaseException | None) -> None:
        """Record that a daemon is away if it does not answer or cannot use its store, and else that it answers."""
        self.note(daemon, is_away=isinstance(error, SILENT))
        if isinstance(error, MachineTrouble):
            self.troubles[daemon] = str(error)

    def note(self, daemon: str, *, is_away: bool) -> None:
        if not is_away:
            self.troubles.pop(daemon, None)
        if is_away != (daemon in self.away):
            self.away.pop(daemon, None)
            self.away |= {daemon: self._gateway.clock.now()} if is_away else {}
            self.moved()

    async def cluster(self) -> Any:
        """Return the state of the shared database. None if this machine has its own store. Raises TurnkeeperError."""
        if not (url := self._gateway.settings.store.shared_url):
            return None
        nodes = import_module("turnkeeper.storage.nodes")  # import it here, because no other home needs it
        return await self._stored("machines", lambda: nodes.read_cluster(url))

    async def outages(self) -> list[stores.Outage]:
        """Return the periods in which a daemon was unavailable, including present ones. Raises TurnkeeperError."""
        settings, now = self._gateway.settings.store, self._gateway.clock.now
        recorded = await self._stored(
            "outages", partial(stores.outages, self._gateway.home, settings.shared_url, now())
        )
        return [*recorded, *(stores.Outage(name, "does not answer", since, now()) for name, since in self.away.items())]

    async def spent(self, since: datetime) -> list[stores.Spent]:
        """Return the tokens of turns from this time on, by day and task. Raises TurnkeeperError."""
        url = self._gateway.settings.store.shared_url
        return list(await self._stored(f"spent {since}", partial(stores.spent, self._gateway.home, url, since)))

    async def decisions(self) -> list[stores.Decided]:
        """Return the newest decisions that were made. Raises TurnkeeperError."""
        url = self._gateway.settings.store.shared_url
        return list(await self._stored("decisions", partial(stores.decisions, self._gateway.home, url)))

    async def queues(self) -> list[Any]:
        """Return each queue with its limits and its use. Raises TurnkeeperError."""
        settings, now = self._gateway.settings, self._gateway.clock.now()
        where = self._gateway.home, settings.store.shared_url, settings.queues, now
        return list(await self._stored("queues", partial(stores.queues, *where)))

    async def findings(self) -> list[tuple[str, str]]:
        """Return the findings about this machine, such as a cordon, with remedies."""
        return await asyncio.to_thread(lambda: list(gathered("findings", self._gateway.home)))

    async def runs(self) -> dict[str, list[stores.Run]]:
        """Return the newest fires of each task. Raises TurnkeeperError."""
        url = self._gateway.settings.store.shared_url
        return dict(await self._stored("runs", partial(stores.runs, self._gateway.home, url)))

    async def failing(self) -> list[Any]:
        """Return the targets whose deliveries fail, as `status` reports them. Raises TurnkeeperError."""
        found = await self._stored("deliveries", lambda: [*(offered("failing deliveries", self._gateway.home) or ())])
        return list(found)

    async def deliveries(self, fire: schedules.Fire) -> list[str]:
        """Return a sentence about each delivery of a fire, as `explain` prints them. Raises TurnkeeperError."""
        read = partial(offered, "deliveries of a fire", self._gateway.home, fire)
        return list(await self._stored(f"deliveries of {fire.task_id}:{fire.entry_id}", read) or ())

    async def prices(self) -> Any:
        """Return the prices of the home. None if its settings have none."""
        return await asyncio.to_thread(offered, "read prices", self._gateway.home)

    async def _stored(self, name: str, read: Callable[[], Any]) -> Any:
        """Return the rows that a function reads in a store, or raise Unreachable after READ_S."""
        try:
            async with asyncio.timeout(READ_S):
                return await self._once((name, b""), lambda: asyncio.to_thread(read))
        except TimeoutError:
            raise Unreachable("does not answer in time", where="the store") from None

    async def _once(self, key: tuple[str, bytes], ask: Callable[[], Awaitable[Any]]) -> Any:
        now = self._gateway.clock.monotonic()
        self._asked = {
            one: found for one, found in self._asked.items() if now - found[0] < FRESH_S or not found[1].done()
        }
        if key not in self._asked:
            task = asyncio.ensure_future(ask())
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # all who asked may have closed
            self._asked[key] = (now, task)
        return await asyncio.shield(self._asked[key][1])

    def forget(self) -> None:
        self._asked = {}


def _kept_as(request: Message) -> tuple[str, bytes]:
    """Return the key that an answer is kept under. For a period, which moves with time, only the length counts."""
    fields, length = request.DESCRIPTOR.fields_by_name, 0
    if "from" in fields and "to" in fields:
        request, given = type(request)(), request
        request.CopyFrom(given)
        length = given.to.seconds - getattr(given, "from").seconds  # type: ignore[attr-defined]
        request.ClearField("from")
        request.ClearField("to")
    return f"{request.DESCRIPTOR.name} {length}", request.SerializeToString(deterministic=True)


class Shell:
    def __init__(self, gateway: Gateway) -> None:
        self.gateway, self.templates = gateway, environment()
        self.answers = Answers(gateway)
        self._turn = self.templates.from_string(
            '{% from "frame/parts.html" import turn_item with context %}{{ turn_item(turn) }}'
        )

    def begin(self) -> Reading:
        """Begin the reads of a page. Together they wait at most READ_S."""
        found = Reading(self.gateway.clock.monotonic() + READ_S)
        _reading.set(found)
        return found

    async def ask(self, request: Message, *, needed: bool = False) -> Any:
        """Return the answer to a request; while its daemon or its store is away, the newest kept one, or an empty one.

        Raises:
            Unreachable: no answer was kept, and the page is useless without one (`needed`).
            TurnkeeperError: the daemon refused the request.
        """
        daemon, reading = daemon_of(request), _reading.get(None) or self.begin()
        left_s = reading.until - self.gateway.clock.monotonic()
        with suppress(*SILENT):
            return await self.answers.ask_within(request, left_s)
        since, why = self.answers.away.get(daemon, self.gateway.clock.now()), self.answers.troubles.get(daemon, "")
        silence = reading.silent.setdefault(daemon, Silence(since=since, why=why))
        if (kept := self.answers.kept(request)) is not None:
            silence.read_at = min(filter(None, (silence.read_at, kept[0])))
            return kept[1]
        silence.is_partly_unknown = True
        if needed:
            raise Unreachable(f"{daemon} does not answer, and there is no earlier copy of this page's data to show")
        return GetMessageClass(method_of(request).output_type)()

    def times(self) -> text.Times:
        return text.Times(self.gateway.clock.now())

    async def page(self, request: Request, template: str, status: int = 200, **shown: Any) -> Response:
        """Return a page. `topics` in `shown` names the kinds of changes that make the page outdated."""
        note = await self._note(request)
        listed, _ = await asyncio.gather(*map(self.ask, PROBES), return_exceptions=True)
        found = getattr(listed, "channels", ())  # a daemon that refuses the request has its part of the page unknown
        is_known = self.answers.kept(PROBES[0]) is not None and not isinstance(listed, BaseException)
        counts = (one.waiting + one.proposed + one.deviations for one in found)
        waiting = "?" if not is_known else len(shown["cards"]) if "cards" in shown else sum(counts)  # as on the page
        here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        about = {"topics": "", "live": "/ui/live", "here": here, "waiting": waiting, "note": note}
        return HTMLResponse(self._render(request, template, **{**about, **shown}), status)

    def turn(self, request: Request, turn: agents.ConversationTurn) -> str:
        times, session = self.times(), who_of(request).session
        here = f"/ui/conversations/{quote(request.query_params.get('channel', ''), safe='')}"
        key = session.page_key if session else ""
        return self._turn.render(turn=turn, times=times, page_key=key, here=here, away={})

    def _render(self, request: Request, template: str, **shown: Any) -> str:
        session = who_of(request).session
        common = {
            "times": self.times(),
            "away": (_reading.get(None) or self.begin()).silent,
            "page_key": session.page_key if session else "",
        }
        return self.templates.get_template(template).render(**{**common, **shown}, path=request.url.path)

    async def _note(self, request: Request) -> Note | None:
        """Return the note on the last change, if the requested page shows it.

        If the daemon did not confirm the change, every page shows the note until it is known if the change was made.
        """
        session, now, path = who_of(request).session, self.gateway.clock.monotonic(), request.scope["path"]
        note = session.note if session else None
        if note is None or note.path not in {"", path} or now >= note.until:
            return None
        if note.settle is not None and not await note.settle(note):
            return note
        note.path, note.until = path, min(note.until, now + NOTE_S)
        return note

    def plain(self, template: str, status: int = 200, **shown: Any) -> Response:
        """Return a page for a browser that is not logged in."""
        return HTMLResponse(self.templates.get_template(template).render(**shown), status)

    async def problem(self, request: Request, error: Exception) -> Response:
        """Answer with an error that is meant for a person."""
        if not isinstance(error, TurnkeeperError):
            raise error
        return await self.page(
            request,
            "frame/plain.html",
            status_of(error),
            title="This cannot be shown",
            topics="tasks turns",
            error=error,
        )

    def back(
        self,
        request: Request,
        said: str,
        default: str,
        *,
        tone: str = "good",
        settle: Settle | None = None,
        undo: str = "",
    ) -> Response:
        """Redirect to the page of the form, and show the result there. See :class:`Note`."""
        session, path = who_of(request).session, own(request.scope["form"].get("next", ""), default)
        self.answers.forget()
        if session is not None:
            shown_at = "" if settle else unquote(urlsplit(path).path)
            session.note = Note(tone=tone, text=said, settle=settle, undo=undo, path=shown_at)
        return RedirectResponse(path, 303)


def own(path: str, default: str) -> str:
    r"""Return a path if it belongs to this page, else the default, so that no redirect leaves the site.

    >>> own("/ui/tasks?q=a", "/ui/"), own("//evil.example/ui/", "/ui/"), own("/ui/\r\nx: y", "/ui/")
    ('/ui/tasks?q=a', '/ui/', '/ui/')
    """
    return path if path.startswith("/ui/") and path.isprintable() and path.isascii() and "\\" not in path else default


def query_of(request: Request, *names: str) -> Mapping[str, str]:
    return {name: request.query_params.get(name, "")[:200] for name in names}
