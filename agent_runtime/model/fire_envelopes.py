"""Encoder for fires: compute a fire's digest and encoded envelope without building Trigger and Envelope objects.

The fires of a category differ only in their values. The text around the values, called a form, is made once: encode a
trigger whose values are marks, then replace each mark with a gap. So the fields of a form, their order and their
spelling come from the normal definitions.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from json.encoder import encode_basestring, encode_basestring_ascii
from operator import itemgetter
from typing import Any, NamedTuple

from agent_runtime.model import trigger as triggers
from agent_runtime.model.turn import Category
from turnkeeper.bus import LARGEST_BYTES
from turnkeeper.bus.envelope import Encoded, check_value, written
from turnkeeper.errors import InvalidInput
from turnkeeper.times import rfc3339

_MARK = "@@"
_IN_FORMS = ("source", "grant", "read_only", "sender", "parent", "hops", "via")  # the same for all fires of a form
_SPARSE = (*triggers.ON_APPROVALS, *triggers.OF_GRAPH)  # a form has gaps only for the values that its fires set
# Other texts are printable ASCII.
_ANY_TEXT = ("prompt", "payload_json", "context_json", "config_json", "input_json", "run_json")
_MOST_FORMS = 1024
_PLAIN_LABEL = re.compile(r"[ -!#-;=?-~]{1,128}", re.ASCII)  # printable, without markup
_GAPS = {name: f"{_MARK}{name}{_MARK}" for name in triggers.Trigger.__dataclass_fields__ if name not in _IN_FORMS}
_INSTANT_GAPS = {name: datetime(9000 + place, 1, 1, tzinfo=UTC) for place, name in enumerate(sorted(triggers.INSTANTS))}
_LOOP_GAP = f"{triggers.LOOP}{_GAPS['task_id']}"
_ENVELOPE_ID, _AT = f"{_MARK}envelope_id{_MARK}", datetime(9100, 1, 1, tzinfo=UTC)
_WRITTEN = {
    **_GAPS,
    **{name: rfc3339(at) for name, at in _INSTANT_GAPS.items()},
    "envelope_id": _ENVELOPE_ID,
    "at": rfc3339(_AT),
}
_OF_HEADER = [name for name in triggers.TriggerHeader.__dataclass_fields__ if name not in {"digest", "category"}]
_sparse = itemgetter(*_SPARSE)


class Stamp(NamedTuple):
    """The values of an envelope that its trigger lacks: an id, and the time of writing in RFC 3339."""

    id: str
    at: str


class _Form(NamedTuple):
    """Format strings for the digested text and the envelope, with gaps for quoted values; empty for no form."""

    category: Category
    digested: str
    envelope: str
    sender: str


class FireEnvelopes:
    """Encoder that makes envelopes of fires, and caches their forms."""

    def __init__(self) -> None:
        self._forms: dict[tuple[Any, ...], _Form] = {}

    def encode(self, said: Mapping[str, Any], stamp: Stamp) -> triggers.EncodedTrigger | None:
        """Return a fire as an envelope; None if only :func:`.encode_trigger` can encode or refuse the fire.

        `said` holds the checked values of the fire, by the names of a trigger's fields.
        """
        form = self._form(said)
        if not (form.envelope and _PLAIN_LABEL.fullmatch(said["thread_id"])):
            return None
        quoted = {name: encode_basestring_ascii(value) if type(value) is str else value for name, value in said.items()}
        for name in triggers.INSTANTS:
            quoted[name] = _quoted_instant(said[name])
        digest = hashlib.sha256((form.digested % quoted).encode()).hexdigest()
        for name in _ANY_TEXT:
            if not (said[name].isascii() and "\x7f" not in said[name]):
                quoted[name] = encode_basestring(said[name])
        quoted |= {"digest": f'"{digest}"', "envelope_id": f'"{stamp.id}"', "at": f'"{stamp.at}"'}
        data = (form.envelope % quoted).encode()
        if len(data) > LARGEST_BYTES:
            return None
        header: triggers.TriggerHeader = object.__new__(triggers.TriggerHeader)
        vars(header).update({name: said[name] for name in _OF_HEADER}, digest=digest, category=said["grant"].name)
        return triggers.EncodedTrigger(header, Encoded(said["agent"], form.sender, said["key"], data))

    def _form(self, said: Mapping[str, Any]) -> _Form:
        category: Category = said["grant"]
        kind = (category.name, said["read_only"], triggers.is_loop(said["task_id"]), *map(bool, _sparse(said)))
        form = self._forms.get(kind)
        if form is None or form.category is not category:
            if len(self._forms) >= _MOST_FORMS:
                self._forms.clear()
            form = self._forms[kind] = _make(said)
        return form


@lru_cache(maxsize=1024)
def _quoted_instant(at: datetime | None) -> str:
    return f'"{rfc3339(at)}"' if at else '""'


def _make(said: Mapping[str, Any]) -> _Form:
    """Return the form of a fire and similar fires; an empty form if its category fits into no form."""
    category: Category = said["grant"]
    grant = json.dumps(category.to_dict(), ensure_ascii=False)
    if any(mark in grant for mark in (_MARK, *_WRITTEN.values())):
        return _Form(category, "", "", "")
    marks: dict[str, Any] = {**_GAPS, **_INSTANT_GAPS}
    marks |= {name: said[name] and marks[name] for name in _SPARSE}
    if triggers.is_loop(said["task_id"]):
        marks["task_id"] = _LOOP_GAP
    trigger = triggers.Trigger(source="fire", grant=category, read_only=said["read_only"], **marks)
    envelope = triggers.to_envelope(trigger, envelope_id=_ENVELOPE_ID, at=_AT)
    try:
        check_value([envelope.meta], where="meta")
    except InvalidInput:
        return _Form(category, "", "", "")
    return _Form(category, _with_gaps(trigger.digested()), _with_gaps(written(envelope)), envelope.sender)


def _with_gaps(text: str) -> str:
    text = text.replace("%", "%%").replace(_LOOP_GAP, _GAPS["task_id"])
    for name, mark in _WRITTEN.items():
        text = text.replace(f'"{mark}"', f"%({name})s")
    return text
