"""Keys of users, set by an administrator: an operation of our own, beside Amazon's."""

from __future__ import annotations

from trunkline.broker.core import BrokerCore
from trunkline.protocols.aws.call import Call, Result, optional_text
from trunkline.protocols.aws.errors import AwsError, invalid
from trunkline.security.users import InvalidAccount

_MAX_SECRET_CHARS = 256


class Keys:
    def __init__(self, broker: BrokerCore) -> None:
        self._users = broker.users

    async def put_access_key(self, call: Call) -> Result:
        """`Secret` is what the user's requests are signed with from now on; without it they cannot be."""
        if not call.principal.administrator:
            raise AwsError("AccessDeniedException", "Keys are an administrator's to give.")
        secret = optional_text(call.parameters, "Secret")
        if secret is not None and not 16 <= len(secret) <= _MAX_SECRET_CHARS:
            raise invalid(f"A secret has 16 to {_MAX_SECRET_CHARS} characters.")
        try:
            recorded = self._users.put_access_key(call.text("User"), secret)
        except InvalidAccount as error:
            raise invalid(str(error)) from None
        if recorded is not None:
            await recorded
        return {}
