"""Where envelopes with keys have got to, seen by whoever put them; for an agent whose reader settles keys by files."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from turnkeeper.bus.keys import KeyLinks
from turnkeeper.files import Files


class Whereabouts(StrEnum):
    """What has become of an envelope."""

    WAITING = "waiting"
    CLAIMED = "claimed"
    DELIVERED = "delivered"
    QUARANTINED = "quarantined"
    GONE = "gone"  # pruned after its delivery, or removed by hand


def whereabouts(folder: Path, wanted: Mapping[str, str], files: Files) -> dict[str, Whereabouts]:
    """Return where envelopes are, by key; `wanted` holds the name under which each was put.

    An envelope moves on while we look, so the places are read in the order in which it passes them: it is found in one
    that it has left a moment ago, or in the next, and never seen further than it is.
    """
    links = KeyLinks(folder, files)
    lying = {place: set(files.names(folder / place)) for place in ("inbox", "claimed", "delivered", "quarantine")}
    inodes = _inodes(folder / "claimed", lying["claimed"])
    return {key: _where(links, key, name, lying, inodes) for key, name in wanted.items()}


def _where(
    links: KeyLinks, key: str, name: str, lying: Mapping[str, set[str]], claimed_inodes: Mapping[int, str]
) -> Whereabouts:
    if name in lying["inbox"]:
        return Whereabouts.WAITING
    if name in lying["claimed"]:
        return Whereabouts.CLAIMED
    owner = links.inode_of(key)
    if owner in claimed_inodes:  # claimed under another name, or again by the reader that adopted it
        return Whereabouts.CLAIMED
    if owner is not None or name in lying["delivered"]:
        return Whereabouts.DELIVERED
    return Whereabouts.QUARANTINED if name in lying["quarantine"] else Whereabouts.GONE


def _inodes(folder: Path, names: set[str]) -> dict[int, str]:
    found = {}
    for name in names:
        try:
            found[(folder / name).lstat().st_ino] = name
        except FileNotFoundError:
            continue  # archived meanwhile
    return found
