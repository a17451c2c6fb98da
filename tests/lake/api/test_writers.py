"""What numbers the calls of named writers: threads, forks, other processes; and other rows under a number."""

import uuid

import pyarrow as pa
import pytest

import tidelake
from tables import SCHEMA, at, contents, rows
from threads import at_once
from tidelake.errors import CorruptionError, UpdateBeforeLower, UsageError, WriterFenced
from tidelake.state.write.heldback import StreamContent


@pytest.fixture
def lake():
    with tidelake.open(f"memory://{uuid.uuid4().hex}") as opened:
        yield opened


def in_threads(calls):
    """Run all calls at once; what each of them returned or raised."""

    def run(call):
        try:
            return call()
        except Exception as error:
            return error

    return at_once(run, calls)


@pytest.mark.promise(
    "A named writer that threads share gets all their rows in; a number that it left out is refused "
    "later, and a next number that another handle of its epoch took is not taken for its own",
    rule="`lake/arguments/numbers.py`, `IdempotencyKey.fresh`",
    also=[
        "::test_threads_that_share_a_group_writer_write_each_number_once",
        "::test_a_number_that_was_left_out_is_refused_later",
        "::test_a_number_that_another_handle_of_the_epoch_took_is_not_taken_for_these_rows",
    ],
)
@pytest.mark.parametrize("grouped", [False, True])
def test_threads_that_share_a_writer_get_all_their_rows_in(lake, grouped):
    c = lake.create("c", SCHEMA, key=["id"])
    lake.create("d", SCHEMA, key=["id"])
    if grouped:
        lake.write({"c": rows(1), "d": rows(1)})
    writer = c.writer("w")
    before = 1 if grouped else 0
    calls = [lambda: writer.append(rows(1))] * 12 + [lambda: writer.upsert(rows(2))]
    found = in_threads(calls)
    assert not any(isinstance(one, Exception) or one.already for one in found), found
    assert contents(c) == {(1, "x"): before + 12, (2, "x"): 1}
    assert writer.last_sequence == 12


def test_threads_that_share_a_group_writer_write_each_number_once(lake):
    lake.create("c", SCHEMA, key=["id"])
    writer = lake.group_writer("c", "w")
    writer.join(["c"])

    def call(number):
        upload = lake.collection("c").distributed.uploader(0, tidelake.Frontier.of(1 << 40)).upload
        return lambda: writer.write({"c": [upload(at(1000 + number, number).to_batches())]}, sequence=number)

    found = in_threads([call(number) for number in range(4)])
    wrote = {number for number, one in enumerate(found) if not isinstance(one, Exception)}
    # Who came after a later number, or after later times, is told so: nothing is `already`.
    assert all(isinstance(one, Exception) or not one.already for one in found), found
    assert {id_ for id_, _ in contents(lake.collection("c"))} == wrote


@pytest.mark.promise(
    "A later epoch fences the earlier one",
    rule="`WriterFenced`",
    also=[
        "state/test_commands.py::test_a_later_epoch_fences_the_earlier_one",
        "shard/test_outcomes.py::test_a_fenced_writer_that_wakes_up_late_is_refused",
    ],
)
def test_of_two_processes_with_one_name_the_later_one_fences_the_earlier(tmp_path):
    url = str(tmp_path / "lake")
    with tidelake.open(url) as mine, tidelake.open(url) as theirs:
        first = mine.create("c", SCHEMA, key=["id"]).writer("w")
        second = theirs.collection("c").writer("w")
        found = in_threads([lambda: first.append(rows(1)), lambda: second.append(rows(2))])
        assert isinstance(found[0], WriterFenced) and not found[1].already
        assert contents(mine.collection("c")) == {(2, "x"): 1}


@pytest.mark.parametrize("grouped", [False, True])
def test_a_number_that_another_handle_of_the_epoch_took_is_not_taken_for_these_rows(lake, grouped):
    """So it is for a fork, whose copy of the writer counts on from the same number."""
    c = lake.create("c", SCHEMA, key=["id"])
    lake.create("d", SCHEMA, key=["id"])
    if grouped:
        lake.write({"c": rows(0), "d": rows(0)})
    mine = c.writer("w", owner="job")
    theirs = c.writer("w", owner="job", resume=True)
    assert not mine.append(rows(1)).already
    for call in (theirs.append, theirs.upsert, theirs.replace, lambda t: theirs.stage(at(1 << 50, 1))):
        with pytest.raises(UsageError, match="with the same epoch has written number 0"):
            call(rows(1))
    assert theirs.append(rows(1), sequence=0).already
    assert not theirs.append(rows(2)).already
    mine.append(rows(3), sequence=5)
    assert not theirs.append(rows(4), sequence=6).already and theirs.append(rows(3), sequence=5).already
    assert {id_ for id_, _ in contents(c) if id_} == {1, 2, 3, 4}


@pytest.mark.promise(
    "Other rows under a writer's last number are refused by `append`, `upsert`, `replace` and "
    "`stage` of tables",
    rule="`with_fingerprint`",
)
def test_other_rows_under_the_last_number_are_refused_by_every_call(lake):
    c = lake.create("c", SCHEMA, key=["id"])
    writer, far = c.writer("w"), 1 << 40
    calls = {
        "append": lambda v: writer.append(rows(1, v=v), sequence=0),
        "upsert": lambda v: writer.upsert(rows(1, v=v), sequence=1),
        "upsert at a time": lambda v: writer.upsert(rows(1, v=v), time=c.upper.elements[0] + 5, sequence=2),
        "replace": lambda v: writer.replace(rows(1, v=v), sequence=3),
        "stage": lambda v: writer.stage(at(far, 1, v=v), sequence=4),
    }
    for name, call in calls.items():
        call("a")
        again = call("a")
        assert again is False or again.already, name
        with pytest.raises(UsageError, match="made of something else"):
            call("b")
    assert contents(c) == {(1, "a"): 1}


def test_a_number_that_was_left_out_is_refused_later(lake):
    c = lake.create("c", SCHEMA, key=["id"])
    writer = c.writer("w")
    writer.append(rows(1), sequence=3)
    for sequence in (0, 2):
        with pytest.raises(UsageError, match="which left it out"):
            writer.append(rows(2), sequence=sequence)
    assert writer.append(rows(1), sequence=3).already
    assert not writer.append(rows(2)).already
    # A process that starts again gives what the one before gave, and learns that it is in.
    assert c.writer("w").append(rows(1), sequence=3).already


@pytest.mark.promise(
    "A write under a `token` comes in once by every call of a collection and of the command line, "
    "and a repeated one answers `already`",
    rule="`under_token` in `lake/arguments/tokens.py`",
    also=[
        "::test_what_a_token_refused_can_be_written_under_it",
        "cli/test_stage_command.py::test_a_token_writes_once_and_the_second_call_says_already",
    ],
)
@pytest.mark.parametrize("grouped", [False, True])
def test_a_write_under_a_token_is_in_once_by_every_call(lake, grouped):
    c = lake.create("c", SCHEMA, key=["id"])
    lake.create("d", SCHEMA, key=["id"])
    if grouped:
        lake.write({"c": rows(0), "d": rows(0)})
    calls = {
        "append": lambda v: c.append(rows(1, v=v), token="a"),
        "at a time": lambda v: c.append(rows(2, v=v), time=5, token="b"),
        "up to": lambda v: c.append(at(7, 3, v=v), lower=c.upper, upper=9, token="c"),
        "upsert": lambda v: c.upsert(rows(4, v=v), token="d"),
        "delete": lambda v: c.delete(where="TRUE" if v == "x" else "id = 1", token="f"),
        "delete keys": lambda v: c.delete(pa.table({"id": [1 if v == "x" else 2]}), token="g"),
        "replace": lambda v: c.replace(rows(5, v=v), token="e"),
    }
    for name, call in calls.items():
        assert not call("x").already, name
        done, upper = call("y"), c.upper
        assert done.already and done.upper == upper, name
    assert contents(c) == {(5, "x"): 1}
    found = in_threads([lambda n=n: c.append(rows(n), token="raced") for n in range(6, 10)])
    assert sum(not isinstance(one, WriterFenced) and not one.already for one in found) == 1
    assert len(contents(c)) == 2


def test_what_a_token_refused_can_be_written_under_it(lake):
    c = lake.create("c", SCHEMA, key=["id"])
    c.seal(9)
    with pytest.raises(UpdateBeforeLower):
        c.append(rows(1), time=3, token="t")
    assert not c.append(rows(1), time=9, token="t").already and contents(c) == {(1, "x"): 1}


@pytest.mark.promise(
    "The number of an append is a whole number before it is stored: another type could not be read back",
    rule="`lake/arguments/numbers.py`",
)
@pytest.mark.parametrize("number", [1.5, 1.0, True, "1", 2**63, -1, b"1"])
def test_a_number_of_another_type_is_refused_and_the_collection_can_be_read(lake, number):
    writer = lake.create("c", SCHEMA, key=["id"]).writer("w")
    for call in (writer.append, writer.upsert, writer.replace):
        with pytest.raises(UsageError, match=r"sequence=.* must be"):
            call(rows(1), sequence=number)
    with tidelake.open(lake.url) as again:
        assert again["c"].writers()["w"].sequence is None


@pytest.mark.parametrize("moved", ["before the first number", "between two numbers"])
def test_a_group_writer_goes_on_where_its_register_joins_another_group(lake, moved):
    a, b, _ = (lake.create(name, SCHEMA, key=["id"]) for name in "abc")
    if moved == "before the first number":
        lake.join(["b", "c"])

    def write(sequence, time):
        writer = lake.group_writer("a", "gw")
        writer.join(["b"])
        upload = b.distributed.uploader(0, tidelake.Frontier.of(1 << 40)).upload
        return writer.write({"b": [upload(at(time, sequence).to_batches())]}, sequence=sequence).already

    assert not write(0, 1_000)
    if moved == "between two numbers":
        lake.leave("a")
        lake.leave("b")
        lake.join(["b", "c"])
    assert write(0, 2_000)
    assert not write(1, 3_000)
    assert contents(b) == {(0, "x"): 1, (1, "x"): 1}
    assert a.writers()["gw"].sequence == 1


@pytest.mark.parametrize("kept", ['{"stored":[]}', '{"stored":["a/held/b/1"]}', '{"tidelake":1}'])
def test_a_content_of_a_user_never_looks_like_the_record_of_a_stream(lake, kept):
    c = lake.create("c", SCHEMA, key=["id"])
    c.append(rows(1), time=0)
    writer, group = c.writer("w"), lake.group_writer("c", "g")
    content = f"x transactions {kept} !!"
    calls = [
        lambda: writer.append_uploaded([], lower=1, upper=2, content=content),
        lambda: writer.append_batches([], lower=1, upper=2, content=content),
        lambda: writer.stage_uploaded([], seal=2, content=content),
        lambda: group.write({}, sequence=0, content=content),
    ]
    for call in calls:
        with pytest.raises(UsageError, match="looks like the record of a stream"):
            call()
    assert writer.last_sequence is None
    assert c.erase([1], reason="r").updates == 1


@pytest.mark.parametrize("rows_held", ["!!! ", "a&LEY"])
def test_a_record_that_cannot_be_read_is_one_clear_error(lake, rows_held):
    """Earlier versions took such a content of a user."""
    c = lake.create("c", SCHEMA, key=["id"])
    c.append(rows(1), time=0)
    content = StreamContent("x", '{"tidelake":1,"stored":[]}', rows_held)
    c.writer("w").append_uploaded([], lower=1, upper=2, content=content)
    with pytest.raises(CorruptionError, match=r"the record of the stream's writer.*cannot be read"):
        c.erase([1], reason="r")
