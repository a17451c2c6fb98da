"""Spark's SQL in views: which functions may be called, how sums are computed, and how a text is written.

Owns lists of names and texts; must not know sessions.

The texts of a plan are written for DuckDB where they are not of the query itself (`tidelake.views.rules`).
`rendered` gives them in Spark's words.
"""

import re
from typing import Any

from sqlglot import exp
from sqlglot.dialects.spark import Spark

from tidelake.views.functions import Linear, is_float, is_integer

INTEGERS = ("TINYINT", "SMALLINT", "INT", "BIGINT")
DIGITS_MAX = 38
# Of more digits, a sum of few rows may have more than fit.
_SUMMED_MAX = 28
# So many digits behind the point stay when a result is too long.
_SCALE_KEPT = 6


_Generator: Any = Spark.Generator
_Parser: Any = Spark.Parser


class _Texts(_Generator):  # type: ignore[misc]
    """Writes texts in which a quote is no quote, so that a text can be told from what is around it."""

    def escape_str(self, text: str, *args: Any, **named: Any) -> str:
        return str(super().escape_str(text, *args, **{**named, "escaped_delimiter": r"\u0027"}))

    def not_sql(self, expression: Any) -> str:
        # Spark's own words, as it is to find the text the same.
        inner = expression.this
        if isinstance(inner, exp.Is) and isinstance(inner.expression, exp.Null):
            return f"{self.sql(inner, 'this')} IS NOT NULL"
        return str(super().not_sql(expression))


class _Reader(_Parser):  # type: ignore[misc]
    """Reads a comma between tables as a comma.

    As a cross join it has another hash in Spark, which orders the two sides of a comparison by hashes.
    """

    JOINS_HAVE_EQUAL_PRECEDENCE = False


class SparkTexts(Spark):
    """Spark's SQL as the parser reads it, and writes it for a plan."""

    Parser = _Reader
    Generator = _Texts


_TOKEN = re.compile(
    r"""'(?:[^'\\]|\\.)*'|`(?:[^`]|``)*`|"((?:[^"]|"")*)"|"""
    r"""(//|unnest\((?:range\(|\[1, -1\]\))|error\(|\b[A-Z]+\b)""",
    re.DOTALL,
)
_WORDS = {
    "//": "DIV",
    "unnest(range(": "explode(sequence(1L, ",
    "unnest([1, -1])": "explode(array(1, -1))",
    "error(": "raise_error(",
    "HUGEINT": "DECIMAL(38,0)",
    "VARCHAR": "STRING",
    "MATERIALIZED": "",
    "EXCLUDE": "EXCEPT",
}


def rendered(text: str) -> str:
    """A text of a plan as Spark reads it."""

    def one(match: re.Match[str]) -> str:
        if match[1] is not None:
            return "`" + match[1].replace('""', '"').replace("`", "``") + "`"
        return match[0] if match[2] is None else _WORDS.get(match[2], match[2])

    return _TOKEN.sub(one, text)


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


AGGREGATES = _names(
    "count count_if sum avg bool_and bool_or min max median percentile bit_and bit_or bit_xor"
)
RANKING = _names(
    "rank dense_rank percent_rank cume_dist row_number ntile lag lead first_value last_value nth_value"
)
# Their results follow from their arguments, in all versions and on all machines.
SCALARS = _names(
    "abs acos all any array array_contains array_distinct array_except array_intersect array_join "
    "array_max array_min array_position array_remove array_repeat array_size array_sort array_union "
    "arrays_overlap ascii asin atan atan2 base64 bin bit_count bit_length bround btrim cardinality case "
    "cast ceil ceiling char char_length character_length chr coalesce concat concat_ws contains conv "
    "crc32 date_add date_diff date_format date_from_unix_date date_part date_sub date_trunc dateadd "
    "datediff datepart day dayofmonth dayofweek dayofyear elt endswith equal_null exists exp extract "
    "factorial filter find_in_set floor format_number greatest grouping grouping_id hex hour if ifnull "
    "ilike initcap instr interval isnan isnotnull isnull last_day lcase least left length levenshtein "
    "like ln locate log log10 log2 lower lpad ltrim make_date make_timestamp make_timestamp_ntz md5 "
    "minute mod month months_between named_struct nanvl negative next_day nullif nvl nvl2 octet_length "
    "overlay pmod position positive pow power printf quarter regexp_count regexp_extract regexp_instr "
    "regexp_like regexp_replace regexp_substr repeat replace reverse right rlike round rpad rtrim "
    "second sha sha1 sha2 shiftleft shiftright sign signum size slice sort_array soundex split "
    "split_part sqrt startswith str_to_map struct substr substring substring_index timestamp_micros "
    "timestamp_millis timestamp_seconds to_date to_timestamp to_timestamp_ntz translate trim trunc "
    "try_add try_cast try_divide try_multiply try_subtract try_to_date try_to_timestamp ucase unbase64 "
    "unhex unix_date unix_micros unix_millis unix_seconds upper weekday weekofyear width_bucket "
    "xxhash64 year"
)
INSTEAD = {
    **dict.fromkeys(("first", "last", "any_value"), "min(x) or max(x)"),
    **dict.fromkeys(("max_by", "min_by"), "max(struct(y, x)).x, or min"),
    "approx_count_distinct": "count(DISTINCT x)",
    "approx_percentile": "percentile(x, 0.5)",
    "collect_set": "SELECT DISTINCT",
    "explode": "a query of its own with rows in place of lists",
    "hash": "xxhash64(x), or md5(x)",
}

_DECIMAL = re.compile(r"DECIMAL\((\d+),(\d+)\)")


def linear(name: str, argument: str | None, type_: str, present: str) -> Linear | None:
    """As `tidelake.views.functions.linear`, with the types that Spark gives."""
    if argument is None:
        return Linear((_counted(present),), "CAST({0} AS BIGINT)")
    there = f"({present}) AND {argument} IS NOT NULL"
    if name == "count":
        return Linear((_counted(there),), "CAST({0} AS BIGINT)")
    if type_ == "BOOLEAN" and name == "count_if":
        return Linear((_counted(f"({present}) AND coalesce({argument}, FALSE)"),), "CAST({0} AS BIGINT)")
    if type_ == "BOOLEAN" and name in ("bool_and", "bool_or"):
        wanted, test = (f"NOT {argument}", "{1} = 0") if name == "bool_and" else (argument, "{1} > 0")
        yes = _counted(f"({present}) AND coalesce({wanted}, FALSE)")
        return Linear((_counted(there), yes), f"CASE WHEN {{0}} > 0 THEN {test} END")
    if name not in ("sum", "avg"):
        return None
    if type_ in INTEGERS:
        values = (_counted(there), f"CAST(CASE WHEN {there} THEN {argument} ELSE 0 END AS HUGEINT)")
        total = "CAST({1} AS BIGINT)" if name == "sum" else "CAST({1} AS DOUBLE) / CAST({0} AS DOUBLE)"
        return Linear(values, f"CASE WHEN {{0}} > 0 THEN {total} END")
    match = _DECIMAL.fullmatch(type_)
    if match is None:
        return None
    precision, scale = int(match[1]), int(match[2])
    # Spark gives a sum ten digits more, and an average four more behind the point. Where a step of this would
    # be rounded, the group is computed from its rows.
    digits = min(DIGITS_MAX, precision + 10)
    rounded = scale > _SCALE_KEPT and digits + scale + 2 > DIGITS_MAX
    divided = max(DIGITS_MAX - digits + scale, _SCALE_KEPT)
    if (
        rounded
        or precision > _SUMMED_MAX
        or precision + scale > DIGITS_MAX
        or (name == "avg" and scale + 4 > divided)
    ):
        return None
    power = f"CAST({10**scale} AS DECIMAL({scale + 1},0))"
    unscaled = f"CAST(CASE WHEN {there} THEN {argument} * {power} ELSE 0 END AS HUGEINT)"
    unit = f"CAST('{10**-scale:.{scale}f}' AS DECIMAL({scale + 1},{scale}))"
    total = f"CAST(CAST({{1}} AS DECIMAL({digits},0)) * {unit} AS DECIMAL({digits},{scale}))"
    if name == "avg":
        total = (
            f"CAST({total} / CAST({{0}} AS DECIMAL(20,0)) AS "
            f"DECIMAL({min(DIGITS_MAX, precision + 4)},{scale + 4}))"
        )
    return Linear((_counted(there), unscaled), f"CASE WHEN {{0}} > 0 THEN {total} END")


def _counted(condition: str) -> str:
    return f"CAST(CASE WHEN {condition} THEN 1 ELSE 0 END AS HUGEINT)"


def of_rows(name: str, argument: str, type_: str, *, distinct: bool, present: str) -> str:
    """See `Analyzer`. Floats are added in their order: so the order of the rows does not matter."""
    if is_rounded(name, type_):
        return of_list(name, f"collect_{'set' if distinct else 'list'}({as_double(argument, present)})")
    text = f"{name}({'DISTINCT ' if distinct else ''}{argument})"
    return text if present == "TRUE" else f"{text} FILTER (WHERE {present})"


def is_rounded(name: str, type_: str) -> bool:
    """Whether an aggregate adds floats, which texts become."""
    return name in ("sum", "avg") and (is_float(type_) or type_ == "STRING")


def as_double(argument: str, present: str) -> str:
    """A float that takes part in a sum; NULL: it does not."""
    return f"CAST(CASE WHEN {present} THEN {argument} END AS DOUBLE)"


def of_list(name: str, listed: str) -> str:
    """The sum, or the average, of floats in a list, in their order."""
    total = f"aggregate(array_sort({listed}), CAST(0 AS DOUBLE), (a, x) -> a + x)"
    divided = f"{total} / size({listed})" if name == "avg" else total
    return f"CASE WHEN size({listed}) > 0 THEN {divided} END"


def is_number(type_: str) -> bool:
    """Whether values of a type can be added."""
    return is_float(type_) or is_integer(type_) or type_ in INTEGERS or _DECIMAL.fullmatch(type_) is not None
