"""What an error of the driver means: whether the statement had its effect, and whether trying again may help.

Must not know any statement.

SUBTLE: an error of the driver may hold secrets, so it must be neither the cause nor the context of ours.

INVARIANT: a write that was sent is `StoreUnavailable` only if the server says that its transaction was rolled
back. A message of a server that shuts down does not say that: it may come after the commit.
"""

import psycopg

from tidelake.errors import CorruptionError, OutcomeUnknown, StoreUnavailable, TidelakeError
from tidelake.store.postgres.address import Address

# Classes of SQLSTATE, from https://www.postgresql.org/docs/current/errcodes-appendix.html
_TRANSIENT = ("40", "53", "55P03", "57014", "25P03", "08")
_DAMAGE = ("XX001", "XX002")
_UNDECIDED = ("08", "40003", "57P")
# Libpq tells a refused connection by its text only. Where it is in another language, we try again in vain.
_REFUSED = (
    "authentication failed",
    "does not exist",
    "no pg_hba.conf entry",
    "no password supplied",
    "is not permitted",
    "permission denied",
    "certificate",
)


def not_connected(address: Address, error: psycopg.Error) -> TidelakeError:
    """The error for a connection that could not be opened."""
    text = address.redacted(str(error))
    return StoreUnavailable(
        f"cannot connect to the log at {address}: {text}", not any(word in text for word in _REFUSED)
    )


def failed(address: Address, action: str, error: psycopg.Error, *, writes: bool) -> TidelakeError:
    """The error for a statement that failed."""
    state = error.sqlstate or ""
    text = address.redacted(error.diag.message_primary or str(error) or type(error).__name__)
    message = f"cannot {action} in the log at {address}: {text}"
    if state in _DAMAGE:
        return CorruptionError(str(address), text)
    is_answer = error.diag.severity_nonlocalized == "ERROR" and not state.startswith(_UNDECIDED)
    if is_answer or isinstance(error, psycopg.ProgrammingError | psycopg.DataError):
        return StoreUnavailable(message, state.startswith(_TRANSIENT))
    return OutcomeUnknown(message) if writes else StoreUnavailable(message)
