"""Further families of reports, mostly about trust, each with the tests that answer it."""

TRUSTED: dict[str, tuple[str, ...]] = {
    "F37 memory budget": (
        "tests/cases/test_trust_cases.py::"
        "test_f37_ten_receives_of_44_mib_within_200_mib_come_in_rounds_of_four_four_and_two",
    ),
    "F41 scale out and in": (
        "tests/cases/test_trust_cases.py::"
        "test_f41_a_group_that_grows_has_a_map_of_its_own_and_one_that_shrinks_too_far_is_refused",
        "tests/controller/test_regrouping.py::test_a_group_that_grew_is_welcomed_served_and_recovered",
        "tests/controller/test_regrouping.py::"
        "test_f41_balancing_begins_anew_after_a_full_window_with_the_last_load_as_prior",
    ),
    "F42 a rank dies": (
        "tests/controller/test_rollcall.py::"
        "test_f42_a_rank_that_dies_leaves_a_gap_only_where_it_held_the_only_replica",
        "tests/controller/test_draining.py::test_a_drained_rank_that_is_away_is_named_as_no_source",
        "tests/runtime/test_serving_on.py::"
        "test_f42_the_ranks_that_live_serve_right_once_the_lost_expert_is_loaded",
        "tests/agent/test_serving_on.py::"
        "test_f42_a_rank_killed_in_mid_step_ends_that_step_and_not_the_group",
        "tests/system/test_a_rank_dies.py::"
        "test_f42_the_group_serves_on_without_the_rank_and_the_next_plan_settles",
    ),
    "F59 back-pressure": (
        "tests/cases/test_trust_cases.py::"
        "test_f59_counts_of_a_minute_without_a_controller_arrive_whole",
        "tests/agent/test_reporter.py::"
        "test_memory_is_bounded_while_the_controller_is_away_and_the_newest_is_kept",
    ),
    "F60 identity and roles": (
        "tests/server/test_locked_doors.py::test_f60_a_rank_cannot_speak_for_another",
        "tests/server/test_locked_doors.py::test_a_viewer_reads_and_changes_nothing",
    ),
    "F67 leftovers of a dead run": (
        "tests/host/test_leftovers.py::"
        "test_f67_a_killed_controllers_port_store_and_locks_are_used_again",
        "tests/host/test_ray_actor.py::test_a_taken_port_is_a_loud_failure_and_no_actor_is_left",
        "tests/cli/test_recording.py::"
        "test_a_recorder_that_was_killed_leaves_a_whole_file_and_no_lock",
    ),
    "F66 nothing grows without limit": (
        "tests/load/test_nothing_grows.py::"
        "test_f66_reports_in_any_number_leave_no_more_behind_than_full_windows",
        "tests/server/test_limits.py::"
        "test_f66_a_flood_of_a_whole_deployment_takes_no_more_than_is_to_spare",
        "tests/server/test_limits.py::test_what_a_stream_may_not_say_yet_waits_at_its_sender",
        "tests/server/test_rank_streams_end.py::"
        "test_a_rank_that_takes_no_words_keeps_none_from_another",
        "tests/controller/test_planner.py::test_f66_idle_cycles_and_dry_runs_keep_nothing_for_ever",
        "tests/store/test_store_fencing.py::test_history_is_newest_first_and_bounded",
    ),
}
