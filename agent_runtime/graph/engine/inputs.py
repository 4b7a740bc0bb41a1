"""A graph's input and output: its schema, the messages that begin a turn, and the messages that the conversation keeps.

If a graph's input has `messages`, the prompt becomes a human message with the turn's id. Any other graph gets the
payload, which must fit the input's fields; the prompt goes into `prompt` or `input` if the input has such a field. A
workflow of functions (LangGraph's `@entrypoint`) takes one value: fields, messages, text, or the payload's `input`.

Our own agent gets only the newest turns of its thread. A thread with an hourly task grows without end. With all of its
messages, each turn would cost more time, tokens and disk than the previous turn, until the messages exceed the limit of
every model. A fire reads the facts about earlier fires from memory, so it gets few earlier turns.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cached_property
from inspect import isclass
from typing import Any, cast, get_args, get_type_hints

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, RemoveMessage, ToolMessage
from langchain_core.messages.utils import convert_to_messages
from langgraph.graph.message import add_messages
from langgraph.graph.state import CompiledStateGraph
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from agent_runtime.model.turn import Said, ToolUse
from agent_runtime.model.words import shortened
from turnkeeper.config.surfaces import required
from turnkeeper.errors import InvalidInput

MESSAGES = "messages"
STRUCTURED = "structured_response"  # the field of LangChain's agents
INPUT = "input"
START = "(start)"  # replaces a message's id: all messages of the thread belong to the turn
PROMPT_FIELDS = ("prompt", INPUT)
HANDOFF = "turnkeeper_handoff"  # the field of an author's graph for the handoff of the previous session
LONGEST_OUTCOME = 256 * 1024  # characters of an output in the conversation


@dataclass(frozen=True, kw_only=True)
class Window:
    """Limits on the part of a thread that a new turn gets: the newest turns, each whole.

    Attributes:
        chars: the number of characters of text, calls and answers.
        keeps_last: True to keep the newest turn whole, whatever its length.
    """

    messages: int = 50
    chars: int = 200_000
    turns: int = 50
    keeps_last: bool = True


OF_AUTHOR = Window()
OF_FIRE = Window(chars=40_000, turns=3, keeps_last=False)


def outgrown(messages: Sequence[AnyMessage], window: Window = OF_AUTHOR) -> list[RemoveMessage]:
    """Return the removals that make the messages fit the window: whole turns, oldest first.

    >>> said = [HumanMessage("a", id="1"), HumanMessage("b", id="2"), HumanMessage("c", id="3")]
    >>> [removal.id for removal in outgrown(said, Window(messages=2))]
    ['1']
    """
    begins = [at for at, message in enumerate(messages) if isinstance(message, HumanMessage)]
    last = begins[-1:] if window.keeps_last else [len(messages)]
    few = [at for at in begins[-window.turns :] if len(messages) - at <= window.messages]
    fits = [at for at in few if sum(map(size, messages[at:])) <= window.chars]
    kept_from = min([*fits, *last], default=0)
    return [RemoveMessage(id=message.id) for message in messages[:kept_from] if message.id]


def size(message: AnyMessage) -> int:
    """Return how many characters of a message a model reads."""
    calls = message.tool_calls if isinstance(message, AIMessage) else []
    return len(message.text) + sum(len(call["name"]) + len(str(call["args"])) for call in calls)


def after(messages: Sequence[AnyMessage], mark: str) -> Sequence[AnyMessage] | None:
    """Return the messages after the message `mark`; all for an empty mark; None if that message is missing."""
    if not mark or mark == START:
        return messages
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].id == mark:
            return messages[index + 1 :]
    return None


def said(messages: Sequence[AnyMessage]) -> tuple[Said, ...]:
    """Return the messages of agents and tools, in order."""
    return tuple(line for line in map(_line, messages) if line is not None)


def _line(message: AnyMessage) -> Said | None:
    if isinstance(message, AIMessage):
        calls = tuple(ToolUse(id=call["id"] or "", name=call["name"], args=call["args"]) for call in message.tool_calls)
        return Said(role="agent", text=str(message.text), tool_calls=calls)
    if isinstance(message, ToolMessage):
        return Said(role="tool", text=str(message.text), tool_call_id=message.tool_call_id)
    return None


@dataclass(frozen=True, kw_only=True)
class Field:
    """One field of a graph's input.

    Attributes:
        required: True if the graph refuses an input without the field.
        hint: the field's type.
    """

    name: str
    required: bool
    hint: Any

    @cached_property
    def check(self) -> TypeAdapter[Any] | None:
        """The adapter of the type, made at its first use; None if the type cannot be checked, as for messages."""
        if holds_messages(self.hint):
            return None  # LangGraph accepts messages in many forms, and converts them itself
        try:
            return TypeAdapter(self.hint)
        except (PydanticUserError, NameError):
            return None

    def takes_text(self) -> bool:
        """Return whether a plain string fits the field."""
        return self.check is not None and _fault(self.check, '"text"') == ""


@dataclass(frozen=True, kw_only=True)
class InputSchema:
    """The input and output of a graph.

    Attributes:
        model: the pydantic model of the input, or None.
        whole: True if the input is the value of its only field, not an object that contains the field.
        any_field: True if the input is an object whose fields may have any name.
        made: makes an object of the author's class from the fields; None if the input is a JSON object.
        keeps_state: True if the nodes write fields of a state; False if a workflow of functions returns a value.
    """

    fields: tuple[Field, ...]
    outputs: tuple[str, ...] = ()
    model: type[BaseModel] | None = None
    whole: bool = False
    any_field: bool = False
    made: TypeAdapter[Any] | None = None
    keeps_state: bool = True

    @cached_property
    def takes_messages(self) -> bool:
        """True if the prompt is given as a message."""
        return any(field.name == MESSAGES for field in self.fields)

    @property
    def keeps_messages(self) -> bool:
        """True if the prompt is given as a message, and the graph's state keeps the thread's messages."""
        return self.takes_messages and self.keeps_state

    @property
    def prompt_field(self) -> str:
        """The field for a turn's prompt; empty if there is no such field."""
        if self.takes_messages:
            return MESSAGES
        return next((one.name for one in self.fields if one.name in PROMPT_FIELDS and one.takes_text()), "")

    def payload(self, prompt: str, payload_json: str, input_json: str = "") -> dict[str, Any]:
        """Return the input from a prompt, a payload and further fields, which override the payload.

        Raises:
            InvalidInput: a field is unknown, missing or of another type.
        """
        given: dict[str, Any] = json.loads(payload_json or "{}") | json.loads(input_json or "{}")
        place = self.prompt_field
        if place and place not in given and prompt:
            given[place] = prompt
        if self.any_field:
            return given
        return self.checked(given, "input" if input_json else "payload")

    def beside_messages(self, input_json: str) -> dict[str, Any]:
        """Return the further fields of a graph that takes messages.

        Raises InvalidInput for a field that does not fit, and for messages, which could replace earlier ones.
        """
        given: dict[str, Any] = json.loads(input_json or "{}")
        if MESSAGES in given:
            raise InvalidInput(
                "the messages are made from the prompt", where=MESSAGES, hint="omit them and give a prompt"
            )
        needs_more = any(field.required and field.name != MESSAGES for field in self.fields)
        return self.checked(given, "input", but=MESSAGES) if given or needs_more else {}

    def is_whole(self, prompt: str, payload_json: str, input_json: str, run_json: str) -> bool:
        """Return True if `input_json` is the graph's whole input: for a client's run, or without a prompt."""
        given = {*json.loads(input_json or "{}")} - {HANDOFF}
        return bool(run_json) or (
            self.keeps_messages and not prompt and bool(given & {MESSAGES} if payload_json else given)
        )

    def raw(self, turn_id: str, input_json: str, known: Sequence[AnyMessage], window: Window | None) -> tuple[Any, str]:
        """Return a whole input, and the last message of the state with it, after which the turn's own messages begin.

        Each message has an id. Calls that an earlier turn left without an answer are answered, unless the input answers
        them. With a `window`, messages before the window are removed. Raises InvalidInput.
        """
        last = str(known[-1].id) if known else START
        if not self.keeps_messages:
            return self.value(turn_id, "", "", "", input_json), last
        given = self.checked(json.loads(input_json or "{}"), "input", but=MESSAGES)
        try:
            said = convert_to_messages(given[MESSAGES] if isinstance(given.get(MESSAGES), list) else [given[MESSAGES]])
        except KeyError:
            return given, last
        except (ValueError, TypeError, NotImplementedError) as error:
            raise InvalidInput(f"holds no messages: {error}"[:300], where=MESSAGES) from error
        for at, message in enumerate(said):
            message.id = message.id or f"{turn_id}-in{at}"
        answered = {one.tool_call_id for one in said if isinstance(one, ToolMessage)}
        left = [one for one in dangling(known) if isinstance(one, ToolMessage) and one.tool_call_id not in answered]
        forgotten = outgrown(known, window) if window is not None else []
        whole: Any = [*forgotten, *left, *said]
        after_it: Any = add_messages(cast("Any", [*known]), whole)
        return given | {MESSAGES: whole}, str(after_it[-1].id) if after_it else START

    def with_handoff(self, input_json: str, handoff: str) -> str:
        """Return the fields of a turn's input with the handoff, if the graph's input has a field for it."""
        if not any(field.name == HANDOFF for field in self.fields):
            return input_json
        return json.dumps({HANDOFF: handoff} | json.loads(input_json or "{}"))

    def checked(self, given: dict[str, Any], where: str, *, of: str = "input", but: str = "") -> dict[str, Any]:
        """Return the values if they fit the fields. Raises InvalidInput at `where`. The field `but` may be missing."""
        known = {field.name: field for field in self.fields}
        unknown = next((name for name in given if name not in known), None)
        if unknown is not None:
            raise InvalidInput(f"the graph's {of} has no field {unknown!r}", where=where, hint=self._hint())
        missing = next((one.name for one in self.fields if one.required and one.name not in {*given, but}), None)
        if missing is not None:
            raise InvalidInput(f"the graph's {of} lacks {missing!r}", where=where, hint=self._hint())
        self._check(given, known, where, whole=not but)
        return given

    def value(self, turn_id: str, prompt: str, payload_json: str, note: str, input_json: str = "") -> Any:
        """Return the input of a graph that keeps no messages. Raises InvalidInput as `payload` does."""
        if self.takes_messages:
            said = opening(turn_id, prompt, payload_json, note)
            return said if self.whole else self.beside_messages(input_json) | {MESSAGES: said}
        if self.whole and self.prompt_field and INPUT not in json.loads(payload_json or "{}") and not input_json:
            return with_payload(prompt, payload_json)
        given = self.payload(prompt, payload_json, input_json)
        if self.made is not None:
            return self.made.validate_python(given)
        return given[INPUT] if self.whole else given

    def unread(self, prompt: str, payload_json: str, input_json: str, run_json: str = "") -> str:
        """Return why the graph would not read a turn's prompt; empty if it would. Raises InvalidInput like `value`."""
        fields = self.with_handoff(input_json, "")
        if self.is_whole(prompt, payload_json, fields, run_json):
            self.raw("", fields, (), None)
        elif self.keeps_messages:
            self.beside_messages(fields)
            opening("", prompt, payload_json, "")
        else:
            self.value("", prompt, payload_json, "", fields)
        if not prompt or self.prompt_field or self.any_field:
            return ""
        do = "omit it: --prompt ''" if input_json else "give them: turnkeeper task edit NAME --input '{\"FIELD\": …}'"
        return f"the graph does not read the prompt: its input has no field for one; {self._hint()}; {do}"

    def json_schema(self) -> dict[str, Any]:
        """Return the input as a JSON schema; a field whose type has no schema accepts any value."""
        properties = {field.name: _schema_of(field.check) for field in self.fields}
        required = [field.name for field in self.fields if field.required]
        return {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": self.any_field,
        }

    def outcome(self, values: Any) -> str:
        """Return a graph's output as one line of JSON, or its text; empty if all fields are empty."""
        if not self.keeps_state and not isinstance(values, Mapping):
            return "" if is_empty(values) or messages_of(values) else line_of(values)
        names = self.outputs if self.keeps_state else tuple(values)
        found = {name: _value(values, name) for name in names if name != MESSAGES}
        shown = {name: value for name, value in found.items() if not is_empty(value)}
        return line_of(shown) if shown else ""

    def _check(self, given: Mapping[str, Any], known: Mapping[str, Field], where: str, *, whole: bool) -> None:
        if self.model is not None and whole:
            try:
                self.model.model_validate_json(json.dumps(given))
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                place = ".".join(map(str, first["loc"]))
                raise InvalidInput(f"{place}: {first['msg']}" if place else first["msg"], where=where) from error
            return
        for name, value in given.items():
            check = known[name].check
            fault = _fault(check, json.dumps(value)) if check is not None else ""
            if fault:
                raise InvalidInput(f"{name}: {fault}", where=where, hint=self._hint())

    def _hint(self) -> str:
        named = ", ".join(f"{one.name}{' (required)' if one.required else ''}" for one in self.fields)
        return f"its fields are {named}" if named else "it takes no fields"


def read_schema(graph: Any) -> InputSchema:
    """Return the input and output of a compiled StateGraph or of a workflow of functions.

    Fields that a pydantic model or a dataclass requires are required. Fields of a TypedDict are required only in a
    separate input schema, because a state that also serves as input has fields that only nodes fill.
    """
    if not isinstance(graph, CompiledStateGraph):
        return cast("InputSchema", required("workflow schema", graph))
    builder = graph.builder
    schema = builder.input_schema
    hints = hints_of(schema)
    needed = required_in(schema, own=schema is not builder.state_schema)
    names = [name for name in builder.schemas[schema] if name in graph.channels]
    found = tuple(Field(name=name, required=name in needed, hint=hints.get(name, Any)) for name in names)
    outputs = [graph.output_channels] if isinstance(graph.output_channels, str) else list(graph.output_channels)
    model = schema if isclass(schema) and issubclass(schema, BaseModel) else None
    return InputSchema(fields=found, outputs=tuple(outputs), model=model)


def messages_of(values: Any) -> list[Any]:
    """Return the messages of a graph's values, in any form of state; empty if there are none."""
    found: Any = [values] if isinstance(values, BaseMessage) else values
    found = found if isinstance(found, list | tuple) else _value(values, MESSAGES)
    return [one for one in map(_as_message, found) if one is not None] if isinstance(found, list | tuple) else []


def _as_message(value: Any) -> BaseMessage | None:
    """Return a message, converted if a graph left it as a JSON object; None for any other value."""
    if isinstance(value, BaseMessage):
        return value
    if not isinstance(value, dict) or "content" not in value or not {"role", "type"} & set(value):
        return None
    try:
        return convert_to_messages([value])[0]
    except (ValueError, TypeError, KeyError, NotImplementedError):  # an object that only looks like a message
        return None


def dangling(messages: Sequence[AnyMessage]) -> list[AnyMessage]:
    """Answer the tool calls that an earlier turn left without an answer, because models refuse such a history."""
    last = max((at for at, message in enumerate(messages) if isinstance(message, AIMessage)), default=len(messages))
    answered = {message.tool_call_id for message in messages[last:] if isinstance(message, ToolMessage)}
    calls = [call for message in messages[last : last + 1] for call in getattr(message, "tool_calls", ())]
    return [
        ToolMessage(
            content="this call was interrupted; its effect may have happened or may still happen",
            name=call["name"],
            tool_call_id=call["id"] or "",
            status="error",
        )
        for call in calls
        if call["id"] not in answered
    ]


def opening(turn_id: str, prompt: str, payload_json: str, note: str) -> list[AnyMessage]:
    """Return the messages that begin a turn. The prompt has the turn's id, which proves that the input was stored.

    Raises InvalidInput for an empty prompt and payload, which only a graph without messages may have.
    """
    if not prompt.strip() and not payload_json:
        raise InvalidInput("the graph takes messages, but none is given", where="prompt", hint="give a prompt")
    before: list[AnyMessage] = [HumanMessage(content=note, id=f"{turn_id}-note", name="turnkeeper")] if note else []
    return [*before, HumanMessage(content=with_payload(prompt, payload_json), id=turn_id)]


def with_payload(prompt: str, payload_json: str) -> str:
    """Return a prompt with its payload as text below it."""
    return f"{prompt}\n\nPayload: {payload_json}" if payload_json else prompt


def said_or_outcome(lines: Sequence[AnyMessage], outcome: str) -> tuple[Said, ...]:
    """Return the messages of a turn of a graph without message input, or else its output."""
    told = said(lines)
    if not outcome or any(line.role == "agent" and line.text.strip() for line in told):
        return told
    return (*told, Said(role="agent", text=outcome))


def with_structured(lines: tuple[Said, ...], own: Sequence[AnyMessage], values: Any) -> tuple[Said, ...]:
    """Return a turn's messages, with the structured response of an agent that ends without text."""
    made = _value(values, STRUCTURED)
    ends_with_text = not own or (isinstance(own[-1], AIMessage) and own[-1].text.strip() and not own[-1].tool_calls)
    return lines if is_empty(made) or ends_with_text else (*lines, Said(role="agent", text=line_of(made)))


def hints_of(schema: Any) -> dict[str, Any]:
    """Return the types of a class's fields or of a function's parameters; empty if they cannot be resolved."""
    try:
        return get_type_hints(schema)
    except (NameError, TypeError, AttributeError):  # names that only a type checker can resolve
        return {}


def required_in(schema: Any, *, own: bool) -> frozenset[str]:
    """Return the fields that a class requires; those of a TypedDict only if the class is the graph's `own` input."""
    if isclass(schema) and issubclass(schema, BaseModel):
        return frozenset(name for name, one in schema.model_fields.items() if one.is_required())
    if is_dataclass(schema):
        unset = [one.name for one in fields(schema) if one.default is MISSING and one.default_factory is MISSING]
        return frozenset(unset)
    return frozenset(getattr(schema, "__required_keys__", ())) if own else frozenset()


def holds_messages(hint: Any) -> bool:
    """Return whether a type is one of LangChain's messages, or holds them."""
    return (isclass(hint) and issubclass(hint, BaseMessage)) or any(holds_messages(part) for part in get_args(hint))


def _fault(check: TypeAdapter[Any], value_json: str) -> str:
    try:
        check.validate_json(value_json, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        return str(first["msg"])[:1].lower() + str(first["msg"])[1:]
    return ""


def _schema_of(check: TypeAdapter[Any] | None) -> dict[str, Any]:
    try:
        return check.json_schema() if check is not None else {}
    except PydanticUserError:
        return {}


def _value(values: Any, name: str) -> Any:
    return values.get(name) if isinstance(values, Mapping) else getattr(values, name, None)


def is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, str | list | dict | tuple | set) and not value)


def as_json(value: Any) -> Any:
    """Return a graph's value in a form that JSON can hold."""
    try:
        return json.loads(json.dumps(value, default=_plain))
    except (TypeError, ValueError):
        return str(value)


def line_of(value: Any) -> str:
    """Return a value as one line of JSON, and a text as it is. If the line is too long, cut each field."""
    known = as_json(value)
    line = known if isinstance(known, str) else json.dumps(known, ensure_ascii=False)
    if len(line) > LONGEST_OUTCOME and isinstance(known, dict):
        cut = {name: shortened(str(one), LONGEST_OUTCOME // len(known)) for name, one in known.items()}
        return json.dumps(cut, ensure_ascii=False)
    return shortened(line, LONGEST_OUTCOME)


def _plain(value: Any) -> Any:
    if isinstance(value, BaseMessage):
        return str(value.text)
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: getattr(value, one.name) for one in fields(value)}
    return str(value)
