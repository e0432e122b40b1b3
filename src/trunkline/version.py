"""The version of this package, without the cost of reading installed metadata. A test keeps it equal to pyproject's."""

VERSION = "0.1.0"
