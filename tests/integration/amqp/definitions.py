"""The vhosts, users and permissions that the tests expect, in the format that RabbitMQ exports and both brokers import."""

from __future__ import annotations

import base64
import hashlib
import json

OTHER_VHOST = "apart"
# May do everything in OTHER_VHOST, and nothing in `/`.
NEIGHBOUR = ("neighbour", "next door")
# In `/`: may configure and write what begins with `own-`, and read everything. Nothing else.
LIMITED = ("limited", "just a little")
_SALT = b"salt"


def password_hash(password: str) -> str:
    """RabbitMQ's `rabbit_password_hashing_sha256`: four bytes of salt, then SHA-256 over salt and password."""
    return base64.b64encode(_SALT + hashlib.sha256(_SALT + password.encode()).digest()).decode()


def _user(name: str, password: str, tags: list[str]) -> dict[str, object]:
    return {
        "name": name,
        "password_hash": password_hash(password),
        "hashing_algorithm": "rabbit_password_hashing_sha256",
        "tags": tags,
        "limits": {},
    }


def _permission(user: str, vhost: str, configure: str = ".*", write: str = ".*", read: str = ".*") -> dict[str, str]:
    return {"user": user, "vhost": vhost, "configure": configure, "write": write, "read": read}


DEFINITIONS = json.dumps(
    {
        "rabbit_version": "3.10.8",
        "rabbitmq_version": "3.10.8",
        "product_name": "RabbitMQ",
        "product_version": "3.10.8",
        "users": [_user("guest", "guest", ["administrator"]), _user(*NEIGHBOUR, []), _user(*LIMITED, [])],
        "vhosts": [{"name": "/"}, {"name": OTHER_VHOST}],
        "permissions": [
            _permission("guest", "/"),
            _permission("guest", OTHER_VHOST),
            _permission(NEIGHBOUR[0], OTHER_VHOST),
            _permission(LIMITED[0], "/", configure="^own-", write="^own-"),
        ],
        "topic_permissions": [],
        "parameters": [],
        "global_parameters": [],
        "policies": [],
        "queues": [],
        "exchanges": [],
        "bindings": [],
    },
    indent=2,
)
