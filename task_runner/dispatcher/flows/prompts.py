"""Variables in the prompts of tasks, such as `{{ time }}`, `{{ event.data.ref }}` and `{{ var.city or "Rome" }}`.

A value that the author did not write is one JSON value on one line, so it stays data. Three steps fill in the values:

- When a fire is committed: its event, the answers of other tasks, and the values of `task run --var`.
- When the fire is sent: its times, and null for each missing value. A fire that is sent again has the same prompt.
- When the turn of the fire begins, in the agent runtime: the last answer of the task.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from task_runner.model.events import LARGEST_DATA, SUCCEEDED, Event, data_of, prompt_line
from task_runner.model.task import HOSTED, Definition, EventTrigger, Fire, replace
from task_runner.timetable import zone
from turnkeeper.config.json_text import as_data, read_object
from turnkeeper.errors import InvalidInput
from turnkeeper.v1 import schedules_pb2 as schedules

MOST = 20  # variables in one prompt
LAST = "last.answer"
LONGEST = 24_000  # bytes of all answers in the data of one event
_AFTER = "after="
_PLAIN = ("time", "date", LAST)
_LONGEST_VALUE = 10_000
_LONGEST_OF_EVENT = 1 << 20  # the longest data of an event, even if each character is escaped
_LONGEST_PROMPT = 256 << 10
_NAME = r"[A-Za-z_][A-Za-z0-9_.-]{0,99}"
_DEFAULT = r"[ \t]+or[ \t]+(\"[^\"\\{}\n]*\")"
_OPEN = re.compile(r"(\\?)\{\{(?:[ \t]*(" + _NAME + ")(?:" + _DEFAULT + r")?[ \t]*\}\})?", re.ASCII)
_PLAINLY = r"write \{{ for two braces"


class Variable(NamedTuple):
    """One variable of a prompt, with its default value as JSON."""

    name: str
    default: str


def check(definition: Definition) -> None:
    """Raise InvalidInput if the prompt of a task has a variable that is unknown or has no value in its fires."""
    found = [_variable(match) for match in _OPEN.finditer(definition.prompt) if not match[1]]
    if len(found) > MOST:
        raise InvalidInput(f"has {len(found)} variables; the limit is {MOST}", where="prompt")
    for variable in found:
        if why := _refused(variable, definition):
            raise InvalidInput(f"{{{{ {variable.name} }}}} {why}", where="prompt", hint=_hint(definition))


def with_event(prompt: str, event: Event) -> str:
    """Return a prompt with the values of an event filled in. Empty if the prompt has no variables for an event."""
    said = json.loads(prompt_line(event))
    data = data_of(event)
    answers = data.get("answers") or {event.task_name: data.get("answer")}

    def value(name: str) -> Any:
        head, _, rest = name.partition(".")
        if head == "event":
            return _looked_up(said, rest) if rest else said
        if head == "answers" and event.name == SUCCEEDED:
            return answers.get(rest)
        return data.get("answer") if name == "answer" and event.name == SUCCEEDED else None

    def text(one: Variable) -> str | None:
        found = value(one.name) if _is_of_event(one.name) else None
        said = as_data(found, _LONGEST_OF_EVENT) if found is not None else one.default
        return said if _is_of_event(one.name) else None

    filled = _filled(prompt, text)
    return "" if filled == prompt else filled


def as_asked(definition: Definition, request: Any) -> Definition:
    """Return a task's definition for one run, with the prompt, the input and the values of the request.

    Raises InvalidInput if the prompt lacks such a variable, or a value is invalid.
    """
    asked = definition
    if request.prompt.strip():
        if len(request.prompt.encode("utf-8", "replace")) > _LONGEST_PROMPT:
            raise InvalidInput(f"is longer than {_LONGEST_PROMPT} bytes", where="prompt")
        asked = replace(asked, prompt=request.prompt)
        check(asked)
    if text := request.payload_json:
        asked = replace(asked, payload_json=_object(text, "payload"))
    if text := request.input_json:
        asked = replace(asked, input_json=_object(text, "input"))
    known = {one.name.removeprefix("var.") for one in variables(asked.prompt) if one.name.startswith("var.")}
    for name, text in request.vars.items():
        if name not in known:
            hint = f"it has: {', '.join(sorted(known))}" if known else 'write {{ var.NAME or "DEFAULT" }} in the prompt'
            raise InvalidInput(f"the prompt has no {{{{ var.{name[:60]} }}}}", where="--var", hint=hint)
        if len(text) > _LONGEST_VALUE:
            raise InvalidInput(f"{name} is longer than {_LONGEST_VALUE} characters", where="--var")
    given = {f"var.{name}": as_data(text, LARGEST_DATA) for name, text in request.vars.items()}
    return replace(asked, prompt=_filled(asked.prompt, lambda one: given.get(one.name)))


def completed(request: Any, fire: Fire) -> str:
    """Return the prompt of a fire as it is sent, each time the same. The runtime replaces the marks of last answers."""
    at = fire.nominal_at.astimezone(zone(request.timezone or "UTC"))
    known = {"time": at.isoformat(timespec="seconds"), "date": at.date().isoformat(), LAST: mark(request.task_id)}
    prompt = _filled(request.prompt, lambda one: known.get(one.name, one.default) if _is_known(one.name) else None)
    return _OPEN.sub(lambda match: match[0][1:] if match[1] else match[0], prompt)


def mark(task_id: str) -> str:
    """Return the text in a sent prompt that the runtime replaces with the last answer of a task.

    No value contains this text, because no value has two consecutive braces.
    """
    return f"{{{{{LAST} of {task_id}}}}}"


def names_before(filters: Iterable[str]) -> Sequence[str]:
    """Return the names of tasks in the filter `after=a,b`; empty without such a filter."""
    return next((text.removeprefix(_AFTER).split(",") for text in filters if text.startswith(_AFTER)), [])


def paused_followers(runner: Any, name: str) -> str:
    """Return an exception to "starts the tasks that follow it": the paused tasks. Empty if there are none."""
    paused = runner.call(schedules.ListTasksRequest(state="paused")).tasks
    names = [task.spec.name for task in paused if name in names_before(task.spec.filters)]
    return f", but not the paused ones: {', '.join(names)}" if names else ""


def followed(on: EventTrigger) -> str:
    """Describe the trigger of a task with `--after`; empty for any other trigger, or one with more filters."""
    names = names_before(on.filters) if on.event == SUCCEEDED and len(on.filters) == 1 else ()
    return f"after {' and '.join(names)}" if names else ""


def variables(prompt: str) -> Iterator[Variable]:
    """Yield the known variables of a prompt, in order."""
    return (_variable(match) for match in _OPEN.finditer(prompt) if not match[1] and match[2])


def rendered(prompt: str, task: Any, at: Any, answer: Callable[[str], str]) -> str:
    """Return the prompt of a task with the present values. Variables for values of events remain.

    Args:
        at: the time of the fire, an aware datetime.
        answer: returns the last answer of the task with a name.
    """
    here = at.astimezone(zone(task.spec.timezone))
    times = {"time": here.isoformat(timespec="seconds"), "date": here.date().isoformat()}
    before = names_before(task.spec.filters)
    sources = {LAST: task.spec.name, **{f"answers.{name}": name for name in before}}
    if before:
        sources["answer"] = before[-1]

    def value(one: Variable) -> str | None:
        if one.name in sources:
            return as_data(answer(sources[one.name]), LONGEST)
        return times.get(one.name, one.default if one.name.startswith("var.") else None)

    return _OPEN.sub(lambda match: match[0][1:] if match[1] else match[0], _filled(prompt, value))


def _filled(prompt: str, value: Callable[[Variable], str | None]) -> str:
    """Replace each variable if `value` returns text for it."""

    def text(match: re.Match[str]) -> str:
        said = None if match[1] or not match[2] else value(_variable(match))
        return match[0] if said is None else said

    return _OPEN.sub(text, prompt)


def _object(text: str, where: str) -> str:
    found = read_object(text, where=where, longest=_LONGEST_PROMPT)
    return json.dumps(found, ensure_ascii=False, separators=(",", ":"))


def _variable(match: re.Match[str]) -> Variable:
    if not match[2]:
        near = match.string[match.start() : match.start() + 40].splitlines()[0]
        raise InvalidInput(f"{near!r} is not a variable", where="prompt", hint=f"write {{{{ NAME }}}}, or {_PLAINLY}")
    return Variable(match[2], as_data(match[3][1:-1], _LONGEST_VALUE) if match[3] else "null")


def _is_of_event(name: str) -> bool:
    return name.partition(".")[0] in {"event", "answer", "answers"}


def _is_known(name: str) -> bool:
    return name in _PLAIN or _is_of_event(name) or name.startswith("var.")


def _refused(variable: Variable, definition: Definition) -> str:
    """Return why a task cannot have a variable; empty if the task can have the variable."""
    name, before = variable.name, names_before(definition.on.filters if definition.on else ())
    if name == LAST and not HOSTED.fullmatch(definition.agent):
        return "is not available to an agent in a terminal"
    if name == "event" or name.startswith("event."):
        return "" if definition.on else "needs a task that fires for an event: --on"
    if name == "answer" or name.startswith("answers."):
        follows = name.removeprefix("answers.") in before if name != "answer" else bool(before)
        return "" if follows else "needs a task that follows that task: --after"
    if name.startswith("var."):
        needs = f'needs a value for fires of the schedule: {{{{ {name} or "DEFAULT" }}}}'
        return "" if variable.default != "null" else needs
    return "" if name in _PLAIN else "is not a variable"


def _hint(definition: Definition) -> str:
    known = [*_PLAIN, 'var.NAME or "DEFAULT"', *(["event.KEY"] if definition.on else [])]
    known += [f"answers.{name}" for name in names_before(definition.on.filters if definition.on else ())]
    return f"use one of: {', '.join(known)}; {_PLAINLY}"


def _looked_up(data: Any, key: str) -> Any:
    head, dot, rest = key.partition(".")
    if not isinstance(data, dict):
        return None
    if key in data:
        return data[key]
    return _looked_up(data.get(head), rest) if dot else None
