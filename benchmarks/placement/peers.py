"""Public balancers, run from where the user has them, each in a process of its own.

Nothing of them is part of this project. A peer gets the heat and the current layout of each
window, and what it returns is judged like everything else; some put experts twice on a rank,
and their rows say so.

Axes    L MoE layers   E logical experts   P slots
"""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import numpy as np
import numpy.typing as npt

from benchmarks.placement.pipes import receive, send
from benchmarks.placement.shapes import Shape
from eplb_service.domain.errors import InvalidSettings, PlannerFailed
from eplb_service.domain.ids import FloatArray
from eplb_service.domain.placement import Placement

__all__ = ["KINDS", "Peer", "PeerProcess", "peers_of"]

KINDS = ("deepseek", "vllm-ascend", "vllm", "sglang")
NEEDS_PATH = ("deepseek", "vllm-ascend")
LAST_WORDS = 2000
"""Characters of a peer's complaint that are repeated."""
PATIENCE_S = 30.0
"""How long a peer that gave no answer may take to end."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A public balancer and where it is."""

    kind: str
    path: Path | None


def _peer_named(text: str) -> Peer:
    """Read KIND or KIND=PATH; raises InvalidSettings for another kind, or a path that is not."""
    kind, _, path = text.partition("=")
    if kind not in KINDS or (kind in NEEDS_PATH and not path):
        raise InvalidSettings(
            f"no peer is named {text!r}; expected deepseek=PATH, vllm-ascend=PATH, vllm or sglang"
        )
    if path and not Path(path).is_dir():
        raise InvalidSettings(f"peer {kind}: {path} is no folder; expected its source tree")
    return Peer(kind, Path(path).resolve() if path else None)


class PeerProcess:
    """One peer that plans window after window; ended when it is left."""

    def __init__(self, peer: Peer, shape: Shape) -> None:
        self.peer = peer
        sizes = (shape.num_slots, shape.num_ranks)
        self._child = subprocess.Popen(
            [
                *(sys.executable, "-m", "benchmarks.placement.peer_child"),
                *(peer.kind, str(peer.path or "")),
                *map(str, sizes),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._child.kill()
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout, self._child.stderr):
            if pipe is not None and not pipe.closed:
                pipe.close()

    def plan(self, heat: FloatArray, held: Placement) -> tuple[Placement, float]:
        """Return its placement and the milliseconds that it took, on its own clock.

        Raises PlannerFailed with its last words where it does not answer with a layout.
        """
        given, taken = _pipes(self._child)
        try:
            send(given, heat)
            send(given, held.phy2log)
            given.flush()
            phy2log: npt.NDArray[np.int32] = receive(taken)
            spent = float(receive(taken)[0])
        except (EOFError, OSError, ValueError) as broken:
            raise PlannerFailed(
                f"peer {self.peer.kind} gave no plan: {self._last_words()}"
            ) from broken
        return Placement(phy2log, held.num_experts, held.layout), spent

    def _last_words(self) -> str:
        """Wait for a child that has closed its pipe, and return the end of what it said."""
        try:
            _, said = self._child.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            _, said = self._child.communicate()
        return said.decode(errors="replace")[-LAST_WORDS:].strip()


def _pipes(child: "subprocess.Popen[bytes]") -> tuple[IO[bytes], IO[bytes]]:
    assert child.stdin is not None
    assert child.stdout is not None
    return child.stdin, child.stdout


def peers_of(texts: Sequence[str]) -> tuple[Peer, ...]:
    """Read what --peer was given."""
    return tuple(_peer_named(text) for text in texts)
