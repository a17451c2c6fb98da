"""Compares the answers to writers with the true history: the judge of one collection.

Must not know which client asks, nor which faults there were.
"""

from simulation.reads import JudgeOfReads
from simulation.record import AppendCall, CallBegan, only_time
from tidelake.errors import (
    CollectionDropped,
    StoreUnavailable,
    TidelakeError,
    UpdateBeforeLower,
    UpdateNotBeforeUpper,
    UploadExpired,
    UpperMismatch,
    WriterFenced,
)
from tidelake.model.frontier import Frontier
from tidelake.state.write.write import Appended


class Judge(JudgeOfReads):
    """Judges all answers about one collection."""

    def begins(self, op: AppendCall) -> None:
        """Record an append before its first attempt."""
        self.appends.append(op)
        self.counts["appends"] += 1

    def acknowledged(self, op: AppendCall, asked: CallBegan, answer: Appended) -> None:
        """Judge an append that was answered with success."""
        self.counts["appends acknowledged"] += 1
        if op.placed is None:
            covered = (
                answer.already and op.upper is not None and op.upper <= self.state.upper and not op.writer
            )
            if not covered:
                self.wrong(f"{op.label} was acknowledged ({answer}) and is not in")
            op.barred = "it was answered that all its times were closed"
            return
        _, lower, upper = op.placed
        if not answer.already:
            if (answer.lower, answer.upper) != (lower, upper):
                self.wrong(f"{op.label} is in at [{lower}, {upper}), but the answer is {answer}")
            op.answers.append((asked.step, self.bench.clock()[0], lower, upper))

    def refused(self, op: AppendCall, asked: CallBegan, error: TidelakeError) -> None:
        """Judge an append that was answered with an error that says that it is certainly not in."""
        self.counts["appends refused"] += 1
        if op.unsure and isinstance(error, WriterFenced | StoreUnavailable):
            # These errors say nothing about an earlier attempt.
            return
        if op.placed is not None:
            self.wrong(f"{op.label} is in at {op.placed[0]}, but was refused: {error!r}")
        op.barred = f"it was refused: {error!r}"
        seen = self.uppers[asked.entries - 1 :]
        match error:
            case UpperMismatch():
                if error.current not in seen or error.expected == error.current:
                    self.wrong(
                        f"{op.label} was refused on a stale state: {error!r}; upper was {seen[0]} and later"
                    )
            case UpdateBeforeLower() | UpdateNotBeforeUpper():
                if all(seen[-1].less_equal(time) for _, time, _ in op.rows if time is not None):
                    self.wrong(f"{op.label} was refused though its times are open: {error!r}")
            case WriterFenced():
                if op.writer is None or self.state.writers[op.writer[0]].epoch <= op.writer[1]:
                    self.wrong(f"{op.label} was fenced, and no newer epoch exists: {error!r}")
            case StoreUnavailable():
                pass
            case UploadExpired() if error.seqno < self.state.sweep.floor:
                # It slept, or clocks differ, by more than an upload may take.
                self.counts["uploads expired"] += 1
            case CollectionDropped() if self.dropped is not None:
                self.counts["told of a drop"] += 1
            case _:
                self.wrong(f"{op.label} failed with {error!r}")

    def unsure(self, op: AppendCall) -> None:
        """Record that the outcome of an append is unknown, or that its caller died."""
        self.counts["appends of unknown outcome"] += 1
        op.unsure = True

    def writer_opened(self, name: str, epoch: int, last: int | None) -> None:
        """Judge the opening of a writer, which returned `last`, the last number that is in."""
        self.counts["writers opened"] += 1
        if (name, epoch) not in self.opened:
            self.wrong(f"epoch {epoch} of writer {name} was given out, and is not in the log")
        expected = self.opened[name, epoch]
        if last != expected:
            self.wrong(f"writer {name} was told that {last} is in at epoch {epoch}, not {expected}")

    def moved(self, asked: CallBegan, token: str, since: int) -> None:
        """Judge a move of the critical hold that was answered as done: a state since then must show it."""
        self.counts["critical holds moved"] += 1
        seen = self.critical[asked.entries - 1 :]
        if not any(held and held[0] == token and Frontier.of(since) <= held[1] for held in seen):
            self.wrong(f"the critical hold was moved to {since} by {token}, and never was there: {seen[-3:]}")

    def check_order(self) -> None:
        """Check that all appends fit into one order that agrees with real time (linearizability)."""
        answers = sorted(
            (only_time(lower), only_time(upper), begun, ended, op.label)
            for op in self.appends
            for begun, ended, lower, upper in op.answers
        )
        latest_begun, whose, end = -1, "", 0
        for lower, upper, begun, ended, label in answers:
            if lower < end:
                self.wrong(f"{label} was given times that others were given too: [{lower}, {upper})")
            if ended < latest_begun:
                self.wrong(f"{label} ended before {whose} began, but comes after it")
            if begun > latest_begun:
                latest_begun, whose = begun, label
            end = upper
