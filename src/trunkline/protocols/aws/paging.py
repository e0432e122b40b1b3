"""Lists in pages: a token is the last name of the page before, so that what comes and goes meanwhile moves nothing."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence

from trunkline.protocols.aws.errors import invalid


def page(names: Sequence[str], token: str | None, size: int) -> tuple[list[str], str | None]:
    """So many of the names, which are in order, from the token on; and the token of the next page."""
    start = _read(token)
    left = [name for name in names if name > start]
    found = left[:size]
    return found, base64.urlsafe_b64encode(found[-1].encode()).decode() if len(left) > size else None


def _read(token: str | None) -> str:
    if not token:
        return ""
    try:
        return base64.b64decode(token.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise invalid("Invalid or expired next token.") from None
