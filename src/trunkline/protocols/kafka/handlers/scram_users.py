"""Users and their SCRAM keys, as Kafka's tools set them: `kafka-configs --entity-type users` sends the salted password.

They are the broker's users, the same as everywhere. Keys of one mechanism are set and deleted at a time; a user that is not
there is made, without tags and permissions, and one that loses its last keys stays. The words are Kafka's.
"""

from __future__ import annotations

from collections import Counter

from trunkline.broker.core import BrokerCore
from trunkline.log.errors import LogError
from trunkline.protocols.kafka.context import Context
from trunkline.protocols.kafka.errors import ErrorCode, code_of
from trunkline.protocols.kafka.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from trunkline.protocols.kafka.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from trunkline.security import scram
from trunkline.security.rules import Operation
from trunkline.security.users import InvalidAccount, User

_MECHANISMS = {1: scram.SHA_256, 2: scram.SHA_512}
_NUMBERS = {name: number for number, name in _MECHANISMS.items()}


class _Refused(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


async def describe_user_scram_credentials(
    context: Context, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    broker = context.broker
    try:
        context.check_cluster(Operation.DESCRIBE)
    except LogError as error:
        return DescribeUserScramCredentialsResponse(error_code=code_of(error), error_message=str(error))
    users = broker.accounts.users
    asked = Counter(each.name for each in request.users or [])
    names = list(asked) or [name for name, user in users.items() if user.scram]
    return DescribeUserScramCredentialsResponse(
        results=[_described(users.get(name), name, asked[name]) for name in names]
    )


def _described(user: User | None, name: str, times: int) -> DescribeUserScramCredentialsResult:
    if times > 1:
        text = f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
        return DescribeUserScramCredentialsResult(
            user=name, error_code=ErrorCode.DUPLICATE_RESOURCE, error_message=text
        )
    if user is None or not user.scram:
        text = f"Attempt to describe a user credential that does not exist: {name}"
        return DescribeUserScramCredentialsResult(
            user=name, error_code=ErrorCode.RESOURCE_NOT_FOUND, error_message=text
        )
    return DescribeUserScramCredentialsResult(
        user=name,
        credential_infos=[
            CredentialInfo(mechanism=_NUMBERS[keys.mechanism], iterations=keys.iterations) for keys in user.scram
        ],
    )


async def alter_user_scram_credentials(
    context: Context, request: AlterUserScramCredentialsRequest
) -> AlterUserScramCredentialsResponse:
    broker = context.broker
    changes: dict[str, list[ScramCredentialDeletion | ScramCredentialUpsertion]] = {}
    asked_for: list[ScramCredentialDeletion | ScramCredentialUpsertion] = [*request.deletions, *request.upsertions]
    for change in asked_for:
        changes.setdefault(change.name, []).append(change)
    results = []
    for name, asked in changes.items():
        result = AlterUserScramCredentialsResult(user=name)
        try:
            context.check_cluster(Operation.ALTER)
            user = _changed(broker, name, asked)
            recorded = broker.users.put_user(user)
            if recorded is not None:
                await recorded
            context.changed(f"user {name}", "SCRAM keys")
        except _Refused as refusal:
            result.error_code, result.error_message = refusal.code, str(refusal)
        except InvalidAccount as error:
            result.error_code, result.error_message = ErrorCode.UNACCEPTABLE_CREDENTIAL, str(error)
        except LogError as error:
            result.error_code, result.error_message = code_of(error), str(error)
        results.append(result)
    return AlterUserScramCredentialsResponse(results=results)


def _changed(broker: BrokerCore, name: str, asked: list[ScramCredentialDeletion | ScramCredentialUpsertion]) -> User:
    """The user as it is to be; _Refused, and nothing changes."""
    if not name:
        raise _Refused(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if len({change.mechanism for change in asked}) != len(asked):
        raise _Refused(ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request")
    user = broker.accounts.users.get(name) or User(name)
    for change in asked:
        mechanism = _MECHANISMS.get(change.mechanism)
        if mechanism is None:
            raise _Refused(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
        if isinstance(change, ScramCredentialDeletion):
            if user.keys_of(mechanism) is None:
                text = "Attempt to delete a user credential that does not exist"
                raise _Refused(ErrorCode.RESOURCE_NOT_FOUND, text)
            user = user.without_keys(mechanism)
            continue
        if change.iterations < scram.MIN_ITERATIONS or change.iterations > scram.MAX_ITERATIONS:
            amount = "few" if change.iterations < scram.MIN_ITERATIONS else "many"
            raise _Refused(ErrorCode.UNACCEPTABLE_CREDENTIAL, f"Too {amount} iterations")
        try:
            keys = scram.from_salted_password(
                bytes(change.salted_password), mechanism, salt=bytes(change.salt), iterations=change.iterations
            )
        except scram.InvalidKeys as error:
            raise _Refused(ErrorCode.UNACCEPTABLE_CREDENTIAL, str(error)) from None
        user = user.with_keys(keys)
    return user
