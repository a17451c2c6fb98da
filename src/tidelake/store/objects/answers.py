"""What the driver's errors mean: whether a request can have had an effect, and what may be told of it.

Owns the reading of the texts of obstore's errors, which name the status of the answer, and nothing else that
tells one failure from another. Must not know how requests are made.

INVARIANT: no message repeats the query of a url, the body of an answer, or a value of the options: these may
hold keys and signatures. For the same reason no error of the driver is the cause of one of ours.
"""

import re
from collections.abc import Collection

from tidelake.errors import OutcomeUnknown, StoreUnavailable, TidelakeError

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,60})</Code>")
_QUERY = re.compile(r"\?[^\s\"')]*")
_USER = re.compile(r"://[^/\s@]*@")
_NO_BUCKET = (
    "NoSuchBucket",
    "ContainerNotFound",
    "FilesystemNotFound",
    "The specified bucket does not exist",
)
_TEXT_CHARS_MAX = 300


def is_of_driver(error: BaseException, base: type[BaseException]) -> bool:
    """Whether the driver raised an error; `base` is the class of those that it names."""
    return isinstance(error, FileNotFoundError | ValueError | base) or _is_panic(error)


def status_of(error: BaseException) -> int | None:
    """The status of the answer of the store; None if there was none."""
    found = _STATUS.search(str(error))
    return None if found is None else int(found[1])


def is_out_of_range(error: BaseException) -> bool:
    """Whether a range begins at or behind the end of the object."""
    # The driver itself finds this out where a service gives what there is.
    return status_of(error) == 416 or "Wanted range starting at" in str(error)


def is_without_bucket(error: BaseException) -> bool:
    """Whether the bucket itself does not exist."""
    return any(code in str(error) for code in _NO_BUCKET)


def told(error: BaseException, secrets: Collection[str]) -> str:
    """What may be told of an error: its first line, without queries of urls, bodies and secrets."""
    if _is_panic(error):
        return "the driver failed inside; check the endpoint and the other options"
    text = str(error).partition("Debug source")[0]
    code = _CODE.search(text)
    text = text.partition("<")[0].partition("{")[0].partition("\n")[0]
    text = _USER.sub("://", _QUERY.sub("", text))
    for secret in secrets:
        text = text.replace(secret, "…")
    text = text.strip().rstrip(":")[:_TEXT_CHARS_MAX]
    return f"{text} ({code[1]})" if code else text or type(error).__name__


def meaning(error: BaseException, what: str, secrets: Collection[str], *, has_effect: bool) -> TidelakeError:
    """The error of ours for an error of the driver."""
    status = status_of(error)
    message = f"cannot {what}: {told(error, secrets)}"
    if "builder error" in message and "http://" in message:
        message = f"cannot {what}: the endpoint is http://, which is not encrypted; allow it by allow_http"
        return StoreUnavailable(message, retryable=False)
    if is_without_bucket(error):
        return StoreUnavailable(f"cannot {what}: there is no such bucket or container", retryable=False)
    if status is not None and 400 <= status < 500 and status != 408:
        # 409: another request for this key is under way. 429: too many requests.
        return StoreUnavailable(message, retryable=status in (409, 429))
    if status is None and _was_not_sent(error):
        return StoreUnavailable(f"{message}; check the network and the endpoint")
    if type(error).__name__ in ("PermissionDeniedError", "UnauthenticatedError", "NotSupportedError"):
        return StoreUnavailable(message, retryable=False)
    return OutcomeUnknown(message) if has_effect else StoreUnavailable(message)


def _is_panic(error: BaseException) -> bool:
    return type(error).__module__ == "pyo3_async_runtimes"


def _was_not_sent(error: BaseException) -> bool:
    """Whether there was no connection, so that nothing was sent."""
    return "kind: Connect," in str(error)
