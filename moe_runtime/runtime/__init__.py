"""The front door: a stack of MoE layers whose experts can be moved while it serves.

Nothing below this package is meant to be imported from outside the runtime.
"""

from moe_runtime.capture.ids import id_dtype, narrow, refuse_impossible
from moe_runtime.capture.layouts import (
    Concatenated,
    OwnRows,
    PaddedBlocks,
    RowLayout,
    Shards,
    own_rows,
)
from moe_runtime.capture.step import Captured, CaptureSink
from moe_runtime.contracts.adapters import (
    NO_ADAPTER,
    NO_ADAPTERS,
    AdapterIds,
    ExpertAdapters,
    NoAdapters,
)
from moe_runtime.contracts.errors import MoeError
from moe_runtime.contracts.gating import Scoring, SelectorSettings
from moe_runtime.contracts.modes import ExchangeMode
from moe_runtime.contracts.spread import OWN, OwnTokens, Replicated, Sharded, TokenSpread
from moe_runtime.contracts.step import Phase, Step, StepKind
from moe_runtime.contracts.tokens import NO_TOKEN_IDS, NoTokenIds, TokenIds
from moe_runtime.contracts.weights import DenseWeights
from moe_runtime.exchange.blocks import EVEN, EvenRows, UnevenRows
from moe_runtime.exchange.choosing import Capability, SocFamily
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
from moe_runtime.experts.shared import UNGATED, ExpertGate, SharedExpert, Ungated
from moe_runtime.formats.packing import Packing, WeightFormat
from moe_runtime.layer.parts import Direct, Latent, LayerWeights, NormedLatent, RoutedPath
from moe_runtime.placement.counters import CounterSnapshot
from moe_runtime.placement.maps import SlotLayout
from moe_runtime.placement.slots import EMPTY, Install, digest
from moe_runtime.routing.kinds import (
    Chosen,
    Corrected,
    CustomRouting,
    HashRouting,
    HashTable,
    OnInputRouting,
    RouterTensors,
    Routing,
    RoutingFunction,
    Uncorrected,
    ZeroExpertRouting,
    groups_of,
)
from moe_runtime.runtime.batch import Batch, ByGate, ByLogits
from moe_runtime.runtime.device import CPU, Device
from moe_runtime.runtime.engine import MoeRuntime
from moe_runtime.runtime.model import (
    IN_SLOTS,
    ExpertBias,
    LatentShape,
    Model,
    SharedInSlots,
    StackShape,
)
from moe_runtime.runtime.npu_device import open_device, peers_of
from moe_runtime.runtime.reference import DenseReference
from moe_runtime.runtime.serving_on import serve_on
from moe_runtime.runtime.sources import NO_SOURCE, Checkpoint, ExpertSource, HostBackup
from moe_runtime.runtime.start import Start
from moe_runtime.runtime.synthetic import SyntheticModel, logical_weights
from moe_runtime.runtime.traffic import ByTable, Nodes, OneNode, Traffic

__all__ = [
    "CPU",
    "EMPTY",
    "EVEN",
    "GELU",
    "IN_SLOTS",
    "NO_ADAPTER",
    "NO_ADAPTERS",
    "NO_SOURCE",
    "NO_TOKEN_IDS",
    "OWN",
    "UNGATED",
    "Activation",
    "AdapterIds",
    "Alone",
    "Batch",
    "ByGate",
    "ByLogits",
    "ByTable",
    "Capability",
    "CaptureSink",
    "Captured",
    "Checkpoint",
    "Chosen",
    "ClippedSwiGLU",
    "Concatenated",
    "Corrected",
    "CounterSnapshot",
    "CustomRouting",
    "DenseReference",
    "DenseWeights",
    "Device",
    "Direct",
    "EvenRows",
    "ExchangeMode",
    "ExpertAdapters",
    "ExpertBias",
    "ExpertGate",
    "ExpertSource",
    "GELUTanh",
    "GroupPeers",
    "HashRouting",
    "HashTable",
    "HostBackup",
    "Install",
    "Latent",
    "LatentShape",
    "LayerWeights",
    "Model",
    "MoeError",
    "MoeRuntime",
    "NoAdapters",
    "NoTokenIds",
    "Nodes",
    "NormedLatent",
    "OnInputRouting",
    "OneNode",
    "OwnRows",
    "OwnTokens",
    "Packing",
    "PaddedBlocks",
    "Peers",
    "Phase",
    "Replicated",
    "RoutedPath",
    "RouterTensors",
    "Routing",
    "RoutingFunction",
    "RowLayout",
    "Scoring",
    "SelectorSettings",
    "Sharded",
    "Shards",
    "SharedExpert",
    "SharedInSlots",
    "SiTU",
    "SlotLayout",
    "SocFamily",
    "StackShape",
    "Start",
    "Step",
    "StepKind",
    "SwiGLU",
    "SwiGLUOAI",
    "SwiGLUStep",
    "SyntheticModel",
    "TokenIds",
    "TokenSpread",
    "Traffic",
    "Uncorrected",
    "UnevenRows",
    "Ungated",
    "WeightFormat",
    "ZeroExpertRouting",
    "activation_named",
    "digest",
    "groups_of",
    "id_dtype",
    "logical_weights",
    "narrow",
    "open_device",
    "own_rows",
    "peers_of",
    "refuse_impossible",
    "serve_on",
]
