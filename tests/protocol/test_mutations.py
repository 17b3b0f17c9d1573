"""The simulator notices when a safeguard of the protocol is taken out."""

import pytest

from tests.protocol.hunting import hunt
from tests.protocol.mutations import MUTATIONS, Mutate


@pytest.mark.slow
@pytest.mark.parametrize("mutate", MUTATIONS, ids=[mutate.__name__ for mutate in MUTATIONS])
def test_a_missing_safeguard_is_caught(mutate: Mutate) -> None:
    assert hunt(mutate) is not None
