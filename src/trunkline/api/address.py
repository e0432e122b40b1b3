"""Where a broker is.

    trunkline://user:password@host:port/vhost?kafka=9092    a server; the port is AMQP's, 5672 unless said
    trunkline://one,two:5673/                               several gateways of one cluster: the first that answers
    memory:                                                 a broker in this process, gone with the connection
    a/directory, /a/directory or file:…                     a broker in this process, its log in this directory

`kafka` is needed only where the broker does not say by itself where its Kafka listener is.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from trunkline.client.link import LinkAddress

DEFAULT_PORT = 5672
_SCHEMES = ("trunkline", "amqp")


@dataclass(frozen=True, slots=True)
class Address:
    """`links` is empty for a broker in this process; then `directory` is its log's, None for one in memory."""

    links: tuple[LinkAddress, ...] = ()
    kafka: str | None = None
    directory: Path | None = None


def parse_url(url: str) -> Address:
    """ValueError if it says no place."""
    if url == "memory:":
        return Address()
    if "://" not in url:
        path = url.removeprefix("file:")
        if not path or ":" in path:
            raise ValueError(f"{url!r} is no address: write trunkline://host:port, memory: or a directory")
        return Address(directory=Path(path))
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES:
        raise ValueError(f"{url!r}: the scheme is trunkline://, not {parts.scheme}://")
    credentials, _, hosts = parts.netloc.rpartition("@")
    user, _, password = credentials.partition(":")
    vhost = unquote(parts.path[1:]) or "/"
    links = []
    for host in hosts.split(","):
        name, port = _split_host(host, url)
        links.append(LinkAddress(name, port, unquote(user) or "guest", unquote(password) or "guest", vhost))
    options = parse_qs(parts.query, keep_blank_values=True)
    unknown = options.keys() - {"kafka"}
    if unknown:
        raise ValueError(f"{url!r}: there is no option {sorted(unknown)[0]!r}")
    kafka = options["kafka"][-1] if "kafka" in options else None
    if kafka is not None and ":" not in kafka:
        kafka = f"{links[0].host}:{kafka}"
    return Address(tuple(links), kafka)


def _split_host(text: str, url: str) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    try:
        port = parts.port or DEFAULT_PORT
    except ValueError:
        raise ValueError(f"{url!r}: {text!r} has no port between 1 and 65535") from None
    if not parts.hostname:
        raise ValueError(f"{url!r} names no host")
    return parts.hostname, port
