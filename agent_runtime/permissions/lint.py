"""The check of a category file for `turnkeeper categories check`: errors, contradictions, and grants without effect."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from agent_runtime.model.turn import Category
from agent_runtime.permissions.categories import CategoryFile, Scopes, misnamed, read_file, to_category
from agent_runtime.permissions.judge import ANY_HOST, FOREIGN, LOOPS, SCOPES
from turnkeeper.config.models import OFFLINE, full_name
from turnkeeper.config.settings import Settings
from turnkeeper.config.toml_file import Location, read_toml
from turnkeeper.errors import InvalidInput

Level = Literal["error", "warning"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A problem that `categories check` found in a file.

    Attributes:
        level: `error` if the category cannot be used, else `warning`.
        where: the file, with line and key if known.
    """

    level: Level
    where: str
    what: str


def lint(path: Path) -> list[Finding]:
    """Check one category file. Return only errors if there are any, else warnings; an empty list if the file is fine.

    Raises:
        NotFound: the file does not exist.
    """
    try:
        toml = read_toml(path)
    except InvalidInput as error:
        return [Finding(level="error", where=error.where or str(path), what=error.what)]
    if mistakes := toml.mistakes(CategoryFile):
        return [Finding(level="error", where=one.where, what=one.what) for one in mistakes]
    file = toml.validate(CategoryFile)
    if file.name != path.stem:
        return [Finding(level="error", where=toml.where(("name",)), what=misnamed(file, path))]
    try:
        full_name(file.model or OFFLINE)
    except InvalidInput as error:
        return [Finding(level="error", where=toml.where(("model",)), what=f"{error.what}: {error.hint}")]
    return [
        Finding(level="warning", where=toml.where(at), what=what)
        for at, what in (
            *_contradictions(file),
            *_unneeded(file.scopes),
            *_unreachable(file.scopes),
            *_twice(file.scopes),
        )
    ]


def read_draft(path: Path, settings: Settings) -> tuple[Category, bool]:
    """Read a category from a file of any name. Return the category, and whether its file declares it autonomous.

    Raises:
        NotFound: the file does not exist.
        InvalidInput: the file is not a category; the error names the file, line and key.
    """
    file = read_toml(path).validate(CategoryFile)
    allowed = file.name in settings.categories.autonomous_allowed
    category = to_category(file, autonomous=file.autonomous and allowed, default_graph=settings.default_graph)
    return category, file.autonomous


def read_draft_text(path: Path, text: str, settings: Settings) -> Category:
    """Return the category that this text describes. Raises InvalidInput with file, line and key."""
    return to_category(read_file(path, text), autonomous=False, default_graph=settings.default_graph)


def _contradictions(file: CategoryFile) -> Iterator[tuple[Location, str]]:
    scopes = file.scopes
    for scope in scopes.tools:
        writes = SCOPES[scope].writes if scope in SCOPES else ""
        if writes and writes not in scopes.writes:
            yield ("scopes", "tools"), f"{scope} cannot work: `writes` lacks {writes}"
        if scope in SCOPES and SCOPES[scope].tier and not scopes.memory:
            yield ("scopes", "tools"), f"{scope} cannot work: `memory` is empty"
        if scope in SCOPES and SCOPES[scope].host and not scopes.network:
            yield ("scopes", "tools"), f"{scope} cannot work: `network` is empty"
        if scope in SCOPES and SCOPES[scope].subagent and not scopes.subagents:
            yield ("scopes", "tools"), f"{scope} cannot work: `subagents` is empty"
    if scopes.recurring and LOOPS not in scopes.tools:
        yield ("scopes", "recurring"), f"lets turns of tasks start tasks, but `tools` lacks {LOOPS}"
    if file.silent and not file.autonomous:
        yield ("silent",), "silent but not autonomous: each fire would wait for the author before it writes"
    if file.outside == "hide" and set(SCOPES) <= set(scopes.tools):
        yield ("outside",), "hides tools outside its scopes, but every tool is in scope"


def _unneeded(scopes: Scopes) -> Iterator[tuple[Location, str]]:
    rules = [SCOPES[scope] for scope in scopes.tools if scope in SCOPES]
    foreign = any(scope.startswith(FOREIGN) for scope in scopes.tools)  # the needs of authors' tools are unknown here
    for kind in scopes.writes:
        derives = kind == "derivation" and any(rule.derives for rule in rules)
        if not derives and kind not in {rule.writes for rule in rules}:
            yield ("scopes", "writes"), f"no tool in scope writes {kind}"
    needs: tuple[tuple[str, list[str], bool], ...] = (
        ("memory", scopes.memory, any(rule.tier for rule in rules)),
        ("channels", scopes.channels, any(rule.channel for rule in rules)),
        ("network", scopes.network, any(rule.host for rule in rules)),
        ("subagents", scopes.subagents, foreign or any(rule.subagent for rule in rules)),
    )
    for key, values, needed in needs:
        if values and not needed:
            yield ("scopes", key), f"no tool in scope needs {key}"


def _unreachable(scopes: Scopes) -> Iterator[tuple[Location, str]]:
    """Yield network entries that match no address. Each comparison uses the address's host in lower case."""
    for entry in scopes.network:
        if entry != ANY_HOST and (urlsplit(f"//{entry}").hostname != entry or "*" in entry):
            yield ("scopes", "network"), f"{entry!r} matches nothing: write a host such as example.org, or {ANY_HOST}"
    if ANY_HOST in scopes.network and len(scopes.network) > 1:
        yield ("scopes", "network"), f"{ANY_HOST} matches any public host, so the other hosts have no effect"


def _twice(scopes: Scopes) -> Iterator[tuple[Location, str]]:
    for key, values in scopes.model_dump(exclude={"recurring"}, exclude_none=True).items():
        for value in sorted({value for value in values if values.count(value) > 1}):
            yield ("scopes", key), f"{value} is listed twice"
