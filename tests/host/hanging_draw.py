"""A controller to be killed while it draws a plan that never comes; the planner says its pid."""

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from eplb_service.host.planner_process import ProcessPlanRunner
from tests.host.planted import hot_task

if __name__ == "__main__":
    asyncio.run(ProcessPlanRunner().draw(hot_task("hang"), deadline_s=600.0))
