"""Handlers of pages: each requests its data from the daemons and renders it. A GET changes nothing."""

import asyncio
import re
from collections.abc import Awaitable
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from turnkeeper.config.surfaces import required
from turnkeeper.errors import NotFound, TurnkeeperError
from turnkeeper.gateway.page import views
from turnkeeper.gateway.page.shell import Shell, query_of
from turnkeeper.v1 import agent_runtime_pb2 as agents
from turnkeeper.v1 import schedules_pb2 as schedules

MOST_TURNS = 30
MOST_FIRES = 50
MOST_OF_TIMELINE = 1000
MOST_LANES = 60
MOST_SAID = 5
MOST_READ = 50  # turns that are searched for the newest ones with a summary
DAYS = (14, 30, 90)  # days on the page of tokens
NEXT = 10
SPANS = {  # the time before and after now in a timeline
    "1m": (timedelta(seconds=45), timedelta(seconds=15)),
    "10m": (timedelta(minutes=8), timedelta(minutes=2)),
    "1h": (timedelta(minutes=45), timedelta(minutes=15)),
    "6h": (timedelta(hours=4.5), timedelta(hours=1.5)),
    "24h": (timedelta(hours=24), timedelta(hours=6)),
    "7d": (timedelta(days=6), timedelta(days=1)),
    "30d": (timedelta(days=25), timedelta(days=5)),
    "1y": (timedelta(days=335), timedelta(days=30)),
}


class Reads:
    def __init__(self, shell: Shell) -> None:
        self._shell, self._ask = shell, shell.ask

    async def today(self, request: Request) -> Response:
        """Show pending decisions, pauses, failures since yesterday, the next fires, and the day's tokens."""
        times = self._shell.times()
        midnight = times.now.astimezone().replace(hour=0, minute=0, second=0, microsecond=0)
        cards, fires, tasks, turns, (spent, _), (machines, _), (failing, _) = await asyncio.gather(
            self._waiting(),
            self._gone_wrong(times.now - timedelta(days=1), times.now),
            self._ask(schedules.ListTasksRequest()),
            self._ask(agents.ListTurnsRequest(limit=MOST_READ)),
            self._stored(self._shell.answers.spent(midnight)),
            self._machines(),
            self._stored(self._shell.answers.failing()),
        )
        wrong = views.went_wrong(fires, times.now - timedelta(days=1))[:20]
        zones = {task.spec.name: task.spec.timezone for task in tasks.tasks}
        soon, paused = views.soonest(tasks.tasks, NEXT), [one for one in tasks.tasks if one.HasField("paused_until")]
        return await self._shell.page(
            request, "today.html", title="Today", topics="tasks turns machines", cards=cards, wrong=wrong,
            zones=zones, soon=soon, spent=views.by(spent, "name"),
            said=[turn for turn in turns.turns if turn.summary][:MOST_SAID],
            stopped=views.stopped_by_budget(tasks.tasks), failing=failing,
            paused=paused, resumed=[] if soon else await self._resumed(paused),
            lost=[one["node"] for one in machines if "stale" in one["status"]],
        )  # fmt: skip

    async def _resumed(self, paused: list[schedules.Task]) -> list[tuple[schedules.Task, Any]]:
        """Return paused tasks with their first time after the pause, soonest first."""
        asked = [schedules.PreviewScheduleRequest(name=task.spec.name, count=1) for task in paused]
        found = zip(paused, await asyncio.gather(*map(self._ask, asked)), strict=True)
        times = [(task, answer.nominals[0].nominal_at) for task, answer in found if answer.nominals]
        return sorted(times, key=lambda pair: pair[1].ToNanoseconds())

    async def _machines(self) -> tuple[list[Any], str]:
        """Return the machines that share the store, and its queue in words or why it is not known."""
        shared, problem = await self._stored(self._shell.answers.cluster())
        if not shared:
            return [], f"Not known: {problem}." if problem else ""
        machines, columns, queue = required("machines", shared)
        said = {column.header: column.value for column in columns}
        shown = [{**one, "roles": said["ROLES"](one), "ago": said["LAST BEAT"](one)} for one in machines]
        return shown, queue

    async def _stored(self, read: Awaitable[Any]) -> tuple[Any, str]:
        """Return the answer of a store, or else an empty list and the reason why the store cannot be read."""
        try:
            return await read, ""
        except TurnkeeperError as error:
            return [], str(error)

    async def machines(self, request: Request) -> Response:
        """Show the daemons and, if several machines share the store, each machine; and the queues."""
        runner = await self._ask(schedules.GetStatusRequest())
        machines, queue = await self._machines()
        queues, unread = await self._stored(self._shell.answers.queues())
        return await self._shell.page(
            request, "machines.html", title="Machines", topics="tasks machines", runner=runner, machines=machines,
            queue=queue, queues=queues, unread=unread, findings=await self._shell.answers.findings(),
        )  # fmt: skip

    async def tokens(self, request: Request) -> Response:
        days = next((one for one in DAYS if str(one) == query_of(request, "days")["days"]), DAYS[0])
        midnight = self._shell.times().now.astimezone().replace(hour=0, minute=0, second=0, microsecond=0)
        spent, problem = await self._stored(self._shell.answers.spent(midnight - timedelta(days=days - 1)))
        name = query_of(request, "task")["task"]
        dates = [f"{midnight - timedelta(days=back):%Y-%m-%d}" for back in range(days)]
        prices = await self._shell.answers.prices()
        shown = [one for one in spent if name in {"", one.name}]
        by_day = {row[0]: row for row in views.by(shown, "day", prices)}
        return await self._shell.page(
            request, "tokens.html", title="Tokens", days=days, choices=DAYS, problem=problem, task=name,
            by_day=[by_day.get(day, (day, 0, 0, 0, 0)) for day in dates], by_task=views.by(spent, "name", prices),
            by_model=views.by(shown, "model", prices), price=prices,
        )  # fmt: skip

    async def decisions(self, request: Request) -> Response:
        cards, (made, unknown) = await asyncio.gather(self._waiting(), self._stored(self._shell.answers.decisions()))
        return await self._shell.page(
            request, "decisions.html", title="Decisions", topics="turns", cards=cards, made=made, unknown=unknown
        )

    async def _waiting(self) -> list[views.Card]:
        interrupts, candidates, deviations = await asyncio.gather(
            self._ask(agents.ListInterruptsRequest()),
            self._ask(agents.ListCandidatesRequest()),
            self._ask(agents.ListDeviationsRequest()),
        )
        proposed = [views.card_of_candidate(one, await self._base(one)) for one in candidates.candidates]
        asked = [views.card_of_interrupt(one) for one in interrupts.interrupts]
        return [*asked, *proposed, *map(views.card_of_deviation, deviations.deviations)]

    async def _base(self, one: agents.Candidate) -> agents.Page | None:
        if not one.base_version:
            return None
        try:
            page: agents.Page = await self._ask(agents.GetPageRequest(page_id=one.page_id))
        except NotFound:
            return None
        return page if page.page_id else None

    async def channels(self, request: Request) -> Response:
        found = await self._ask(agents.ListChannelsRequest())
        return await self._shell.page(
            request, "conversation.html", title="Conversations", topics="turns", channels=found.channels, turns=None,
            q=query_of(request, "q")["q"],
        )  # fmt: skip

    async def conversation(self, request: Request) -> Response:
        channel = request.path_params["channel"]
        found, tasks, asked = await asyncio.gather(
            self._ask(agents.GetConversationRequest(channel=channel, limit=MOST_TURNS)),
            self._ask(schedules.ListTasksRequest(channel=channel)),
            self._ask(agents.ListInterruptsRequest()),
        )
        return await self._shell.page(
            request, "conversation.html", title=channel, channel=channel, turns=found.turns, channels=None,
            single=False, topics="tasks turns", waits=views.still_wait(tasks.tasks, asked.interrupts),
            live=f"/ui/live?channel={self._shell.templates.filters['path'](channel)}",
        )  # fmt: skip

    async def turn(self, request: Request) -> Response:
        """Show one turn: its messages and calls, its approvals, its duration and tokens."""
        id_ = request.path_params["turn_id"]
        about = await self._ask(agents.GetTurnRequest(turn_id=id_), needed=True)
        found = await self._ask(agents.GetConversationRequest(thread_id=about.thread_id, limit=MOST_TURNS))
        turns = [turn for turn in found.turns if turn.turn_id == id_]
        return await self._shell.page(
            request, "conversation.html", title=f"Turn {id_}", topics="turns", channel=about.channel, turns=turns,
            channels=None, single=True, about=about,
        )  # fmt: skip

    async def tasks(self, request: Request, *, loops: bool) -> Response:
        """Show the tasks that match the query: with `loops` only loops, otherwise only other tasks."""
        query = query_of(request, "state", "channel", "q")
        found, (runs, _) = await asyncio.gather(
            self._ask(schedules.ListTasksRequest()), self._stored(self._shell.answers.runs())
        )
        every = [task for task in found.tasks if views.is_loop(task) is loops]
        return await self._shell.page(
            request, "tasks.html", title="Loops" if loops else "Tasks", topics="tasks",
            counts=views.counts_of(every), total=len(every), query=query, loops=loops, tasks=views.chosen(every, query),
            channels=sorted({task.spec.channel for task in every}), runs=dict(runs),
        )  # fmt: skip

    async def task(self, request: Request, *, status: int = 200, **more: Any) -> Response:
        """Show a task with its next ten times and its latest fires."""
        name = request.path_params["name"]
        task = await self._ask(schedules.GetTaskRequest(name=name), needed=True)
        upcoming, fires, categories = await asyncio.gather(
            self._ask(schedules.PreviewScheduleRequest(name=name, count=NEXT)),
            self._ask(schedules.ListFiresRequest(name=name, limit=MOST_FIRES, without_folded=True)),
            self._ask(agents.ListCategoriesRequest()),
        )
        about = {
            "title": task.spec.name, "topics": "tasks", "task": task, "upcoming": upcoming.nominals,
            "fires": fires.fires, "form": views.form_of(task), "preview": None, "typing": False,
            "categories": [one.name for one in categories.categories],
        }  # fmt: skip
        template = "task.html"
        if request.url.path.endswith("/edit"):  # a form with unsaved input is not reloaded
            template, about["topics"] = "edit.html", ""
        return await self._shell.page(request, template, status, **{**about, **more})

    async def new(self, request: Request, *, status: int = 200, **more: Any) -> Response:
        """Show the form for a new task. After it is filled in, also show its next times and its category's grants."""
        found = (await self._ask(agents.ListCategoriesRequest())).categories
        usable = {one.name: one for one in found if not one.problem}
        about = {
            "title": "New task", "form": views.NEW, "preview": None, "categories": list(usable), "grants": usable,
            "task": None, "typing": False,
        }  # fmt: skip
        return await self._shell.page(request, "edit.html", status, **{**about, **more})

    async def slot(self, request: Request) -> Response:
        name = request.path_params["name"]
        task = await self._ask(schedules.GetTaskRequest(name=name), needed=True)
        asked = schedules.ExplainFireRequest(name=name, at=query_of(request, "at")["at"])
        found = await self._ask(asked, needed=True)
        told, _ = await self._stored(self._shell.answers.deliveries(found.fire))
        return await self._shell.page(
            request, "slot.html", title=f"{name}: why", topics="tasks", task=task, found=found, told=told, name=name
        )

    async def timeline(self, request: Request) -> Response:
        """Show past and planned fires of a period from a minute to a year. `move` shifts it by half its length."""
        times, chosen = self._shell.times(), query_of(request, "span", "move")
        name = chosen["span"] if chosen["span"] in SPANS else "24h"
        move = int(chosen["move"]) if re.fullmatch(r"-?\d{1,3}", chosen["move"], re.ASCII) else 0
        back, ahead = SPANS[name]
        begin = times.now - back + (back + ahead) / 2 * move
        window = views.Window(begin=begin, now=times.now, end=begin + back + ahead)
        past = schedules.ListFiresRequest(limit=MOST_OF_TIMELINE, without_folded=True)
        fires, tasks, (outages, unknown) = await asyncio.gather(
            self._ask(_between(past, window.begin, window.end)),
            self._ask(schedules.ListTasksRequest()),
            self._stored(self._shell.answers.outages()),
        )
        armed, planned = [task.id for task in views.soonest(tasks.tasks, MOST_LANES)], schedules.SimulateResponse()
        if armed and window.end > window.now:
            asked = schedules.SimulateRequest(names=armed, limit=MOST_OF_TIMELINE)
            planned = await self._ask(_between(asked, max(window.now, window.begin), window.end))
        zones = {task.spec.name: task.spec.timezone for task in tasks.tasks}
        return await self._shell.page(
            request, "timeline.html", title="Timeline", topics="tasks", span=name, window=window, move=move,
            bands=views.bands_of(outages, window), unknown=unknown, spans=list(SPANS),
            lanes=views.lanes_of(fires.fires, planned.rows, zones, window),
            cut=bool(fires.next_cursor) or planned.truncated,
        )  # fmt: skip

    async def _gone_wrong(self, begin: datetime, end: datetime) -> list[schedules.Fire]:
        """Return the fires of a period that failed or were skipped, and the newest of any outcome, newest first."""
        wanted = [
            schedules.ListFiresRequest(outcome=outcome, limit=20)
            for outcome in ("failed", "rejected", "skipped", "cancelled")
        ]
        wanted.append(schedules.ListFiresRequest(limit=MOST_FIRES, without_folded=True))
        asked = [self._ask(_between(one, begin, end)) for one in wanted]
        found = {fire.entry_id: fire for answer in await asyncio.gather(*asked) for fire in answer.fires}
        return sorted(found.values(), key=lambda fire: fire.nominal_at.ToNanoseconds(), reverse=True)

    async def knowledge(self, request: Request, *, kind: str) -> Response:
        """Show the pages of the workspace, one page, the memory, or everything with a name that matches the query."""
        shown = dict[str, Any](pages=None, page=None, entries=None, found=None, q=query_of(request, "q")["q"])
        if kind == "pages":
            shown["pages"] = (await self._ask(agents.ListPagesRequest(tag=query_of(request, "tag")["tag"]))).pages
        elif kind == "page":
            asked = agents.GetPageRequest(page_id=request.path_params["page_id"])
            shown["page"] = await self._ask(asked, needed=True)
        elif kind == "find":
            shown["found"] = views.matching(await self._named(), shown["q"])
        else:
            wanted = agents.ListMemoryRequest(tier=query_of(request, "tier")["tier"], limit=200)
            shown["entries"] = (await self._ask(wanted)).entries
        title = shown["page"].title or request.path_params["page_id"] if kind == "page" else kind.capitalize()
        return await self._shell.page(request, "knowledge.html", title=title, topics="turns", kind=kind, **shown)

    async def _named(self) -> list[tuple[str, str, str]]:
        """Return the kind, name and path of each task, conversation and page."""
        tasks, channels, pages = await asyncio.gather(
            self._ask(schedules.ListTasksRequest()),
            self._ask(agents.ListChannelsRequest()),
            self._ask(agents.ListPagesRequest()),
        )
        path = self._shell.templates.filters["path"]
        found = [("Tasks", task.spec.name, f"/ui/tasks/{path(task.spec.name)}") for task in tasks.tasks]
        found += [("Conversations", one.name, f"/ui/conversations/{path(one.name)}") for one in channels.channels]
        return found + [("Pages", one.title or one.page_id, f"/ui/pages/{path(one.page_id)}") for one in pages.pages]

    def routes(self) -> dict[str, Any]:
        return {
            "/ui/": self.today,
            "/ui/decisions": self.decisions,
            "/ui/conversations": self.channels,
            "/ui/conversations/{channel}": self.conversation,
            "/ui/turns/{turn_id}": self.turn,
            "/ui/tasks": partial(self.tasks, loops=False),
            "/ui/loops": partial(self.tasks, loops=True),
            "/ui/tasks/{name}": self.task,
            "/ui/tasks/{name}/edit": self.task,
            "/ui/tasks/{name}/slot": self.slot,
            "/ui/new": self.new,
            "/ui/timeline": self.timeline,
            "/ui/machines": self.machines,
            "/ui/tokens": self.tokens,
            "/ui/find": partial(self.knowledge, kind="find"),
            "/ui/pages": partial(self.knowledge, kind="pages"),
            "/ui/pages/{page_id}": partial(self.knowledge, kind="page"),
            "/ui/memory": partial(self.knowledge, kind="memory"),
        }


def _between(asked: Any, begin: datetime, end: datetime) -> Any:
    """Return a request with times in whole minutes, so that many tabs send the same request."""
    getattr(asked, "from").FromDatetime(begin.replace(second=0, microsecond=0))
    asked.to.FromDatetime(end.replace(second=0, microsecond=0) + timedelta(minutes=1))
    return asked
