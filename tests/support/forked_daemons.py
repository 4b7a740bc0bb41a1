"""The real programs, forked from a process that has imported everything and started nothing, to save start-up time.

`python -m tests.support.forked_daemons` reads a JSON object a line and answers each with one. A forked supervisor or
command forks its own children, so daemons have the same parents as when installed. Only a planned restart, and the
processes that it starts, run as installed: it calls daemons before it starts one, and after such calls a process must
not be forked.

A fork that is asked with arguments (`program`) is a program with the streams, the folder and the variables of whoever
runs it, for example at a terminal. What a fork starts by `subprocess.run` is another fork of the template, unless the
variable `STARTS_INSTALLED` is set; `starting_forks` does the same in a test's own process.
"""

import atexit
import gc
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.prebuilt import ToolNode

from agent_runtime.permissions import categories
from task_runner.timetable.timetable import zone_names
from tests.support import forked, templates
from tests.support.forked import Asked, Template
from turnkeeper.clock import SystemClock
from turnkeeper.config.build import build
from turnkeeper.config.home import Home
from turnkeeper.config.settings import load_settings
from turnkeeper.config.surfaces import offered, surfaces
from turnkeeper.constellation.supervisor import daemons
from turnkeeper.rpc import process
from turnkeeper.rpc.channel import Caller, is_serving

ROOT = Path(__file__).parents[2]
RUNTIME, RUNNER, WEB = "agent-runtime", "task-runner", "web"
PACKAGES = {"task-runner": "task_runner", "agent-runtime": "agent_runtime", "turnkeeper": "turnkeeper.constellation"}
# The packages' names identify each daemon, which is found by its command line.
PROGRAM = ["tests.support.forked_daemons", *(daemon.package for daemon in (*daemons.EVERY, daemons.SUPERVISOR))]
PATIENCE_S = 60.0
STARTS_INSTALLED = "TURNKEEPER_TEST_STARTS_INSTALLED"  # a variable: what a program starts is no fork
BEAT_S = 0.5  # seconds between a daemon's beats, which repair removed files; ten times as long when installed
CLOCK = SystemClock()
spawn, run = daemons.spawn, subprocess.run
_templates: list[Template] = []


def prepare() -> None:
    """Import and create everything that the programs share, in a folder that no test removes."""
    os.chdir(ROOT)
    daemons.spawn = fork_daemon  # before the modules that import it by name
    runtime = import_module("agent_runtime.daemon.__main__")
    os.environ.update(runtime.ENVIRONMENT)
    for name in (
        *MAINS.values(),
        "agent_runtime.daemon.assembly",
        *(f"{package}.cli" for package in PACKAGES.values()),
    ):
        import_module(name)  # import here, once, everything that a program imports
    extras = (
        "langchain_openai",
        "turnkeeper.gateway.mcp.transports",
        "psycopg_pool",
        "sqlalchemy.dialects.postgresql.psycopg",
    )
    for name in extras:  # loaded when they are used
        with suppress(ImportError):
            import_module(name)
    _import_surfaces()
    templates.use()
    templates.make()
    make_tools()
    _work()
    _read_settings()
    build()  # asks git
    gc.freeze()


def _import_surfaces() -> None:
    """Import what programs take from surfaces when they need it, but for the web's."""
    for surface in surfaces().values():
        targets = (
            *surface.offers.values(),
            *surface.observers.values(),
            *(one.target for one in surface.commands.values()),
        )
        for module in {target.partition(":")[0] for target in targets}:
            if not module.startswith("turnkeeper.gateway"):
                with suppress(ModuleNotFoundError):  # of an extra that is absent: a program that needs it says so
                    import_module(module)


def serve() -> None:
    """Fork programs and kill them, as standard input requests."""
    alive: set[int] = set()
    codes: dict[int, int] = {}  # the exit codes of those that ended
    for line in sys.stdin:
        for pid in [*alive]:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                alive.remove(pid)
                codes[pid] = os.waitstatus_to_exitcode(status)
        asked = json.loads(line)
        answer: Any = None
        if asked["do"] == "run":
            answer = _run(asked["argv"], asked["environ"])
        elif asked["do"] == "start":
            environ = dict(os.environ) | asked["environ"]
            answer = _fork_daemon(asked["which"], asked["home"], asked["log"], environ)
            alive.add(answer)
        elif asked["do"] == "poll":
            answer = codes.get(asked["pid"])
        elif asked["do"] == "kill" and asked["pid"] in alive:
            os.kill(asked["pid"], asked["signal"])
            codes[asked["pid"]] = os.waitstatus_to_exitcode(os.waitpid(asked["pid"], 0)[1])
            alive.remove(asked["pid"])
        sys.stdout.write(f"{json.dumps(answer)}\n")
        sys.stdout.flush()
    for pid in alive:  # the requester is gone
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _work() -> None:
    """Let both daemons work for a minute of simulated time, so that each fork has compiled its statements."""
    world, script = import_module("tests.simulation.world"), import_module("tests.simulation.script")
    world.run(replace(script.drawn(0, minutes=0.8, between_s=5.0, works_s=40.0), faults=()))


def make_tools() -> None:
    """Build the schemas of the tools once, because that takes most of a runtime's start-up time."""
    made = [*offered("folder-tools", None, ".", None)]
    for module in ("workspace", "agents", "restart", "loops"):
        for name, make in vars(import_module(f"agent_runtime.tools.{module}")).items():
            if name.endswith("_tools") and make.__module__.endswith(module):
                made += make(None)
    ToolNode([spec.tool for spec in made])
    for spec in made:
        convert_to_openai_tool(spec.tool)


def _read_settings() -> None:
    """Load the settings, the shipped categories and the names of time zones once, to fill their caches."""
    with tempfile.TemporaryDirectory(prefix="tk-") as folder:
        home = Home(root=Path(folder))
        home.config.write_text("")
        categories.Categories(home, load_settings(home))
    zone_names()


MAINS = {
    RUNTIME: "agent_runtime.daemon.__main__",
    RUNNER: "task_runner.daemon.__main__",
    daemons.SUPERVISOR.name: "turnkeeper.constellation.supervisor.__main__",
    **{daemon.name: f"{daemon.package}.__main__" for daemon in daemons.OPTIONAL},
}


def fork_daemon(home: Home, daemon: daemons.Daemon, environ: Mapping[str, str]) -> int:
    """Replace the function that starts daemons."""
    if daemon.name not in MAINS or STARTS_INSTALLED in environ:
        return spawn(home, daemon, environ)
    return _fork_daemon(daemon.name, str(home.root), str(daemons.log_of(home, daemon)), environ)


def _fork_daemon(which: str, root: str, log: str, environ: Mapping[str, str]) -> int:
    def main() -> int:
        process.EVERY_S = BEAT_S
        os.setsid()
        os.umask(0o077)
        argv = ["--home", root] if which == RUNTIME else [root]
        code: int = import_module(MAINS[which]).main(argv)
        return code

    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        return _fork(main, environ, output, output)
    finally:
        os.close(output)


def _run(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[int, str, str]:
    """Run a command in a child process. Return its exit code and its output on both streams."""
    said = [os.memfd_create(name) for name in ("out", "err")]
    pid = _fork(lambda: _be_command(*argv), environ, *said)
    ended = os.pidfd_open(pid)
    if not select.select([ended], [], [], PATIENCE_S)[0]:
        os.kill(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(ended)
    printed = []
    for descriptor in said:
        with os.fdopen(descriptor, "rb") as file:
            file.seek(0)
            printed.append(file.read().decode())
    return (code, *printed)


def _be_command(program: str, *rest: str) -> int:
    sys.argv = [program, *rest]
    try:
        code = import_module("turnkeeper.console" if program == "turnkeeper" else f"{PACKAGES[program]}.cli").main()
    except SystemExit as done:
        code = done.code
    return int(code or 0)


MODULES = {package: partial(_be_command, program) for program, package in PACKAGES.items()} | {
    "agent_runtime.daemon": lambda *argv: import_module(MAINS[RUNTIME]).main(
        [*argv]
    )  # with which commands check a start
}


def _be_asked(asked: Asked) -> None:
    """Be a program until it ends, with the streams, folder and variables of the process that represents it."""
    code, (module, *argv) = 1, asked.argv
    if STARTS_INSTALLED not in asked.environ:
        subprocess.run = _runs_forks(lambda package: [*forked.command(asked.path), package])
    try:
        os.chdir(asked.folder)
        os.environ.clear()
        os.environ.update(asked.environ)
        import_module("time").tzset()
        forked.open_streams()
        code = MODULES[module](*argv) if module in MODULES else import_module(module).main(argv)
    finally:
        if sys.exc_info()[0]:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        asked.end(code)


def _runs_forks(command: Callable[[str], list[str]]) -> Callable[..., Any]:
    """Return `subprocess.run`, but a program of ours runs by the `command` for its package."""

    def run_forked(argv: Any, **how: Any) -> Any:
        if [*argv[:3]] == [sys.executable, "-P", "-m"] and argv[3] in MODULES:
            argv = [*command(argv[3]), *argv[4:]]
        return run(argv, **how)

    return run_forked


@contextmanager
def starting_forks() -> Iterator[None]:
    """Run the programs of ours that this process starts in forks."""
    subprocess.run = _runs_forks(program)
    try:
        yield
    finally:
        subprocess.run = run


def _fork(main: Callable[[], int], environ: Mapping[str, str], out: int, err: int) -> int:
    """Call `main` in a child process that keeps only the imports of this one."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.clear()
        os.environ.update(environ)
        for descriptor, target in ((os.open(os.devnull, os.O_RDONLY), 0), (out, 1), (err, 2)):
            os.dup2(descriptor, target)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        code = main()
    finally:
        if sys.exc_info()[0]:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class ForkServer:
    """The process that forks daemons, for any number of homes."""

    def __init__(self) -> None:
        argv = _template().fork
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def start(self, home: Home, which: str, log: Path, environ: Mapping[str, str]) -> int:
        """Start a daemon and return its pid, perhaps before it answers.

        Args:
            home: the home that it serves.
            which: `agent-runtime`, `task-runner` or `web`.
            log: the file to which its output is appended.
            environ: variables beside those of this process.
        """
        pid: int = self._ask(do="start", which=which, home=str(home.root), log=str(log), environ=dict(environ))
        return pid

    def run(self, argv: Sequence[str], environ: Mapping[str, str]) -> "CompletedProcess[str]":
        """Run a command in a child process with exactly these variables. Return its result, whatever the exit code."""
        return CompletedProcess(argv, *self._ask(do="run", argv=list(argv), environ=dict(environ)))

    def kill(self, pid: int, number: int = signal.SIGKILL) -> None:
        """Kill a daemon with SIGKILL, or send another signal, and wait until it is gone."""
        self._ask(do="kill", pid=pid, signal=number)

    def poll(self, pid: int) -> int | None:
        """Return the exit code of a daemon that was started. None while it runs."""
        code: int | None = self._ask(do="poll", pid=pid)
        return code

    def wait(self) -> None:
        """Wait until the process is prepared. Later forks take a few hundredths of a second."""
        self._ask(do="wait")

    def close(self) -> None:
        self._process.communicate(timeout=PATIENCE_S)

    def _ask(self, **asked: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps(asked)}\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


def use_template() -> None:
    """Fork the fork servers of this process and of its forks from one prepared process."""
    _templates.append(Template(*PROGRAM))


def program(package: str) -> list[str]:
    """Return a command line that runs a program of ours in a fork, named as after `python -P -m`, or a module's `main`."""
    return [*_template().fork, package]


def _template() -> Template:
    if not _templates:
        use_template()
        atexit.register(_templates[0].close)
    return _templates[0]


@cache
def fork_server() -> ForkServer:
    """Return the fork server of this process."""
    made = ForkServer()
    atexit.register(made.close)
    return made


class Forked:
    """A daemon in a fork, used like `subprocess.Popen`.

    Attributes:
        pid: the process.
    """

    def __init__(self, home: Home, which: str, log: Path, environ: Mapping[str, str]) -> None:
        """Start a daemon, as :meth:`ForkServer.start` does."""
        self.pid = fork_server().start(home, which, log, environ)

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal. None while the daemon runs."""
        return fork_server().poll(self.pid)

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """Wait until the daemon has ended. Return its exit code."""
        assert CLOCK.poll(lambda: self.poll() is not None, timeout_s=timeout_s, every_s=0.02), "it does not end"
        code = self.poll()
        assert code is not None
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal. Do nothing if the daemon has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


class Nursery:
    """The two daemons of one home."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self._pids: dict[str, int] = {}
        self.runtime = Caller(home)
        self.runner = Caller(home)

    def start(self, which: str) -> None:
        """Start a daemon, and wait until it answers."""
        self._pids[which] = fork_server().start(self.home, which, self.home.root / f"{which}.stderr", {})
        deadline = CLOCK.monotonic() + PATIENCE_S
        while not is_serving(self.home.socket(which)):
            assert CLOCK.monotonic() < deadline, f"{which} does not answer: {self.errors(which)}"
            CLOCK.block(0.02)

    def kill(self, which: str) -> None:
        """Kill a daemon with SIGKILL, and wait until it is gone."""
        fork_server().kill(self._pids.pop(which))

    def errors(self, which: str) -> str:
        path = self.home.root / f"{which}.stderr"
        return path.read_text()[-2000:] if path.exists() else ""

    def close(self) -> None:
        try:
            for which in list(self._pids):
                self.kill(which)
        finally:
            self.runtime.close()
            self.runner.close()


if __name__ == "__main__":
    prepare()
    if (asked := forked.serve(int(sys.argv[-1]))).argv:
        _be_asked(asked)
    subprocess.run = _runs_forks(lambda package: [*forked.command(asked.path), package])
    serve()
