"""Check an exported history: find edited, removed and moved records, and name the keys that signed it.

The module needs only Python and `cryptography`, so the recipient of an export can check it without Turnkeeper.

    python verify.py history.jsonl [PUBLIC_KEY ...]

Each line of an export is one JSON object: a `record` of a chain, in order, or a `head`, which signs a chain up to a
record. A record's `content_hash` is the SHA-256 of its `body`; `hash` is the SHA-256 of the previous record's `hash`,
its own `content_hash`, and its `at_us` in decimal digits. A pruned record has no body, and a later record of the kind
`pruned` says that it was pruned. If machines share a store, records and heads also name the `chain`: the public key of
the machine that signs it. Give the public keys that you trust, with 64 hexadecimal digits each. Without keys, every key
is accepted, and the signing keys are listed.
"""

import hashlib
import json
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

Head = Mapping[str, Any]
# The kinds of records that describe the chain itself, with their fields.
_OF_ITSELF: Mapping[str, Collection[str]] = {
    "head": {"through", "hash", "public", "signature"},
    "pruned": {"through"},
    "broken": set(),
    "restored": {"ends"},
    "lost": {"file"},
    "rotated": {"to"},
}


class Chain:
    """The part of a chain that was read so far.

    Attributes:
        key: the public key of the chain; empty if the store has a single chain.
        bodiless: the numbers of records without a body.
        pruned: the number up to which records were pruned, from a record of the chain.
        signed: the number up to which the chain is signed.
    """

    def __init__(self, store: str, key: str = "", node: str = "") -> None:
        self.store, self.key, self.node = store, key, node
        self.number, self.pruned, self.signed = 0, 0, 0
        self.bodiless: list[int] = []
        self._hash = b""

    @property
    def name(self) -> str:
        """The name of the chain with its key, because two machines can have the same name."""
        return f"{self.store} by {self.node} ({self.key[:8]})" if self.key else self.store

    def take(self, record: Mapping[str, Any]) -> Iterator[str]:
        """Check the next record. Yield its faults."""
        number, body = record["number"], record["body"]
        content, found = bytes.fromhex(record["content_hash"]), bytes.fromhex(record["hash"])
        if number != self.number + 1:
            yield f"after record {self.number} comes {number}: records are missing, or in another order"
        elif found != hashlib.sha256(self._hash + content + str(record["at_us"]).encode()).digest():
            yield f"record {number} does not follow from the previous one"
        if body is None:
            self.bodiless.append(number)
        elif content != hashlib.sha256(body.encode()).digest():
            yield f"record {number} was edited"
        self.number, self._hash = number, found

    def end(self) -> Iterator[str]:
        """Yield the faults of the whole chain."""
        if late := [number for number in self.bodiless if number > self.pruned]:
            yield f"record {late[0]} lost its content, and no record says that it was pruned"
        if self.key and self.signed < self.number:
            yield f"nothing signs the records after {self.signed}: another program wrote them, or changed the end"


class Outcome(NamedTuple):
    """The result of a check.

    Attributes:
        faults: a sentence for each fault; empty if every record is unchanged.
        chains: the chains that were read, by store and public key.
        keys: the public keys that signed, as hexadecimal digits.
        notes: facts that a person should know and that are not faults.
    """

    faults: list[str]
    chains: dict[tuple[str, str], Chain]
    keys: set[str]
    notes: list[str]


class _History:
    """The content of an export."""

    def __init__(self, trusted: Collection[str]) -> None:
        self.trusted, self.keys = set(trusted), set[str]()
        self.chains: dict[tuple[str, str], Chain] = {}
        self.hashes: dict[tuple[str, str, int], str] = {}
        self.times: dict[tuple[str, str, int], int] = {}
        self.heads: list[Head] = []  # heads in records
        self.apart: list[Head] = []  # heads from other sources than the store
        self.restored: list[Head] = []
        self.lost: list[Head] = []
        self.faults: list[str] = []
        self.notes: list[str] = []

    def chain_of(self, line: Head) -> Chain:
        name = line["store"], line.get("chain", "")
        chain = self.chains.setdefault(name, Chain(*name))
        chain.node = chain.node or line.get("node", "")
        return chain

    def take_head(self, head: Head) -> None:
        self.chain_of(head)
        self.apart.append(head)

    def take_record(self, record: Mapping[str, Any]) -> None:
        chain = self.chain_of(record)
        self.faults += [f"{chain.name}: {fault}" for fault in chain.take(record)]
        self.hashes[chain.store, chain.key, record["number"]] = record["hash"]
        self.times[chain.store, chain.key, record["number"]] = record["at_us"]
        said = {"store": chain.store, "chain": chain.key, "at_us": record["at_us"], **_said(record)}
        match said.get("kind"):
            case "pruned":
                pruned = self.chain_of(said)
                pruned.pruned = max(pruned.pruned, int(said["through"]))
            case "head":
                self.heads.append(said)
            case "broken":
                what = f"the chain before record {record['number']} was changed by another program"
                self.faults.append(f"{chain.name}: {what}")
            case "restored":
                self.restored.append(said)
                what = f"the database was restored to an earlier time, {said.get('at')}"
                if "now" in said:
                    gone = f"{said.get('records')} or more records after {said.get('since')}"
                    what = (
                        f"lost by the database, whose server changed ({said.get('before')}, now {said['now']}): {gone}"
                    )
                self.notes.append(f"{chain.name}: {what}")
            case "lost":
                self.lost.append(said)
                self.notes.append(
                    f"{chain.name}: {said['file']} {said.get('why')}; the author accepted that, {said.get('at')}"
                )
            case "rotated" if chain.key in self.trusted:
                self.trusted.add(said["to"])

    def judge(self) -> None:
        """Compare the signed and the seen heads with the records."""
        recorded = {(head["store"], head["signature"]) for head in self.heads}
        for head in [*self.apart, *self.heads]:
            chain = self.chain_of(head)
            if head in self.apart and self._is_lost(head):
                continue
            self.faults += [f"{chain.name}: {fault}" for fault in self._faults_of(head)]
            if "signature" not in head:
                continue
            if not chain.key and (head["store"], head["signature"]) not in recorded and head["through"] >= chain.pruned:
                what = f"no record tells that it was signed up to {head['through']}: one was removed"
                self.faults.append(f"{chain.name}: {what}")
            if not chain.key or "since_at" not in head:  # an earlier head does not prove where the chain ends now
                chain.signed = max(chain.signed, head["through"])
            self.keys.add(head["public"])
        self.faults += [f"{chain.name}: {fault}" for chain in self.chains.values() for fault in chain.end()]

    def _faults_of(self, head: Head) -> Iterator[str]:
        through = head["through"]
        found = self.hashes.get((head["store"], head.get("chain", ""), through))
        said = "signed" if "signature" in head and "since_at" not in head else "seen"
        if found != head["hash"] and not self._is_undone(head):
            if found is None:
                yield f"it was {said} up to record {through}, which is missing: the end was cut off"
            else:
                yield f"record {through} is not the one that was {said}"
        if "signature" in head:
            if self.trusted and head["public"] not in self.trusted:
                yield f"record {through} was signed with a key that is not trusted: {head['public']}"
            if not _is_signed(head):
                yield f"the signature of record {through} is wrong"

    def _is_undone(self, head: Head) -> bool:
        """Return True if a trusted machine recorded a restore of the database to a time before the head was seen."""
        return any(
            said["store"] == head["store"]
            and (not self.trusted or said["chain"] in self.trusted)
            and head["through"] > self._end_before(said, head.get("chain", ""))
            and _us(head["at"]) <= said["at_us"]
            for said in self.restored
            if "at" in head
        )

    def _end_before(self, restored: Head, chain: str) -> int:
        """Return the last number of a chain before a restore. Old versions also counted the records of the restore."""
        end: int = dict(restored["ends"]).get(chain, 0)
        while self.times.get((restored["store"], chain, end)) == restored["at_us"]:
            end -= 1
        return end

    def _is_lost(self, head: Head) -> bool:
        """Return True if a record that a trusted key signed says that the records of this head were lost."""
        return "at" in head and any(
            said["store"] == head["store"]
            and (not self.trusted or said.get("public") in self.trusted)
            and _us(head["at"]) <= said["at_us"]
            and self.hashes.get((head["store"], "", head["through"])) != head["hash"]
            and {"through", "hash", "public", "signature"} <= said.keys()
            and _is_signed({**said, "store": f"lost {said['store']}"})
            for said in self.lost
        )


def check(lines: Iterable[Mapping[str, Any]], trusted: Collection[str] = ()) -> Outcome:
    """Check records and heads. `trusted` are public keys. If there are none, every key is accepted."""
    history = _History(trusted)
    for line in lines:
        if "head" in line:
            history.take_head(line["head"])
        else:
            history.take_record(line["record"])
    history.judge()
    return Outcome(list(dict.fromkeys(history.faults)), history.chains, history.keys, history.notes)


def _us(at: str) -> int:
    return int(datetime.fromisoformat(at).timestamp() * 1e6)


def _said(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the content of a record that describes the chain itself. Empty for other records and unreadable ones."""
    if record["body"] is None or not any(f'"{kind}"' in record["body"] for kind in _OF_ITSELF):
        return {}
    try:
        said = json.loads(record["body"])
        needs = set(_OF_ITSELF[said["kind"]])
    except (ValueError, KeyError, TypeError):
        return {}
    complete = needs <= said.keys() and isinstance(said.get("through", 0), int)
    return said if complete else {}


def _is_signed(head: Head) -> bool:
    message = f"turnkeeper audit 1\n{head['store']}\n{head['through']}\n{head['hash']}\n".encode()
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(head["public"]))
        key.verify(bytes.fromhex(head["signature"]), message)
    except (InvalidSignature, ValueError):
        return False
    return head.get("chain", "") in {"", head["public"]}


def told(outcome: Outcome) -> Iterator[str]:
    """Yield each finding as a line."""
    yield from outcome.faults
    yield from outcome.notes
    for chain in outcome.chains.values():
        if chain.number or not chain.key:
            yield f"{chain.name}: {chain.number} records, signed up to {chain.signed}"
    for key in sorted(outcome.keys):
        nodes = sorted({chain.node for chain in outcome.chains.values() if chain.key == key})
        yield f"signed with {key}" + (f", of {' and '.join(nodes)}" if nodes else "")


def main(arguments: list[str]) -> int:
    """Check the file in the first argument. Return 0 if every record is unchanged."""
    with Path(arguments[0]).open(encoding="utf-8") as file:
        outcome = check(map(json.loads, file), arguments[1:])
    sys.stdout.writelines(f"{line}\n" for line in told(outcome))
    return 1 if outcome.faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
