"""The table of `holds`, and parsing of retention windows."""

import re
from typing import Any

from tidelake.cli.output import SpanCell, timed
from tidelake.errors import UsageError
from tidelake.lake.api.collection import Collection
from tidelake.lake.arguments.spans import window as window_of
from tidelake.model.durations import microseconds
from tidelake.model.frontier import Frontier
from tidelake.state.core.state import ShardState
from tidelake.state.life.holds import ENDLESS_MS


def rows(collection: Collection, now_ms: int) -> list[dict[str, Any]]:
    """One row for each hold on a collection, leased ones first; wall clock times in ms since 1970 UTC."""
    state = collection.state()
    leased = [
        {
            "collection": collection.name,
            "hold": key,
            "kind": "leased",
            "purpose": hold.purpose,
            "since": hold.since,
            "keeps since": _keeps(state, hold.since),
            "pinned versions": ", ".join(map(str, hold.pins)),
            "opened_ms": hold.opened_ms,
            "last sign of life_ms": hold.expires_ms - hold.lease_ms,
            "expires in s": None if hold.lease_ms == ENDLESS_MS else max(0, hold.expires_ms - now_ms) // 1000,
        }
        for key, hold in sorted(state.holds.items())
    ]
    critical = [
        {
            "collection": collection.name,
            "hold": name,
            "kind": "critical",
            "purpose": f"token {found.token!r}" if found.token else "",
            "since": found.since,
            "keeps since": _keeps(state, found.since),
            "pinned versions": "",
            "opened_ms": found.opened_ms,
            "last sign of life_ms": None,
            "expires in s": None,
        }
        for name, found in sorted(state.critical.items())
    ]
    return [timed(line, state.domain) for line in leased + critical]


def _keeps(state: ShardState, held: Frontier) -> bool:
    """Whether this hold keeps `since` from advancing to where the collection's owner has allowed it."""
    return not state.retained <= held and any(time in state.since.elements for time in held)


def window(text: str) -> int | str | None:
    """Check `all`, a number of times, or a span such as `7d`, `12h`, `30m`, `45s`, `7 days`."""
    if text == "all":
        return None
    number = int(text) if re.fullmatch(r"\d{1,18}", text) else None
    length_us = microseconds(text) if number is None else None
    if number is None and length_us is None:
        raise UsageError(
            f"retention {text!r} is not valid: give all, a number of times, or a span such as 7d or 12h"
        )
    if not (number or length_us):
        raise UsageError(f"retention {text!r} is too short: give at least one time or second, or all")
    return text if number is None else number


def check(kept: int | str | None, collection: Collection) -> None:
    """Check that a collection can have a window; the error names the collection."""
    try:
        window_of(kept, collection.domain)
    except UsageError as error:
        raise UsageError(f"collection {collection.name!r}: {error}") from error


def retained(collection: Collection) -> dict[str, Any]:
    """One row with the retention of a collection."""
    state = collection.state()
    kept = state.retention.window
    line = {
        "collection": collection.name,
        "retention": "all" if kept is None else SpanCell(kept, state.domain),
        "since": state.since,
        "upper": state.upper,
    }
    return timed(line, state.domain)
