"""How a schema may change: which new schema may follow those that a collection has had.

Owns the rules and their messages; must not know data. Invariant: rows that were written under any earlier
schema can be read under the next one. Columns are matched by id; each value is there and fits the new type,
or the column is null. Key columns keep their places and the bytes of their encoding, so that bounds of keys
stay comparable across schemas.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tidelake.errors import IncompatibleSchema
from tidelake.model.schema import Column, DataType, Schema

_SIGNED = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_UNSIGNED = {"uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64}
_FLOATS = {"float16": 16, "float32": 32, "float64": 64}
_DECIMALS = {"decimal32": 32, "decimal64": 64, "decimal128": 128, "decimal256": 256}


def widens(old: DataType, new: DataType) -> bool:
    """Whether `new` is a wider type of the same kind that has every value of `old`, in the same order."""
    if old.name in _DECIMALS and new.name in _DECIMALS:
        (precision, scale), (new_precision, new_scale) = old.params, new.params
        wider = int(new_precision) >= int(precision) and _DECIMALS[new.name] >= _DECIMALS[old.name]
        return old != new and new_scale == scale and wider
    if old.name in _UNSIGNED and new.name in _SIGNED:
        return _SIGNED[new.name] > _UNSIGNED[old.name]
    for widths in (_SIGNED, _UNSIGNED, _FLOATS):
        if old.name in widths and new.name in widths:
            return widths[new.name] > widths[old.name]
    return False


def evolved(
    versions: Mapping[int, Schema],
    wanted: Schema,
    drop: Sequence[str] | None = None,
    renamed: Sequence[tuple[str, str]] = (),
) -> Schema:
    """The next schema, with ids for its columns.

    Returns:
        The schema, equal to the newest one if nothing changes. Columns of the newest schema keep their
        ids, by name; others get ids that no column ever had.
    """
    newest = with_names(versions[max(versions)], renamed)
    _check_key_names(newest, wanted)
    _check_value_order(newest, wanted)
    if drop is not None:
        _check_dropped(versions, newest, wanted, drop)
    unused = 1 + max(column.id for schema in versions.values() for column in schema.columns)
    before = {column.name: column for column in newest.value}
    values: list[Column] = []
    for column in wanted.value:
        if column.name in before:
            values.append(_changed(before[column.name], column, key=False))
            continue
        if not column.nullable:
            raise IncompatibleSchema(
                f"new column {column.name!r}: {column.type} must be nullable, since earlier rows have no "
                "value for it: make it nullable"
            )
        values.append(replace(column, id=unused))
        unused += 1
    keys = (_changed(old, new, key=True) for old, new in zip(newest.key, wanted.key, strict=True))
    return Schema(tuple(keys), tuple(values))


def with_names(schema: Schema, renamed: Sequence[tuple[str, str]]) -> Schema:
    """The schema with other names of columns, which keep their ids."""
    new_names = dict(renamed)
    names = {column.name for column in schema.columns}
    for old, new in renamed:
        if old not in names:
            raise IncompatibleSchema(
                f"there is no column {old!r} to rename to {new!r}: take it out of rename"
            )
        if new in names:
            raise IncompatibleSchema(
                f"column {old!r} cannot be renamed to {new!r}, which is another column: rename or drop that "
                "one by a call before"
            )

    def named(columns: tuple[Column, ...]) -> tuple[Column, ...]:
        return tuple(replace(column, name=new_names.get(column.name, column.name)) for column in columns)

    return Schema(named(schema.key), named(schema.value))


def to_rename(versions: Mapping[int, Schema], asked: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The renames that are not done yet: a column that had the old name and has the new one is done."""
    newest = versions[max(versions)]
    present = {column.name: column.id for column in newest.columns}
    had = {(column.name, column.id) for schema in versions.values() for column in schema.columns}
    return tuple(
        (old, new)
        for old, new in sorted(asked.items())
        if old != new and not (old not in present and (old, present.get(new)) in had)
    )


def _check_dropped(
    versions: Mapping[int, Schema], newest: Schema, wanted: Schema, drop: Sequence[str]
) -> None:
    names = {column.name for column in wanted.columns}
    for column in newest.value:
        if column.name not in names and column.name not in drop:
            raise IncompatibleSchema(
                f"column {column.name!r} is not in the new schema: add it there, or give "
                f"drop=[{column.name!r}] to drop it with its values"
            )
    ever = {column.name for schema in versions.values() for column in schema.columns}
    for name in drop:
        if name in names:
            raise IncompatibleSchema(
                f"column {name!r} is in the new schema and in drop: take it out of one of them"
            )
        if name not in ever:
            raise IncompatibleSchema(f"there is no column {name!r} to drop: take it out of drop")


def _check_key_names(newest: Schema, wanted: Schema) -> None:
    old, new = [c.name for c in newest.key], [c.name for c in wanted.key]
    if old == new:
        return
    remedy = "make another collection with that key and append the rows to it"
    for name in old:
        if name not in new:
            raise IncompatibleSchema(f"key column {name!r} cannot be dropped or become a value: {remedy}")
    for name in new:
        if name not in old:
            raise IncompatibleSchema(f"column {name!r} cannot be added to the key: {remedy}")
    raise IncompatibleSchema(
        f"the key columns cannot be reordered from {', '.join(old)} to {', '.join(new)}, since rows are "
        f"sorted by them: {remedy}"
    )


def _check_value_order(newest: Schema, wanted: Schema) -> None:
    new_names, old_names = {c.name for c in wanted.value}, {c.name for c in newest.value}
    old = [c.name for c in newest.value if c.name in new_names]
    new = [c.name for c in wanted.value if c.name in old_names]
    if old != new:
        at = next(i for i in range(len(old)) if old[i] != new[i])
        raise IncompatibleSchema(
            f"column {new[at]!r} cannot move before {old[at]!r}, since stored rows are sorted by the value "
            f"columns in their order: keep the order {', '.join(old)}"
        )


def _changed(old: Column, new: Column, *, key: bool) -> Column:
    """The column after the change, if the change is allowed."""
    what = f"{'key ' if key else ''}column {old.name!r}"
    if old.nullable and not new.nullable:
        raise IncompatibleSchema(
            f"{what} cannot change from {old.type} to {new.type} not null, since earlier rows may be null: "
            "leave it nullable"
        )
    if old.type != new.type and not widens(old.type, new.type):
        raise IncompatibleSchema(f"{what} cannot change from {old.type} to {new.type}: {_remedy(old.type)}")
    if key and old.type.name in _UNSIGNED and new.type.name in _SIGNED:
        raise IncompatibleSchema(
            f"{what} cannot change from {old.type} to {new.type}, since stored bounds of keys would no "
            "longer compare: widen it to a larger unsigned type"
        )
    return replace(old, type=new.type, nullable=new.nullable)


def _remedy(type_: DataType) -> str:
    if type_.nested:
        return "nested types cannot change; add another column"
    return (
        "only integers, floats and decimals of the same scale can be widened; add another column for the "
        "new type"
    )


def why_not_readable_as(newest: Schema, older: Schema) -> str:
    """Why rows of the newest schema cannot be read under an older one; empty if they can.

    Columns that were added since are left out, and columns that were dropped since are null.
    """
    present = {column.id: column for column in newest.columns}
    for column in older.columns:
        now = present.get(column.id)
        if now is None and not column.nullable:
            return f"column {column.name!r} must not be null there, and was dropped since"
        if now is not None and now.type != column.type:
            return f"column {column.name!r} is {column.type} there, and was widened to {now.type} since"
        if now is not None and now.nullable and not column.nullable:
            return f"column {column.name!r} must not be null there, and may be null since"
    return ""


def may_be_missing(versions: Mapping[int, Schema], schema: Schema) -> frozenset[str]:
    """Names of columns that the first schema did not have. A table without them may have been made before."""
    first = {column.id for column in versions[min(versions)].columns}
    return frozenset(column.name for column in schema.columns if column.id not in first)


def dropped(versions: Mapping[int, Schema], schema: Schema) -> frozenset[str]:
    """Names of columns that earlier schemas had and this schema no longer has."""
    names = {column.name for version in versions.values() for column in version.columns}
    return frozenset(names - {column.name for column in schema.columns})
