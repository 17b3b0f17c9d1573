"""proto/gen was generated from the proto files as they are, by the oldest supported generator.

`make gen` writes proto/gen/MANIFEST: the sha256 of every source and of every file it made. So this
needs no generator: a proto file changed later, or a generated file changed by hand, is noticed.
"""

import hashlib
import re
import tomllib
from pathlib import Path

from tests.architecture.sources import GENERATED, ROOT, repository_files, text_of

PROTO = ROOT / "proto"
PINS = Path("requirements/proto-gen.txt")
ADVICE = "run `make gen` and commit proto/gen"


def manifest() -> dict[str, str]:
    """sha256 by file, relative to proto/."""
    lines = (PROTO / "gen" / "MANIFEST").read_text(encoding="utf-8").splitlines()
    return {name: digest for digest, name in (line.split() for line in lines)}


def test_every_proto_and_generated_file_is_as_it_was_at_generation() -> None:
    listed = manifest()
    changed = [
        name
        for name, digest in listed.items()
        if not (PROTO / name).is_file()
        or hashlib.sha256((PROTO / name).read_bytes()).hexdigest() != digest
    ]
    assert not changed, ADVICE


def test_no_proto_or_generated_file_is_missing_from_the_manifest() -> None:
    there = {
        str(path.relative_to("proto"))
        for path in repository_files()
        if str(path).startswith(GENERATED) or path.suffix == ".proto"
    }
    assert there - {"gen/MANIFEST"} == set(manifest()), ADVICE


def test_the_generator_is_the_oldest_that_the_base_install_allows() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        base = " ".join(tomllib.load(file)["project"]["dependencies"])
    oldest = dict(re.findall(r"([\w-]+)>=([\d.]+)", base))
    pins = dict(re.findall(r"^([\w-]+)==([\d.]+)", text_of(PINS), re.MULTILINE))
    assert pins["grpcio"] == pins["grpcio-tools"] == oldest["grpcio"]
    assert pins["protobuf"] == oldest["protobuf"]
