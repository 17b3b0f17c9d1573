"""What the step side of an engine may hand to the hook."""

from typing import cast

import pytest

from moe_runtime.runtime import StepKind as KindOfTheRuntime
from worker_agent.agent.hook import HookParts, StepHook
from worker_agent.ports.engine import StepKind


@pytest.mark.parametrize("kind", [KindOfTheRuntime.REAL, 0, "real", None])
def test_a_kind_of_another_type_is_refused_and_not_taken_for_a_step_that_is_not_real(
    kind: object,
) -> None:
    """The time of real steps would go uncounted."""
    hook = StepHook(cast("HookParts", None), close_within_s=1.0)
    with pytest.raises(TypeError, match=r"expected a StepKind of worker_agent\.ports\.engine"):
        hook.after_step(cast("StepKind", kind))
