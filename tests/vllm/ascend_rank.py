# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# The rules are off in this file only: it drives vllm-ascend, which is not there when types are
# checked.
"""The process of one rank of vllm-ascend's own balancing loop, with its real classes.

Real are, from the package: EplbUpdator, D2DExpertWeightLoader, VllmEplbAdaptor and the functions
below them, and vLLM's groups. Stood in for are the model runner, which needs torch_npu and here
calls them as it does; its settings; the policies, of which none is run; and the MoE layers, which
hold weights and count.

Axes    L layers   R ranks   S local slots   P slots of all ranks   E experts
"""

import json
import os
import sys
import traceback
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

NUM_LAYERS, NUM_EXPERTS, NUM_REDUNDANT, TOP_K, WIDTH = 2, 8, 2, 2, 4
COLLECT, PLAN = 4, 2
"""Forwards in which load is collected, and that a planner is given."""
TOKENS = 64
PACKAGE = Path(__file__).parents[2] / "build" / "vllm-ascend-0.25.1rc1"
RUNNER = "vllm_ascend.worker.model_runner_v1"


class Layer:
    """A MoE layer as vllm-ascend's adaptor reads it."""

    def __init__(self, number: int, rank: int, num_ranks: int) -> None:
        utils = import_module("vllm_ascend.eplb.core.eplb_utils")
        placement = utils.generate_global_placement(NUM_EXPERTS, num_ranks, NUM_REDUNDANT, 0)
        maps = torch.full((num_ranks, NUM_EXPERTS), -1, dtype=torch.int32)
        for peer, row in enumerate(placement):
            maps[peer, row.long()] = torch.arange(len(row), dtype=torch.int32)
        self.number, self.rank = number, rank
        self.ep_rank, self.local_num_experts = rank, placement.shape[1]
        self.global_expert_map = maps
        self.log2phy = utils.generate_log2phy_map(list(maps), rank, tp_size=1)
        own = placement[rank].tolist()
        self.w13_weight = torch.stack([weight(number, expert, 0) for expert in own])
        self.w2_weight = torch.stack([weight(number, expert, 1) for expert in own])
        self.moe_load = torch.zeros(self.local_num_experts, dtype=torch.int64)

    def get_log2phy_map(self) -> torch.Tensor:
        return self.log2phy

    def clear_moe_load(self) -> None:
        self.moe_load.zero_()

    def forward(self, group: Any) -> None:
        """Count what all ranks send to this rank's slots: few experts are liked."""
        numbers = torch.Generator().manual_seed(self.rank)
        liked = torch.arange(NUM_EXPERTS, 0, -1).float()
        chosen = torch.multinomial(liked.repeat(TOKENS, 1), TOP_K, generator=numbers)
        sent = torch.bincount(
            self.log2phy[chosen.reshape(-1)].long(),
            minlength=self.local_num_experts * group.world_size,
        )
        torch.distributed.all_reduce(sent, group=group.cpu_group)
        base = self.rank * self.local_num_experts
        self.moe_load += sent[base : base + self.local_num_experts]


def weight(layer: int, expert: int, part: int) -> torch.Tensor:
    """What an expert holds; no two hold the same."""
    return torch.full((WIDTH, WIDTH), 100.0 * layer + expert + 0.5 * part)


class Rank:
    """The loop as vllm-ascend's runner makes and calls it."""

    def __init__(self, job: dict[str, Any]) -> None:
        rank, num_ranks = int(job["rank"]), int(job["num_ranks"])
        made = groups(rank, num_ranks, int(job["port"]))
        runner = stand_in_for_the_runner()
        self._group = made
        self._steps: list[int] = []
        import_module("worker_agent.adapters.vllm.ascend").replace_planner(
            lambda seat: self._attach(seat, str(job["endpoint"])), top_k=lambda _layer: TOP_K
        )
        adaptors = import_module("vllm_ascend.eplb.adaptor.vllm_adaptor")
        vars(adaptors)["get_ascend_config"] = lambda: SimpleNamespace(enable_fused_mc2=0)
        self._layers = [Layer(number, rank, num_ranks) for number in range(NUM_LAYERS)]
        for layer in self._layers:
            adaptors.VllmEplbAdaptor.register_layer(layer)
        shared: dict[str, Any] = {"expert_map": None, "moe_load": None, "expert_maps": None}
        loader = runner.D2DExpertWeightLoader()
        planner = runner.EplbProcess(shared, policy_type=2, enable_d2d=True, tp_size=1)
        self._updator = runner.EplbUpdator(
            settings(job), loader, planner, planner._launch_process()
        )
        model = SimpleNamespace(config=SimpleNamespace(), quant_config=None)
        adaptor = adaptors.VllmEplbAdaptor(model=model)
        loader.set_adator(adaptor)
        self._updator.set_adaptor(adaptor)
        self._updator.warm_up_eplb()

    def obey(self, command: dict[str, Any]) -> object:
        match command["do"]:
            case "cycle":
                for _ in range(COLLECT + PLAN + NUM_LAYERS):
                    self._updator.forward_before()
                    for layer in self._layers:
                        layer.forward(self._group)
                    self._updator.forward_end(eplb_heat_collection_status=True)
                return self._updator.cur_iterations
            case "stats":
                state = self._hook.state()
                return {
                    "epoch": int(state.epoch),
                    "step": state.step,
                    "is_halted": state.is_halted,
                    "log2phy": [layer.log2phy.tolist() for layer in self._layers],
                    "w13": [layer.w13_weight[:, 0, 0].tolist() for layer in self._layers],
                    "w2": [layer.w2_weight[:, 0, 0].tolist() for layer in self._layers],
                }
            case other:
                raise ValueError(f"no such command: {other}")

    def _attach(self, seat: Any, endpoint: str) -> Any:
        agent = import_module("worker_agent.main")
        settings = import_module("worker_agent.settings.settings")
        told = settings.AgentSettings(endpoint=endpoint)
        self._hook = agent.attach_seat(
            seat,
            agent.street(told),
            settings=told,
            group=self._group.cpu_group,
            mover=import_module("worker_agent.adapters.promises").PromiseMover,
        )
        return self._hook


def settings(job: dict[str, Any]) -> SimpleNamespace:
    """What vllm-ascend's EplbConfig says."""
    return SimpleNamespace(
        eplb_policy_type=2,
        expert_map_path=None,
        expert_map_record_path=job.get("record_path"),
        expert_heat_collection_interval=COLLECT,
        algorithm_execution_interval=PLAN,
    )


def groups(rank: int, num_ranks: int, port: int) -> Any:
    """Make vLLM's groups, and vllm-ascend's own for balancing; return that."""
    distributed = import_module("vllm.distributed")
    config = import_module("vllm.config")
    with config.set_current_vllm_config(config.VllmConfig()):
        distributed.init_distributed_environment(
            num_ranks, rank, f"tcp://127.0.0.1:{port}", rank, "gloo"
        )
        distributed.initialize_model_parallel(backend="gloo")
        states = import_module("vllm.distributed.parallel_state")
        made = states.init_model_parallel_group(
            [list(range(num_ranks))], rank, "gloo", group_name="dynamic_eplb"
        )
    vars(import_module("vllm_ascend.distributed.parallel_state"))["_DYNAMIC_EPLB"] = made
    return made


def stand_in_for_the_runner() -> ModuleType:
    """Bind the names that vllm-ascend's runner binds, in a module of its name."""
    runner: Any = ModuleType(RUNNER)
    for where, name in (
        ("eplb_updator", "EplbUpdator"),
        ("core.eplb_worker", "EplbProcess"),
        ("core.eplb_device_transfer_loader", "D2DExpertWeightLoader"),
    ):
        setattr(runner, name, getattr(import_module(f"vllm_ascend.eplb.{where}"), name))
    sys.modules[RUNNER] = runner
    return runner


def main() -> int:
    """Serve until the input ends."""
    replies = os.fdopen(int(sys.argv[1]), "w", buffering=1)
    sys.path.insert(0, str(PACKAGE))
    sys.modules["vllm_ascend.eplb.core.policy.policy_factory"] = without_policies()
    try:
        rank = Rank(json.loads(sys.argv[2]))
        print(json.dumps({"is": "ready"}), file=replies)
        for line in sys.stdin:
            print(json.dumps({"is": rank.obey(json.loads(line))}), file=replies)
    except BaseException:  # noqa: BLE001  whatever it was, the test tells it
        print(json.dumps({"failed": traceback.format_exc()}), file=replies)
        return 1
    replies.flush()
    os._exit(0)


def without_policies() -> ModuleType:
    """Stand in for the module of policies, which need torch_npu and scipy; none of them is run."""
    factory: Any = ModuleType("policy_factory")
    factory.PolicyFactory = None
    return factory


if __name__ == "__main__":
    sys.exit(main())
