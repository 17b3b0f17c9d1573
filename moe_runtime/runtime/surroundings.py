"""What a caller has put around a call, and what of it must not reach what is computed or kept."""

from collections.abc import Generator
from contextlib import ExitStack, contextmanager

import torch

__all__ = ["lasting", "undisturbed"]

_HOST = torch.device("cpu")


@contextmanager
def undisturbed(home: torch.device = _HOST) -> Generator[None]:
    """Compute in the dtypes that tensors have: without autocast, which would put another in place.

    home    memory in which is computed, beside the host's
    """
    with ExitStack() as stack:
        for kind in {_HOST.type, home.type}:
            if torch.amp.is_autocast_available(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


@contextmanager
def lasting(home: torch.device = _HOST) -> Generator[None]:
    """Likewise, and make tensors into which later calls may write, from any thread.

    Those made in inference mode can be written to there only.
    """
    # Leaving inference mode would let gradients be tracked, so they are told not to be.
    with undisturbed(home), torch.inference_mode(mode=False), torch.no_grad():
        yield
