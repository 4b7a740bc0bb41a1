"""Runs the integration suite of LangGraph's SDK, unmodified, against `/lg` of a throwaway home.

    python -m tests.langgraph_suite [PYTEST_ARGS …]

`make test-services` downloads the suite. `expected.toml` names each test that is expected to fail, with the reason. The
result is 0 if exactly those fail.
"""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from xml.etree import ElementTree as ET

from tests.support.langgraph import Lg
from tests.support.machines import constellation_on, new_home
from tests.support.web import configure, serving
from turnkeeper.config.home import Home

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SUITE = ROOT / ".cache" / "langgraph-suite" / "sdist"
RESULT = ROOT / ".cache" / "langgraph-suite" / "result.xml"
TOOLS = ("tool:search", "tool:task")  # the suite's graphs call these, and its tests approve nothing
GRAPHS = ("agent", "tools_agent", "deep_agent", "factory_agent")


def grant(home: Home) -> None:
    """Write a category with which the suite's graphs run as on LangGraph's own server."""
    shipped = (ROOT / "categories" / "conversation.toml").read_text()
    granted = "".join(f'  "{tool}",\n' for tool in TOOLS)
    own = shipped.replace("[scopes]\ntools = [\n", f"[scopes]\ngraphs = {json.dumps(GRAPHS)}\ntools = [\n{granted}")
    home.categories.mkdir(exist_ok=True)
    (home.categories / "conversation.toml").write_text(own)


def run(lg: Lg, args: list[str]) -> None:
    environ = os.environ | {"LANGGRAPH_INTEGRATION_URL": lg.url, "LANGGRAPH_API_KEY": lg.keys["decide"]}
    environ["PYTHONPATH"] = str(ROOT)
    options = ["-m", "integration", "-p", "tests.langgraph_suite.plugin", "-o", "addopts=", f"--junitxml={RESULT}"]
    command = [sys.executable, "-m", "pytest", "-q", "--timeout=60", "--rootdir", str(SUITE), *options, *args]
    subprocess.run([*command, "tests/integration"], cwd=SUITE, env=environ, check=False)


def failed() -> tuple[set[str], set[str]]:
    """Return the names of all tests that ran, and of those that failed."""
    cases = list(ET.parse(RESULT).getroot().iter("testcase"))
    names = {f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}": case for case in cases}
    return {*names}, {
        name for name, case in names.items() if len(case) and case[0].tag in {"failure", "error", "skipped"}
    }


def main(args: list[str]) -> int:
    if not (SUITE.parent / ".ready").exists():
        sys.stdout.write("LangGraph's suite is not there: make test-services downloads it\n")
        return 1
    RESULT.unlink(missing_ok=True)
    graph = f"[agents.agent0]\ngraph = {json.dumps(str(SUITE / 'integration' / 'langgraph.json:agent'))}\n"
    with new_home() as home, constellation_on(None, home) as constellation:
        grant(home)
        configure(home, graph)
        constellation.start()
        with serving(home, graph) as web:
            run(Lg(constellation, web), args)
    ran, fell = failed()
    groups = tomllib.loads((HERE / "expected.toml").read_text())["failures"]
    expected = {name for group in groups for name in group["tests"]}
    new, mended = sorted(fell - expected), sorted(expected & ran - fell)
    sys.stdout.write(f"LangGraph's suite: {len(ran - fell)} of {len(ran)} pass; {len(expected)} are expected to fail\n")
    sys.stdout.writelines(f"  fails: {name}\n" for name in new)
    sys.stdout.writelines(f"  passes, so strike it: {name}\n" for name in mended)
    return int(bool(new or mended))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
