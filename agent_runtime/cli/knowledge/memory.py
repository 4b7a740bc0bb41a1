"""The commands `turnkeeper memory`."""

import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from agent_runtime.cli.client import Ask, change, read
from agent_runtime.cli.rows import FOR_PEOPLE, clipped
from agent_runtime.model.mapping import Row, to_json
from turnkeeper.console import Output, OutputOption, note, show_record
from turnkeeper.console.commands import App
from turnkeeper.console.lists import Listed, columns, lines_of, listing
from turnkeeper.errors import InvalidInput, NotFound, the_one
from turnkeeper.v1 import agent_runtime_pb2 as wire

app = App("The memory of agents and authors, in four tiers.")
TIERS = "conversation, channel, workspace or account"
Tier = Annotated[str, typer.Option("--tier", help=f"One of {TIERS}; --channel and --thread imply a tier.")]
Channel = Annotated[str, typer.Option("--channel", help="The channel, for the channel tier.")]
Thread = Annotated[str, typer.Option("--thread", help="The thread, for the conversation tier.")]
Key = Annotated[str, typer.Argument(metavar="KEY", help="The entry's key.")]
Json = Annotated[bool, typer.Option("--as-json", help="TEXT is a JSON value, for graphs that expect JSON.")]
Text = Annotated[str, typer.Argument(metavar="TEXT", help="The text to store; `-` reads it from standard input.")]
_NAMESPACES = columns("NAMESPACE #ENTRIES", namespace=lambda row: " / ".join(row["namespace"]))
_COLUMNS = columns(
    "TIER OF=owner KEY BY=written_by UPDATED=updated_at +CREATED=created_at +ORIGIN +TURN=turn_id TEXT",
    text=lambda row: clipped(str(row["text"]), 60),
)


@app.command("list")
@listing(_COLUMNS, "key", limit=100)
def list_(tier: Tier = "", channel: Channel = "", thread: Thread = "", **page: Any) -> Listed:
    """List memory entries, newest first: all entries, or those of one tier, channel or thread.

    Example: turnkeeper memory list --channel general
    """
    tier, owner = _tier_and_owner(tier, channel, thread)
    answer = read(wire.ListMemoryRequest(tier=tier, owner=owner, **page))
    rows = [to_json(entry) for entry in answer.entries]
    return Listed(rows, "" if rows else "no memory entries", answer)


@app.command("namespaces")
@listing(_NAMESPACES, "namespace", limit=100)
def namespaces(
    prefix: Annotated[
        list[str] | None, typer.Argument(metavar="LABEL", help="Only namespaces with this prefix; '*' is any label.")
    ] = None,
    suffix: Annotated[list[str] | None, typer.Option(help="Only namespaces with this suffix; may be repeated.")] = None,
    depth: Annotated[int, typer.Option(min=0, help="Cut longer namespaces to this many labels.")] = 0,
    **page: Any,
) -> Listed:
    """List the namespaces of the entries, as LangGraph's store names them.

    Example: turnkeeper memory namespaces workspace --depth 2
    """
    request = wire.ListMemoryNamespacesRequest(prefix=prefix, suffix=suffix, max_depth=depth, **page)
    answer = read(request)
    rows = [to_json(one) for one in answer.namespaces]
    return Listed(rows, "" if rows else "no such namespaces", answer)


@app.command("get")
def get(
    key: Key, tier: Tier = "", channel: Channel = "", thread: Thread = "", output: OutputOption = Output.TABLE
) -> None:
    """Show one entry: its text, its author, its turn and its time.

    Example: turnkeeper memory get bucket --channel general
    """
    tier, owner = _place_of(tier, channel, thread, key)
    _show(to_json(named(read, wire.GetMemoryRequest(tier=tier, owner=owner, key=key))), output)


@app.command("put")
def put(
    key: Key,
    text: Text,
    tier: Tier = "",
    channel: Channel = "",
    thread: Thread = "",
    json_: Json = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Store text as its author. Agents can read the text but not change it. The same key replaces the text.

    Example: turnkeeper memory put tone "Write in British English." --tier workspace
    """
    _write(key, text, _place_of(tier, channel, thread), output, as_json=json_)


@app.command("update")
def update(
    key: Key,
    text: Text,
    tier: Tier = "",
    channel: Channel = "",
    thread: Thread = "",
    json_: Json = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Change the text of an existing entry. From then on the entry is yours, and agents cannot change it.

    Example: turnkeeper memory update tone "Write in American English." --tier workspace
    """
    _write(key, text, _place_of(tier, channel, thread, key), output, as_json=json_, method="UpdateMemory")


@app.command("search")
@listing(_COLUMNS, "key", limit=20, watch=None)
def search(
    query: Annotated[str, typer.Argument(metavar="WORDS", help="Words to search for.")],
    tier: Tier = "",
    channel: Channel = "",
    thread: Thread = "",
    **page: Any,
) -> Listed:
    """Find entries by their words, best match first.

    Example: turnkeeper memory search "release date"
    """
    tier, owner = _place_of(tier, channel, thread) if tier or channel or thread else ("", "")
    request = wire.SearchMemoryRequest(query=query, tier=tier, owner=owner, **page)
    answer = read(request)
    rows = [to_json(entry) for entry in answer.entries]
    return Listed(rows, "" if rows else "no entry contains these words", answer)


@app.command("forget")
def forget(
    key: Key, tier: Tier = "", channel: Channel = "", thread: Thread = "", output: OutputOption = Output.TABLE
) -> None:
    """Delete an entry of any author, and show its text.

    Example: turnkeeper memory forget bucket --channel general
    """
    tier, owner = _place_of(tier, channel, thread, key)
    row = to_json(named(change, wire.GetMemoryRequest(tier=tier, owner=owner, key=key), method="ForgetMemory"))
    if output in FOR_PEOPLE:
        note(f"forgot {row['key']}, its text was: {clipped(row['text'], 200)}")
    else:
        _show(row, output)


def _write(
    key: str, text: str, place: tuple[str, str], output: Output, *, as_json: bool, method: str = "PutMemory"
) -> None:
    tier, owner = place
    if not key:
        raise InvalidInput("needs a key", where="KEY")
    said = sys.stdin.read() if text == "-" else text
    form = "json" if as_json else "text"
    request = wire.PutMemoryRequest(tier=tier, owner=owner, key=key, text=said, form=form)
    answer: Any = named(change, request, method=method)
    row = to_json(answer)
    if output in FOR_PEOPLE:
        note(f"{row['key']} is stored in the {row['tier']} memory")
    else:
        _show(row, output)


def _tier_and_owner(tier: str, channel: str, thread: str) -> tuple[str, str]:
    """Return the tier that the options name or imply, and its owner. Raises InvalidInput if the options disagree."""
    if channel and thread:
        raise InvalidInput("give one of --channel and --thread", where="memory")
    implied = "channel" if channel else "conversation" if thread else tier
    if tier and tier != implied:
        raise InvalidInput(f"--{'channel' if channel else 'thread'} is for the {implied} tier", where="--tier")
    return implied, channel or thread


def _place_of(tier: str, channel: str, thread: str, key: str = "") -> tuple[str, str]:
    """Return the tier and owner that the options name, or else those of the only entry with the key.

    Raises InvalidInput or NotFound.
    """
    tier, owner = _tier_and_owner(tier, channel, thread)
    if not tier and key:
        return _place_of_only(key)
    if not tier:
        raise InvalidInput(f"give a tier: {TIERS}", where="--tier")
    wanted = {"channel": "--channel", "conversation": "--thread"}.get(tier, "")
    if wanted and not owner:
        raise InvalidInput(f"the {tier} tier needs {wanted}", where=wanted)
    return tier, owner


def _place_of_only(key: str) -> tuple[str, str]:
    """Return the tier and owner of the only entry with this key, or else of the only entry whose key begins with it.

    Raises InvalidInput or NotFound.
    """
    found, cursor = list[Any](), ""
    while True:
        answer = read(wire.ListMemoryRequest(limit=1000, cursor=cursor))
        found += [one for one in answer.entries if one.key.startswith(key)]
        if not (cursor := answer.next_cursor):
            break
    places = sorted((one.tier, one.owner) for one in [one for one in found if one.key == key] or found)
    if not places:
        raise NotFound(f"no memory entry {key[:80]!r}", where="KEY", hint="see: turnkeeper memory list")
    if len(places) > 1:
        options = {"channel": "--channel", "conversation": "--thread"}
        ways = [f"{options[tier]} {owner}" if tier in options else f"--tier {tier}" for tier, owner in places]
        raise InvalidInput(f"{len(places)} entries have this key", where="KEY", hint=f"give one of {', '.join(ways)}")
    return places[0]


def _show(row: Row, output: Output) -> None:
    lines = lines_of(
        row, "key tier of=owner form origin by=written_by via turn=turn_id created=created_at updated=updated_at text"
    )
    show_record(row, output, name_key="key", lines=lines)


def named(ask: Ask, request: Any, **how: str) -> Any:
    """Send a request about a page or a memory entry, which the request may name by the beginning of its name.

    Raises NotFound with suggestions, or Conflict if several names have this beginning.
    """
    try:
        return ask(request, **how)
    except NotFound as error:
        if error.what.startswith("no page "):
            known = [str(page.page_id) for page in _pages()]
            given, request.page_id = request.page_id, the_one(known, request.page_id, "page", see=error.hint)
            note(f"{given} stands for {request.page_id}")
        elif error.what.startswith("no entry "):
            wanted = wire.ListMemoryRequest(tier=request.tier, owner=request.owner)
            known = sorted({entry.key for entry in read(wanted).entries})
            given, request.key = request.key, the_one(known, request.key, "entry", see=error.hint)
            note(f"{given} stands for {request.key}")
        else:
            raise
        return ask(request, **how)


def _pages() -> Iterator[Any]:
    request = wire.ListPagesRequest()
    while found := read(request).pages:
        yield from found
        request.after = found[-1].page_id
