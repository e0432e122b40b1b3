"""Advertisements: what publishers say that they will publish, for as long as they are connected.

An advertisement is a binding of the exchange `trunkline.advertisements` to a queue that is exclusive to the publisher's connection, and
goes with it: its arguments are `kind` and `text`. Nothing is ever published there.

| kind | text | overlaps with |
|---|---|---|
| topic | an MQTT topic filter; of a channel, the filter of all that is in it | filters that have a topic in common |
| content | a filter over fields | filters that an event could both match |
| type | names of a class and its bases: `/Quote/Event/` | those of which one is the other's base |

Of two different kinds nothing is known, and they count as overlapping.
"""

from __future__ import annotations

from typing import Final

from trunkline.broker.messaging import refusals
from trunkline.broker.state.virtual_host import VirtualHost
from trunkline.routing.errors import InvalidFilter
from trunkline.routing.filter import Filter
from trunkline.routing.overlap import may_overlap
from trunkline.security.filters import overlap

EXCHANGE: Final = "trunkline.advertisements"
KINDS: Final = ("topic", "content", "type")


def advertised(vhost: VirtualHost, kind: str, text: str) -> list[tuple[str, str]]:
    """The kinds and texts of advertisements under which there may be events that this filter matches."""
    if kind not in KINDS:
        raise refusals.precondition(f"a filter is of the kind {', '.join(KINDS)}, not '{kind}'")
    if kind == "content":
        _parsed(text)
    if EXCHANGE not in vhost.exchanges:
        return []
    found: list[tuple[str, str]] = []
    for route in vhost.router.bindings(EXCHANGE):
        offered = str(route.arguments.get("kind")), str(route.arguments.get("text"))
        if _overlap(offered, (kind, text)):
            found.append(offered)
    return found


def _overlap(offered: tuple[str, str], wanted: tuple[str, str]) -> bool:
    kind, text = wanted
    if offered[0] != kind:
        return True
    if kind == "topic":
        return overlap(offered[1].split("/"), text.split("/"))
    if kind == "type":
        one, other = offered[1].strip("/").split("/"), text.strip("/").split("/")
        return one[0] in other or other[0] in one
    try:
        return may_overlap(Filter(offered[1]), Filter(text))
    except InvalidFilter:
        return False  # whoever bound this did not say what it publishes


def _parsed(text: str) -> Filter:
    try:
        return Filter(text)
    except InvalidFilter as error:
        raise refusals.precondition(str(error)) from None
