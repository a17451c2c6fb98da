"""In which order views are refreshed: each behind those that it stands on, and which ones at one time.

Must not know how a view is refreshed.
"""

from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

from tidelake.errors import CollectionNotFound, RebuildNeeded, TidelakeError
from tidelake.state.core.owned import owner_of
from tidelake.views.definition import Definition, ViewSource
from tidelake.views.inputs import View, opened_indexes
from tidelake.views.shared import Shared

Views = dict[str, View]
"""Views by their ids."""


def view_of(shared: Shared, id_: str, name: str) -> View | None:
    """The view of an id; None: it is none, or is gone.

    Raises:
        RebuildNeeded: another version of Tidelake made it.
    """
    try:
        found = shared.open(id_, name)
    except CollectionNotFound:
        return None
    definition = Definition.of(name, shared.version(found).state)
    return None if definition is None else View(found, definition)


def views_of(shared: Shared) -> Views:
    """All views of a lake that this version can read."""
    views = Views()
    for one in shared.lake._each(shared.open):
        with suppress(RebuildNeeded):
            # It says so when it is refreshed.
            found = view_of(shared, one.id, one.name)
            if found is not None:
                views[one.id] = found
    return views


def stood_on(shared: Shared, sources: Iterable[ViewSource], but: Container[str] = ()) -> Iterator[View]:
    """The views among some inputs, and all that those stand on, each once.

    Those with an id in `but` are left out, and what only they stand on.
    """
    left, seen = [*sources], set[str]()
    while left:
        source = left.pop()
        if source.id in but or source.id in seen:
            continue
        seen.add(source.id)
        view = None
        with suppress(RebuildNeeded):
            # What stands on it says so at its refresh.
            view = view_of(shared, source.id, source.name)
        if view is not None:
            left += view.definition.sources
            yield view


def with_all_together(shared: Shared, wanted: Mapping[str, View]) -> Views:
    """Views, and those that change together with them or with what they stand on.

    Their inputs that are views are among them. Only if some change together, all collections are opened.
    """
    found = Views()
    left = [*wanted.values()]
    names: Views | None = None
    while left:
        view = left.pop(0)
        if view.id in found:
            continue
        found[view.id] = view
        for source in view.definition.sources:
            with suppress(TidelakeError):
                # What stands on it says so at its refresh.
                one = wanted.get(source.id) or view_of(shared, source.id, source.name)
                left += [one] if one is not None else []
                indexes = _indexes(shared, view, source)
                left += (
                    one
                    for one in indexes
                    if owner_of(view.id) in shared.version(one.collection).state.critical
                )
                found[view.id] = view = replace(view, indexes=(*view.indexes, *(one.id for one in indexes)))
        if view.definition.together:
            names = views_of(shared) if names is None else names
            left += [one for one in names.values() if _is_with(one, view) and one.id not in found]
    return found


def _indexes(shared: Shared, view: View, source: ViewSource) -> list[View]:
    """The indexes of an input, in which a view may look rows up."""
    if view.definition.index:
        return []
    indexes = opened_indexes(shared, shared.open(source.id, source.name))
    views = (view_of(shared, one.id, one.name) for one in indexes)
    return [one for one in views if one is not None]


def in_order(views: Mapping[str, View]) -> list[list[View]]:
    """The views in lists, each behind what it stands on; those of one list change together."""
    done, order = set[str](), list[list[View]]()

    def visit(view: View) -> None:
        if view.id in done:
            return
        together = [one for one in views.values() if _is_with(one, view)]
        done.update(one.id for one in together)
        for one in together:
            for id_ in one.over:
                if id_ in views and not _is_with(views[id_], view):
                    visit(views[id_])
        order.append(_sorted(together))

    for view in views.values():
        visit(view)
    return order


def _is_with(one: View, view: View) -> bool:
    # Of another grid is only a view in the place of another one, while that is there.
    together = view.definition.together != "" and one.definition.alike == view.definition.alike
    return together or one.id == view.id


def _sorted(together: list[View]) -> list[View]:
    """Views that change together, each behind those of them that it stands on."""
    left, found = {one.id: one for one in together}, list[View]()
    while left:
        free = [one for one in left.values() if not any(id_ in left for id_ in one.over)]
        # There is always one: what stands on others was made after them.
        found += free
        left = {id_: one for id_, one in left.items() if one not in free}
    return found
