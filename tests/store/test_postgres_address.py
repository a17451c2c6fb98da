"""Addresses of PostgreSQL servers: which there are, and that nothing shows their passwords."""

import pickle

import pytest

from tidelake.env import SystemClock
from tidelake.errors import TidelakeError, UsageError
from tidelake.store.postgres.address import Address
from tidelake.store.postgres.log import open_log

SECRET = "pl4nted/s3cret"
QUOTED = "pl4nted%2Fs3cret"


def everywhere(error: BaseException) -> str:
    """All that an error says: itself, what it came from, and its pickle."""
    told = [repr(error), str(error), repr(pickle.dumps(error))]
    told += [everywhere(other) for other in (error.__cause__, error.__context__) if other is not None]
    return "\n".join(told)


@pytest.mark.parametrize(
    "rest",
    [
        "@127.0.0.1:1/db",
        "@127.0.0.1:1/db?sslmode=verify-full&sslrootcert=/no/such/file",
        "@[::1/db",
        "@127.0.0.1:port/db",
        "@127.0.0.1:1/db?no_such_option=1",
        "@127.0.0.1:1/db?sslmode=" + QUOTED,
        "@127.0.0.1:1,127.0.0.1:2/db",
    ],
)
def test_no_error_of_an_address_shows_its_password(rest: str) -> None:
    with pytest.raises(TidelakeError) as caught:
        open_log(Address(f"postgresql://user:{QUOTED}{rest}"), "id", "place", SystemClock())
    told = everywhere(caught.value)
    assert SECRET not in told
    assert QUOTED not in told


def test_an_address_is_shown_without_who_and_how() -> None:
    assert str(Address("postgres://user:pw@host.example:6432/db?sslmode=require")) == (
        "postgresql://host.example:6432/db"
    )
    for bad in ("", "mysql://x/y", "host=x password=secret", "/some/path"):
        with pytest.raises(UsageError, match="cannot be read"):
            Address(bad)
