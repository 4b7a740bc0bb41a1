"""Parts of what an author declares: who made a task, and which events it fires for. Plain frozen values."""

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, kw_only=True, slots=True)
class CreatedBy:
    """The turn that made a task: a part of it for ever, set when it is created.

    Attributes:
        turn_id: which turn.
        category: the permissions it ran under.
        agent: whose it was.
    """

    turn_id: str
    category: str
    agent: str


@dataclass(frozen=True, kw_only=True, slots=True)
class EventTrigger:
    """Which events a task fires for, beside its schedule or without one.

    Attributes:
        event: their name.
        filters: what all has to hold of one, as :func:`task_runner.model.events.check_filters` takes them.
        debounce: how long after one the others go into its fire.
        since: from when on the task waits for them; what happened before is none of its business.
    """

    event: str
    filters: tuple[str, ...] = ()
    debounce: timedelta = timedelta(0)
    since: datetime
