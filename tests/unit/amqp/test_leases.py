"""Instructions about deliveries: what is one, and what is not."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.protocols.amqp.errors import PRECONDITION_FAILED, FrameError
from trunkline.protocols.amqp.leases import carry_out, take_over


class Freed:
    def freed(self, count: int) -> None:
        assert count == 0


class Holding:
    """A channel that has no deliveries."""

    def __init__(self) -> None:
        self.unsettled: dict[int, object] = {}
        self.prefetch = Freed()
        self.confirms = None

    def take_over(self, channel: int, tags: list[int]) -> bool:
        return not tags


@pytest.mark.parametrize("do", ["release", "unseen", "extend", "settle"])
def test_an_instruction_about_deliveries_that_are_not_there_is_not_carried_out(do: str) -> None:
    body = json.dumps({"do": do, "tags": [1, 2], "ms": 5}).encode()
    assert carry_out(Holding(), body) is False  # type: ignore[arg-type]
    assert carry_out(Holding(), json.dumps({"do": do, "tags": []}).encode()) is True  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"{}", b"null", b'{"do":"release"}', b'{"do":"burn","tags":[1]}', b'{"do":"release","tags":1}',
        b'{"do":"extend","tags":[1],"ms":-1}', b'{"do":"extend","tags":[1],"ms":1e300}', b'{"do":"take","tags":[1]}',
        b'{"do":"release","tags":["x"]}', b"[" * 100_000,
    ],
)  # fmt: skip
def test_what_is_no_instruction_closes_the_channel(body: bytes) -> None:
    with pytest.raises(FrameError) as refused:
        carry_out(Holding(), body)  # type: ignore[arg-type]
    assert refused.value.reply_code == PRECONDITION_FAILED


@given(
    st.binary(max_size=50)
    | st.recursive(st.none() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)).map(
        lambda value: json.dumps(value).encode()
    )
)
def test_nothing_but_a_frame_error_is_raised(body: bytes) -> None:
    for read in (carry_out, take_over):
        try:
            read(Holding(), body)  # type: ignore[arg-type]
        except FrameError:
            continue


def test_only_a_transaction_takes_over_deliveries_of_other_channels() -> None:
    take_over(Holding(), b'{"do":"take","tags":[],"channel":3}')
    with pytest.raises(FrameError):
        take_over(Holding(), b'{"do":"take","tags":[1],"channel":3}')
    with pytest.raises(FrameError):
        take_over(Holding(), b'{"do":"release","tags":[]}')
