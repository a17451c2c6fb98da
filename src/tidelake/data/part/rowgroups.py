"""Which row groups of a part a read needs, by its footer alone.

Owns the sparse index, and what bounds of keys, sets of keys and the filter of the part exclude; must not
decode rows. Invariant: a row group that holds a wanted row is never left out.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow.parquet as pq

from tidelake.data.keys.keyset import KeySet
from tidelake.data.part.container import File, Footer, read_filter_bytes, read_footer
from tidelake.data.part.partfilter import PartFilter
from tidelake.data.query.prune import key_upper
from tidelake.model.batch import Part
from tidelake.model.schema import Schema

# With more keys for each row group, a row group without any is unlikely, and filters spare nothing.
_FILTERED_KEYS = 32


# With at most so many keys for each row group, their columns are decoded first: mostly no row has one.
_PROBED_KEYS = 4


# Not where the keys are more than this fraction of the bytes: then they cost about as much as all columns.
_PROBED_SHARE = 4


# A filter of so many times the bytes of the row groups is read all the same: they would have to be decoded.
_FILTER_SHARE = 4


# What is done with the filter of a part once it was read.
Keep: TypeAlias = Callable[[PartFilter], None]


@dataclass(frozen=True)
class PartIndex:
    """The sparse index of a part, with one item for each row group.

    Attributes:
        first_keys: the key of its first row, as `encode_key` makes it.
    """

    first_keys: tuple[bytes, ...]
    rows: tuple[int, ...]
    size_bytes: tuple[int, ...]


def read_index(file: File | str, part: Part) -> PartIndex:
    """Read a part's sparse index: one read, two where there are many row groups."""
    if isinstance(file, str):
        with open(file, "rb") as opened:
            return read_index(opened, part)
    return index_of(read_footer(file, part))


def index_of(footer: Footer) -> PartIndex:
    """The sparse index that a footer has."""
    groups = range(len(footer.ends))
    return PartIndex(
        footer.first_keys,
        tuple(footer.rows(i) for i in groups),
        tuple(footer.ends[i] - footer.start(i) for i in groups),
    )


def rows_among(footer: Footer, part: Part, schema: Schema, among: KeySet) -> int:
    """The rows of all row groups that may hold one of the keys."""
    groups = range(len(footer.ends))
    return sum(footer.rows(i) for i in groups if _meets(among, footer, part, schema, i))


def wanted_ranges(
    file: File,
    part: Part,
    schema: Schema,
    *,
    key_from: bytes | None = None,
    key_below: bytes | None = None,
    among: KeySet | None = None,
    row_groups: Callable[[pq.FileMetaData], list[bool]] | None = None,
    filtered: Keep | None = None,
) -> tuple[Footer, list[tuple[int, int]]]:
    """The footer of a part, and the ranges of bytes that `read_part` will read after it.

    Args and errors as of `read_part`. A range has a start and an end, and is a row group. They ascend.
    """
    footer = read_footer(file, part)
    groups = wanted_groups(footer, part, schema, key_from, key_below, among, row_groups)
    if among is not None and filtered is not None:
        groups, _ = undenied(file, groups, among, footer, part, schema, filtered)
    return footer, [(footer.start(group), footer.ends[group]) for group in groups]


def wanted_groups(  # noqa: PLR0917 - the arguments of `read_part`, in its order
    footer: Footer,
    part: Part,
    schema: Schema,
    key_from: bytes | None,
    key_below: bytes | None,
    among: KeySet | None,
    row_groups: Callable[[pq.FileMetaData], list[bool]] | None,
) -> list[int]:
    """The row groups to read: `row_groups` wants them, and they may hold keys of the range and the set."""
    keys = footer.first_keys
    # The group before may end with rows of the same key with which a group begins.
    first = 0 if key_from is None else max(0, bisect_left(keys, key_from) - 1)
    end = len(keys) if key_below is None else bisect_left(keys, key_below)
    wanted = None if row_groups is None else row_groups(footer.metadata)
    return [
        group
        for group in range(first, end)
        if (wanted is None or wanted[group]) and (among is None or _meets(among, footer, part, schema, group))
    ]


def undenied(  # noqa: PLR0917 - as many as there are
    file: File, groups: list[int], among: KeySet, footer: Footer, part: Part, schema: Schema, filtered: Keep
) -> tuple[list[int], KeySet]:
    """Those of some row groups, and of some keys, that the filter of the part does not deny.

    All of them, and nothing is read, if there is no filter, or if it would hardly spare a row group.
    """
    size_bytes = sum(footer.ends[group] - footer.start(group) for group in groups)
    asked = among.count(part.key_lower, part.key_upper)
    if not 0 < footer.filter_bytes <= _FILTER_SHARE * size_bytes or asked > _FILTERED_KEYS * len(groups):
        return groups, among
    found = PartFilter.from_bytes(read_filter_bytes(file, part, footer))
    filtered(found)
    left = found.among(among, schema)
    if left is None:
        return [], among
    return [group for group in groups if _meets(left, footer, part, schema, group)], left


def _meets(among: KeySet, footer: Footer, part: Part, schema: Schema, group: int) -> bool:
    """Whether a row group may hold a row with one of the keys."""
    keys = footer.first_keys
    # Its last rows may have the first key of the next group.
    last = keys[group + 1] if group + 1 < len(keys) else part.key_upper
    if not among.meets(keys[group], last):
        return False
    upper = key_upper(footer.metadata.row_group(group), schema)
    return upper is None or among.meets(keys[group], upper if last is None else min(last, upper))


def is_sparse(among: KeySet, footer: Footer, part: Part, schema: Schema, window: range) -> bool:
    """Whether it pays to look for the keys in row groups before their other columns are decoded."""
    last = window[-1] + 1
    end = footer.first_keys[last] if last < len(footer.first_keys) else part.key_upper
    if among.count(footer.first_keys[window[0]], end) > _PROBED_KEYS * len(window):
        return False
    group, names = footer.metadata.row_group(window[0]), {column.name for column in schema.key}
    columns = [group.column(i) for i in range(group.num_columns)]
    keys = sum(c.total_uncompressed_size for c in columns if c.path_in_schema.split(".")[0] in names)
    return bool(keys * _PROBED_SHARE <= group.total_byte_size)
