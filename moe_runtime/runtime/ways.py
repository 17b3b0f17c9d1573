"""All ways that a step can go on one rank, and the choice among them.

Axes    N ranks   T tokens   L layers   K experts per token
"""

import zlib
from dataclasses import dataclass, replace

from torch import Tensor

from moe_runtime.backends.coding import FormCoder
from moe_runtime.capture.step import Recorder
from moe_runtime.contracts.errors import ShapeMismatch
from moe_runtime.contracts.modes import ExchangeMode
from moe_runtime.contracts.rows import RowForm
from moe_runtime.contracts.spread import OwnTokens, Replicated, Sharded
from moe_runtime.contracts.step import StepView
from moe_runtime.exchange.agreeing import agree
from moe_runtime.exchange.blocks import UnevenRows
from moe_runtime.exchange.choosing import Deployment, choose
from moe_runtime.exchange.limits import check_build
from moe_runtime.exchange.peers import Peers
from moe_runtime.exchange.spread import check_spread, led, sliced, team_of
from moe_runtime.layer.layer import PieceOfTeam, Way, WholeBatch
from moe_runtime.placement.maps import SlotLayout
from moe_runtime.runtime.device import Device
from moe_runtime.runtime.model import StackShape
from moe_runtime.runtime.passages import ExchangeParts, Passages
from moe_runtime.runtime.traffic import ByTable, Nodes, Traffic

__all__ = ["Ways"]


@dataclass(frozen=True, slots=True)
class Ways:
    """Finds the way of each step; keeps nothing between steps."""

    peers: Peers
    layout: SlotLayout
    shape: StackShape
    traffic: Traffic
    coder: FormCoder
    """The format's own: what its experts read is what travels."""
    device: Device

    @property
    def compares_tokens(self) -> bool:
        """Whether ranks of a team tell each other which tokens they hold."""
        spread = self.traffic.spread
        return isinstance(spread, Replicated) and spread.is_compared

    def check(self) -> None:
        """Raise ShapeMismatch or BeyondLimit for what can serve no step."""
        traffic = self.traffic
        check_spread(traffic.spread, num_ranks=self.peers.size)
        if isinstance(traffic.nodes, Nodes) and isinstance(traffic.block_rows, UnevenRows):
            raise ShapeMismatch(
                "hierarchical MC2", got=(), expected="blocks of equal size on every rank"
            )
        if traffic.mode in (ExchangeMode.MC2, ExchangeMode.FUSED_MC2):
            check_build(
                traffic.limits,
                top_k=self.shape.num_pairs,
                width=self.shape.routed_width,
                slots_per_rank=self.layout.slots_per_rank,
                even=False,
            )

    def way(self, announced: StepView, recorder: Recorder) -> Way:
        """Return the way of one step, the same on every rank.

        Raises ImpossibleMode and RanksDisagree, on all ranks alike.
        """
        spread = self.traffic.spread
        parts = sliced(announced, spread.team) if isinstance(spread, Replicated) else announced
        mode = self._mode(max(parts.rows_N))
        match spread:
            case Replicated(team) if mode is ExchangeMode.ALL_GATHER:
                view = led(announced, team)
                return Way(view, self._passages().over_teams(team), WholeBatch(), recorder)
            case Replicated(team):
                part = PieceOfTeam(team_of(self.peers, team))
                return Way(parts, self._passages().of(mode), part, recorder)
            case OwnTokens() | Sharded():
                return Way(announced, self._passages().of(mode), WholeBatch(), recorder)

    def captured_over_team(self, ids_TLK: Tensor, way: Way) -> Tensor:
        """Return the ids of all tokens that this rank is asked for, in order of the batch.

        Collective where tokens lie over teams.
        """
        spread, peers = self.traffic.spread, self.peers
        match way.part, spread:
            case PieceOfTeam(team), Replicated(size):
                pass
            case WholeBatch(), Sharded(size):
                team = team_of(peers, size)
            case _:
                return ids_TLK
        first = peers.rank - peers.rank % size
        flat = team.all_gather(ids_TLK.flatten(1), way.view.rows_N[first : first + size])
        return flat.view(flat.shape[0], *ids_TLK.shape[1:])

    def _mode(self, rows: int) -> ExchangeMode:
        mode = self.traffic.mode
        if isinstance(mode, ExchangeMode):
            return mode
        chosen = choose(self._deployment(mode), rows=rows, override=mode.override)
        if mode.compared:
            number = list(ExchangeMode).index(chosen)
            numbers = {"mode": number, "most rows": rows}
            agree(self.peers, "what a step exchanges", numbers, home=self.device.home)
        return chosen

    def _deployment(self, by: ByTable) -> Deployment:
        return Deployment(
            soc=by.soc,
            slots_per_rank=self.layout.slots_per_rank,
            top_k=self.shape.num_pairs,
            width=self.shape.routed_width,
            format=by.format,
            capabilities=by.capabilities,
            block_rows=self.traffic.buffer_rows,
            adapters=by.adapters or self.traffic.num_adapters > 0,
        )

    def _passages(self) -> Passages:
        return self.device.passages(
            ExchangeParts(self.peers, self.layout, self.coder, self.traffic, self._capacity())
        )

    def _capacity(self) -> int:
        """Return the rows that a rank can receive: of all ranks' blocks, what can come to one."""
        most = min(self.shape.num_pairs, max(self.layout.slots_per_rank))
        return self.traffic.buffer_rows * self.peers.size * most

    def numbers(self) -> dict[str, int]:
        """Return what must be the same on every rank; 0 where something is not used."""
        mode, spread = self.traffic.mode, self.traffic.spread
        nodes, rows = self.traffic.nodes, self.traffic.block_rows
        return {
            "mode": list(ExchangeMode).index(mode) + 1 if isinstance(mode, ExchangeMode) else 0,
            "the table's settings": 0 if isinstance(mode, ExchangeMode) else _table_mark(mode),
            "tokens of a team": [OwnTokens, Replicated, Sharded].index(type(spread)),
            "team": 0 if isinstance(spread, OwnTokens) else spread.team,
            "ranks of a node": nodes.ranks_per_node if isinstance(nodes, Nodes) else 0,
            "rows of all": rows.global_rows if isinstance(rows, UnevenRows) else 0,
            "buffer rows": self._capacity(),
            "form of rows": list(RowForm).index(self.coder.form),
            "limits": _mark(self.traffic.limits),
            "width": self.shape.routed_width,
            "slots": self.layout.num_slots,
            "slots by rank": _mark(self.layout.slots_per_rank),
            "adapters": self.traffic.num_adapters,
            "captured": int(self.traffic.capture is not None),
        }


def _table_mark(by: ByTable) -> int:
    return _mark((replace(by, capabilities=frozenset()), sorted(c.value for c in by.capabilities)))


def _mark(settings: object) -> int:
    """Return a fingerprint, the same on every rank that has the same settings."""
    return zlib.crc32(repr(settings).encode())
