"""ApiVersions: what a client may ask for. It is the first request of nearly every connection."""

from __future__ import annotations

from functools import cache

from trunkline.protocols.kafka import apis
from trunkline.protocols.kafka.context import Context
from trunkline.protocols.kafka.errors import ErrorCode
from trunkline.protocols.kafka.handlers import served
from trunkline.protocols.kafka.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

# (feature, highest level): KIP-848 groups, share groups (KIP-932), and transactions with KIP-890's implicit partitions.
FEATURES = {"group.version": 1, "share.version": 1, "transaction.version": 2}


@cache
def _api_keys() -> tuple[ApiVersion, ...]:
    return tuple(
        ApiVersion(api_key=api.key, min_version=api.min_version, max_version=api.max_version)
        for api in sorted(apis.APIS.values(), key=lambda api: api.key)
        if api.key in served()
    )


async def api_versions(context: Context, request: ApiVersionsRequest) -> ApiVersionsResponse:
    return ApiVersionsResponse(
        api_keys=list(_api_keys()),
        supported_features=[
            SupportedFeatureKey(name=name, min_version=0, max_version=top) for name, top in FEATURES.items()
        ],
        finalized_features_epoch=0,
        finalized_features=[
            FinalizedFeatureKey(name=name, min_version_level=top, max_version_level=top)
            for name, top in FEATURES.items()
        ],
    )


def unsupported_api_versions() -> ApiVersionsResponse:
    """The answer, in v0 form, to a client newer than we are: it reads the range and asks again."""
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=list(_api_keys()))
