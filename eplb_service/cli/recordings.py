"""Load windows recorded from a controller: docs/recording.md tells the format.

Axes    T windows   L MoE layers   E logical experts
"""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from eplb_service.domain.errors import InvalidTable
from eplb_service.domain.ids import FloatArray

FORMAT, VERSION = "eplb-recording", 1
MOST_TOKEN_BYTES = 256 << 20
"""Of the windows in memory; one that does not fit any more ends the recording."""
LARGEST = 2.0**53
"""Numbers beyond it are none that eplbctl wrote: a float does not tell them apart."""
FIELDS = ("deployment", "placement", "model_layers", "at_s", "num_steps", "coverage", "tokens")
Arrays = Mapping[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]]


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """One look at the controller's newest window."""

    at_s: float
    """Unix time of the look."""
    num_steps: int
    coverage: float
    tokens: FloatArray
    """[L, E]"""


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """Windows of one deployment in their order."""

    deployment: str
    placement: str
    """Text of the expert map served at the last window."""
    model_layers: tuple[int, ...]
    """[L]"""
    windows: Sequence[Window]

    @property
    def tokens(self) -> FloatArray:
        """Tokens [T, L, E] of all windows."""
        return np.stack([window.tokens for window in self.windows])


def is_recording(arrays: Arrays) -> bool:
    """Whether arrays say that they are one, of whatever version."""
    return "format" in arrays and str(arrays["format"]) == FORMAT


def encode_recording(recording: Recording) -> bytes:
    """Write it down."""
    held = io.BytesIO()
    np.savez_compressed(
        held,
        format=np.array(FORMAT),
        version=np.array(VERSION),
        deployment=np.array(recording.deployment),
        placement=np.array(recording.placement),
        model_layers=np.array(recording.model_layers, dtype=np.int32),
        at_s=np.array([window.at_s for window in recording.windows]),
        num_steps=np.array([window.num_steps for window in recording.windows], dtype=np.int64),
        coverage=np.array([window.coverage for window in recording.windows]),
        tokens=recording.tokens,
    )
    return held.getvalue()


def decode_recording(arrays: Arrays) -> Recording:
    """Read it back; raises InvalidTable for another version, or for what does not belong."""
    version = str(arrays["version"]) if "version" in arrays else "none"
    if version != str(VERSION):
        raise InvalidTable(f"a recording of version {version}; this eplbctl reads {VERSION}")
    missing = [name for name in FIELDS if name not in arrays]
    if missing:
        raise InvalidTable(f"a recording without {', '.join(missing)}")
    tokens = arrays["tokens"]
    if tokens.ndim != 3 or not tokens.size or tokens.dtype != np.float64:
        raise InvalidTable(
            f"a recording with tokens {tokens.dtype} {list(tokens.shape)}; expected float64 "
            "[windows, layers, experts]"
        )
    count, layers, _ = tokens.shape
    _require_shapes(arrays, {"at_s": count, "num_steps": count, "coverage": count})
    _require_shapes(arrays, {"model_layers": layers})
    at_s, steps, coverage = (
        arrays[name].astype(np.float64).tolist() for name in ("at_s", "num_steps", "coverage")
    )
    return Recording(
        deployment=str(arrays["deployment"]),
        placement=str(arrays["placement"]),
        model_layers=tuple(arrays["model_layers"].astype(np.int64).tolist()),
        windows=tuple(
            Window(at_s[nth], int(steps[nth]), coverage[nth], tokens[nth].astype(np.float64))
            for nth in range(count)
        ),
    )


def _require_shapes(arrays: Arrays, expected: Mapping[str, int]) -> None:
    for name, count in expected.items():
        array = arrays[name]
        is_numbers = array.dtype.kind in "iuf" and (np.abs(array.astype(float)) < LARGEST).all()
        if array.shape != (count,) or not is_numbers:
            raise InvalidTable(
                f"a recording with {name} {array.dtype} {list(array.shape)}; expected {count} "
                "finite numbers"
            )
