"""Where a lake lies in an object store: service, bucket and prefix, of one url.

Owns how such urls are read and written. Must not know how a store is reached.

A url is taken as it is written: `%20` is three characters of a prefix, and a space is one.
"""

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tidelake.errors import UsageError
from tidelake.model.names import NAME_CHARS_MAX

Service: TypeAlias = Literal["s3", "gs", "az", "abfss"]

SCHEMES: dict[str, Service] = {"s3": "s3", "s3a": "s3", "gs": "gs", "az": "az", "abfss": "abfss"}
"""What stands before `://` in a url, and the service that it means."""

# All services take keys of 1,024 bytes. A lake adds its id, a folder or two, and names of its own.
PREFIX_BYTES_MAX = 1024 - NAME_CHARS_MAX - 100

_BUCKET = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,253}[A-Za-z0-9])?", re.ASCII)
# Accounts of other clouds have other hosts: az:// with the option `endpoint` reaches them.
_ACCOUNT = re.compile(r"[a-z0-9]{3,24}\.dfs\.core\.windows\.net", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class BucketAddress:
    """A place in an object store.

    Attributes:
        bucket: the bucket of S3 and GCS, the container of Azure.
        prefix: segments separated by `/`; empty for the whole bucket.
        host: for `abfss`, the host of the storage account; else empty.
    """

    service: Service
    bucket: str
    prefix: str
    host: str = ""

    @property
    def url(self) -> str:
        """The url, the same for all ways to write it."""
        host = f"@{self.host}" if self.host else ""
        return f"{self.service}://{self.bucket}{host}" + (f"/{self.prefix}" if self.prefix else "")

    @property
    def account(self) -> str | None:
        """The storage account of an `abfss` url."""
        return self.host.partition(".")[0] or None

    def below(self, *segments: str) -> "BucketAddress":
        """The address of a folder below this one."""
        return BucketAddress(
            self.service, self.bucket, "/".join(filter(None, (self.prefix, *segments))), self.host
        )


def parse_address(url: str) -> BucketAddress:
    """Read the url of a lake in an object store."""
    scheme, separator, rest = url.partition("://")
    service = SCHEMES.get(scheme.lower())
    if service is None or not separator:
        raise UsageError(f"{scheme}:// is no object store: use one of {', '.join(SCHEMES)}")
    place, _, prefix = rest.partition("/")
    bucket, at, host = place.partition("@")
    if at and service != "abfss":
        raise _bad(
            scheme, "it takes no name or key before an @; give keys by store_options or by the environment"
        )
    if service == "abfss" and _ACCOUNT.fullmatch(host) is None:
        raise _bad(
            scheme,
            "write abfss://container@account.dfs.core.windows.net/prefix; for accounts elsewhere write "
            "az://container/prefix, with the options account_name and endpoint",
        )
    if _BUCKET.fullmatch(bucket) is None:
        raise _bad(
            scheme, f"write {scheme}://bucket/prefix, with a bucket of letters, digits, '-', '_' and '.'"
        )
    if "?" in prefix or "#" in prefix:
        raise _bad(scheme, "it takes no '?' and no '#'; give options and keys by store_options")
    prefix = prefix.rstrip("/")
    if prefix and any(part in ("", ".", "..") for part in prefix.split("/")):
        raise _bad(scheme, "no segment of the prefix may be empty, '.' or '..'")
    if _CONTROL.search(prefix) or "\\" in prefix or not _is_text(prefix):
        raise _bad(scheme, "the prefix contains a character that object stores do not take")
    if len(prefix.encode()) > PREFIX_BYTES_MAX:
        raise _bad(scheme, f"the prefix is longer than {PREFIX_BYTES_MAX} bytes")
    if service == "s3" and bucket.endswith("--x-s3"):
        raise _bad(
            scheme, "buckets of S3 Express list objects in no order, which the log depends on: use another"
        )
    return BucketAddress(service, bucket, prefix, host)


def _is_text(prefix: str) -> bool:
    """Whether a prefix can be written as UTF-8: it holds no half of a surrogate pair."""
    return not any("\ud800" <= character <= "\udfff" for character in prefix)


def _bad(scheme: str, remedy: str) -> UsageError:
    return UsageError(f"bad url of a lake, {scheme}://…: {remedy}")
