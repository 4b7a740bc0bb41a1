"""Runs the test suites of LangGraph's SDK and of aegra, unmodified, against `/lg` of a throwaway home each.

    python -m tests.langgraph_suite [sdk | aegra] [PYTEST_ARGS …]

`make test-services` downloads the suites. `expected.toml` of each names the tests that are expected to fail, with the
reasons. The result is 0 if exactly those fail.
"""

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree as ET

from tests.support.langgraph import Lg
from tests.support.machines import constellation_on, new_home
from tests.support.project import project_of
from tests.support.web import configure, serving
from turnkeeper.config.home import Home

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CACHE = ROOT / ".cache"
TOOLS = ("tool:search", "tool:task")  # the suites' graphs call these, and most tests approve nothing


@dataclass(frozen=True, kw_only=True)
class Suite:
    """A test suite of others.

    Attributes:
        place: where it is downloaded.
        project: the folder of its graphs.
        expected: the file that names the tests that are expected to fail.
        options: of pytest.
        environ: variables, in which `{url}` and `{key}` are replaced.
        settings: what `config.toml` says beside the graph.
    """

    name: str
    place: Path
    project: Path
    graphs: tuple[str, ...]
    expected: Path
    options: tuple[str, ...]
    environ: Mapping[str, str] = field(default_factory=dict)
    settings: str = ""


SDK = Suite(
    name="LangGraph's suite",
    place=CACHE / "langgraph-suite",
    project=CACHE / "langgraph-suite" / "sdist" / "integration",
    graphs=("agent", "tools_agent", "deep_agent", "factory_agent"),
    expected=HERE / "expected.toml",
    options=("-m", "integration", "-p", "tests.langgraph_suite.plugin", "tests/integration"),
    environ={"LANGGRAPH_INTEGRATION_URL": "{url}", "LANGGRAPH_API_KEY": "{key}", "PYTHONPATH": str(ROOT)},
)
_AEGRA = CACHE / "aegra-suite"
AEGRA = Suite(
    name="aegra's suite",
    place=_AEGRA,
    project=HERE / "aegra",
    graphs=("agent", "agent_hitl", "subgraph_agent", "subgraph_hitl_agent"),
    expected=HERE / "aegra" / "expected.toml",
    # The fixtures beside its end-to-end tests import the whole of aegra's server.
    options=("-p", "aegra_plugin", "--confcutdir", "tests/e2e", "tests/e2e"),
    environ={
        "SERVER_URL": "{url}",
        "SUITE_KEY": "{key}",
        "PYTHONPATH": f"{HERE / 'aegra'}:{_AEGRA / 'sdist' / 'packages'}",
    },
    settings="[project]\nenabled = true\n",
)
SUITES = {"sdk": SDK, "aegra": AEGRA}


def grant(home: Home, suite: Suite) -> None:
    """Write a category with which the suite's graphs run as on LangGraph's own server."""
    shipped = (ROOT / "categories" / "conversation.toml").read_text()
    granted = "".join(f'  "{tool}",\n' for tool in TOOLS)
    own = shipped.replace(
        "[scopes]\ntools = [\n", f"[scopes]\ngraphs = {json.dumps(suite.graphs)}\ntools = [\n{granted}"
    )
    home.categories.mkdir(exist_ok=True)
    (home.categories / "conversation.toml").write_text(own)


def run(suite: Suite, lg: Lg, args: list[str]) -> None:
    place = suite.place / "sdist"
    told = {name: value.format(url=lg.url, key=lg.keys["decide"]) for name, value in suite.environ.items()}
    options = ["-o", "addopts=", f"--junitxml={suite.place / 'result.xml'}", "--rootdir", str(place)]
    command = [sys.executable, "-m", "pytest", "-q", "--timeout=60", *options, *suite.options, *args]
    subprocess.run(command, cwd=place, env=os.environ | told, check=False)


def failed(suite: Suite) -> tuple[set[str], set[str]]:
    """Return the names of all tests that ran, and of those that failed."""
    cases = list(ET.parse(suite.place / "result.xml").getroot().iter("testcase"))
    names = {f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}": case for case in cases}
    return {*names}, {
        name for name, case in names.items() if len(case) and case[0].tag in {"failure", "error", "skipped"}
    }


def differs(suite: Suite, args: list[str]) -> bool:
    """Run a suite. Return True if other tests fail than expected, or if it is not there."""
    if not (suite.place / ".ready").exists():
        sys.stdout.write(f"{suite.name} is not there: make test-services downloads it\n")
        return True
    (suite.place / "result.xml").unlink(missing_ok=True)
    graph = f"[agents.agent0]\ngraph = {json.dumps(str(suite.project / 'langgraph.json:agent'))}\n"
    with new_home() as home, constellation_on(None, home) as constellation:
        grant(home, suite)
        configure(home, graph)
        constellation.start()
        with serving(home, graph + suite.settings) as web, project_of(home, is_served=bool(suite.settings)):
            lg = Lg(constellation, web)
            lg.http.close()
            run(suite, lg, args)
    ran, fell = failed(suite)
    groups = tomllib.loads(suite.expected.read_text())["failures"]
    expected = {name for group in groups for name in group["tests"]}
    new, mended = sorted(fell - expected), sorted(expected & ran - fell)
    sys.stdout.write(f"{suite.name}: {len(ran - fell)} of {len(ran)} pass; {len(expected)} are expected to fail\n")
    sys.stdout.writelines(f"  fails: {name}\n" for name in new)
    sys.stdout.writelines(f"  passes, so strike it: {name}\n" for name in mended)
    return bool(new or mended)


def main(args: list[str]) -> int:
    chosen = [SUITES[args[0]]] if args and args[0] in SUITES else [*SUITES.values()]
    found = [differs(suite, args[len(chosen) == 1 :]) for suite in chosen]
    return int(any(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
