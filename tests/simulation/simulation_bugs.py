"""Bugs that the simulation must find, each switched on for as long as a block lasts."""

import sys
from contextlib import contextmanager
from dataclasses import replace

from simulation.logs import LogClient
from simulation.options import Options
from simulation.tails import LosingLog
from tidelake.errors import TidelakeError, WriterFenced
from tidelake.lake.groups.groups import Groups
from tidelake.shard.engine.history import History, advanced
from tidelake.shard.engine.machine import Machine
from tidelake.shard.upkeep.parting import forget
from tidelake.shard.writing import committing, uploads
from tidelake.state.core import batchrules, edits, invariants, partnames
from tidelake.state.core.commands import NoOp, Refused
from tidelake.state.core.state import UNSTAGED
from tidelake.state.group import deciding, memberwriters
from tidelake.state.life import collecting as collection_commands
from tidelake.state.spine import bases
from tidelake.state.upkeep import basing
from tidelake.state.write import idempotency
from tidelake.state.write import write as append_command
from tidelake.store.framed.keyfile import KeyFile
from tidelake.store.objects.log import ObjectVersionLog


@contextmanager
def replaced(owner, **names):
    """Other functions in the place of some, wherever they are imported by name, until the block is left."""
    before = {name: getattr(owner, name) for name in names}
    product = [
        module for name, module in sys.modules.items() if name.startswith(("tidelake.", "simulation."))
    ]
    places = [
        (place, name, own)
        for name, own in before.items()
        for place in (owner, *product)
        if place is owner or vars(place).get(name) is own
    ]
    for place, name, _ in places:
        setattr(place, name, names[name])
    try:
        yield
    finally:
        for place, name, own in places:
            setattr(place, name, own)


def believed_stale_refusal():
    """A refusal counts, however old the state that it was computed on."""
    run, preview = Machine.run, Machine.preview

    def believe(machine, command):
        if machine.seen is not None:
            outcome = command(machine.seen.state, machine._env.clock.now_ms())
            if isinstance(outcome, Refused):
                raise outcome.error

    def run_believing(self, command, *, alone=False):
        believe(self, command)
        return run(self, command, alone=alone)

    def preview_believing(self, command):
        believe(self, command)
        return preview(self, command)

    return replaced(Machine, run=run_believing, preview=preview_believing)


def lost_reply_taken_for_a_defeat():
    """A commit without an answer counts as lost to another process."""
    return replaced(History, _decided=lambda self, expected, seqno, data: False)


def round_that_is_told_too_early():
    """Commands that were to be committed together are answered as if they were, though others were faster."""
    commit = History.commit

    def early(self, known, delta, after):
        committed = commit(self, known, delta, after)
        return advanced(known, delta, 0, after) if committed is None and delta.more else committed

    return replaced(History, commit=early)


def fence_with_a_hole():
    """An older epoch of a writer goes on writing."""
    answered = idempotency.answer_of_record

    def unfenced(record, key, answer):
        outcome = answered(record, key, answer)
        fenced = isinstance(outcome, Refused) and isinstance(outcome.error, WriterFenced)
        return None if fenced else outcome

    return replaced(idempotency, answer_of_record=unfenced)


def hasty_tidying():
    """The parts of an append whose outcome is unknown are deleted."""
    return replaced(uploads, NOT_IN=(TidelakeError,))


def skipped_flush(of):
    """A disk whose flushes of files, or of folders, do nothing."""
    drawn = Options.drawn
    return replaced(
        Options, drawn=lambda draw: replace(drawn(draw), on_disk=True, framed=False, skipped_flush=of)
    )


def _framed():
    """All logs are framed ones, whatever a seed says."""
    drawn = Options.drawn
    return replaced(
        Options,
        drawn=lambda draw: replace(drawn(draw), on_disk=True, framed=True, loses_tail=False, grace_s=None),
    )


@contextmanager
def log_that_is_published_and_not_flushed():
    """An entry is acknowledged and seen before it is on the disk."""

    def flush(self, written):
        self.publish(written.record)

    with _framed(), replaced(KeyFile, flush=flush):
        yield


@contextmanager
def log_that_is_not_looked_at_again():
    """A process believes that what it knew of a log is all there is."""

    def unchanged(self):
        return None if self._newest is None else self._newest.known

    with _framed(), replaced(KeyFile, unchanged=unchanged):
        yield


@contextmanager
def collection_that_ignores_holds():
    """Garbage is free once it is old enough, even if it is read; the rule against this is off."""
    with (
        replaced(collection_commands, reader_pins=lambda state, now_ms: []),
        replaced(invariants, _check_pins=lambda before, edits: None),
    ):
        yield


@contextmanager
def uploads_that_are_taken_again():
    """An upload that is offered again is taken; the rules against this are off."""
    with (
        replaced(append_command, repeated=lambda state, offered: None),
        replaced(invariants, _check_arrivals=lambda before, edits: None),
    ):
        yield


@contextmanager
def uploads_that_are_forgotten_with_their_parts():
    """An upload is known only as long as the state names its parts, or has not yet deleted them."""
    with (
        replaced(partnames, is_taken=lambda known, name: False),
        replaced(invariants, _check_arrivals=lambda before, edits: None),
    ):
        yield


@contextmanager
def collection_that_ignores_forks():
    """Garbage is free though a fork needs it; nor does the rule look that forbids it."""
    with (
        replaced(collection_commands, fork_pins=lambda state: []),
        replaced(invariants, fork_pins=lambda state: []),
    ):
        yield


def collection_without_an_age_limit():
    """Garbage is free at once: a short read that has no hold loses its parts."""
    free = collection_commands.free
    never = 1 << 62
    return replaced(collection_commands, free=lambda garbage, pins, before_ms: free(garbage, pins, never))


def readers_that_miss_the_decisions_for_one_collection():
    """Who reads one of the collections of a transaction does not see that it was decided."""
    view = deciding.view

    def blind(state, member):
        found = view(state, member)
        return replace(found, decided={}) if member == min(state.memberships, default="") else found

    return replaced(deciding, view=blind)


def group_that_forgets_too_early():
    """A decision is forgotten when the first of its collections has applied it."""
    tidy = Groups.tidy

    def hasty(self, group):
        state = group.state()
        if state.decisions:
            forget(group, frozenset(state.decisions))
        return tidy(self, group)

    return replaced(Groups, tidy=hasty)


def group_that_knows_no_writers():
    """A number that is in comes in once more, in a group."""
    return replaced(
        memberwriters, known_writer=lambda group, state, name: state.writers.get(name), answer_of_record=_next
    )


def _next(_record, _key, _answer):
    return None


def reads_without_what_is_not_drained():
    """Between a seal and its drain, readers see the spine only."""
    needed = bases.needed

    def drained(state, query):
        return needed(replace(state, staged=UNSTAGED), query)

    return replaced(bases, needed=drained)


@contextmanager
def base_that_is_one_update_too_old():
    """A base is made without the newest batch before it; the rules that compare sums and hashes are off."""
    inputs = basing.inputs

    def too_old(state, asked):
        found = inputs(state, asked)
        newest = max((n for n, batch in enumerate(found) if batch.runs), default=0)
        return [batch for n, batch in enumerate(found) if n != newest or n == 0]

    with replaced(basing, inputs=too_old), replaced(batchrules, _check_kept=lambda *_: None):
        yield


@contextmanager
def base_whose_boundary_fell():
    """A base stays when the batches on both sides of it become one; the rule against this is off."""
    drawn = Options.drawn

    def sliced(draw):
        options = drawn(draw)
        return replace(options, on_disk=False, framed=False, config=replace(options.config, slice_rows=4))

    with (
        replaced(Options, drawn=sliced),
        replaced(edits, fallen=lambda held, edit: []),
        replaced(invariants, check_bases=lambda state, held: None),
    ):
        yield


@contextmanager
def no_acknowledgement():
    """A log that has lost its newest entries is believed."""
    drawn = Options.drawn
    with (
        replaced(Options, drawn=lambda draw: replace(drawn(draw), framed=False, loses_tail=True)),
        replaced(LosingLog, _believe=lambda self, key: None),
    ):
        yield


@contextmanager
def numbers_that_are_forgotten_by_stages():
    """A stage whose number is in is staged again."""
    plan = append_command.plan

    def forgetful(state, write):
        is_stage = isinstance(write.when, append_command.OpenTimes) and write.runs
        return plan(state, replace(write, idempotency=None) if is_stage else write)

    with (
        replaced(append_command, plan=forgetful),
        replaced(committing, already_in=lambda state, now_ms, idempotency: NoOp(None)),
    ):
        yield


# Bugs of the log in an object store


def writer_that_does_not_look_at_the_floor():
    """A put that made its object has won, however long the process stalled."""
    judged = ObjectVersionLog._judged

    def believing(self, key, seqno, data, *, is_new):
        return True if is_new else judged(self, key, seqno, data, is_new=is_new)

    return replaced(ObjectVersionLog, _judged=believing)


def refresh_that_does_not_look_at_the_floor():
    """A reader believes what it finds, however long it stalled."""
    newer = ObjectVersionLog.newer

    def believing(self, *args):
        self._stayed = lambda *args: True
        try:
            return newer(self, *args)
        finally:
            del self._stayed

    return replaced(ObjectVersionLog, newer=believing)


def believed_free_seqno():
    """After an unclear answer a seqno that is free decides that the commit is not in."""
    return replaced(LogClient, occupied=lambda self, seqno, expected, data: False)


def believed_refusal():
    """A put that is refused has lost."""
    judged = ObjectVersionLog._judged

    def believing(self, key, seqno, data, *, is_new):
        return judged(self, key, seqno, data, is_new=is_new) if is_new else False

    return replaced(ObjectVersionLog, _judged=believing)


def removal_by_the_clock_of_a_process():
    """How old a floor is, is told by the process that removes what is below it."""
    removed = ObjectVersionLog._removed

    class Late:
        def __init__(self, bucket, now_ms):
            self._bucket, self._now_ms = bucket, now_ms

        def __getattr__(self, name):
            return getattr(self._bucket, name)

        def list(self, prefix):
            pages = [*self._bucket.list(prefix)]
            if pages and "floors" in prefix:
                # The newest of these times is taken for the time of the store.
                pages[0][0] = replace(pages[0][0], modified_ms=max(self._now_ms, pages[0][0].modified_ms))
            return iter(pages)

    def by_own_clock(self, key):
        bucket, self._bucket = self._bucket, None
        self._bucket = Late(bucket, self._clock.now_ms())
        try:
            return removed(self, key)
        finally:
            self._bucket = bucket

    return replaced(ObjectVersionLog, _removed=by_own_clock)


def error_after_a_put_that_says_that_nothing_happened():
    """A commit that was put, and could not be judged, is tried anew as if it had had no effect."""
    return replaced(ObjectVersionLog, _after_write=lambda self, work: work())


def refused_floor_taken_for_raised():
    """A floor that was refused counts as raised."""

    def hasty(self, key, seqno):
        self._bucket.put_new(self._floor(key, seqno), b"")

    return replaced(ObjectVersionLog, _raise_floor=hasty)
