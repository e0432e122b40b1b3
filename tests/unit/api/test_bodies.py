"""Values to bytes and back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.api import bodies
from trunkline.api.errors import BodyRefused

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@dataclass
class Item:
    name: str
    count: int = 1
    tags: list[str] = field(default_factory=list)
    inner: dict[str, float] | None = None


class Struct(msgspec.Struct):
    name: str
    count: int = 1


class Model(pydantic.BaseModel):
    name: str
    count: int = 1


@given(json_values)
def test_json_values_come_back(value: Any) -> None:
    body = bodies.encode(value)
    assert bodies.decode(body.data, body.content_type) == value


@pytest.mark.parametrize("value", [b"", b"\xff\x00", "", "text ü"])
def test_bytes_and_text_come_back_as_what_they_were(value: bytes | str) -> None:
    body = bodies.encode(value)
    found = bodies.decode(body.data, body.content_type)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    "value", [Item("a", 2, ["t"], {"x": 1.5}), Item("b"), Struct("a", 2), Model(name="a", count=2)]
)
def test_classes_come_back_by_their_type_and_say_its_name(value: object) -> None:
    body = bodies.encode(value)
    assert body.type_name == type(value).__name__
    assert bodies.decode(body.data, body.content_type, type(value)) == value


def test_dataclasses_do_without_msgspec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "msgspec", None)
    value = Item("a", 2, ["t"], {"x": 1.0})
    body = bodies.encode(value)
    assert bodies.decode(body.data, body.content_type, Item) == value
    assert bodies.decode(b'{"name": "b"}', bodies.JSON, Item) == Item("b")
    assert bodies.decode(b"[1, 2]", bodies.JSON, list[int]) == [1, 2]
    for wrong in (b'{"count": 1}', b'{"name": 3}', b"[]", b"nonsense"):
        with pytest.raises(BodyRefused):
            bodies.decode(wrong, bodies.JSON, Item)


@pytest.mark.parametrize("value", [object(), {1, 2}, lambda: None, {"a": object()}, 1j])
def test_what_is_no_body_is_refused(value: object) -> None:
    with pytest.raises(BodyRefused):
        bodies.encode(value)


@pytest.mark.parametrize("into", [Item, Struct, Model, int, list[str]])
@pytest.mark.parametrize("data", [b"", b"nonsense", b'{"name": [1]}', b"\xff"])
def test_a_body_of_another_type_is_refused(into: object, data: bytes) -> None:
    with pytest.raises(BodyRefused):
        bodies.decode(data, bodies.JSON, into)


def test_an_event_says_what_it_is_derived_from() -> None:
    class Base: ...

    class Derived(Base): ...

    assert bodies.type_names(Derived) == ["Derived", "Base"]
