"""Expert maps at the operators' desk: written, gone to, or only tried."""

import json

import pytest

from eplb_service.controller.desk import MapRequest
from eplb_service.controller.machine_state import PlanPhase
from eplb_service.controller.views import NothingView, PlanView
from eplb_service.domain.errors import InvalidMapFile, MisfitPlacement
from eplb_service.domain.map_file import format_map
from tests.controller.group import SWAPPED
from tests.controller.office import act, office
from tests.controller.test_desks import ready


async def test_export_and_import_round_trip() -> None:
    async with office() as o:
        await ready(o)
        text = await o.controller.operators.export("", 0)
        same = await o.controller.acts.import_map(act(), MapRequest(text))
        assert isinstance(same, NothingView)
        document = json.loads(text)
        document["layer_list"][0]["device_list"][0]["device_expert"] = [2, 1]
        document["layer_list"][0]["device_list"][1]["device_expert"] = [0, 3]
        found = await o.controller.acts.import_map(act(), MapRequest(json.dumps(document)))
        assert isinstance(found, PlanView)
        await o.settle()
        assert all(r.placement.digest() == SWAPPED.digest() for r in o.ranks)
        with pytest.raises(InvalidMapFile):
            await o.controller.acts.import_map(act(), MapRequest(text[:-10]))


async def test_a_map_of_another_rank_count_needs_reshape() -> None:
    async with office() as o:
        await ready(o)
        layer = {
            "layer_id": 0,
            "device_count": 4,
            "device_list": [
                {"device_id": r, "device_expert": [e]} for r, e in enumerate([2, 1, 0, 3])
            ],
        }
        text = json.dumps({"moe_layer_count": 1, "layer_list": [layer]})
        with pytest.raises(MisfitPlacement, match="ranks 4, expected 2"):
            await o.controller.acts.import_map(act(), MapRequest(text))
        found = await o.controller.acts.import_map(act(), MapRequest(text, may_reshape=True))
        assert isinstance(found, PlanView)
        await o.settle()
        assert all(r.placement.digest() == SWAPPED.digest() for r in o.ranks)


async def test_a_map_that_is_only_tried_is_kept_for_apply() -> None:
    async with office() as o:
        await ready(o)
        text = format_map(SWAPPED, (0,))
        found = await o.controller.acts.import_map(act(), MapRequest(text, is_dry_run=True))
        assert isinstance(found, PlanView)
        assert (found.phase, found.is_dry_run) == (PlanPhase.DRAFTED, True)
        await o.settle()
        assert not any(r.placement.digest() == SWAPPED.digest() for r in o.ranks)
        await o.controller.acts.apply(act("r2"), found.plan.plan_id)
        await o.settle()
        history = await o.controller.operators.history("", 10)
        assert any("dry run, nothing changed: plan yes" in e.text for e in history.entries)
        assert all(r.placement.digest() == SWAPPED.digest() for r in o.ranks)
