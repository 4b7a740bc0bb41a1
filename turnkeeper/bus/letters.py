"""Letters: files that an agent outside the runtime sends through its outbox, and the keys derived from a letter."""

import hashlib
import json
import os

from turnkeeper.bus.durable_writes import Names
from turnkeeper.bus.envelope import Envelope, encode, turn_id_of
from turnkeeper.clock import Clock
from turnkeeper.config.home import Home, make_private
from turnkeeper.entropy import Entropy
from turnkeeper.storage.files import SystemFiles, create, machine_errors

LONGEST_MESSAGE = 256 << 10  # most bytes of text in a letter between agents
ANSWER = "agent:answer:"  # precedes the id of a turn in the idempotency key of the answer that the turn owes
MOST_HOPS = 8  # most messages in one exchange, counted from the message of the author or of the fire


def letter_key(sender: str, given: str, name: str = "") -> str:
    """Return the idempotency key of a letter. It is made from the letter's own key, or else from the file's name."""
    text = json.dumps([sender, given or name, bool(given)])
    return f"agent:out:{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def turn_of_letter(sender: str, given: str) -> str:
    """Return the id of the turn for a letter that has its own key."""
    return turn_id_of("agent", letter_key(sender, given))


def put_letter(home: Home, letter: Envelope, *, clock: Clock, entropy: Entropy) -> str:
    """Put an envelope into the outbox of its sender, complete and synced. Return its name. Raises Exhausted."""
    folder, data = home.inbox(letter.sender), encode(letter)
    outbox, files = folder / "outbox", SystemFiles()
    with machine_errors(outbox):
        make_private(outbox)
        (name,) = Names(folder, clock=clock, entropy=entropy).draw([letter.sender], lying=os.listdir(outbox))
        fresh = outbox / f".{name}.tmp"
        create(fresh, data, sync=True)
        # Use rename, because a link would briefly give the file two names, and the runtime refuses hard links.
        fresh.rename(outbox / name)
        files.sync_folder(outbox)
    return name
