"""The mode of a step follows from numbers that every rank knows, and from nothing else."""

from dataclasses import replace

import pytest

from moe_runtime.contracts.exchange_errors import ImpossibleMode, RanksDisagree
from moe_runtime.exchange.agreeing import agree
from moe_runtime.exchange.choosing import Capability, Deployment, SocFamily, choose
from moe_runtime.runtime import ExchangeMode, Peers
from tests.runtime.threads import run_threads

GATHER, DIRECT, MC2, FUSED = ExchangeMode
BASE = Deployment(
    soc=SocFamily.A3,
    slots_per_rank=(8,) * 16,
    top_k=8,
    width=7168,
    format="w8a8",
    capabilities=frozenset({Capability.MC2}),
    block_rows=512,
)
BOTH = frozenset(Capability)


@pytest.mark.parametrize(
    ("change", "rows", "mode"),
    [
        ({"slots_per_rank": (128,)}, 4, GATHER),
        ({"adapters": True}, 4, DIRECT),
        ({"soc": SocFamily.P310}, 4, GATHER),
        ({"soc": SocFamily.P310, "adapters": True}, 4, GATHER),
        ({}, 512, MC2),
        ({}, 513, DIRECT),
        ({"block_rows": 100}, 101, DIRECT),
        ({"width": 512}, 4, DIRECT),
        ({"capabilities": frozenset[Capability]()}, 4, DIRECT),
        ({"capabilities": BOTH}, 4, FUSED),
        ({"capabilities": BOTH}, 513, DIRECT),
        ({"capabilities": BOTH, "format": "w4a16"}, 4, MC2),
        ({"soc": SocFamily.A2}, 256, MC2),
        ({"soc": SocFamily.A2}, 257, GATHER),
        ({"soc": SocFamily.A2, "slots_per_rank": (25,) * 16}, 4, GATHER),
        ({"soc": SocFamily.A2, "slots_per_rank": (8,) * 8}, 4, GATHER),
        ({"soc": SocFamily.A5}, 4, MC2),
        ({"soc": SocFamily.A5}, 600, DIRECT),
        ({"soc": SocFamily.A5, "slots_per_rank": (8,) * 4}, 600, GATHER),
        ({"soc": SocFamily.CPU, "width": 12, "capabilities": BOTH, "format": "plain"}, 4, FUSED),
    ],
)
def test_the_table(change: dict[str, object], rows: int, mode: ExchangeMode) -> None:
    assert choose(replace(BASE, **change), rows=rows) is mode


def test_an_override_is_taken_where_it_can_serve() -> None:
    assert choose(BASE, rows=4, override=DIRECT) is DIRECT


@pytest.mark.parametrize(
    ("override", "rows", "told"),
    [
        (FUSED, 4, "fused_mc2 cannot be used: the operator of fused MC2 is not there"),
        (MC2, 600, "a rank brings 600 rows, the buffers hold 512"),
    ],
)
def test_an_override_that_cannot_serve_is_refused_with_reasons(
    override: ExchangeMode, rows: int, told: str
) -> None:
    with pytest.raises(ImpossibleMode, match=told):
        choose(BASE, rows=rows, override=override)


def test_ranks_that_would_enter_with_other_sizes_are_told_apart_on_every_rank() -> None:
    def compare(peers: Peers) -> str:
        with pytest.raises(RanksDisagree) as told:
            agree(peers, "the buffer", {"rows": 512 - peers.rank, "ranks": 3})
        return str(told.value)

    told = run_threads(compare, num_ranks=3)
    assert set(told) == {told[0]}
    assert "the buffer must be the same on every rank, but is not: rows [512, 511, 510]" in told[0]
    assert "ranks" in told[0]
    assert "3, 3" not in told[0]
