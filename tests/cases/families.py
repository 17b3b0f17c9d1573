"""Reported families of failures, by number, and the tests that answer them."""

ASSERTED: dict[str, tuple[str, ...]] = {
    "F01 no load": (
        "tests/cases/test_planning_cases.py::test_no_plan_where_there_is_nothing_to_win",
        "tests/controller/test_desks.py::test_heat_without_load_is_no_data_and_not_zero",
        "tests/cli/test_rendering.py::test_without_load_there_is_no_data_and_no_number",
    ),
    "F02 one silent layer": (
        "tests/cases/test_planning_cases.py::test_a_plan_is_sound_and_near_the_best",
        "tests/cases/test_planning_cases.py::test_f02_the_mean_is_over_layers_with_data",
    ),
    "F03 one expert takes everything": (
        "tests/cases/test_planning_cases.py::test_a_plan_is_sound_and_near_the_best",
    ),
    "F04 skew tempts duplicates": (
        "tests/cases/test_planning_cases.py::test_a_plan_is_sound_and_near_the_best",
    ),
    "F05 already balanced": (
        "tests/cases/test_planning_cases.py::test_no_plan_where_there_is_nothing_to_win",
        "tests/controller/test_desks.py::test_rebalance_of_a_balanced_deployment_does_nothing",
    ),
    "F06 noise": ("tests/cases/test_planning_cases.py::test_f06_a_noisy_window_triggers_no_plan",),
    "F07 divisibility": (
        "tests/cases/test_planning_cases.py::"
        "test_a_shape_that_cannot_be_is_refused_with_usable_numbers",
    ),
    "F08 node and group shape": (
        "tests/cases/test_planning_cases.py::"
        "test_f08_uneven_nodes_are_noticed_before_the_first_plan",
    ),
    "F09 slots that cannot be filled": (
        "tests/cases/test_planning_cases.py::"
        "test_a_shape_that_cannot_be_is_refused_with_usable_numbers",
        "tests/cases/test_planning_cases.py::test_a_plan_is_sound_and_near_the_best",
    ),
    "F10 nan": (
        "tests/cases/test_load_cases.py::"
        "test_f10_nan_is_refused_by_rank_layer_and_slot_and_other_ranks_go_on",
        "tests/controller/test_desks.py::"
        "test_a_refused_report_is_counted_and_the_last_good_one_kept",
    ),
    "F11 integer width": (
        "tests/cases/test_load_cases.py::"
        "test_f11_large_counts_neither_wrap_nor_change_the_imbalance",
        "tests/cases/test_load_cases.py::test_f11_an_int32_that_wrapped_is_refused",
    ),
    "F12 group lists": (
        "tests/runtime/test_contracts.py::test_group_lists_survive_the_way_there_and_back",
    ),
    "F13 double counting": (
        "tests/cases/test_load_cases.py::test_f13_tokens_that_peers_report_too_are_counted_once",
    ),
    "F14 padding and dummy steps": (
        "tests/runtime/test_load_counters.py::test_padding_rows_are_not_load",
        "tests/runtime/test_load_counters.py::"
        "test_warm_up_and_profile_steps_compute_and_are_not_load",
        "tests/runtime/test_load_counters.py::test_dummy_steps_are_counted_by_kind_only",
    ),
    "F15 idle rank": (
        "tests/cases/test_load_cases.py::"
        "test_f15_a_rank_that_reports_zeros_is_idle_and_the_window_complete",
    ),
    "F16 ranks out of step": (
        "tests/cases/test_load_cases.py::"
        "test_f16_ranks_out_of_step_are_aligned_and_a_late_joiner_waits_for_a_full_window",
    ),
    "F17 planner raises": (
        "tests/planning/test_draft.py::"
        "test_a_policy_that_fails_is_named_and_nothing_of_its_proposal_is_used",
        "tests/controller/test_desks.py::"
        "test_a_policy_that_fails_is_a_failed_plan_and_nothing_else",
        "tests/controller/test_planner.py::test_f17_a_policy_that_raises_once_costs_one_cycle",
    ),
    "F18 peer dies in a migration": (
        "tests/protocol/test_reported_cases.py::"
        "test_case_f18_a_peer_that_dies_after_it_accepted_leaves_the_old_map_served",
        "tests/agent/test_moving_in_a_group.py::"
        "test_f18_a_round_that_fails_names_the_peer_that_it_failed_with",
        "tests/agent/test_movers.py::"
        "test_a_mover_that_lost_its_peers_raises_a_halt_that_no_audit_clears",
    ),
    "F19 lost ack": (
        "tests/protocol/test_reported_cases.py::"
        "test_case_f19_a_lost_ack_of_a_cutover_is_asked_for_and_repeating_is_harmless",
    ),
    "F20 stale, conflicting, fenced": (
        "tests/protocol/test_reported_cases.py::"
        "test_case_f20_stale_conflicting_and_repeated_numbers_at_a_rank_that_serves_twelve",
    ),
    "F21 the actual map counts": (
        "tests/cases/test_map_cases.py::test_f21_transfers_are_worked_out_from_the_actual_map",
    ),
    "F22 a dry run moves no books": (
        "tests/cases/test_load_cases.py::"
        "test_f22_counts_are_read_with_the_map_that_is_served_not_with_a_plan",
        "tests/controller/test_desks.py::test_a_plan_changes_nothing_until_it_is_applied",
    ),
    "F23 unknown expert": (
        "tests/cases/test_map_cases.py::"
        "test_a_broken_table_is_refused_with_everything_that_is_wrong",
    ),
    "F24 duplicate, missing, ragged": (
        "tests/cases/test_map_cases.py::"
        "test_a_broken_table_is_refused_with_everything_that_is_wrong",
        "tests/cases/test_map_cases.py::test_f24c_a_ragged_table_is_refused",
    ),
    "F25 one bad layer": (
        "tests/cases/test_planning_cases.py::"
        "test_f25_one_bad_layer_is_refused_and_the_prediction_stays_that_of_what_is_served",
    ),
    "F26 one pick for replicated tokens": (
        "tests/domain/test_shares.py::test_replicated_tokens_have_one_table",
        "tests/runtime/test_placement_never_matters.py::"
        "test_any_placement_gives_the_reference_output",
        "tests/runtime/test_mixed_placement.py::test_teams_that_use_different_replicas_are_refused",
    ),
    "F26 replica choice": (
        "tests/runtime/test_exchange.py::test_an_expert_with_two_replicas_counts_once",
        "tests/runtime/test_teams.py::"
        "test_replica_choices_that_differ_in_a_team_are_refused_on_every_rank",
    ),
    "F27 experts, not slots": (
        "tests/cases/test_exchange_cases.py::test_f27_what_the_router_chose_stays_what_it_was",
        "tests/runtime/test_captured_ids.py::test_a_histogram_of_captured_ids_is_what_was_sent",
    ),
    "F28 capture layouts": (
        "tests/cases/test_exchange_cases.py::test_f28_padded_blocks_give_each_rank_its_own_tokens",
        "tests/runtime/test_teams.py::test_teams_get_their_outputs_and_every_token_counts_once",
    ),
    "F29 capture that is empty": (
        "tests/cases/test_exchange_cases.py::test_f29_a_buffer_that_was_never_written_is_no_data",
    ),
    "F30 layer numbering": (
        "tests/cases/test_map_cases.py::test_f30_all_numberings_of_layers_give_the_same_placement",
        "tests/cli/test_map_formats.py::"
        "test_f30_however_layers_are_numbered_the_placement_is_the_same",
    ),
    "F34 every tensor of an expert travels": (
        "tests/runtime/test_formats_move.py::"
        "test_f34_every_tensor_of_every_format_moves_and_outputs_stay",
        "tests/runtime/test_formats_move.py::"
        "test_f34_a_tensor_left_behind_is_seen_by_its_digest_and_in_the_output",
        "tests/runtime/test_formats_move.py::"
        "test_lists_of_a_fused_operator_show_what_slots_hold_after_a_move",
    ),
    "F35 layout and address": (
        "tests/runtime/test_expert_slots.py::test_an_install_changes_the_content_and_no_address",
        "tests/runtime/test_formats_move.py::"
        "test_f34_every_tensor_of_every_format_moves_and_outputs_stay",
    ),
    "F36 cycles": (
        "tests/cases/test_map_cases.py::test_f36_a_cycle_goes_through_one_staging_row_per_rank",
        "tests/agent/test_migration_is_byte_exact.py::"
        "test_every_slot_holds_its_expert_byte_for_byte_after_every_wave",
    ),
    "F38 hot sender": (
        "tests/planning/test_moves.py::"
        "test_a_node_that_holds_the_expert_is_not_sent_it_from_elsewhere",
        "tests/planning/test_rounds.py::"
        "test_who_has_a_choice_goes_around_ranks_that_others_depend_on",
    ),
    "F43 padding slots": (
        "tests/cases/test_load_cases.py::"
        "test_f43_a_slot_declared_empty_gets_no_token_and_is_no_expert",
        "tests/cases/test_map_cases.py::test_f43_a_declared_empty_slot_is_accepted",
    ),
    "F44 engine and controller disagree": (
        "tests/agent/test_vllm_start.py::"
        "test_numbers_of_vllm_our_settings_and_a_map_that_differ_are_all_told",
        "tests/controller/test_machine.py::"
        "test_a_rank_that_disagrees_with_its_group_is_refused_with_both_numbers",
        "tests/controller/test_regrouping.py::"
        "test_f44_an_engine_with_other_redundancy_than_expected_is_refused_with_both_numbers",
    ),
    "F45 looking at a map writes nothing": (
        "tests/cli/test_map_files.py::test_a_sound_file_is_described_and_untouched",
        "tests/cli/test_verbs.py::test_an_export_that_cannot_be_written_leaves_what_was_there",
    ),
    "F46 map does not fit": (
        "tests/cases/test_map_cases.py::"
        "test_f46_a_map_for_other_ranks_is_refused_and_can_be_dealt_out_anew",
        "tests/controller/test_desk_of_maps.py::test_a_map_of_another_rank_count_needs_reshape",
        "tests/controller/test_desk_of_maps.py::test_a_map_that_is_only_tried_is_kept_for_apply",
    ),
    "F47 prefill and decode differ": (
        "tests/cases/test_planning_cases.py::test_a_plan_is_sound_and_near_the_best",
        "tests/cases/test_planning_cases.py::"
        "test_f47_what_is_best_for_one_phase_is_shown_for_the_other",
    ),
    "F48 one definition of balance": (
        "tests/cases/test_planning_cases.py::test_f48_one_definition_of_balance",
    ),
    "F49 cardinality": (
        "tests/controller/test_gauges.py::"
        "test_series_are_bounded_by_layers_and_ranks_whatever_the_experts",
    ),
    "F50 several models": (
        "tests/cases/test_load_cases.py::"
        "test_f50_a_report_changes_only_the_deployment_that_it_is_for",
    ),
    "F51 shared experts in slots": (
        "tests/cases/test_load_cases.py::test_f51_shared_experts_are_not_routed_load",
        "tests/load/test_windows.py::test_folding_keeps_the_total_of_routed_experts",
        "tests/runtime/test_mixed_placement.py::"
        "test_their_load_is_kept_apart_and_every_row_of_it_arrives",
        "tests/agent/test_shared_in_slots.py::"
        "test_a_placement_is_loaded_with_their_slots_and_counts_them_apart",
    ),
    "F52 capacity": (
        "tests/cases/test_exchange_cases.py::test_f52_overflow_is_what_is_beyond_the_capacity",
        "tests/runtime/test_windows.py::"
        "test_a_step_that_does_not_fit_is_found_out_by_every_rank_before_rows_leave",
        "tests/runtime/test_teams.py::test_every_way_gives_the_reference_output",
        "tests/agent/test_shared_in_slots.py::"
        "test_f52_what_a_rank_had_no_place_for_is_told_to_the_controller",
        "tests/runtime/test_mega_moe.py::test_ranks_with_other_sizes_allocate_nothing",
    ),
    "F53 ranks with zero tokens": (
        "tests/agent/test_idle_ranks.py::"
        "test_f53_idle_ranks_issue_the_same_collectives_while_a_wave_is_switched",
        "tests/runtime/test_exchange.py::test_collectives_are_the_same_whatever_a_ranks_tokens_are",
    ),
    "F54 roll back": (
        "tests/controller/test_desks.py::test_rollback_is_a_new_epoch_with_the_old_content",
        "tests/planning/test_draft.py::test_going_there_and_back_restores_every_slot",
    ),
    "F55 dry run": (
        "tests/planning/test_draft.py::"
        "test_f55_what_moves_is_told_by_layer_with_the_seconds_that_it_will_take",
        "tests/controller/test_desks.py::test_a_plan_changes_nothing_until_it_is_applied",
        "tests/controller/test_planner.py::"
        "test_f55_a_dry_run_leaves_a_line_that_says_so_and_nothing_else",
    ),
    "F56 freeze": (
        "tests/controller/test_switches.py::test_a_freeze_ends_by_itself",
        "tests/controller/test_desks.py::"
        "test_a_freeze_outlives_the_controller_and_stops_rebalancing",
    ),
    "F57 restart and two controllers": (
        "tests/controller/test_driver.py::test_a_controller_that_dies_in_mid_wave_is_taken_over",
        "tests/controller/test_driver.py::test_an_older_controller_is_fenced_and_says_so",
        "tests/controller/test_machine_recovery.py::"
        "test_a_controller_without_records_adopts_what_the_ranks_serve",
        "tests/controller/test_planner.py::"
        "test_f57_the_first_plan_waits_for_a_full_window_and_the_next_number_is_ten",
        "tests/soak/test_soak.py::test_no_step_is_wrong_or_missed_whatever_strikes",
    ),
    "F58 long-lived streams": (
        "tests/server/test_server_life.py::test_f58_pings_within_the_limit_keep_an_idle_stream",
        "tests/agent/test_long_lived_streams.py::"
        "test_f58_pings_keep_an_idle_stream_behind_a_proxy_that_ends_idle_ones",
        "tests/agent/test_long_lived_streams.py::"
        "test_f58_a_stream_that_is_ended_for_idleness_is_told_of_and_the_next_one_is_heard",
    ),
    "F61 upgrade without spare NPUs": (
        "tests/deploy/test_upgrades_touch_no_serving_pod.py::"
        "test_the_diff_of_an_upgrade_holds_nothing_of_serving",
        "tests/deploy/kube_walk.py::test_install_upgrade_rollback_uninstall",
    ),
    "F62 health while moving": (
        "tests/cases/test_operation_cases.py::"
        "test_f62_health_is_serving_before_while_and_after_experts_move",
    ),
    "F63 what is not supported is said early": (
        "tests/agent/test_vllm_start.py::test_what_cannot_be_owned_is_known_before_it_is_loaded",
        "tests/vllm/test_declining.py::test_a_model_without_experts_is_refused_before_it_is_loaded",
    ),
    "F64 the same plan every time": (
        "tests/cases/test_planning_cases.py::test_f64_equal_heat_gives_equal_plans",
        "tests/policies/test_conformance.py::test_processes_with_other_hash_seeds_draw_the_same",
    ),
    "F65 folding keeps the total": (
        "tests/cases/test_load_cases.py::test_f65_folding_replicas_keeps_the_total",
    ),
    "F69 take out a chosen rank": (
        "tests/controller/test_draining.py::"
        "test_a_drained_rank_is_emptied_and_what_only_it_held_is_copied_first",
        "tests/controller/test_draining.py::"
        "test_a_rank_is_safe_to_take_out_only_once_nothing_is_left_there",
    ),
    "F70 change little, worst first": (
        "tests/cases/test_planning_cases.py::test_f70_change_little_and_the_worst_layer_first",
    ),
    "F71 does it pay": (
        "tests/cases/test_planning_cases.py::test_f71_a_plan_pays_back_after_so_many_steps",
        "tests/cli/test_analyze.py::test_f71_all_five_numbers_are_said",
    ),
    "F68 the table is applied once": (
        "tests/cases/test_exchange_cases.py::test_f68_the_table_is_applied_once",
    ),
}
