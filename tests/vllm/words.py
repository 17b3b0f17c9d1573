"""What a test and a rank's process say to each other: one JSON object a line."""

from dataclasses import asdict, dataclass
from typing import Literal

Layout = Literal["alone", "dp", "tp", "pp", "dptp"]
"""One rank; engines; tensor-parallel ranks; two pipeline stages, and two engines, of such ranks."""
Executor = Literal["external_launcher", "mp", "ray"]
"""Who starts vLLM's workers: the test, one process for each; or vLLM, or Ray, for one engine."""


@dataclass(frozen=True)
class Job:
    """What a rank's process is to serve."""

    model: str
    layout: Layout
    num_ranks: int
    rank: int
    port: int
    """For the ranks to find each other."""
    executor: Executor = "external_launcher"
    is_drafted: bool = False
    """Whether the model drafts tokens for itself."""
    drives: str = ""
    """Endpoint of a controller that is to drive vLLM's own balancer, lifted onto the CPU."""

    @property
    def num_processes(self) -> int:
        """Processes that a test starts."""
        return self.num_ranks if self.executor == "external_launcher" else 1

    @property
    def captures_nothing(self) -> bool:
        """Whether vLLM's capturer is not bound: a stage has not all layers that it asks for."""
        return self.is_drafted or self.layout == "pp"

    def as_json(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True)
class Answer:
    """One prompt's greedy continuation."""

    tokens: list[int]
    logprobs: list[float]
    experts: list[list[list[int]]]
    """[T][L][K] what vLLM's capturer holds of each token that went through the model; empty of an
    answer that is not vLLM's."""


@dataclass(frozen=True)
class Stats:
    """What one rank counted and holds."""

    held: list[list[int]]
    """[L][S] expert in each slot."""
    digests: list[list[str]]
    """[L][S] of what lies in each slot."""
    received: list[list[int]]
    """[L][S]."""
    sent: list[list[int]]
    """[L][E]."""
    tokens: int
    steps: dict[str, int]
    epochs: list[tuple[int, int]]
    """Each epoch served, with the first step that served it."""
    is_halted: bool


@dataclass(frozen=True)
class DraftStats:
    """What one rank's draft model holds and counted."""

    held: list[list[int]]
    """[L][S] expert in each slot."""
    load: int
