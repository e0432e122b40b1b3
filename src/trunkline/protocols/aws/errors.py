"""What SQS and SNS refuse, with the codes and HTTP statuses of Amazon's.

An error has two names: the shape that JSON's `__type` tells, and the code of the older Query protocol, which clients of both
compare: for JSON it comes in `x-amzn-query-error`.
"""

from __future__ import annotations

from typing import Final

_SQS: Final = "com.amazonaws.sqs#"
_GENERAL: Final = "com.amazon.coral.service#"
_OLD: Final = "AWS.SimpleQueueService."
# Shape: its code in the Query protocol, if that differs, and its status.
_SHAPES: Final[dict[str, tuple[str, int]]] = {
    "BatchEntryIdsNotDistinct": (_OLD + "BatchEntryIdsNotDistinct", 400),
    "BatchRequestTooLong": (_OLD + "BatchRequestTooLong", 400),
    "EmptyBatchRequest": (_OLD + "EmptyBatchRequest", 400),
    "InvalidAddress": ("InvalidAddress", 404),
    "InvalidAttributeName": ("InvalidAttributeName", 400),
    "InvalidAttributeValue": ("InvalidAttributeValue", 400),
    "InvalidBatchEntryId": (_OLD + "InvalidBatchEntryId", 400),
    "InvalidIdFormat": ("InvalidIdFormat", 404),
    "InvalidMessageContents": ("InvalidMessageContents", 400),
    "InvalidSecurity": ("InvalidSecurity", 403),
    "MessageNotInflight": (_OLD + "MessageNotInflight", 400),
    "OverLimit": ("OverLimit", 403),
    "QueueDeletedRecently": (_OLD + "QueueDeletedRecently", 400),
    "QueueDoesNotExist": (_OLD + "NonExistentQueue", 400),
    "QueueNameExists": ("QueueAlreadyExists", 400),
    "ReceiptHandleIsInvalid": ("ReceiptHandleIsInvalid", 404),
    "RequestThrottled": ("RequestThrottled", 403),
    "ResourceNotFoundException": ("ResourceNotFoundException", 404),
    "TooManyEntriesInBatchRequest": (_OLD + "TooManyEntriesInBatchRequest", 400),
    "UnsupportedOperation": (_OLD + "UnsupportedOperation", 400),
}
# Codes of all services, and of SNS: one name, and the status.
_CODES: Final[dict[str, int]] = {
    "AccessDenied": 403,
    "AccessDeniedException": 403,
    "AuthorizationError": 403,
    "BatchEntryIdsNotDistinct": 400,
    "EndpointDisabled": 400,
    "IncompleteSignature": 403,
    "InternalFailure": 500,
    "InvalidClientTokenId": 403,
    "MissingAuthenticationToken": 403,
    "NotFound": 404,
    "ResourceNotFound": 404,
    "ServiceUnavailable": 503,
    "SignatureDoesNotMatch": 403,
    "SubscriptionLimitExceeded": 403,
    "TopicLimitExceeded": 403,
    "FilterPolicyLimitExceeded": 403,
}


class AwsError(Exception):
    def __init__(self, code: str, message: str, *, status: int | None = None) -> None:
        """`code` is a shape of SQS or a code that all services have."""
        super().__init__(message)
        self.message = message
        shape = _SHAPES.get(code)
        self.type = (_SQS if shape is not None else _GENERAL) + code
        self.code, known = shape if shape is not None else (code, _CODES.get(code, 400))
        self.status = known if status is None else status

    @property
    def senders_fault(self) -> bool:
        return self.status < 500


def missing(parameter: str) -> AwsError:
    return AwsError("MissingParameter", f"The request must contain the parameter {parameter}.")


def invalid(text: str) -> AwsError:
    return AwsError("InvalidParameterValue", text)


def invalid_value(value: object, parameter: str, reason: str) -> AwsError:
    return invalid(f"Value {value} for parameter {parameter} is invalid. Reason: {reason}")


def no_such_queue() -> AwsError:
    return AwsError("QueueDoesNotExist", "The specified queue does not exist.")


def sns_error(code: str, message: str, *, status: int = 400) -> AwsError:
    """SNS has one name for each of its errors, also where SQS has another for the same."""
    error = AwsError(code, message, status=status)
    error.code = code
    return error


def invalid_parameter(text: str) -> AwsError:
    return sns_error("InvalidParameter", f"Invalid parameter: {text}")
