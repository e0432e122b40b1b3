"""Users and permissions, as records of `__topology`, folded at the start of every broker, whatever it listens to.

    user:<name>                    {"password_hash", "hashing_algorithm", "tags", "scram"}
    permission:["user","vhost"]    {"configure", "write", "read"}
    access-key:<user>              {"secret"}: what its requests to SQS and SNS are signed with

`scram` is a list of SCRAM keys (`security.scram`), the newest last; records from before there were any have none. A
tombstone removes. A change is made in memory first and recorded in the same step, as in `topology`.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence

from trunkline.clock import Clock
from trunkline.log.names import TOPOLOGY_TOPIC
from trunkline.log.state_topic import StateTopic, state_record
from trunkline.log.store import Durability, LogStore
from trunkline.log.ticket import Appended, Recorded
from trunkline.security import scram
from trunkline.security.users import DEFAULT_VHOST, Accounts, InvalidAccount, Permission, User

logger = logging.getLogger(__name__)

_Changes = Sequence[tuple[str, dict[str, object] | None]]


class AccountRecords:
    def __init__(self, store: LogStore, clock: Clock) -> None:
        self.accounts = Accounts()
        self._topic = StateTopic(store, clock, TOPOLOGY_TOPIC)

    async def start(self, latest: Mapping[bytes, bytes]) -> None:
        """Fold the records, the latest of each key. A broker that never had any begins with `guest`."""
        users: dict[str, dict[str, object]] = {}
        permissions: dict[str, dict[str, object]] = {}
        access_keys: dict[str, dict[str, object]] = {}
        first_start = True
        for record_key, value in latest.items():
            kind, _, name = record_key.decode("utf-8", "replace").partition(":")
            if kind == "user":
                users[name] = json.loads(value)
            elif kind == "permission":
                permissions[name] = json.loads(value)
            elif kind == "access-key":
                access_keys[name] = json.loads(value)
            first_start &= kind not in ("user", "vhost")
        for name, document in users.items():
            self.accounts.put_user(_user(name, document))
        for key, document in permissions.items():
            user, vhost = json.loads(key)
            if user in self.accounts.users:
                self.accounts.put_permission(user, vhost, _permission(document))
        for name, document in access_keys.items():
            if name in self.accounts.users:
                self.accounts.access_keys[name] = str(document.get("secret", ""))
        if first_start:
            self.accounts.add_default([DEFAULT_VHOST])
            await self._record(
                [
                    (f"vhost:{DEFAULT_VHOST}", {}),  # from now on there was a start
                    *((f"user:{user.name}", _user_document(user)) for user in self.accounts.users.values()),
                    *(
                        (_permission_key(*key), _permission_document(held))
                        for key, held in self.accounts.permissions.items()
                    ),
                ]
            )

    # -- changes -------------------------------------------------------------------------------------------------

    def put_user(self, user: User) -> Recorded:
        self.accounts.put_user(user)
        return self._record([(f"user:{user.name}", _user_document(user))])

    def remove_user(self, name: str) -> Recorded:
        gone = self.accounts.remove_user(name)
        return self._record(
            [(f"user:{name}", None), (f"access-key:{name}", None), *((_permission_key(*key), None) for key in gone)]
        )

    def put_access_key(self, user: str, secret: str | None) -> Recorded:
        """What a user's requests to SQS and SNS are signed with, under its name; None takes it away."""
        if user not in self.accounts.users:
            raise InvalidAccount(f"there is no user {user!r}")
        if secret is None:
            self.accounts.access_keys.pop(user, None)
            return self._record([(f"access-key:{user}", None)])
        self.accounts.access_keys[user] = secret
        return self._record([(f"access-key:{user}", {"secret": secret})])

    def put_permission(self, user: str, vhost: str, permission: Permission) -> Recorded:
        self.accounts.put_permission(user, vhost, permission)
        return self._record([(_permission_key(user, vhost), _permission_document(permission))])

    def _record(self, changes: _Changes) -> asyncio.Future[Appended]:
        records = [
            state_record(
                key.encode(), None if document is None else json.dumps(document, separators=(",", ":")).encode()
            )
            for key, document in changes
        ]
        return self._topic.put(records, Durability.DISK)


def _permission_key(user: str, vhost: str) -> str:
    return "permission:" + json.dumps([user, vhost])


def _user_document(user: User) -> dict[str, object]:
    return {
        "password_hash": user.password_hash,
        "hashing_algorithm": user.hashing_algorithm,
        "tags": list(user.tags),
        "scram": [keys.document() for keys in user.scram],
    }


def _user(name: str, document: Mapping[str, object]) -> User:
    tags, keys = document.get("tags"), document.get("scram")
    try:
        return User(
            name,
            str(document.get("password_hash", "")),
            str(document.get("hashing_algorithm", "")),
            tuple(map(str, tags)) if isinstance(tags, list) else (),
            tuple(map(scram.from_document, keys)) if isinstance(keys, list) else (),
        )
    except (InvalidAccount, scram.InvalidKeys):
        logger.exception("user %s cannot log in: its record is damaged", name)
        return User(name)


def _permission_document(permission: Permission) -> dict[str, object]:
    return {"configure": permission.configure, "write": permission.write, "read": permission.read}


def _permission(document: Mapping[str, object]) -> Permission:
    return Permission(str(document["configure"]), str(document["write"]), str(document["read"]))
