"""The front door: a stack of MoE layers whose experts can be moved while it serves.

Nothing below this package is meant to be imported from outside the runtime.
"""

from moe_runtime.contracts.errors import MoeError
from moe_runtime.contracts.gating import Scoring, SelectorSettings
from moe_runtime.contracts.step import Phase, Step, StepKind
from moe_runtime.contracts.tokens import NO_TOKEN_IDS, NoTokenIds, TokenIds
from moe_runtime.exchange.peers import Alone, GroupPeers, Peers
from moe_runtime.experts.activations import (
    GELU,
    Activation,
    ClippedSwiGLU,
    GELUTanh,
    SiTU,
    SwiGLU,
    SwiGLUOAI,
    SwiGLUStep,
    activation_named,
)
from moe_runtime.formats.packing import Packing, WeightFormat
from moe_runtime.placement.counters import CounterSnapshot
from moe_runtime.placement.maps import SlotLayout
from moe_runtime.placement.slots import EMPTY, Install, digest
from moe_runtime.routing.kinds import (
    Chosen,
    CustomRouting,
    HashRouting,
    OnInputRouting,
    Routing,
    ZeroExpertRouting,
)
from moe_runtime.runtime.batch import Batch, ByGate, ByLogits
from moe_runtime.runtime.engine import ExchangeMode, MoeRuntime, Start
from moe_runtime.runtime.model import LatentShape, Model, StackShape
from moe_runtime.runtime.reference import DenseReference
from moe_runtime.runtime.synthetic import SyntheticModel, logical_weights

__all__ = [
    "EMPTY",
    "GELU",
    "NO_TOKEN_IDS",
    "Activation",
    "Alone",
    "Batch",
    "ByGate",
    "ByLogits",
    "Chosen",
    "ClippedSwiGLU",
    "CounterSnapshot",
    "CustomRouting",
    "DenseReference",
    "ExchangeMode",
    "GELUTanh",
    "GroupPeers",
    "HashRouting",
    "Install",
    "LatentShape",
    "Model",
    "MoeError",
    "MoeRuntime",
    "NoTokenIds",
    "OnInputRouting",
    "Packing",
    "Peers",
    "Phase",
    "Routing",
    "Scoring",
    "SelectorSettings",
    "SiTU",
    "SlotLayout",
    "StackShape",
    "Start",
    "Step",
    "StepKind",
    "SwiGLU",
    "SwiGLUOAI",
    "SwiGLUStep",
    "SyntheticModel",
    "TokenIds",
    "WeightFormat",
    "ZeroExpertRouting",
    "activation_named",
    "digest",
    "logical_weights",
]
