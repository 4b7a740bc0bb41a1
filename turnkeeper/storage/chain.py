"""What was decided and how it ended, as records in a chain of hashes that is signed.

Each store has one chain. A record is written in the transaction of what it tells, so neither exists without the other.
Its content is JSON that holds ids, names and hashes, never a text of a person. A record's hash covers its content and
the hash of the record before: an edit, a removal or another order shows. Every minute the process that owns the store
signs the newest hash with the home's key, so that nobody without that key can write the chain anew.

A record that is pruned loses its content and keeps its hashes: the rest can be checked as before. What a chain holds is
described in `docs/audit.md`; `constellation/audit/verify.py` checks it.
"""

import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from turnkeeper.clock import Clock
from turnkeeper.config.home import Home
from turnkeeper.entropy import Entropy
from turnkeeper.errors import TurnkeeperError
from turnkeeper.storage.files import append_synced
from turnkeeper.storage.keys import AUDIT, Key, KeyFile
from turnkeeper.storage.statements import TEXT, Statement, number_in_order
from turnkeeper.times import rfc3339, to_us

BEGIN, HEAD, PRUNED = "begin", "head", "pruned"  # kinds of records about the chain itself
SIGN_EVERY_S = 60.0
Fact = Mapping[str, Any]


def table_of(metadata: sa.MetaData) -> sa.Table:
    """Return the table of a store's chain; `metadata` is the store's."""
    return sa.Table(
        "audit",
        metadata,
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),  # 1 and up, without a gap
        sa.Column("at_us", sa.BigInteger, nullable=False),
        sa.Column("body", TEXT),  # JSON; null once it is pruned
        sa.Column("content_hash", sa.LargeBinary, nullable=False),  # SHA-256 of the body
        sa.Column("hash", sa.LargeBinary, nullable=False),  # SHA-256 of the hash before, the content's and at_us
    )


def digest(text: str) -> str:
    """Return the SHA-256 of a text, as 64 hexadecimal digits; of none, nothing."""
    return hashlib.sha256(text.encode()).hexdigest() if text else ""


class Chain:
    """The chain of one store. Every method belongs to the transaction that is open on the connection."""

    def __init__(self, table: sa.Table, store: str) -> None:
        """Take the store's table, and the name of the process that owns the store."""
        self.store = store
        self._last = Statement(sa.select(table.c.number, table.c.hash).order_by(table.c.number.desc()).limit(1))
        self._add = Statement(sa.insert(table))
        self._body = Statement(sa.select(table.c.body).where(table.c.number == sa.bindparam("of")))
        late = (table.c.body.is_not(None)) & (table.c.at_us >= sa.bindparam("before"))
        self._first_kept = Statement(sa.select(table.c.number).where(late).order_by(table.c.number).limit(1))
        early = (table.c.body.is_not(None)) & (table.c.number < sa.bindparam("first"))
        self._prune = Statement(sa.update(table).where(early).values(body=sa.null()))

    def begin(self, connection: sa.Connection, at: datetime, entropy: Entropy, known: Callable[[], Fact]) -> None:
        """Write the first record, once: what happened earlier has none. `known` says up to where that was."""
        if self._last.rows(connection):
            return
        number_in_order(connection)
        if not self._last.rows(connection):  # another process may have begun it meanwhile
            self.append(connection, at, [{"kind": BEGIN, "store": self.store, "chain": entropy.hex(16), **known()}])

    def append(self, connection: sa.Connection, at: datetime, facts: Sequence[Fact]) -> None:
        """Write a record for each fact: a JSON object with a `kind`, to which the time is added."""
        if not facts:
            return
        number_in_order(connection)
        last = self._last.rows(connection)
        number, before = last[0] if last else (0, b"")
        rows, at_us = [], str(to_us(at)).encode()
        for number, fact in enumerate(facts, number + 1):  # noqa: B020  it goes on from there
            body = json.dumps({**fact, "at": rfc3339(at)}, sort_keys=True, separators=(",", ":"))
            content = hashlib.sha256(body.encode()).digest()
            before = hashlib.sha256(before + content + at_us).digest()
            rows.append({"number": number, "at_us": to_us(at), "body": body, "content_hash": content, "hash": before})
        self._add.run_each(connection, rows)

    def sign(self, connection: sa.Connection, at: datetime, key: Key) -> Fact | None:
        """Sign the newest hash and record that; return the signed head. None where the newest record is one already."""
        last = self._last.rows(connection)
        if not last or json.loads(self._body.value(connection, of=last[0][0]) or "{}").get("kind") == HEAD:
            return None
        head = signed_head(self.store, last[0][0], bytes(last[0][1]).hex(), key)
        self.append(connection, at, [head])
        return {"store": self.store, "at": rfc3339(at), **head}

    def prune(self, connection: sa.Connection, at: datetime, before: datetime, *, rows: int) -> int:
        """Remove the content of records older than `before`, up to the first that is not; return of how many.

        `rows` is how many rows were pruned that the records tell of.
        """
        last = self._last.rows(connection)
        first = self._first_kept.value(connection, before=to_us(before)) or (last[0][0] + 1 if last else 1)
        removed = self._prune.run(connection, first=first)
        if removed or rows:
            self.append(connection, at, [{"kind": PRUNED, "through": first - 1, "before_us": to_us(before)}])
        return removed


def signed_head(store: str, through: int, newest: str, key: Key) -> Fact:
    """Return the head of a chain, signed with Ed25519."""
    private = _private(key)
    said = f"turnkeeper audit 1\n{store}\n{through}\n{newest}\n".encode()
    signed = {"key": key.id, "public": public_key(key), "signature": private.sign(said).hex()}
    return {"kind": HEAD, "through": through, "hash": newest, **signed}


def public_key(key: Key) -> str:
    """Return the public half of a key, as 64 hexadecimal digits."""
    return str(_private(key).public_key().public_bytes_raw().hex())


def _private(key: Key) -> Any:
    """Return the key with which heads are signed: a key's secret is its seed."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415  once a minute

    return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(key.secret))


def append_alone(path: Path, store: str, at: datetime, facts: Sequence[Fact]) -> None:
    """Write records into the chain of a store's file that no process has open."""
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        Chain(table_of(sa.MetaData()), store).append(connection, at, facts)
    engine.dispose()


class Signer:
    """Signs a store's chain while its process runs, and keeps the signed heads in a file beside the store.

    What a chain's end was is then known although somebody cuts it off.
    """

    def __init__(
        self,
        home: Home,
        run: Callable[[Callable[[sa.Connection], Fact | None]], Awaitable[Fact | None]],
        chain: Chain,
        *,
        clock: Clock,
        entropy: Entropy,
        emit: Callable[..., None],
    ) -> None:
        """Take the home whose key signs, and what runs a function of a connection in a transaction of the store."""
        self._home, self._transact, self._chain = home, run, chain
        self._clock, self._entropy, self._emit = clock, entropy, emit
        self._keys = KeyFile(home, AUDIT)
        self.trouble = ""

    async def run(self) -> None:
        """Sign once a minute, for ever."""
        while True:
            await self._clock.sleep(SIGN_EVERY_S)
            await self.sign()

    async def sign(self) -> None:
        """Sign what is new. What stands in the way is logged once; the records stay unsigned until it passes."""
        try:
            at = self._clock.now()
            if not self._keys.read():
                self._keys.create(at, self._entropy, before=lambda _key: None)
            key = self._keys.read()[0]
            head = await self._transact(lambda connection: self._chain.sign(connection, at, key))
            if head is not None:
                append_synced(self._home.audit_heads, f"{json.dumps(head, sort_keys=True)}\n".encode())
            self.trouble = ""
        except TurnkeeperError as error:
            if not self.trouble:
                self._emit("audit.unsigned", error=str(error))
            self.trouble = str(error)
