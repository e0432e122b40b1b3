"""Tags of queues and topics: what Amazon takes as one."""

from __future__ import annotations

from collections.abc import Mapping

from trunkline.protocols.aws.errors import AwsError, invalid
from trunkline.protocols.aws.limits import AwsLimits

_MAX_KEY_CHARS = 128
_MAX_VALUE_CHARS = 256


def check_tags(tags: Mapping[str, str], limits: AwsLimits) -> None:
    if len(tags) > limits.max_tags:
        raise AwsError(
            "InvalidParameterValue", f"Too many tags added: {len(tags)}. At most {limits.max_tags} are allowed."
        )
    for key, value in tags.items():
        if not 1 <= len(key) <= _MAX_KEY_CHARS or len(value) > _MAX_VALUE_CHARS:
            raise invalid(
                f"The tag {key[:_MAX_KEY_CHARS]!r} has a key of 1 to 128 characters and a value of up to 256."
            )
        if key.lower().startswith("aws:"):
            raise invalid("Tag keys that begin with aws: are reserved.")
