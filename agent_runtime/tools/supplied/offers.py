"""The tools that the author supplies: the offers of a source, the author's acceptance, and present problems.

A source is an MCP server or a Python file. Only plain data passes between a source and the runtime: JSON and texts. So
a source can move into a separate process.

The author did not write the descriptions of a server's tools, so the author accepts the tools before a model sees them.
The file `tools.json` of the home contains the tools as the author saw them.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

from turnkeeper.config.home import Home
from turnkeeper.errors import Corrupt
from turnkeeper.storage.files import replace_whole
from turnkeeper.storage.locking import is_held

PROCESS = "agent-runtime"
LONGEST_WHY = 200


@dataclass(frozen=True, kw_only=True)
class Offered:
    """A tool as its source describes it.

    Attributes:
        scope: the scope that a category grants: `mcp:<server>.<tool>` or `tools:<function>`.
        source: the name of the server, or the path of the file.
        name: its name at the source.
        schema: the JSON schema of its arguments.
        basis: a digest of the other dependencies of a call: the server's configuration, or the function's code.
        inexact: why `basis` is valid in this process only; empty if it is valid after a restart too.
    """

    scope: str
    source: str
    name: str
    description: str
    schema: Mapping[str, Any] = field(default_factory=dict)
    basis: str = ""
    inexact: str = ""
    effect: Literal["read", "external-read", "write"] = "write"

    @property
    def model_name(self) -> str:
        """The tool's name for models. No built-in tool has a name of this form, and no two servers share one."""
        return self.name if self.scope.startswith("tools:") else f"mcp__{self.source}__{self.name}"

    @property
    def content(self) -> str:
        """A digest of everything that an approval is bound to."""
        return digest_of([self.scope, self.description, self.schema, self.basis])

    def changed(self, now: "Offered | None") -> str:
        """Return how the source's present description differs from this accepted one; empty if both are equal."""
        if now is None:
            return "its source no longer offers it"
        if now.content == self.content:
            return ""
        parts = ("description", "schema")
        what = [f"its {part}" for part in parts if getattr(now, part) != getattr(self, part)]
        return f"{' and '.join(what) or 'the configuration of its server'} changed since you accepted it"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer of a call. `ok` is False if the tool reports an error."""

    text: str
    ok: bool = True


class Lost(Exception):
    """A call was sent and got no answer, so it may have had its effect."""


class Source(Protocol):
    """A supplier of tools."""

    name: str

    async def listing(self) -> Sequence[Offered]:
        """Return the tools as the source describes them now. Raises TurnkeeperError."""

    async def call(self, name: str, args: Mapping[str, Any]) -> Answer:
        """Call a tool by its name at the source. Raises Lost, or TurnkeeperError if nothing was sent."""

    async def close(self) -> None:
        """End the connection."""


def digest_of(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def read_accepted(home: Home) -> dict[str, Offered]:
    """Return the accepted tools of servers, by scope. Raises Corrupt if their file cannot be read."""
    path = home.root / "tools.json"
    try:
        found = [Offered(**one) for one in json.loads(path.read_text("utf-8"))["accepted"]]
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError) as error:
        hint = "move it away, then accept the tools again: turnkeeper tools accept"
        raise Corrupt("cannot be read", where=str(path), hint=hint) from error
    return {one.scope: one for one in found}


def write_accepted(home: Home, accepted: Mapping[str, Offered]) -> None:
    said = {"accepted": [asdict(accepted[scope]) for scope in sorted(accepted)]}
    replace_whole(home.root / "tools.json", f"{json.dumps(said, indent=1)}\n".encode())


def write_problems(home: Home, problems: Mapping[str, str]) -> None:
    """Write the problems of sources and tools, each with its reason, for `status` and `doctor`."""
    replace_whole(home.run / "tools.json", json.dumps(problems).encode())


def findings(home: Home) -> Iterator[tuple[str, str]]:
    """Yield the problems of supplied tools, as the running runtime sees them, and the remedy."""
    try:
        problems = json.loads((home.run / "tools.json").read_text("utf-8"))
    except (OSError, ValueError):
        return
    if is_held(home, PROCESS):
        for name, why in problems.items():
            yield f"{name}: {why}", "see: turnkeeper tools list"


def shortened(text: str) -> str:
    """Return text of another origin as one short line."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_WHY else f"{line[: LONGEST_WHY - 1]}…"
