"""The addresses of this machine, for the banner of a broker that listens on all of them.

Linux tells IPv4 addresses interface by interface and lists IPv6 ones in a file. Elsewhere the system is asked which
address it would use to reach another machine; nothing is sent for that.
"""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from contextlib import suppress
from pathlib import Path

WILDCARDS = frozenset({"0.0.0.0", "::", ""})
_SIOCGIFADDR = 0x8915
_INET6 = Path("/proc/net/if_inet6")
_SOMEWHERE = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}  # addresses for documentation


def machine_addresses(*, ipv6: bool = False) -> list[str]:
    """Without those of the loopback interface, and those that other machines cannot use as they are."""
    found = _ipv6() if ipv6 else _ipv4()
    found = found or _outbound(socket.AF_INET6 if ipv6 else socket.AF_INET)
    addresses = [ipaddress.ip_address(each) for each in dict.fromkeys(found)]
    return [str(each) for each in addresses if not (each.is_loopback or each.is_link_local or each.is_unspecified)]


def _ipv4() -> list[str]:
    found: list[str] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                found.append(socket.inet_ntoa(answer[20:24]))
    return found


def _ipv6() -> list[str]:
    with suppress(OSError):
        rows = [line.split() for line in _INET6.read_text().splitlines()]
        return [str(ipaddress.IPv6Address(bytes.fromhex(row[0]))) for row in rows]
    return []


def _outbound(family: socket.AddressFamily) -> list[str]:
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((_SOMEWHERE[family], 9))
        return [str(probe.getsockname()[0])]
    return []
