"""Words that several tests spoil."""

import numpy as np
import pytest

from eplb_service.domain.ids import Digest, Epoch, Revision
from eplb_service.domain.report import CountedUnder, LoadReport, Phase, SentCounts, StepCounts


@pytest.fixture
def kimi_report() -> LoadReport:
    """One rank's slot counts in Kimi K3's shape: 92 layers, 16 slots."""
    none, no_tokens = np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int64)
    return LoadReport(
        under=CountedUnder(Epoch(41), Digest(7), Revision(2)),
        phase=Phase.DECODE,
        step=1_000,
        reset=0,
        is_closing=False,
        received=np.arange(92 * 16, dtype=np.int64).reshape(92, 16),
        sent_total=np.full(92, 160, dtype=np.int64),
        sent=SentCounts(none, none, no_tokens),
        steps=StepCounts(1_000, 0, 0, 0, 16_000, 0, 0, 10.0, 4.0),
    )
