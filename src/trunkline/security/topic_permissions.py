"""Topic permissions, as RabbitMQ has them: which routing keys a user may write to, and bind by, on a topic exchange.

Two regular expressions per user, virtual host and exchange, beside the user's permission for the exchange itself. Without one
every key is allowed. `{username}`, `{vhost}` and `{client_id}` in an expression stand for whose request it is; what they stand
for is taken literally. Expressions match anywhere in the key, as those of `users` do. Memory only.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from trunkline.security.users import Access, check_expression, expression_matches

MAX_TOPIC_PERMISSIONS: Final = 50_000


class TopicPermission(NamedTuple):
    write: str
    read: str

    def check(self) -> None:
        """Raise InvalidAccount unless both can be used."""
        check_expression(self.write)
        check_expression(self.read)


class TopicPermissions:
    def __init__(self) -> None:
        self.by_place: dict[tuple[str, str, str], TopicPermission] = {}  # by user, virtual host and exchange

    def __len__(self) -> int:
        return len(self.by_place)

    def allows(
        self, user: str, vhost: str, exchange: str, access: Access, key: str, client_id: str = ""
    ) -> bool | None:
        """None: there is no such permission."""
        found = self.by_place.get((user, vhost, exchange))
        if found is None:
            return None
        expression = found.write if access is Access.WRITE else found.read
        if "{" in expression:
            for name, value in (("username", user), ("vhost", vhost), ("client_id", client_id)):
                expression = expression.replace(f"{{{name}}}", re.escape(value))
        return expression_matches(expression, key)
