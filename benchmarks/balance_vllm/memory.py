# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# The rules are off in this file only: it drives vLLM, which is not there when types are checked.
"""Shared memory of engines that run on one machine, one after the other or side by side."""

import os
from importlib import import_module

__all__ = ["name_memory_apart"]


def name_memory_apart() -> None:
    """Have each engine name the memory that its ranks share by its own port; before it starts.

    On CPUs vLLM names it after the end of the address at which ranks meet. Where the environment
    tells that address, as `external_launcher` has it, that end is the same for all engines, so
    that one cannot start beside another, nor after one whose ranks were killed.
    """
    module = import_module("vllm.distributed.device_communicators.cpu_communicator")
    shared = module._CPUSHMDistributed
    name, port = shared.make_group_name, os.environ["MASTER_PORT"]

    def named(communicator: object) -> str:
        return f"{port}{name(communicator).lstrip('/')}"  # only leading slashes may be there

    shared.make_group_name = staticmethod(named)
