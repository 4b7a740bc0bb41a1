"""The application below `/hooks`. Callers have no key here, so the signature of each request proves its origin."""

import asyncio
import json
import os
from collections import Counter
from datetime import UTC
from html import escape
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Mount, Route

from turnkeeper.config.json_text import read_object
from turnkeeper.console.unseen import plain
from turnkeeper.errors import Conflict, InvalidInput, TurnkeeperError, Unreachable
from turnkeeper.gateway.calls import Gateway, Offered, Who, refuse, status_of
from turnkeeper.gateway.door import plain_page
from turnkeeper.gateway.hooks import links, registry
from turnkeeper.rpc import forms
from turnkeeper.rpc.process import Failpoints
from turnkeeper.v1 import agent_runtime_pb2 as agents
from turnkeeper.v1 import schedules_pb2 as schedules

LARGEST = 64 << 10
A_MINUTE = 60
MOST_COUNTED = 65_536  # counters of requests; names that share one are counted together
_DONE = {"approve": "Approved", "reject": "Rejected", "answer": "Answered"}
_ANSWER = (
    "<label>Answer <input name=answer autocomplete=off></label><button{main} name=decision value=answer>Answer</button>"
)
_BUTTONS = {
    "approve": "<button{main} name=decision value=approve>Approve</button>",
    "reject": "<details><summary class='btn bad'>Reject…</summary><p>Reject {about}?</p>"
    "<label>Reason, which the agent reads <input name=reason autocomplete=off placeholder=optional></label>"
    "<p><a class=btn href=''>Cancel</a> <button class=bad name=decision value=reject>Reject</button></p></details>",
    "answer": _ANSWER,
    "respond": _ANSWER,
}
_OF_PLAIN = {
    "approve": "<button name=decision value=approve>Yes</button>",
    "reject": "<button name=decision value=reject>No</button>",
}
_ONCE = (
    "<p class=meta>This link decides this question once, until {:%Y-%m-%d %H:%M} UTC. Whoever has it can decide.</p>"
)
_AGAIN = "<p>This link still works: <a href=''>try again</a>.</p>"
_ANSWERS_WITHIN_S = 2.0
_LOADS_AGAIN = {"refresh": "5"}  # seconds; a browser then opens the link and sends no form


class Hooks:
    """The part that converts signed requests to events."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway, self._failpoints = gateway, Failpoints(os.environ)
        self._minute, self._taken = 0, Counter[int]()

    async def take(self, request: Request) -> Response:
        """Emit the event of a request. The event is on disk before the answer, and a repeated request has no effect."""
        name = request.path_params["name"]
        hook, body = registry.FILE.read(self._gateway.home).get(name), await request.body()
        if self._is_too_often(name):
            return JSONResponse({"detail": f"more than {A_MINUTE} requests a minute"}, 429, {"retry-after": "60"})
        key = registry.check(hook, request.headers, body, self._gateway.clock.now())
        assert hook is not None
        cause = request.headers.get(registry.CAUSE, "") if hook.style == registry.GITHUB else ""
        if cause == registry.PING:
            return JSONResponse({"detail": "its signature fits; a ping makes no event"})
        data = _data(body, cause)
        daemons = self._gateway.daemons(Who(surface="api", key=name))
        asked = schedules.EmitEventRequest(name=hook.event, data_json=data, event_id=f"{name}-{key[:40]}")
        self._failpoints.reach("hooks.checked")
        answer = await daemons.EmitEvent(asked)
        self._failpoints.reach("hooks.emitted")
        told = {"event_id": answer.event_id, "duplicate": answer.duplicate, "matched": answer.matched}
        return JSONResponse(told | {"paused": [*answer.paused]}, 202)

    def _is_too_often(self, name: str) -> bool:
        """Count a request for any name. The answer does not tell which names exist."""
        minute = int(self._gateway.clock.monotonic() // 60)
        if minute != self._minute:
            self._minute, self._taken = minute, Counter()
        place = hash(name) % MOST_COUNTED
        self._taken[place] += 1
        return self._taken[place] > A_MINUTE


def _data(body: bytes, cause: str) -> str:
    """Return the data of an event from a body: its object, or any other JSON value or an empty text as `body`.

    Args:
        cause: GitHub's name of the event, which becomes `github_event`; empty if there is none.
    """
    try:
        text = body.decode()
        found = json.loads(text or '""')
        said = text if isinstance(found, dict) else json.dumps({"body": found})
        said = json.dumps(json.loads(said) | {"github_event": cause}, ensure_ascii=False) if cause else said
    except (ValueError, RecursionError) as error:
        hint = "send application/json; at GitHub, select it as the content type"
        raise InvalidInput("is not JSON", where="body", hint=hint) from error
    read_object(said, where="body", longest=LARGEST)
    return said


class Links:
    """The pages of links that decide one question. Opening a link changes nothing: chat programs open links, too."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._daemons = gateway.daemons(Who(surface="web", key="link"))

    async def show(self, request: Request) -> Response:
        """Show the question and its arguments, with a button for each decision or for each answer that is offered."""
        asked = await self._asked(request)
        question, tool = escape(plain(asked.question)), escape(plain(asked.tool))
        shown = [f"<dt>{escape(plain(name))}<dd>{escape(plain(value))}" for name, value in _arguments(asked)]
        said = f"<p>{question}</p>" + (f"<p><b>{tool}</b></p>" if tool else "")
        said += f"<dl class=args>{''.join(shown)}</dl>" if shown else ""
        hidden = f"<input type=hidden name=args_hash value='{escape(asked.args_hash)}'>"
        about = escape(plain(asked.task_name or asked.channel))
        form = f"<form method=post><button hidden disabled></button>{hidden}{_buttons(asked)}</form>"
        ends = links.ends_at(request.path_params["token"])
        if asked.HasField("expires_at"):
            ends = min(ends, asked.expires_at.ToDatetime(UTC))
        return HTMLResponse(plain_page(f"{about} waits for you", f"{said}{form}{_ONCE.format(ends)}"))

    async def decide(self, request: Request) -> Response:
        """Send the decision to the runtime, once for each link."""
        asked, form = await self._asked(request), await request.form()
        token = request.path_params["token"]
        decision = "answer" if "option" in form else str(form.get("decision", ""))
        if decision not in _DONE or form.get("args_hash") != asked.args_hash:
            raise InvalidInput("is not a decision about what was shown", where="decision", hint="open the link again")
        answer = str(form.get("option", form.get("answer", ""))).strip()
        reason = str(form.get("reason", "")).strip() if decision == "reject" else ""
        said = answer if decision == "answer" else reason or "by link"
        links.use(self._gateway.home, token)
        try:
            await self._daemons.ResolveInterrupt(
                agents.ResolveInterruptRequest(
                    interrupt_id=asked.interrupt_id, decision=decision, args_hash=asked.args_hash, message=said
                )
            )
        except (Unreachable, InvalidInput) as error:
            links.give_back(self._gateway.home, token)
            error.what += "; the decision may still be recorded" if isinstance(error, Unreachable) else ""
            raise
        return HTMLResponse(plain_page(_DONE[decision], f"<p>{_named(asked)}</p><p>You can close this page.</p>"))

    async def _asked(self, request: Request) -> Any:
        id_ = links.question_of(self._gateway.home, request.path_params["token"], self._gateway.clock.now())
        for every in (False, True):
            listed = (await self._questions(every=every)).interrupts
            found = next((one for one in listed if one.interrupt_id == id_), None)
            if found is not None and found.status == "pending":
                return found
        raise Conflict(_ended(found))

    async def _questions(self, *, every: bool) -> Any:
        """Return the pending questions, or all. Raises Unreachable after two seconds without an answer."""
        try:
            async with asyncio.timeout(_ANSWERS_WITHIN_S):
                return await self._daemons.ListInterrupts(agents.ListInterruptsRequest(all=every))
        except TimeoutError:
            raise Unreachable(f"agent-runtime did not answer within {_ANSWERS_WITHIN_S:.0f} seconds") from None

    async def problem(self, request: Request, error: Exception) -> Response:
        """Say why nothing was decided. If no daemon answers, the page names the task and loads itself again."""
        assert isinstance(error, TurnkeeperError)
        is_away = isinstance(error, Unreachable)
        again = _AGAIN if isinstance(error, Unreachable | InvalidInput) else ""
        alert = f"<p role=alert>{escape(plain(error.what[:1].upper() + error.what[1:]))}.</p>{again}"
        title = "Nothing to decide" if isinstance(error, Conflict) else "Not decided"
        if is_away and (about := escape(plain(request.query_params.get("about", "")))):
            title += f": {about}"
        return HTMLResponse(plain_page(title, alert), status_of(error), _LOADS_AGAIN if is_away else None)


def _ended(asked: agents.Interrupt | None) -> str:
    """Return why a question no longer waits. None for a question that is no longer stored."""
    if asked is None:
        return "this question no longer exists: its conversation was deleted"
    if asked.decision == "expired":
        return "this question expired without an answer"
    if not asked.decision:
        return "this question ended with its turn, without a decision"
    used = "this link was used: the" if asked.decided_by.endswith("/link") else "this"
    return f"{used} question was decided at {asked.resolved_at.ToDatetime():%Y-%m-%d %H:%M} UTC: {asked.decision}"


def _arguments(asked: agents.Interrupt) -> list[tuple[str, str]]:
    """Return the arguments of the call, or the parts of a graph's question that the page does not show elsewhere."""
    if (asks := forms.request_in(asked)) is not None:
        found: Any = [(call.tool, dict(call.args)) for call in asks.calls]
    elif asked.kind == "question":
        question = forms.question_of(asked)
        found = question.more.items() if question.text else [("question", question.value)]
    else:
        found = json.loads(asked.args_json or "{}").items()
    return [(name, said if isinstance(said, str) else json.dumps(said, ensure_ascii=False)) for name, said in found]


def _named(asked: agents.Interrupt) -> str:
    return escape(plain(f"{asked.task_name or asked.channel}: {asked.tool or asked.question}"))


def _buttons(asked: agents.Interrupt) -> str:
    """Return a button for each decision that the question takes, main one first. Add a field if it takes a text."""
    ways, options = forms.ways_of(asked), map(forms.option_text, forms.question_of(asked).options)
    made = [f"<button name=option value='{escape(one)}'>{escape(plain(one))}</button>" for one in options]
    main = next((way for way in ways if way not in {"reject", "edit"}), "")
    buttons, about = _BUTTONS | _OF_PLAIN if forms.is_plain(asked) else _BUTTONS, _named(asked)
    made += [buttons[way].format(main=" class=main" * (way == main), about=about) for way in ways if way in buttons]
    return "".join(made)


def surface(gateway: Gateway) -> Offered:
    hooks, decisions = Hooks(gateway), Links(gateway)
    one = [Route("/{token}", decisions.show, methods=["GET"]), Route("/{token}", decisions.decide, methods=["POST"])]
    pages = Starlette(routes=one, exception_handlers={TurnkeeperError: decisions.problem})
    routes: list[Any] = [Mount("/decide", app=pages), Route("/{name}", hooks.take, methods=["POST"])]
    return Offered(Starlette(routes=routes, exception_handlers={TurnkeeperError: refuse}), checks_callers=True)
