"""Try to open an NPU beside torch_npu without CANN, and print the refusal."""

from moe_runtime.backends.npu import open_npu
from moe_runtime.contracts.npu_errors import NpuUnavailable

if __name__ == "__main__":
    try:
        open_npu(0)
    except NpuUnavailable as refused:
        print(refused)  # noqa: T201
    else:
        raise SystemExit("a backend was opened where there is no NPU")
