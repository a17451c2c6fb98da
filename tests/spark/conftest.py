"""What tests of Spark share, beside the session."""

import os
import tempfile
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


LEFT_TO_THE_SOAK = {
    "what is far and what is apart is tried with a cluster by test_apart.py": (
        ("test_matrix.py", "test_dotgov_is_the_truth_by_every_path", "cluster-10"),
    ),
    "a kill at a random moment of the other interface, or of the other end, is in the full tier": (
        ("test_kill.py", "test_killed_at_the_append", "*"),
        ("test_stream_read_kill.py", "test_killed_at_random_moments", ""),
        ("test_format_holds.py", "test_holds_end_with_the_driver", "leave"),
    ),
    "arguments are checked in the driver before any task runs: the fast tier checks them there": (
        ("test_changelogs.py", "test_messages_are_not_taken_for_rows", "tasks-*"),
        ("test_changelogs.py", "test_the_cdc_of_hudi_is_checked", "tasks"),
        ("test_debezium_samples.py", "test_a_frame_that_holds_no_change_events_is_refused", "tasks-*"),
        ("test_debezium_samples.py", "test_columns_are_checked_as_lines_are", "tasks"),
        ("test_debezium_samples.py", "test_options_are_checked_when_the_envelope_is_made", "tasks-*"),
        ("test_exactly_once.py", "test_columns_are_checked_before_a_task_runs", "tasks-*"),
        ("test_exactly_once.py", "test_outside_of_a_stream_the_sink_says_what_to_use", "tasks"),
        ("test_ingest.py", "test_options_are_checked", "tasks"),
        ("test_ingest.py", "test_a_directory_that_is_not_there_is_named", "tasks"),
        ("test_ingest.py", "test_tuple_times_are_refused", "tasks"),
        ("test_upsert.py", "test_frames_that_do_not_fit_are_refused_before_anything_runs", "tasks-*"),
        ("test_upsert.py", "test_envelopes_are_known_by_name", "tasks"),
        ("test_write.py", "test_a_closed_collection_is_refused", "tasks"),
        ("test_write.py", "test_a_token_is_a_short_text", "tasks-*"),
        ("test_write.py", "test_bad_arguments_are_refused_before_anything_runs", "tasks"),
        ("test_write.py", "test_columns_for_times_are_checked_before_anything_runs", "tasks"),
        ("test_write.py", "test_envelopes_are_known_by_name_and_take_only_their_options", "tasks"),
    ),
    "the driver and the tasks read files in the same way: the fast tier reads them in the driver": (
        ("test_changelogs.py", "test_files_of_maxwell_are_taken_and_bad_lines_kept", "tasks-events"),
        ("test_changelogs.py", "test_*_through_the_format", "tasks"),
        ("test_debezium_samples.py", "test_samples_are_read", "tasks-*"),
        ("test_ingest.py", "test_a_directory_is_read_by_its_very_name", "tasks"),
        ("test_ingest.py", "test_changes_can_be_parsed_as_a_frame", "tasks"),
        ("test_ingest.py", "test_files_a_year_apart_are_all_taken", "tasks"),
        ("test_ingest.py", "test_text_that_is_not_utf8_is_refused", "tasks"),
        ("test_ingest_files.py", "test_a_column_may_be_called_as_what_spark_tells_of_files", "tasks-*"),
        ("test_ingest_files.py", "test_an_empty_directory_gives_no_columns", "tasks-*"),
        ("test_ingest_files.py", "test_columns_that_came_later_may_be_missing", "tasks-stored"),
        ("test_ingest_files.py", "test_csv_means_what_it_means_on_the_command_line", "tasks"),
        ("test_ingest_files.py", "test_csv_of_another_shape_is_refused_by_name", "tasks-*"),
        ("test_ingest_files.py", "test_decimals_in_bytes_without_a_schema_need_an_encoding", "tasks"),
        ("test_ingest_files.py", "test_keys_and_offsets_of_messages_are_used", "tasks"),
        ("test_ingest_files.py", "test_rejects_are_not_kept_where_they_would_be_taken_next", "tasks"),
        ("test_ingest_files.py", "test_rejects_stay_when_a_query_takes_over*", "tasks-*"),
        ("test_ingest_files.py", "test_rejects_without_a_number_are_named_by_what_they_are", "tasks"),
        ("test_ingest_files.py", "test_rows_of_files_are_taken_once", "tasks-csv"),
        ("test_ingest_files.py", "test_rows_that_do_not_fit_are_refused_by_name", "tasks-*"),
        ("test_ingest_files.py", "test_what_orders_events_is_read_from_them", "tasks"),
    ),
    "each way is tried with one of both interfaces, and each interface with one of both ways": (
        *(
            ("test_exactly_once.py", test, which)
            for which in ("tasks-format*", "driver-helper*")
            for test in (
                "test_a_batch_that_comes_again_with_other_rows_is_known_by_when_it_was_planned",
                "test_a_lost_checkpoint_is_refused_and_can_be_taken_over",
                "test_a_query_with_all_its_rows_replaces_the_contents",
                "test_a_second_run_takes_only_what_is_new",
                "test_a_stream_of_updates_may_take_rows_away",
                "test_an_empty_micro_batch_moves_no_time_and_is_recorded",
                "test_an_older_checkpoint_is_refused_rather_than_losing_rows",
                "test_late_rows_stop_the_stream_or_are_advanced",
                "test_rows_that_do_not_fit_stop_the_stream_with_a_reason",
            )
        ),
        ("test_exactly_once.py", "test_a_micro_batch_is_one_commit", "tasks-helper"),
        ("test_exactly_once.py", "test_a_stream_of_upserts_takes_old_rows_away", "tasks-helper"),
    ),
    "one age of a checkpoint is tried with each interface": (
        ("test_exactly_once.py", "test_an_older_checkpoint_is_refused*", "tasks-helper-2"),
        ("test_exactly_once.py", "test_an_older_checkpoint_is_refused*", "driver-format-1"),
    ),
    "tasks do it in the full tier; the driver stages other frames there": (
        *(
            ("test_spark_stage.py", test, "driver*")
            for test in (
                "test_a_closed_time_refuses_the_whole_frame",
                "test_a_driver_that_dies_between_the_two_stages_of_a_batch_does_the_second_when_it_is_back",
                "test_a_micro_batch_is_staged_and_seals_at_the_watermark_in_one_commit",
                "test_a_sink_that_seals_goes_to_another_process",
                "test_a_token_stages_once",
                "test_an_empty_micro_batch_closes_nothing",
                "test_dataframes_show_what_is_staged_on_request",
                "test_delays_of_clocks_are_spans",
                "test_frames_with_tuples_are_staged",
                "test_late_rows_are_staged_in_another_collection",
                "test_rows_whose_times_others_close_between_look_and_commit_go_beside",
                "test_rows_without_times_of_their_own_are_refused",
            )
        ),
        ("test_debezium_samples.py", "test_samples_become_the_history_*", "driver-*stored*"),
        ("test_debezium_samples.py", "test_samples_become_the_history_*", "driver-schema_off-events*"),
        ("test_debezium_samples.py", "test_the_format_writes_change_events", "driver-text"),
        ("test_upsert.py", "test_full_dumps_leave_exactly_their_rows", "driver"),
    ),
    "what the driver does alone is the same if tasks could do it: the fast tier tries it": (
        ("test_exactly_once.py", "test_a_checkpoint_says_when_a_batch_was_planned*", "tasks"),
        ("test_exactly_once.py", "test_a_sink_can_be_sent_to_another_process", "tasks"),
        ("test_ingest.py", "test_an_older_checkpoint_is_refused_rather_than_losing_new_files", "tasks"),
        ("test_ingest.py", "test_what_the_callback_raises_comes_out", "tasks"),
        ("test_ingest.py", "test_only_tombstones_still_count_as_a_batch", "tasks"),
        ("test_upsert.py", "test_a_dump_is_compared_in_this_process_if_there_is_no_session", "tasks"),
        ("test_write.py", "test_the_last_time_is_not_closed_by_accident", "tasks"),
    ),
    "tasks do it in the full tier; the fast tier has no time for the driver's streams as well": (
        *(
            ("test_exactly_once.py", test, "driver*")
            for test in (
                "test_a_fenced_stream_stops",
                "test_a_function_may_try_again_after_an_answer_got_lost",
                "test_a_sink_that_is_sent_to_another_process_goes_on_with_its_collection",
                "test_only_the_last_batch_may_come_again_and_only_as_it_was",
                "test_sinks_with_names_of_their_own_share_a_micro_batch",
            )
        ),
        *(
            ("test_ingest.py", test, "driver")
            for test in (
                "test_a_checkpoint_that_lost_its_last_commit_goes_on",
                "test_a_fenced_ingest_stops",
                "test_a_lost_checkpoint_is_refused_and_can_be_taken_over",
                "test_a_second_run_takes_only_what_is_new",
                "test_late_events_are_refused_or_advanced",
                "test_other_writers_of_the_collection_do_no_harm",
            )
        ),
        *(
            ("test_ingest_files.py", test, "driver")
            for test in (
                "test_a_batch_that_is_done_again_keeps_its_rejects_once",
                "test_bad_lines_are_kept_or_refused_where_rows_are_looked_up",
                "test_lines_are_numbered_over_batches_and_files",
                "test_more_rejects_than_a_few_stop_the_ingest",
                "test_nothing_is_appended_when_rejects_cannot_be_kept",
                "test_rejects_of_an_attempt_that_failed_go_when_the_lines_were_mended",
                "test_rows_with_counts_and_new_rows_of_keys_are_taken",
            )
        ),
        *(
            ("test_upsert.py", test, "driver")
            for test in (
                "test_a_dump_is_compared_with_what_another_writer_commits_while_it_is_stored",
                "test_a_stream_of_upserts_is_written_once",
                "test_events_that_move_to_a_later_time_keep_their_order",
                "test_two_drivers_at_once_lose_no_row",
            )
        ),
        *(
            ("test_write.py", test, "driver")
            for test in (
                "test_a_token_counts_only_once_its_rows_are_in",
                "test_of_two_writes_under_one_token_the_later_one_is_in",
                "test_times_that_another_writer_closes_are_refused",
                "test_tuple_times_are_written_between_lower_and_upper",
            )
        ),
        ("test_debezium_samples.py", "test_late_events_advance_to_the_upper*", "driver"),
        ("test_exactly_once.py", "test_a_batch_that_is_in_and_not_in_the_checkpoint*", "driver-helper"),
        ("test_exactly_once.py", "test_a_batch_that_is_in_and_not_in_the_checkpoint*", "tasks-format"),
        ("test_exactly_once.py", "test_a_micro_batch_is_one_commit", "driver-format"),
        ("test_exactly_once.py", "test_a_stream_of_upserts_takes_old_rows_away", "driver-format"),
        ("test_upsert.py", "test_upserts_of_frames_leave_what_a_dictionary_holds", "driver-tiny"),
    ),
    "another case of the same test does as much": (
        ("test_backfill.py", "test_a_history_is_one_commit_of_key_ranges_that_do_not_overlap", "None"),
        ("test_debezium_real_data.py", "test_every_state_of_a_real_table", "*-dotgov-*"),
        ("test_debezium_real_data.py", "test_every_state_of_a_real_table", "driver-sp500-stored"),
        ("test_debezium_real_data.py", "test_every_state_of_a_real_table", "tasks-sp500-events"),
        ("test_debezium_samples.py", "test_a_frame_of_change_events_is_written", "*-schema_off-columns"),
        ("test_debezium_samples.py", "test_a_frame_of_change_events_is_written", "*-key_only-text"),
        ("test_debezium_samples.py", "test_samples_are_read", "driver-False-*"),
        ("test_debezium_samples.py", "test_samples_become_the_history_*", "tasks-schema_off*"),
        ("test_debezium_samples.py", "test_the_format_writes_change_events", "tasks-columns"),
        ("test_exactly_once.py", "test_a_second_write_in_one_micro_batch_is_not*", "*False"),
        ("test_export.py", "test_a_format_that_is_not_installed_is_named_with_its_package", "[oa]*"),
        ("test_export.py", "test_a_lake_is_not_exported_over", "delta-*"),
        ("test_format.py", "test_reads_equal_the_oracle_before_and_after_a_merge", "1"),
        ("test_frames.py", "test_reads_equal_the_oracle_before_and_after_a_merge", "1"),
        ("test_ingest_files.py", "test_a_column_may_be_called_as_what_spark_tells_of_files", "*-parquet"),
        ("test_ingest_files.py", "test_rejects_stay_when_a_query_takes_over*", "driver-lines0-after1"),
        ("test_ingest_files.py", "test_rejects_stay_when_a_query_takes_over*", "driver-lines1-after0"),
        ("test_sink.py", "test_a_write_goes_on_with_its_collection_when_names_change", "False-*"),
        ("test_spark_groups.py", "test_micro_batches_come_in_once", "None"),
        ("test_spark_page.py", "test_the_cluster_of_the_page_runs_its_example", ""),
        ("test_spark_stage.py", "test_a_driver_that_dies_between*", "tasks-False"),
        ("test_stream_read.py", "test_triggers_give_a_snapshot_and_every_update_once", "[12]"),
        ("test_upsert.py", "test_upserts_of_frames_leave_what_a_dictionary_holds", "tasks-inline"),
        ("test_write.py", "test_timestamps_are_times_of_a_clock", "tasks-us-*"),
    ),
}
"""Tests that the fast and the full tier leave to the soak, by the reason: a file, a name, and parameters."""


def left_to_the_soak(item: pytest.Function) -> bool:
    """Whether the list has a test. One without parameters has empty ones."""
    which = item.callspec.id if hasattr(item, "callspec") else ""
    return any(
        item.path.name == file and fnmatchcase(item.originalname, test) and fnmatchcase(which, params)
        for cases in LEFT_TO_THE_SOAK.values()
        for file, test, params in cases
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE not in item.path.parents:
            continue
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
        if isinstance(item, pytest.Function) and left_to_the_soak(item):
            item.add_marker(pytest.mark.soak)


@pytest.fixture(params=[pytest.param("tasks", marks=pytest.mark.full), "driver"])
def both_ways(request: pytest.FixtureRequest, spark: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Lets tasks do the work of every write, then the driver; which of them it is."""
    from tidelake.spark import tasks

    # Frames that are made of Python's values are of unknown size, which is left to tasks.
    monkeypatch.setattr(tasks, "_UNKNOWN_BYTES", 2**64)
    most = {"tasks": "0", "driver": str(2**63)}[request.param]
    spark.conf.set("spark.tidelake.driverBytesMax", most)
    yield request.param
    spark.conf.unset("spark.tidelake.driverBytesMax")


@pytest.fixture
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cuts reads and merges of a handful of rows into several tasks, and leaves them to the workers."""
    from tidelake.shard.runs import plan
    from tidelake.spark.reading import frames

    monkeypatch.setattr(frames, "_SMALL_ROWS", -1)
    monkeypatch.setattr(plan, "_TASK_BYTES_MIN", 1)


@pytest.fixture
def by_value(request: pytest.FixtureRequest) -> Iterator[None]:
    """Sends what the test module defines to the workers by value: they cannot import tests."""
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(request.module)
    yield
    cloudpickle.unregister_pickle_by_value(request.module)


@pytest.fixture
def killed_jvms(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary directory for the JVMs that a test starts in other processes, which it kills.

    A JVM that is killed does not clean up, and knows no TMPDIR. It puts sockets there, whose paths must be
    short: pytest's own directories are not.
    """
    with tempfile.TemporaryDirectory(prefix="killed-") as folder:
        there = os.environ.get("JDK_JAVA_OPTIONS", "")
        monkeypatch.setenv("JDK_JAVA_OPTIONS", f"{there} -Djava.io.tmpdir={folder}".strip())
        yield Path(folder)
