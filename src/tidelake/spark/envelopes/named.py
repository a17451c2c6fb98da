"""Envelopes by their names, as users write them.

Owns the list of names, and which options each takes.
"""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, TypeAlias

from tidelake.errors import UsageError
from tidelake.spark.envelopes.debezium import Debezium
from tidelake.spark.envelopes.delta import DeltaFeed
from tidelake.spark.envelopes.dialectmessages import Canal, DynamoDb, GoldenGate, Maxwell, Ticdc, Wal2Json
from tidelake.spark.envelopes.dms import Dms
from tidelake.spark.envelopes.envelope import Envelope
from tidelake.spark.envelopes.hudi import Hudi
from tidelake.spark.envelopes.paimon import Paimon
from tidelake.spark.envelopes.snapshot import Snapshot
from tidelake.spark.envelopes.updates import Updates
from tidelake.spark.envelopes.upsert import Upsert

EnvelopeLike: TypeAlias = str | Envelope
DEFAULT = "updates"

ENVELOPES: dict[str, Callable[..., Envelope]] = {
    "canal": Canal,
    "debezium": Debezium,
    "delta": DeltaFeed,
    "dms": Dms,
    "dynamodb": DynamoDb,
    "goldengate": GoldenGate,
    "hudi": Hudi,
    "maxwell": Maxwell,
    "paimon": Paimon,
    "snapshot": Snapshot,
    "ticdc": Ticdc,
    "updates": Updates,
    "upsert": Upsert,
    "wal2json": Wal2Json,
}


def named(envelope: EnvelopeLike, options: Mapping[str, object] | None = None) -> Envelope:
    """Make an envelope from its name and options.

    Args:
        envelope: the name of an envelope, or an envelope object, which is returned.
        options: for a name, the fields of its class, such as `time="ts"`; None counts as not given.

    Raises:
        UsageError: there is no such name, or the envelope does not take an option.
    """
    given = {name: value for name, value in (options or {}).items() if value is not None}
    if not isinstance(envelope, str):
        other: object = envelope
        if not isinstance(other, Envelope) or isinstance(other, type):
            raise UsageError(f"an envelope is one of {', '.join(sorted(ENVELOPES))}, and not {other!r}")
        if given:
            raise UsageError(
                f"{', '.join(sorted(given))}: {envelope!r} is made already, and takes no more options"
            )
        return envelope
    if envelope not in ENVELOPES:
        near = difflib.get_close_matches(envelope, ENVELOPES, 1)
        hint = f": did you mean {near[0]!r}?" if near else f": known are {', '.join(sorted(ENVELOPES))}"
        raise UsageError(f"there is no envelope {envelope!r}{hint}")
    kind: Any = ENVELOPES[envelope]
    refuses: frozenset[str] = getattr(kind, "refuses", frozenset())
    takes = [field.name for field in fields(kind) if field.init and field.name not in refuses]
    strange = sorted(given.keys() - set(takes))
    if strange:
        raise UsageError(
            f"the envelope {envelope!r} takes no {', '.join(strange)}: it takes {', '.join(takes)}"
        )
    made: Envelope = kind(**given)
    return made
