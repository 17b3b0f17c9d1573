"""The entry point `vllm.general_plugins`: vLLM calls `register` in each of its processes."""

import os

__all__ = ["register"]

SWITCH = "EPLB_VLLM_ENABLED"
FAMILY = "EPLB_VLLM_"


def register() -> None:
    """Replace vLLM's factory of MoE layers and wrap its workers; nothing unless enabled.

    Raises InvalidSettings, before vLLM reads a model, if a setting cannot be used, and
    UnfitEngine if this vLLM is not as the plugin needs it.
    """
    if SWITCH not in os.environ:
        _require_known_variables()
        return
    # A process that does not use the plugin imports nothing of it.
    from worker_agent.vllm_plugin.plugging import plug_in  # noqa: PLC0415

    plug_in()


def _require_known_variables() -> None:
    """Raise InvalidSettings where the switch may be there by a misspelt name."""
    if not any(name.upper().startswith(FAMILY) for name in os.environ):
        return
    from eplb_service.domain.errors import InvalidSettings  # noqa: PLC0415
    from eplb_service.domain.variables import misspelt  # noqa: PLC0415

    if unknown := misspelt(os.environ, own=FAMILY):
        raise InvalidSettings(f"{'; '.join(unknown)}; vLLM does not start with such a variable")
