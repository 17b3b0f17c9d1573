"""Real expert counts, and the text domains they belong to.

Axes    L MoE layers   E logical experts
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt

__all__ = ["DOMAINS", "TOP_K", "CountArray", "domain_counts"]

CountArray = npt.NDArray[np.int64]

TOP_K = 8
"""Experts of a token in the sample data."""
DOMAINS = ("arxiv", "book", "c4", "github", "tulu", "wikipedia")

_FILE = Path(__file__).parent / "data" / "olmoe_expert_counts.npz"


def domain_counts(domain: str) -> CountArray:
    """Return int64 [L, E]: how often each expert was chosen in texts of one domain.

    >>> domain_counts("c4").shape
    (3, 64)
    """
    if domain not in DOMAINS:
        raise KeyError(f"there are no counts of {domain!r}; expected one of {', '.join(DOMAINS)}")
    with np.load(_FILE) as arrays:
        return arrays[domain].astype(np.int64)
