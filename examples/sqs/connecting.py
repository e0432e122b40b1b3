"""Where the broker is, for all examples here."""

from __future__ import annotations

import os
from typing import Any

import boto3


def client(service: str) -> Any:
    return boto3.client(
        service,
        endpoint_url=os.environ.get("AWS_ENDPOINT_URL", "http://127.0.0.1:4566"),
        region_name="eu-west-1",
        aws_access_key_id="any",
        aws_secret_access_key="any",
    )
