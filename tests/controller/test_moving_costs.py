"""What waves moved, and how fast, is measured and prices the next plan."""

from eplb_service.controller.desk import MapRequest
from eplb_service.controller.drawing import Draw, task_of
from eplb_service.controller.planning import ToPlacement
from eplb_service.domain.map_file import format_map
from eplb_service.domain.plan import Origin
from tests.controller.group import FLAT, SHAPE, SWAPPED
from tests.controller.office import act, office


async def test_a_wave_that_settled_tells_how_fast_links_are() -> None:
    async with office() as o:
        await o.register(FLAT)
        [deployment] = list(o.controller.registry.all())
        draw = Draw(ToPlacement(SWAPPED), (), Origin.OPERATOR, "test")
        assert task_of(deployment, draw).timing.bytes_per_s == 0
        await o.controller.acts.import_map(act(), MapRequest(format_map(SWAPPED, SHAPE.layers)))
        await o.settle()
        assert o.ranks[0].placement.digest() == SWAPPED.digest()
        links = deployment.links
        assert links.num_bytes == 2 * SHAPE.bytes_per_expert
        assert links.busiest_bytes == SHAPE.bytes_per_expert
        assert task_of(deployment, draw).timing.bytes_per_s == links.busiest_bytes / links.seconds
