"""Which reader there is: llhttp's where httptools can be imported, else h11's."""

from __future__ import annotations

from collections.abc import Callable

from trunkline.protocols.http.codec import Reader
from trunkline.protocols.http.limits import HttpLimits


def _best() -> Callable[[HttpLimits], Reader]:
    try:
        from trunkline.protocols.http.llhttp_reader import LlhttpReader
    except ImportError:  # no wheel for this Python
        from trunkline.protocols.http.h11_reader import H11Reader

        return H11Reader
    return LlhttpReader


new_reader = _best()
