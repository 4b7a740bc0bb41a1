"""Writing arguments down: equal contents only are equal, secrets are not shown, and what has no content is a problem."""

import array
import ctypes
import dataclasses
import logging
import pathlib
from datetime import UTC, datetime
from decimal import Decimal
from enum import KEEP, Enum, Flag, IntFlag
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from uuid import UUID, SafeUUID  # noqa: TID251  the classes, of which two values are compared
from zoneinfo import ZoneInfo

import numpy as np
import pytest
import tzdata
from langchain_core.messages import AIMessage
from pydantic import BaseModel, PrivateAttr, Secret, SecretBytes, SecretStr, create_model

from agent_runtime.graph.guard.arguments import write


@dataclasses.dataclass(slots=True)
class Slotted:
    a: str
    b: str = dataclasses.field(default="", repr=False)


class Model(BaseModel):
    a: str = ""
    _b: str = PrivateAttr("")


class Text(str):  # noqa: SLOT000  it has attributes
    """A text that says another than it holds, and holds more."""

    def __str__(self) -> str:
        return "same"


class Pair(NamedTuple):
    a: int
    b: int


class Kind(Enum):
    A = "a"


class OtherKind(Enum):
    A = "a"


with (Path(tzdata.__file__).parent / "zoneinfo" / "Asia" / "Tokyo").open("rb") as rules:
    FOREIGN = ZoneInfo.from_file(rules, key="Europe/Berlin")


class Liar:
    def __str__(self) -> str:
        return "same"

    __repr__ = __str__


def model(private: str) -> Model:
    made = Model()
    made._b = private
    return made


def text(extra: str) -> Text:
    made = Text("a")
    made.extra = extra  # type: ignore[attr-defined]
    return made


def made(kind: str, **values: Any) -> Any:
    """Return an object of a class that is made now; classes of one kind differ in these values alone."""
    match kind:
        case "enum":
            return Enum("Made", values)["a"]
        case "field without init":
            fields = [(name, str, dataclasses.field(init=False, default=value)) for name, value in values.items()]
            return dataclasses.make_dataclass("Made", fields)()
        case "text":
            return type("Made", (str,), values)("same")
        case _:
            return type("Made", (BaseModel,), {**values, "__module__": __name__, "__annotations__": dict.fromkeys(
                values, ClassVar[Any])})()  # fmt: skip


def unset(value: Model) -> Model:
    value.model_fields_set.clear()
    return value


def pointing(to: str) -> Any:
    kind = type("Kind", (ctypes.Structure,), {"_fields_": [("text", ctypes.c_wchar_p)]})
    return kind(to)


def union(name: str, kind: Any) -> Any:
    """Return an object of C whose format tells nothing of what it holds."""
    return type("Union", (ctypes.Union,), {"_fields_": [(name, kind)]})()


class Bits(IntFlag, boundary=KEEP):
    A = 1


def forged(value: str) -> Any:
    """Return what calls itself a member of an enum, and is none."""
    made_up = object.__new__(Kind)
    made_up._name_, made_up._value_ = "A", value
    return made_up


def secret(extra: str) -> SecretStr:
    held = SecretStr("a")
    held.extra = extra  # type: ignore[attr-defined]
    return held


def hiding(value: str) -> Any:
    """Return an object with two slots of one name, of which its class hides one."""
    base = type("Base", (), {"__slots__": ("a",)})
    kind: Any = dataclasses.dataclass(type("Sub", (base,), {"__slots__": ("a",)}))
    held = kind()
    held.a = "same"
    vars(base)["a"].__set__(held, value)
    return held


def made_by(account: str) -> Any:
    """Return a model whose class has an attribute from its own class."""
    kind = type("Kind", (type(BaseModel),), {"account": account})
    return kind("Made", (BaseModel,), {"__module__": __name__})()


def nested(account: str) -> Any:
    """Return a model that holds no other one, and whose class names one that was made with an account."""
    inner: Any = create_model("Inner", account=(str, account))
    return create_model("Outer", inner=(inner | None, None))()


UNLIKE: list[tuple[Any, Any]] = [
    (1, True), (1, 1.0), ("1", 1), (None, "None"), ([1], (1,)), ({1}, [1]), (b"a", "b'a'"), ({1: 2}, {"1": 2}),
    (Slotted("a", "b"), Slotted("a", "c")), (model("b"), model("c")), (text("b"), text("c")), (Text("a"), Text("b")),
    (Kind.A, OtherKind.A), (Kind.A, "Kind.A"), (Decimal(1), "1"), (Decimal(1), Decimal("1.0")),
    (SecretStr("a"), SecretStr("b")), (SecretBytes(b"a"), SecretBytes(b"b")), (Secret[int](1), Secret[int](2)),
    (array.array("i", [1]), array.array("i", [2])), (array.array("i", range(5000)), array.array("i", range(1, 5001))),
    (Pair(1, 2), (1, 2)), (pathlib.PurePosixPath("a"), "a"), ("\ud83d", "\ud83e"), (float("nan"), "nan"),
    (datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin")),
     datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1)),
    (made("enum", a=1), made("enum", a=2)), (made("enum", a=[1]), made("enum", a=[2])),
    (made("enum", a=1, b=2), made("enum", a=1, b=3)),
    (made("field without init", a="1"), made("field without init", a="2")),
    (made("model", a="1"), made("model", a="2")), (made("model", a=lambda: 1), made("model", a=lambda: 2)),
    (made("text", a="1"), made("text", a="2")), (Model(a=""), unset(Model(a=""))),
    (Bits(8), Bits(16)), (Bits.A | Bits(8), Bits.A), (Kind.A, forged("b")), (secret("1"), secret("2")),
    (hiding("a"), hiding("b")), (made_by("a"), made_by("b")), (nested("a"), nested("b")),
    (UUID(int=1), UUID(int=1, is_safe=SafeUUID.safe)),
    ({"$": 1}, [["$", 1]]), (["dict", ["a", 1]], {"a": 1}), (10**5000, 10**5000 + 1),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), UNLIKE, ids=map(str, range(len(UNLIKE))))
def test_unlike_contents_have_unlike_digests_and_like_ones_the_same(one: Any, other: Any) -> None:
    assert write({"x": one}).digest != write({"x": other}).digest
    assert write({"x": one}).digest == write({"x": one}).digest


def test_a_value_of_an_enum_that_is_no_member_is_shown_with_what_it_is() -> None:
    shown = write({"bits": Bits(8), "both": Bits(9), "forged": forged("b"), "member": Kind.A}).shown
    assert shown == {"bits": "Bits.None = 8", "both": "Bits.A|8 = 9", "forged": "Kind.A = b", "member": "Kind.A"}


def test_a_combination_of_flags_is_the_same_after_others_were_made() -> None:
    flags = Flag("flags", "A B C")
    before = write({"x": flags(3)}).digest
    flags(5)
    assert write({"x": flags(3)}).digest == before


def test_the_order_of_keys_and_of_a_set_is_no_content() -> None:
    assert write({"a": 1, "b": {2, 3}}).digest == write({"b": {3, 2}, "a": 1}).digest


def test_what_an_author_reads_is_all_of_it_but_secrets() -> None:
    given = {"to": Slotted("shop", "account 1"), "key": SecretStr("s3cret"), "at": datetime(2026, 1, 1, tzinfo=UTC)}
    assert write(given).shown == {
        "to": {"a": "shop", "b": "account 1"}, "key": "**********", "at": "2026-01-01 00:00:00+00:00",
    }  # fmt: skip
    assert write({"x": array.array("i", [1, 2])}).shown == {"x": [1, 2]}
    assert write({"x": array.array("i", range(5000))}).shown["x"].startswith("<array of 5,000 items, 20,000 bytes, sha")
    assert write({"m": AIMessage("hi", id="1")}).shown["m"]["content"] == "hi"


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (Liar(), "Liar, which cannot be written exactly"),
        ([{"deep": object()}], "the argument x[0].deep is an object of builtins.object"),
        (lambda: 1, "builtins.function"),
        (type("Sub", (SecretStr,), {})("a"), "Sub, which cannot"),
        ("half \ud83d", "half a character"),
        (datetime(2026, 1, 1, tzinfo=FOREIGN), "datetime.datetime, which cannot"),
        (pointing("alice"), "Kind, which cannot"),
        (ctypes.c_char_p(b"alice"), "c_char_p, which cannot"),
        (ctypes.pointer(ctypes.c_int(1)), "LP_c_int, which cannot"),
        (union("p", ctypes.c_void_p), "Union, which cannot"),
        (memoryview(union("p", ctypes.c_void_p)), "memoryview, which cannot"),
        (np.datetime64(1, "s"), "datetime64, which cannot"),
        (np.zeros(1, dtype=np.dtype("f8", metadata={"a": 1})), "ndarray, which cannot"),
        ({1: "a", "1": "b"}, "two keys that are both written '1'"),
    ],
)
def test_what_has_no_exact_content_is_a_problem(value: Any, why: str) -> None:
    assert why in write({"x": value}).problem


def test_a_class_that_changes_while_a_call_waits_makes_it_another_call() -> None:
    value = made("model", account="alice", log=open_log())
    before = write({"x": value})
    assert write({"x": value}).digest == before.digest
    assert not before.problem
    type(value).account = "mallory"
    assert write({"x": value}).digest != before.digest


def open_log() -> logging.Logger:
    """Return an object whose content cannot be compared."""
    return logging.getLogger("shop")


def test_what_holds_itself_is_a_problem_and_no_endless_work() -> None:
    ring: list[Any] = []
    ring.append(ring)
    assert "nested deeper than 100 levels" in write({"x": ring}).problem
