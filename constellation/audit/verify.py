"""Check an exported history: whether any record was edited, removed or put elsewhere, and who signed it.

It stands alone, so that whoever gets an export can check it without Turnkeeper: it needs Python and `cryptography`.

    python verify.py history.jsonl [PUBLIC_KEY ...]

Each line of an export is one JSON object: a `record` of a chain, in order, or a `head`, which signs a chain up to a
record. A record's `content_hash` is the SHA-256 of its `body`; its `hash` is the SHA-256 of the hash before it,
followed by its content's and by its `at_us` in decimal digits. A pruned record has no body, and a later record of the
kind `pruned` says so. Give the public keys that you trust, 64 hexadecimal digits each; without any, every key is taken,
and those that signed are listed.
"""

import hashlib
import json
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey


class Chain:
    """What was read of one store's chain so far.

    Attributes:
        store: the process whose store it is.
        number: of the last record.
        bodiless: the numbers of records without a body.
        pruned: up to which number records were pruned, as the chain itself says.
        signed: up to which number it is signed.
    """

    def __init__(self, store: str) -> None:
        self.store = store
        self.number, self.pruned, self.signed = 0, 0, 0
        self.bodiless: list[int] = []
        self._hash = b""

    def take(self, record: Mapping[str, Any]) -> Iterator[str]:
        """Take the next record; say what is wrong with it."""
        number, body = record["number"], record["body"]
        content, found = bytes.fromhex(record["content_hash"]), bytes.fromhex(record["hash"])
        if number != self.number + 1:
            yield f"after record {self.number} comes {number}: records are missing, or in another order"
        elif found != hashlib.sha256(self._hash + content + str(record["at_us"]).encode()).digest():
            yield f"record {number} does not follow from the one before it"
        if body is None:
            self.bodiless.append(number)
        elif content != hashlib.sha256(body.encode()).digest():
            yield f"record {number} was edited"
        self.number, self._hash = number, found

    def end(self) -> Iterator[str]:
        """Say what is wrong with the whole."""
        if late := [number for number in self.bodiless if number > self.pruned]:
            yield f"record {late[0]} lost its content, and no record says that it was pruned"


class Outcome(NamedTuple):
    """What a check found.

    Attributes:
        faults: one sentence each; empty where all is as it was written.
        chains: what was read, by store.
        keys: the public keys that signed, as hexadecimal digits.
    """

    faults: list[str]
    chains: dict[str, Chain]
    keys: set[str]


def check(lines: Iterable[Mapping[str, Any]], trusted: Collection[str] = ()) -> Outcome:
    """Check records and heads; `trusted` are public keys, and without any every key is taken."""
    chains: dict[str, Chain] = {}
    faults, keys, hashes, heads = [], set[str](), dict[tuple[str, int], str](), []
    apart: list[Mapping[str, Any]] = []  # heads that lie outside the store
    for line in lines:
        if "head" in line:
            apart.append(line["head"])
            continue
        record = line["record"]
        chain = chains.setdefault(record["store"], Chain(record["store"]))
        faults += [f"{chain.store}: {fault}" for fault in chain.take(record)]
        hashes[chain.store, record["number"]] = record["hash"]
        said = _said(record)
        if said.get("kind") == "pruned":
            chain.pruned = max(chain.pruned, int(said["through"]))
        if said.get("kind") == "head":
            heads.append({"store": chain.store, **said})
    recorded = {(head["store"], head["signature"]) for head in heads}
    for head in [*apart, *heads]:
        chain = chains.setdefault(head["store"], Chain(head["store"]))
        faults += [f"{chain.store}: {fault}" for fault in _faults_of_head(head, hashes, trusted)]
        if (head["store"], head["signature"]) not in recorded and head["through"] >= chain.pruned:
            faults.append(f"{chain.store}: no record tells that it was signed up to {head['through']}: one was removed")
        chain.signed = max(chain.signed, head["through"])
        keys.add(head["public"])
    faults += [f"{chain.store}: {fault}" for chain in chains.values() for fault in chain.end()]
    return Outcome(list(dict.fromkeys(faults)), chains, keys)


def _said(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a record about the chain itself says; nothing of any other, and of one that is not readable."""
    if record["body"] is None or ('"head"' not in record["body"] and '"pruned"' not in record["body"]):
        return {}
    try:
        said = json.loads(record["body"])
        complete = said["kind"] == "pruned" or {"through", "hash", "public", "signature"} <= said.keys()
    except (ValueError, KeyError, TypeError):
        return {}
    return said if complete and isinstance(said["through"], int) else {}


def _faults_of_head(
    head: Mapping[str, Any], hashes: Mapping[tuple[str, int], str], trusted: Collection[str]
) -> Iterator[str]:
    through = head["through"]
    found = hashes.get((head["store"], through))
    if found is None:
        yield f"it was signed up to record {through}, which is missing: the end was cut off"
    elif found != head["hash"]:
        yield f"record {through} is not the one that was signed"
    if trusted and head["public"] not in trusted:
        yield f"record {through} was signed with a key that is not trusted: {head['public']}"
    message = f"turnkeeper audit 1\n{head['store']}\n{through}\n{head['hash']}\n".encode()
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(head["public"])).verify(
            bytes.fromhex(head["signature"]), message
        )
    except (InvalidSignature, ValueError):
        yield f"the signature of record {through} is wrong"


def told(outcome: Outcome) -> Iterator[str]:
    """Yield what was found, a line each."""
    yield from outcome.faults
    for chain in outcome.chains.values():
        yield f"{chain.store}: {chain.number} records, signed up to {chain.signed}"
    for key in sorted(outcome.keys):
        yield f"signed with {key}"


def main(arguments: list[str]) -> int:
    """Check the file that is named first; return 0 if all is as it was written."""
    with Path(arguments[0]).open(encoding="utf-8") as file:
        outcome = check(map(json.loads, file), arguments[1:])
    sys.stdout.writelines(f"{line}\n" for line in told(outcome))
    return 1 if outcome.faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
