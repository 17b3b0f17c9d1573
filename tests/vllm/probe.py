# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# The rules are off in this file only: it drives vLLM, which is not there when types are checked.
"""What a test has a worker of vLLM do: called in the worker's process, whoever started that."""

from dataclasses import asdict
from importlib import import_module
from typing import Any

from benchmarks.balance_vllm.lift import add_balancer
from benchmarks.demo_vllm.parts import START_S
from tests.vllm.routed import Ids, RoutedIds
from tests.vllm.words import DraftStats, Job, Stats


class Probe:
    """What a test knows of one worker."""

    def __init__(self, worker: Any, job: Job) -> None:
        self._worker = worker
        self._epochs: list[tuple[int, int]] = []
        eplb = getattr(worker, "eplb", None)  # of the worker, through its wrapper
        self._hook: Any = eplb and eplb.hook
        if job.drives:
            self._hook = driven_upstream(worker, job.drives)
        self.routed = None if job.captures_nothing else RoutedIds(worker)
        self._watch_epochs()

    def stats(self) -> Stats:
        """Return what the worker counted and holds."""
        digest = import_module("moe_runtime.vllm").digest
        stack = self._stack()
        counters = stack.counters()
        held = stack.held().tolist()
        digests = [
            [digest(stack.slots.expert_tensors(layer, slot)).hex() for slot in range(len(row))]
            for layer, row in enumerate(held)
        ]
        kinds = ("real", "dummy", "warmup", "profile")
        return Stats(
            held=held,
            digests=digests,
            received=counters.received_HLS.sum(axis=0).tolist(),
            sent=counters.sent_HLE.sum(axis=0).tolist(),
            tokens=int(counters.tokens_H.sum()),
            steps=dict(zip(kinds, counters.steps_G.tolist(), strict=True)),
            epochs=list(self._epochs),
            is_halted=self._hook.state().is_halted,
        )

    def draft(self) -> DraftStats:
        """Return what its draft model holds and counted."""
        stack = self._worker.eplb.draft.owned.stack
        return DraftStats(stack.held().tolist(), int(stack.counters().received_HLS.sum()))

    def roll(self, by: int) -> None:
        """Change the map and leave the weights where they are.

        What each slot is said to hold is changed alike, since otherwise the layer refuses. The
        agent is let go of before: it would rightly refuse the next table, and end the rank.
        """
        self._worker.eplb.detach("a test changes the map")
        stack = self._stack()
        for layer in range(stack.facts.num_layers):
            table = stack.live_table(layer)
            table.copy_(table.roll(by, 0))
        held_LS = vars(stack.slots)["_held_LS"]
        held_LS[:] = (held_LS + by) % stack.facts.num_experts

    def attached_anew(self) -> None:
        """Watch the agent that a reload has attached."""
        self._hook = self._worker.eplb.hook
        self._watch_epochs()

    def _stack(self) -> Any:
        return self._worker.eplb.owned.stack

    def _watch_epochs(self) -> None:
        if self._hook is None:
            return
        hook, before_step = self._hook, self._hook.before_step

        def watched() -> int:
            step = before_step()
            epoch = int(hook.state().epoch)
            if not self._epochs or self._epochs[-1][0] != epoch:
                self._epochs.append((epoch, step))
            return step

        hook.before_step = watched


def install(worker: Any, job: dict[str, Any]) -> None:
    """Begin to watch a worker."""
    told = Job(**job)
    if told.layout == "pp":
        give_stage_its_memory(worker)
    worker.test_probe = Probe(worker, told)


def stats(worker: Any) -> dict[str, Any]:
    """Return `Stats`."""
    return asdict(worker.test_probe.stats())


def draft(worker: Any) -> dict[str, Any]:
    """Return `DraftStats`."""
    return asdict(worker.test_probe.draft())


def roll(worker: Any, by: int) -> None:
    """Change the map and leave the weights where they are."""
    worker.test_probe.roll(by)


def attached_anew(worker: Any) -> None:
    """Watch the agent that a reload has attached."""
    worker.test_probe.attached_anew()


def routed(worker: Any, requests: list[str]) -> list[Ids]:
    """Return, and forget, the experts of requests' tokens; empty where none are captured."""
    ids = worker.test_probe.routed
    return [[] if ids is None else ids.of(request) for request in requests]


def give_stage_its_memory(worker: Any) -> None:
    """Allocate what a stage takes from the one before it.

    vLLM does so while it profiles memory. On CPUs it skips that where nothing is compiled, and
    then every stage but the first fails at its first step.
    """
    runner = worker.model_runner
    if import_module("vllm.distributed").get_pp_group().is_first_rank:
        return
    assert runner.intermediate_tensors is None, "vLLM allocates it by itself now"
    runner.intermediate_tensors = runner.model.make_empty_intermediate_tensors(
        batch_size=runner.max_num_tokens, dtype=runner.model_config.dtype, device=runner.device
    )


def driven_upstream(worker: Any, endpoint: str) -> Any:
    """Put vLLM's own balancer in the place of our agent, and drive it; return the hook."""
    main = import_module("worker_agent.main")
    settings = import_module("worker_agent.settings.settings")
    told = settings.AgentSettings(endpoint=endpoint, wait_for_welcome_s=START_S)
    worker.eplb.detach("vLLM's own balancer is to be driven")
    group = import_module("vllm.distributed").get_ep_group().cpu_group

    def attach(seat: Any) -> Any:
        return main.attach_seat(
            seat,
            main.street(told),
            settings=told,
            group=group,
            mover=import_module("worker_agent.adapters.promises").PromiseMover,
        )

    driving = import_module("worker_agent.adapters.vllm.driving")
    return driving.drive_loaded(add_balancer(worker), attach)
