"""How a client says who it is, and whom it believes: a user and its password, TLS, a certificate of its own.

`Tls` wraps a socket. The broker's certificate is always checked, with the CAs of a file or, for `SYSTEM`, those of this
machine, and must be for the host that was connected to. `Login` is all of it, for a Kafka connection; which SASL mechanism is used is
said, or the best that the broker has: over TLS the password itself, else SCRAM, which does not show it.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from typing import Final, NamedTuple

from trunkline.client.errors import NOT_LET_IN, ClientError

SYSTEM: Final = "system"
PLAIN: Final = "PLAIN"
SCRAM: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256")


class Tls(NamedTuple):
    ca: str = SYSTEM  # a PEM file
    cert: str | None = None
    key: str | None = None
    key_password: str | None = None
    check_host: bool = True

    def context(self) -> ssl.SSLContext:
        """OSError, of which ssl.SSLError is one, for files that are no good."""
        context = ssl.create_default_context(cafile=None if self.ca == SYSTEM else self.ca)
        context.check_hostname = self.check_host
        if self.cert is not None:
            context.load_cert_chain(self.cert, self.key, self.key_password)
        return context

    def wrap(self, plain: socket.socket, host: str) -> ssl.SSLSocket:
        """ClientError says what is wrong with the files or with the broker's certificate; the socket is closed then."""
        try:
            return self.context().wrap_socket(plain, server_hostname=host)
        except ssl.SSLCertVerificationError as error:
            plain.close()
            hint = "name the CA that signed it with --ca FILE"
            raise ClientError(NOT_LET_IN, f"{host} is not believed: {error.verify_message}", hint) from None
        except ssl.SSLError as error:
            plain.close()
            raise ClientError(NOT_LET_IN, f"no TLS with {host}: {error.reason or error}") from None
        except OSError as error:
            plain.close()
            raise ClientError(NOT_LET_IN, f"no TLS with {host}: {error.strerror or error}") from None


class Login(NamedTuple):
    user: str | None = None
    password: str = ""
    tls: Tls | None = None
    mechanism: str | None = None

    def __repr__(self) -> str:
        """Without the password: options of a query are printed in many places."""
        return f"Login({self.user!r}, tls={self.tls is not None}, mechanism={self.mechanism!r})"

    @property
    def wanted(self) -> tuple[str, ...]:
        """The mechanisms to log in by, the best first."""
        if self.mechanism is not None:
            return (self.mechanism,)
        return (PLAIN, *SCRAM) if self.tls is not None else (*SCRAM, PLAIN)

    def with_one_of(self, offered: Sequence[str]) -> Login:
        """The same by a mechanism that the broker has."""
        for mechanism in self.wanted:
            if mechanism in offered:
                return self._replace(mechanism=mechanism)
        text = f"the broker offers {', '.join(offered) or 'no mechanism'}, and we have {', '.join(self.wanted)}"
        raise ClientError(NOT_LET_IN, text)


NOBODY: Final = Login()
