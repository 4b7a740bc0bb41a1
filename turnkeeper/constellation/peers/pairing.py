"""The identities of a home and its peers: keys and certificates, invitations, and the list of peers.

A home has an ed25519 key, which its peers pin. The key signs a root certificate, which a peer stores, and certificates
for connections, which are valid for a few days. An invitation contains a new key. Its holder can prove possession of
the key before any byte of a message is read. The list of peers is `state/peers.json`, which is always replaced whole.
The commands and the process `peers` change it under its lock.
"""

import base64
import contextlib
import fcntl
import hmac
import json
import os
import re
import ssl
import stat
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property, lru_cache
from hashlib import sha256
from pathlib import Path

from cryptography import exceptions, x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home, make_private
from turnkeeper.entropy import Entropy, SystemEntropy
from turnkeeper.errors import Conflict, Corrupt, InvalidInput, NotFound, Unreachable, meant
from turnkeeper.storage.files import create, machine_errors, replace_whole
from turnkeeper.times import parse_rfc3339, rfc3339

SERVER_NAME = "peer.turnkeeper.invalid"  # every certificate has this name, because the key identifies the home
LASTS = timedelta(days=7)  # the time for which a certificate for connections is valid
_SLACK = timedelta(hours=1)  # the allowed difference between two clocks
_ROOT_LASTS = timedelta(days=365 * 50)
PREFIX = "turnkeeper-peer."
_LARGEST = 8192
_LARGEST_CERTIFICATE = 2048
_SECRET_DIGITS = 64


@dataclass(frozen=True)
class Identity:
    """A key and its root certificate."""

    key: ed25519.Ed25519PrivateKey
    root: x509.Certificate

    @cached_property
    def fingerprint(self) -> str:
        """The fingerprint of the key: see :func:`fingerprint_of`."""
        return fingerprint_of(self.root)

    def pseudonym(self, name: str) -> str:
        """Return a label for a name of this home. Without the home's key, a guess of the name cannot be tested."""
        return hmac.digest(self.key.private_bytes_raw(), name.encode(), "sha256").hex()[:16]

    def certificate(self, now: datetime, lasts: timedelta = LASTS) -> tuple[bytes, bytes]:
        """Return a new certificate for connections, and its private key, both in PEM form."""
        own = ec.generate_private_key(ec.SECP256R1())  # gRPC cannot connect with an ed25519 certificate
        names: list[x509.GeneralName] = [
            x509.DNSName(SERVER_NAME), x509.UniformResourceIdentifier(f"turnkeeper:{self.fingerprint}")
        ]  # fmt: skip
        made = (
            x509.CertificateBuilder()
            .subject_name(_named("Turnkeeper peer"))
            .issuer_name(self.root.subject)
            .public_key(own.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _SLACK)
            .not_valid_after(now + lasts)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self.key, None)
        )
        return made.public_bytes(serialization.Encoding.PEM), _pem(own)


def identity_from(secret: bytes, now: datetime) -> Identity:
    """Return the identity of a 32-byte secret, with a root certificate that is made now."""
    key = ed25519.Ed25519PrivateKey.from_private_bytes(secret)
    name = _named(f"Turnkeeper home {_digest(key.public_key())[:16]}")
    root = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SLACK)
        .not_valid_after(now + _ROOT_LASTS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, None)
    )
    return Identity(key, root)


def open_identity(home: Home, entropy: Entropy, now: datetime) -> Identity:
    """Return the home's identity, made at the first call. Raises Corrupt if the key is lost or readable by others."""
    path, made = home.keys / "peers.json", home.keys_made("peers")
    make_private(home.keys)
    if not path.exists():
        if made.exists():
            hint = "restore it from a backup; or remove state/key-made-peers, and pair with all peers again"
            raise Corrupt("the key that peers know this home by is lost", where=str(path), hint=hint)
        secret = entropy.hex(_SECRET_DIGITS)
        root = identity_from(bytes.fromhex(secret), now).root.public_bytes(serialization.Encoding.DER)
        with machine_errors(path):
            create(path, json.dumps({"version": 1, "secret": secret, "root": _text(root)}).encode(), sync=True)
            made.touch(mode=0o600)
    if stat.S_IMODE(path.lstat().st_mode) & 0o077:
        raise Corrupt("can be read by other users", where=str(path), hint=f"run: chmod 600 {path}")
    try:
        says = json.loads(path.read_bytes())
        key = ed25519.Ed25519PrivateKey.from_private_bytes(bytes.fromhex(says["secret"]))
        return Identity(key, read_root(base64.b64decode(says["root"])))
    except (ValueError, KeyError, TypeError, InvalidInput) as error:
        raise Corrupt("is not the key of a home", where=str(path), hint="restore it from a backup") from error


def listed(home: Home) -> list[dict[str, str | None]]:
    """Return the row of `turnkeeper keys list` for the key by which peers know this home. Empty if there is none."""
    if not (home.keys / "peers.json").exists():
        return []
    own = open_identity(home, SystemEntropy(), SystemClock().now())
    made_at = rfc3339(own.root.not_valid_before_utc + _SLACK)
    return [{"purpose": "peers", "key": own.fingerprint, "created_at": made_at, "retired_at": None}]


def read_root(der: bytes) -> x509.Certificate:
    """Parse a root certificate. Raises InvalidInput unless the certificate is self-signed with an ed25519 key."""
    with contextlib.suppress(ValueError, TypeError, exceptions.InvalidSignature):
        found = x509.load_der_x509_certificate(der[:_LARGEST_CERTIFICATE])
        found.verify_directly_issued_by(found)
        if isinstance(found.public_key(), ed25519.Ed25519PublicKey):
            return found
    raise InvalidInput("is not the certificate of a home", where="certificate")


def fingerprint_of(root: x509.Certificate) -> str:
    """Return the SHA-256 of a home's public key, in 8 groups of 8 hexadecimal digits."""
    return _digest(root.public_key())


def holder_of(certificate: bytes, roots: Mapping[str, x509.Certificate]) -> str | None:
    """Return the fingerprint of the home whose key signed a certificate (DER). Return None if no known home signed it.

    A certificate that names a different home than its signer is refused.
    """
    with contextlib.suppress(ValueError, x509.ExtensionNotFound):
        found = x509.load_der_x509_certificate(certificate)
        named = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = named.get_values_for_type(x509.UniformResourceIdentifier)
        for fingerprint, root in roots.items():
            with contextlib.suppress(ValueError, TypeError, exceptions.InvalidSignature):
                found.verify_directly_issued_by(root)
                return fingerprint if uris == [f"turnkeeper:{fingerprint}"] else None
    return None


def trusting(roots: Mapping[str, x509.Certificate], own: Path) -> ssl.SSLContext:
    """Return the TLS context of a server. It accepts only TLS 1.3, and only client certificates from these homes."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(own)
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(["h2"])
    context.num_tickets = 0  # no session is resumed, so each connection is authenticated separately
    for root in roots.values():
        context.load_verify_locations(cadata=root.public_bytes(serialization.Encoding.DER))
    return context


@dataclass(frozen=True)
class Invitation:
    """An invitation that one person gives to another, so that their homes can pair.

    Attributes:
        address: the address HOST:PORT at which the inviting home listens.
        secret: the key that proves possession of the invitation.
    """

    address: str
    root: x509.Certificate
    secret: bytes
    until: datetime

    def written(self) -> str:
        says = {
            "address": self.address,
            "root": _text(self.root.public_bytes(serialization.Encoding.DER)),
            "secret": self.secret.hex(),
            "until": rfc3339(self.until),
        }
        return PREFIX + base64.urlsafe_b64encode(json.dumps(says).encode()).decode().rstrip("=")


def read_invitation(text: str) -> Invitation:
    """Parse an invitation. Raises InvalidInput if the invitation is malformed."""
    word = "".join(text.split())
    wrong = InvalidInput(
        "is not an invitation", where="INVITATION", hint="copy the whole line that `turnkeeper peers invite` printed"
    )
    if not word.startswith(PREFIX) or len(word) > _LARGEST:
        raise wrong
    encoded = word.removeprefix(PREFIX)
    try:
        says = json.loads(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)))
        secret = bytes.fromhex(says["secret"])
        ed25519.Ed25519PrivateKey.from_private_bytes(secret)
        root = read_root(base64.b64decode(says["root"]))
        return Invitation(check_address(says["address"]), root, secret, parse_rfc3339(says["until"]))
    except (ValueError, KeyError, TypeError, InvalidInput) as error:
        raise wrong from error


def check_address(address: str) -> str:
    """Return the address if it has the form HOST:PORT or [IPV6]:PORT. Raises InvalidInput otherwise."""
    host, _, port = address.rpartition(":")
    plain = host.strip("[]").replace(".", "").replace("-", "").replace(":", "")
    fits = len(address) <= 255 and (":" not in host or (host[:1] == "[" and host[-1:] == "]"))
    if not (plain.isascii() and plain.isalnum() and port.isdigit() and 0 < int(port) < 1 << 16 and fits):
        raise InvalidInput(f"{address[:60]!r} is not an address", where="address", hint="write HOST:PORT")
    return address


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def _digest(key: object) -> str:
    assert isinstance(key, ed25519.Ed25519PublicKey)
    digits = sha256(key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)).hexdigest()
    return "-".join(digits[place : place + 8] for place in range(0, len(digits), 8))


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


MOST_PEERS = 64
MOST_INVITATIONS = 64
_PEER_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A home that this one is paired with.

    Attributes:
        name: its name here; its agent is `agent0@NAME`.
        address: the address HOST:PORT at which it listens.
        certificate: its root certificate, DER in base64.
        added_at: RFC 3339.
    """

    name: str
    address: str
    certificate: str
    added_at: str

    @property
    def agent(self) -> str:
        """The name of the peer's first agent here."""
        return f"agent0@{self.name}"

    @property
    def root(self) -> x509.Certificate:
        return read_root(base64.b64decode(self.certificate))

    @property
    def fingerprint(self) -> str:
        return fingerprint_of(self.root)


@dataclass(frozen=True, kw_only=True)
class OpenInvitation:
    """An invitation that was not accepted yet.

    Attributes:
        name: the name that the home which accepts it gets here.
        certificate: the root certificate of its key, DER in base64.
        until: RFC 3339.
    """

    name: str
    certificate: str
    until: str

    @property
    def root(self) -> x509.Certificate:
        return read_root(base64.b64decode(self.certificate))


@dataclass(frozen=True, kw_only=True)
class Registry:
    """The peers and the open invitations, by name."""

    peers: tuple[Peer, ...] = ()
    invitations: tuple[OpenInvitation, ...] = field(default=())

    def peer(self, name: str) -> Peer:
        for one in self.peers:
            if one.name == name:
                return one
        hint = meant(name, [one.name for one in self.peers]) if self.peers else "see: turnkeeper peers invite --help"
        raise NotFound(f"no peer {name[:40]!r}", where="NAME", hint=hint)

    def with_invitation(self, fresh: OpenInvitation, now: datetime) -> "Registry":
        """Add an invitation, replace an earlier one for the same name, and drop expired ones. Raises Conflict."""
        check_name(fresh.name)
        if any(one.name == fresh.name for one in self.peers):
            hint = "choose another name, or run: turnkeeper peers delete NAME"
            raise Conflict(f"{fresh.name} is a peer already", where="NAME", hint=hint)
        left = [one for one in self.open_at(now) if one.name != fresh.name]
        if len(left) >= MOST_INVITATIONS:
            raise Conflict(f"{MOST_INVITATIONS} invitations are open", where="NAME", hint="wait until some end")
        return replace(self, invitations=(*left, fresh))

    def open_at(self, now: datetime) -> list[OpenInvitation]:
        return [one for one in self.invitations if parse_rfc3339(one.until) > now]

    def with_peer(self, fresh: Peer) -> "Registry":
        """Add a peer, or replace the same home under the same name. Raises Conflict, InvalidInput."""
        check_name(fresh.name)
        for one in self.peers:
            if (one.name == fresh.name) != (one.fingerprint == fresh.fingerprint):
                what = f"{one.name} is another home" if one.name == fresh.name else f"this home is a peer: {one.name}"
                raise Conflict(what, where="NAME", hint="run: turnkeeper peers list")
        fresh = replace(
            fresh, added_at=next((one.added_at for one in self.peers if one.name == fresh.name), fresh.added_at)
        )
        left = tuple(one for one in self.peers if one.name != fresh.name)
        if len(left) >= MOST_PEERS:
            raise Conflict(f"a home has at most {MOST_PEERS} peers", where="NAME")
        kept = tuple(one for one in self.invitations if one.name != fresh.name)
        return Registry(peers=tuple(sorted((*left, fresh), key=lambda one: one.name)), invitations=kept)

    def without(self, name: str) -> "Registry":
        gone = self.peer(name)
        return replace(self, peers=tuple(one for one in self.peers if one != gone))


def check_name(name: str) -> str:
    """Return the name if it is a valid name of a peer. Raises InvalidInput otherwise."""
    if not _PEER_NAME.fullmatch(name):
        raise InvalidInput(f"{name[:40]!r} is not a name", where="NAME", hint="use a-z, 0-9 and -, a letter first")
    return name


def der_text(root: x509.Certificate) -> str:
    """Return a certificate in the registry's form."""
    return base64.b64encode(root.public_bytes(serialization.Encoding.DER)).decode()


def registry_of(home: Home) -> Path:
    return home.root / "state" / "peers.json"


def read_registry(home: Home) -> Registry:
    """Return a home's registry. Return an empty registry if nothing was ever paired. Raises Corrupt."""
    path = registry_of(home)
    try:
        return _registry_from(path.read_bytes(), path)
    except FileNotFoundError:
        return Registry()


@lru_cache(maxsize=1)
def _registry_from(data: bytes, path: Path) -> Registry:
    try:
        says = json.loads(data)
        found = Registry(
            peers=tuple(Peer(**one) for one in says["peers"]),
            invitations=tuple(OpenInvitation(**one) for one in says["invitations"]),
        )
        for name, root in [(one.name, one.root) for one in found.peers] + [
            (one.name, one.root) for one in found.invitations
        ]:
            check_name(name)
            assert root is not None
    except (KeyError, TypeError, ValueError, InvalidInput) as error:
        raise Corrupt("is not a list of peers", where=str(path), hint="restore it from a backup") from error
    return found


@contextlib.contextmanager
def changing(home: Home) -> Iterator[list[Registry]]:
    """Yield the registry in a list with one item. At the end of the block, write the item."""
    path = registry_of(home)
    with machine_errors(path):
        make_private(path.parent)
        descriptor = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            box = [read_registry(home)]
            before = box[0]
            yield box
            if box[0] != before:
                replace_whole(path, json.dumps({"version": 1, **asdict(box[0])}, indent=1).encode())
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def kept(home: Home, peer: Peer) -> Iterator[None]:
    """Prevent the removal of a peer during the block. Raises Unreachable if the peer was removed."""
    with changing(home) as box:
        if (peer.name, peer.certificate) not in {(one.name, one.certificate) for one in box[0].peers}:
            raise Unreachable(f"{peer.name} is no longer a peer", where="NAME")
        yield


def asked_of(home: Home, name: str) -> Path:
    """Return the folder of a peer's unanswered messages. A file for each is named by its turn, and holds its key."""
    return home.root / "state" / "peers" / name


def answers_removed(home: Home, name: str, turn_id: str) -> bool:
    """Return True if a turn answers a message from a removed peer with this name."""
    folder = asked_of(home, name)
    return any((one / turn_id).exists() for one in folder.parent.glob(f"{name}.removed-*"))


def add_peer(home: Home, peer: Peer, now: datetime, invitation: OpenInvitation | None = None) -> None:
    """Add a peer, and make an inbox for its agent. If the peer is new, the inbox is empty. Raises Conflict."""
    with changing(home) as box:
        if invitation is not None and invitation not in box[0].open_at(now):
            raise Conflict("the invitation was used, or has ended", where="INVITATION", hint="ask for another")
        before, box[0] = box[0], box[0].with_peer(peer)
        if peer.name not in {one.name for one in before.peers}:
            _set_aside(home, peer, now)
        make_private(home.inbox(peer.agent))


def remove_peer(home: Home, name: str, now: datetime) -> Path | None:
    """Remove a peer. Return the new place of its agent's folders, or None if there were none. Raises NotFound."""
    with changing(home) as box:
        gone = box[0].peer(name)
        box[0] = box[0].without(name)
        return _set_aside(home, gone, now)


def _set_aside(home: Home, peer: Peer, now: datetime) -> Path | None:
    """Rename the folders under a peer's name, so that a later peer with this name does not get them."""
    found = None
    for folder in (asked_of(home, peer.name), home.inbox(peer.agent)):
        found = folder.with_name(f"{folder.name}.removed-{now:%Y%m%dT%H%M%S.%fZ}") if folder.is_dir() else None
        if found is not None:
            folder.rename(found)
    return found
