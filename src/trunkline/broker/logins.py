"""Logins: the one place where a client proves who it is, whatever the protocol.

A password is checked against SCRAM keys (or an imported hash, which is replaced by keys on that occasion). The check costs
milliseconds on purpose, so it runs in `_THREADS` threads; `_MAX_CHECKS` wait for them at most, and those that ask the same
thing at the same time share one. A right answer is remembered as a keyed digest of user and password for `_MAX_REMEMBERED`
of them, until the user changes: clients that come back cost next to nothing.

An unknown user takes as long as a wrong password. Failures from one address are slowed down, more so for one user (see
`security.patience`); what is refused goes to the log and to the audit trail. Passwords go to neither.

`guest` comes from this machine only, as in RabbitMQ.
"""

from __future__ import annotations

import asyncio
import hmac
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from trunkline.broker.audit import LOGIN, LOGIN_REFUSED, Audit
from trunkline.broker.complaints import Complaints
from trunkline.broker.limits import LoginSettings
from trunkline.broker.sasl import OAUTHBEARER, PLAIN, Exchange, LoginRefused, Step, begin, false_keys
from trunkline.broker.state.accounts import AccountRecords
from trunkline.clock import Clock
from trunkline.security.certificates import NameRules
from trunkline.security.patience import Patience
from trunkline.security.principal import Principal, anonymous, is_loopback
from trunkline.security.scram import ITERATIONS, MECHANISMS, SALT_BYTES, SHA_256, ScramKeys
from trunkline.security.tokens import InvalidToken, Tokens
from trunkline.security.users import DEFAULT_USER, User

MAX_PASSWORD_BYTES: Final = 64 * 1024  # a token is a password, too
__all__ = ["Exchange", "LoginRefused", "Logins", "Step"]
_THREADS: Final = 2
_MAX_CHECKS: Final = 1_000
_MAX_REMEMBERED: Final = 4_096
_SHOWN_CHARS: Final = 200
_SOME_TOKEN: Final = "(token)"  # who it is of is known when it is checked


class Logins:
    def __init__(
        self, records: AccountRecords, clock: Clock, audit: Audit, complaints: Complaints, settings: LoginSettings
    ) -> None:
        self._records = records
        self._accounts = records.accounts
        self._clock = clock
        self._audit = audit
        self._complaints = complaints
        self.settings = settings
        self._rules = NameRules(settings.name_rules)
        self._secret = os.urandom(32)
        no_keys = ScramKeys(SHA_256, os.urandom(SALT_BYTES), ITERATIONS, os.urandom(32), os.urandom(32))
        self._nobody = User("nobody", scram=(no_keys,))  # whom nobody can log in as
        self._remembered: dict[bytes, User] = {}  # the one that was used last at the end
        self._attempts: dict[tuple[bytes, str], asyncio.Future[User]] = {}  # by what is tried, and the address
        self._threads: ThreadPoolExecutor | None = None
        self._tokens = None if settings.tokens is None else Tokens(settings.tokens)
        self._waiting_tokens = 0
        self._by_address: Patience[str] = Patience(free=50, first_ms=50, most_ms=50)
        self._by_user: Patience[tuple[str, str]] = Patience(free=5, first_ms=250, most_ms=4_000)

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None

    def knows(self, user: str) -> bool:
        """Whether there is such a user."""
        return user in self._accounts.users

    # -- before a password, or without one -------------------------------------------------------------------------

    def newcomer(self, host: str, certificate: str, protocol: str) -> Principal | None:
        """Who a client is that has connected, with the certificate that it has shown; None: it must log in first.

        LoginRefused: the certificate is nobody's, and there is no other way in.
        """
        if certificate:
            return self.by_certificate(certificate, host, protocol)
        return None if self.settings.required else self.stranger(host)

    def stranger(self, host: str) -> Principal:
        """Who has not said who it is, where nobody has to."""
        return anonymous(host, administrator=is_loopback(host) and not self.settings.required)

    def by_certificate(self, certificate: str, host: str, protocol: str) -> Principal:
        """Whose certificate this is: its distinguished name is given, and was checked. The user need not be stored."""
        name = self._rules.name_of(certificate)
        if not name:
            raise self.refused(certificate, host, protocol, "no rule makes a name of its certificate")
        user = self._accounts.users.get(name) or User(name)
        if self._kept_out(user, host):
            raise self.refused(name, host, protocol, "the user is for this machine only")
        return self._let_in(user, host, protocol)

    # -- passwords -----------------------------------------------------------------------------------------------

    def remembered(self, user: str, password: bytes, host: str, protocol: str) -> Principal | None:
        """Who has logged in with the same before, at once; None: that has to be checked."""
        digest = self._digest(user, password)
        found = self._remembered.pop(digest, None)
        if found is None or self._accounts.users.get(user) is not found or self._kept_out(found, host):
            return None
        self._remembered[digest] = found
        return self._let_in(found, host, protocol)

    async def by_password(self, user: str, password: bytes, host: str, protocol: str) -> Principal:
        """Whose user and password these are; LoginRefused."""
        principal = self.remembered(user, password, host, protocol)
        if principal is not None:
            return principal
        if self.takes_tokens and _looks_like_a_token(password):
            return (await self.by_token(password, host, protocol))[0]
        found = await self._attempt(user, password, host, protocol)
        if self._kept_out(found, host):
            raise self.refused(user, host, protocol, "the user is for this machine only")
        return self._let_in(found, host, protocol)

    async def _attempt(self, user: str, password: bytes, host: str, protocol: str) -> User:
        """The user, as it is when the password turned out to be right. Those who try the same at the same time share it."""
        digest = self._digest(user, password)
        attempt = self._attempts.get((digest, host))
        if attempt is None:
            if len(self._attempts) >= _MAX_CHECKS or len(password) > MAX_PASSWORD_BYTES:
                raise self._note(user, host, protocol, "too much is to be checked")
            wait_ms = self._take_turn(user, host, protocol)
            self._by_user.failed((host, user), self._clock.monotonic_ms())  # until it turns out otherwise
            attempt = asyncio.ensure_future(self._try(digest, wait_ms, user, password, host, protocol))
            self._attempts[digest, host] = attempt
            attempt.add_done_callback(lambda done: self._end_of_attempt(digest, host, done))
        # Who goes away meanwhile leaves the check to the others that wait for it.
        return await asyncio.shield(attempt)

    def _end_of_attempt(self, digest: bytes, host: str, done: asyncio.Future[User]) -> None:
        self._attempts.pop((digest, host), None)
        if not done.cancelled():
            done.exception()  # it is somebody's: whoever waited for it may be gone

    async def _try(self, digest: bytes, wait_ms: float, user: str, password: bytes, host: str, protocol: str) -> User:
        if wait_ms > 0:
            await asyncio.sleep(wait_ms / 1000)
        found = await self._check_once(digest, user, password)
        if found is None:
            self._by_address.failed(host, self._clock.monotonic_ms())
            raise self._note(user, host, protocol, "the user or the password is wrong")
        self._by_user.forgive((host, user))
        return found

    async def _check_once(self, digest: bytes, name: str, password: bytes) -> User | None:
        known = self._accounts.users.get(name)
        user = self._nobody if known is None or not known.has_password else known
        right, replacement = await asyncio.get_running_loop().run_in_executor(
            self._pool(), _compare, user, self._nobody, password
        )
        if not right or self._accounts.users.get(name) is not known:  # changed or removed meanwhile
            return None
        if replacement is not None:
            user = replacement
            self._records.put_user(user)
        self._remembered[digest] = user
        if len(self._remembered) > _MAX_REMEMBERED:
            del self._remembered[next(iter(self._remembered))]
        return user

    def _pool(self) -> ThreadPoolExecutor:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="login")
        return self._threads

    def _digest(self, user: str, password: bytes) -> bytes:
        return hmac.digest(self._secret, user.encode("utf-8", "surrogatepass") + b"\0" + password, "sha256")

    # -- SCRAM and tokens ------------------------------------------------------------------------------------------

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """Of SASL."""
        return (PLAIN, *MECHANISMS, OAUTHBEARER) if self.takes_tokens else (PLAIN, *MECHANISMS)

    def exchange(self, mechanism: str, host: str, protocol: str) -> Exchange | None:
        """An attempt to log in by a SASL mechanism; None if it is not offered."""
        return begin(mechanism, self, host, protocol)

    def keys_of(self, user: str, mechanism: str) -> ScramKeys:
        """What SCRAM needs; for who has none, something that looks the same."""
        found = self._accounts.users.get(user)
        keys = None if found is None else found.keys_of(mechanism)
        return false_keys(self._secret, user, mechanism) if keys is None else keys

    def proven(self, user: str, host: str, protocol: str) -> Principal:
        """SCRAM has shown that the client has this user's password."""
        found = self._accounts.users.get(user)
        if found is None or self._kept_out(found, host):
            raise self.refused(user, host, protocol, "the user is gone, or for this machine only")
        self._by_user.forgive((host, user))
        return self._let_in(found, host, protocol)

    @property
    def takes_tokens(self) -> bool:
        return self._tokens is not None

    async def by_token(self, token: bytes, host: str, protocol: str) -> tuple[Principal, int | None]:
        """Whose JSON Web Token this is, and for how many milliseconds yet; the user need not be stored."""
        assert self._tokens is not None
        await self.wait_for_turn(_SOME_TOKEN, host, protocol)
        if self._waiting_tokens >= _MAX_CHECKS or len(token) > MAX_PASSWORD_BYTES:
            raise self._note(_SOME_TOKEN, host, protocol, "too much is to be checked")
        self._waiting_tokens += 1
        try:
            found = await asyncio.get_running_loop().run_in_executor(self._pool(), self._tokens.check, token)
        except InvalidToken as error:
            raise self.refused(_SOME_TOKEN, host, protocol, str(error)) from None
        finally:
            self._waiting_tokens -= 1
        user = self._accounts.users.get(found.user) or User(found.user)
        if self._kept_out(user, host):
            raise self.refused(found.user, host, protocol, "the user is for this machine only")
        self._by_user.forgive((host, _SOME_TOKEN))
        left_ms = None if found.expires_s is None else max(1, int(found.expires_s * 1000) - self._clock.wall_ms())
        return self._let_in(user, host, protocol), left_ms

    def lifetime_ms(self, principal: Principal, expires_in_ms: int | None = None) -> int | None:
        """For how long a login of a SASL client is good; None: as long as it is connected."""
        limits = [each for each in (self.settings.max_reauth_ms, expires_in_ms) if each]
        return min(limits) if limits else None

    # -- what every kind of login does -----------------------------------------------------------------------------

    async def wait_for_turn(self, user: str, host: str, protocol: str) -> None:
        """Who has failed before waits; LoginRefused if that would take too long."""
        wait_ms = self._take_turn(user, host, protocol)
        if wait_ms > 0:
            await asyncio.sleep(wait_ms / 1000)

    def _take_turn(self, user: str, host: str, protocol: str) -> float:
        now_ms = self._clock.monotonic_ms()
        waits = (self._by_user.wait_ms((host, user), now_ms), self._by_address.wait_ms(host, now_ms))
        if None in waits:
            raise self._note(user, host, protocol, "too many logins have failed")
        return max(each for each in waits if each is not None)

    def refused(self, user: str, host: str, protocol: str, why: str) -> LoginRefused:
        """Note a failed login; returns what to raise."""
        self._by_address.failed(host, self._clock.monotonic_ms())
        self._by_user.failed((host, user), self._clock.monotonic_ms())
        return self._note(user, host, protocol, why)

    def _note(self, user: str, host: str, protocol: str, why: str) -> LoginRefused:
        shown = user[:_SHOWN_CHARS]
        self._complaints.add("refused login", host, f"login of user {shown!r} was refused ({protocol}): {why}")
        self._audit.add(LOGIN_REFUSED, Principal(shown, host), protocol=protocol, text=why)
        return LoginRefused(why)

    def _let_in(self, user: User, host: str, protocol: str) -> Principal:
        principal = Principal(user.name, host, user.tags)
        self._audit.add(LOGIN, principal, protocol=protocol)
        return principal

    def _kept_out(self, user: User, host: str) -> bool:
        return user.name == DEFAULT_USER and not is_loopback(host)


def _compare(user: User, nobody: User, password: bytes) -> tuple[bool, User | None]:
    """In a thread: whether the password is right, and the user with keys in place of an imported hash, if it is that."""
    right = user.accepts(password)
    if not user.imported:
        return right, None
    if right:
        return True, user.with_password(password)
    nobody.accepts(password)  # a wrong one takes as long as with keys
    return False, None


def _looks_like_a_token(password: bytes) -> bool:
    return password.startswith(b"ey") and password.count(b".") == 2
