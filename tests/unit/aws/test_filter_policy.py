"""Filter policies: every operator, over attributes and bodies, and that nothing a publisher sends raises."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.broker.complaints import Complaints
from trunkline.broker.state.notifications import Subscription
from trunkline.protocols.aws.filter_policy import FilterPolicy, InvalidPolicy, attribute_fields, body_fields
from trunkline.protocols.aws.message_attributes import MessageAttribute
from trunkline.protocols.aws.notification import Notification
from trunkline.protocols.aws.subscribers import Subscribers


def matches(policy: object, fields: dict[str, object], *, in_body: bool = True) -> bool:
    return FilterPolicy(json.dumps(policy), in_body=in_body).matches(fields)


@pytest.mark.parametrize(
    ("policy", "yes", "no"),
    [
        ({"a": ["x", "y"]}, [{"a": "y"}, {"a": ["q", "x"]}], [{"a": "z"}, {}, {"a": None}, {"b": "x"}]),
        ({"a": [5]}, [{"a": 5}, {"a": 5.0}], [{"a": "5"}, {"a": True}]),
        ({"a": [True, None]}, [{"a": True}, {"a": None}], [{"a": 1}, {"a": False}, {}]),
        ({"a": [{"prefix": "ab"}]}, [{"a": "abc"}], [{"a": "b"}, {"a": 5}]),
        ({"a": [{"suffix": "ng"}]}, [{"a": "png"}], [{"a": "nga"}]),
        ({"a": [{"equals-ignore-case": "aB"}]}, [{"a": "Ab"}], [{"a": "abc"}]),
        ({"a": [{"anything-but": ["x", 3]}]}, [{"a": "y"}, {"a": 4}, {"a": ["x", "y"]}], [{"a": "x"}, {"a": 3}, {}]),
        ({"a": [{"anything-but": {"prefix": "x"}}]}, [{"a": "y"}], [{"a": "xy"}, {}]),
        ({"a": [{"anything-but": {"suffix": ["x", "y"]}}]}, [{"a": "z"}], [{"a": "zy"}]),
        ({"a": [{"numeric": ["=", 3]}]}, [{"a": 3}], [{"a": 4}, {"a": "3"}, {"a": True}]),
        ({"a": [{"numeric": [">", 1, "<=", 3]}]}, [{"a": 3}, {"a": 1.5}], [{"a": 1}, {"a": 3.1}]),
        ({"a": [{"exists": True}]}, [{"a": None}, {"a": []}], [{}]),
        ({"a": [{"exists": False}]}, [{}], [{"a": 1}]),
        ({"a": ["x", {"exists": False}]}, [{}, {"a": "x"}], [{"a": "y"}]),
        ({"a": [{"cidr": "10.0.0.0/24"}]}, [{"a": "10.0.0.7"}], [{"a": "10.0.1.7"}, {"a": "x"}, {"a": 1}]),
        ({"a": ["x"], "b": ["y"]}, [{"a": "x", "b": "y"}], [{"a": "x"}, {"b": "y"}]),
        ({"$or": [{"a": ["x"]}, {"b": [{"numeric": [">", 5]}]}]}, [{"a": "x"}, {"b": 6}], [{"b": 5}, {}]),
        ({"c": ["z"], "$or": [{"a": ["x"]}, {"b": ["y"]}]}, [{"c": "z", "b": "y"}], [{"c": "z"}, {"a": "x"}]),
        ({"a": {"b": {"c": ["x"]}}}, [{"a": {"b": {"c": "x"}}}, {"a": [{"b": {"c": "x"}}]}], [{"a": {"b": "x"}}, {"a": 1}]),
        ({"a": {"b": [{"exists": False}]}}, [{}, {"a": {}}], [{"a": {"b": 1}}]),
    ],
)  # fmt: skip
def test_operators(policy: object, yes: list[dict[str, object]], no: list[dict[str, object]]) -> None:
    for fields in yes:
        assert matches(policy, fields), fields
    for fields in no:
        assert not matches(policy, fields), fields


def test_attributes_are_seen_by_their_types() -> None:
    given_ = [
        MessageAttribute("n", "Number", b"5"),
        MessageAttribute("s", "String", b"5"),
        MessageAttribute("l", "String.Array", b'["x", 7, null]'),
        MessageAttribute("broken", "String.Array", b"["),
        MessageAttribute("b", "Binary", b"x"),
    ]
    fields = attribute_fields(given_)
    assert fields == {"n": 5.0, "s": "5", "l": ["x", 7, None]}
    assert matches({"l": [7], "n": [5]}, fields, in_body=False)


@pytest.mark.parametrize(
    "policy",
    [{"a": [{"prefix": 1}]}, {"a": [{"exists": "yes"}]}, {"a": [{"numeric": ["~", 1]}]}, {"a": [{"numeric": ["<", 1, ">", 0]}]},
     {"a": [{"anything-but": []}]}, {"a": [{"prefix": "x", "suffix": "y"}]}, {"a": [[1]]}, {"a": {"b": 1}}, {"a": 1}],
)  # fmt: skip
def test_what_is_no_policy_is_refused(policy: object) -> None:
    with pytest.raises(InvalidPolicy):
        FilterPolicy(json.dumps(policy), in_body=True)


def test_objects_are_for_bodies() -> None:
    with pytest.raises(InvalidPolicy):
        FilterPolicy('{"a": {"b": ["c"]}}', in_body=False)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
POLICY = {
    "$or": [{"a": ["x", 1, None, {"cidr": "10.0.0.0/8"}]}, {"b": [{"numeric": [">", 0, "<", 9]}]}],
    "c": [{"anything-but": {"prefix": "q"}}, {"exists": False}, {"suffix": "z"}, {"equals-ignore-case": "K"}],
}


@given(st.dictionaries(st.sampled_from("abc"), JSON_VALUES))
def test_no_body_makes_a_policy_fail(fields: dict[str, object]) -> None:
    assert matches(POLICY, fields) in (True, False)
    text = json.dumps(fields)
    assert body_fields(text) == json.loads(text)


@given(st.text(max_size=30), st.booleans())
def test_any_text_is_a_policy_or_refused(text: str, in_body: bool) -> None:
    try:
        policy = FilterPolicy(text, in_body=in_body)
    except InvalidPolicy:
        return
    assert policy.matches({}) in (True, False)


class Known:
    """The subscriptions of one topic, as `Notifications` gives them."""

    def __init__(self, subscriptions: list[Subscription]) -> None:
        self.subscriptions = {each.arn: each for each in subscriptions}

    def of_topic(self, name: str) -> list[Subscription]:
        return list(self.subscriptions.values())


VALUES = st.sampled_from(["x", "y", 'a"b', "it's"])
POLICIES = st.dictionaries(st.sampled_from(["k", "l-m", 'q"r']), st.lists(VALUES | st.just({"exists": False}), min_size=1, max_size=3), max_size=3)  # fmt: skip


@given(
    st.lists(POLICIES, max_size=12), st.dictionaries(st.sampled_from(["k", "l-m", 'q"r']), VALUES | st.just(["x", "y"]))
)
def test_the_index_finds_what_asking_each_finds(policies: list[dict[str, object]], values: dict[str, object]) -> None:
    attributes = [
        MessageAttribute(name, "String.Array", json.dumps(value).encode())
        if isinstance(value, list)
        else MessageAttribute(name, "String", str(value).encode())
        for name, value in values.items()
    ]
    subscriptions = [
        Subscription(str(number), "t", "sqs", "q", {"FilterPolicy": json.dumps(policy)})
        for number, policy in enumerate(policies)
    ]
    found = Subscribers(Known(subscriptions), Complaints()).of("t", Notification("id", "arn", "text", attributes=attributes))  # type: ignore[arg-type]  # fmt: skip
    fields = attribute_fields(attributes)
    expected = [str(n) for n, policy in enumerate(policies) if matches(policy, fields, in_body=False)]
    assert sorted(each.arn for each in found) == sorted(expected)
