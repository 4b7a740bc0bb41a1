"""Signed chains of hashes that record decisions and outcomes.

A record and the change that it records are written in one transaction, so neither exists without the other. The content
of a record is a JSON object with ids, names and hashes. It never contains text that a person wrote. A record's hash
covers its content and the previous record's hash, so an edit, a removal or a reordering is detected.

The store of one home has one chain. Every minute, the process that owns the store signs the newest hash with the home's
key. The chain cannot be rewritten unnoticed without the key. In a shared store, each key of each home has its own
chain. The chain's name is the public half of the key. There, the transaction that writes a record also signs the newest
hash. Each machine stores in its home the newest head that it read from each chain.

A pruned record loses its content and keeps its hashes, so the remaining chain can still be checked. `docs/audit.md`
describes the records; `turnkeeper/constellation/audit/verify.py` checks them.
"""

import hashlib
import json
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import sqlalchemy as sa

from turnkeeper.clock import Clock
from turnkeeper.config.home import Home
from turnkeeper.config.surfaces import offered
from turnkeeper.entropy import Entropy, SystemEntropy
from turnkeeper.errors import Corrupt, TurnkeeperError
from turnkeeper.storage.files import append_synced, replace_whole
from turnkeeper.storage.keys import AUDIT, SECRET_DIGITS, Key, KeyFile
from turnkeeper.storage.statements import TEXT, Statement, in_turn, of_server, upsert
from turnkeeper.times import rfc3339, to_us

BEGIN, HEAD, PRUNED = "begin", "head", "pruned"  # kinds of records that describe the chain itself
# Kinds of records that describe the chains of a shared store: another key continues the chain; the end did not match
# its signature; the database was restored to an earlier time.
ROTATED, BROKEN, RESTORED = "rotated", "broken", "restored"
SCHEMAS = {"task-runner": "runner", "agent-runtime": "runtime"}  # in a shared database, by writing process
SIGN_EVERY_S = 60.0
Fact = Mapping[str, Any]


def table_of(metadata: sa.MetaData) -> sa.Table:
    """Return the table of a store's chain. `metadata` is the store's metadata."""
    return sa.Table(
        "audit",
        metadata,
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),  # numbers without gaps, from 1
        sa.Column("at_us", sa.BigInteger, nullable=False),
        sa.Column("body", TEXT),  # JSON; null after pruning
        sa.Column("content_hash", sa.LargeBinary, nullable=False),  # SHA-256 of the body
        sa.Column("hash", sa.LargeBinary, nullable=False),  # SHA-256 of the previous hash, the content's hash and at_us
    )


def shared_tables_of(metadata: sa.MetaData) -> tuple[sa.Table, sa.Table]:
    """Return the tables of a shared store: the heads of its chains, and the records."""
    ends = sa.Table(
        "audit_chains",
        metadata,
        sa.Column("chain", TEXT, primary_key=True),  # the public half of its key, in hexadecimal digits
        sa.Column("node", TEXT, nullable=False),  # the latest name of the machine
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("hash", sa.LargeBinary, nullable=False),
        sa.Column("signature", sa.LargeBinary, nullable=False),
    )
    records = sa.Table(
        "audit_records",
        metadata,
        sa.Column("chain", TEXT, primary_key=True),
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("at_us", sa.BigInteger, nullable=False),
        sa.Column("body", TEXT),
        sa.Column("content_hash", sa.LargeBinary, nullable=False),
        sa.Column("hash", sa.LargeBinary, nullable=False),
    )
    return ends, records


def digest(text: str) -> str:
    """Return the SHA-256 of a string, as 64 hexadecimal digits. Return an empty string for an empty text."""
    return hashlib.sha256(text.encode()).hexdigest() if text else ""


def linked(number: int, before: bytes, at: datetime, facts: Sequence[Fact]) -> list[dict[str, Any]]:
    """Return one record for each fact. The first record follows the record with the number and hash `before`."""
    rows, at_us = [], str(to_us(at)).encode()
    for number, fact in enumerate(facts, number + 1):  # noqa: B020, PLR1704  numbering continues from there
        body = json.dumps({**fact, "at": rfc3339(at)}, sort_keys=True, separators=(",", ":"))
        content = hashlib.sha256(body.encode()).digest()
        before = hashlib.sha256(before + content + at_us).digest()
        rows.append({"number": number, "at_us": to_us(at), "body": body, "content_hash": content, "hash": before})
    return rows


class Recorder:
    """A process's identity in a shared store: a key of its home. The key's public half names the chain.

    Attributes:
        public: the name of the chain.
        earlier: the identities with earlier, replaced keys, latest first.
        reached: the number of the last committed record, by store.
        server: the server of the database at the last check; empty before the first check.
        lost: the records about losses since the last check.
    """

    def __init__(self, keys: Sequence[Key], node: str) -> None:
        """Take the keys, with the current key first, and the name of the machine."""
        self._key, self.node = _private(keys[0]), node
        self.public, self.earlier = public_key(keys[0]), [Recorder([key], node) for key in keys[1:]]
        self._last, self._signed_in = b"", object()
        self.reached: dict[str, int] = {}
        self.server, self.lost = "", list[Fact]()

    @classmethod
    def of(cls, home: Home, at: datetime, entropy: Entropy, node: str) -> "Recorder":
        """Return a home's recorder. Make a key if the home never had one. Raises Corrupt if the key was lost."""
        return cls(key_of(home, at, entropy), node)

    def sign(self, store: str, number: int, newest: bytes, transaction: object) -> bytes:
        """Sign the head of the chain, in a transaction."""
        self._last, self._signed_in = newest, transaction
        return bytes(self._key.sign(_said(store, number, newest.hex())))

    def has_signed(self, store: str, number: int, newest: bytes, signature: bytes, transaction: object) -> bool:
        """Return True if this key signed the head, and the head is not older than the last committed record.

        A head signed in the same transaction does not count as committed, because it may be rolled back.
        """
        if number < self.reached.get(store, 0) or not (
            newest == self._last or is_signed(self.public, store, number, newest, signature)
        ):
            return False
        if transaction is not self._signed_in:
            self.reached[store] = number
        return True


class SharedChains:
    """The chains of a shared store. Every method runs in the transaction that is open on the connection."""

    def __init__(self, store: str, schema: str | None = None) -> None:
        """Take the name of the process that writes the chains, and their schema if not the connection's default."""
        self._store, self._metadata = store, sa.MetaData(schema=schema)
        self.ends, records = shared_tables_of(self._metadata)
        self._own = [self.ends, records]
        alone = table_of(self._metadata)  # the old chain of all machines, or the chain of a moved home
        mine: Any = sa.bindparam("of")
        end, row = self.ends.c, records.c
        found = sa.select(end.number, end.hash, end.signature).where(end.chain == mine)
        self._end = Statement(found.with_for_update())
        self._all = Statement(sa.select(end.chain, end.node, end.number, end.hash, end.signature).order_by(end.chain))
        newest = sa.select(row.number, row.hash).where(row.chain == mine).order_by(row.number.desc())
        self._newest = Statement(newest.limit(1))
        self._add = Statement(sa.insert(records))
        self._move = Statement(upsert(self.ends, [end.chain], ["node", "number", "hash", "signature"]))
        self._hash = Statement(sa.select(row.hash).where(row.chain == mine, row.number == sa.bindparam("at")))
        stays = sa.or_(*(row.body.like(f'%"kind":"{kind}"%') for kind in (BEGIN, ROTATED, BROKEN, RESTORED)))
        kept = sa.select(row.number).where(row.chain == mine, row.at_us >= sa.bindparam("before"))
        self._first_kept = Statement(kept.order_by(row.number).limit(1))
        early = (row.chain == mine) & (row.number < sa.bindparam("first")) & row.body.is_not(None) & ~stays
        self._prune = Statement(sa.update(records).where(early).values(body=sa.null()))
        self._end_alone = Statement(sa.select(alone.c.number, alone.c.hash).order_by(alone.c.number.desc()).limit(1))
        self._hash_alone = Statement(sa.select(alone.c.hash).where(alone.c.number == sa.bindparam("at")))

    def begin(self, connection: sa.Connection, at: datetime, of: Recorder, known: Callable[[], Fact]) -> None:
        """Create the tables, and write the first record of a chain, once.

        Record the new key in the chain of each earlier key. `known` returns the last ids in the store before then.
        """
        if self._exists(connection) and self._base(connection, of)[0]:
            return
        in_turn(connection, ["the beginning of a chain"])
        self._metadata.create_all(connection, tables=self._own)
        if not self._base(connection, of)[0]:
            for earlier in of.earlier:
                if self._end.rows(connection, of=earlier.public):
                    self.append(connection, at, [{"kind": ROTATED, "to": of.public}], earlier)
            self.append(connection, at, [self._begun(of) | dict(known())], of)

    def append(self, connection: sa.Connection, at: datetime, facts: Sequence[Fact], of: Recorder) -> None:
        """Write a record for each fact into a recorder's chain, and sign its head. Do not wait for other writers."""
        number, before, is_whole = self._base(connection, of)
        if not number and facts[0]["kind"] != BEGIN:  # the chain was deleted
            facts = [self._begun(of), *facts]
        elif not is_whole:
            cut = offered("lost end of a chain", connection, of, self._store, number, facts[0]["kind"])
            facts = [*([{"kind": BROKEN, "after": number}] if cut is None else cut), *facts]
        rows = linked(number, before, at, facts)
        self._add.run_each(connection, [{"chain": of.public, **row} for row in rows])
        end = {name: rows[-1][name] for name in ("number", "hash")}
        signature = of.sign(self._store, end["number"], end["hash"], connection.get_transaction())
        self._move.run(connection, chain=of.public, node=of.node, signature=signature, **end)

    def _begun(self, of: Recorder) -> dict[str, Any]:
        return {"kind": BEGIN, "store": self._store, "chain": of.public, "node": of.node}

    def _base(self, connection: sa.Connection, of: Recorder) -> tuple[int, bytes, bool]:
        """Return the number and hash of a chain's head, and True if its signature is valid. Lock the head."""
        if found := self._end.rows(connection, of=of.public):
            number, newest, signature = found[0][0], bytes(found[0][1]), bytes(found[0][2])
            is_whole = of.has_signed(self._store, number, newest, signature, connection.get_transaction())
            return number, newest, is_whole
        left = self._newest.rows(connection, of=of.public)
        return (left[0][0], bytes(left[0][1]), False) if left else (0, b"", True)

    def prune(self, connection: sa.Connection, at: datetime, before: datetime, of: Recorder, *, rows: int) -> int:
        """Remove the content of records older than `before`, in every chain. Return the number of records."""
        removed, facts, us = 0, [], to_us(before)
        for chain, _, number, *_ in self._all.rows(connection):
            first = self._first_kept.value(connection, of=chain, before=us) or number + 1
            if gone := self._prune.run(connection, of=chain, first=first):
                facts.append({"kind": PRUNED, "chain": chain, "through": first - 1, "before_us": us})
            removed += gone
        if rows and not facts:
            facts.append({"kind": PRUNED, "chain": of.public, "through": 0, "before_us": us})
        if facts:
            self.append(connection, at, facts, of)
        return removed

    def restored(self, connection: sa.Connection, at: datetime, of: Recorder, incarnation: str) -> None:
        """Record that the database was restored to an earlier time, and the last number that each chain had then."""
        ends = [[head["chain"], head["through"]] for head in self.heads(connection)]  # before this adds records
        self.begin(connection, at, of, dict)
        self.append(connection, at, [{"kind": RESTORED, "incarnation": incarnation, "ends": ends}], of)

    def heads(self, connection: sa.Connection) -> Iterator[dict[str, Any]]:
        """Yield the head of each chain in the database, including the unsigned head of the old common chain."""
        if not self._exists(connection):
            return
        for chain, node, number, newest, signature in self._all.rows(connection):
            signed = {"public": chain, "signature": bytes(signature).hex()}
            yield (
                {"store": self._store, "chain": chain, "through": number, "hash": bytes(newest).hex()}
                | signed
                | {"node": node}
            )
        for number, newest in self._end_alone.rows(connection):
            yield {"store": self._store, "chain": "", "through": number, "hash": bytes(newest).hex()}

    def _exists(self, connection: sa.Connection) -> bool:
        return connection.exec_driver_sql("SELECT to_regclass(%s)", (str(self.ends),)).scalar() is not None

    def holds(self, connection: sa.Connection, head: Fact) -> bool:
        """Return True if a chain still holds the record that a head names."""
        statement, of = (self._hash, {"of": head["chain"]}) if head["chain"] else (self._hash_alone, {})
        found = statement.value(connection, at=head["through"], **of)
        return found is not None and bytes(found).hex() == head["hash"]


class Chain:
    """The records of a store. Every method runs in the transaction that is open on the connection."""

    def __init__(self, table: sa.Table, store: str) -> None:
        """Take the store's table, and the name of the process that owns the store."""
        self.store = store
        self._shared, self._recorders = SharedChains(store), WeakKeyDictionary[sa.Engine, Recorder]()
        self._last = Statement(sa.select(table.c.number, table.c.hash).order_by(table.c.number.desc()).limit(1))
        self._add = Statement(sa.insert(table))
        self._body = Statement(sa.select(table.c.body).where(table.c.number == sa.bindparam("of")))
        late = (table.c.body.is_not(None)) & (table.c.at_us >= sa.bindparam("before"))
        self._first_kept = Statement(sa.select(table.c.number).where(late).order_by(table.c.number).limit(1))
        early = (table.c.body.is_not(None)) & (table.c.number < sa.bindparam("first"))
        self._prune = Statement(sa.update(table).where(early).values(body=sa.null()))

    def begin(
        self,
        connection: sa.Connection,
        at: datetime,
        entropy: Entropy,
        known: Callable[[], Fact],
        recorder: Recorder | None = None,
    ) -> None:
        """Write the first record, once. `known` returns the last ids in the store before that record.

        In a shared store, this process then writes as `recorder`. If it is None, the process keeps its recorder, or
        makes one if it has none.
        """
        if of_server(connection):
            drawn = Key(id="", secret=entropy.hex(SECRET_DIGITS), created_at="")
            of = recorder or self._recorders.get(connection.engine) or Recorder([drawn], "")
            self.write_as(connection, of)
            self._shared.begin(connection, at, of, known)
        elif not self._last.rows(connection):
            self.append(connection, at, [{"kind": BEGIN, "store": self.store, "chain": entropy.hex(16), **known()}])

    def append(self, connection: sa.Connection, at: datetime, facts: Sequence[Fact]) -> None:
        """Write a record for each fact. A fact is a JSON object with a `kind`; the time is added."""
        if not facts:
            return
        if of_server(connection):
            self._shared.append(connection, at, facts, self.recorder(connection, at))
            return
        last = self._last.rows(connection)
        number, before = last[0] if last else (0, b"")
        self._add.run_each(connection, linked(number, before, at, facts))

    def write_as(self, connection: sa.Connection, recorder: Recorder) -> None:
        """Set the recorder that writes for this process into a shared store."""
        self._recorders[connection.engine] = recorder

    def recorder(self, connection: sa.Connection, at: datetime) -> Recorder:
        """Return the recorder of this process. If none was set, make one with a new key."""
        if connection.engine not in self._recorders:
            self.begin(connection, at, SystemEntropy(), dict)
        return self._recorders[connection.engine]

    def sign(self, connection: sa.Connection, at: datetime, key: Key) -> Fact | None:
        """Sign the newest hash and record it as a head. Return the head. Return None if no record follows it."""
        last = self._last.rows(connection)
        if not last or json.loads(self._body.value(connection, of=last[0][0]) or "{}").get("kind") == HEAD:
            return None
        head = signed_head(self.store, last[0][0], bytes(last[0][1]).hex(), key)
        self.append(connection, at, [head])
        return {"store": self.store, "at": rfc3339(at), **head}

    def prune(self, connection: sa.Connection, at: datetime, before: datetime, *, rows: int) -> int:
        """Remove the content of all records that precede the first record at or after `before`.

        Return the number of records. `rows` is the number of rows that the caller pruned. If either number is not zero,
        record both.
        """
        if of_server(connection):
            return self._shared.prune(connection, at, before, self.recorder(connection, at), rows=rows)
        last = self._last.rows(connection)
        first = self._first_kept.value(connection, before=to_us(before)) or (last[0][0] + 1 if last else 1)
        removed = self._prune.run(connection, first=first)
        if removed or rows:
            self.append(connection, at, [{"kind": PRUNED, "through": first - 1, "before_us": to_us(before)}])
        return removed


def signed_head(store: str, through: int, newest: str, key: Key) -> Fact:
    """Return the head of a chain, signed with Ed25519."""
    private = _private(key)
    signed = {"key": key.id, "public": public_key(key), "signature": private.sign(_said(store, through, newest)).hex()}
    return {"kind": HEAD, "through": through, "hash": newest, **signed}


def _said(store: str, through: int, newest: str) -> bytes:
    return f"turnkeeper audit 1\n{store}\n{through}\n{newest}\n".encode()


def is_signed(public: str, store: str, number: int, newest: bytes, signature: bytes) -> bool:
    """Return True if a key has signed the head of a chain. `public` is the public half of the key."""
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415  seldom needed
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415

    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public))
        key.verify(signature, _said(store, number, newest.hex()))
    except (InvalidSignature, ValueError):
        return False
    return True


def public_key(key: Key) -> str:
    """Return the public half of a key, as 64 hexadecimal digits."""
    return str(_private(key).public_key().public_bytes_raw().hex())


def _private(key: Key) -> Any:
    """Return the private key that signs heads, made from the home key's secret."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415  once a minute

    return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(key.secret))


def key_of(home: Home, at: datetime, entropy: Entropy) -> tuple[Key, ...]:
    """Return a home's signing keys, with the current key first. Make the first key if none exists. Raises Corrupt."""
    keys = KeyFile(home, AUDIT)
    if not keys.read():
        keys.create(at, entropy, before=lambda _key: None)
    return keys.read()


class Signer:
    """The signer of a store's chain, which works while the store's process runs.

    The signed heads are kept in a file beside the store. It shows where the chain ended if the last records are
    removed.
    """

    def __init__(
        self,
        home: Home,
        run: Callable[[Callable[[sa.Connection], Any]], Awaitable[Any]],
        chain: Chain,
        *,
        clock: Clock,
        entropy: Entropy,
        emit: Callable[..., None],
    ) -> None:
        """Take the home that holds the key, and `run`, which calls a function with a connection in a transaction."""
        self._home, self._transact, self._chain = home, run, chain
        self._clock, self._entropy, self._emit = clock, entropy, emit
        self._keys = KeyFile(home, AUDIT)
        self.trouble = ""

    async def run(self) -> None:
        """Sign once a minute until cancelled."""
        while True:
            await self._clock.sleep(SIGN_EVERY_S)
            await self.sign()

    async def sign(self) -> None:
        """Sign the new records. Log a failure once. The records stay unsigned until signing succeeds again."""
        try:
            at = self._clock.now()
            await self._sign(at, key_of(self._home, at, self._entropy))
            self.trouble = ""
        except TurnkeeperError as error:
            if not self.trouble:
                self._emit("audit.unsigned", error=str(error))
            self.trouble = str(error)

    async def _sign(self, at: datetime, keys: Sequence[Key]) -> None:
        head = await self._transact(lambda connection: self._chain.sign(connection, at, keys[0]))
        if head is not None:
            append_synced(self._home.audit_heads, f"{json.dumps(head, sort_keys=True)}\n".encode())


class Witness(Signer):
    """The watcher of all chains of a shared database. The watcher stores in the home the heads that it read.

    A chain that was rewritten or truncated does not match the heads that other machines stored. If the home has a new
    key, a new chain continues the chain of the previous key.
    """

    async def run(self) -> None:
        """Check at once, and then once a minute until cancelled."""
        await self.sign()
        await super().run()

    async def _sign(self, at: datetime, keys: Sequence[Key]) -> None:
        path = self._home.audit_seen(self._chain.store)
        before = read_seen(path)
        seen, strange, note = await self._transact(lambda connection: self._look(connection, at, keys, before))
        if note is not None and note(self._emit):
            strange = []
        if seen != before:
            replace_whole(path, json.dumps({"v": 1, "seen": seen}, indent=1).encode())
        for what in strange:
            self._emit("audit.changed", durable=True, what=what)

    def _look(
        self, connection: sa.Connection, at: datetime, keys: Sequence[Key], before: Sequence[Fact]
    ) -> tuple[list[Fact], list[str], Any]:
        writes_as = self._chain.recorder(connection, at)
        if writes_as.public != public_key(keys[0]):
            self._chain.begin(connection, at, self._entropy, dict, Recorder(keys, writes_as.node))
        heads, fits = [], set[int]()
        for store, schema in SCHEMAS.items():
            chains = SharedChains(store, schema)
            found = list(chains.heads(connection))
            heads += found
            if found:
                fits |= {n for n, one in enumerate(before) if one["store"] == store and chains.holds(connection, one)}
        seen, strange = seen_now(before, fits, heads, rfc3339(at))
        writes_as = self._chain.recorder(connection, at)
        lost = offered("loss of a database", self._home, self._chain.store, writes_as, connection, at, seen)
        return seen, strange, lost


def signer_of(is_shared: bool) -> type[Signer]:
    """Return the class that watches the chains of a shared store, or else the class that signs a home's own chain."""
    return Witness if is_shared else Signer


def seen_now(
    before: Sequence[Fact], fits: Collection[int], heads: Sequence[Fact], at: str
) -> tuple[list[Fact], list[str]]:
    """Merge the heads that a machine stored with the present heads. Return the result and the new contradictions.

    `fits` contains the indices of earlier heads that the chains still hold; `heads` are the present heads.
    """
    latest: dict[tuple[str, str], Fact] = {}
    kept, strange = [], []
    for number, one in enumerate(before):
        if number in fits and "misfit_at" not in one:
            latest[one["store"], one["chain"]] = one
            continue
        if "misfit_at" not in one:
            strange.append(f"record {one['through']} of {one['store']} by {one.get('node') or 'all machines'}")
        kept.append({"misfit_at": at, **one})
    for head in heads:
        name = head["store"], head["chain"]
        newest = bytes.fromhex(head["hash"])
        signed = not head["chain"] or is_signed(
            head["public"], head["store"], head["through"], newest, bytes.fromhex(head["signature"])
        )
        was = latest.get(name)
        if signed and (was is None or head["through"] > was["through"]):
            latest[name] = {**head, "since_at": was["since_at"] if was else at, "at": at}
    return [*kept, *latest.values()], strange


def read_seen(path: Path) -> list[Fact]:
    """Return the heads that a machine has stored. Raises Corrupt."""
    if not path.exists():
        return []
    try:
        seen = json.loads(path.read_bytes())["seen"]
        if all({"store", "chain", "through", "hash", "at"} <= one.keys() for one in seen):
            return list(seen)
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise Corrupt("is not a list of the chain heads that were seen", where=str(path), hint="restore it from a backup")
