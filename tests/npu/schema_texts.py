"""Operator schemas as the torch-npu library itself spells them: read from its bytes, not run.

    python -m tests.npu.schema_texts DIR ...

writes tests/npu/schemas.json anew from folders made by `pip install --no-deps --target DIR
torch-npu==VERSION`; the folder's name ends in that version.
"""

import json
import sys
from pathlib import Path

from moe_runtime.backends.npu_rules import RULES

__all__ = ["SNAPSHOT", "schema_texts", "snapshot"]

SNAPSHOT = Path(__file__).parent / "schemas.json"
_ARROW = ") -> "


def schema_texts(folder: Path) -> dict[str, str]:
    """Schema of each operator that the backend calls, in the torch-npu installed in a folder."""
    library = (folder / "torch_npu/lib/libtorch_npu.so").read_bytes()
    found: dict[str, set[str]] = {}
    for name in RULES:
        start = library.find(f"{name}(".encode())
        while start >= 0:
            text = library[start : library.find(b"\0", start)].decode(errors="replace")
            if _ARROW in text and library[start - 1 : start] in {b"\0", b":"}:
                found.setdefault(name, set()).add(text)
            start = library.find(f"{name}(".encode(), start + 1)
    missing = RULES.keys() - found.keys()
    assert not missing, f"{folder} does not spell {sorted(missing)}"
    several = {name: texts for name, texts in found.items() if len(texts) > 1}
    assert not several, f"{folder} spells operators in several ways: {several}"
    return {name: next(iter(found[name])) for name in sorted(found)}


def snapshot() -> dict[str, dict[str, str]]:
    """Schemas by version and operator, as committed."""
    return json.loads(SNAPSHOT.read_text())


if __name__ == "__main__":
    texts = {
        folder.rpartition("-")[2]: schema_texts(Path(folder)) for folder in sorted(sys.argv[1:])
    }
    SNAPSHOT.write_text(json.dumps(texts, indent=1) + "\n")
