"""Everything that the ranks told of one segment, as arrays.

Axes    N ranks   T steps of the segment   L MoE layers
"""

import numpy as np
import numpy.typing as npt

from benchmarks.demo.records import Progress

__all__ = ["NOT_TOLD", "FloatArray", "IntArray", "Ledger"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

NOT_TOLD = -1
"""Stands for an epoch or an error that nobody has told yet."""


class Ledger:
    """Fills up while ranks serve. Nothing is assumed of a step that was not told."""

    def __init__(self, *, num_ranks: int, first_step: int, num_steps: int, num_layers: int) -> None:
        shape = (num_ranks, num_steps)
        self.first_step = first_step
        self.late_s_NT: FloatArray = np.full(shape, np.inf)
        self.seconds_NT: FloatArray = np.full(shape, np.nan)
        self.epoch_NT: IntArray = np.full(shape, NOT_TOLD, dtype=np.int64)
        self.revision_NT: IntArray = np.zeros(shape, dtype=np.int64)
        self.is_migrating_NT = np.zeros(shape, dtype=np.bool_)
        self.load_NTL: IntArray = np.zeros((*shape, num_layers), dtype=np.int64)
        self.installed_NT: IntArray = np.zeros(shape, dtype=np.int64)
        self.error_NT: FloatArray = np.full(shape, NOT_TOLD, dtype=np.float64)

    def add(self, progress: Progress) -> None:
        """Write down what one rank told; steps after those of the ledger are passed over."""
        rank, num_steps = progress.rank, self.late_s_NT.shape[1]
        for told in progress.steps:
            if (number := told.step - self.first_step) < num_steps:
                at = (rank, number)
                self.late_s_NT[at] = told.late_s
                self.seconds_NT[at] = told.seconds
                self.epoch_NT[at] = told.epoch
                self.revision_NT[at] = told.revision
                self.is_migrating_NT[at] = told.is_migrating
                self.load_NTL[at] = told.load
                self.installed_NT[at] = told.num_installed
        for check in progress.checks:
            if (number := check.step - self.first_step) < num_steps:
                self.error_NT[rank, number] = check.error

    @property
    def num_served(self) -> int:
        """Steps that every rank has served, from the first on."""
        return int((self.epoch_NT != NOT_TOLD).min(axis=0).cumprod().sum())

    @property
    def is_complete(self) -> bool:
        """Whether every step was served and checked on every rank."""
        return bool((self.epoch_NT != NOT_TOLD).all() and (self.error_NT != NOT_TOLD).all())
