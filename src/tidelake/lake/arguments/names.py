"""Names that users give to collections, writers, readers and columns."""

import unicodedata
from collections.abc import Mapping, Sequence

from tidelake.errors import UsageError
from tidelake.state.core.owned import without_parts

_BYTES_MAX = 255


def check_name(name: object, what: str, *, bytes_max: int = _BYTES_MAX) -> str:
    """Check a name: any text of at most `bytes_max` bytes without control characters. Returns it."""
    if not isinstance(name, str):
        raise UsageError(f"{what} {name!r} must be a text, not {type(name).__name__}")
    if not name or any(unicodedata.category(c) == "Cc" for c in name):
        raise UsageError(f"{what} {name!r} must be a non-empty text without control characters")
    return _short(name, what, bytes_max)


def check_text(name: object) -> str:
    """Check the name of a collection to look up: any text. Returns it."""
    if not isinstance(name, str):
        raise UsageError(f"collection name {name!r} must be a text")
    return name


def check_token(token: object, hold: str) -> str:
    """Check a token: any text of at most 255 bytes, also the empty one. Returns it."""
    if not isinstance(token, str):
        raise UsageError(f"token {token!r} of critical hold {hold!r} must be a text")
    return _short(token, f"token of critical hold {hold!r}", _BYTES_MAX)


def _short(text: str, what: str, bytes_max: int) -> str:
    """Check that a text can be encoded, in at most `bytes_max` bytes. Returns it."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise UsageError(f"{what} {text!r} is not valid text: {error.reason}") from error
    if size > bytes_max:
        raise UsageError(f"{what} {text[:20]!r}... has {size} bytes: use at most {bytes_max}")
    return text


def check_list(names: object, what: str) -> None:
    """Check that names were given as a list, not as one text."""
    if isinstance(names, str | bytes) or not isinstance(names, Sequence):
        raise UsageError(f"{what}={names!r} is not a list of names: write {what}=['name', ...]")


def not_found(name: str, shards: Mapping[str, str | None]) -> str:
    """The message for an unknown name: suggests the nearest names, or lists some; none that views keep."""
    live = sorted(without_parts((n for n, shard in shards.items() if shard is not None), {*shards.values()}))
    gone = " (it was dropped or renamed)" if name in shards else ""
    # Imported here: a first read of a process needs none of it.
    import difflib

    near = difflib.get_close_matches(name, live, 3, 0.5)
    if near:
        return f"no collection {name!r}{gone}; the nearest names are {', '.join(map(repr, near))}"
    listed = ", ".join(map(repr, live[:5])) if live else "none yet"
    return f"no collection {name!r}{gone}; there is {listed}"


def copied_names(wanted: Sequence[str], as_name: str | None) -> dict[str, str]:
    """Which collections are copied: names in the target by those at the source."""
    check_list(wanted, "names")
    if as_name is not None and len(wanted) != 1:
        raise UsageError(f"as_name={as_name!r} is for one collection: give its name in names=[...]")
    if len({*wanted}) < len(wanted):
        raise UsageError(f"names={wanted!r} has a name twice")
    return {check_text(name): check_name(as_name or name, "collection name") for name in wanted}
