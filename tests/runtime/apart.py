# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateUsage=false
# pyright: reportUnknownLambdaType=false
# Off in this file only: torch hands operators and their arguments over untyped.
"""A device with a memory of its own, for tests: its numbers are computed on the host.

A tensor of it says that it is on npu:0, and what mixes it with one of the host fails like on a
device: an operator takes no tensors of both (but for numbers without axes), and numpy reads none.
It shows where code forgets which memory a tensor is in, and nothing about an NPU.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from moe_runtime.exchange.peers import Arrived, Peers, Pending

__all__ = ["HOME", "PeersApart", "apart", "on_host", "operators_apart"]

HOME = torch.device("meta", 0)
"""Torch lets no tensor be made on a device that it was not built for, so meta stands for it."""


class _Far(Tensor):
    """A tensor of the device."""

    near: Tensor

    @staticmethod
    def __new__(cls: type["_Far"], near: Tensor) -> "_Far":
        made = Tensor._make_wrapper_subclass(
            cls, near.shape, strides=near.stride(), dtype=near.dtype, device=HOME
        )
        made.near = near
        return made

    @classmethod
    def __torch_dispatch__(
        cls,
        func: Any,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        del cls, types
        return _run(func, args, kwargs or {})


def _run(func: Any, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    flat, _ = tree_flatten((args, kwargs))
    far = [t for t in flat if isinstance(t, _Far)]
    near = [t for t in flat if isinstance(t, Tensor) and not isinstance(t, _Far)]
    moves = func.overloadpacket in {torch.ops.aten._to_copy, torch.ops.aten.copy_}
    if far and not moves and any(t.dim() for t in near):
        raise RuntimeError(f"{func} mixes tensors of the device with {near[0].shape} of the host")
    wanted = kwargs.get("device")
    asked = torch.device(str(wanted)) if wanted is not None else None
    stays = bool(far) if asked is None else asked == HOME
    if moves and func.overloadpacket is torch.ops.aten.copy_:
        stays = isinstance(args[0], _Far)
    plain = {**kwargs, "device": torch.device("cpu")} if asked is not None else kwargs
    args, plain = tree_map(lambda t: t.near if isinstance(t, _Far) else t, (args, plain))
    returned = func(*args, **plain)
    if not stays:
        return returned
    mine = {id(t.near): t for t in far}  # what is changed in place is returned as it came
    return tree_map(lambda t: mine[id(t)] if id(t) in mine else _far(t), returned)


def _near(value: object) -> object:
    return on_host(value) if isinstance(value, Tensor) else value


def _far(value: object) -> object:
    return _Far(value) if isinstance(value, Tensor) and not isinstance(value, _Far) else value


class _Making(TorchDispatchMode):
    """Lets tensors be made on the device, and brought to it."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        del types
        return _run(func, args, kwargs or {})


class _Numbers(TorchFunctionMode):
    """Lets tensors be made of numbers on the device; meta tensors would forget the numbers."""

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        del types
        given = dict(kwargs or {})
        if func is torch.tensor and given.get("device") == HOME:
            return _far(func(*args, **{**given, "device": "cpu"}))
        return func(*args, **given)


@contextmanager
def apart() -> Generator[None]:
    """Have the device in here."""
    with _Numbers(), _Making():
        yield


def on_host(tensor: Tensor) -> Tensor:
    """Return the numbers of a tensor of the device."""
    assert isinstance(tensor, _Far), f"a tensor of shape {tuple(tensor.shape)} is on the host"
    return tensor.near


class operators_apart:  # noqa: N801  it stands for torch.ops.npu, which is no class to its callers
    """Kernels as operators of the device: they take its tensors only."""

    def __init__(self, kernels: dict[str, Callable[..., Any]]) -> None:
        self._kernels = kernels

    def __getattr__(self, name: str) -> Callable[..., Any]:
        kernel = self._kernels.get(name)
        if kernel is None:
            raise AttributeError(name)

        def run(**given: object) -> object:
            plain = cast("dict[str, object]", tree_map(_near, given))
            return tree_map(_far, kernel(**plain))

        return run


class PeersApart:
    """Meets `Peers`: carries the device's tensors over a group of the host."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self.rank, self.size = peers.rank, peers.size

    def all_gather(self, rows: Tensor, rows_N: Sequence[int]) -> Tensor:
        return _Far(self._peers.all_gather(on_host(rows), rows_N))

    def all_to_all(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        return _Far(self._peers.all_to_all(on_host(rows), sent, received))

    def start_all_to_all(
        self, rows: Tensor, sent: Sequence[int], received: Sequence[int], *, what: str
    ) -> Pending:
        return Arrived(
            _Far(self._peers.start_all_to_all(on_host(rows), sent, received, what=what).wait())
        )
