"""Where envelopes with keys have got to, seen by whoever put them; for an agent whose reader settles keys by files."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from turnkeeper.bus.key_index import KeyLinks
from turnkeeper.storage.files import Files


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
    waiting = set(files.names(folder / "inbox"))
    claimed = set(files.names(folder / "claimed"))
    found = {key: Whereabouts.WAITING for key, name in wanted.items() if name in waiting}
    found |= {key: Whereabouts.CLAIMED for key, name in wanted.items() if name in claimed and key not in found}
    left = {key: name for key, name in wanted.items() if key not in found}
    return found | (_further(folder, left, _inodes(folder / "claimed", claimed), files) if left else {})


def _further(
    folder: Path, left: Mapping[str, str], claimed_inodes: Mapping[int, str], files: Files
) -> dict[str, Whereabouts]:
    """Return where those are that neither wait nor are claimed under their own names."""
    links = KeyLinks(folder, files)
    owners = {key: links.inode_of(key) for key in left}
    delivered, set_aside = set(files.names(folder / "delivered")), set(files.names(folder / "quarantine"))
    found = {}
    for key, name in left.items():
        if owners[key] in claimed_inodes:  # claimed under another name, or again by the reader that adopted it
            found[key] = Whereabouts.CLAIMED
        elif owners[key] is not None or name in delivered:
            found[key] = Whereabouts.DELIVERED
        else:
            found[key] = Whereabouts.QUARANTINED if name in set_aside else Whereabouts.GONE
    return found


def _inodes(folder: Path, names: set[str]) -> dict[int, str]:
    found = {}
    for name in names:
        try:
            found[(folder / name).lstat().st_ino] = name
        except FileNotFoundError:
            continue  # archived meanwhile
    return found
