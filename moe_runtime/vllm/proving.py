"""That every MoE layer of a built model is ours, and that they are alike.

A module that bound the factory before it was replaced makes layers past us, as does a runtime that
runs a model's weights by itself. Both are refused: a model is ours whole or not at all.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol, cast

from torch import Tensor

from moe_runtime.vllm import seams
from moe_runtime.vllm.errors import CannotOwn
from moe_runtime.vllm.factory import FactoryTaken, early_bindings
from moe_runtime.vllm.formats import weights_of
from moe_runtime.vllm.mixins import RunnerMixin
from moe_runtime.vllm.seams import Runner

__all__ = ["Model", "require_all_ours", "require_none_late"]


class Model(Protocol):
    """A loaded model: an nn.Module."""

    def named_modules(self) -> Iterable[tuple[str, object]]:
        """Yield every module with its name."""
        ...


def require_none_late(taken: FactoryTaken) -> None:
    """Raise CannotOwn if a module holds the original factory by its name, before it is used."""
    if late := early_bindings(taken.name, taken.original, ()):
        raise CannotOwn(
            "the model",
            [f"{', '.join(late)} bound {taken.name} before the plugin came, and passes us by"],
        )


def require_all_ours(model: Model, taken: FactoryTaken) -> list[Runner]:
    """Return the model's MoE layers in order; raise CannotOwn unless each of them is ours."""
    base = seams.module("runner.moe_runner").MoERunner
    found = [(name, module) for name, module in model.named_modules() if isinstance(module, base)]
    strange = [name for name, module in found if not isinstance(module, RunnerMixin)]
    if strange:
        makers = sorted({type(module).__module__ for name, module in found if name in strange})
        raise CannotOwn(
            "the model",
            [
                f"its MoE layers {', '.join(strange)}, of {', '.join(makers)}, were not made by "
                f"the replaced {taken.name}"
            ],
        )
    if not found:
        raise CannotOwn(
            "the model", ["it has no MoE layer that vLLM's factory made, so no expert can be moved"]
        )
    runners = [cast("Runner", module) for _, module in found]
    _require_alike(runners)
    return runners


def _require_alike(runners: Sequence[Runner]) -> None:
    """Raise CannotOwn unless all layers have as many slots and experts of one shape."""

    def shape_of(runner: Runner) -> str:
        experts = runner.routed_experts
        config = experts.moe_config
        return (
            f"{config.num_logical_experts} experts in {config.num_experts} slots, top "
            f"{experts.top_k}, {_shapes(weights_of(experts).named())}"
        )

    odd = {shape_of(runner): runner.layer_name for runner in reversed(runners)}
    if len(odd) > 1:
        told = [f"{name} has {shape}" for shape, name in odd.items()]
        raise CannotOwn("the model", ["its MoE layers differ", *told])


def _shapes(stacks: dict[str, Tensor]) -> str:
    return ", ".join(f"{name} {tuple(t.shape[1:])} {t.dtype}" for name, t in stacks.items())
