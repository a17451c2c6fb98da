"""Whether the parts of a write may be deleted: only if it is certain that no state names them."""

from contextlib import suppress

import pytest
from shards import Place

import inside
from tables import SCHEMA, rows
from tidelake.config import Config
from tidelake.errors import (
    InlineFull,
    OutcomeUnknown,
    StoreUnavailable,
    UploadExpired,
    UpperMismatch,
    UsageError,
)
from tidelake.model.frontier import Frontier
from tidelake.shard.engine.requestqueue import Done
from tidelake.shard.runs.upload import normalized, write_table
from tidelake.shard.writing.committing import committed
from tidelake.shard.writing.uploads import NOT_IN, UPLOADS_MAX, Uploads, remade

REFUSED = UpperMismatch(Frontier.of(0), Frontier.of(1))
DONE = Done("in", rollup_due=False)


class Bench:
    """A shard, an upload of one part, and whether its part is in the store."""

    def __init__(self, *, inline=False):
        self.place = Place()
        config = Config() if inline else Config(inline_part_bytes=0)
        self.shard = inside.shard(self.place.lake(config=config).create("c", SCHEMA, key=["id"]))
        self.spec = self.shard.version().spec
        self.table = normalized(self.spec, rows(1, 2), 0)
        self.runs = write_table(self.spec, self.shard.stores.blobs, self.shard.env, self.table)

    @property
    def stored(self):
        return len(list(self.place.stores.blobs.list(f"{self.spec.shard_id}/part")))


def raising(*errors):
    """An attempt that raises these, one after the other, and then is in."""
    left = list(errors)

    def attempt(_runs):
        if left:
            raise left.pop(0)
        return DONE

    return attempt


def offered(uploads, attempt, *, needed=True):
    done = committed(lambda: attempt(uploads.offer()), uploads)
    uploads.answered(needed=needed)
    return done


@pytest.mark.promise(
    "After a commit was tried, only a refusal by the state deletes uploaded parts; a failing "
    "deletion never hides the answer",
    rule="`shard/writing/uploads.py`",
    also=[
        "shard/writing/test_uploads.py",
        "shard/test_outcomes.py::test_any_error_after_the_commit_keeps_the_parts",
        "shard/test_outcomes.py::test_a_tidying_that_fails_does_not_take_the_place_of_the_answer",
    ],
)
def test_what_was_not_offered_goes():
    bench = Bench()
    assert bench.stored == 1
    with suppress(UsageError), Uploads(bench.shard, bench.runs):
        raise UsageError("before the offer")
    assert bench.stored == 0


@pytest.mark.parametrize(
    "error", [REFUSED, OutcomeUnknown("log"), StoreUnavailable("log"), UsageError("any")]
)
def test_after_an_offer_only_a_refusal_by_the_state_deletes(error):
    bench = Bench()
    with pytest.raises(type(error)), Uploads(bench.shard, bench.runs) as uploads:
        offered(uploads, raising(error))
    assert bench.stored == (0 if isinstance(error, NOT_IN) else 1)


@pytest.mark.parametrize("owned", [True, False])
def test_what_is_not_needed_goes_if_this_write_has_uploaded_it(owned):
    bench = Bench()
    with Uploads(bench.shard, bench.runs, owned=owned) as uploads:
        offered(uploads, raising(), needed=False)
    assert bench.stored == (0 if owned else 1)


def test_what_others_may_offer_stays_after_a_refusal():
    bench = Bench()
    with pytest.raises(UpperMismatch), Uploads(bench.shard, bench.runs, owned=False) as uploads:
        offered(uploads, raising(REFUSED))
    assert bench.stored == 1


def test_once_it_is_in_no_later_error_deletes():
    bench = Bench()
    uploads = Uploads(bench.shard, bench.runs)
    with suppress(UpperMismatch), uploads:
        offered(uploads, raising())
        raise REFUSED
    assert bench.stored == 1


@pytest.mark.parametrize(("last", "left"), [(REFUSED, 0), (OutcomeUnknown("log"), 1)])
@pytest.mark.parametrize("owned", [True, False])
def test_inline_parts_that_were_stored_for_lack_of_room_go_if_they_are_refused(owned, last, left):
    bench, full = Bench(inline=True), InlineFull(2, 1)
    assert bench.stored == 0
    with pytest.raises(type(last)), Uploads(bench.shard, bench.runs, owned=owned) as uploads:
        offered(uploads, raising(full, full, last))
    assert bench.stored == left


def test_an_upload_that_has_expired_is_made_again_and_leaves_nothing():
    bench = Bench()
    expired = UploadExpired("part", 0, 1)

    def making(attempt):
        def made():
            spec = bench.shard.version().spec
            with Uploads.of(bench.shard, spec, bench.table) as uploads:
                return offered(uploads, attempt)

        return made

    assert remade(bench.shard, making(raising(*(expired,) * (UPLOADS_MAX - 1)))) == DONE
    assert bench.stored == 2
    with pytest.raises(UploadExpired):
        remade(bench.shard, making(raising(*(expired,) * UPLOADS_MAX)))
    assert bench.stored == 2
