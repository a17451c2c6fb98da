"""Change feeds by their names, as users write them, and options of what has a name."""

import difflib
from collections.abc import Mapping
from dataclasses import fields
from os import PathLike, fspath
from typing import Any

from tidelake.errors import UsageError
from tidelake.feeds.debezium import Debezium
from tidelake.feeds.rows import RowUpdates, RowUpserts
from tidelake.feeds.tools import Canal, Dms, DynamoDb, GoldenGate, Maxwell, Ticdc, Wal2Json

FEEDS: dict[str, type[Debezium]] = {
    "canal": Canal,
    "debezium": Debezium,
    "dms": Dms,
    "dynamodb": DynamoDb,
    "goldengate": GoldenGate,
    "maxwell": Maxwell,
    "ticdc": Ticdc,
    "wal2json": Wal2Json,
}
ROWS: dict[str, type[RowUpdates | RowUpserts]] = {"updates": RowUpdates, "upsert": RowUpserts}


def made(name: str, options: Mapping[str, object], kinds: Mapping[str, Any]) -> Any:
    """Make an envelope from its name and options."""
    given: dict[str, Any] = {option: value for option, value in options.items() if value is not None}
    if name not in kinds:
        near = difflib.get_close_matches(name, kinds, 1)
        hint = f": did you mean {near[0]!r}?" if near else f": known are {', '.join(sorted(kinds))}"
        raise UsageError(f"there is no envelope {name!r}{hint}")
    kind = kinds[name]
    refuses: frozenset[str] = getattr(kind, "refuses", frozenset())
    takes = [field.name for field in fields(kind) if field.init and field.name not in refuses]
    strange = sorted(given.keys() - set(takes))
    if strange:
        raise UsageError(f"the envelope {name!r} takes no {', '.join(strange)}: it takes {', '.join(takes)}")
    if isinstance(given.get("rejects"), PathLike):
        given["rejects"] = fspath(given["rejects"])
    if given.get("rejects") == "":
        raise UsageError("rejects='' is no folder: give its path, or leave it out")
    return kind(**given)
