"""Conditions in SQL beside the same conditions in plain Python, row by row, with three truth values."""

import math
import random
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa

Truth = bool | None
Condition = Callable[[dict[str, Any]], Truth]

NAN = math.nan
at = datetime.fromisoformat
EPOCH = at("1970-01-01")
# Of types that Spark has as well.
FIELDS: list[tuple[pa.Field, list[Any]]] = [
    (pa.field("k", pa.int64()), [-(2**63), -256, -1, 0, 1, 2, 255, 256, 2**63 - 1, None]),
    (
        pa.field("s", pa.string()),
        ["", "a", "A", "ab", "a%", "a_b", "aé", "b", "é", "z\U0001f600", "it's", None],
    ),
    (pa.field("small one", pa.int8()), [-128, -1, 0, 1, 127, None]),
    (pa.field("f", pa.float64()), [-math.inf, -1.5, -0.0, 0.0, 0.1, 1.0, 1e300, math.inf, NAN, None]),
    (pa.field("f4", pa.float32()), [-math.inf, -1.5, 0.0, 0.25, math.inf, NAN, None]),
    (pa.field("d", pa.decimal128(10, 2)), [Decimal(x) for x in ("-9.99", "0.00", "0.01", "1.50")] + [None]),
    (pa.field("b", pa.bool_()), [False, True, None]),
    (pa.field("day", pa.date32()), [date(1969, 12, 31), date(1970, 1, 1), date(2024, 2, 29), None]),
    (
        pa.field("ts", pa.timestamp("us")),
        [at("1970-01-01"), at("2024-02-29 12:30:00.000001"), at("1960-01-01"), None],
    ),
    (
        pa.field("Über", pa.timestamp("us", "UTC")),
        [datetime(1970, 1, 1, tzinfo=UTC), datetime(2024, 2, 29, 12, 30, 0, 5, tzinfo=UTC), None],
    ),
    (pa.field("l", pa.list_(pa.int64())), [None, [], [1, None]]),
]
# Of types that it has not, or to which it gives another meaning.
MORE: list[tuple[pa.Field, list[Any]]] = [
    (pa.field("u", pa.uint64()), [0, 1, 2**63, 2**64 - 1, None]),
    (pa.field("u2", pa.uint16()), [0, 1, 65535, None]),
    (pa.field("f2", pa.float16()), [-1.5, 0.0, 1.0, NAN, None]),
    (pa.field("bin", pa.binary()), [b"", b"\x00", b"\x00\xff", b"a", b"\xff", b"\xff\xff", None]),
    (pa.field("fix", pa.binary(2)), [b"\x00\x00", b"ab", b"\xff\xff", None]),
    (
        pa.field("d256", pa.decimal256(60, 0)),
        [Decimal(x) for x in (-(2**130), -1, 0, 2**127, 10**50)] + [None],
    ),
    (pa.field("d32", pa.decimal32(5, 2)), [Decimal("-9.99"), Decimal("0.01"), None]),
    (pa.field("s0", pa.timestamp("s")), [at("1970-01-01"), at("2024-02-29 12:30:00"), None]),
    (pa.field("day64", pa.date64()), [date(1970, 1, 1), date(2024, 2, 29), None]),
    (pa.field("zero", pa.string()), ["", "\x00", "\x00\x01", "a\x00", "a\x00b", "a\x01", None]),
]


def order(value: Any) -> Any:
    """Something that Python compares as SQL compares the value: NaN is the greatest float."""
    if isinstance(value, float):
        return (1, 0) if math.isnan(value) else (0, Fraction(value)) if math.isfinite(value) else _end(value)
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        return (0, Fraction(value))
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, datetime):
        return (value.replace(tzinfo=None) - EPOCH) // timedelta(microseconds=1)
    return value


def _end(value: float) -> Any:
    return (1, -1) if value > 0 else (-1, 0)


def all_of(*truths: Truth) -> Truth:
    return False if False in truths else None if None in truths else True


def negated(truth: Truth) -> Truth:
    return None if truth is None else not truth


def quoted(name: str) -> str:
    return f"`{name}`" if not name.isidentifier() or not name.isascii() else name


def literal(rng: random.Random, field: pa.Field, values: list[Any]) -> tuple[str, Any]:
    """The SQL of a literal for a column, and its value; None for NULL."""
    kind, is_ = field.type, pa.types
    if rng.random() < 0.08:
        return "NULL", None
    value = rng.choice([v for v in values if v is not None])
    if is_.is_boolean(kind):
        return str(value).upper(), value
    if is_.is_string(kind):
        return "'" + value.replace("'", "''") + "'", value
    if is_.is_binary(kind) or is_.is_fixed_size_binary(kind):
        return f"X'{value.hex()}'", value
    if is_.is_date(kind):
        value += timedelta(days=rng.choice([-1, 0, 0, 1]))
        return f"DATE '{value.isoformat()}'", value
    if is_.is_timestamp(kind):
        value += timedelta(microseconds=rng.choice([-1, 0, 0, 1]))
        word = "TIMESTAMP" if kind.tz else "TIMESTAMP_NTZ"
        return f"{word} '{value.isoformat(' ')}'", value
    if is_.is_floating(kind):
        return floating(rng, value)
    shift = rng.choice([Decimal(0), Decimal(0), Decimal("0.5"), Decimal("-0.001"), Decimal(1)])
    exact = Fraction(value) + Fraction(shift)
    digits = f"{exact.numerator * 1000 // exact.denominator}"
    sign, digits = ("-", digits[1:]) if digits.startswith("-") else ("", digits)
    digits = digits.rjust(4, "0")
    text = f"{sign}{digits[:-3]}" + ("" if exact.denominator == 1 else f".{digits[-3:]}")
    return text, Decimal(text)


def floating(rng: random.Random, value: float) -> tuple[str, Any]:
    if math.isfinite(value) and rng.random() < 0.7:
        text = format(Decimal(repr(value)), "f") if abs(value) < 1e9 else repr(value)
        return text, float(text)
    word = (
        "NaN" if math.isnan(value) else {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, repr(value))
    )
    return f"CAST('{word}' AS DOUBLE)", value


COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a == b,
    "<>": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
FLIPPED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def compared(name: str, op: str, value: Any) -> Condition:
    def truth(row: dict[str, Any]) -> Truth:
        if row[name] is None or value is None:
            return None
        return COMPARISONS[op](order(row[name]), order(value))

    return truth


def leaf(rng: random.Random, fields: list[tuple[pa.Field, list[Any]]]) -> tuple[str, Condition]:
    field, values = rng.choice(fields)
    name, sql = field.name, quoted(field.name)
    if pa.types.is_nested(field.type) or rng.random() < 0.1:
        if rng.random() < 0.5:
            return f"{sql} IS NULL", lambda row: row[name] is None
        return f"{sql} IS NOT NULL", lambda row: row[name] is not None
    if pa.types.is_boolean(field.type) and rng.random() < 0.4:
        return sql, lambda row: row[name]
    kind = rng.choice(["compare", "compare", "in", "between", "like"])
    if kind == "like" and pa.types.is_string(field.type):
        return like(rng, name, sql)
    if kind == "in":
        items = [literal(rng, field, values) for _ in range(rng.randint(1, 4))]
        word, tests = rng.choice(["IN", "NOT IN"]), [compared(name, "<>", value) for _, value in items]

        def within(row: dict[str, Any]) -> Truth:
            outside = all_of(*(test(row) for test in tests))
            return outside if word == "NOT IN" else negated(outside)

        return f"{sql} {word} ({', '.join(text for text, _ in items)})", within
    if kind == "between":
        (low, a), (high, b) = literal(rng, field, values), literal(rng, field, values)
        word = rng.choice(["BETWEEN", "NOT BETWEEN"])
        ge, le = compared(name, ">=", a), compared(name, "<=", b)

        def inside(row: dict[str, Any]) -> Truth:
            truth = all_of(ge(row), le(row))
            return truth if word == "BETWEEN" else negated(truth)

        return f"{sql} {word} {low} AND {high}", inside
    op, (text, value) = rng.choice(list(COMPARISONS)), literal(rng, field, values)
    test = compared(name, op, value)
    return (f"{sql} {op} {text}" if rng.random() < 0.7 else f"{text} {FLIPPED[op]} {sql}"), test


def like(rng: random.Random, name: str, sql: str) -> tuple[str, Condition]:
    prefix, more = rng.choice(["", "a", "ab", "a%", "a_", "é", "it's", "z\U0001f600"]), rng.choice(["%", ""])
    pattern = prefix.replace("%", "!%").replace("_", "!_").replace("'", "''")
    escape = " ESCAPE '!'" if "!" in pattern else ""
    word = rng.choice(["LIKE", "NOT LIKE"])

    def truth(row: dict[str, Any]) -> Truth:
        if row[name] is None:
            return None
        found = row[name].startswith(prefix) if more else row[name] == prefix
        return found if word == "LIKE" else not found

    return f"{sql} {word} '{pattern}{more}'{escape}", truth


def condition(
    rng: random.Random, fields: list[tuple[pa.Field, list[Any]]], depth: int = 3
) -> tuple[str, Condition]:
    """A random condition, and what it says of a row."""
    kind = rng.choice(["leaf", "leaf", "and", "or", "not"]) if depth else "leaf"
    if kind == "leaf":
        return leaf(rng, fields)
    if kind == "not":
        sql, inner = condition(rng, fields, depth - 1)
        return f"NOT ({sql})", lambda row: negated(inner(row))
    parts = [condition(rng, fields, depth - 1) for _ in range(rng.randint(2, 3))]
    tests = [test for _, test in parts]
    joined = f" {kind.upper()} ".join(f"({sql})" for sql, _ in parts)
    if kind == "and":
        return joined, lambda row: all_of(*(test(row) for test in tests))
    return joined, lambda row: negated(all_of(*(negated(test(row)) for test in tests)))


def random_rows(rng: random.Random, fields: list[tuple[pa.Field, list[Any]]], count: int) -> pa.Table:
    columns = [pa.array([rng.choice(values) for _ in range(count)], field.type) for field, values in fields]
    return pa.Table.from_arrays(columns, schema=pa.schema([field for field, _ in fields]))
