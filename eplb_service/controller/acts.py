"""All verbs that change something, as one desk."""

from eplb_service.controller.acting import PlanVerbs
from eplb_service.controller.draining import DrainVerbs
from eplb_service.controller.switching import SwitchVerbs


class Acts:
    """A desk.ActDesk: each verb is that of plans, of switches or of drains."""

    def __init__(self, plans: PlanVerbs, switches: SwitchVerbs, drains: DrainVerbs) -> None:
        self.apply = plans.apply
        self.rebalance = plans.rebalance
        self.abort = plans.abort
        self.rollback = plans.rollback
        self.import_map = plans.import_map
        self.freeze = switches.freeze
        self.resume = switches.resume
        self.set_config = switches.set_config
        self.drain = drains.drain
        self.undrain = drains.undrain
