"""Names of vLLM that the plugin relies on are looked up, with the parameters they must take.

Held here against modules of Python's own, since vLLM is not there: `make test-vllm` holds all of
them against the real one.
"""

import sys
from types import ModuleType

import pytest

from moe_runtime.vllm import Need, unmet


def test_what_is_there_is_not_told() -> None:
    assert not unmet(
        [
            Need("vllm_like", "Config.size"),
            Need("vllm_like", "Config.only_annotated"),
            Need("vllm_like", "Config.__init__", ("size",)),
        ]
    )


@pytest.mark.parametrize(
    ("need", "text"),
    [
        (Need("vllm_unlike", "Config"), "vllm_unlike cannot be imported"),
        (Need("vllm_like", "Config.shape"), "vllm_like.Config.shape is missing"),
        (Need("vllm_like", "Config.__init__", ("shape",)), "Config.__init__ takes no shape"),
        (Need("vllm_like", "Config.size", ("shape",)), "vllm_like.Config.size cannot be called"),
    ],
)
def test_what_differs_is_told_by_its_name(need: Need, text: str) -> None:
    (difference,) = unmet([need])
    assert text in difference


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module whose name begins like vLLM's."""
    made = ModuleType("vllm_like")
    made.__dict__["Config"] = Config
    monkeypatch.setitem(sys.modules, "vllm_like", made)


class Base:
    """Where a name may come from too."""

    only_annotated: int


class Config(Base):
    """Something of vLLM's."""

    size = 3

    def __init__(self, size: int) -> None:
        self.only_annotated = size
