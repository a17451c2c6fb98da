"""The rules for renaming: which changes of the catalog a rename makes, and which renames are refused.

Must not know how the catalog is stored. All functions are pure.
"""

from collections.abc import Mapping
from typing import NoReturn

from tidelake.errors import CollectionExists, UsageError
from tidelake.lake.arguments.names import check_name, check_text


def check_renames(names: object) -> dict[str, str]:
    """Check the argument of `rename_all`. Returns new names by old ones."""
    if not isinstance(names, Mapping) or not names:
        raise UsageError(f"names={names!r} does not say which collection gets which name: give {{old: new}}")
    found: dict[str, str] = {}
    for old, new in names.items():
        found[check_text(old)] = check_name(new, "collection name")
    for new in found.values():
        olds = [old for old, name in found.items() if name == new]
        if len(olds) > 1:
            raise UsageError(f"collections {' and '.join(map(repr, olds))} cannot both be called {new!r}")
    return found


def renamed(
    shards: Mapping[str, str | None], names: Mapping[str, str], *, allow_recreate: bool
) -> dict[str, str | None]:
    """The changes of the catalog that give collections new names, all at once.

    An old name that no collection takes is kept, like that of a dropped collection.
    """
    moved = {old: new for old, new in names.items() if old != new}
    for old, new in moved.items():
        if new in moved or new not in shards:
            continue
        if shards[new] is not None:
            raise CollectionExists(
                f"collection {old!r} cannot be called {new!r}: there is a collection {new!r}"
            )
        if not allow_recreate:
            refuse_gone(new)
    given_up: dict[str, str | None] = dict.fromkeys(moved)
    return given_up | {new: shards[old] for old, new in moved.items()}


def refuse_gone(name: str) -> NoReturn:
    """Refuse a name that was given up."""
    raise CollectionExists(
        f"a collection {name!r} existed here and was dropped or renamed: use another name, or give "
        "allow_recreate=True if it is to come back"
    )
