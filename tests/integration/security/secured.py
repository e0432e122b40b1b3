"""A broker that asks everybody who they are: certificates, users, and somebody who issues tokens."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from pathlib import Path

import jwt
from cryptography.hazmat.primitives.asymmetric import ec

from tests.integration.server import ServerProcess
from trunkline.broker.core import BrokerCore
from trunkline.log.embedded.store import EmbeddedStore
from trunkline.security.self_signed import make
from trunkline.security.users import ADMINISTRATOR, Permission, User

ISSUER, AUDIENCE, KEY_ID = "https://issuer.example", "trunkline", "key-1"
CERTIFIED = "metering"
PASSWORDS = {"alice": "wonderland", "admin": "sesame", CERTIFIED: "unused"}
TLS_LISTENERS = (
    "kafka_tls_port",
    "amqp_tls_port",
    "mqtt_tls_port",
    "mqtt_wss_port",
    "stomp_tls_port",
    "stomp_wss_port",
)


class Issuer:
    """Makes tokens, and the document with the key that they are checked with."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())

    def jwks(self) -> str:
        algorithm = jwt.algorithms.ECAlgorithm(jwt.algorithms.ECAlgorithm.SHA256)
        key = json.loads(algorithm.to_jwk(self._key.public_key()))
        return json.dumps({"keys": [{**key, "kid": KEY_ID, "alg": "ES256", "use": "sig"}]})

    def token(self, user: str, *, lasts_s: float = 600, audience: str = AUDIENCE) -> str:
        claims = {
            "sub": user,
            "iss": ISSUER,
            "aud": audience,
            "exp": int(time.time() + lasts_s),
            "iat": int(time.time()),
        }
        return jwt.encode(claims, self._key, algorithm="ES256", headers={"kid": KEY_ID})


@dataclass(slots=True)
class Secured:
    server: ServerProcess
    certificates: Path
    issuer: Issuer

    @property
    def ca(self) -> str:
        return str(self.certificates / "ca.pem")

    def shown(self, name: str = CERTIFIED) -> tuple[str, str]:
        """A client's certificate and key."""
        return str(self.certificates / f"{name}.pem"), str(self.certificates / f"{name}.key")

    def at(self, listener: str) -> str:
        return f"127.0.0.1:{self.port(listener)}"

    def port(self, listener: str) -> int:
        return self.server.port if listener == "kafka" else self.server.port_of(listener)


def store_users(data: Path) -> None:
    """Make users in the directory of a broker that does not run."""

    async def work() -> None:
        core = BrokerCore(EmbeddedStore(data), with_messaging=False)
        await core.start()
        for name, password in PASSWORDS.items():
            tags = (ADMINISTRATOR,) if name == "admin" else ()
            stored = User(name if name != CERTIFIED else f"CN={CERTIFIED}", tags=tags).with_password(password.encode())
            for recorded in (core.users.put_user(stored), core.users.put_permission(stored.name, "/", Permission())):
                assert recorded is not None
                await recorded
        await core.close()

    asyncio.run(work())


def secured_broker(directory: Path, **settings: str) -> Secured:
    """Not started yet."""
    certificates = directory / "certificates"
    make(certificates, clients=[CERTIFIED])
    issuer = Issuer()
    keys = directory / "jwks.json"
    keys.write_text(issuer.jwks())
    server = ServerProcess(
        directory,
        {
            "authentication": "required",
            "tls_certificate": str(certificates / "server.pem"),
            "tls_key": str(certificates / "server.key"),
            "tls_client_ca": str(certificates / "ca.pem"),
            "tls_client_auth": "requested",
            "oauth_jwks": str(keys),
            "oauth_issuer": ISSUER,
            "oauth_audience": AUDIENCE,
            **dict.fromkeys(TLS_LISTENERS, "0"),
            **settings,
        },
    )
    store_users(server.data)
    return Secured(server, certificates, issuer)
