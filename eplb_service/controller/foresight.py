"""What load a deployment is to expect: its forecast, fed with windows that share no step."""

from dataclasses import replace

from eplb_service.controller.deployment import Deployment, Foresight
from eplb_service.domain.heat import Heat
from eplb_service.load.fold import heat_of
from eplb_service.load.forecast import first_forecast, following


def expected(deployment: Deployment, heat: Heat) -> Heat:
    """The heat of a window as the forecast has it; the window's own until there is one."""
    deployment.foresight = found = _fed(deployment)
    if found is None or found.forecast.log_share.shape != heat.tokens.shape:
        return heat
    return replace(heat, tokens=found.forecast.heat(heat.tokens))


def _fed(deployment: Deployment) -> Foresight | None:
    """Feed what was counted since the last sample."""
    incarnation, before, windows = (
        deployment.counted_incarnation,
        deployment.foresight,
        deployment.windows,
    )
    if before is not None and before.incarnation != incarnation:
        # The group is another one and counts from 0; the model and those who use it are the same.
        before = replace(before, incarnation=incarnation, last_step=0)
    if windows is None:
        return before
    since = before.last_step if before else 0
    window = windows.window(deployment.tuning.planning.phase, since=since)
    if not window.num_steps or window.coverage < 1.0:
        return before
    tokens = heat_of(window, deployment.counted_placement).tokens
    if before is not None and before.forecast.log_share.shape == tokens.shape:
        forecast = following(before.forecast, tokens)
    else:
        forecast = first_forecast(tokens)
    return Foresight(forecast, incarnation, window.last_step)
