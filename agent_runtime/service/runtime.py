from dataclasses import dataclass

from agent_runtime.graph.engine.live_output import LiveOutput
from agent_runtime.mailbox.acceptor import Acceptor
from agent_runtime.mailbox.mailboxes import Mailboxes
from agent_runtime.permissions.categories import Categories
from agent_runtime.store.turn_store import Store
from agent_runtime.turns.worker import Worker
from agent_runtime.workspace.workspace import Workspace
from turnkeeper.clock import Clock
from turnkeeper.entropy import Entropy
from turnkeeper.event_log import EventLog


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """The parts that the service is made from; nothing runs until `worker` is started.

    Attributes:
        store: the turn table.
        acceptor: takes fires and messages.
        worker: runs turns.
        mailboxes: the inboxes of agents.
        categories: what may be granted.
        workspace: what tools act on.
        live: what running turns say, for followers.
        log: the event log.
        clock: the machine's, or a test's.
        entropy: likewise.
    """

    store: Store
    acceptor: Acceptor
    worker: Worker
    mailboxes: Mailboxes
    categories: Categories
    workspace: Workspace
    live: LiveOutput
    log: EventLog
    clock: Clock
    entropy: Entropy
