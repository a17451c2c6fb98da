"""Views as a graph, in plain values: from which collections each is made, and how far behind these it is.

Owns what the page says of a view; `tidelake.views` knows what a view is. Must not know requests.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from textwrap import dedent

from tidelake.errors import CollectionNotFound, TidelakeError
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.handle import shard_of
from tidelake.model.frontier import Frontier
from tidelake.model.time import TimeDomain
from tidelake.state.core.owned import indexes_of, owner_of
from tidelake.state.core.state import ShardState
from tidelake.tabletext import printable
from tidelake.timetext import US_PER_UNIT, many
from tidelake.views.definition import Definition
from tidelake.web import describe
from tidelake.web.describe import Json

_SPANS = (("d", 86_400_000_000), ("h", 3_600_000_000), ("min", 60_000_000), ("s", 1_000_000))


def graph(names: Iterable[str], opened: Callable[[str], Collection], known: Mapping[str, str]) -> Json:
    """The views among collections, and their inputs. One log scan for each name and input."""
    nodes = dict[str, Json]()
    for name in names:
        named = {"name": name, "shown": printable(name), "view": True}
        try:
            found = opened(name)
            state = shard_of(found).version().state
            definition = Definition.of(name, state)
        except CollectionNotFound:
            continue
        except TidelakeError as error:
            nodes[name] = {**named, "error": str(error)}
            continue
        if definition is not None:
            upper = describe.frontier(state.upper, found.domain)["text"]
            nodes[name] = {**named, "upper": upper, **made_of(definition, state, found.domain, opened, known)}
    inputs = {
        one["name"]: {**one, "view": False} for node in nodes.values() for one in node.get("inputs", ())
    }
    return {"nodes": [*({**inputs, **nodes}).values()]}


def made_of(
    definition: Definition,
    state: ShardState,
    domain: TimeDomain,
    opened: Callable[[str], Collection],
    known: Mapping[str, str],
) -> Json:
    """The query of a view, its inputs and their indexes that it uses, and how far behind the inputs it is."""
    inputs, reach = list[Json](), Frontier(())
    for source in definition.sources:
        name = known.get(source.id, source.name)
        told = {"name": name, "shown": printable(name)}
        try:
            of = shard_of(opened(name)).version().state
        except TidelakeError as error:
            inputs.append({**told, "error": str(error)})
            continue
        inputs.append({**told, "upper": describe.frontier(of.upper, domain)["text"]})
        reach = reach.meet(of.upper)
        inputs += _indexes(state, of, opened, known)
    behind = _span(definition.behind(state.upper, reach), domain)
    return {
        "sql": "\n".join(map(printable, dedent(definition.sql).strip().splitlines())),
        "inputs": inputs,
        "behind": behind,
    }


def _indexes(
    view: ShardState, of: ShardState, opened: Callable[[str], Collection], known: Mapping[str, str]
) -> Iterator[Json]:
    """The indexes of an input that a view uses."""
    for name in (known[id_] for id_ in indexes_of(of) if id_ in known):
        with suppress(TidelakeError):
            found = opened(name)
            state = shard_of(found).version().state
            if owner_of(view.shard_id) in state.critical:
                upper = describe.frontier(state.upper, found.domain)["text"]
                yield {"name": name, "shown": printable(name), "upper": upper}


def _span(times: int, domain: TimeDomain) -> str:
    """So many times, as people say it; empty: none."""
    per_us = US_PER_UNIT.get(domain.unit)
    if not times or per_us is None:
        return many(times, "time") if times else ""
    for unit, us in _SPANS:
        if times * per_us >= us:
            return f"{times * per_us // us:,} {unit}"
    return f"{times * per_us / 1000:,.3g} ms"
