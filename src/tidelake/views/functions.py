"""Which functions of DuckDB a view may call, and which aggregates are sums.

Owns lists of names, and how an aggregate becomes accumulators; must not know plans or queries.

A view is a function of the contents of its inputs, so a function in it must give the same result each time,
whatever the order of the rows, the clock and the session. DuckDB says so of scalar functions, with the
exceptions below. Of aggregates and macros it says nothing true, so those that may be used are listed.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tidelake.views.floats import float_parts, float_total

# A product of decimals of at most so many digits has no more, and may overflow.
_SHORT = 18


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# DuckDB calls them consistent, but they read the clock, the version, names of columns or its own insides.
_NOT_CONSISTENT = _names(
    "current_localtime current_localtimestamp version alias stats combine finalize invoke index_key hash "
    "to_aggregate_state create_sort_key cast_to_type can_cast_implicitly parse_duckdb_log_message "
    "json_serialize_plan json_serialize_sql json_deserialize_sql hive_partition_component "
    "constant_or_null get_type make_type"
)
# Macros whose text is a function of the arguments.
MACROS = _names(
    "array_append array_pop_back array_pop_front array_prepend array_push_back array_push_front "
    "array_reverse array_to_string array_to_string_comma_default date_add days_in_month fdiv fmod "
    "generate_subscripts if json list_append list_avg list_bit_and list_bit_or list_bit_xor list_bool_and "
    "list_bool_or list_count list_first list_last list_max list_median list_min list_prepend list_product "
    "list_reverse list_sem list_stddev_pop list_stddev_samp list_string_agg list_sum list_var_pop "
    "list_var_samp map_contains_entry map_contains_value md5_number_lower md5_number_upper nullif "
    "split_part"
)
# Syntax that DuckDB's parser turns into functions.
_SYNTAX = _names("unnest list_value struct_pack row map try array_slice array_extract coalesce grouping")

# The sums: see `linear`. The others need the rows of a group.
LINEAR = _names("count count_star count_if countif sum avg mean bool_and bool_or")
# Their result is the same if a row is there once or twice.
REPEATS_DO_NOT_MATTER = _names("min max bit_and bit_or")
_ANY_ORDER = REPEATS_DO_NOT_MATTER | _names("median quantile quantile_cont quantile_disc mad bit_xor")
# Rounded as the rows come, or taken from the first of equals: so the rows are put into an order.
OWN_ORDER = _names(
    "stddev stddev_pop stddev_samp var_pop var_samp variance sem skewness kurtosis kurtosis_pop corr "
    "covar_pop covar_samp regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx "
    "regr_sxy regr_syy product mode arg_min arg_max argmin argmax min_by max_by arg_min_null arg_max_null"
)
# They show the order, so the query must say which.
GIVEN_ORDER = _names("list array_agg string_agg group_concat listagg first last any_value arbitrary")
HOLISTIC = _ANY_ORDER | OWN_ORDER | GIVEN_ORDER
INSTEAD = {
    "approx_count_distinct": "count(DISTINCT x)",
    "approx_quantile": "quantile_cont(x, 0.5)",
    "approx_top_k": "GROUP BY x, with count(*) and ORDER BY ... LIMIT",
    "reservoir_quantile": "quantile_cont(x, 0.5)",
    "fsum": "sum(x), which is exact in a view",
    "kahan_sum": "sum(x), which is exact in a view",
    "sumkahan": "sum(x), which is exact in a view",
    "favg": "avg(x), which is exact in a view",
    "sum_no_overflow": "sum(x)",
    "geomean": "exp(avg(ln(x)))",
    "geometric_mean": "exp(avg(ln(x)))",
    "histogram": "GROUP BY x, with count(*)",
    "log2": "ln(x) / ln(2)",
    "log10": "log(x)",
    "nvl": "coalesce(x, y)",
    "every": "bool_and(x)",
    "hash": "md5(x), which no version changes",
    "percentile_cont": "quantile_cont(x, 0.5)",
    "percentile_disc": "quantile_disc(x, 0.5)",
    "json_extract": "x -> '$.name'",
    "json_extract_string": "x ->> '$.name'",
    "ago": "a column with the time",
    "age": "age(later, earlier), with both times",
}
RANKING = _names("rank rank_dense dense_rank percent_rank cume_dist")
POSITIONAL = _names("row_number ntile lag lead first_value first last_value last nth_value")

_DECIMAL = re.compile(r"DECIMAL\((\d+),(\d+)\)")
_INTEGERS = _names("TINYINT SMALLINT INTEGER BIGINT HUGEINT UTINYINT USMALLINT UINTEGER UBIGINT")


def is_scalar(name: str, consistent: frozenset[str]) -> bool:
    """Whether a view may call a scalar function; `consistent` are those that the engine calls so."""
    if name.startswith(("__internal", "st_", "vertex_", "enum_")):
        return False
    return (name in consistent and name not in _NOT_CONSISTENT) or name in MACROS or name in _SYNTAX


def is_integer(type_: str) -> bool:
    """Whether a type holds whole numbers."""
    return type_ in _INTEGERS


def is_float(type_: str) -> bool:
    """Whether values of a type are rounded."""
    return type_ in ("FLOAT", "DOUBLE")


@dataclass(frozen=True)
class Linear:
    """An aggregate as accumulators.

    The values of a row are of type HUGEINT, and never NULL; the result is over the accumulators `{0}`, `{1}`.
    """

    values: tuple[str, ...]
    result: str

    def of(self, names: Sequence[str]) -> str:
        """The result over accumulators that are called so."""
        return self.result.format(*names)


def linear(name: str, argument: str | None, type_: str, present: str) -> Linear | None:
    """An aggregate as accumulators, or None if it is no sum for this type.

    The argument None is `*`. `present` is a condition, never NULL, that says whether the row takes part.
    """
    if argument is None:
        return Linear((_counted(present),), "CAST({0} AS BIGINT)")
    there = f"({present}) AND {argument} IS NOT NULL"
    if name == "count":
        return Linear((_counted(there),), "CAST({0} AS BIGINT)")
    if type_ == "BOOLEAN" and name in ("count_if", "countif", "sum"):
        total, yes = "{1}" if name == "sum" else _huge("{1}"), _counted(f"({present}) AND {argument}")
        return Linear((_counted(there), yes), f"CASE WHEN {{0}} > 0 THEN {total} END")
    if type_ == "BOOLEAN" and name in ("bool_and", "bool_or"):
        wanted, test = (f"NOT {argument}", "{1} = 0") if name == "bool_and" else (argument, "{1} > 0")
        return Linear(
            (_counted(there), _counted(f"({present}) AND {wanted}")), f"CASE WHEN {{0}} > 0 THEN {test} END"
        )
    if name not in ("sum", "avg", "mean"):
        return None
    if is_float(type_):
        parts = float_parts(f"CAST({argument} AS DOUBLE)", there)
        total = float_total([f"{{{i + 1}}}" for i in range(len(parts))])
        values = (_counted(there), *parts)
    elif is_integer(type_):
        total = "{1}"
        values = (_counted(there), _huge(f"CASE WHEN {there} THEN CAST({argument} AS HUGEINT) ELSE 0 END"))
    elif match := _DECIMAL.fullmatch(type_):
        precision, scale = int(match[1]), int(match[2])
        unscaled = _unscaled(argument, precision, scale)
        values = (_counted(there), _huge(f"CASE WHEN {there} THEN {unscaled} ELSE 0 END"))
        total = _scaled("{1}", scale)
    else:
        return None
    if name != "sum":
        total = f"CAST({total} AS DOUBLE) / CAST({{0}} AS DOUBLE)"
    return Linear(values, f"CASE WHEN {{0}} > 0 THEN {total} END")


def _counted(condition: str) -> str:
    return _huge(f"CASE WHEN {condition} THEN 1 ELSE 0 END")


def _huge(text: str) -> str:
    return f"CAST({text} AS HUGEINT)"


def _unscaled(text: str, precision: int, scale: int) -> str:
    """A decimal times a power of ten, as a whole number, without a step that could overflow."""
    if not scale:
        return _huge(text)
    if precision + scale + 1 <= 38:
        if precision <= _SHORT < precision + scale + 1:
            text = f"CAST({text} AS DECIMAL({_SHORT + 1},{scale}))"
        return _huge(f"{text} * {10**scale}")
    return _huge(f"replace(CAST({text} AS VARCHAR), '.', '')")


def _scaled(text: str, scale: int) -> str:
    """The decimal whose unscaled number is given: the reverse."""
    if not scale:
        return f"CAST({text} AS DECIMAL(38,0))"
    if scale > 18:
        digits = f"lpad(CAST(abs({text}) AS VARCHAR), 39, '0')"
        number = f"left({digits}, {39 - scale}) || '.' || right({digits}, {scale})"
        return f"CAST(CASE WHEN {text} < 0 THEN '-' ELSE '' END || {number} AS DECIMAL(38,{scale}))"
    power, unit = 10**scale, f"CAST(0.{'0' * (scale - 1)}1 AS DECIMAL({scale},{scale}))"
    rest = f"CAST(CAST({text} % {power} AS DECIMAL({scale},0)) * {unit} AS DECIMAL(38,{scale}))"
    return f"(CAST({text} // {power} AS DECIMAL(38,{scale})) + {rest})"
