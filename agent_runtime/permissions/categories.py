"""Permission categories: the shipped ones, the author's own, and the errors in their files.

A category is a TOML file with the same name. Files of the author in `<home>/categories/` override shipped files of the
same name. A file that is not a valid category is listed with its problem and refused. It never falls back to the
shipped category that it overrides, because the shipped category might grant more.
"""

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

import agent_runtime
from agent_runtime.model.turn import Category, Outside
from agent_runtime.permissions.judge import OWN_PART, SCOPES, TIERS, WRITES, known_scope
from turnkeeper.config.home import Home
from turnkeeper.config.models import full_name
from turnkeeper.config.settings import Settings
from turnkeeper.config.toml_file import TomlFile, read_text
from turnkeeper.errors import InvalidInput, NotFound, TurnkeeperError

MOST_FILES = 500
Source = Literal["shipped", "author"]


def _scope(value: str) -> str:
    if not known_scope(value):
        of_authors = "tool:<name>, tools:<name> and mcp:<server>.<tool>"
        raise ValueError(f"unknown scope {value!r}; known are {', '.join(SCOPES)}, {of_authors}")
    return value


def _one_of(what: str, known: tuple[str, ...]) -> AfterValidator:
    def check(value: str) -> str:
        if value not in known:
            raise ValueError(f"unknown {what} {value!r}; known are {', '.join(known)}")
        return value

    return AfterValidator(check)


_Name = Annotated[str, StringConstraints(pattern=r"(?x)^[a-z][a-z0-9-]{0,63}$ # a letter, then up to 63 of a-z0-9-")]
_Text = Annotated[str, StringConstraints(min_length=1, max_length=256)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Scopes(_Strict):
    """The grants in a category file."""

    tools: list[Annotated[_Text, AfterValidator(_scope)]] = Field(default_factory=list)
    writes: list[Annotated[_Text, _one_of("kind of write", tuple(sorted(WRITES)))]] = Field(default_factory=list)
    memory: list[Annotated[_Text, _one_of("memory tier", (*TIERS, OWN_PART))]] = Field(default_factory=list)
    channels: list[_Text] = Field(default_factory=list)
    subagents: list[_Text] = Field(default_factory=list)
    network: list[_Text] = Field(default_factory=list)
    recurring: bool = False
    graphs: list[_Text] | None = None


class _Limits(_Strict):
    seconds: int = Field(300, ge=1, le=86_400)
    tool_calls: int = Field(50, ge=1, le=10_000)
    tokens: int = Field(200_000, ge=1, le=1_000_000_000)


class CategoryFile(_Strict):
    """The content of a category file."""

    name: _Name
    description: str = Field("", max_length=1000)
    autonomous: bool = False
    silent: bool = False
    outside: Outside = "ask"
    model: str = ""
    scopes: Scopes = Field(default_factory=Scopes)
    limits: _Limits = Field(default_factory=_Limits)


@dataclass(frozen=True, kw_only=True)
class CategoryEntry:
    """One category as found in its file.

    Attributes:
        category: the grants, `autonomous` only if the workspace allows it too; None if the category is unusable.
        overrides_shipped: True if the author's file replaces a shipped one.
        declared_autonomous: the value in the file, even if the workspace does not allow autonomy.
        problem: the reason why the category cannot be used; empty if it can.
    """

    name: str
    category: Category | None
    source: Source
    path: str
    overrides_shipped: bool = False
    declared_autonomous: bool = False
    problem: str = ""


class Categories:
    """The categories of one home: the shipped ones and the author's.

    An edit by the author takes effect at the next call, even if the file's times stay the same. A bad file is listed
    with its problem and raises no error.
    """

    def __init__(self, home: Home, settings: Settings) -> None:
        self._folder = home.categories
        self._allowed = frozenset(settings.categories.autonomous_allowed)
        self._default_graph = settings.default_graph
        self._shipped = {file.name: self._entry(path, file, "shipped") for path, file in _read_shipped()}
        self._known: dict[str, tuple[bytes, CategoryEntry]] = {}  # by name: the text of the file, and its category

    def get(self, name: str) -> Category:
        """Return a category that can be used now.

        Raises:
            NotFound: no category has that name; the hint lists the known names.
            InvalidInput: the category's file cannot be used; `where` is the file, line and key.
        """
        entry = self._look(name) if name.isprintable() and "/" not in name else None
        if entry is None:
            known = ", ".join(one.name for one in self.all())
            raise NotFound(f"no category {name[:80]!r}", where="category", hint=f"use one of: {known}")
        if entry.category is None:
            hint = "run: turnkeeper categories check"
            raise InvalidInput(f"category {name} cannot be used: {entry.problem}", where="category", hint=hint)
        return entry.category

    def require_all(self) -> None:
        """Raise InvalidInput if any category cannot be used, as :meth:`get` does."""
        for entry in self.all():
            self.get(entry.name)

    def all(self) -> list[CategoryEntry]:
        """Return all categories by name, including those that cannot be used."""
        names = {path.stem for path in self._paths()} | self._shipped.keys()
        return [entry for name in sorted(names) if (entry := self._look(name)) is not None]

    def _look(self, name: str) -> CategoryEntry | None:
        """Return a category from its current file. Compare the text, because a file's times can be set back."""
        known = self._known.get(name)
        if known is not None and _reads(f"{self._folder}/{name}.toml", known[0]):
            return known[1]
        path = self._folder / f"{name}.toml"
        if _is_missing(path):
            return self._shipped.get(name)
        try:
            text = read_text(path)
        except NotFound:
            return self._shipped.get(name)
        except InvalidInput as error:
            return self._broken(path, str(error))
        self._known[name] = (text.encode(), self._read_own(path, text))
        return self._known[name][1]

    def _paths(self) -> list[Path]:
        # `glob` would report an unreadable folder as an empty one.
        lying = self._folder.iterdir() if self._folder.is_dir() else ()
        found = sorted(path for path in lying if path.suffix == ".toml")
        if len(found) > MOST_FILES:
            raise InvalidInput(f"{len(found)} files; the limit is {MOST_FILES}", where=str(self._folder))
        return found

    def _read_own(self, path: Path, text: str) -> CategoryEntry:
        try:
            return self._entry(path, read_file(path, text), "author")
        except TurnkeeperError as error:
            return self._broken(path, str(error))

    def _broken(self, path: Path, problem: str) -> CategoryEntry:
        return CategoryEntry(
            name=path.stem,
            category=None,
            source="author",
            path=str(path),
            overrides_shipped=path.stem in self._shipped,
            problem=problem,
        )

    def _entry(self, path: Path, file: CategoryFile, source: Source) -> CategoryEntry:
        autonomous = file.autonomous and file.name in self._allowed
        return CategoryEntry(
            name=file.name,
            category=to_category(file, autonomous=autonomous, default_graph=self._default_graph),
            source=source,
            path=str(path),
            overrides_shipped=source == "author" and file.name in self._shipped,
            declared_autonomous=file.autonomous,
        )


@cache
def _read_shipped() -> list[tuple[Path, CategoryFile]]:
    """Read the installed categories, once per process, because they are the same for each home."""
    package = Path(agent_runtime.__file__).parent
    places = package / "categories", package.parent / "categories"  # in an installed wheel, and in a checkout
    folder = next(place for place in places if place.is_dir())
    return [(path, TomlFile(path, path.read_text("utf-8")).validate(CategoryFile)) for path in folder.glob("*.toml")]


def read_file(path: Path, text: str) -> CategoryFile:
    """Parse the text of a category file. Raises InvalidInput with file, line and key."""
    toml = TomlFile(path, text)
    file = toml.validate(CategoryFile)
    if file.name != path.stem:
        hint = f"rename the file to {file.name}.toml"
        raise InvalidInput(misnamed(file, path), where=toml.where(("name",)), hint=hint)
    return file


def misnamed(file: CategoryFile, path: Path) -> str:
    """Return the error for a file whose name differs from its category's name."""
    return f"the name {file.name!r} and the file's name {path.name!r} differ"


def to_category(file: CategoryFile, *, autonomous: bool, default_graph: str) -> Category:
    """Return the category of a file. An empty name of a graph means the default graph. Raises InvalidInput."""
    grants: dict[str, Any] = {
        name: frozenset(value) if isinstance(value, list) else value
        for name, value in file.scopes.model_dump(exclude={"graphs"}).items()
    }
    named = [default_graph] if file.scopes.graphs is None else file.scopes.graphs
    grants["graphs"] = frozenset("" if graph == default_graph else graph for graph in named)
    own = file.model_dump(exclude={"scopes", "limits"}) | {"model": file.model and full_name(file.model)}
    return Category(**own | {"autonomous": autonomous}, **grants, **file.limits.model_dump())


def _reads(path: str, text: bytes) -> bool:
    """Return whether a file contains this text now. Each tool call runs this check, so it must be fast."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.read(descriptor, len(text) + 1) == text
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _is_missing(path: Path) -> bool:
    try:
        path.lstat()
    except OSError as error:
        return isinstance(error, FileNotFoundError)
    return False
