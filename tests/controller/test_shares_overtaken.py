"""What happens while shares are being drawn."""

import pytest

from eplb_service.controller.desk import MapRequest
from eplb_service.controller.sharing import Proposal, ShareTask
from eplb_service.domain.map_file import format_map
from eplb_service.domain.placement import placement_from_ranks
from tests.controller.office import act, office
from tests.controller.test_share_loop import JOINED, QUIET, SKEWED, Floor, turn, words


async def test_shares_that_were_drawn_for_another_placement_are_not_sent_for_this_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    after = placement_from_ranks([[[0, 1, 3], [1, 0, 2]]], num_experts=4)
    async with office(settings=QUIET) as desk:
        await desk.register(JOINED)
        Floor(desk).serve(SKEWED)
        draw = desk.runner.share

        async def late(task: ShareTask, *, deadline_s: float) -> Proposal | None:
            proposal = await draw(task, deadline_s=deadline_s)
            assert proposal is not None
            await desk.controller.acts.import_map(act("r1"), MapRequest(format_map(after, (1,))))
            await desk.settle(16)
            return proposal

        monkeypatch.setattr(desk.runner, "share", late)
        await turn(desk)
        assert {rank.state.served.epoch for rank in desk.ranks} == {1}
        assert words(desk) == [[], []]
