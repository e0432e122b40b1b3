"""The version of this package, without the cost of reading installed metadata. A test keeps it equal to pyproject's."""

VERSION = "0.1.0"
BEHAVES_LIKE = "3.10.8"  # RabbitMQ's version whose behaviour its clients, and its definitions, find here


def install_command(extras: str) -> str:
    """What to type for an optional part. Until there is a release, the package is installed from its sources."""
    return f"pip install '.[{extras}]' in the folder of Trunkline's sources"
