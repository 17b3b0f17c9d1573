# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# The rules are off in this file only: it drives Ray, which is untyped.
"""Ray as the one who starts vLLM's workers, on a machine without accelerators.

vLLM knows no Ray on CPUs. A platform plugin of four lines lets it take CPUs for what Ray calls
NPUs, which is how Ray places the workers of Ascend machines.
"""

import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

__all__ = ["own_folder", "start", "stop"]

PLUGIN = "eplb_ray_on_cpu"
FOLDER = "EPLB_TEST_RAY_FOLDER"
MIB = 1 << 20


@contextmanager
def own_folder() -> Generator[dict[str, str]]:
    """Yield what an engine is started with that starts a Ray, whose workers inherit it.

    All that this Ray writes lies in a folder that is gone at the end. Its sockets lie in it too,
    whose names must not be long.
    """
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        platform = Path(folder) / "platform"
        install_platform(platform)
        yield {
            FOLDER: folder,
            "PYTHONPATH": os.pathsep.join([str(platform), str(Path.cwd())]),
            "RAY_USAGE_STATS_ENABLED": "0",
        }


def start(num_workers: int) -> None:
    """Start a Ray of this process's own; plain `ray.init` would join whichever runs already."""
    import_module("ray").init(
        address="local",
        resources={"NPU": num_workers},
        num_cpus=num_workers,
        include_dashboard=False,
        object_store_memory=80 * MIB,
        _temp_dir=os.environ[FOLDER],
        _node_ip_address="127.0.0.1",
    )


def stop() -> None:
    """End it, with the workers."""
    import_module("ray").shutdown()


def install_platform(folder: Path) -> None:
    """Write the platform plugin, as an installed package, into a folder of the Python path."""
    about = folder / f"{PLUGIN}-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PLUGIN}\nVersion: 1\n")
    (about / "entry_points.txt").write_text(
        f"[vllm.platform_plugins]\n{PLUGIN} = {PLUGIN}:platform\n"
    )
    (folder / f"{PLUGIN}.py").write_text(
        "from vllm.platforms.cpu import CpuPlatform\n\n\n"
        "def platform():\n"
        f"    return '{PLUGIN}.OnRay'\n\n\n"
        "class OnRay(CpuPlatform):\n"
        "    ray_device_key = 'NPU'\n"
    )
