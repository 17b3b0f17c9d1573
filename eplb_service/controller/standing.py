"""From a deployment to what the gates look at."""

from eplb_service.clock import Clock
from eplb_service.controller.deployment import Deployment
from eplb_service.controller.looks import imbalance_view
from eplb_service.controller.runs import halt_text
from eplb_service.controller.sharing import mean_noise
from eplb_service.gates.context import Budget, Evidence, Standing
from eplb_service.gates.trial import trust
from eplb_service.load.fold import heat_of
from eplb_service.load.window import LoadWindow


def evidence_of(deployment: Deployment, window: LoadWindow | None) -> Evidence:
    """What the newest window says of itself."""
    measured = imbalance_view(deployment, window)
    tokens_per_expert, noise = 0.0, 0.0
    if window is not None and window.num_steps:
        placement = deployment.counted_placement
        tokens = heat_of(window, placement).tokens
        noise = mean_noise(tokens, placement.layout.num_ranks)
        loaded = tokens[tokens.sum(axis=1) > 0]
        tokens_per_expert = float(loaded.mean()) if loaded.size else 0.0
    return Evidence(
        num_steps=window.num_steps if window else 0,
        coverage=window.coverage if window else 0.0,
        tokens_per_expert=tokens_per_expert,
        imbalance_mean=measured.mean,
        imbalance_worst=measured.worst,
        noise=noise,
    )


def standing_of(deployment: Deployment, clock: Clock) -> Standing:
    """How the deployment stands now."""
    freeze = deployment.switches.freeze
    frozen_for_s = max(0.0, freeze.until_s - clock.wall_s()) if freeze else 0.0
    return Standing(
        halt=halt_text(deployment.driver.state),
        frozen_for_s=frozen_for_s,
        freeze_reason=f"{freeze.reason} ({freeze.who})" if freeze and frozen_for_s else "",
        since_last_plan_s=clock.monotonic_s() - deployment.last_plan_ended_s,
        num_fruitless=deployment.num_fruitless,
        trust=trust(deployment.kept_promises),
    )


def budget_of(deployment: Deployment) -> Budget:
    """What one plan of the deployment may cost."""
    return deployment.tuning.planning.budget
