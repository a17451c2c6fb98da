"""Transcripts of spines: tests/state/spine/*.txt, each a specification of one side of it.

A stanza is comment lines, a directive with arguments, input lines, `----` and the expected output; a blank
line ends it. `pytest tests/state --rewrite` writes what is put out in the place of what is expected. All
rules of a state are checked after every directive.

    batch                   [lower][upper][since] rows names, a run of one part each, or `name:rows`
    spine batch, merge due  [lo-hi][lower][upper][since] members/rows names
    member                  [lo-hi][lower][upper][since] runs/rows names
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from shard_states import F, Shard, part

from tidelake.model.batch import HollowBatch, Run
from tidelake.model.bounds import Bounds
from tidelake.model.frontier import Frontier
from tidelake.state.core import codec
from tidelake.state.core.commands import Commit
from tidelake.state.core.edits import Edits
from tidelake.state.core.fields import Move
from tidelake.state.life.holds import advance_since
from tidelake.state.spine import fuel
from tidelake.state.spine.merging import MergeResult, Policy, chosen, digest, everything, request, requests
from tidelake.state.spine.space import must_merge_all
from tidelake.state.spine.spine import SpineId
from tidelake.state.upkeep.claims import record_chunk
from tidelake.state.upkeep.maintenance import apply_merge, claim_merge, collapse_levels, exert_fuel

SCRIPTS = sorted((Path(__file__).parent / "spine").glob("*.txt"))


def frontier(text: str) -> Frontier:
    return Frontier.of_all(int(t) for t in text.split(",") if t)


def bracketed(line: str) -> tuple[list[str], list[str]]:
    """`[a][b] c d` as `[a, b]` and `[c, d]`."""
    head, _, tail = line.rpartition("]")
    return head.removeprefix("[").split("]["), tail.split()


def spine_id(text: str) -> SpineId:
    lo, _, hi = text.strip("[]").partition("-")
    return SpineId(int(lo), int(hi))


def shown(bounds: Bounds) -> str:
    return f"{bounds.lower}{bounds.upper}{bounds.since}"


def listed(lines: list[str]) -> str:
    return "\n".join(lines) or "none"


class Script:
    """A shard, and what can be said to it. Parts hold diffs whose sum is 0, so that any may go."""

    def __init__(self):
        self.shard = Shard()
        self.due = []
        self.claims = {}

    @property
    def state(self):
        return self.shard.state

    def say(self, directive: str, lines: list[str]) -> str:
        name, *words = directive.split()
        arguments = dict(word.partition("=")[::2] for word in words)
        out = getattr(self, name.replace("-", "_"))(lines, **arguments)
        # What is stored is what is known: members, spine batches, merges, claims and chunks.
        assert codec.decode_state(codec.encode_state(self.state), "state") == self.state
        return out

    def names(self, id_: SpineId, positions=()) -> str:
        runs = chosen(list(self.state.spine.range(id_)), positions)
        return " ".join("+".join(part.name for part in run.parts) for run in runs)

    def runs(self, first: int, rows: int, names: list[str]) -> tuple[Run, ...]:
        """Runs of so many rows in all; what no name says is in the ones without a number, evenly."""
        given = {n: int(r) for n, _, r in (name.partition(":") for name in names) if r}
        others = [name for name in names if ":" not in name]
        each, more = divmod(rows - sum(given.values()), len(others)) if others else (0, 0)
        given |= {name: each + (i < more) for i, name in enumerate(others)}
        return tuple(
            Run((part(n, first, first, given[n], 0),)) for n in (name.partition(":")[0] for name in names)
        )

    def push_batch(self, lines):
        for line in lines:
            (lower, upper, since), (rows, *names) = bracketed(line)
            bounds = Bounds(frontier(lower), frontier(upper), frontier(since))
            batch = HollowBatch(bounds, self.runs(bounds.lower.elements[0], int(rows), names))
            step = fuel.push(self.state.spine, batch, self.state.since, self.state.seqno + 1)
            self.shard.commit(Edits(upper=Move(self.state.upper, bounds.upper), spine=step.edit))
            self.due += step.due
        return "ok"

    def downgrade_since(self, lines, to):
        self.shard.do(advance_since, frontier(to.strip("[]")))
        return f"since {self.state.since}"

    def spine_batches(self, lines):
        return listed(
            [
                f"{b.id}{shown(b.bounds)} {len(list(self.state.spine.range(b.id)))}/{b.rows} "
                f"{self.names(b.id)}".rstrip()
                + f"  level {b.level}"
                for b in self.state.spine.batches
            ]
        )

    def members(self, lines):
        return listed(
            [
                f"{id_}{shown(batch.bounds)} {len(batch.runs)}/{batch.rows} {self.names(id_)}".rstrip()
                for id_, batch in ((member.id, member.batch) for member in self.state.spine)
            ]
        )

    def levels(self, lines):
        spine = self.state.spine
        return listed(
            [
                f"level {older.level}: {older.id} + {newer.id} since {merge.since}, "
                f"{max(merge.done_at - spine.spent, 0)} of {older.rows + newer.rows} to do"
                for merge in spine.merges
                for older, newer in [[b for b in spine.batches if merge.id.covers(b.id)]]
            ]
        )

    def take_merge_reqs(self, lines):
        due, self.due = self.due, []
        return listed([f"{d.id}{shown(d.bounds)} {self.names(d.id)}" for d in due])

    def _asked(self, asked):
        positions = f"runs {','.join(map(str, asked.positions))} of " if asked.positions else ""
        return f"{positions}{asked.id} {asked.sources}/{asked.rows} {self.names(asked.id, asked.positions)}"

    def outstanding(self, lines, **policy):
        policy = Policy(**{"fan_in": 8, "fold_rows": 0} | {name: int(n) for name, n in policy.items()})
        return listed([self._asked(asked) for asked in requests(self.state.spine, policy)])

    def everything(self, lines, fan_in="8", fold_rows="0"):
        found = everything(self.state.spine, Policy(int(fan_in), int(fold_rows)))
        return "no" if found is None else self._asked(found)

    def must_merge_all(self, lines, thorough="no"):
        must = must_merge_all(list(self.state.spine), self.state.since, thorough=thorough == "yes")
        return "yes" if must else "no"

    def apply_merge_res(self, lines):
        """Input: `[lo-hi][since] rows name [runs=0,1] [of=names]`; `of`: its inputs, if no longer there."""
        out = []
        for line in lines:
            (ids, since), (rows, *words) = bracketed(line)
            extra = dict(word.partition("=")[::2] for word in words if "=" in word)
            names = [word for word in words if "=" not in word]
            id_ = spine_id(ids)
            positions = tuple(int(i) for i in extra["runs"].split(",")) if "runs" in extra else ()
            if "of" in extra:
                inputs = digest(Run((part(name),)) for name in extra["of"].split(","))
            else:
                inputs = request(list(self.state.spine.range(id_)), positions).inputs
            output = self.runs(0, int(rows), names)
            merged = Run(tuple(run.parts[0] for run in output)) if output else None
            result = MergeResult(id_, positions, inputs, frontier(since), merged)
            before = self.state
            out += [self.shard.do(apply_merge, result).result.value, *self._orphans(before)]
        return "\n".join(out)

    def exert(self, lines, fuel):
        return self._stepped(self.shard.do(exert_fuel, int(fuel)))

    def collapse(self, lines):
        return self._stepped(self.shard.do(collapse_levels))

    def _stepped(self, outcome):
        if not isinstance(outcome, Commit):
            return "nothing to do"
        self.due += outcome.due
        return "ok"

    def claim(self, lines, runner, now, lease, cuts="1", runs=""):
        """Input: `[lo-hi]`."""
        positions = tuple(int(i) for i in runs.split(",")) if runs else ()
        asked = request(list(self.state.spine.range(spine_id(lines[0]))), positions)
        keys = tuple(b"%d" % i for i in range(int(cuts)))
        before = self.state
        claimed = self.shard.do(
            claim_merge, asked, runner=runner, lease_ms=int(lease), cuts=keys, now_ms=int(now)
        ).result
        if claimed.claim is None:
            return "no"
        mine = self.claims[runner] = claimed.claim
        chunks = [f"chunk {i}: {' '.join(p.name for p in parts)}".rstrip() for i, parts in claimed.chunks]
        what = f"{mine.id} by {mine.runner} until {mine.expires_ms} since {mine.since}, {len(mine.cuts)} cuts"
        return "\n".join([what, *chunks, *self._orphans(before)])

    def record(self, lines, runner, now, chunk, lease="10"):
        """Input: names of parts; the claim is the one that this runner last had."""
        parts = tuple(part(name, 0, 0, 1, 0) for line in lines for name in line.split())
        outcome = self.shard.do(
            record_chunk, self.claims[runner], int(chunk), parts, lease_ms=int(lease), now_ms=int(now)
        )
        return "recorded" if outcome.result else "refused"

    def claims_of(self, lines):
        claims = [
            f"{c.id} by {c.runner} until {c.expires_ms} since {c.since}"
            for _, c in sorted(self.state.claims.items())
        ]
        chunks = [
            f"chunk {key}: {' '.join(p.name for p in parts)}".rstrip()
            for key, parts in sorted(self.state.chunks.items())
        ]
        return listed(claims + chunks)

    def _orphans(self, before):
        """What was recorded for claims, and is garbage now."""
        recorded = [p.name for parts in before.chunks.values() for p in parts]
        orphans = [name for name in recorded if name in self.state.garbage and name not in before.garbage]
        return [f"orphans: {' '.join(orphans)}"] if orphans else []

    def reload(self, lines):
        again = codec.decode_state(codec.encode_state(self.state), "state")
        assert again == self.state
        self.shard.state = again
        return "ok"


def replayed(text: str) -> Iterator[tuple[list[str], str, str]]:
    """The lines of each stanza up to `----`, what was expected after them, and what came out."""
    script = Script()
    for block in text.strip("\n").split("\n\n"):
        lines = block.split("\n")
        said = [line for line in lines if not line.startswith("#")]
        if not said:
            yield lines, "", ""
            continue
        cut = lines.index("----")
        at = said.index("----")
        yield lines[: cut + 1], "\n".join(lines[cut + 1 :]), script.say(said[0], said[1:at])


@pytest.mark.promise(
    "A spine reads back as it was, with its levels and merges under way", rule="`state/core/codec.py`"
)
@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_spine_does_as_its_transcript_says(path, request):
    text = path.read_text()
    stanzas = list(replayed(text))
    found = "\n\n".join("\n".join([*head, out] if out else head) for head, _, out in stanzas) + "\n"
    if request.config.getoption("--rewrite"):
        path.write_text(found)
        return
    for head, expected, out in stanzas:
        assert expected == out, f"{path.name}: {head}"
    assert found == text


def test_there_are_transcripts_and_each_says_what_it_is_about():
    assert len(SCRIPTS) >= 8
    assert all(path.read_text().startswith("# ") for path in SCRIPTS)


def test_a_transcript_that_expects_something_else_is_noticed():
    stanzas = list(replayed("# About.\n\npush-batch\n[0][1][0] 1 a\n----\nnot ok\n"))
    assert [(expected, out) for _, expected, out in stanzas] == [("", ""), ("not ok", "ok")]


def test_runs_share_the_rows_that_no_name_says():
    runs = Script().runs(0, 9, ["a:4", "b", "c"])
    assert [(r.parts[0].name, r.rows) for r in runs] == [("a", 4), ("b", 3), ("c", 2)]
    assert replace(runs[0], truncated=True).diff_sum is None and F(0) == frontier("0")
