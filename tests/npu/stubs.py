"""Stand-ins for the CANN libraries that torch_npu links against, so that it can be imported.

    python -m tests.npu.stubs TORCH_NPU_DIR OUT_DIR

Each function that torch_npu leaves undefined becomes one that fails; only the count of devices
succeeds, and says 0. Names come from the installed files by nm and readelf; nothing of CANN is
used, and nothing can compute. Built with gcc, in a second.
"""

import ctypes
import subprocess
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

__all__ = ["build"]

_FAILED = 500000
_POINTERS = {"aclCreateDataBuffer", "aclCreateTensorDesc", "aclopCreateAttr"}
_TEXTS = {"aclGetRecentErrMsg", "aclrtGetSocName"}
_COUNT = "aclrtGetDeviceCount"
_HOLDER = "libascendcl.so"
"""The library that gets all functions; the others are empty."""


def build(package: Path, out: Path) -> None:
    """Write the stand-ins for one installed torch_npu package into a folder."""
    ours = [*package.glob("_C*.so"), *(p for p in package.glob("lib/*.so") if "atb" not in p.name)]
    spec = find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    torch_libraries = sorted(Path(spec.origin).parent.glob("lib/*.so*"))
    out.mkdir(parents=True, exist_ok=True)
    functions = "\n".join(_function(name) for name in _undefined(ours, torch_libraries))
    (out / "functions.c").write_text(functions + "\n")
    (out / "empty.c").write_text("\n")
    for name in _missing(ours, {path.name for path in (*ours, *torch_libraries)}):
        source = out / ("functions.c" if name == _HOLDER else "empty.c")
        _run("gcc", "-shared", "-fPIC", "-w", f"-Wl,-soname,{name}", "-o", out / name, source)


def _function(name: str) -> str:
    if name == _COUNT:
        return f"int {name}(unsigned *count) {{ *count = 0; return 0; }}"
    if name in _TEXTS:
        return f'const char *{name}(void) {{ return ""; }}'
    return f"long {name}(void) {{ return {0 if name in _POINTERS else _FAILED}; }}"


def _undefined(ours: Iterable[Path], torch_libraries: Iterable[Path]) -> list[str]:
    """Names that nobody defines: not ours, not torch's, not this process's own."""
    process = ctypes.CDLL(None)
    wanted = {name for path in ours for name in _names(path, "--undefined-only")}
    there = {name for path in (*ours, *torch_libraries) for name in _names(path, "--defined-only")}
    # A name with a version, like getenv@GLIBC, is the system's.
    return sorted(n for n in wanted - there if "@" not in n and not hasattr(process, n))


def _names(path: Path, which: str) -> set[str]:
    lines = _run("nm", "--dynamic", which, path).splitlines()
    names = {line.split()[-1] for line in lines if line.split()[-2:-1] != ["w"]}
    return names if which == "--undefined-only" else {name.split("@")[0] for name in names}


def _missing(ours: Iterable[Path], present: set[str]) -> list[str]:
    needed: set[str] = set()
    for path in ours:
        for line in _run("readelf", "--dynamic", "--wide", path).splitlines():
            if "(NEEDED)" in line:
                needed.add(line.partition("[")[2].partition("]")[0])
    # The system's libraries carry a version after .so; CANN's do not.
    return sorted(n for n in needed - present if n.endswith(".so"))


def _run(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    build(Path(sys.argv[1]), Path(sys.argv[2]))
