"""What messages of all kinds of schemas become: Kafka Connect's JSON, `{"schema": ..., "payload": ...}`."""

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

# Makes what msgspec writes as Connect's JSON; None: the value itself.
Convert: TypeAlias = Callable[[Any], Any] | None
DECIMAL = "org.apache.kafka.connect.data.Decimal"


def begun(kind: Mapping[str, Any]) -> bytes:
    """The JSON before a payload of this schema of Connect."""
    return b'{"schema":%b,"payload":' % msgspec.json.encode(kind)


def finite(value: float) -> Any:
    """The number, or a text for a number that JSON does not have."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
