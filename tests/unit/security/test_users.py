"""Users, passwords as RabbitMQ keeps them, and permissions."""

from __future__ import annotations

import base64
import hmac
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline.security.scram import MECHANISMS, SHA_256, SHA_512, InvalidKeys, derive, from_document
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


def test_a_user_without_a_password_cannot_log_in() -> None:
    assert not User("u").accepts(b"")
    assert not User("u").has_password


def test_keys_take_the_place_of_an_imported_hash() -> None:
    imported = User("u", DOCUMENTED, tags=("management",))
    assert imported.imported
    user = imported.with_password(b"test12")
    assert not user.imported
    assert user.password_hash == ""
    assert user.tags == ("management",)
    assert {keys.mechanism for keys in user.scram} == {"SCRAM-SHA-256", "SCRAM-SHA-512"}
    assert user.accepts(b"test12")
    assert not user.accepts(b"test13")


def test_a_password_in_clear_is_checked_with_the_keys_that_were_given_last() -> None:
    user = User("u").with_password(b"old").with_keys(derive(b"new", SHA_512))
    assert user.accepts(b"new")
    assert not user.accepts(b"old")
    sha_256, sha_512 = user.keys_of(SHA_256), user.keys_of(SHA_512)
    assert sha_256 is not None
    assert sha_256.accepts(b"old"), "SCRAM-SHA-256 keeps its own until that is set, too, as in Kafka"
    assert sha_512 is not None
    assert user.without_keys(SHA_512).keys_of(SHA_512) is None


@given(st.binary(max_size=40), st.sampled_from(MECHANISMS), st.integers(4_096, 5_000))
@settings(max_examples=10, deadline=None)
def test_keys_come_back_from_their_document_and_accept_their_password_alone(
    password: bytes, mechanism: str, iterations: int
) -> None:
    keys = derive(password, mechanism, iterations=iterations)
    assert from_document(keys.document()) == keys
    assert keys.accepts(password)
    assert not keys.accepts(password + b"x")


def test_keys_are_those_of_the_rfc() -> None:
    """RFC 7677, section 3: the server's signature there follows from this server key."""
    keys = derive(b"pencil", SHA_256, salt=base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="), iterations=4_096)
    messages = (
        b"n=user,r=rOprNGfwEbeRWgbNEkqO,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    )
    signature = hmac.digest(keys.server_key, messages, "sha256")
    assert base64.b64encode(signature) == b"6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@pytest.mark.parametrize(
    "change",
    [{"iterations": 4_095}, {"iterations": 20_000}, {"mechanism": "SCRAM-SHA-1"}, {"salt": ""}, {"stored_key": "AA=="}, {"server_key": "?"}, {"iterations": "x"}],
)  # fmt: skip
def test_keys_that_cannot_be_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(InvalidKeys):
        from_document({**derive(b"p", SHA_256).document(), **change})


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
