"""Who takes part in a forward, and how tokens go between them."""

from collections.abc import Sequence
from typing import cast

from moe_runtime.exchange.peers import Alone, GroupPeers, Peers
from moe_runtime.layer.passage import Passage, Staged
from moe_runtime.placement.maps import SlotLayout
from moe_runtime.vllm import seams
from moe_runtime.vllm.errors import CannotOwn
from moe_runtime.vllm.families import Parts
from moe_runtime.vllm.options import ExchangeChoice, Options
from moe_runtime.vllm.replicated import ReplicatedExchange
from moe_runtime.vllm.seams import Coordinator, Runner
from moe_runtime.vllm.stack import Ranks

__all__ = ["passage_of", "ranks_of"]


def ranks_of(runners: Sequence[Runner], options: Options) -> Ranks:
    """Return the groups of this rank, and whether ranks that share rows compute all of them."""
    parallel = runners[0].routed_experts.moe_config.moe_parallel_config
    distributed = seams.module("vllm.distributed")
    tp = cast("Coordinator", distributed.get_tp_group())
    if not parallel.use_ep:
        if tp.world_size > 1:
            raise CannotOwn(
                "the model", ["its experts are split, not placed: expert parallel is off"]
            )
        return Ranks(Alone(), Alone(), is_replicated=False)
    group = _peers(cast("Coordinator", distributed.get_ep_group()))
    if tp.world_size == 1:
        return Ranks(group, Alone(), is_replicated=False)
    if runners[0].routed_experts.moe_config.is_sequence_parallel:
        return _in_pieces(runners, options, group, tp)
    against = [
        text
        for is_so, text in (
            (group.size != tp.world_size, "ranks of other engines have other tokens"),
            (
                any(runner.routed_output_transform is not None for runner in runners),
                "a transform of the routed output needs the whole sum",
            ),
        )
        if is_so
    ]
    if options.exchange is ExchangeChoice.REPLICATED and against:
        raise CannotOwn("the model", [f"exchange=replicated: {why}" for why in against])
    is_replicated = options.exchange is not ExchangeChoice.ALL_TO_ALL and not against
    return Ranks(group, _peers(tp), is_replicated=is_replicated)


def hosts_of(runners: Sequence[Runner]) -> Peers:
    """Return all ranks that hold experts, over the memory of hosts."""
    group = _expert_group(runners)
    return Alone() if group is None or group.world_size == 1 else GroupPeers(group.cpu_group)


def ranks_in_world(runners: Sequence[Runner]) -> list[int]:
    """Return the numbers in the world of all ranks that hold experts; this one's where alone."""
    group = _expert_group(runners)
    return [0] if group is None else group.ranks


def _expert_group(runners: Sequence[Runner]) -> Coordinator | None:
    if not runners[0].routed_experts.moe_config.moe_parallel_config.use_ep:
        return None
    return cast("Coordinator", seams.module("vllm.distributed").get_ep_group())


def _in_pieces(runners: Sequence[Runner], options: Options, group: Peers, tp: Coordinator) -> Ranks:
    """Return the ranks of engines of which vLLM gives each rank its own piece of the rows."""
    against: list[str] = []
    if options.exchange is ExchangeChoice.REPLICATED:
        against.append("exchange=replicated: vLLM gives each rank its own piece of the tokens")
    if any(vars(runner)["eplb_table_VK"] is not None for runner in runners):
        against.append("it routes by tokens, which are not told of a rank's piece alone")
    if against:
        raise CannotOwn("the model", against)
    return Ranks(group, Alone(), is_replicated=False, piece=tp.rank_in_group)


def _peers(group: Coordinator) -> Peers:
    return GroupPeers(group.device_group) if group.world_size > 1 else Alone()


def passage_of(layout: SlotLayout, ranks: Ranks, parts: Parts) -> Passage:
    """Return the way from placed tokens to combined ones."""
    if ranks.is_replicated:
        return Staged(ReplicatedExchange(layout, parts.backend))
    return parts.exchange(ranks.group, layout)
