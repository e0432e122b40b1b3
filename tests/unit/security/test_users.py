"""Users, passwords as RabbitMQ keeps them, and permissions."""

from __future__ import annotations

import time

import pytest

from trunkline.security.users import Access, Accounts, InvalidAccount, Permission, User, hash_password

# As the documentation of RabbitMQ gives it: the salt 908DC60A and the password test12.
DOCUMENTED = "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"


def test_a_hash_is_the_one_that_rabbitmq_documents() -> None:
    assert hash_password("test12", bytes.fromhex("908DC60A")) == DOCUMENTED
    assert User("u", DOCUMENTED).accepts(b"test12")
    assert not User("u", DOCUMENTED).accepts(b"test13")


def test_a_hash_has_fresh_salt() -> None:
    assert hash_password("p") != hash_password("p")
    assert User("u", hash_password("p")).accepts(b"p")


def test_a_user_without_a_hash_cannot_log_in() -> None:
    accounts = Accounts()
    accounts.put_user(User("u"))
    assert accounts.login("u", b"", loopback=True) is None


def test_guest_is_let_in_from_this_machine_only() -> None:
    accounts = Accounts()
    accounts.add_default(["/"])
    assert accounts.login("guest", b"guest", loopback=True) is not None
    assert accounts.login("guest", b"guest", loopback=False) is None
    assert accounts.login("guest", b"wrong", loopback=True) is None
    assert accounts.login("nobody", b"guest", loopback=True) is None


@pytest.mark.parametrize(
    ("expression", "name", "allowed"),
    [
        (".*", "anything", True),
        ("^own-", "own-queue", True),
        ("^own-", "other", False),
        ("own", "my-own-queue", True),
        ("", "", True),
        ("", "queue", False),
        ("^$", "queue", False),
        ("^(?!secret)", "queue", True),
        ("^(?!secret)", "secret-queue", False),
    ],
)
def test_permissions_are_expressions_that_match_anywhere(expression: str, name: str, allowed: bool) -> None:
    assert Permission(configure=expression).allows(Access.CONFIGURE, name) is allowed


@pytest.mark.parametrize("expression", ["(a+)+$", "(a|a)*b$", "^(a?){100}a{100}b$", "[ab]*a[ab]{900}c"])
def test_no_name_makes_an_expression_take_long(expression: str) -> None:
    began = time.perf_counter()
    assert not Permission(write=expression).allows(Access.WRITE, "ab" * 60 + "a" * 100 + "!")
    assert time.perf_counter() - began < 5.0


def test_each_kind_of_access_has_its_own_expression() -> None:
    accounts = Accounts()
    accounts.put_user(User("u"))
    accounts.put_permission("u", "/", Permission("^c", "^w", "^r"))
    assert [accounts.allows("u", "/", access, "w") for access in Access] == [False, True, False]
    assert not accounts.allows("u", "other", Access.WRITE, "w")
    assert accounts.may_enter("u", "/")
    assert accounts.remove_user("u") == [("u", "/")]
    assert not accounts.may_enter("u", "/")


@pytest.mark.parametrize(
    "make",
    [
        lambda: User(""),
        lambda: User("u", "not base64!"),
        lambda: User("u", "AAAA"),
        lambda: User("u", hashing_algorithm="rot13"),
        lambda: Permission("("),
        lambda: Permission("x" * 2000),
    ],
)
def test_what_cannot_be_stored_is_refused(make: object) -> None:
    assert callable(make)
    with pytest.raises(InvalidAccount):
        make()
