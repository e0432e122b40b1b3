"""Topic permissions: expressions over routing keys, with who asks in them."""

from __future__ import annotations

import pytest

from trunkline.security.topic_permissions import TopicPermission, TopicPermissions
from trunkline.security.users import Access, InvalidAccount


def test_expressions_have_the_user_the_vhost_and_the_client_in_them() -> None:
    found = TopicPermissions()
    found.by_place["b.b", "/", "amq.topic"] = TopicPermission(r"^{username}\.", r"^({vhost}|{client_id})$")

    def allows(access: Access, key: str) -> bool | None:
        return found.allows("b.b", "/", "amq.topic", access, key, "c1")

    assert allows(Access.WRITE, "b.b.x") is True
    assert allows(Access.WRITE, "bxb.x") is False  # the name is taken literally
    assert allows(Access.READ, "/") is True
    assert allows(Access.READ, "c1") is True
    assert allows(Access.READ, "c2") is False
    assert found.allows("other", "/", "amq.topic", Access.READ, "c2") is None


def test_an_expression_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidAccount):
        TopicPermission("(", ".*").check()
