"""Documents of MongoDB: texts of extended JSON in its events, and in the keys of their messages.

Owns what its types are called there. A value that JSON has itself stands for itself.

| extended JSON | becomes |
|---|---|
| `{"$oid": "65…"}`, `{"$symbol": "a"}`, `{"$uuid": "…"}` | the text |
| `{"$numberInt": "5"}`, `{"$numberLong": "5"}` | the number |
| `{"$numberDouble": "0.5"}`, `{"$numberDecimal": "0.50"}` | the number; the text of `NaN` and infinities |
| `{"$date": 1700000000000}`, a number in any form, or a text | a text with the zone, ISO 8601 |
| `{"$binary": "YQ==", "$type": "00"}`, `{"$binary": {"base64": "YQ==", …}}` | the base64 |

Other types, such as `$timestamp`, stay objects.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from tidelake.data.json.values import loads

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TEXTS = ("$oid", "$symbol", "$uuid")
_WHOLE = ("$numberInt", "$numberLong")
_NUMBERS = ("$numberDouble", "$numberDecimal")


def document(text: str) -> Any:
    """The value of a text of extended JSON, such as a document."""
    return plain(loads(text))


def plain(value: Any) -> Any:
    """A parsed value of extended JSON without the names of types. Errors as `document`."""
    if isinstance(value, list):
        return [plain(one) for one in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        (name, inner), *_ = value.items()
        if name in _TEXTS and isinstance(inner, str):
            return inner
        if name in _WHOLE and isinstance(inner, int | str):
            return int(inner)
        if name in _NUMBERS and isinstance(inner, int | str | Decimal):
            return _number(inner)
        if name == "$date":
            return _instant(plain(inner))
    if "$binary" in value and value.keys() <= {"$binary", "$type"}:
        inner = value["$binary"]
        return inner.get("base64") if isinstance(inner, Mapping) else inner
    return {name: plain(inner) for name, inner in value.items()}


def _instant(value: Any) -> Any:
    """Milliseconds since 1970 as a text: a number alone would count in the unit of its column."""
    if type(value) is not int:
        return value
    try:
        return (_EPOCH + timedelta(milliseconds=value)).isoformat()
    except OverflowError:
        raise ValueError(f"{value} is no time from year 1 to 9999") from None


def _number(value: int | str | Decimal) -> Any:
    if value in ("NaN", "Infinity", "-Infinity"):
        return value
    try:
        return Decimal(value)
    except ArithmeticError:
        raise ValueError(f"{value!r} is no number") from None
