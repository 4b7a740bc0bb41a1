"""`turnkeeper init`, and the changes of `turnkeeper model`: the settings that a home needs before it works.

On a terminal, `init` asks if no option is given. It writes after the last question, and never shows a key.
"""

import json
import os
import re
import shutil
import sys
import zoneinfo
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from turnkeeper.config.home import Home
from turnkeeper.config.models import OFFLINE, OPENAI, full_name, key_name
from turnkeeper.config.settings import Settings, load_settings
from turnkeeper.config.toml_file import TomlFile, read_text, with_key
from turnkeeper.console import named_home, note
from turnkeeper.console import status as spinner
from turnkeeper.constellation.install import init as homes
from turnkeeper.constellation.install import service
from turnkeeper.constellation.supervisor import daemons
from turnkeeper.errors import Conflict, InvalidInput, TurnkeeperError, meant
from turnkeeper.storage.files import replace_whole

_NO_KEY = "none"  # the value that providers' libraries accept if a server needs no key
_KEY = re.compile(r"[!-&(-\[\]-~]{1,4096}")  # without quotes and backslashes, which are special in .env
_UNKNOWN_YET = "http://"  # the mark for the server's address, which is asked for after the model

ModelOption = Annotated[
    str | None,
    typer.Option("--model", metavar="NAME", help="Use this model, such as openai:gpt-5; see: turnkeeper model."),
]
AddressOption = Annotated[
    str | None, typer.Option("--base-url", metavar="URL", help="The address of an OpenAI-compatible server.")
]
KeyFileOption = Annotated[
    Path | None, typer.Option("--key-file", metavar="FILE", help="Read the model's key from this file; -: from stdin.")
]

GraphOption = Annotated[
    str | None,
    typer.Option(
        "--graph",
        metavar="REF",
        help="Run this LangGraph graph: ./langgraph.json:NAME, FILE.py:ATTRIBUTE or MODULE:ATTRIBUTE.",
    ),
]
ThreadsOption = Annotated[
    Path | None, typer.Option("--threads", metavar="FILE", help="Import the threads of your checkpoints.sqlite.")
]
TasksOption = Annotated[
    homes.Tasks | None, typer.Option("--tasks", help="With --graph: move existing tasks to it, or keep their graph.")
]


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model that an author chooses.

    Attributes:
        name: `offline`, or a name for LangChain's `init_chat_model`.
        base_url: the address of its server; empty for the provider's own server.
        key: the provider's key; empty if none was given.
    """

    name: str
    base_url: str = ""
    key: str = field(default="", repr=False)


@dataclass(frozen=True, kw_only=True)
class Choices:
    """An author's choices for a new home. An empty field keeps the present value."""

    model: Model | None = None
    timezone: str = ""
    example: bool = False
    service: bool = False
    asked: bool = False  # on a terminal, the home is created even if the model cannot be loaded yet
    silent: bool = False  # ask no questions, even on a terminal


def init(
    *,
    model: ModelOption = None,
    base_url: AddressOption = None,
    key_file: KeyFileOption = None,
    timezone: Annotated[str, typer.Option("--timezone", "--tz", metavar="ZONE", help="Time zone of new tasks.")] = "",
    example: Annotated[bool, typer.Option(help="Also write an example: a task that reads this folder.")] = False,
    service_: Annotated[bool, typer.Option("--service", help="Also run: turnkeeper service install.")] = False,
    graph: GraphOption = None,
    threads: ThreadsOption = None,
    install: Annotated[
        bool, typer.Option(help="With --graph: first install the packages that the project lacks.")
    ] = False,
    tasks: TasksOption = None,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Ask nothing; use defaults for missing options.")] = False,
) -> None:
    """Create the state directory, with a config.toml that explains every setting.

    Without an option, on a terminal, it asks for the model and its key, the time zone, an example and a service. Enter
    accepts the default. Existing files are kept, so you can run the command twice. An option for the model, the time
    zone or the graph changes only its own lines in config.toml and .env. The graph is first loaded in the way of the
    agent runtime. If that fails, nothing is written. The same applies to the file of --threads and to the model.

    If the home already runs another graph, --tasks decides which graph the tasks run. `move`: agent0 and all tasks that
    name no graph run the new one. `keep`: they run the previous graph, and new tasks name the new one. Without --tasks,
    the command asks; with -y, it keeps.

    Example: turnkeeper init --graph ./langgraph.json:agent
    """
    place = named_home()
    given = (model, base_url, key_file, graph, threads)
    silent = yes or timezone or example or service_ or install or any(one is not None for one in given)
    choices = Choices(timezone=zone_of(timezone), example=example, service=service_, silent=yes)
    if given[:3] != (None, None, None):
        choices = replace(choices, model=chosen_model(place, model, base_url, key_file, asks=not yes))
    elif not silent and not place.config.exists() and _on_a_terminal():
        choices = ask()
    if install:
        homes.install_packages(place, graph)
    with spinner("loading the graph"):
        project = homes.look_at(place, graph) if graph else None
    way = way_of_tasks(place, project, tasks, silent=yes) if project else homes.Tasks.MOVE
    if threads is not None:
        homes.import_threads(place, threads, dry_run=True)
    written = set_up(place, choices)
    written += [path for path in homes.take_on(place, project, way) if path not in written] if project else []
    note("\n".join(f"wrote {path}" for path in written) or f"{place.root} is already complete")
    if threads is not None:
        note(homes.import_threads(place, threads))
    if choices.service:
        service.install()
    for line in homes.next_steps(place, project, example=choices.example):
        note(line)


def way_of_tasks(place: Home, project: homes.Project, given: homes.Tasks | None, *, silent: bool) -> homes.Tasks:
    """Return whether existing tasks move to a new graph. On a terminal, ask if they could move and no option decides.

    Raises:
        Conflict: existing tasks could move, and there is no terminal on which to ask.
    """
    if given is not None or not (told := homes.would_move(place, project)):
        kept = project.reference in load_settings(place).graphs.values()
        return given or (homes.Tasks.KEEP if kept else homes.Tasks.MOVE)
    if silent:
        return homes.Tasks.KEEP
    hint = "give them the new graph: --tasks move; or leave them as they are: --tasks keep"
    if not _on_a_terminal():
        raise Conflict(told, where="--graph", hint=hint)
    note(f"{told}. Move them to the new graph, or keep theirs?")
    return homes.Tasks(_answer("move or keep", homes.Tasks.KEEP.value, _way))


def _way(text: str) -> str:
    if text not in {*homes.Tasks}:
        raise InvalidInput("must be move or keep", where="tasks")
    return text


def set_up(place: Home, choices: Choices) -> list[Path]:
    """Set up the home with these choices. Return the files that were written. Remove a new home that cannot run."""
    is_new = not place.root.exists()
    try:
        written = homes.initialise(place, example=choices.example)
        if choices.timezone:
            text = with_key(read_text(place.config), "scheduler", "timezone", choices.timezone)
            _write(place, text, place.config)
        if choices.model is not None:
            _try_model(place, choices.model, choices)
    except TurnkeeperError:
        if is_new:
            shutil.rmtree(place.root, ignore_errors=True)
        raise
    return written


def _try_model(place: Home, model: Model, choices: Choices) -> None:
    try:
        set_model(place, model, asks=not choices.silent)
    except InvalidInput as error:
        if not choices.asked:
            raise
        kept = ""
        if model.key:  # the key was typed unseen, and is not asked for twice
            _save_key(place, model)
            kept = f", and {key_name(model.name)} is kept in {place.environment}"
        again = f"turnkeeper model {model.name}{f' --base-url {model.base_url}' if model.base_url else ''}"
        note(f"the model stays offline{kept}: {error}; try again with: {again}")


def _on_a_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def ask() -> Choices:
    """Ask on the terminal for the choices of a new home. Write nothing before the last answer."""
    note("Enter takes the value in brackets. You can change everything later.")
    name = _answer("Model, such as openai:gpt-5", OFFLINE, _model_name)
    model = None
    if name != OFFLINE:
        base_url = _answer(
            "Address of its server, if not the provider's", "", lambda given: _address_for(name, given), shows=False
        )
        name = full_name(name, base_url)
        model = Model(name=name, base_url=base_url, key=_asked_key(name, base_url))
    here = "the machine's"
    zone = _answer("Time zone of tasks, such as Europe/Riga", here, lambda text: "" if text == here else zone_of(text))
    question = f"Write an example: each morning, what changed in this folder ({Path.cwd().name})?"
    is_small = not Path.home().is_relative_to(Path.cwd())  # a whole home folder is read only if the author chooses it
    example = typer.confirm(question, default=is_small, err=True)
    as_service = typer.confirm("Write a service that starts it when you log in?", default=False, err=True)
    return Choices(model=model, timezone=zone, example=example, service=as_service, asked=True)


def _address_for(name: str, text: str) -> str:
    """Return the address of a model's server. Raises InvalidInput if there is neither a provider nor an address."""
    full_name(name, text.strip())
    return text.strip()


def _answer(question: str, default: str, read: Callable[[str], str], *, shows: bool = True) -> str:
    def checked(text: str) -> str:
        try:
            return read(text)
        except InvalidInput as error:  # the question is asked again
            raise typer.BadParameter(str(error)) from error

    return str(typer.prompt(question, default, value_proc=checked, show_default=shows, err=True))


def zone_of(name: str) -> str:
    """Return the IANA zone with this name, or "" for an empty name. Raises InvalidInput with similar names."""
    known = zoneinfo.available_timezones()
    if name and name not in known:
        hint = meant(name, known)
        raise InvalidInput(
            f"{name[:80]!r} is not a time zone",
            where="timezone",
            hint=hint if "did you mean" in hint else "write for example Europe/Riga",
        )
    return name


def _model_name(text: str) -> str:
    """Return the typed name. A name without a provider is valid if the address of a server follows."""
    full_name(text, "" if ":" in text else _UNKNOWN_YET)
    return text


def _asked_key(name: str, base_url: str, *, asks: bool = True) -> str:
    variable = key_name(name)
    if not variable:
        return ""
    if found := os.environ.get(variable):  # a daemon has the variable only if it was started with it
        note(f"{variable} of this shell goes into .env in the home")
        return checked_key(found)
    if not (asks and _on_a_terminal()):
        return _NO_KEY if base_url else ""
    enter = "none, if your server needs no key" if base_url else "later"
    question = f"{variable}, which is not shown (Enter: {enter})"
    key = checked_key(typer.prompt(question, "", hide_input=True, show_default=False, err=True))
    return key or (_NO_KEY if base_url else "")


def checked_key(text: str) -> str:
    """Return a key without surrounding blanks, or "" for no key. Raises InvalidInput, which does not repeat the key."""
    if (key := text.strip()) and not _KEY.fullmatch(key):
        raise InvalidInput("is not one word of printable characters", where="key")
    return key


def chosen_model(
    place: Home, name: str | None, base_url: str | None, key_file: Path | None, *, asks: bool = True
) -> Model:
    """Return the model from the options and the present settings. May ask for its key on a terminal."""
    present = load_settings(place).model
    wanted = present.name if name is None else name
    # A name without a provider keeps the server of the present model, if that server is OpenAI-compatible.
    unsaid = ":" not in wanted and not key_name(wanted)
    stays = present.base_url if unsaid and key_name(present.name) == key_name(f"{OPENAI}:") else ""
    chosen = full_name(wanted, stays if base_url is None else base_url)
    url = _kept_url(present.base_url, present.name, chosen) if base_url is None else base_url
    if key_file is None:
        key = "" if chosen == OFFLINE or _has_key(place, chosen) else _asked_key(chosen, url, asks=asks)
    else:
        key = checked_key(sys.stdin.read() if str(key_file) == "-" else read_text(key_file))
    if key and not key_name(chosen):
        raise InvalidInput(
            f"{chosen[:80]} takes no key that is known here",
            where="--key-file",
            hint=f"put it into {place.environment}",
        )
    return Model(name=chosen, base_url=url, key=key)


def _kept_url(url: str, name: str, chosen: str) -> str:
    """Return the present server's address if the model's provider stays, else empty. Print a note about it."""
    if not url or chosen == name:
        return url
    if chosen != OFFLINE and key_name(chosen) == key_name(name):
        note(f'still asks the server at {url}; --base-url "" asks the provider\'s own')
        return url
    note(f"{url}, the address of the server for {name}, is removed")
    return ""


def _has_key(place: Home, model: str) -> bool:
    name = key_name(model)
    return place.environment.exists() and f"\n{name}=" in f"\n{read_text(place.environment)}"


def set_model(place: Home, model: Model, *, asks: bool = True) -> None:
    """Write the model into `config.toml` and its key into `.env`, mode 0600, if agent-runtime can start with them.

    Raises:
        InvalidInput: agent-runtime cannot start; the error contains the reason. Both files are unchanged.
    """
    place.check_keys()
    if model.base_url:
        _check_server(place, model, asks=asks)
    before = {path: read_text(path) for path in (place.config, place.environment) if path.exists()}
    text = with_key(before.get(place.config, ""), "model", "name", model.name)
    _write(place, with_key(text, "model", "base_url", model.base_url), place.config)
    if model.key:
        _save_key(place, model)
    with spinner("loading the model"):
        environ = daemons.environ_of(place, daemons.SUPERVISOR) or os.environ
        why = daemons.refusal(place, daemons.AGENT_RUNTIME, environ) if model.name != OFFLINE else ""
    if why:
        for path in (place.config, place.environment):
            replace_whole(path, before[path].encode()) if path in before else path.unlink(missing_ok=True)
        raise InvalidInput(f"agent-runtime could not start with it, and nothing was changed: {why}", where="model")
    if model.name != OFFLINE and not model.base_url:
        note(f"{model.name} can be loaded; its provider was not asked, so the first turn shows whether it answers")


def _save_key(place: Home, model: Model) -> None:
    text = read_text(place.environment) if place.environment.exists() else ""
    _write(place, _with_line(text, key_name(model.name), model.key), place.environment)


_PATIENCE_S = 5.0
_MOST_NAMED = 10


def _check_server(place: Home, model: Model, *, asks: bool) -> None:
    """Print the models that the author's own server offers. On a terminal, ask about a name that is not offered."""
    with spinner("asking the server"):
        told, offers_it = of_server(model, model.key or _key_of(place, model.name))
    note(told)
    if offers_it or not (asks and _on_a_terminal()):
        return
    if not typer.confirm("Use it anyway?", default=False, err=True):
        raise InvalidInput("nothing was changed", where="model")


def _key_of(place: Home, model: str) -> str:
    stated = import_module("dotenv").dotenv_values(place.environment, interpolate=False)
    return stated.get(key_name(model)) or os.environ.get(key_name(model), "")


def of_server(model: Model, key: str) -> tuple[str, bool]:
    """Return a sentence that says if the author's own server answers, and which models it offers.

    The second value is False if the server lists its models and this model is not among them.
    """
    url = model.base_url.rstrip("/")
    if not url.startswith(("http://", "https://")):
        return f"{url} is not an http address: turns fail until it is; set it again with --base-url", True
    http = import_module("urllib.request")  # this import takes long
    request = http.Request(f"{url}/models", headers={"Authorization": f"Bearer {key}"} if key else {})
    try:
        with http.urlopen(request, timeout=_PATIENCE_S) as answer:
            offered = [str(one["id"]) for one in json.loads(answer.read(1 << 20))["data"]]
    except (OSError, ValueError, LookupError, TypeError) as error:  # an HTTPError is an OSError with a code
        return _without_list(url, error), True
    provider, _, name = model.name.partition(":")
    named = ", ".join(f"{provider}:{one}" for one in offered[:_MOST_NAMED])
    offers = f"it offers {named}{' and more' if len(offered) > _MOST_NAMED else ''}" if offered else "it names no model"
    if not offered or name in offered:
        return f"{url} answers; {offers}", True
    instead = f"turnkeeper model {provider}:{offered[0]} --base-url {model.base_url}"
    return f"{url} answers; {offers}; {name} is not among them, so turns may fail; for another: {instead}", False


def _without_list(url: str, error: Exception) -> str:
    code = getattr(error, "code", None)
    if code in {401, 403}:
        return f"{url} answers, and refuses the key (status {code}): turns fail until it takes it"
    if code or not isinstance(error, OSError):
        return f"{url} answers, and does not list its models: the name must be one that it knows"
    why = getattr(error, "reason", error)
    return f"{url} does not answer ({getattr(why, 'strerror', '') or why}): turns fail until it does"


def _write(place: Home, text: str, path: Path) -> None:
    if path == place.config:
        TomlFile(path, text).validate(Settings)
    replace_whole(path, text.encode())


def _with_line(text: str, name: str, value: str) -> str:
    line = f"{name}='{value}'" if re.search(r"[^\w.:/+=-]", value) else f"{name}={value}"
    known = re.compile(rf"^#?[ ]?(?:export )?{name}=.*$", re.MULTILINE)
    if known.search(text):
        return known.sub(lambda _: line, text, count=1)
    return f"{text.rstrip()}\n{line}\n".lstrip("\n")
