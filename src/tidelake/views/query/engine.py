"""What DuckDB says of a query: its columns and types, how it reads a text, and which functions it has.

Owns a database in memory with empty tables; must not know plans.

INVARIANT: no setting of the machine is in an answer.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from tidelake.data.answer.rows import optional
from tidelake.errors import UsageError
from tidelake.lake.api.embedded import DUCKDB_CONFIG, DUCKDB_SETTINGS
from tidelake.views.functions import (
    HOLISTIC,
    INSTEAD,
    LINEAR,
    POSITIONAL,
    RANKING,
    Linear,
    is_float,
    is_scalar,
    linear,
)
from tidelake.views.plan import Columns, PlanColumn, quoted

UNREAD = "the query has SQL that is not understood: {}"
# How a join without a condition is written, and an operator; and where a node stands in the text.
_STYLE = ("alias_location", "is_implicit", "is_operator")
_PLACE = ("query_location", "query_location_length")


def _by_other_name(names: Mapping[str, str]) -> dict[str, str]:
    return {other: name for name, others in names.items() for other in others.split()}


# Names of one function: DuckDB's tree keeps the one that the text has.
_SAME = _by_other_name(
    {
        "array_agg": "list",
        "listagg": "string_agg group_concat",
        "avg": "mean",
        "count_if": "countif",
        "arg_min": "argmin min_by",
        "arg_max": "argmax max_by",
        "power": "^ ** pow",
        "mod": "%",
        "strpos": "position instr",
        "substring": "substr",
        "date_trunc": "datetrunc",
        "date_part": "datepart",
        "date_diff": "datediff",
        "date_sub": "datesub",
        "lower": "lcase",
        "upper": "ucase",
        "length": "len char_length character_length array_length",
        "ceil": "ceiling",
        "array_sort": "list_sort",
        "list_transform": "list_apply array_transform",
        "list_filter": "array_filter",
        "array_contains": "list_contains list_has array_has",
        "str_split": "string_split string_to_array",
        "prefix": "starts_with",
        "var_samp": "variance",
        "stddev_samp": "stddev",
    }
)
_UNITS = frozenset(("date_trunc", "date_part", "date_diff", "date_sub"))
_UNIT = _by_other_name(
    {"dayofweek": "dow weekday", "dayofyear": "doy", "week": "weekofyear", "century": "cent"}
)
_COMMA = {
    "name": "",
    "expression": {
        "class": "CONSTANT",
        "type": "VALUE_CONSTANT",
        "alias": "",
        "literal": {"kind": "STRING", "text": ","},
    },
}
_SPAN = re.compile(r"(-?\d+) ([a-z]+?)s?")
_NOUGHT = {
    "class": "CONSTANT",
    "type": "VALUE_CONSTANT",
    "alias": "",
    "literal": {"kind": "INTEGER", "text": "0"},
}
_ZERO = {"name": "", "expression": _NOUGHT}
_TYPES = _by_other_name(
    {
        "varchar": "string text char bpchar nvarchar",
        "integer": "int int4 signed integral int32",
        "bigint": "int8 long int64 oid",
        "smallint": "int2 short int16",
        "tinyint": "int1",
        "double": "float8",
        "float": "float4 real",
        "decimal": "numeric dec",
        "boolean": "bool logical",
        "timestamp": "datetime",
        "varbinary": "blob bytea binary",
    }
) | {"timestamp with time zone": "timestamptz"}


class DuckAnalyzer:
    """Tables that are empty, in a database of its own or beside those of another one; see `Analyzer`."""

    dialect, title, orders_by_selected, has_using_first = "duckdb", "DuckDB", False, False
    has_group_of_nothing = True

    def __init__(self, database: Any = None) -> None:
        duckdb = optional("duckdb", "sql")
        self._error = duckdb.Error
        beside = duckdb.connect(":memory:", config=DUCKDB_CONFIG) if database is None else database
        # Another connection to it, which has settings and temporary tables of its own.
        self._connection = beside.cursor()
        for setting in DUCKDB_SETTINGS:
            self._connection.execute(setting)
        self._consistent = _consistent(duckdb.__version__)

    def close(self) -> None:
        """Free the tables."""
        self._connection.close()

    def read(self, text: str) -> Any:
        """See `Analyzer`."""
        self.tree(text)
        self.check_calls(text)
        try:
            # The parser puts IGNORE NULLS around any_value, which means it anyway.
            return parse_one(text, dialect=self.dialect).transform(_bare_any_value)
        except SqlglotError as error:
            raise UsageError(UNREAD.format(str(error).splitlines()[0])) from error

    def check_read(self, text: str, node: Any) -> None:
        """See `Analyzer`."""
        read = self.tree(node.sql(dialect=self.dialect, comments=False))
        apart = difference(plain(self.tree(text)), plain(read), text)
        if apart is not None:
            word = apart.partition("(")[0].strip().lower()
            instead = INSTEAD.get(word, "it in another way")
            raise UsageError(
                UNREAD.format(
                    f"{apart[:200]!r} means something else to the parser than to DuckDB: write {instead}"
                )
            )

    def answered(self, text: str) -> Columns:
        """See `Analyzer`."""
        return self.described(text)

    def linear(self, name: str, argument: str | None, type_: str, present: str) -> Linear | None:
        """See `Analyzer`."""
        return linear(name, argument, type_, present)

    def of_rows(self, name: str, argument: str, type_: str, *, distinct: bool, present: str) -> str:
        """See `Analyzer`."""
        order = f" ORDER BY {argument}" if name != "count" and is_float(type_) else ""
        text = f"{name}({'DISTINCT ' if distinct else ''}{argument}{order})"
        return text if present == "TRUE" else f"{text} FILTER (WHERE {present})"

    def of_list(self, name: str, argument: str, type_: str, present: str) -> tuple[str, str] | None:
        """See `Analyzer`. Sums are exact."""
        del name, argument, type_, present
        return None

    def bucket(self, texts: Sequence[str], number: int) -> str:
        """See `Analyzer`."""
        row = f"CAST(row({', '.join(texts)}) AS VARCHAR)"
        return f"CAST(md5_number_lower({row}) % {number} AS INTEGER)"

    def define(self, name: str, columns: Mapping[str, str]) -> None:
        """Make an empty table, in place of one of this name."""
        told = ", ".join(f"{quoted(column)} {type_}" for column, type_ in columns.items())
        self._run(f"CREATE OR REPLACE TEMP TABLE {quoted(name)} ({told})")

    def described(self, sql: str) -> Columns:
        """The columns of a query's answer.

        Raises:
            UsageError: DuckDB refuses the query; has its reason.
        """
        return tuple(PlanColumn(name, type_) for name, type_, *_ in self._run(f"DESCRIBE {sql}"))

    def tree(self, sql: str) -> Any:
        """A query as DuckDB reads it.

        Raises:
            UsageError: it is no query, or more than one.
        """
        found = json.loads(self._run("SELECT json_serialize_sql(?::VARCHAR)", [sql])[0][0])
        if found["error"]:
            told = str(found["error_message"])
            if told.startswith("Only SELECT"):
                raise UsageError("a view is one query, and this text has other statements: keep one SELECT")
            raise UsageError(f"DuckDB cannot read the query: {told}")
        if not found["statements"]:
            raise UsageError("the text has no query: write one SELECT")
        if len(found["statements"]) != 1:
            raise UsageError("a view is one query, and this text has several: keep one")
        return found["statements"][0]["node"]

    def check_calls(self, sql: str) -> None:
        """Check that a text calls functions only whose results are the same each time.

        Raises:
            UsageError: names the function.
        """
        for name, arguments in _calls(self.tree(sql)):
            known = name in LINEAR | HOLISTIC | RANKING | POSITIONAL or is_scalar(name, self._consistent)
            if known and (name != "age" or arguments == 2):
                continue
            raise UsageError(
                f"{name}() cannot be in a view, whose answer is a function of the contents of its inputs "
                f"alone: write {INSTEAD.get(name, 'a column that has the value')}"
            )

    def _run(self, sql: str, arguments: list[str] | None = None) -> list[tuple[Any, ...]]:
        try:
            rows: list[tuple[Any, ...]] = self._connection.execute(sql, arguments).fetchall()
        except self._error as error:
            raise UsageError(f"DuckDB: {_first_line(str(error))}") from error
        return rows


@lru_cache(maxsize=1)
def _consistent(version: str) -> frozenset[str]:
    """The scalar functions of this version of DuckDB whose results it calls consistent."""
    del version
    with optional("duckdb", "sql").connect(":memory:", config=DUCKDB_CONFIG) as connection:
        rows = connection.execute(
            "SELECT DISTINCT lower(function_name) FROM duckdb_functions() "
            "WHERE function_type = 'scalar' AND stability = 'CONSISTENT' ORDER BY ALL"
        ).fetchall()
        return frozenset(name for (name,) in rows)


def _bare_any_value(node: exp.Expression) -> exp.Expression:
    return node.this if isinstance(node, exp.IgnoreNulls) and isinstance(node.this, exp.AnyValue) else node


def _first_line(message: str) -> str:
    return re.sub(r"\s*\n\s*", " ", message.partition("\n\nLINE ")[0])


def _calls(node: Any) -> Iterator[tuple[str, int]]:
    """The functions that a tree calls, with the number of arguments."""
    if isinstance(node, dict):
        if "function_name" in node:
            yield node["function_name"].lower(), len(node.get("arguments") or [])
        if node.get("class") == "COLUMN_REF" and len(node["column_names"]) == 1:
            name = node["column_names"][0].lower()
            if name in ("current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"):
                yield name, 0
        for value in node.values():
            yield from _calls(value)
    elif isinstance(node, list):
        for value in node:
            yield from _calls(value)


def plain(node: Any) -> Any:
    """A tree without what may differ between two texts of one meaning; each node knows its place."""
    if isinstance(node, list):
        return [plain(one) for one in node]
    if not isinstance(node, dict):
        return node
    found = {key: plain(value) for key, value in node.items() if key not in _STYLE}
    match found:
        case {"type": "OPERATOR_NOT", "children": [{"type": "OPERATOR_IS_NULL", "children": children}]}:
            return {**found, "type": "OPERATOR_IS_NOT_NULL", "children": children}
        case {"class": "TYPE", "qualified_name": {"path": [*path]}}:
            name = str(path[-1]).lower()
            return {
                **found,
                "type_name": "",
                "qualified_name": {"path": [*path[:-1], _TYPES.get(name, name)]},
            }
        case _:
            pass
    if "null_order" in found:
        order, nulls = found["type"], found["null_order"]
        order = "ASCENDING" if order == "ORDER_DEFAULT" else order
        found |= {"type": order, "null_order": "NULLS LAST" if nulls == "ORDER_DEFAULT" else nulls}
    if (span := _span(found)) is not None:
        return {"interval": span}
    if found.get("class") == "CAST" and _type(found) in ("double", "boolean"):
        match found["child"]:
            case {"class": "CONSTANT", "literal": {"kind": "INTEGER", "text": text}}:
                # A number of days is written with quotes or without.
                found["child"] = {**found["child"], "literal": {"kind": "STRING", "text": text}}
            case _:
                pass
    if found.get("type") == "JOIN" and found["join_type"] == "INNER" and _is_true(found["condition"]):
        found = {**found, "condition": None, "ref_type": "CROSS"}
    return _plain_call(found) if "function_name" in found else found


def _plain_call(found: dict[str, Any]) -> dict[str, Any]:
    """A call by the first name of its function, with the arguments that may be left out."""
    name = found["function_name"].lower()
    found["function_name"] = _SAME.get(name, name)
    found.pop("qualified_name", None)
    arguments = found.get("arguments") or []
    if found["function_name"] in _UNITS and arguments:
        found["arguments"] = [_lowered(arguments[0]), *arguments[1:]]
    if name in ("bool_and", "bool_or") and arguments and _type(arguments[0]["expression"]) == "boolean":
        found["arguments"] = [{"name": "", "expression": arguments[0]["expression"]["child"]}]
    if found["function_name"] == "listagg" and len(arguments) == 1:
        found["arguments"] = [*arguments, _COMMA]
    if name == "if" and len(arguments) == 3:
        when, then, other = (one["expression"] for one in arguments)
        return {
            **{key: found[key] for key in ("alias", *_PLACE) if key in found},
            "class": "CASE",
            "type": "CASE_EXPR",
            "case_checks": [{"when_expr": when, "then_expr": then}],
            "else_expr": other,
        }
    if name in ("range", "generate_series") and len(found["arguments"]) == 1:
        found["arguments"] = [_ZERO, *found["arguments"]]
    return found


def _is_true(node: Any) -> bool:
    """Whether a condition is the constant TRUE."""
    match node:
        case {"class": "CAST", "child": {"class": "CONSTANT", "literal": {"text": str(text)}}}:
            return text.lower() in ("t", "true")
        case {"class": "CONSTANT", "literal": {"kind": "BOOLEAN", "text": str(text)}}:
            return text.lower() in ("t", "true")
        case _:
            return False


def _type(node: Any) -> str:
    """The type of a cast; empty: it is none."""
    match node:
        case {"class": "CAST", "type_expr": {"qualified_name": {"path": [*_, str(name)]}}}:
            return name
        case _:
            return ""


def _span(node: Any) -> tuple[str, str] | None:
    """A constant span of time, as number and unit, however it is written; None: it is something else."""
    match node:
        case {"class": "CAST", "child": {"class": "CONSTANT", "literal": {"kind": "STRING", "text": text}}}:
            found = _SPAN.fullmatch(text.lower()) if _type(node) == "interval" else None
            return (found[1], found[2]) if found else None
        case {"class": "FUNCTION", "function_name": str(name), "arguments": [{"expression": inner}]}:
            number = _number(inner) if name.startswith("to_") and name.endswith("s") else None
            return None if number is None else (number, name[3:-1])
        case _:
            return None


def _number(node: Any) -> str | None:
    """The constant within casts and `trunc`."""
    match node:
        case {"class": "CAST", "child": child}:
            return _number(child)
        case {"class": "FUNCTION", "function_name": "trunc", "arguments": [{"expression": inner}]}:
            return _number(inner)
        case {"class": "CONSTANT", "literal": {"text": str(text)}} if text.lstrip("-").isdigit():
            return text
        case _:
            return None


def _lowered(argument: Any) -> Any:
    """An argument that is a unit of time, by its first name and without capitals."""
    match argument["expression"]:
        case {"class": "CONSTANT", "literal": {"kind": "STRING", "text": str(text)}} as constant:
            unit = text.lower()
            literal = {**constant["literal"], "text": _UNIT.get(unit, unit)}
            return {**argument, "expression": {**constant, "literal": literal}}
        case _:
            return argument


def difference(one: Any, other: Any, text: str) -> str | None:
    """What a text has where its tree differs first from another one; None: nowhere."""
    found = _differing(one, other, (0, len(text)))
    if found is None:
        return None
    start, length = found
    return " ".join(text.encode()[start : start + length].decode(errors="replace").split())


def _differing(one: Any, other: Any, place: tuple[int, int]) -> tuple[int, int] | None:
    """The place of the smallest node around the first difference."""
    if isinstance(one, dict) and isinstance(other, dict):
        start, length = (one.get(key) for key in _PLACE)
        if length and start is not None:
            place = start, length
        pairs = [(one.get(key), other.get(key)) for key in sorted({*one, *other}.difference(_PLACE))]
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = list(zip(one, other, strict=True))
    else:
        return None if one == other else place
    return next((found for pair in pairs if (found := _differing(*pair, place)) is not None), None)
