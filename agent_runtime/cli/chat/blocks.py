"""Blocks of a terminal that escape, narrow or shorten their contents."""

from collections.abc import Callable, Sequence

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markdown import Markdown
from rich.segment import Segment
from rich.text import Text

from agent_runtime.cli.chat import texts
from turnkeeper.console.unseen import prose

WIDEST = 110


class Safe:
    """A renderable with control and invisible characters escaped."""

    def __init__(self, inside: RenderableType, written: Callable[[str], str] = prose) -> None:
        self._inside, self._written = inside, written

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self._inside, options):
            if not segment.control:
                style = segment.style.update_link(None) if segment.style and segment.style.link else segment.style
                yield Segment(self._written(segment.text), style)


def markdown(text: str) -> RenderableType:
    """Return Markdown text as blocks for a terminal."""
    # Show links with their addresses, because a reader cannot see the target of a terminal's link.
    return AtMost(Markdown(texts.broken(prose(text)), hyperlinks=False, code_theme="ansi_dark"), 0)


class Narrow:
    """A renderable whose lines have at most a readable width on a wide terminal."""

    def __init__(self, inside: RenderableType) -> None:
        self._inside = inside

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from console.render(self._inside, options.update(width=min(options.max_width, WIDEST)))


class AtMost:
    """The first lines of a renderable, and the number of omitted lines; all lines if the limit is 0."""

    def __init__(self, inside: RenderableType, most: int) -> None:
        self._inside = inside
        self._most = most

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self._inside, options, pad=False)
        while lines and _is_blank(lines[-1]):
            lines.pop()
        while lines and _is_blank(lines[0]):
            lines.pop(0)
        left = len(lines) - self._most if self._most else 0
        for line in lines[: self._most] if left > 1 else lines:
            yield from line
            yield Segment.line()
        if left > 1:
            yield Text(f"… {left} more lines: -o wide", "dim")


def _is_blank(line: Sequence[Segment]) -> bool:
    return not "".join(segment.text for segment in line).strip()
