"""The sentence for each record of the timeline; pure.

A part in brackets is left out if one of its fields is empty. A field whose name ends in `_at` is an instant.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from turnkeeper.constellation.timeline.records import Record
from turnkeeper.times import format_rough, parse_rfc3339

_UNKNOWN = "(unknown)"
_PART = re.compile(r"\[([^\]]*)\]")
_FIELD = re.compile(r"\{([a-z_]+)\}")

_FIRE = "fire {fire_id}"
_OF_TASK = f"{_FIRE} of task {{task}}"
_TURN = "turn {turn_id}[ of task {task}][ in channel {channel}]"
_ASKED = "the question {interrupt_id} of turn {turn_id}"
SENTENCES = {
    # Task runner: tasks.
    "task.created": "the task runner created task {name} with category {category}[ as {task_id}].",
    "task.updated": "the task runner changed task {task}[: {fields}].",
    "task.paused": "the task runner paused task {task}[: {reason}].",
    "task.resumed": "the task runner resumed task {task}.",
    "task.enabled": "the task runner enabled task {task}.",
    "task.disabled": "the task runner {disabled} task {task}[: {reason}].",
    "task.deleted": "the task runner deleted task {task}.",
    "task.restored": "the task runner restored the deleted task {task}.",
    "task.done": "the task runner ended task {task}: no scheduled time is left[; {reason}].",
    "task.expired": "the task runner ended task {task}: its end date is over.",
    "task.quarantined": "the task runner quarantined task {task}, because it cannot be planned: {reason}.",
    "task.armed": "the task runner set the next wake-up of task {task} to {wake_at}[: {reason}].",
    "cursor.moved": "the task runner finished planning task {task} up to {to_at}.",
    "clock.stepped_back": "the task runner noticed that the machine's clock was set back; task {task} was planned "
    "up to {cursor_was_at}.",
    "clock.stepped_forward": "the task runner noticed that the machine's clock was set forward by {by_s} s.",
    "pruning.held": "{process} deletes no old history: the clock stepped from {before} to {after}.",
    "pruning.resumed": "{process} deletes old history again: the clock {why}.",
    "history.pruned": "the task runner removed {entries} old entries from its ledger.",
    "turns.pruned": "the agent runtime removed {turns} old turns, and {others} old outcomes and handoffs.",
    "logs.pruned": "the watchdog removed old trails: {removed}; and cut large logs: {cut}.",
    "audit.unsigned": "{process} could not sign the records: {error}.",
    "audit.changed": "{process} found that {what} differs from what this machine has seen: the records were changed, "
    "or the database was restored.",
    "database.lost": "{process} found that the database lost commits between {since} and {to}: another server took "
    "over ({before}, now {now}), and at least {records} signed records are missing.",
    "database.moved": "{process} found that another server of the database took over ({before}, now {now}). "
    "No signed record is missing.",
    # Task runner: fires.
    "fire.committed": f"the task runner recorded {_OF_TASK}, due {{due_at}}"
    "[; that was {late} late, and its catch-up policy is {policy}]"
    "[; it stands for {more} scheduled times, from {first_nominal_at} to {last_nominal_at}].",
    "fire.skipped": "the task runner did not fire task {task} for {count} scheduled time(s) from {first_nominal_at} to "
    "{last_nominal_at}: {reason}[ ({because})].",
    "fire.sent": f"the task runner sent {_OF_TASK} to the agent runtime[, attempt {{attempt}}].",
    "fire.accepted": f"the task runner learned that the agent runtime has accepted {_OF_TASK}.",
    "fire.taken_over": f"the store of the task runner had lost {_OF_TASK}: the turn of the agent runtime counts.",
    "fire.refused": f"the agent runtime refused {_OF_TASK}[: {{code}}][ {{field}}].",
    "fire.running": f"the task runner learned that a turn runs for {_OF_TASK}.",
    "fire.interrupted": f"the task runner learned that {_OF_TASK} waits for the author's decision.",
    "fire.paused": f"the task runner learned that the turn of {_OF_TASK} pauses.",
    "fire.held": f"the task runner learned that {_OF_TASK} is held until its thread is released.",
    "fire.released": f"the task runner learned that {_OF_TASK} is no longer held.",
    "fire.withdrawn": f"no runtime began {_OF_TASK} in time: the task runner withdrew it.",
    "fire.retried": f"the task runner starts attempt {{next_attempt}} of {_OF_TASK}[: {{reason}}].",
    "fire.asked_to_end": f"the task runner asked the agent runtime to end {_OF_TASK}[: {{reason}}].",
    "fire.settled": f"the task runner recorded that {_OF_TASK} ended as {{outcome}}[: {{reason}}]"
    "[; it is part of fire {into}].",
    "fire.due": f"{_OF_TASK} is due, and the task runner waits for its store.",
    "fire.answered": f"the agent runtime answered {_OF_TASK}; the task runner waits for its store to record the "
    "answer.",
    "fire.heard": f"the agent runtime said that the turn of {_OF_TASK} is now {{state}}; the task runner waits for its "
    "store to write that down.",
    "event.heard": "the task runner heard of the event {name}[ in turn {turn_id}], and waits for its store.",
    "calendar.changed": "the task runner planned {tasks} tasks again: the calendar {file} has {days} days off now.",
    "calendar.unreadable": "the task runner cannot read the calendar: {reason}.",
    "folder.unreadable": "the task runner cannot watch all files of the folder {name}: {reason}.",
    "folder.readable": "the task runner watches all files of the folder {name} again.",
    "outage.began": "the task runner could no longer reach the agent runtime.",
    "outage.ended": "the task runner reached the agent runtime again.",
    "runtime.refused": "the agent runtime refused to take fires from the task runner: {reason}.",
    "runtime.replaced": "the task runner found that the agent runtime has a new store.",
    # Agent runtime: arrivals.
    "fire.arrived": f"the agent runtime got {_OF_TASK} from the task runner, and waits for its store.",
    "fire.received": f"the agent runtime accepted {_OF_TASK}[ ({{disposition}})]; its turn is {{turn_id}}.",
    "fire.delivered": f"the agent {{agent}} took {_OF_TASK} from its inbox.",
    "fire.cancelled": f"the agent runtime took {_OF_TASK} back from the inbox of {{agent}}[: {{reason}}].",
    "fire.failed": f"{_OF_TASK} failed[: {{reason}}].",
    "message.arrived": "the agent runtime got a message for thread {thread_id}, and waits for its store.",
    "message.accepted": "the agent runtime accepted a message for thread {thread_id}; its turn is {turn_id}.",
    "message.kept": "the agent runtime keeps a message until thread {thread_id} is released.",
    "envelope.received": "{agent} received an envelope of kind {kind} from {from}[ for thread {thread}].",
    "envelope.quarantined": "the agent runtime quarantined the envelope {name} of {agent}: {reason}.",
    "envelope.stuck": "the agent runtime could not handle the envelope {name} of {agent}, and tries again: {reason}.",
    # Agent runtime: turns and approvals.
    "turn.started": "the agent runtime {begins} " + _TURN + "[ for fire {fire_id}].",
    "turn.waits": "turn {turn_id} is about to {begin}, and the agent runtime waits for its store.",
    "turn.ran": "the graph of " + _TURN + " stopped ({state}), and its store has not recorded that yet.",
    "turn.stopped": "the agent runtime recorded that " + _TURN + " {ended}.",
    "turn.held": "the agent runtime holds fire {fire_id}[ of task {task}]: a question on thread {thread_id} is open.",
    "turn.released": "the agent runtime released " + _TURN + ": the question on its thread is settled.",
    "turn.trouble": "the agent runtime could not continue turn {turn_id}[ on thread {thread_id}], and tries again: "
    "{reason}.",
    "tool.called": "the agent called the tool {tool} in turn {turn_id}[ of task {task}].",
    "agent.wrote": "{agent} used {scope} in turn {turn_id}[ of task {task}][: {kind}][ {candidate_id}][ {page_id}].",
    "interrupt.raised": "the agent runtime asked the author, in turn {turn_id}[ of task {task}][, about {tool}]"
    "[, which needs {missing_scope}]; the question is {interrupt_id}.",
    "interrupt.resolved": f"the author answered {_ASKED} with {{decision}}[, as standing exception {{exception}}]"
    "[, by {via}].",
    "interrupt.refused": f"the graph refused the answer to {_ASKED}, and asks again[: {{error}}].",
    "interrupt.reminded": f"the agent runtime reminded the author of {_ASKED}.",
    "interrupt.escalated": f"the agent runtime raised an alert about {_ASKED}.",
    "interrupt.expired": f"the agent runtime ended {_ASKED}: it was not answered in time.",
    "exception.ended": "the standing exception {exception} of task {task_id} for {tool} ended: {reason}[, by {via}].",
    "tools.problem": "{name} cannot be used as accepted: {reason}.",
    "model.answered": "the model answered in turn {turn_id} after {took_s} s with {tokens_out} tokens.",
    "model.retry": "the model failed in turn {turn_id}: {reason}. the agent runtime asks it again after {wait_s} s.",
    "model.failed": "the model failed in turn {turn_id}: {reason}.",
    "candidate.decided": "the author decided about the proposal {candidate_id}: it is now {lifecycle}.",
    "page.put": "page {page_id} got its version {version} ({origin}, {lifecycle}).",
    "memory.put": "the author wrote the memory entry {entry_id} into {tier}[ of {owner}].",
    "memory.forgotten": "the author removed the memory entry {entry_id} from {tier}[ of {owner}].",
    "deviation.resolved": "the author closed the deviation {deviation_id} of page {page_id}: {lifecycle}.",
    "attachment.put": "the author attached a file of {size} bytes to page {page_id}.",
    "outbox.accepted": "the agent runtime took a {kind} from the outbox of {agent}[; its turn is {turn_id}].",
    "outbox.refused": "the agent runtime refused a file that {agent} put into its outbox ({name}): {reason}.",
    "store.unreachable": "the agent runtime could not reach its database, and tries again: {reason}.",
    "lease.lost": "the agent runtime no longer owns thread {thread_id}, and stops its work on it: {reason}.",
    "lease.trouble": "the agent runtime could not renew its right to its threads, and tries again: {reason}.",
    "delivery.done": "{target} took the delivery {key} ({about})[ of fire {fire_id}].",
    "delivery.failed": "{target} did not take the delivery {key}, which is tried again: {reason}.",
    "delivery.given_up": "the delivery {key} to {target} was given up: {reason}.",
    "delivery.not_following": "delivery cannot read the turn events, and tries again: {reason}.",
    "peers.paired": "peers paired with {peer} ({address}).",
    "peers.received": "peers took a message from the first agent of {peer}.",
    "peers.reachable": "peers reached the home of {peer}.",
    "peers.unreachable": "peers could not reach the home of {peer}, and tries again: {reason}.",
    "peers.refused": "peers refused {count} connection(s); the last: {reason}.",
    "peers.undeliverable": "peers quarantined a message to {peer}, which can never be delivered: {reason}.",
    "peers.not_delivering": "peers could not deliver to {peer}, and tries again: {reason}.",
    "peers.unreadable": "peers could not read its list of peers, and tries again: {reason}.",
    "ack.received": "{agent} got a receipt from {sender}.",
    "shutdown.received": "the agent runtime was asked to end by {sender}.",
    "trigger.skipped": "the task runner did not fire task {task} for {count} event(s): {reason}.",
    "trigger.coalesced": "the task runner added {count} event(s) to a fire of task {task} that waits[: {reason}].",
    "notify.done": "the agent runtime ran the notify command about {about} of turn {turn_id}.",
    "notify.failed": "the agent runtime could not run the notify command about turn {turn_id}: {reason}.",
    # Faults that are retried.
    "inbox.unreadable": "the agent runtime could not read or write an inbox, and tries again: {reason}.",
    "outbox.unreadable": "the agent runtime could not read the outbox of {agent}, and tries again: {reason}.",
    "notes.unreadable": "the agent runtime could not read the notes of {agent}: {reason}.",
    "answer.delayed": "the agent runtime could not deliver an answer to an agent, and tries again: {reason}.",
    "approvals.trouble": "the agent runtime could not remind the author or end a question, and tries again: {reason}.",
    "handoff.waits": "the supervisor could not deliver a handoff, and tries again: {reason}.",
    "memory.embedding_failed": "the agent runtime could not index {entries} memory entries: {error}.",
    "run.repaired": "{process} restored files that had been removed: {what}.",
    "run.unreachable": "{process} could not restore its socket, lock or pid file: {reason}.",
    "metrics.unserved": "{process} could not serve metrics at {where}: {reason}.",
    # Processes.
    "node.gone": "{process} has seen nothing of machine {node} ({host}) since {since_at}, and raised an alert.",
    "process.started": "{process} serves (pid {pid})[; the process before it, pid {after}, did not shut down cleanly: "
    "it was killed, or crashed].",
    "process.draining": "{process} ends its turns before it stops (pid {pid}).",
    "process.stopped": "{process} stopped (pid {pid}).",
    "session.began": "the agent runtime opened its store (session {epoch}).",
    "runtime.up": "the agent runtime is up: it continues {continued} turn(s), and {waiting} question(s) wait for "
    "the author.",
    "daemon.started": "the supervisor started {daemon} (pid {started})[, because it had {crashed}].",
    "daemon.lost": "{daemon} had {reason}.",
    "daemon.killed": "the supervisor killed {daemon} (pid {killed}): {reason}.",
    "revive.failed": "the supervisor found that {daemon} had ended (start {id}).",
    "revive.verified": "the supervisor verified that {daemon} runs (start {id}).",
    "crashloop.suspected": "the supervisor stopped trying to start {daemon}: {reason}.",
    "hang.suspected": "the supervisor suspects that {daemon} hangs (pid {suspect}): no progress for {still_s} s.",
    "hang.resumed": "the supervisor saw that {daemon} makes progress again (pid {suspect}).",
    "hang.suppressed": "the supervisor leaves {daemon} alone, because hang detection is suspended (pid {suspect}).",
    "look.failed": "{process} could not look for changes with {observer}, and looks again: {reason}.",
    "machine.trouble": "{process} noticed trouble of the machine with {daemon}: {reason}.",
    "restart.begun": "the supervisor began the planned restart {id} of agent-runtime.",
    "restart.phase": "the start {id}[ of {daemon}] {reached}[: {error}].",
    "restart.given_up": "the supervisor abandoned the planned restart {id}: {reason}.",
    "handoff.delivered": "the supervisor put the handoff {id} into agent0's inbox.",
    "handoff.received": "{agent} received the handoff {key}.",
    "escalate": "the supervisor alerts the author about {daemon}[: {reason}].",
    "escalate.done": "{process} delivered the alert to the author by the {route} that config.toml names.",
    "escalate.failed": "{process} could not deliver an alert by {route}: {reason}[ ({marker})].",
    "store.damaged": "{process} found a damaged store: {reason}.",
    "store.waits": "{process} waits for its store {about}.",
    "store.trouble": "{process} could not read or write its store: {reason}.",
    "events.lost": "{process} could not write {count} events; they are lost.",
    "marker.stands": "{path} has existed since then: {meaning}[: {reason}].",
    # Authors.
    "act.done": "the author used {method}[ on {subject}][, by {via}][: {reason}].",
    "act.asked": "the author asked {process} for {method}[ on {subject}][, by {via}]; it waits for a store.",
    "act.refused": "{process} refused {method}[ from {via}]: {reason}.",
}
_BEGINS = {"start": "started", "resume": "resumed", "continue": "continued"}
_ENDED = {
    "interrupted": "waits for the author's decision",
    "decided": "stopped at a question that was already decided, to continue with the answer",
    "paused": "pauses",
    "waits": "waits until the machine recovers",
    "drained": "stopped at a checkpoint, to continue later",
}
_REACHED = {
    "stopping": "stops the process that runs",
    "spawned": "started the new process",
    "up-detected": "found that the new process answers",
    "verified": "is over: the new process runs",
}
_BECAUSE = {
    "missed": "it was not sent in time, and catch-up skip runs no missed fire",
    "catch_up_window": "it was missed longer ago than catch_up_window allows",
    "max_catch_up": "more fires were missed than max_catch_up allows",
    "queue_full": "more fires waited than max_catch_up allows",
    "overlap": "the previous fire was still running, and overlap skip fires nothing meanwhile",
}
_LATE = timedelta(minutes=1)


def say(record: Record, show: Callable[[datetime], str]) -> str:
    """Return a record as a sentence. `show` formats an instant."""
    fields = _texts(record, show)
    template = SENTENCES.get(record.kind)
    if template is None:
        rest = ", ".join(
            f"{name} {value}" for name, value in fields.items() if name not in {"process", "pid"} and value
        )
        return f"{record.process} reported {record.kind}{f': {rest}' if rest else ''}."
    text = _PART.sub(lambda part: part[1] if all(map(fields.get, _FIELD.findall(part[1]))) else "", template)
    text = _FIELD.sub(lambda found: fields.get(found[1]) or _UNKNOWN, text)
    return text[:1] + text[1:].replace("..", ".")


def _texts(record: Record, show: Callable[[datetime], str]) -> dict[str, str]:
    fields: dict[str, Any] = {"process": record.process} | dict(record.fields)
    fields["task"] = fields.get("task") or fields.get("task_id")
    if record.kind == "task.disabled":
        fields["disabled"] = "stopped" if str(fields.get("task_id")).startswith("loop-") else "disabled"
    if record.kind == "turn.started":
        fields["begins"] = _BEGINS.get(fields.get("mode") or "start", "continued")
    if record.kind == "turn.stopped":
        state = str(fields.get("state") or _UNKNOWN)
        fields["ended"] = _ENDED.get(state, f"ended as {state}")
    if record.kind == "fire.committed":
        fields["more"] = count if isinstance(count := fields.get("count"), int) and count > 1 else ""
        fields["late"] = _late(record, str(fields.get("due_at")))
    if record.kind == "fire.skipped":
        fields["because"] = _BECAUSE.get(str(fields.get("reason")), "")
    if record.kind == "restart.phase":
        fields["reached"] = _REACHED.get(phase := str(fields.get("phase")), f"reached the phase {phase}")
    if record.kind == "fire.settled" and fields.get("outcome") == "coalesced":
        fields["into"], fields["reason"] = fields.get("reason"), ""
    if record.kind == "daemon.started":
        why = f" ({fields['reason']})" if fields.get("reason") else ""
        fields["crashed"] = f"ended unplanned{why}" if fields.get("crashed") else ""
    if fields.get("attempt") in {1, "1"} and record.kind == "fire.sent":
        fields["attempt"] = ""
    return {name: text for name, value in fields.items() for name, text in _text(name, value, show)}


def _late(record: Record, due_at: str) -> str:
    """Return how late a fire was recorded, if the delay is significant."""
    with suppress(ValueError):
        late = datetime.fromtimestamp(record.at_us / 1e6, UTC) - parse_rfc3339(due_at)
        return format_rough(late.total_seconds()) if late > _LATE else ""
    return ""


def _text(name: str, value: Any, show: Callable[[datetime], str]) -> Iterator[tuple[str, str]]:
    text = ", ".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)
    yield name, text
    if name.endswith("_at") or name in {"to", "at", "cursor_was"}:
        try:
            yield name if name.endswith("_at") else f"{name}_at", show(parse_rfc3339(text))
        except ValueError:
            return


def gap(before_us: int, at_us: int) -> str:
    """Return the time between two steps.

    >>> gap(0, 1_500), gap(0, 2_340_000), gap(0, 93_784_000_000)
    ('+2ms', '+2.3s', '+1d 2h')
    """
    seconds = (at_us - before_us) / 1_000_000
    if seconds < 1:
        return f"+{seconds * 1000:.0f}ms"
    return f"+{seconds:.1f}s" if seconds < 60 else f"+{format_rough(seconds)}"
