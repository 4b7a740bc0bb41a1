"""`config.toml`: every key with its default, the source of each value, and errors for unknown keys.

The models below document the keys and their defaults; `turnkeeper config show` prints them with their values.
"""

import contextlib
import importlib
import os
import re
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Annotated, Any, Literal, Self

import pydantic
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, field_validator, model_validator

from turnkeeper.config.home import Home
from turnkeeper.config.json_text import check_configurable
from turnkeeper.config.surfaces import Process, processes
from turnkeeper.config.toml_file import read_toml
from turnkeeper.errors import InvalidInput, NotFound
from turnkeeper.times import format_duration, parse_duration

_NO_PLUGINS = "PYDANTIC_DISABLE_PLUGINS"
_READING = threading.RLock()
FIRST_AGENT = "agent0"
MOST_WORKERS = 64
SHIPPED_AUTONOMOUS = ("memory-consolidation", "catch-up-summary", "re-validation-walk", "loop", "peer")


def _seconds(value: object) -> object:
    try:
        return parse_duration(value).total_seconds() if isinstance(value, str) else value
    except InvalidInput as error:  # the file's reader reports the error with file, line and key, but without the value
        raise ValueError(f"is not a duration; {error.hint}") from error


def as_written(value: object) -> object:
    """Return a setting as config.toml writes it: whole seconds of a duration with units, any other value unchanged.

    >>> as_written(7776000.0), as_written(0.2), as_written(3)
    ('90d', 0.2, 3)
    """
    if isinstance(value, float) and value.is_integer():  # every number with a decimal point is a duration in seconds
        return format_duration(timedelta(seconds=value))
    return value


Seconds = Annotated[float, BeforeValidator(_seconds), Field(ge=0, le=86_400 * 365)]
# A longer time than between two increases of a daemon's counter, which increases every five seconds.
WatchSeconds = Annotated[float, BeforeValidator(_seconds), Field(ge=1, le=86_400)]

# The form of a thread's id. The id ends with a task's name, which must not look like a path.
GraphName = Annotated[str, Field(pattern=r"(?x)^[!-.0-~](?:[\x20-.0-~]{0,61}[!-.0-~])?$ # 1 to 63 of ASCII, but no /")]
# Names have no underscore, so that a model never sees two tools of different servers under the same name.
ServerName = Annotated[str, Field(pattern=r"(?x)^[A-Za-z][A-Za-z0-9-]{0,23}$ # a letter, then up to 23 of a-z, 0-9, -")]
Origin = Annotated[str, Field(pattern=r"(?x)^(https://[a-z0-9.-]+(:[0-9]{1,5})?)?$ # https://NAME or https://NAME:443")]
PageOrigin = Annotated[str, Field(pattern=r"(?x)^https?://[a-z0-9.-]+(:[0-9]{1,5})?$ # http://NAME or http://NAME:80")]


class _Section(BaseModel):
    # Build it at its first use, because Pydantic looks for plugins in every installed package, which takes long.
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class AgentSettings(_Section):
    """`[agents.<name>]`: the graph that an agent runs, and the number of its worker lanes."""

    graph: str = Field(
        "",
        description="a LangGraph graph: langgraph.json:NAME, FILE.py:ATTRIBUTE or MODULE:ATTRIBUTE; empty: the default",
    )
    workers: int = Field(
        0, ge=0, le=MOST_WORKERS, description="worker lanes agent1..agentN; `turnkeeper up N` overrides it"
    )
    prompt: str = Field(
        "",
        max_length=1024,
        description="of an agent in a terminal: an RE2 expression for the end of its screen while its prompt is empty",
    )


class ModelSettings(_Section):
    """`[model]`: the language model."""

    name: str = Field("offline", description="'offline' or any init_chat_model string, such as openai:gpt-5")
    base_url: str = Field("", description="an OpenAI-compatible server's address")
    daily_token_cap: int = Field(2_000_000, ge=0, description="most tokens a day over all turns; 0: no limit")


class CategorySettings(_Section):
    """`[categories]`: permissions to run without the author."""

    autonomous_allowed: tuple[str, ...] = Field(
        SHIPPED_AUTONOMOUS, description="categories whose turns may finish without the author"
    )
    trusted_graphs: tuple[str, ...] = Field(
        (), description="graphs that may run although their tool calls cannot be guarded"
    )


class MemorySettings(_Section):
    """`[memory]`: the tier for values that graphs store without a tier."""

    default_tier: Literal["conversation", "channel", "workspace", "account"] = Field(
        "workspace", description="tier of a graph's store namespaces without a tier"
    )


class SchedulerSettings(_Section):
    """`[scheduler]`: the runner's defaults."""

    grace_s: Seconds = Field(60.0, description="how late a fire may be to count as on time")
    catch_up_concurrency: int = Field(4, ge=1, le=10_000, description="how many caught-up fires run at once")
    catch_up_stagger_s: Seconds = Field(0.2, description="shortest time between two caught-up fires")
    timezone: str = Field("", description="IANA time zone of new tasks; empty: the machine's")
    keep_history: Seconds = Field(86_400.0 * 90, description="how long finished fires are kept")


class ApprovalSettings(_Section):
    """`[approvals]`: how long approvals of turns without a task wait. A task has its own settings."""

    reminder_s: Seconds = Field(0.0, description="how long after the question you are reminded; 0: never")
    escalation_s: Seconds = Field(0.0, description="how long after the question an alert is raised; 0: never")
    timeout_s: Seconds = Field(0.0, description="how long after the question it expires and is refused; 0: never")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.timeout_s and max(self.reminder_s, self.escalation_s) >= self.timeout_s:
            raise ValueError("reminder_s and escalation_s must be less than timeout_s")
        return self


class NotifySettings(_Section):
    """`[notify]`: a local command that notifies the author."""

    command: str = Field("", description="run by the shell, with the event's fields in TURNKEEPER_* variables")
    on: tuple[Literal["interrupt", "failure", "pause", "reminder", "expired"], ...] = Field(
        ("interrupt", "failure", "pause", "reminder", "expired"), description="the events to notify of"
    )


class WatchdogSettings(_Section):
    """`[watchdog]`: when a daemon is restarted, when it counts as hung or broken, and how you are alerted."""

    interval_s: WatchSeconds = Field(60.0, description="time between two ticks")
    restarts: int = Field(
        10, ge=0, le=1000, description="restarts of a daemon within the window before it counts as a crash loop"
    )
    window_s: WatchSeconds = Field(600.0, description="how far back restarts count")
    failed_starts: int = Field(
        3, ge=1, le=1000, description="failed starts within the window before it counts as a crash loop"
    )
    start_timeout_s: WatchSeconds = Field(120.0, description="how long a daemon may take to start")
    hang_after_s: WatchSeconds = Field(180.0, ge=15, description="how long a progress counter may stay unchanged")
    command: str = Field("", description="shell command that alerts you; the text is in TURNKEEPER_TEXT")
    webhook: str = Field(
        "",
        pattern=r"(?x)^([a-z][a-z0-9+.-]*://\S+)?$ # a URL, such as https://HOST/PATH",
        description="URL to POST alerts to as JSON, without a command or when it fails; other schemes go to apprise",
    )
    announce: bool = Field(False, description="also report on these routes when agent-runtime is up after a start")


class LogSettings(_Section):
    """`[logs]`: how long trails and logs are kept, and how large they become."""

    keep: Seconds = Field(86_400.0 * 90, description="how long the trails of events and acknowledgements are kept")
    largest_mb: int = Field(64, ge=1, le=100_000, description="size, in MiB, at which the log of a process is cut")


class StoreSettings(_Section):
    """`[store]`: the place of tasks, turns and checkpoints."""

    url: str = Field(
        "sqlite",
        description="sqlite: files in the home; postgresql://…: a database of several machines (turnkeeper[postgres])",
    )
    notifications: bool = Field(
        True, description="whether machines notify each other at once (LISTEN); else they poll each second"
    )

    @field_validator("url")
    @classmethod
    def _without_password(cls, value: str) -> str:
        value = re.sub(r"^postgres(?=://)", "postgresql", value)
        if re.match(r"postgresql://[^/@]*:[^/@]+@", value) or re.search(r"[?&]password=", value):
            raise ValueError("holds a password; put it into PGPASSWORD, in the home's .env for instance, or ~/.pgpass")
        host = r"(\[[\w:.%]+\]|[^][:,/?\s]*)(:\d{1,5})?"
        if not re.fullmatch(rf"sqlite|postgresql://(?=.)([^/?@\s]*@)?{host}(,{host})*([/?]\S*)?", value):
            raise ValueError("is neither sqlite nor a URL as postgresql://USER@HOST:PORT/NAME; several: HOST,HOST")
        return value

    def heard(self, *channels: str) -> tuple[str, ...]:
        """Return the channels of notifications to listen to."""
        return channels if self.notifications else ()

    @property
    def is_shared(self) -> bool:
        """True if several machines may use the store."""
        return self.url != "sqlite"

    @property
    def shared_url(self) -> str:
        """The database that several machines share; empty if there is none."""
        return self.url if self.is_shared else ""


class HistorySettings(_Section):
    """`[history]`: how long the runtime keeps finished turns."""

    keep_turns: Seconds = Field(
        86_400.0 * 365,
        description="how long a finished turn is kept, with its messages, tool calls and approvals; 0: no limit",
    )
    keep_events: Seconds = Field(
        86_400.0 * 90, description="how long outcomes that the runner has read, and handoffs, are kept; 0: no limit"
    )


class FaultSettings(_Section):
    """`[faults]`: how long to wait while the machine has a fault."""

    graph_wait_s: Seconds = Field(
        600.0, description="how long a turn is retried while a file or device of its graph fails; 0: without limit"
    )


class NodeSettings(_Section):
    """`[node]`: this machine, one of several that share a store."""

    name: str = Field("", max_length=100, description="its name for other machines; empty for the machine's own name")
    roles: tuple[Literal["runner", "runtime"], ...] = Field(
        ("runner", "runtime"), description="its work in a shared store: plan and hand over, run turns"
    )
    tags: tuple[GraphName, ...] = Field((), description="what it offers: tasks with `--needs` begin only where it is")


Port = Annotated[int, Field(ge=0, le=65_535)]


class MetricsSettings(_Section):
    """`[metrics]`: metrics and health for Prometheus and other tools of this machine."""

    enabled: bool = Field(True, description="answer on a Unix socket of each daemon: state/run/<daemon>.http")
    task_runner_port: Port = Field(0, description="answer for task-runner on this port of 127.0.0.1 too; 0: on none")
    agent_runtime_port: Port = Field(0, description="answer for agent-runtime on this port too; 0: on none")

    @model_validator(mode="after")
    def _apart(self) -> Self:
        if self.task_runner_port and self.task_runner_port == self.agent_runtime_port:
            raise ValueError("task_runner_port and agent_runtime_port must differ")
        return self


class WebSettings(_Section):
    """`[web]`: a page in the browser, the LangGraph API and MCP, on this machine; needs `turnkeeper[web]`."""

    enabled: bool = Field(False, description="let `turnkeeper up` start it and keep it running")
    port: int = Field(7373, ge=1, le=65_535, description="where it listens")
    bind: str = Field("127.0.0.1", description="the address; any other than 127.0.0.1 needs insecure_bind")
    insecure_bind: bool = Field(False, description="listen on `bind`: only behind a proxy of yours that speaks TLS")
    public_origin: Origin = Field("", description="its URL on such a proxy: https://NAME")
    origins: tuple[PageOrigin, ...] = Field(
        (), description="other pages that may use the LangGraph API and MCP from a browser: http://localhost:3000"
    )
    langgraph_category: str = Field("loop", description="the category of LangGraph clients' crons that name none")
    langgraph_channel: str = Field("general", description="the channel of such clients' threads and crons")

    @model_validator(mode="after")
    def _only_here(self) -> Self:
        if self.bind != "127.0.0.1" and not self.insecure_bind:
            raise ValueError("bind is 127.0.0.1, unless insecure_bind = true and a proxy that speaks TLS is before it")
        return self


class ProjectSettings(_Section):
    """`[project]`: HTTP routes and login of the default graph's `langgraph.json`, in the LangGraph API of `[web]`."""

    enabled: bool = Field(False, description="let `turnkeeper up` start its process and keep it running")
    public: bool = Field(False, description="its routes also answer callers without a key and without a login")
    scopes: tuple[Literal["read", "chat", "decide"], ...] = Field(
        ("read", "chat"), description="what users of its login may do: read, chat, decide; empty: the login is not used"
    )


Address = Annotated[str, Field(pattern=r"(?x)^(([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5})?$ # HOST:PORT")]


class PeerSettings(_Section):
    """`[peers]`: other homes whose first agents work with the first agent of this home."""

    enabled: bool = Field(False, description="let `turnkeeper up` start it and keep it running")
    listen: Address = Field("", description="the address at which it listens for peers, HOST:PORT; required if enabled")
    address: Address = Field("", description="the address at which peers reach it, HOST:PORT; empty: as `listen`")

    @model_validator(mode="after")
    def _somewhere(self) -> Self:
        if self.enabled and not self.listen:
            raise ValueError("enabled needs listen: the HOST:PORT where it listens for peers")
        return self


class DeliverySettings(_Section):
    """`[delivery]`: sends results of tasks, and questions that wait for you, to the targets of `turnkeeper deliver`."""

    enabled: bool = Field(False, description="let `turnkeeper up` start it and keep it running")
    allow: tuple[str, ...] = Field(
        (), description="hosts of this machine or a private network to which it may send: HOST or HOST:PORT"
    )


class QuerySettings(_Section):
    """`[query]`: the columns that `turnkeeper query` shows."""

    texts: bool = Field(
        False, description="also prompts, messages, arguments, answers and memory; without it these columns are null"
    )


class FolderSettings(_Section):
    """`[folder]`: a folder of yours that turns may read if their category grants `folder.changes` or `folder.read`."""

    path: str = Field("", description="the folder, absolute; its hidden files are never read; empty: none")


class CalendarSettings(_Section):
    """`[calendar]`: days when scheduled tasks do not fire; needs `turnkeeper[calendars]`."""

    file: str = Field("", description="an .ics file in the home, whose events are days off; empty: none")


class McpSettings(_Section):
    """`[mcp]`: permissions of MCP clients that use `turnkeeper mcp` or HTTP."""

    decide: Literal["link", "elicit"] = Field(
        "link", description="link: you decide elsewhere; elicit: a capable client shows you a form"
    )
    categories: tuple[str, ...] = Field(
        ("catch-up-summary", "loop"),
        description="categories of tasks that they may create or change; the first is the default",
    )
    manage: Literal["own", "all"] = Field("own", description="tasks that they may change: their own, or all")
    shortest_gap_s: Seconds = Field(60.0, description="shortest time between two fires of a task that they schedule")


# An address has no user, query or fragment, because each may contain a key, and addresses are shown.
ServerUrl = Annotated[str, Field(pattern=r"(?x)^(https?://[^\s@?\#]+)?$ # an http or https URL without @, ? and #")]
_TELLING = re.compile(r"(key|token|secret|password|credentials?|authorization|cookie)$", re.IGNORECASE)


class McpServerSettings(_Section):
    """`[mcp_servers.<name>]`: an MCP server whose tools the built-in agent may use; needs `turnkeeper[mcp]`."""

    command: str = Field("", description="the program of a server on stdio")
    args: tuple[str, ...] = Field((), description="its arguments, which every user of the machine can read")
    env: dict[str, str] = Field(default_factory=dict, description="its variables; $NAME is read from the environment")
    url: ServerUrl = Field("", description="the address of a server over HTTP, in place of a command")
    headers: dict[str, str] = Field(default_factory=dict, description="headers of each request; $NAME as in env")
    reads: tuple[str, ...] = Field((), description="tools that only read; Turnkeeper trusts this list")
    timeout_s: Seconds = Field(60.0, gt=0, description="how long a call may take")

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.command and self.url:
            raise ValueError("needs one of command and url, not both")
        for name, value in [*self.env.items(), *self.headers.items()]:
            if _TELLING.search(name) and "$" not in value:
                raise ValueError(f"{name} holds a secret; write $NAME here, and NAME=… into the home's .env")
        return self


class ToolSettings(_Section):
    """`[tools]`: your own tools for the built-in agent."""

    files: tuple[str, ...] = Field((), description="Python files; each function with LangChain's @tool is a tool")


class TracesSettings(_Section):
    """`[traces]`: traces of fires and turns, sent by OTLP to a collector of yours; needs `turnkeeper[otel]`."""

    enabled: bool = Field(False, description="make traces and send them")
    endpoint: str = Field(
        "",
        pattern=r"(?x)^(https?://\S+)?$ # an http or https URL",
        description="OTLP over HTTP: http://127.0.0.1:4318/v1/traces; empty: that of OTEL_EXPORTER_OTLP_…, else this",
    )
    content: bool = Field(False, description="send prompts, answers, and arguments and results of tools with them")


class AssistantSettings(_Section):
    """`[assistants.<name>]`: a configuration of a graph, for tasks and messages that name it."""

    graph: str = Field("", description="the name of the configured graph; empty: the default one")
    description: str = Field("", max_length=1000, description="one sentence for you")
    context: dict[str, JsonValue] = Field(default_factory=dict, description="LangGraph's context")
    config: dict[str, JsonValue] = Field(default_factory=dict, description="LangGraph's configurable")
    input: dict[str, JsonValue] = Field(default_factory=dict, description="fields of the input, beside the prompt")

    @field_validator("context", "config")
    @classmethod
    def _checked(cls, value: dict[str, Any], info: pydantic.ValidationInfo) -> dict[str, Any]:
        try:
            return check_configurable(value, str(info.field_name))
        except InvalidInput as error:
            raise ValueError(error.what) from error


# A whole amount is an int, because a float without a fraction would be shown as a duration.
_amount = pydantic.AfterValidator(lambda value: int(value) if value.is_integer() else value)
Money = Annotated[float, Field(ge=0, le=1e6), _amount]


class PriceSettings(_Section):
    """`[prices.<model>]`: the price of a model, in your currency. Write the model in quotes, as in `[model] name`."""

    read: Money = Field(0, description="for a million tokens that it reads")
    written: Money = Field(0, description="for a million tokens that it writes")


class QueueSettings(_Section):
    """`[queues.<name>]`: limits that the turns of tasks with `--queue` share, over all machines."""

    turns_at_once: int = Field(0, ge=0, le=10_000, description="turns that run at the same time; 0: no limit")
    per_minute: int = Field(0, ge=0, le=10_000, description="turns that begin in a minute, evenly spaced; 0: no limit")
    priority: int = Field(0, ge=-100, le=100, description="of fires that are due together, the highest goes first")


OF_A_SURFACE: Any = {"of_a_surface": True}  # marks the section of a part that can be removed


class Settings(_Section):
    """The whole of `config.toml`."""

    agents: dict[str, AgentSettings] = Field(default_factory=dict)
    graphs: dict[GraphName, str] = Field(default_factory=dict)
    assistants: dict[GraphName, AssistantSettings] = Field(default_factory=dict)
    model: ModelSettings = Field(default_factory=ModelSettings)
    categories: CategorySettings = Field(default_factory=CategorySettings)
    memory: MemorySettings = Field(default_factory=MemorySettings)
    scheduler: SchedulerSettings = Field(default_factory=SchedulerSettings)
    approvals: ApprovalSettings = Field(default_factory=ApprovalSettings)
    notify: NotifySettings = Field(default_factory=NotifySettings)
    watchdog: WatchdogSettings = Field(default_factory=WatchdogSettings)
    logs: LogSettings = Field(default_factory=LogSettings)
    history: HistorySettings = Field(default_factory=HistorySettings)
    faults: FaultSettings = Field(default_factory=FaultSettings)
    metrics: MetricsSettings = Field(default_factory=MetricsSettings, json_schema_extra=OF_A_SURFACE)
    traces: TracesSettings = Field(default_factory=TracesSettings, json_schema_extra=OF_A_SURFACE)
    query: QuerySettings = Field(default_factory=QuerySettings, json_schema_extra=OF_A_SURFACE)
    folder: FolderSettings = Field(default_factory=FolderSettings, json_schema_extra=OF_A_SURFACE)
    calendar: CalendarSettings = Field(default_factory=CalendarSettings, json_schema_extra=OF_A_SURFACE)
    prices: dict[str, PriceSettings] = Field(default_factory=dict, json_schema_extra=OF_A_SURFACE)
    queues: dict[GraphName, QueueSettings] = Field(default_factory=dict, json_schema_extra=OF_A_SURFACE)
    store: StoreSettings = Field(default_factory=StoreSettings)
    web: WebSettings = Field(default_factory=WebSettings, json_schema_extra=OF_A_SURFACE)
    mcp: McpSettings = Field(default_factory=McpSettings, json_schema_extra=OF_A_SURFACE)
    project: ProjectSettings = Field(default_factory=ProjectSettings, json_schema_extra=OF_A_SURFACE)
    mcp_servers: dict[ServerName, McpServerSettings] = Field(default_factory=dict, json_schema_extra=OF_A_SURFACE)
    tools: ToolSettings = Field(default_factory=ToolSettings, json_schema_extra=OF_A_SURFACE)
    peers: PeerSettings = Field(default_factory=PeerSettings, json_schema_extra=OF_A_SURFACE)
    delivery: DeliverySettings = Field(default_factory=DeliverySettings, json_schema_extra=OF_A_SURFACE)
    node: NodeSettings = Field(default_factory=NodeSettings)

    @field_validator("node")
    @classmethod
    def _does_something(cls, value: NodeSettings, info: pydantic.ValidationInfo) -> NodeSettings:
        store, web = info.data.get("store"), info.data.get("web")
        if set(value.roles) != {"runner", "runtime"} and store is not None and not store.is_shared:
            raise ValueError("roles leaves one out, which needs a shared store: set [store] url")
        if not value.roles and web is not None and not web.enabled:
            raise ValueError("roles names neither runner nor runtime, and [web] is not enabled: nothing would run")
        if value.tags and "runtime" not in value.roles:
            raise ValueError("tags need the role runtime: only a runtime begins turns")
        return value

    @property
    def daemons(self) -> frozenset[str]:
        """The daemons of this machine: the daemons of its roles, and the daemons that its other processes need."""
        wanted = {f"{'task' if role == 'runner' else 'agent'}-{role}" for role in self.node.roles}
        return frozenset(wanted.union(*(one.asks for one in self.processes)))

    @property
    def processes(self) -> tuple[Process, ...]:
        return tuple(one for one in processes() if getattr(self, one.name).enabled)

    @property
    def common(self) -> dict[str, dict[str, Any]]:
        """The sections that must be equal on all machines that share a store."""
        said = self.model_dump(mode="json", include=_COMMON)
        return {f"config [{section}]": said[section] for section in sorted(said)}

    @property
    def kept(self) -> HistorySettings:
        """The time for which the runtime keeps finished turns: at least as long as the ledger may name a turn."""
        least = max(self.history.keep_turns, self.scheduler.keep_history) if self.history.keep_turns else 0.0
        return self.history.model_copy(update={"keep_turns": least})

    @property
    def default_graph(self) -> str:
        """The graph of turns that name no graph: the graph of `agent0`, or else `default`, our own agent."""
        graph = self.agents[FIRST_AGENT].graph if FIRST_AGENT in self.agents else ""
        return graph.rpartition(":")[2] or "default"


_COMMON = {"agents", "assistants", "model", "categories", "memory", "scheduler", "approvals", "history", "queues"}


@contextlib.contextmanager
def _without_plugins() -> Iterator[None]:
    with _READING:  # two threads would restore each other's values
        before = os.environ.get(_NO_PLUGINS)
        os.environ[_NO_PLUGINS] = "1"
        try:
            yield
        finally:
            os.environ.pop(_NO_PLUGINS, None)
            if before is not None:
                os.environ[_NO_PLUGINS] = before


def load_settings(home: Home) -> Settings:
    """Read the home's `config.toml`. If there is no file, return the defaults."""
    with _without_plugins():
        try:
            file = read_toml(home.config)
        except NotFound:
            return Settings()
        settings = file.validate(Settings)
    if settings.store.is_shared:
        take_server_keys(home)
    return settings


def take_server_keys(home: Home) -> None:
    """Copy PG… variables from `<home>/.env` to the environment, unless they are set.

    PostgreSQL's driver reads them there. Raises InvalidInput if other users can read the file.
    """
    if not home.environment.exists():
        return
    home.check_keys()
    dotenv = importlib.import_module("dotenv")  # import it here, because most homes have no shared store
    for key, value in dotenv.dotenv_values(home.environment, interpolate=False).items():
        if key.startswith("PG") and value is not None:
            os.environ.setdefault(key, value)


def staffed(settings: Settings, home: Home) -> Settings:
    """Return the settings with the number of workers from the last `turnkeeper up N`, if there is one.

    Raises:
        InvalidInput: the file does not contain a number of workers.
    """
    count = workers_asked_for(home)
    if count is None:
        return settings
    first = settings.agents.get(FIRST_AGENT, AgentSettings())
    return settings.model_copy(
        update={"agents": {**settings.agents, FIRST_AGENT: first.model_copy(update={"workers": count})}}
    )


def workers_asked_for(home: Home) -> int | None:
    """Return the number of workers from the last `turnkeeper up N`. None if there was none. Raises InvalidInput."""
    try:
        text = home.workers.read_text(encoding="ascii", errors="replace").strip()
    except FileNotFoundError:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 4 and int(text) <= MOST_WORKERS):
        raise InvalidInput("is not a number of workers", where=str(home.workers), hint="set it with: turnkeeper up N")
    return int(text)


def effective(settings: Settings, home: Home) -> Iterator[tuple[str, object, str]]:
    """Yield (key, value, source) for every setting. The source is a file of the home or `default`."""
    by_command = f"agents.{FIRST_AGENT}.workers" if workers_asked_for(home) is not None else ""
    for section in type(settings).model_fields:
        value = getattr(settings, section)
        parts = value.items() if isinstance(value, dict) else [("", value)]
        for name, part in parts:
            prefix = f"{section}.{name}" if name else section
            if isinstance(part, str):
                yield prefix, part, str(home.config)
                continue
            for key in type(part).model_fields:
                stated = key in part.model_fields_set and (name or section in settings.model_fields_set)
                source = str(home.config) if stated else "default"
                place = str(home.workers) if f"{prefix}.{key}" == by_command else source
                yield f"{prefix}.{key}", getattr(part, key), place
