"""The front door for vLLM: its MoE layers, computed by our stages.

`take_factory` replaces vLLM's factory of MoE layers before any model file is imported;
`own_model` binds the layers of a loaded model into one `OwnedStack`, which serves them and
can be moved around like any other stack of the runtime.
"""

from moe_runtime.contracts.step import Phase, StepKind
from moe_runtime.placement.counters import CounterSnapshot
from moe_runtime.placement.maps import SlotLayout
from moe_runtime.placement.slots import EMPTY, Install, digest
from moe_runtime.vllm.demands import has_moe_layers
from moe_runtime.vllm.errors import CannotOwn, Contradiction, PluginError, UnfitEngine
from moe_runtime.vllm.factory import FactoryTaken, take_factory
from moe_runtime.vllm.options import ExchangeChoice, Options, Unowned
from moe_runtime.vllm.owning import OwnedModel, own_model
from moe_runtime.vllm.placing import place
from moe_runtime.vllm.probing import Need, unmet
from moe_runtime.vllm.proving import require_none_late
from moe_runtime.vllm.redundancy import Claim, agreed_redundancy, claim_of_map, claim_of_setting
from moe_runtime.vllm.seams import engine_version
from moe_runtime.vllm.stack import OwnedStack, StepScope

__all__ = [
    "EMPTY",
    "CannotOwn",
    "Claim",
    "Contradiction",
    "CounterSnapshot",
    "ExchangeChoice",
    "FactoryTaken",
    "Install",
    "Need",
    "Options",
    "OwnedModel",
    "OwnedStack",
    "Phase",
    "PluginError",
    "SlotLayout",
    "StepKind",
    "StepScope",
    "UnfitEngine",
    "Unowned",
    "agreed_redundancy",
    "claim_of_map",
    "claim_of_setting",
    "digest",
    "engine_version",
    "has_moe_layers",
    "own_model",
    "place",
    "require_none_late",
    "take_factory",
    "unmet",
]
