"""Faults known of the MoE pipeline that this one rebuilds, each with the test that would see it."""

import ast
from pathlib import Path

import pytest
import torch

from moe_runtime.runtime import (
    Alone,
    Batch,
    ByGate,
    ExchangeMode,
    MoeRuntime,
    Phase,
    StackShape,
    Step,
    StepKind,
    SyntheticModel,
)
from tests.runtime.stacks import kimi_like, random_layout, tokens

ROOT = Path(__file__).resolve().parents[2]

SEEN_BY: dict[str, str] = {
    "the factor is applied twice, or on one path only": (
        "test_routing_kinds.py::test_weights_are_linear_in_the_factor_on_every_path"
    ),
    "a correction leaks into weights": (
        "test_selector.py::test_a_correction_chooses_and_never_weighs"
    ),
    "a dropped group's masked score beats a negative one": (
        "test_selector.py::test_a_negative_score_in_a_kept_group_beats_every_dropped_group"
    ),
    "a group is worth its best expert where a correction wants the two best": (
        "test_selector.py::test_with_a_correction_a_group_is_worth_its_two_best_experts"
    ),
    "the fused path's legality follows from the width of tokens": (
        "test_fused_gating.py::test_the_width_of_the_tokens_has_no_say"
    ),
    "the router reads quantised tokens": (
        "test_chosen_by_the_model.py::"
        "test_a_models_own_function_reads_what_the_router_reads_and_is_scaled_once"
    ),
    "slots index a map of experts": (
        "test_placement_never_matters.py::test_any_placement_gives_the_reference_output"
    ),
    "a pair of nobody reads a row that was never written": (
        "test_cpu_backend.py::test_a_pair_without_a_row_counts_nothing_even_beside_nan"
    ),
    "a weight on the input counts twice": (
        "test_routing_kinds.py::test_a_weight_on_the_input_is_applied_there_and_nowhere_else"
    ),
    "a weight on the input is ignored in some modes": (
        "test_routings_on_ranks.py::"
        "test_every_kind_with_every_activation_gives_the_reference_output"
    ),
    "tables on the device stay those from before a move": (
        "test_placement_never_matters.py::"
        "test_placements_change_under_real_ranks_and_outputs_do_not"
    ),
    "only the first of an expert's scales is read": (
        "test_weight_formats.py::test_every_tensor_of_a_format_is_read"
    ),
    "a branch drops limit, alpha, beta or biases": (
        "test_capabilities.py::test_everything_that_speaks_against_it_is_named_at_once"
    ),
    "an unknown activation becomes SwiGLU": (
        "test_activations.py::test_an_unknown_name_is_refused_and_never_becomes_swiglu"
    ),
    "shared experts read the latent, or lose their gate when quantised": (
        "test_shared_experts.py::"
        "test_shared_experts_of_every_format_are_gated_and_read_the_full_width"
    ),
    "zero experts are sent, or weigh a token twice": (
        "test_routing_kinds.py::"
        "test_pairs_of_zero_experts_are_not_sent_and_weigh_the_token_itself_once"
    ),
    "a fused mode is chosen for a format that it has not": (
        "test_choosing.py::test_an_override_that_cannot_serve_is_refused_with_reasons"
    ),
    "the fused operator drops a limit": (
        "test_capabilities.py::"
        "test_the_fused_operator_for_unquantised_weights_is_not_trusted_with_a_limit"
    ),
    "rows beyond a fused exchange's places are dropped": (
        "test_windows.py::"
        "test_a_step_that_does_not_fit_is_found_out_by_every_rank_before_rows_leave"
    ),
    "token ids are those of other rows": (
        "test_chosen_by_the_model.py::test_ids_of_other_rows_are_refused"
    ),
    "adapters of a layer stay behind when a step fails": (
        "test_lora.py::test_a_step_that_fails_leaves_no_adapter_behind"
    ),
    "sizes are read before their copy is done": (
        "test_order_of_events.py::test_no_host_reads_while_counts_are_on_their_way"
    ),
}


@pytest.mark.parametrize("pointer", sorted(set(SEEN_BY.values())))
def test_every_fault_has_a_test(pointer: str) -> None:
    path, _, name = pointer.partition("::")
    tree = ast.parse((ROOT / "tests/runtime" / path).read_text(encoding="utf-8"))
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("mode", ExchangeMode)
def test_two_models_in_one_process_keep_their_own_shapes(mode: ExchangeMode) -> None:
    """What the last layer that was set up needs must not serve the others."""
    shapes = (kimi_like(), kimi_like(num_layers=1, num_experts=6, top_k=2, width=32))
    alone = [_serve(_runtime(shape, mode), shape) for shape in shapes]
    main, draft = (_runtime(shape, mode) for shape in shapes)
    again = [_serve(main, shapes[0]), _serve(draft, shapes[1]), _serve(main, shapes[0])]
    assert torch.equal(again[0], alone[0])
    assert torch.equal(again[1], alone[1])
    assert torch.equal(again[2], alone[0])


def _runtime(shape: StackShape, mode: ExchangeMode) -> MoeRuntime:
    start = random_layout(shape, (10,), seed=3).start(0)
    return MoeRuntime(SyntheticModel(shape), start, peers=Alone(), mode=mode)


def _serve(runtime: MoeRuntime, shape: StackShape) -> torch.Tensor:
    given = Batch.of(tokens(shape, 5, seed=1), ByGate(), Step(StepKind.REAL, Phase.DECODE))
    return runtime.forward(given)
