"""Requests for a planned restart: a file that the watchdog claims, written once per call.

`docs/lifecycle.md` describes the file. The watchdog moves the file from one place to the next, so this module checks
the places in that order. A file with this call's id means that this call has already made its request.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from sqlalchemy import Connection

from agent_runtime.graph.context import ToolSpec
from agent_runtime.model.trigger import FIRST_AGENT, sendable
from agent_runtime.permissions.judge import RESTART, require
from agent_runtime.store.idempotency import Call, Outcome, once, refuse_ended
from agent_runtime.store.turn_reads import list_interrupts, unfinished_turns
from agent_runtime.store.turn_store import Store
from agent_runtime.tools.call import Runtime, call_of, spec
from turnkeeper.bus.envelope import check_text
from turnkeeper.clock import Clock
from turnkeeper.config.home import Home
from turnkeeper.errors import Conflict, Corrupt, Denied, InvalidInput
from turnkeeper.storage.files import Files
from turnkeeper.times import rfc3339

LONGEST_NOTES = 8 << 10  # bytes; JSON needs at most six times as many, which fit into a marker
LARGEST_MARKER = 64 << 10
MOST_NAMED = 20
LONGEST_NAMED = 160


class Lifecycle:
    """Requests to the watchdog to restart this runtime."""

    def __init__(self, store: Store, *, home: Home, clock: Clock, files: Files) -> None:
        self._store = store
        self._state = home.run.parent
        self._clock, self._files = clock, files

    async def request_restart(self, call: Call, notes: str) -> Mapping[str, Any]:
        """Ask for a restart, once per call; agent0's next turn gets the notes as its handoff.

        Raises:
            Denied: not in scope, not agent0, or the turn has ended.
            InvalidInput: the notes are empty, too long or contain text that a message cannot carry.
            Conflict: another restart is pending or running.
        """
        require(RESTART, "write", {"notes": notes}, call.context)
        if call.context.agent != FIRST_AGENT:
            raise Denied(f"only {FIRST_AGENT} can ask for a restart; explain in your answer why a restart is needed")
        if not notes.strip() or len(notes.encode("utf-8", "replace")) > LONGEST_NOTES:
            raise InvalidInput(f"notes must have 1 to {LONGEST_NOTES} bytes", where="notes")
        check_text(notes)
        at = self._clock.now()
        id_ = f"agent0-{hashlib.sha256(call.key.encode()).hexdigest()[:24]}"
        says = {"id": id_, "at": rfc3339(at), "by": FIRST_AGENT, "tries": 0}

        def work(connection: Connection) -> Outcome:
            def ask() -> Mapping[str, Any]:
                self._ask(id_, says | {"text": handoff_text(connection, notes)})
                return {"requested": True, "restart": id_}

            return once(connection, call, RESTART, at, refuse_ended, ask)

        # Write the file before the row: after a crash in between, a rerun recognizes the file by this call's id.
        return (await self._store.write(work)).result

    def _ask(self, id_: str, says: Mapping[str, Any]) -> None:
        request = self._state / "restart-request"
        for place in (request, self._state / "restart-request.processing"):
            found = self._id_at(place)
            if found == id_:
                return
            if found is not None:
                raise Conflict("a restart is already pending", hint="wait for that restart; do not ask again")
        if os.path.lexists(self._state / "restart-archive" / f"{id_}-request.json"):
            return
        fresh = request.with_name(f".{request.name}.new-{os.getpid()}")
        self._files.unlink(fresh)
        self._files.write_synced(fresh, json.dumps(says, sort_keys=True).encode())
        try:
            self._files.link(fresh, request)  # unlike a rename, a link never replaces a file
        except FileExistsError as error:
            raise Conflict("a restart is already pending", hint="wait for that restart; do not ask again") from error
        finally:
            self._files.unlink(fresh)
        self._files.sync_folder(self._state)

    def _id_at(self, place: os.PathLike[str]) -> str | None:
        """Return the id of the request in a file; "" if the file cannot be read, or None if it does not exist."""
        try:
            says = json.loads(self._files.read(self._state / place, LARGEST_MARKER))
        except FileNotFoundError:
            return None
        except (Corrupt, ValueError):
            return ""
        return str(says.get("id", "")) if isinstance(says, dict) else ""


def handoff_text(connection: Connection, notes: str) -> str:
    """Return the handoff for the next session: the ids of open turns and decisions, and the notes."""
    open_turns = [
        f"{turn.turn_id} ({turn.status}, {turn.task_name or turn.trigger}, in {turn.channel})"
        for turn in unfinished_turns(connection)
    ]
    asked = [f"{item.interrupt_id} ({item.kind} {item.tool}".rstrip() + ")" for item in list_interrupts(connection)]
    lines = [
        f"Planned restart of agent-runtime, requested by {FIRST_AGENT}. Turns continue from their last checkpoint.",
        f"open turns: {_named(open_turns)}",
        f"decisions waiting for the author: {_named(asked)}",
        "armed tasks and held fires: unknown to the runtime; the runner keeps them, and continues",
        f"notes:\n{notes.strip()}",
    ]
    return "\n".join(lines)


def _named(found: Sequence[str]) -> str:
    """Return the names as one line of limited length."""
    named = ", ".join(one[:LONGEST_NAMED] for one in found[:MOST_NAMED]) or "none"
    line = f"{named} and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else named
    return sendable(line, MOST_NAMED * LONGEST_NAMED)


def lifecycle_tools(lifecycle: Lifecycle) -> list[ToolSpec]:
    """Return the tool that restarts the runtime. A model reads its docstring."""

    async def lifecycle_request_restart(
        notes: Annotated[str, "notes for your next session: open work, next actions, why you restart"],
        runtime: Runtime,
    ) -> Mapping[str, Any]:
        """Ask for a restart. The restart comes within about a minute; your next turn gets the notes."""
        return await lifecycle.request_restart(call_of(runtime), notes)

    return [spec(lifecycle_request_restart, scope=RESTART, effect="write")]
