"""The forms of graphs' questions about tool calls, and the form of the answers to each.

    decisions      LangChain's `HumanInTheLoopMiddleware`: several calls at once; takes `{"decisions": [...]}`, in order
    tool_approval  the same middleware, one call at a time; takes one decision
    inbox          agent-inbox's `HumanInterrupt`, one or a list; takes a list of `HumanResponse`
    step           the graph stopped before its next steps; takes one decision, as `tool_approval`

A value that does not exactly match one of these forms is a :class:`Question`, and any JSON is an answer to it.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, cast

from turnkeeper.errors import InvalidInput

Form = Literal["decisions", "tool_approval", "inbox", "step"]
WAYS = ("approve", "reject", "edit", "respond")
OF_MIDDLEWARE = frozenset({"decisions", "tool_approval"})
_WHERE = "answer"
_OPTIONS = ("options", "choices")
_SHOWN_APART = frozenset({"question", "q", "allows_text", *_OPTIONS})
MOST_OPTIONS = 100
_QUOTED = re.compile(r'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt])+"')  # a JSON string without numeric escapes
_INBOX = {"approve": "accept", "reject": "ignore", "edit": "edit", "respond": "response"}
_INBOX_ALLOWS = {
    "approve": "allow_accept", "reject": "allow_ignore", "edit": "allow_edit", "respond": "allow_respond",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call that a graph asks about.

    Attributes:
        takes: the possible decisions, a subset of :data:`WAYS`.
        note: the graph's description of the call.
        call_id: the id of the call in the thread's messages; empty if it is unknown or not unique.
        tool_hash: a digest of the tool at the time of the question; empty unless just one tool has this name.
    """

    tool: str
    args: Mapping[str, Any]
    takes: tuple[str, ...]
    note: str = ""
    call_id: str = ""
    tool_hash: str = ""

    def counts(self, form: Form) -> bool:
        """Return True if an approval of this call is valid for the guard. The call must identify itself and its tool.

        Questions of agent-inbox have no call id, and the action is often a title. So a tool must have that name.
        """
        return bool(self.call_id) if form in OF_MIDDLEWARE else form == "inbox" and bool(self.tool_hash)


@dataclass(frozen=True, kw_only=True)
class Request:
    """The calls that a graph asks about, and the form of the question."""

    form: Form
    calls: tuple[Call, ...]

    @property
    def takes(self) -> list[str]:
        """The decisions that are possible for every call."""
        return [way for way in WAYS if all(way in call.takes for call in self.calls)]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The author's decision about one call.

    Attributes:
        way: one of :data:`WAYS`.
        text: the reason of a rejection, or the answer.
        args: the arguments of an edit.
    """

    way: str
    text: str = ""
    args: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question in no known form: the value that a graph gave `interrupt`, as JSON."""

    value: Any = None

    @property
    def text(self) -> str:
        """The text of the question; empty if the value is not text and has no text field."""
        said = self._fields.get("question") or self._fields.get("q") or self.value
        return said if isinstance(said, str) else ""

    @property
    def options(self) -> tuple[Any, ...]:
        """The answers that the graph offers: texts, numbers, true or false. Empty if an option has a different type."""
        found = next((self._fields[name] for name in _OPTIONS if name in self._fields), ())
        if not isinstance(found, list) or len(found) > MOST_OPTIONS:
            return ()
        return tuple(found) if all(isinstance(one, str | int | float) for one in found) else ()

    @property
    def more(self) -> Mapping[str, Any]:
        """The rest of the value, without the text and the options. The arguments of a call are fields of their own."""
        shown = _SHOWN_APART if self.options else _SHOWN_APART - set(_OPTIONS)
        rest = {key: one for key, one in self._fields.items() if key not in shown or not self.text}
        args = rest.get("args")
        if not isinstance(args, dict) or not self.text or args.keys() & rest.keys():
            return rest
        return {key: one for key, one in rest.items() if key != "args"} | args

    @property
    def _fields(self) -> Mapping[str, Any]:
        return self.value if isinstance(self.value, dict) else {}

    def to_dict(self) -> dict[str, Any]:
        """Return the question as JSON for :func:`question_in`. :func:`from_dict` returns None for this JSON."""
        return {"value": self.value}

    @property
    def choices(self) -> str:
        """The options, each after its number.

        >>> Question(value={"options": ["yes", "no"]}).choices
        '[1] yes  [2] no'
        """
        return "  ".join(f"[{number}] {option_text(one)}" for number, one in enumerate(self.options, 1))

    @property
    def is_closed(self) -> bool:
        """True if only an option is a valid answer: the graph offers options and does not say `"allows_text": true`."""
        return bool(self.options) and self._fields.get("allows_text") is not True

    def takes(self, text: str) -> bool:
        """Return False if the question is closed, and a person's text or decision is not one of its options."""
        return not self.is_closed or bool(self.picked(text))

    def check(self, text: str) -> None:
        """Raise InvalidInput if a person's text or decision does not answer the question."""
        if not self.takes(text):
            quoted = json.dumps(text, ensure_ascii=False)
            hint = f"give the word or the number of one; any other answer in JSON's quotes: '{quoted}'"
            raise InvalidInput(f"{text[:80]!r} is none of the options: {self.choices}", where=_WHERE, hint=hint)

    def named(self, text: str) -> str:
        """Return the option with this name, in the form for people. Return any other text unchanged."""
        return next((option_text(one) for one in self.picked(text) if one in self.options), text)

    def picked(self, text: str) -> list[Any]:
        """Return the option with this name, or else the option with this number.

        Return an empty list for any other text. For a closed question, a quoted JSON string also counts as an answer:
        return its decoded content.

        >>> [Question(value={"options": ["yes", "No", 1]}).picked(text) for text in ("no ", "1", "2", "4")]
        [['No'], [1], ['No'], []]
        """
        said, names = text.strip(), [(option_text(one), one) for one in self.options]
        same = [one for name, one in names if name == said]
        same = same or [one for name, one in names if name.strip().casefold() == said.casefold()]
        same = same or [one for number, one in enumerate(self.options, 1) if str(number) == said]
        return same[:1] or ([json.loads(said)] if self.is_closed and _QUOTED.fullmatch(said) else [])


def option_text(option: object) -> str:
    """Return the text that a person sees and types for an option."""
    return option if isinstance(option, str) else json.dumps(option)


def question_in(data: object) -> Question:
    """Rebuild a question from its `to_dict`. Return a question without a value for any other data."""
    return Question(value=data["value"]) if isinstance(data, Mapping) and set(data) == {"value"} else Question()


def from_dict(data: object) -> Request | None:
    """Rebuild a request from its `to_dict`. Return None for any other data."""
    if not isinstance(data, Mapping) or set(data) != {"form", "calls"} or not isinstance(data["calls"], list | tuple):
        return None
    calls = tuple(Call(**{**call, "takes": tuple(call["takes"])}) for call in data["calls"])
    return Request(form=data["form"], calls=calls)


def request_in(asked: Any) -> Request | None:
    """Return the calls that a question is about, from its record, message or row; None if its form is unknown."""
    return from_dict(_said_in(asked))


def question_of(asked: Any) -> Question:
    """Return a question in the graph's own words. Empty for other kinds, and for questions of earlier versions."""
    return question_in(_said_in(asked))


def ways_of(asked: Any) -> list[str]:
    """Return how a person can decide a question, the main way first: some of :data:`WAYS`, `pick` or `answer`."""
    if (asks := request_in(asked)) is not None:
        return [way for way in asks.takes if way != "edit" or len(asks.calls) == 1]
    if _field(asked, "kind") != "question":
        return list(WAYS[:3])
    question = question_of(asked)
    if question.options:
        return ["pick"] if question.is_closed else ["pick", "answer"]
    return ["answer", "approve", "reject"]


def is_plain(asked: Any) -> bool:
    """Return True if a graph asks in a form of its own, so that an approval means yes, and a rejection no."""
    return _field(asked, "kind") == "question" and request_in(asked) is None


def can_stand(asked: Any) -> bool:
    """Return True if the author can approve the call permanently for its task."""
    return _field(asked, "kind") != "question" and bool(_field(asked, "task_name")) and not _field(asked, "once_only")


def _said_in(asked: Any) -> object:
    if _field(asked, "kind") != "question":
        return None
    return json.loads(asked.args_json or "null") if hasattr(asked, "args_json") else _field(asked, "args")


def _field(asked: Any, name: str) -> Any:
    return asked[name] if isinstance(asked, Mapping) else getattr(asked, name)


def read(value: object, schema: object = None) -> Request | None:
    """Return the calls that the value of an interrupt asks about, or None if its form is unknown.

    Args:
        value: the argument of the graph's `interrupt`.
        schema: the JSON schema of the answer, an optional argument of `interrupt`.
    """
    readers = (_read_decisions, _read_inbox)
    found = _read_tool_approval(value, schema) or next(filter(None, (reader(value) for reader in readers)), None)
    return found if found is not None and all(call.takes for call in found.calls) else None


def _read_decisions(value: object) -> Request | None:
    if not isinstance(value, dict) or not {"action_requests", "review_configs"} <= set(value):
        return None
    actions, configs = value["action_requests"], value["review_configs"]
    if not _are_objects(actions) or not _are_objects(configs):
        return None
    allowed = {config.get("action_name"): config.get("allowed_decisions") for config in configs}
    calls = []
    for at, action in enumerate(actions):
        name, args = action.get("name"), action.get("args")
        if not isinstance(name, str) or not _is_object(args):
            return None
        own = configs[at] if at < len(configs) and configs[at].get("action_name") == name else {}
        takes = _known(own.get("allowed_decisions", allowed.get(name)))
        calls.append(Call(tool=name, args=args, takes=takes, note=_text(action.get("description"))))
    return Request(form="decisions", calls=tuple(calls))


def _read_tool_approval(value: object, schema: object) -> Request | None:
    if not isinstance(value, dict) or value.get("type") != "tool_approval":
        return None
    name, args, call_id = value.get("name"), value.get("args"), value.get("tool_call_id")
    if not isinstance(name, str) or not _is_object(args) or not isinstance(call_id, str):
        return None
    takes, note = _known(_types_in(schema)) or WAYS, _text(value.get("description"))
    call = Call(tool=name, args=cast("dict[str, Any]", args), takes=takes, note=note, call_id=call_id)
    return Request(form="tool_approval", calls=(call,))


def _types_in(schema: object) -> list[Any]:
    if not isinstance(schema, dict):
        return []
    discriminator = schema.get("discriminator")
    if isinstance(discriminator, dict) and isinstance(discriminator.get("mapping"), dict):
        return list(discriminator["mapping"])
    properties = schema.get("properties")
    kind = properties.get("type") if isinstance(properties, dict) else None
    return [kind["const"]] if isinstance(kind, dict) and "const" in kind else []


def _read_inbox(value: object) -> Request | None:
    requests = value if isinstance(value, list) else [value]
    if not _are_objects(requests):
        return None
    calls = []
    for request in cast("list[dict[str, Any]]", requests):
        action, config = request.get("action_request"), request.get("config")
        if not isinstance(action, dict) or not isinstance(config, dict):
            return None
        name, args = action.get("action"), action.get("args")
        if not isinstance(name, str) or not _is_object(args):
            return None
        takes = tuple(way for way in WAYS if config.get(_INBOX_ALLOWS[way]) is True)
        calls.append(
            Call(tool=name, args=cast("dict[str, Any]", args), takes=takes, note=_text(request.get("description")))
        )
    return Request(form="inbox", calls=tuple(calls))


def with_ids(request: Request, made: Sequence[Mapping[str, Any]]) -> Request:
    """Return a request with the ids of its calls, if every id is certain.

    Args:
        request: the request; only requests of the form `decisions` lack ids.
        made: the calls of the message that the thread waits at, in order.
    """
    if request.form != "decisions":
        return request
    calls = []
    for call in request.calls:
        alike = [one for one in request.calls if (one.tool, one.args) == (call.tool, call.args)]
        ids = [str(one["id"] or "") for one in made if one["name"] == call.tool and one["args"] == call.args]
        calls.append(replace(call, call_id=ids[0]) if len(alike) == len(ids) == 1 else call)
    return replace(request, calls=tuple(calls))


def with_tools(request: Request, hash_of: Callable[[str], str]) -> Request:
    """Return a request in which each call has the digest of its tool, from `hash_of`."""
    return replace(request, calls=tuple(replace(call, tool_hash=hash_of(call.tool)) for call in request.calls))


def answer(request: Request, choices: Sequence[Choice]) -> object:
    """Return the value that resumes the graph.

    Raises:
        InvalidInput: a choice does not fit its call, or the number of choices differs from the number of calls.
    """
    if len(choices) != len(request.calls):
        what = f"decides {len(choices)} calls, but the graph asks about {len(request.calls)}"
        raise InvalidInput(what, where=_WHERE, hint=fits(request))
    for number, (call, choice) in enumerate(zip(request.calls, choices, strict=True), 1):
        if fault := _fault(call, choice):
            where = f"call {number}: " if len(choices) > 1 else ""
            raise InvalidInput(f"{where}{fault}", where=_WHERE, hint=fits(request))
    if request.form == "inbox":
        return [_response(call, choice) for call, choice in zip(request.calls, choices, strict=True)]
    decisions = [_decision(call, choice) for call, choice in zip(request.calls, choices, strict=True)]
    return {"decisions": decisions} if request.form == "decisions" else decisions[0]


def _fault(call: Call, choice: Choice) -> str:
    if choice.way not in call.takes:
        return f"{call.tool} does not allow {choice.way}"
    if choice.way == "respond" and not choice.text:
        return f"the answer for {call.tool} has no text"
    if choice.way == "edit" and choice.args is None:
        return f"the edit of {call.tool} has no arguments"
    return ""


def _decision(call: Call, choice: Choice) -> dict[str, Any]:
    if choice.way == "edit":
        return {"type": "edit", "edited_action": {"name": call.tool, "args": dict(choice.args or {})}}
    said = {"message": choice.text} if choice.text and choice.way in {"reject", "respond"} else {}
    return {"type": choice.way, **said}


def _response(call: Call, choice: Choice) -> dict[str, Any]:
    given: object = None
    if choice.way in {"approve", "edit"}:
        given = {"action": call.tool, "args": dict(call.args if choice.args is None else choice.args)}
    elif choice.way == "respond":
        given = choice.text
    return {"type": _INBOX[choice.way], "args": given}


def choices_in(request: Request, value: object) -> tuple[Choice, ...]:
    """Return the decision about each call, from an answer in the request's own form.

    Raises:
        InvalidInput: the answer does not have the form, or does not fit.
    """
    if request.form == "inbox":
        items, read_one = value, _choice_in_response
    elif request.form in {"tool_approval", "step"}:
        items, read_one = [value], _choice_in_decision
    else:
        items = value.get("decisions") if isinstance(value, dict) and set(value) == {"decisions"} else None
        read_one = _choice_in_decision
    if not isinstance(items, list):
        raise InvalidInput("is not an answer that the graph takes", where=_WHERE, hint=fits(request))
    choices = []
    for call, item in zip(request.calls, items, strict=False):
        choice = read_one(call, item) if isinstance(item, dict) else None
        if choice is None:
            what = f"{str(item)[:80]!r} is not a decision about {call.tool}"
            raise InvalidInput(what, where=_WHERE, hint=fits(request))
        choices.append(choice)
    if len(items) != len(request.calls):
        choices = [Choice(way="") for _ in items]
    answer(request, choices)  # checks the choices
    return tuple(choices)


def _choice_in_decision(call: Call, item: dict[str, Any]) -> Choice | None:
    way, said = item.get("type"), item.get("message", "")
    if way == "edit" and set(item) == {"type", "edited_action"} and isinstance(item["edited_action"], dict):
        return _edit_of(call, item["edited_action"], "name")
    allowed = {"type", "message"} if way in {"reject", "respond"} else {"type"}
    if not isinstance(way, str) or way == "edit" or set(item) - allowed or not isinstance(said, str):
        return None
    return Choice(way=way, text=said)


def _choice_in_response(call: Call, item: dict[str, Any]) -> Choice | None:
    way = next((way for way, name in _INBOX.items() if name == item.get("type")), "")
    given = item.get("args")
    if not way or set(item) - {"type", "args"}:
        return None
    if way == "edit":
        return _edit_of(call, given, "action") if isinstance(given, dict) else None
    if way == "respond":
        return Choice(way=way, text=given) if isinstance(given, str) else None
    return Choice(way=way) if given is None or way == "approve" else None


def _edit_of(call: Call, action: dict[str, Any], name: str) -> Choice | None:
    """Return an edit. None if it names a different tool, because an edit may change only arguments."""
    if set(action) != {name, "args"} or action[name] != call.tool or not _is_object(action["args"]):
        return None
    return Choice(way="edit", args=action["args"])


def fits(request: Request) -> str:
    """Return a sentence with the possible answers to a request."""
    takes = [f"{call.tool} takes {', '.join(call.takes)}" for call in request.calls]
    return "; ".join(dict.fromkeys(takes))


def approved(request: Request, choices: Sequence[Choice]) -> Iterator[Call]:
    """Yield each approved call that is valid for the guard, with the arguments that were shown or edited."""
    for call, choice in zip(request.calls, choices, strict=True):
        if choice.way in {"approve", "edit"} and call.counts(request.form):
            yield call if choice.args is None else replace(call, args=choice.args)


def _known(names: object) -> tuple[str, ...]:
    return tuple(way for way in WAYS if way in names) if isinstance(names, list | tuple) else ()


def _is_object(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(key, str) for key in value)


def _are_objects(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
