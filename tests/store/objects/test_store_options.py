"""Options of object stores: which of the environment's still hold, and what a plain http endpoint needs."""

import pytest

from tidelake.errors import StoreUnavailable
from tidelake.store.objects.address import parse_address
from tidelake.store.objects.cloud import CloudBucket

ENDPOINT = "http://127.0.0.1:9"  # no server listens there
KEYS = {"access_key_id": "who", "secret_access_key": "never told", "region": "us-east-1"}


def failure(**options: object) -> str:
    bucket = CloudBucket(parse_address("s3://bucket"), lambda: {**KEYS, **options})
    with pytest.raises(StoreUnavailable) as told:
        bucket.get("key")
    return str(told.value)


def test_an_http_endpoint_of_the_options_is_allowed() -> None:
    assert "error sending request" in failure(endpoint=ENDPOINT)


def test_an_http_endpoint_of_the_environment_must_be_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", ENDPOINT)
    assert "allow_http" in failure()
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    assert "error sending request" in failure()
