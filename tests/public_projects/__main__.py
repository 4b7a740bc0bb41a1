"""Runs public LangGraph projects, as they are, on Turnkeeper and records what was seen.

    python -m tests.public_projects run --checkouts DIR --work DIR [NAME …]
    python -m tests.public_projects table

`--checkouts` holds one git clone for each repository of projects.toml, as OWNER+NAME or NAME. Each project is laid out at its
pinned commit below `--work`, which also gets a virtualenv for each set of requirements and a home for each row; take a short
path, as sockets are in the homes. Nothing is fetched except packages by pip. `table` writes the page from results.json.
"""

import argparse
import json
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from hashlib import sha256
from pathlib import Path
from typing import Any

from tests.public_projects.report import HERE, PAGE, RESULTS, page_with, read_results, summary
from turnkeeper.clock import SystemClock

ROOT = HERE.parents[1]
_DRIVEN = ("name", "reference", "payload", "calls", "values", "last", "kill", "answers", "environ", "options")
_LONGEST_S = 900
with (HERE / "projects.toml").open("rb") as _file:
    PLAN = tomllib.load(_file)


def lay_out(row: Mapping[str, Any], checkouts: Path, work: Path) -> Path:
    """Return the folder of the project at its pinned commit; the small graphs around a package are our own."""
    if "repo" not in row:
        return HERE / "graphs"
    place = work / "src" / f"{row['repo'].split('/')[1]}-{row['commit'][:10]}{row.get('part', '').replace('/', '-')}"
    if not place.exists():
        owner, name = row["repo"].split("/")
        clone = next(path for path in (checkouts / f"{owner}+{name}", checkouts / name) if path.exists())
        git = clone / "repo" if (clone / "repo").exists() else clone
        place.mkdir(parents=True)
        tree = (
            f"{row['commit']}:{row['part']}" if "part" in row else row["commit"]
        )  # of a part alone, where that is enough
        subprocess.run(f"git -C {git} archive {tree} | tar -x -C {place}", shell=True, check=True)
    return place / row.get("folder", ".")


def virtualenv(row: Mapping[str, Any], work: Path) -> Path:
    """Return the interpreter of a virtualenv with this checkout of Turnkeeper and what the row requires."""
    wanted = [f"{ROOT}[openai,anthropic]", *sorted(row.get("requires", PLAN["requires"]))]
    place = work / "venv" / sha256(json.dumps(wanted).encode()).hexdigest()[:10]
    python = place / "bin" / "python"
    if not (place / ".ready").exists():
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", "-e", *wanted], check=True)
        (place / ".ready").touch()
    return python


def drive(row: Mapping[str, Any], python: Path, project: Path, work: Path) -> dict[str, Any] | None:
    """Run one row in a process of its virtualenv; return the entry of results.json."""
    given = json.dumps({key: row[key] for key in _DRIVEN if key in row})
    home = work / "home" / row["name"]
    subprocess.run(["rm", "-rf", str(home)], check=True)
    home.parent.mkdir(exist_ok=True)
    log = work / f"{row['name']}.log"
    with log.open("w") as errors:
        argv = [str(python), "-m", "tests.public_projects.drive", given, str(project), str(home.parent)]
        done = subprocess.run(
            argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True, timeout=_LONGEST_S, check=False
        )
    if done.returncode:
        print(f"{row['name']}: {log.read_text()[-2000:]}", flush=True)  # noqa: T201
        return None
    seen = json.loads(done.stdout.splitlines()[-1])
    (work / f"{row['name']}.json").write_text(json.dumps(seen, indent=1))
    return {"name": row["name"], "title": row.get("title", row["name"]), "version": version(row, seen)} | {
        "date": str(SystemClock().now().date()), "packages": seen["packages"], "seen": summary(seen),
    }  # fmt: skip


def version(row: Mapping[str, Any], seen: Mapping[str, Any]) -> str:
    if "repo" in row:
        return f"{row['repo']}@{row['commit'][:7]}"
    return ", ".join(f"{name} {seen['packages'][name]}" for name in row["packages"])


def record(entry: Mapping[str, Any]) -> None:
    kept = [one for one in read_results() if one["name"] != entry["name"]] if RESULTS.exists() else []
    results = sorted([*kept, entry], key=lambda one: str(one["name"]))
    RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")


def run(names: list[str], checkouts: Path, work: Path, at_once: int) -> None:
    rows = [row for row in PLAN["row"] if not names or row["name"] in names]
    work.mkdir(parents=True, exist_ok=True)
    ready = [(row, virtualenv(row, work), lay_out(row, checkouts, work)) for row in rows]
    with ThreadPoolExecutor(at_once) as pool:
        for done in as_completed([pool.submit(drive, *one, work) for one in ready]):
            entry = done.result()
            if entry is not None:
                record(entry)
                print(entry["name"], json.dumps(entry["seen"], indent=1), flush=True)  # noqa: T201


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.public_projects", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("--checkouts", type=Path, required=True)
    running.add_argument("--work", type=Path, required=True)
    running.add_argument("--at-once", type=int, default=2)
    running.add_argument("names", nargs="*")
    commands.add_parser("table")
    given = parser.parse_args()
    if given.command == "run":
        run(given.names, given.checkouts.resolve(), given.work.resolve(), given.at_once)
    PAGE.write_text(page_with(PAGE.read_text(), read_results(), PLAN["not_run"]))


if __name__ == "__main__":
    main()
