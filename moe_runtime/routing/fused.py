"""Whether a backend's fused gating may be used, and if not, why.

The limits are those of the kernels behind npu_moe_gating_top_k. All of them follow from the
settings; the width of the tokens, which vllm-ascend asks, has no say.
"""

from moe_runtime.contracts.gating import Scoring, SelectorSettings

__all__ = ["refusals"]

_MOST_EXPERTS = 2048
_LANE = 32
"""Each group is padded to a multiple of this many experts."""


def refusals(settings: SelectorSettings, *, corrected: bool) -> tuple[str, ...]:
    """Return every reason against the fused gating; none means that it is legal.

    corrected    whether a correction bias takes part

    >>> refusals(SelectorSettings(num_experts=896, top_k=16, scoring=Scoring.SIGMOID),
    ...          corrected=True)
    ()
    """
    size = settings.num_experts // settings.num_groups
    padded = settings.num_groups * -(-size // _LANE) * _LANE
    checks = (
        (
            not settings.renormalise and settings.scoring is not Scoring.SOFTMAX,
            f"the kernel always normalises {settings.scoring.value} weights",
        ),
        (
            settings.num_experts > _MOST_EXPERTS,
            f"{settings.num_experts} experts, the kernel takes {_MOST_EXPERTS}",
        ),
        (
            settings.num_experts <= _MOST_EXPERTS < padded,
            f"{settings.num_groups} groups of {size} experts, padded to {_LANE} each, make "
            f"{padded}; the kernel takes {_MOST_EXPERTS}",
        ),
        (
            corrected and settings.num_groups > 1 and size < 2,
            "with a correction the kernel judges groups by two experts, and they hold one",
        ),
        (
            settings.scoring is Scoring.SQRT_SOFTPLUS and settings.num_groups > 1,
            "the kernel scores by sqrtsoftplus only without groups",
        ),
    )
    return tuple(reason for is_against, reason in checks if is_against)
