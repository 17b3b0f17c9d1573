"""Cases of real reports about budgets, scaling and telemetry, by family."""

import numpy as np
import pytest

from eplb_service.domain.errors import InvalidSettings
from eplb_service.domain.ids import Epoch
from eplb_service.domain.layout import SlotLayout
from eplb_service.domain.placement import initial_placement, placement_from_ranks
from eplb_service.domain.rules import violations
from eplb_service.domain.shares import Ownership
from eplb_service.domain.wave import TARGET
from eplb_service.domain.waves import WaveLimits, split
from tests.agent.test_reporter import Rig

MIB = 1 << 20


def test_f37_ten_receives_of_44_mib_within_200_mib_come_in_rounds_of_four_four_and_two() -> None:
    experts = list(range(10))
    old = placement_from_ranks([[experts, [-1] * 10]], num_experts=10)
    new = placement_from_ranks([[experts, experts]], num_experts=10)
    expert_bytes, budget = 44 * MIB, 200 * MIB
    bounds = WaveLimits((10, 10), budget, bytes_per_expert=expert_bytes, ownership=Ownership.OWN)
    (wave,) = split(old, new, base_epoch=Epoch(0), limits=bounds)
    content = wave.content
    sizes = [len(content.round_transfers(k + 1)) for k in range(content.num_rounds)]
    assert sizes == [4, 4, 2]
    assert max(sizes) * expert_bytes <= budget
    assert sorted(content.transfers[:, TARGET].tolist()) == list(range(10, 20))


def test_f41_a_group_that_grows_has_a_map_of_its_own_and_one_that_shrinks_too_far_is_refused() -> (
    None
):
    four = initial_placement(num_layers=1, num_experts=8, layout=SlotLayout((2,) * 4))
    five = initial_placement(num_layers=1, num_experts=8, layout=SlotLayout((2,) * 5))
    assert not violations(five)
    assert five.digest() != four.digest()
    assert int((five.replica_count() > 1).sum()) == 2, "both new slots hold a replica"
    with pytest.raises(InvalidSettings, match="8 experts do not fit into 6 slots; 2 more"):
        initial_placement(num_layers=1, num_experts=8, layout=SlotLayout((2,) * 3))


def test_f59_counts_of_a_minute_without_a_controller_arrive_whole() -> None:
    """Counters are cumulative: what is kept of the reports tells the rest."""
    rig = Rig()
    rig.steps(10)
    (first, *_) = rig.decode()
    rig.steps(600)
    kept = rig.decode()
    last = kept[-1]
    assert len(kept) <= 64, "reports are kept without bound"
    received = last.received.astype(np.int64) - first.received
    assert int(received[0, 0]) == 10 * (last.step - first.step)
