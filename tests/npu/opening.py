"""Try to open an NPU beside torch_npu without CANN, and print the refusal."""

import torch

from moe_runtime.backends.npu import open_npu
from moe_runtime.contracts.npu_errors import NpuUnavailable

__all__ = ["say_nz_has_shapes"]


def say_nz_has_shapes() -> torch.library.Library:
    """Give npu_format_cast the shape function that torch_npu has not: nothing changes."""

    def alike(x: torch.Tensor, *given: object, **named: object) -> torch.Tensor:
        del given, named
        return torch.empty_like(x)

    library = torch.library.Library("npu", "IMPL", "Meta")
    library.impl("npu_format_cast", alike)  # pyright: ignore[reportUnknownMemberType]
    return library


if __name__ == "__main__":
    try:
        open_npu(0)
    except NpuUnavailable as refused:
        print(refused)  # noqa: T201
    else:
        raise SystemExit("a backend was opened where there is no NPU")
