"""The figures of the demo, each a pure function of what the ranks measured.

Axes    N ranks   T steps   L MoE layers
"""

import numpy as np
import numpy.typing as npt

from benchmarks.demo.ledger import NOT_TOLD, FloatArray, IntArray

__all__ = [
    "imbalance",
    "is_late",
    "missed_steps",
    "num_checked",
    "num_revisions",
    "num_wrong",
    "shared_steps",
    "slowest_steps",
    "step_seconds",
]

BLOCK = 200
"""Steps whose slowest are compared as one."""
_PATIENCE = 5
"""Median steps that a step may start after its slot."""

BoolArray = npt.NDArray[np.bool_]


def imbalance(load_NTL: IntArray) -> FloatArray:
    """Return [L]: peak over mean of the ranks' load over the given steps; NaN without load.

    >>> imbalance(np.array([[[30]], [[10]]])).tolist()
    [1.5]
    """
    load_NL = load_NTL.sum(axis=1).astype(np.float64)
    mean_L = load_NL.mean(axis=0)
    return np.divide(
        load_NL.max(axis=0), mean_L, out=np.full_like(mean_L, np.nan), where=mean_L > 0
    )


def shared_steps(epoch_NT: IntArray, revision_NT: IntArray) -> BoolArray:
    """[T] whether a step was served by shares that were set: on all ranks by the same revision.

    >>> shared_steps(np.array([[0, 1, 1], [0, 1, 1]]), np.array([[0, 1, 2], [0, 2, 2]])).tolist()
    [False, False, True]
    """
    is_same = (epoch_NT == epoch_NT[0]).all(axis=0) & (revision_NT == revision_NT[0]).all(axis=0)
    return is_same & (revision_NT[0] > 0)


def num_revisions(epoch_NT: IntArray, revision_NT: IntArray) -> int:
    """Count revisions of shares that came into use on all ranks; none of them moved a weight.

    >>> num_revisions(np.array([[0, 1, 1], [0, 1, 1]]), np.array([[1, 1, 0], [1, 1, 0]]))
    2
    """
    used = shared_steps(epoch_NT, revision_NT)
    pairs = zip(epoch_NT[0, used].tolist(), revision_NT[0, used].tolist(), strict=True)
    return len(set(pairs))


def step_seconds(seconds_NT: FloatArray) -> FloatArray:
    """Return [T]: a step takes as long as its slowest rank."""
    return seconds_NT.max(axis=0)


def is_late(late_s_NT: FloatArray, *, median_step_s: float) -> BoolArray:
    """[T] whether some rank began the step later than five median steps after its slot."""
    return late_s_NT.max(axis=0) > _PATIENCE * median_step_s


def missed_steps(is_late_T: BoolArray, *, late_alone: int, num_shared: int) -> int:
    """Count late steps, less those of a run without the control plane over the same steps.

    The last `num_shared` steps are those that the other run served too; what was late before
    them counts whole.

    >>> missed_steps(np.array([True, False, True, True]), late_alone=5, num_shared=2)
    1
    """
    split = len(is_late_T) - num_shared
    return int(is_late_T[:split].sum()) + max(0, int(is_late_T[split:].sum()) - late_alone)


def num_checked(error_NT: FloatArray) -> int:
    """Count steps whose outputs were compared on every rank."""
    return int((error_NT != NOT_TOLD).all(axis=0).sum())


def num_wrong(error_NT: FloatArray, *, tolerance: float) -> int:
    """Count steps in which some rank's output was off; one that is not finite is off.

    >>> num_wrong(np.array([[1e-7, 0.5, np.nan, NOT_TOLD]]), tolerance=1e-5)
    2
    """
    return int((~(error_NT < tolerance)).any(axis=0).sum())


def slowest_steps(
    seconds_T: FloatArray, is_migrating_T: BoolArray, *, block: int = BLOCK
) -> tuple[float, float]:
    """Return the 99th percentiles of step time with migration and without.

    Steps are taken in whole blocks: a block counts as with migration if an order was held in any
    of its steps. Blocks of both kinds come in turn, so a machine that slows down or speeds up
    over the run touches both. NaN for a kind of which there is no block.

    >>> slowest_steps(np.array([1.0, 3.0, 2.0, 1.0]), np.array([0, 1, 0, 0]) > 0, block=2)
    (2.98, 1.99)
    """
    num_blocks = len(seconds_T) // block
    by_block = seconds_T[: num_blocks * block].reshape(num_blocks, block)
    moving_B = is_migrating_T[: num_blocks * block].reshape(num_blocks, block).any(axis=1)
    slow, calm = (
        float(np.quantile(by_block[kind], 0.99)) if kind.any() else float("nan")
        for kind in (moving_B, ~moving_B)
    )
    return slow, calm
