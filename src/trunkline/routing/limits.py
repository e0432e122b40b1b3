"""The limits of routing, by name. Every structure of this folder is bounded by one of these or by its caller's bindings."""

from __future__ import annotations

from typing import Final

# A router: topology is memory, and every binding is also a record of the topology topic.
MAX_EXCHANGES: Final = 100_000
MAX_BINDINGS: Final = 1_000_000
# Nesting of a header or argument value; the wire formats that reach us nest tables far less.
MAX_TABLE_DEPTH: Final = 32

# Levels of one topic pattern. AMQP keys have at most 255 bytes, so 256 words is every key there is.
MAX_AMQP_LEVELS: Final = 256
MAX_MQTT_LEVELS: Final = 128

# What the answer caches hold: names, the values in their answers, and the longest name worth remembering.
MAX_CACHED_NAMES: Final = 4_096
MAX_CACHED_VALUES: Final = 262_144
MAX_CACHED_NAME_CHARS: Final = 256

# A filter expression, and how far the content index takes it apart.
MAX_FILTER_CHARS: Final = 8_192
MAX_FILTER_DEPTH: Final = 64
MAX_CONJUNCTIONS: Final = 256
MAX_ARITHMETIC_BITS: Final = 1_024
# Magnitudes of the lengths of ranges that are told apart, a field: a publication asks three times for each.
MAX_WIDTHS: Final = 24
# Bodies above this size are not parsed for filters: their fields read as null.
MAX_PARSED_BODY_BYTES: Final = 1 << 20

# Pairs of states that `covers` looks at before it gives up and says no.
MAX_COVERING_STATES: Final = 20_000
