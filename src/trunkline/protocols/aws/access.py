"""Who asks, and what they may do.

A user's access key is its name, and the secret that goes with it is kept beside the account (`Topology.put_access_key`). With
`aws_anonymous`, which is the default, clients on this machine are let in with any credentials, as with LocalStack: who is
named with a right signature is that user, everybody else is anonymous. Without it, and from other machines always, a request
must be signed by a user.

What may be done is the broker's to say (`core.access`): to send is to write to the queue, to receive, delete messages and purge
is to read it, to create, delete or change it is to configure it. A topic of SNS is an exchange to it.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from trunkline.broker.access import AccessControl, AccessDenied
from trunkline.broker.core import BrokerCore
from trunkline.protocols.aws.call import Call
from trunkline.protocols.aws.errors import AwsError
from trunkline.protocols.http.message import Request
from trunkline.security.principal import ANONYMOUS_NAME, Principal, anonymous, is_loopback
from trunkline.security.rules import Operation
from trunkline.security.signature import SignatureMissing, SignatureWrong, SignedRequest, read_signature, verify
from trunkline.security.users import Access as VhostAccess

_VHOST: Final = "/"


class Asked(Enum):
    WRITE = (VhostAccess.WRITE, None)
    READ = (VhostAccess.READ, None)
    CREATE = (VhostAccess.CONFIGURE, Operation.CREATE)
    ALTER = (VhostAccess.CONFIGURE, Operation.ALTER)
    DELETE = (VhostAccess.CONFIGURE, Operation.DELETE)
    LOOK = (VhostAccess.CONFIGURE, Operation.DESCRIBE)


class Access:
    def __init__(self, broker: BrokerCore, *, anonymous: bool) -> None:
        self._control: AccessControl = broker.access
        self._accounts = broker.accounts
        self._clock = broker.clock
        self._anonymous = anonymous

    def identify(self, request: Request, call: Call) -> None:
        """Say in the call who asks and from which region; AwsError if they must sign and have not."""
        lenient = self._anonymous and is_loopback(request.client)
        signed = SignedRequest(request.method, request.path, request.query, request.headers, request.body)
        try:
            signature = read_signature(signed)
        except SignatureMissing as error:
            if not lenient:
                raise AwsError(
                    "MissingAuthenticationToken", f"Request is missing Authentication Token: {error}"
                ) from None
            call.principal = anonymous(request.client, administrator=True)
            return
        call.region = signature.region
        secret = self._accounts.access_keys.get(signature.access_key)
        if secret is None:
            if not lenient:
                raise AwsError("InvalidClientTokenId", "The security token included in the request is invalid.")
            call.principal = anonymous(request.client, administrator=True)
            return
        try:
            verify(signed, signature, secret, self._clock.wall_ms() / 1000)
        except SignatureWrong as error:
            raise AwsError("SignatureDoesNotMatch", f"The request signature does not match: {error}.") from None
        user = self._accounts.users[signature.access_key]
        call.principal = Principal(user.name, request.client, user.tags)

    def check(self, call: Call, asked: Asked, name: str, *, kind: str = "queue") -> None:
        principal = call.principal
        if principal.name == ANONYMOUS_NAME and principal.administrator:
            return  # from this machine, on a broker that asks nobody
        access, operation = asked.value
        try:
            self._control.check_vhost(principal, _VHOST, access, name, kind, operation, protocol=call.service)
        except AccessDenied as error:
            raise AwsError("AccessDeniedException" if call.json else "AccessDenied", str(error)) from None

    def sender(self, call: Call) -> str:
        """Who a message is from, if that is known."""
        name = call.principal.name
        return "" if name == ANONYMOUS_NAME else name
