"""Each known way in which exchanges of tokens go wrong has a test that provokes it."""

import pytest

from tests.cases.test_every_family_is_answered import functions_of

RUNTIME = "tests/runtime/"
PROVOKED: dict[str, tuple[str, ...]] = {
    "a mask that does not fit its block": (
        "test_windows.py::test_a_mask_that_does_not_fit_its_block_is_refused",
        "test_windows.py::test_more_rows_than_the_block_or_a_ranks_part_are_refused",
    ),
    "padding that is read": (
        "test_stack.py::test_padding_rows_come_back_as_they_were_and_touch_nothing",
        "test_quantised_on_every_way.py::"
        "test_rows_that_mc2_brings_are_the_senders_and_nan_beyond_the_counts",
    ),
    "a team that slices different tokens": (
        "test_teams.py::test_a_team_that_announces_different_tokens_is_refused_on_every_rank",
    ),
    "a stale dispatch table": (
        "test_rows_that_travel.py::"
        "test_a_table_that_is_stale_at_another_rank_is_found_out_where_the_rows_arrive",
    ),
    "captured ids of an unknown layout": (
        "test_captured_ids.py::test_ids_of_another_layout_are_refused_and_not_guessed_at",
        "test_captured_ids.py::test_ids_that_no_router_could_have_chosen_are_no_data",
    ),
    "buffers that ranks size differently": (
        "test_teams.py::"
        "test_settings_that_differ_between_ranks_are_refused_before_anything_is_sent",
    ),
    "ranks that choose different modes or formats": (
        "test_ranks_that_differ.py::test_what_differs_between_ranks_is_refused_when_they_are_built",
    ),
    "a buffer that overflows": (
        "test_windows.py::"
        "test_a_step_that_does_not_fit_is_found_out_by_every_rank_before_rows_leave",
    ),
    "one model's settings that serve another": (
        "test_two_models.py::test_two_shapes_serve_in_turn_each_in_a_mode_of_its_own",
    ),
    "what a failed step leaves behind": (
        "test_two_models.py::test_a_step_that_fails_on_a_rank_alone_leaves_nothing_for_the_next",
        "test_lost_groups.py::test_a_step_that_one_rank_breaks_off_is_never_ended_by_its_next",
    ),
    "a count that is read while it is on its way": (
        "test_order_of_events.py::test_no_host_reads_while_counts_are_on_their_way",
    ),
    "a peer that never comes": (
        "test_group_peers.py::test_a_collective_that_a_peer_never_enters_ends_at_its_deadline",
    ),
}


@pytest.mark.parametrize("pointer", sorted({p for points in PROVOKED.values() for p in points}))
def test_every_failure_is_provoked_by_a_test(pointer: str) -> None:
    path, _, name = pointer.partition("::")
    assert name in functions_of(RUNTIME + path)
