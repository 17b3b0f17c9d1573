"""Draws the experts of tokens so that every expert is hit as often as counts say.

Axes    T tokens of one group   E experts   K experts per token

Systematic sampling after Madow (1949): probabilities are laid end to end on a
line and the line is cut at equal distances from a random start, so an expert's
hits are within one of what is expected. Adding noise to log-counts and taking
the best K, which looks simpler, misses hot experts badly: an expert that nine
tokens of ten should choose cannot be told from one that all should choose.
"""

import numpy as np
import numpy.typing as npt

__all__ = ["GROUP", "draw_experts", "inclusion", "logits_for"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

GROUP = 8
"""Most tokens of one group."""
_CHOSEN = (0.5, 3.0)
_OTHERS = (-9.0, -6.0)
"""Ranges of logits. A sigmoid or softmax of the first exceeds one of the second by far more than
any correction bias; the range of the first makes the weights of a token's experts differ."""


def inclusion(counts_E: npt.ArrayLike, *, top_k: int) -> FloatArray:
    """Return [E]: how likely a token is to have each expert; the sum is top_k.

    The shares of the counts times top_k; what exceeds 1 goes to the other experts in proportion.
    Raises ValueError if fewer than top_k experts were ever hit.

    >>> inclusion([6, 1, 1], top_k=2).tolist()
    [1.0, 0.5, 0.5]
    """
    counts = np.asarray(counts_E, dtype=np.float64)
    if np.count_nonzero(counts) < top_k:
        raise ValueError(f"{np.count_nonzero(counts)} experts were hit; expected at least {top_k}")
    full = np.zeros(counts.shape, dtype=np.bool_)
    while True:
        rest = counts[~full]
        share = np.ones_like(counts)
        share[~full] = rest / rest.sum() * (top_k - np.count_nonzero(full))
        over = (share > 1) & ~full
        if not over.any():
            return share
        full |= over


def draw_experts(
    probabilities_E: FloatArray, *, num_tokens: int, draw: np.random.Generator
) -> IntArray:
    """Return [T, K] distinct experts of each token.

    Tokens are drawn in groups of up to 8, each with an order of experts and a start of its own:
    tokens of one group tend to avoid each other's experts where the group is small, and to share
    them where it is large.
    """
    starts = range(0, num_tokens, GROUP)
    groups = [_draw_group(probabilities_E, min(GROUP, num_tokens - s), draw) for s in starts]
    return np.concatenate(groups)


def _draw_group(
    probabilities_E: FloatArray, num_tokens: int, draw: np.random.Generator
) -> IntArray:
    """Draw one group: every expert is hit within one of what is expected.

    Each expert's probability is laid on the line T times over; cut number i belongs to token
    i modulo T. An expert is at most T long, so no token meets it twice.
    """
    num_experts = len(probabilities_E)
    top_k = round(float(probabilities_E.sum()))
    order = draw.permutation(num_experts)
    ends = np.cumsum(probabilities_E[order] * num_tokens)
    cuts = np.arange(num_tokens * top_k) + draw.random()
    # The last end is T * K but for rounding, which must not let the last cut fall off the line.
    places = np.minimum(np.searchsorted(ends, cuts, side="right"), num_experts - 1)
    experts_TK = order[places].reshape(top_k, num_tokens).T
    return experts_TK[draw.permutation(num_tokens)]


def logits_for(
    experts_TK: IntArray, *, num_experts: int, draw: np.random.Generator
) -> npt.NDArray[np.float32]:
    """Return float32 [T, E] of which a selector picks exactly the given experts."""
    num_tokens, top_k = experts_TK.shape
    logits = draw.uniform(*_OTHERS, size=(num_tokens, num_experts))
    chosen = draw.uniform(*_CHOSEN, size=(num_tokens, top_k))
    np.put_along_axis(logits, experts_TK, chosen, axis=1)
    return logits.astype(np.float32)
