"""Users, their passwords, and what they may do in each virtual host.

A password is kept as SCRAM keys (`security.scram`), one set for each mechanism. They may be of different passwords, as Kafka
sets one mechanism at a time; a password that is sent in clear is checked with the set that was given last.

RabbitMQ's hashes are taken on import, and replaced by keys at the next login, when the password is known:

    base64( salt, 4 bytes | digest of (salt | password in UTF-8) )

with SHA-256 unless the record names another of RabbitMQ's three algorithms. A user with neither keys nor hash cannot log in
with a password. A permission is three regular expressions per user and virtual host, matched against the name of the queue or
exchange: `configure` to declare and delete, `write` to publish and bind to, `read` to consume, purge and bind from. As in
RabbitMQ an expression matches anywhere in the name, and the empty one matches the empty name alone. Clients choose the
names, so an expression is matched without backtracking (`trunkline.pattern`). Only what that does not know, look-around
and back-references, is left to Python's `re`: an administrator who writes `(?!(a+)+$)` can make the broker stand still.

Nothing here does I/O: `Accounts` is memory that the topology folds its records into. Invariant: a permission exists only
for a user that does. Bounded by `MAX_USERS` and `MAX_EXPRESSION_CHARS`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import lru_cache
from typing import Final

from trunkline.pattern import CostlyPattern, InvalidPattern, NamePattern
from trunkline.security.scram import ScramKeys, derive_all

MAX_USERS: Final = 10_000
MAX_EXPRESSION_CHARS: Final = 1_024
SALT_BYTES: Final = 4
SHA256: Final = "rabbit_password_hashing_sha256"
ADMINISTRATOR: Final = "administrator"
DEFAULT_USER: Final = "guest"
DEFAULT_VHOST: Final = "/"

_DIGESTS: Final[dict[str, Callable[[bytes], bytes]]] = {
    SHA256: lambda data: hashlib.sha256(data).digest(),
    "rabbit_password_hashing_sha512": lambda data: hashlib.sha512(data).digest(),
    "rabbit_password_hashing_md5": lambda data: hashlib.md5(data, usedforsecurity=False).digest(),
}


class InvalidAccount(ValueError):
    """A user or permission that cannot be stored; the text says why."""


class Access(Enum):
    CONFIGURE = "configure"
    WRITE = "write"
    READ = "read"


@dataclass(frozen=True, slots=True)
class User:
    name: str
    password_hash: str = ""
    hashing_algorithm: str = SHA256
    tags: tuple[str, ...] = ()
    scram: tuple[ScramKeys, ...] = ()  # at most one of each mechanism; the newest last

    def __post_init__(self) -> None:
        if not self.name or len(self.name.encode()) > 255:
            raise InvalidAccount("a user's name has 1 to 255 bytes")
        if self.hashing_algorithm not in _DIGESTS:
            raise InvalidAccount(f"{self.hashing_algorithm!r} is none of {', '.join(_DIGESTS)}")
        if self.password_hash:
            _salt_and_digest(self.password_hash)
        if len({keys.mechanism for keys in self.scram}) != len(self.scram):
            raise InvalidAccount("a user has keys for a mechanism once")

    @property
    def imported(self) -> bool:
        """Whether the password is kept as RabbitMQ's hash still."""
        return bool(self.password_hash) and not self.scram

    @property
    def has_password(self) -> bool:
        return bool(self.password_hash or self.scram)

    def keys_of(self, mechanism: str) -> ScramKeys | None:
        return next((keys for keys in self.scram if keys.mechanism == mechanism), None)

    def with_keys(self, keys: ScramKeys) -> User:
        """The same user with these keys, the newest, in place of others of the mechanism; the imported hash is void."""
        others = tuple(each for each in self.scram if each.mechanism != keys.mechanism)
        return replace(self, password_hash="", scram=(*others, keys))

    def without_keys(self, mechanism: str) -> User:
        return replace(self, scram=tuple(each for each in self.scram if each.mechanism != mechanism))

    def with_password(self, password: bytes) -> User:
        """Costs milliseconds."""
        return replace(self, password_hash="", hashing_algorithm=SHA256, scram=derive_all(password))

    def accepts(self, password: bytes) -> bool:
        """Costs milliseconds, but for an imported hash."""
        if self.scram:
            return self.scram[-1].accepts(password)
        if not self.password_hash:
            return False
        salt, digest = _salt_and_digest(self.password_hash)
        return hmac.compare_digest(_DIGESTS[self.hashing_algorithm](salt + password), digest)


@dataclass(frozen=True, slots=True)
class Permission:
    """Regular expressions over names; see the module's text."""

    configure: str = ".*"
    write: str = ".*"
    read: str = ".*"

    def __post_init__(self) -> None:
        for expression in (self.configure, self.write, self.read):
            check_expression(expression)

    @property
    def restricted(self) -> bool:
        return (self.configure, self.write, self.read) != _EVERYTHING

    def allows(self, access: Access, name: str) -> bool:
        return expression_matches(getattr(self, access.value), name)


_EVERYTHING: Final = (".*", ".*", ".*")


def check_expression(expression: str) -> None:
    """Raise InvalidAccount unless this can be a permission."""
    if len(expression) > MAX_EXPRESSION_CHARS:
        raise InvalidAccount(f"a permission has at most {MAX_EXPRESSION_CHARS} characters")
    try:
        _compiled(expression)
    except re.error as error:
        raise InvalidAccount(f"{expression!r} is not a regular expression: {error}") from None


@lru_cache(maxsize=4096)
def expression_matches(expression: str, name: str) -> bool:
    return _compiled(expression or "^$")(name)


@lru_cache(maxsize=256)
def _compiled(expression: str) -> Callable[[str], bool]:
    """A test of names. Raises re.error."""
    try:
        pattern = NamePattern(expression, MAX_EXPRESSION_CHARS, anywhere=True)
    except InvalidPattern:
        search = re.compile(expression).search
        return lambda name: search(name) is not None

    def test(name: str) -> bool:
        try:
            return bool(pattern.select((name,)))
        except CostlyPattern:
            return False  # what cannot be told is not allowed

    return test


def hash_password(password: str, salt: bytes | None = None) -> str:
    salt = os.urandom(SALT_BYTES) if salt is None else salt
    return base64.b64encode(salt + _DIGESTS[SHA256](salt + password.encode())).decode()


def _salt_and_digest(password_hash: str) -> tuple[bytes, bytes]:
    try:
        raw = base64.b64decode(password_hash, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidAccount("a password hash is base64") from None
    if len(raw) <= SALT_BYTES:
        raise InvalidAccount("a password hash has a salt of four bytes and a digest")
    return raw[:SALT_BYTES], raw[SALT_BYTES:]


@lru_cache(maxsize=1)
def _default_user() -> User:
    return User(DEFAULT_USER, tags=(ADMINISTRATOR,)).with_password(DEFAULT_USER.encode())


def _nothing() -> None:
    """Nobody watches."""


@dataclass(slots=True)
class Accounts:
    """All users and permissions. Until a user is stored, there is `guest`, password `guest`, who may do everything."""

    users: dict[str, User] = field(default_factory=dict)
    permissions: dict[tuple[str, str], Permission] = field(default_factory=dict)  # by user and virtual host
    access_keys: dict[str, str] = field(
        default_factory=dict
    )  # by user: the secret that its requests to SQS are signed with
    restricted: int = 0  # permissions that do not allow everything
    watch: Callable[[], None] = field(
        default=_nothing
    )  # called after every change, of what users may do or who they are

    def put_user(self, user: User) -> None:
        if user.name not in self.users and len(self.users) >= MAX_USERS:
            raise InvalidAccount(f"there are {MAX_USERS} users already")
        self.users[user.name] = user
        self.watch()

    def remove_user(self, name: str) -> list[tuple[str, str]]:
        """Forget a user and its permissions; returns which."""
        self.users.pop(name, None)
        self.access_keys.pop(name, None)
        gone = [key for key in self.permissions if key[0] == name]
        for key in gone:
            self.restricted -= self.permissions.pop(key).restricted
        self.watch()
        return gone

    def put_permission(self, user: str, vhost: str, permission: Permission) -> None:
        if user not in self.users:
            raise InvalidAccount(f"there is no user {user!r}")
        before = self.permissions.get((user, vhost))
        self.permissions[user, vhost] = permission
        self.restricted += permission.restricted - (before is not None and before.restricted)
        self.watch()

    def remove_permission(self, user: str, vhost: str) -> bool:
        """False if there was none."""
        before = self.permissions.pop((user, vhost), None)
        if before is None:
            return False
        self.restricted -= before.restricted
        self.watch()
        return True

    def add_default(self, vhosts: Iterable[str]) -> None:
        """What a broker that has no users yet starts with. `guest` is let in from this machine only."""
        self.put_user(_default_user())
        for vhost in vhosts:
            self.put_permission(DEFAULT_USER, vhost, Permission())

    def may_enter(self, user: str, vhost: str) -> bool:
        return (user, vhost) in self.permissions

    def allows(self, user: str, vhost: str, access: Access, name: str) -> bool:
        permission = self.permissions.get((user, vhost))
        return permission is not None and permission.allows(access, name)
