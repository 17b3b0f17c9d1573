"""Why vLLM's layers are not taken.

MoeError
  PluginError
    UnfitEngine     vLLM itself is not as the plugin needs it
    CannotOwn       this model, or how it is to be served, is not
    Contradiction   what was asked for contradicts itself, whatever the model is
"""

from collections.abc import Sequence

from moe_runtime.contracts.errors import MoeError

__all__ = ["CannotOwn", "Contradiction", "PluginError", "UnfitEngine"]


class PluginError(MoeError):
    """Root of what the plugin refuses."""

    code = "plugin_error"


class UnfitEngine(PluginError):
    """Names of vLLM that the plugin relies on are missing, or mean something else."""

    code = "unfit_engine"

    def __init__(self, version: str, differences: Sequence[str]) -> None:
        self.differences = tuple(differences)
        super().__init__(
            f"vLLM {version} is not as this plugin needs it: {'; '.join(differences)}; nothing was "
            "replaced and the engine does not start; set EPLB_VLLM_ENABLED=0 to serve without it"
        )


class CannotOwn(PluginError):
    """MoE layers that the runtime cannot compute, or that it was not given."""

    code = "cannot_own"

    def __init__(self, what: str, reasons: Sequence[str]) -> None:
        self.reasons = tuple(reasons)
        super().__init__(
            f"{what} cannot run on the EPLB runtime: {'; '.join(reasons)}; the model is not served "
            "(EPLB_VLLM_UNOWNED=serve serves it on vLLM alone, without placements)"
        )


class Contradiction(PluginError):
    """Settings, vLLM's own and a map file's among them, that cannot all be kept."""

    code = "contradiction"

    def __init__(self, what: str, reasons: Sequence[str]) -> None:
        self.reasons = tuple(reasons)
        super().__init__(f"{what}: {'; '.join(reasons)}; the engine does not start")
