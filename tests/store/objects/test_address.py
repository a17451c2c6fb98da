"""Urls of lakes in object stores."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelake.errors import UsageError
from tidelake.store.objects.address import PREFIX_BYTES_MAX, BucketAddress, parse_address

AZURE = "abfss://data@account1.dfs.core.windows.net"
SECRET = "the-planted-secret"
SEGMENT = st.text(
    st.characters(exclude_categories=["Cc", "Cs"], exclude_characters="/\\?#"), min_size=1, max_size=20
).filter(lambda text: text not in (".", ".."))


@pytest.mark.parametrize(
    ("url", "read"),
    [
        ("s3://b/a/b", BucketAddress("s3", "b", "a/b")),
        ("S3A://b/a/", BucketAddress("s3", "b", "a")),
        ("gs://my.bucket_1", BucketAddress("gs", "my.bucket_1", "")),
        ("az://c/%20 x", BucketAddress("az", "c", "%20 x")),
        (f"{AZURE}/x@y", BucketAddress("abfss", "data", "x@y", "account1.dfs.core.windows.net")),
    ],
)
def test_a_url_is_taken_as_it_is_written(url: str, read: BucketAddress) -> None:
    assert parse_address(url) == read
    assert parse_address(read.url) == read


def test_the_account_of_azure_is_in_its_url() -> None:
    assert parse_address(AZURE).account == "account1"
    assert parse_address("az://c").account is None


@given(st.lists(SEGMENT, max_size=4))
def test_any_text_is_a_prefix(segments: list[str]) -> None:
    prefix = "/".join(segments)
    address = parse_address(f"s3://bucket/{prefix}")
    assert address.prefix == prefix
    assert parse_address(address.url) == address


@pytest.mark.parametrize(
    "url",
    [
        *(
            "s3:/b/x",
            "s3://",
            "s3:///x",
            "s3://-b",
            "s3://b/a//b",
            "s3://b/./x",
            "s3://b/../x",
            "s3://b/a\\b",
        ),
        *(
            f"s3://key:{SECRET}@b/x",
            f"s3://b/x?secret={SECRET}",
            f"s3://b/x#{SECRET}",
            "s3://b/\n",
            "s3://b/\ud800",
        ),
        *("s3://b--x-s3/x", f"az://c@{SECRET}/x", "abfss://c/x", f"abfss://c@{SECRET}/x", "ftp://b/x"),
        f"gs://b/{'x' * (PREFIX_BYTES_MAX + 1)}",
    ],
)
def test_another_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_address(url)
    assert SECRET not in str(caught.value)
