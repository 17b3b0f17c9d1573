"""Waves drawn by chance, with all that goes on record when their number is spent."""

from random import Random

from eplb_service.domain.ids import Epoch
from eplb_service.domain.wave import wave_digest
from eplb_service.protocol.messages import WaveName
from eplb_service.protocol.wave_state import WavePhase
from eplb_service.sim.controller import SimController
from eplb_service.sim.store import SimStore, Stand, WaveRecord
from eplb_service.sim.waves import neighbour, shares_of, wave_content


def draw_wave(
    controller: SimController, store: SimStore, base: Epoch, *, num_steps: int, rng: Random
) -> WaveRecord | None:
    """Draw a wave from a recorded placement; None where chance changed nothing."""
    old = store.stands[base].placement
    new = neighbour(old, rng)
    if new.digest() == old.digest():
        return None
    shares = shares_of(new, controller.deployment.ownership)
    content = wave_content(old, new, base_epoch=base, shares=shares, rng=rng)
    incarnation = controller.beliefs.incarnation
    expires = controller.beliefs.step + num_steps
    digest = wave_digest(content, incarnation=incarnation, expires_at_step=expires)
    return WaveRecord(
        wave=WaveName(store.next_epoch, digest),
        incarnation=incarnation,
        expires_at_step=expires,
        content=content,
        after=Stand(new, shares),
        phase=WavePhase.SPENT,
    )
