"""The entry point `vllm.general_plugins`: vLLM calls `register` in each of its processes."""

import os

__all__ = ["register"]

SWITCH = "EPLB_VLLM_ENABLED"


def register() -> None:
    """Replace vLLM's factory of MoE layers and wrap its workers; nothing unless enabled.

    Raises InvalidSettings, before vLLM reads a model, if a setting cannot be used, and
    UnfitEngine if this vLLM is not as the plugin needs it.
    """
    if SWITCH not in os.environ:
        return
    # A process that does not use the plugin imports nothing of it.
    from worker_agent.vllm_plugin.plugging import plug_in  # noqa: PLC0415

    plug_in()
