"""Envelopes by their names, as users write them.

Owns the list of names, and which options each takes.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from tidelake.errors import UsageError
from tidelake.feeds.debezium import Debezium
from tidelake.feeds.named import FEEDS, made
from tidelake.feeds.tools import Dms
from tidelake.spark.envelopes.debezium import EventFrames
from tidelake.spark.envelopes.delta import DeltaFeed
from tidelake.spark.envelopes.dms import DmsFrames
from tidelake.spark.envelopes.envelope import Envelope
from tidelake.spark.envelopes.hudi import Hudi, HudiFrames
from tidelake.spark.envelopes.paimon import Paimon
from tidelake.spark.envelopes.snapshot import Snapshot
from tidelake.spark.envelopes.updates import Updates
from tidelake.spark.envelopes.upsert import Upsert

EnvelopeLike: TypeAlias = str | Envelope
DEFAULT = "updates"

ENVELOPES: dict[str, Callable[..., object]] = {
    **FEEDS,
    "delta": DeltaFeed,
    "hudi": Hudi,
    "paimon": Paimon,
    "snapshot": Snapshot,
    "updates": Updates,
    "upsert": Upsert,
}


def named(envelope: EnvelopeLike, options: Mapping[str, object] | None = None) -> Envelope:
    """Make an envelope from its name and options."""
    if isinstance(envelope, str):
        found: Any = made(envelope, options or {}, ENVELOPES)
        return framed(found) if isinstance(found, Debezium) else found
    given = [name for name, value in (options or {}).items() if value is not None]
    other: object = envelope
    if not isinstance(other, Envelope) or isinstance(other, type):
        raise UsageError(f"an envelope is one of {', '.join(sorted(ENVELOPES))}, and not {other!r}")
    if given:
        raise UsageError(
            f"{', '.join(sorted(given))}: {envelope!r} is made already, and takes no more options"
        )
    return envelope


def framed(feed: Debezium) -> EventFrames:
    """The envelope of DataFrames of a change feed."""
    match feed:
        case Dms():
            return DmsFrames(feed)
        case Hudi():
            return HudiFrames(feed)
        case _:
            return EventFrames(feed)
