"""The application below `/hooks`. Callers have no key here, so the signature of each request proves its origin."""

import json
import os
from collections import Counter
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
_DONE = {"approve": "Approved", "reject": "Rejected", "answer": "Answered"}
_ANSWER = (
    "<label>Answer <input name=answer autocomplete=off></label><button{} name=decision value=answer>Answer</button>"
)
_BUTTONS = {
    "approve": "<button{} name=decision value=approve>Approve</button>",
    "reject": "<button class=bad name=decision value=reject>Reject</button>",
    "answer": _ANSWER,
    "respond": _ANSWER,
}
_ONCE = "<p class=meta>This link decides this one question, once. Whoever has it can decide.</p>"


class Hooks:
    """The part that converts signed requests to events."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway, self._failpoints = gateway, Failpoints(os.environ)
        self._minute, self._taken = 0, Counter[str]()

    async def take(self, request: Request) -> Response:
        """Emit the event of a request. The event is on disk before the answer, and a repeated request has no effect."""
        name = request.path_params["name"]
        hook, body = registry.FILE.read(self._gateway.home).get(name), await request.body()
        if hook is not None and self._is_too_often(name):
            return JSONResponse({"detail": f"more than {A_MINUTE} requests a minute"}, 429, {"retry-after": "60"})
        key = registry.check(hook, request.headers, body, self._gateway.clock.now())
        assert hook is not None
        data = _data(body)
        daemons = self._gateway.daemons(Who(surface="api", key=name))
        asked = schedules.EmitEventRequest(name=hook.event, data_json=data, event_id=f"{name}-{key[:40]}")
        self._failpoints.reach("hooks.checked")
        answer = await daemons.EmitEvent(asked)
        self._failpoints.reach("hooks.emitted")
        return JSONResponse(
            {"event_id": answer.event_id, "duplicate": answer.duplicate, "matched": answer.matched}, 202
        )

    def _is_too_often(self, name: str) -> bool:
        minute = int(self._gateway.clock.monotonic() // 60)
        if minute != self._minute:
            self._minute, self._taken = minute, Counter()
        self._taken[name] += 1
        return self._taken[name] > A_MINUTE


def _data(body: bytes) -> str:
    """Return the data of an event from a body: its object, or else any other JSON value or an empty text as `body`."""
    try:
        text = body.decode()
        found = json.loads(text or '""')
        said = text if isinstance(found, dict) else json.dumps({"body": found})
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
        return HTMLResponse(plain_page(f"{about} waits for you", f"{said}{form}{_ONCE}"))

    async def decide(self, request: Request) -> Response:
        """Send the decision to the runtime, once for each link."""
        asked, form = await self._asked(request), await request.form()
        token = request.path_params["token"]
        decision = "answer" if "option" in form else str(form.get("decision", ""))
        if decision not in _DONE or form.get("args_hash") != asked.args_hash:
            raise InvalidInput("is not a decision about what was shown", where="decision", hint="open the link again")
        answer = str(form.get("option", form.get("answer", ""))).strip()
        said = answer if decision == "answer" else "by link"
        links.use(self._gateway.home, token)
        try:
            await self._daemons.ResolveInterrupt(
                agents.ResolveInterruptRequest(
                    interrupt_id=asked.interrupt_id, decision=decision, args_hash=asked.args_hash, message=said
                )
            )
        except (Unreachable, InvalidInput):
            links.give_back(self._gateway.home, token)
            raise
        done = f"<p>{_DONE[decision]}. You can close this page.</p>"
        return HTMLResponse(plain_page("Decided", done))

    async def _asked(self, request: Request) -> Any:
        id_ = links.question_of(self._gateway.home, request.path_params["token"], self._gateway.clock.now())
        waiting = (await self._daemons.ListInterrupts(agents.ListInterruptsRequest())).interrupts
        found = [one for one in waiting if one.interrupt_id == id_]
        if not found:
            raise Conflict("this question waits no more: it was decided, or it ended")
        return found[0]

    async def problem(self, _request: Request, error: Exception) -> Response:
        assert isinstance(error, TurnkeeperError)
        alert = f"<p role=alert>{escape(plain(error.what))}</p>"
        return HTMLResponse(plain_page("Not decided", alert), status_of(error))


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


def _buttons(asked: agents.Interrupt) -> str:
    """Return a button for each decision that the question takes, main one first. Add a field if it takes a text."""
    ways, options = forms.ways_of(asked), map(forms.option_text, forms.question_of(asked).options)
    made = [f"<button name=option value='{escape(one)}'>{escape(plain(one))}</button>" for one in options]
    main = next((way for way in ways if way not in {"reject", "edit"}), "")
    made += [_BUTTONS[way].format(" class=main" * (way == main)) for way in ways if way in _BUTTONS]
    return "".join(made)


def surface(gateway: Gateway) -> Offered:
    hooks, decisions = Hooks(gateway), Links(gateway)
    one = [Route("/{token}", decisions.show, methods=["GET"]), Route("/{token}", decisions.decide, methods=["POST"])]
    pages = Starlette(routes=one, exception_handlers={TurnkeeperError: decisions.problem})
    routes: list[Any] = [Mount("/decide", app=pages), Route("/{name}", hooks.take, methods=["POST"])]
    return Offered(Starlette(routes=routes, exception_handlers={TurnkeeperError: refuse}), checks_callers=True)
