"""Names that users give to collections, writers and readers."""

import unicodedata

from tidelake.errors import UsageError

_BYTES_MAX = 255


def check_name(name: object, what: str) -> str:
    """The name itself: any text of at most 255 bytes without control characters.

    Raises:
        UsageError: it is something else; says `what` was to be named.
    """
    if not isinstance(name, str):
        raise UsageError(f"{what} {name!r} must be a text, not {type(name).__name__}")
    if not name or any(unicodedata.category(c) == "Cc" for c in name):
        raise UsageError(f"{what} {name!r} must be a non-empty text without control characters")
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise UsageError(f"{what} {name!r} is not valid text: {error.reason}") from error
    if size > _BYTES_MAX:
        raise UsageError(f"{what} {name[:20]!r}... has {size} bytes: use at most {_BYTES_MAX}")
    return name
