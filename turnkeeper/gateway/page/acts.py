"""Changes that a person makes on the page. Each returns to the page that it came from and reports the result there."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from google.protobuf.message import Message
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from turnkeeper.console.unseen import counted
from turnkeeper.errors import Conflict, InvalidInput, NotFound, TurnkeeperError, Unreachable
from turnkeeper.gateway.calls import Who, need
from turnkeeper.gateway.door import PLAIN_HOSTS, cookie_name
from turnkeeper.gateway.keys import Note, Scope, login_page
from turnkeeper.gateway.page import views
from turnkeeper.gateway.page.reads import Reads
from turnkeeper.gateway.page.shell import READ_S, Shell
from turnkeeper.gateway.page.text import zone_of
from turnkeeper.rpc.channel import daemon_of
from turnkeeper.storage.locking import is_held
from turnkeeper.times import shown_in, written_time
from turnkeeper.v1 import agent_runtime_pb2 as agents
from turnkeeper.v1 import schedules_pb2 as schedules

_DONE = {"approve": "Approved", "reject": "Rejected", "edit": "Approved with your arguments", "answer": "Answered"}
_FOLLOWS = {
    "approve": "The call runs now",
    "edit": "The call runs now",
    "reject": "The agent is told so, and the call does not run",
    "answer": "The agent continues with your answer",
}
_MOST_ABOUT = 400  # characters of the description of a decision
_STATES_AFTER = {
    "approve": {"approve", "canonical", "accepted"},
    "reject": {"reject", "rejected", "kept"},
    "edit": {"edit"},
    "answer": {"answer"},
}
_LISTS: dict[str, Any] = {
    "interrupt": agents.ListInterruptsRequest,
    "candidate": agents.ListCandidatesRequest,
    "deviation": agents.ListDeviationsRequest,
}
ACT_S = 2.0  # seconds that a change waits for its daemon
_STATES = {
    "pause": (schedules.PauseTaskRequest, "is paused"),
    "resume": (schedules.ResumeTaskRequest, "fires again"),
    "disable": (schedules.DisableTaskRequest, "is disabled"),
    "enable": (schedules.EnableTaskRequest, "is enabled"),
    "run": (schedules.RunTaskRequest, "fires now"),
    "delete": (schedules.DeleteTaskRequest, "is deleted"),
    "restore": (schedules.RestoreTaskRequest, "is back, as it was"),
}


class Acts:
    def __init__(self, shell: Shell, reads: Reads) -> None:
        self._shell, self._reads = shell, reads

    async def decide(self, request: Request) -> Response:
        """Decide an approval, a proposal or a deviation. A decision on an approval is bound to the arguments shown."""
        form, kind, id_ = request.scope["form"], request.path_params["kind"], request.path_params["id"]
        does = "answer" if "option" in form else form.get("do", "")
        text = form.get("option", form.get(does, "")).strip().replace("\r\n", "\n")
        about = form.get("about", id_)[:_MOST_ABOUT]
        yes_or_no = {"approve": "yes", "reject": "no"}.get(does if form.get("plain") else "")
        shown_as = ("answer", about, yes_or_no) if yes_or_no else (does, about, text)
        said = decided(kind, *shown_as) if does in _DONE else ""
        try:
            if not said:
                raise InvalidInput("is not a decision", where="do", hint="approve, reject, edit or answer")
            said += _stands(await self._ask(who := need(request, Scope.DECIDE), _decision(kind, id_, does, form, text)))
        except Unsure as error:
            unsure = f"{error}. Your decision may still be recorded: {about}. This page will say whether it was."
            fate = Fate(kind=kind, id=id_, does=does, via=who.via, about=about, said=said, sent=error.sent)
            settle = partial(self._settle, fate)
            return self._shell.back(request, unsure, "/ui/decisions", tone="unsure", settle=settle)
        except TurnkeeperError as error:
            return self._shell.back(request, f"Not decided: {_why(error)}", "/ui/decisions", tone="bad")
        return self._shell.back(request, said, "/ui/decisions", tone="warn" if does == "reject" else "good")

    async def decide_several(self, request: Request) -> Response:
        """Accept or reject each selected proposal, and report how many were decided."""
        form = request.scope["form"]
        does, ids = form.get("do", ""), [key.removeprefix("pick-") for key in form if key.startswith("pick-")]
        titles, text = [form[f"pick-{id_}"] for id_ in ids], form.get(form.get("do", ""), "").strip()
        who, decided_ = need(request, Scope.DECIDE), 0
        try:
            if does not in {"approve", "reject"} or not ids:
                raise InvalidInput("nothing is ticked", hint="tick what you have read")
            for id_ in ids:
                await self._ask(who, _decision("candidate", id_, does, form, text))
                decided_ += 1
        except TurnkeeperError as error:
            more = ". The next one may still be recorded." if isinstance(error, Unsure) else ""
            said = f"Decided: {decided_} of {len(ids)}. {error}{more}" if ids else str(error)
            return self._shell.back(request, said, "/ui/decisions", tone="bad")
        said = decided("candidate", does, f"{counted(len(ids), 'proposal')}: {', '.join(titles)}"[:_MOST_ABOUT], text)
        return self._shell.back(request, said, "/ui/decisions", tone="warn" if does == "reject" else "good")

    async def _settle(self, fate: "Fate", note: Note) -> bool:
        """Write the outcome of a decision to its note. Return False while the outcome is unknown."""
        try:
            listed = await self._shell.answers.ask_within(_LISTS[fate.kind](all=True), READ_S)
        except TurnkeeperError:
            return False
        found = {getattr(one, f"{fate.kind}_id"): one for one in getattr(listed, f"{fate.kind}s")}.get(fate.id)
        if not fate.sent.done() and (found is None or _waits(found)):
            return False
        note.tone, note.text = told(fate, found)
        return True

    async def _ask(self, who: Who, asked: Message) -> Any:
        """Ask a daemon for a change, and wait at most ACT_S for its answer.

        Raises:
            Unsure: no answer came, so the change may have been made or may still be made.
            TurnkeeperError: the change was not made.
        """
        daemon, answers = daemon_of(asked), self._shell.answers
        runs = is_held(self._shell.gateway.home, daemon)
        sent = asyncio.ensure_future(self._shell.gateway.daemons(who).ask(asked))
        await asyncio.wait({sent}, timeout=ACT_S)
        if sent.done() and not isinstance(sent.exception(), Unreachable):
            answers.note_error(daemon, sent.exception())
            return sent.result()
        answers.note(daemon, is_away=True)
        if sent.done() and not runs:  # there was no process that could have made the change
            return sent.result()
        sent.add_done_callback(lambda done: (done.cancelled() or done.exception(), answers.moved()))
        raise Unsure(daemon, sent)

    async def send(self, request: Request) -> Response:
        form, channel = request.scope["form"], request.path_params["channel"]
        new = form.get("thread") == "new"
        asked = agents.SendMessageRequest(
            channel=channel, text=form.get("text", "").replace("\r\n", "\n"), request_id=form.get("request_id", ""),
            new_thread=new,
        )  # fmt: skip

        def said(sent: Any) -> str:
            if not sent.HasField("answers"):
                return "Sent"
            return f"Your message answers the question “{sent.answers.question}”, and {sent.answers.turn_id} continues"

        return await self._act(request, asked, said, "/ui/conversations")

    async def cancel(self, request: Request) -> Response:
        asked = agents.CancelTurnRequest(turn_id=request.path_params["turn_id"], reason="cancelled on the page")
        said = "The turn is cancelled at its next step"
        return await self._act(request, asked, said, "/ui/conversations")

    async def change_state(self, request: Request) -> Response:
        name, form = request.path_params["name"], request.scope["form"]
        if request.path_params["action"] not in _STATES:
            raise NotFound("unknown change")
        message, said = _STATES[request.path_params["action"]]
        fields: dict[str, Any] = {"name": name}
        if message is schedules.PauseTaskRequest:
            fields |= {"note": form.get("note", ""), "until": self._until(form)}
        elif message is schedules.RunTaskRequest:
            fields["request_id"] = form.get("request_id", "")
        elif message is schedules.ResumeTaskRequest:
            fields["replay"] = form.get("replay") == "yes"
        path = f"/ui/tasks/{self._shell.templates.filters['path'](name)}/do/restore"
        undo = path if message is schedules.DeleteTaskRequest else ""
        return await self._act(request, message(**fields), f"{name} {said}", "/ui/tasks", undo)

    def _until(self, form: Mapping[str, str]) -> str:
        """Return the end of a pause: the typed time, or else the selected choice. Empty for no end."""
        now = self._now_in(form.get("zone", ""))
        return form.get("until") or (written_time(form["for"], now) if form.get("for") else "")

    def _now_in(self, zone: str) -> datetime:
        return shown_in(self._shell.gateway.clock.now(), zone_of(zone))

    async def create(self, request: Request) -> Response:
        """Show a preview of a new task with its next times, or create the task."""
        form = request.scope["form"]
        given, saves = {key: form.get(key, "") for key in views.NEW}, form.get("do") == "save"
        who, unsaid = need(request, Scope.WORK), {"name": "new-task"}  # for a preview while the person types
        unsaid |= {} if given["input_json"].strip() else {"prompt": "…"}
        filled = given if saves else {key: given[key].strip() or unsaid.get(key, "") for key in given}
        try:
            spec = views.made(filled, self._now_in(form.get("timezone", "")))
            answer = await self._ask(who, schedules.CreateTaskRequest(spec=spec, dry_run=not saves))
        except TurnkeeperError as error:
            problem = (
                f"{error}. The task may still be created: look at the tasks" if isinstance(error, Unsure) else error
            )
            more = {"problem": str(problem), "typing": "typing" in form}
            return await self._reads.new(request, status=422 if saves else 200, form=given, **more)
        if not saves:
            return await self._reads.new(request, form=given, preview=answer)
        path = f"/ui/tasks/{self._shell.templates.filters['path'](answer.task.spec.name)}"
        return self._shell.back(request, f"{answer.task.spec.name} is created", path)

    async def edit(self, request: Request) -> Response:
        """Show the old and new times of a change, or save the change if the task has not changed meanwhile."""
        form, name = request.scope["form"], request.path_params["name"]
        who = need(request, Scope.WORK)
        task = await self._ask(who, schedules.GetTaskRequest(name=name))
        revision = int(form.get("revision", "")) if form.get("revision", "").isdecimal() else -1
        saves = form.get("do") == "save"
        given = {**views.form_of(task), **{key: form[key] for key in views.form_of(task) if key in form}}
        try:
            if revision != task.revision:  # a dry run does not check the revision
                raise Conflict(f"{name} was edited in the meantime", hint="load the page again")
            spec = views.edited(task, form, self._now_in(form.get("timezone", task.spec.timezone)))
            asked = schedules.UpdateTaskRequest(name=task.id, spec=spec, dry_run=not saves, revision=revision)
            answer = await self._ask(who, asked)
            then = None if saves else await self._ask(who, schedules.PreviewScheduleRequest(spec=spec, count=1))
        except TurnkeeperError as error:
            problem = f"{error}; it may still be saved" if saves and isinstance(error, Unsure) else str(error)
            more = {"preview": None, "problem": problem, "typing": "typing" in form}
            return await self._reads.task(request, status=200 if "typing" in form else 409, form=given, **more)
        if saves:
            said = f"Saved: {', '.join(answer.changed_fields).replace('_json', '') or 'nothing'} changed"
            return self._shell.back(request, said, f"/ui/tasks/{self._shell.templates.filters['path'](name)}")
        return await self._reads.task(
            request,
            form=given,
            preview=answer,
            then=then,
            times_shown=views.side_by_side(answer),
            differences=views.differences(task, given),
        )

    async def _act(
        self, request: Request, asked: Message, told: str | Callable[[Any], str], default: str, undo: str = ""
    ) -> Response:
        """Ask a daemon for a change. Return to the page, and report the change with the text of `told`."""
        try:
            answer = await self._ask(need(request, Scope.WORK), asked)
        except Unsure as error:
            again = " You can send it again: the agent gets it once." if getattr(asked, "request_id", "") else ""
            text = f"{error}. The change may still be made, and the page shows it when the daemon answers.{again}"
            return self._shell.back(request, text, default, tone="unsure")
        except TurnkeeperError as error:
            return self._shell.back(request, f"Nothing was changed: {_why(error)}", default, tone="bad")
        said = told if isinstance(told, str) else told(answer)
        if isinstance(asked, schedules.DisableTaskRequest):
            said = said.replace("is disabled", f"is {views.state_of(answer)}")
        if isinstance(asked, schedules.PauseTaskRequest) and answer.HasField("paused_until"):
            said += f" {self._shell.times().until(answer.paused_until, answer.spec.timezone)}"
        return self._shell.back(request, said, default, undo=undo)

    async def log_in(self, request: Request) -> Response:
        """Open a session for a one-time token, only at turnkeeper.localhost unless the token says otherwise."""
        gateway, host = self._shell.gateway, request.headers["host"].rpartition(":")[0]
        try:
            cookie = gateway.sessions.log_in(request.scope["form"].get("token", ""), plain_host=host in PLAIN_HOSTS)
        except TurnkeeperError as error:
            return self._shell.plain("frame/plain.html", 503, title="Not logged in", error=str(error), login=True)
        if cookie is None:
            text = "this token is not valid here, was used before, or is older than a minute; run: turnkeeper web open"
            return self._shell.plain("frame/plain.html", 403, title="Not logged in", error=text, login=True)
        login_page(gateway.home).unlink(missing_ok=True)
        answer = RedirectResponse("/ui/", 303)
        secure = bool(gateway.settings.web.public_origin) and host not in PLAIN_HOSTS
        name = cookie_name(gateway.settings.web.port)
        answer.set_cookie(name, cookie, httponly=True, samesite="strict", path="/ui", secure=secure)
        return answer

    async def log_out(self, request: Request) -> Response:
        session = need(request, Scope.READ).session
        if session is not None:
            self._shell.gateway.sessions.log_out(session)
        return RedirectResponse("/", 303)

    def routes(self) -> dict[str, Any]:
        return {
            "/ui/login": self.log_in,
            "/ui/logout": self.log_out,
            "/ui/decisions/several": self.decide_several,
            "/ui/decisions/{kind:str}/{id:path}": self.decide,
            "/ui/conversations/{channel}": self.send,
            "/ui/turns/{turn_id}/cancel": self.cancel,
            "/ui/new": self.create,
            "/ui/tasks/{name}/edit": self.edit,
            "/ui/tasks/{name}/do/{action}": self.change_state,
        }


def _why(error: TurnkeeperError) -> str:
    """Return an error in the words of the page; the remedy of a silent daemon is a command, so replace it."""
    return f"{error.what}; press the button again in a few seconds" if isinstance(error, Unreachable) else str(error)


class Unsure(Unreachable):
    """The error that a daemon did not confirm a change in time. `sent` is the call, which may still be answered."""

    def __init__(self, daemon: str, sent: "asyncio.Future[Any]") -> None:
        super().__init__(f"{daemon} did not answer within {ACT_S:.0f} seconds")
        self.sent = sent


@dataclass(frozen=True, kw_only=True)
class Fate:
    """A decision that may or may not have been recorded.

    Attributes:
        via: the author's identity, as the runtime records it.
        about: the subject of the decision in one line.
        said: the note for a recorded decision.
        sent: the call, which may still be answered.
    """

    kind: str
    id: str
    does: str
    via: str
    about: str
    said: str
    sent: "asyncio.Future[Any]"


def _waits(one: Any) -> bool:
    return (one.status if isinstance(one, agents.Interrupt) else one.lifecycle) in {"pending", "candidate", "open"}


def told(fate: Fate, found: Any) -> tuple[str, str]:
    """Return the tone and text of the note about a decision. `found` is the decision's subject; None if gone."""
    if found is None:
        return "bad", f"Your decision was not recorded: this no longer exists: {fate.about}"
    if _waits(found):
        return "bad", f"Your decision was not recorded, and this still waits for you: {fate.about}"
    state = found.decision if isinstance(found, agents.Interrupt) else found.lifecycle
    if found.decided_by == fate.via and state in _STATES_AFTER[fate.does]:
        return "good", f"Your decision was recorded. {fate.said}{_stands(found)}"
    by = f", by {found.decided_by}" if found.decided_by else ""
    return "bad", f"Your decision was not recorded: this was already decided ({state}{by}): {fate.about}"


def decided(kind: str, does: str, about: str, text: str) -> str:
    """Describe a decision: its kind and subject, its reason or answer, and its effect."""
    ours = kind == "interrupt"
    done = "Accepted" if does == "approve" and not ours else _DONE[does]
    counts = does in {"reject", "answer"} or not ours
    given = (
        f" {'Answer' if does == 'answer' else 'Reason'}: “{text}”{'' if text[-1] in '.!?…' else '.'}"
        if text and counts
        else ""
    )
    return f"{done}: {about}.{given}{f' {_FOLLOWS[does]}.' if ours else ''}"


def _stands(found: Any) -> str:
    """Name the standing exception that was given with a decision. Empty if there is none."""
    number = found.exception if isinstance(found, agents.Interrupt) else 0
    does = f" {found.task_name} makes this very call without a question from now on: standing exception {number}."
    return f"{does} To end it, run: turnkeeper approvals exceptions revoke {number}" if number else ""


def _decision(kind: str, id_: str, does: str, form: Mapping[str, str], text: str) -> Message:
    """Return the request that makes a decision. Raises InvalidInput."""
    accept = does == "approve"
    if kind == "candidate" and does in {"approve", "reject"}:
        return agents.DecideCandidateRequest(candidate_id=id_, accept=accept, note=text)
    if kind == "deviation" and does in {"approve", "reject"}:
        return agents.ResolveDeviationRequest(deviation_id=id_, accept=accept, note=text)
    if kind != "interrupt":
        raise InvalidInput("cannot be decided like this", where=kind[:40])
    if "args_hash" not in form:
        raise InvalidInput("does not say which arguments were shown", where="args_hash", hint="load the page again")
    if does == "answer" and not text:
        raise InvalidInput("is empty", where="the answer")
    return agents.ResolveInterruptRequest(
        interrupt_id=id_, decision=does, args_hash=form["args_hash"], for_task=accept and form.get("for_task") == "yes",
        message=text if does in {"reject", "answer"} else "", args_json=form.get("args", "") if does == "edit" else "",
    )  # fmt: skip
