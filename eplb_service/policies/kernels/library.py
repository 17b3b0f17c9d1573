"""The compiled loops of kernels.c, split.c and sources.c, with types, and how they are called.

They are built when the package is installed. Loads are in mean loads of a rank. `rows` are the
routed expert of each slot, -1 for a slot that routes nothing; `begin` is the first slot of each
rank, and the number of slots.

Axes    L layers   P slots   N ranks   E experts
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from eplb_service.domain.errors import InvalidSettings
from eplb_service.domain.ids import FloatArray

__all__ = [
    "Costs",
    "Limits",
    "Numbers",
    "best_level",
    "best_shares",
    "call",
    "num_parts",
    "packed",
    "plain_costs",
    "repaired",
    "require_built",
    "whole_sources",
]

Numbers = NDArray[np.int64]
_Array = Numbers | FloatArray | NDArray[np.int32]
_PLACE = f"{__package__}._loops"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a repair aims at."""

    act_above: float
    """Peak from which a layer is worth moves."""
    repair_to: float
    """Peak at which repairing stops."""
    even_cap: float
    """Peak under an even split that is not to be passed."""
    breaking: float
    """Load above the limit that one more component of the graph counts as."""
    even_price: float
    """What load above the even cap counts as, beside load above the limit."""


@dataclass(frozen=True, slots=True, eq=False)
class Costs:
    """What ranks bear beside tokens, and how fast."""

    speed: FloatArray
    """[N] load that a rank bears in the time that counts as 1; 1 for a rank of mean speed."""
    fixed: FloatArray
    """[L] what an expert with tokens costs its rank beside them, in mean loads."""

    def of_layers(self, layers: NDArray[np.intp]) -> "Costs":
        """The same for some of the layers."""
        return Costs(self.speed, self.fixed[layers])


def plain_costs(num_layers: int, num_ranks: int) -> Costs:
    """Tokens alone, on ranks that are alike."""
    return Costs(np.ones(num_ranks), np.zeros(num_layers))


@cache
def _library() -> ctypes.CDLL:
    found = find_spec(_PLACE)
    if found is None or found.origin is None:
        raise InvalidSettings(
            f"{_PLACE} was not built, so shares and most policies cannot be computed; "
            "install a C compiler (Debian: gcc and libc6-dev), then install this package anew"
        )
    return ctypes.CDLL(found.origin)


def require_built() -> None:
    """Raise InvalidSettings, with what to do, where the loops were not built."""
    _library()


def call(
    name: str, sizes: tuple[int, ...], arrays: tuple[_Array | ctypes.c_void_p | int | None, ...]
) -> None:
    """Call a kernel; numbers go as 64 bits, arrays as their address, None as a null pointer."""
    given: list[object] = [ctypes.c_int64(size) for size in sizes]
    for array in arrays:
        if isinstance(array, np.ndarray):
            assert array.flags.c_contiguous
            given.append(ctypes.c_void_p(array.ctypes.data))
        elif isinstance(array, ctypes.c_void_p):
            given.append(array)
        else:
            given.append(None if array is None else ctypes.c_int64(array))
    _kernel(name)(*given)


def _kernel(name: str) -> Callable[..., object]:
    try:
        return _library()[name]
    except AttributeError as missing:
        raise InvalidSettings(
            f"{_PLACE} was built from other sources, which had no {name}; install this package "
            "anew (in a clone: make)"
        ) from missing


def _work(sizes: tuple[int, ...]) -> tuple[Numbers, FloatArray]:
    """Room to work in: as many numbers and reals as kernels.c and split.c lay out for one layer."""
    _, slots, ranks, experts = sizes
    numbers = 7 * slots + 11 * ranks + 5 * experts + 4
    return np.empty(numbers, np.int64), np.empty(3 * slots + 8 * ranks + experts)


def best_level(
    rows: Numbers, begin: Numbers, heat: FloatArray, costs: Costs, *, enough: float = 0.0
) -> tuple[FloatArray, FloatArray]:
    """[L, P] tokens of each slot at the lowest peak that shares can reach, and the peaks [L].

    rows    [L, P]
    heat    [L, E]
    enough  a peak that is not lowered further
    """
    sizes = (*rows.shape, len(begin) - 1, heat.shape[1])
    drawn, peaks = np.empty(rows.shape), np.empty(len(rows))
    least = np.array([enough])
    given = (*_layers(rows, begin, heat, costs), least, drawn, peaks, *_work(sizes))
    call("eplb_best_split", sizes, given)
    return drawn, peaks


def best_shares(
    rows: Numbers, begin: Numbers, heat: FloatArray, costs: Costs, *, slack: float = 0.0
) -> FloatArray:
    """[L, P] share of its expert that each slot takes at the lowest peak, even if it has none.

    slack    part of the lowest peak that it may be above it
    """
    sizes = (*rows.shape, len(begin) - 1, heat.shape[1])
    drawn = np.empty(rows.shape)
    given = (*_layers(rows, begin, heat, costs), np.array([slack]), drawn, *_work(sizes))
    call("eplb_best_shares", sizes, given)
    return drawn


def _layers(
    rows: Numbers, begin: Numbers, heat: FloatArray, costs: Costs
) -> tuple[Numbers, Numbers, FloatArray, FloatArray, FloatArray]:
    """What most kernels take of layers, as they take it."""
    fixed = np.ascontiguousarray(costs.fixed)
    return np.ascontiguousarray(rows), begin, np.ascontiguousarray(heat), costs.speed, fixed


def whole_sources(
    placed: tuple[Numbers, Numbers],
    tokens: FloatArray,
    shares: FloatArray,
    nodes: Numbers,
    price: float,
) -> NDArray[np.int32]:
    """[N, L, E] the slot that each source rank uses for each expert: all its tokens go to one.

    placed  rows [L, P] and begin [N + 1]
    tokens  [N, L, E] of each source
    shares  [L, P] of its expert that each slot is to take
    nodes   [N] number of each rank's node
    price   tokens of imbalance that are given to keep one token one step nearer
    """
    rows, begin = np.ascontiguousarray(placed[0]), placed[1]
    tokens = np.asarray(tokens, np.float64)
    num_sources, num_layers, num_experts = tokens.shape
    num_slots = rows.shape[1]
    tables = np.empty(tokens.shape, np.int32)
    numbers = np.empty(3 * num_slots + 3 * num_experts + 3 * num_sources, np.int64)
    sizes = (num_layers, num_slots, num_sources, num_experts)
    strides = np.array([step // tokens.itemsize for step in tokens.strides])
    where = ctypes.c_void_p(tokens.ctypes.data)
    room = np.empty(num_slots + 2 * num_sources + num_experts)
    given = (rows, begin, where, strides, shares, nodes, np.array([price]), tables, numbers, room)
    call("eplb_whole_sources", sizes, given)
    return tables


def num_parts(rows: Numbers, begin: Numbers, num_experts: int) -> Numbers:
    """[L] components of the replica graph of rows [L, P]; ranks without slots are none."""
    sizes = (*rows.shape, len(begin) - 1, num_experts)
    parts = np.zeros(len(rows), np.int64)
    call("eplb_parts", sizes, (np.ascontiguousarray(rows), begin, parts, *_work(sizes)))
    return parts


def repaired(
    layers: tuple[Numbers, Numbers, FloatArray],
    costs: Costs,
    limits: Limits,
    budget: tuple[int, int],
) -> tuple[Numbers, FloatArray]:
    """[L, P] rows after few moves, layers in turn, and the peaks [L] of their best split.

    Of a peak that keeps the limit repaired to, or was never above the one acted at, that limit
    is told in its place.

    layers    rows [L, P], begin [N + 1] and heat [L, E]
    budget    moves that one layer may take, and all
    """
    rows, begin, heat = layers
    sizes = (*rows.shape, len(begin) - 1, heat.shape[1])
    done, peaks = np.array(rows, order="C"), np.zeros(len(rows))
    aims = (limits.act_above, limits.repair_to, limits.even_cap, limits.breaking, limits.even_price)
    left = np.array(budget, np.int64)
    given = (*_layers(done, begin, heat, costs), np.array(aims), left, peaks, *_work(sizes))
    call("eplb_repair", sizes, given)
    return done, peaks


def packed(
    sizes: Numbers, heat: FloatArray, costs: Costs | None = None, *, is_joined: bool
) -> Numbers:
    """[L, P] experts packed anew, rank after rank, -1 after the last slot of a layer.

    sizes        [L, N] slots of each rank; at least E in a layer, at most E on a rank
    heat         [L, E]
    costs        looked at where ranks are joined; tokens alone where it is None
    is_joined    so that replicated experts join the ranks; else longest first, as the greedy
                 packing of DeepSeek's EPLB (github.com/deepseek-ai/EPLB), no expert twice on a rank
    """
    num_layers, num_ranks, num_experts = len(sizes), int(sizes.shape[1]), int(heat.shape[1])
    costs = plain_costs(num_layers, num_ranks) if costs is None else costs
    begins = np.zeros((num_layers, num_ranks + 1), np.int64)
    np.cumsum(sizes, axis=1, out=begins[:, 1:])
    num_slots = int(begins[:, -1].max(initial=0))
    rows = np.zeros((num_layers, num_slots), np.int64)
    call(
        "eplb_pack",
        (num_layers, num_slots, num_ranks, num_experts),
        (
            begins,
            np.ascontiguousarray(heat),
            costs.speed,
            np.ascontiguousarray(costs.fixed),
            int(is_joined),
            rows,
            np.empty(2 * num_experts + 5 * num_ranks, np.int64),
            np.empty(num_ranks),
            np.empty(2 * (2 * num_experts + 2 * num_ranks)),
        ),
    )
    return rows
