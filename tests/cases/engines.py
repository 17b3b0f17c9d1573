"""Which test answers which reported family, for those of engines: layers, ranks and loading."""

ENGINES: dict[str, tuple[str, ...]] = {
    "F13 in vLLM, DP2 x TP2 among others": (
        "tests/vllm/test_same_answers.py::test_answers_stay_the_same_through_placements",
        "tests/runtime/test_vllm_owned.py::"
        "test_an_engine_that_gives_each_rank_a_piece_tells_tokens_from_padding",
    ),
    "F15 in vLLM, engines idle in turns": (
        "tests/vllm/test_server.py::test_every_request_is_answered_as_vllm_alone_answers_it",
    ),
    "F26 in vLLM": (
        "tests/runtime/test_vllm_front_door.py::"
        "test_a_replicated_token_is_computed_once_over_all_ranks",
    ),
    "F31 draft models": (
        "tests/vllm/test_drafting.py::test_a_draft_model_is_balanced_apart_from_its_target",
        "tests/agent/test_vllm_start.py::test_a_draft_model_takes_nothing_of_its_targets_map",
    ),
    "F32 pipeline stages": (
        "tests/vllm/test_stages.py::test_stages_are_balanced_apart_and_answers_stay_the_same",
        "tests/vllm/test_stages.py::test_a_stage_without_experts_is_left_alone",
        "tests/agent/test_vllm_start.py::test_a_pipeline_stage_takes_its_own_layers_of_a_file",
    ),
    "F33 rank numbering": (
        "tests/agent/test_moving_in_a_group.py::"
        "test_an_order_between_local_ranks_is_carried_out_between_those_of_the_group",
    ),
    "F39 replica slots have weights": (
        "tests/vllm/test_same_answers.py::test_answers_stay_the_same_through_placements",
        "tests/runtime/test_placement_never_matters.py::"
        "test_any_placement_gives_the_reference_output",
    ),
    "F40 other weights after a rebalance": (
        "tests/runtime/test_vllm_owned.py::test_new_weights_go_to_where_their_experts_are",
        "tests/agent/test_vllm_attachment.py::"
        "test_a_reload_ends_the_order_under_way_says_so_and_keeps_the_placement",
        "tests/vllm/test_same_answers.py::test_answers_stay_the_same_through_placements",
    ),
    "F44 in vLLM": (
        "tests/runtime/test_vllm_declining.py::"
        "test_slots_that_ranks_cannot_share_evenly_are_refused_with_all_numbers",
        "tests/runtime/test_vllm_declining.py::"
        "test_two_balancers_are_refused_with_the_redundancy_of_both",
    ),
    "F53 in vLLM, dummy batches": (
        "tests/vllm/test_server.py::test_every_request_is_answered_as_vllm_alone_answers_it",
    ),
    "F62 in vLLM": (
        "tests/vllm/test_server.py::test_every_request_is_answered_as_vllm_alone_answers_it",
    ),
}
