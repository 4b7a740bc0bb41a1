"""JSON objects that a caller gave: what is too long, too deep or no object is refused with the field's name."""

import pytest

from turnkeeper.config.json_text import is_deeper, read_object
from turnkeeper.errors import InvalidInput


def nested(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (nested(33), "nested deeper than 32"), (nested(500), "nested deeper"), (nested(200_000), "not JSON|longer"),
        ("[1]", "not a JSON object"), ("{", "not JSON"), ("", "not JSON"), ('{"a": NaN}', "not a JSON number"),
        ('{"a": "' + "x" * 2000 + '"}', "longer than 1000"), ('{"a": "\\ud83d"}', "half a character"),
        ('{"\\ud83d": 1}', "half a character"),
    ],
)  # fmt: skip
def test_what_cannot_be_taken_is_refused(text: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why) as refused:
        read_object(text, where="payload", longest=1000 if "n" not in why[:2] else 1 << 20)
    assert refused.value.where == "payload"


def test_what_can_be_taken_is_returned() -> None:
    assert read_object(nested(32), where="x", longest=1000)
    assert read_object('{"a": "\\ud83d\\ude00"}', where="x", longest=1000) == {"a": "😀"}
    assert read_object('{"a": "\\ud83d"}', where="x", longest=1000, half_characters=True)


def test_depth_counts_levels_of_lists_and_tables() -> None:
    assert not is_deeper({}, 1)
    assert not is_deeper(1, 0)
    assert is_deeper([[]], 1)
    assert not is_deeper({"a": [[1]]}, 3)
    assert is_deeper({"a": [[1]]}, 2)
