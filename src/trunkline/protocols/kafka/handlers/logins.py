"""SaslHandshake and SaslAuthenticate: what they do to the connection is in `authentication`."""

from __future__ import annotations

from trunkline.protocols.kafka.context import Context
from trunkline.protocols.kafka.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from trunkline.protocols.kafka.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse


async def sasl_handshake(context: Context, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
    code = context.authentication.handshake(request.mechanism, context.version)
    return SaslHandshakeResponse(error_code=code, mechanisms=context.authentication.mechanisms)


async def sasl_authenticate(context: Context, request: SaslAuthenticateRequest) -> SaslAuthenticateResponse:
    outcome = await context.authentication.step(bytes(request.auth_bytes))
    return SaslAuthenticateResponse(
        error_code=outcome.error_code,
        error_message=outcome.error_message,
        auth_bytes=outcome.answer,
        session_lifetime_ms=outcome.session_lifetime_ms,
    )
