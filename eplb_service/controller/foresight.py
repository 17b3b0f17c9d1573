"""What load a deployment is to expect: its forecast, fed with windows that share no step."""

from dataclasses import dataclass, replace

from eplb_service.controller.deployment import Deployment
from eplb_service.domain.heat import Heat
from eplb_service.domain.ids import Incarnation
from eplb_service.load.fold import heat_of
from eplb_service.load.forecast import Forecast, first_forecast, following


@dataclass(frozen=True, slots=True, eq=False)
class Foresight:
    """A forecast, and how far it has read; heat outlives cutovers, not the rank group."""

    forecast: Forecast
    incarnation: Incarnation
    last_step: int


class Seer:
    """Keeps the forecast of every deployment."""

    def __init__(self) -> None:
        self._known: dict[str, Foresight] = {}

    def expected(self, deployment: Deployment, heat: Heat) -> Heat:
        """The heat of a window as the forecast has it; the window's own until there is one."""
        found = self._fed(deployment)
        if found is None or found.forecast.log_share.shape != heat.tokens.shape:
            return heat
        return replace(heat, tokens=found.forecast.heat(heat.tokens))

    def _fed(self, deployment: Deployment) -> Foresight | None:
        """Feed what was counted since the last sample."""
        name, incarnation = deployment.name, deployment.counted_incarnation
        before = self._known.get(name)
        if before is not None and before.incarnation != incarnation:
            before = None
        windows = deployment.windows
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
        self._known[name] = Foresight(forecast, incarnation, window.last_step)
        return self._known[name]
