"""The workers of pytest-xdist, forked from a process that has collected the tests, so that this is done once.

`python -m tests.support.forked_workers ARG... DESCRIPTOR` collects as pytest does with these arguments. Each fork runs
the tests that were collected. If something could not be collected, each fork collects by itself, and reports why.
"""

import os
import sys
from typing import Any

import pytest

from tests.support.databases import MODULES
from tests.support.forked import serve


class Collection:
    """A plugin that keeps the session of the process that collects, for its forks.

    pytest keeps a module whose import fails in `sys.modules`, and a second collection takes it for a module without
    tests. So such a module is removed, and the forks import it again.
    """

    def __init__(self) -> None:
        self._session: Any = None

    def pytest_exception_interact(self, node: pytest.Collector) -> None:
        for name, module in [*sys.modules.items()]:
            if getattr(module, "__file__", None) in {str(node.path), str(node.path / "conftest.py")}:
                del sys.modules[name]

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus == pytest.ExitCode.OK:
            self._session = session

    def use(self) -> None:
        """Make the next session of this process the kept one. Do nothing if the collection failed."""
        if self._session is not None:
            pytest.Session.from_config = self._adopt  # type: ignore[method-assign, assignment]

    def _adopt(self, config: pytest.Config) -> pytest.Session:
        """Return the kept session as if it had been made with the configuration of a worker."""
        session = self._session
        config.stash[MODULES] = session.config.stash[MODULES]
        for node in {node for item in session.items for node in item.listchain()}:
            node.config = config
        config.pluginmanager.register(session, name="session")
        fixtures = session._fixturemanager

        def collected() -> Any:
            session._fixturemanager, fixtures.config = fixtures, config  # a start of a session makes an empty manager
            config.hook.pytest_collection_finish(session=session)
            return session.items

        session.perform_collect = collected
        return session  # type: ignore[no-any-return]


if __name__ == "__main__":
    *argv, at = sys.argv[1:]
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, sys.stdout.fileno())  # each worker reports collection errors itself
    collection = Collection()
    # Without -s, an imported module could keep one of pytest's streams, which is then closed.
    pytest.main([*argv, "-n", "0", "--collect-only", "-qq", "-s"], plugins=[collection])
    if "tests.support.forked_daemons" in sys.modules:  # some of them start daemons
        sys.modules["tests.support.forked_daemons"].use_template()
    serve(int(at))
    collection.use()
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - it is open as long as the worker
    exec(eval(sys.stdin.readline()))  # as pytest-xdist does in a new interpreter
