"""Settings as the controller reads them: its tuning, under an operator's overrides."""

import json
from collections.abc import Mapping
from contextlib import suppress

from eplb_service.controller.errands import Cadence
from eplb_service.controller.machine_state import Pace
from eplb_service.controller.tuning import PlanningTerms, RankCosts, ShareTerms, Tuning
from eplb_service.domain.errors import InvalidSettings
from eplb_service.gates.context import Budget
from eplb_service.gates.settings import GateSettings as GateThresholds
from eplb_service.load.group import WindowTerms
from eplb_service.settings.settings import Settings, merge_overrides, read_overrides

NO_OVERRIDES = "{}"
MOST_KNOWN = 64
"""Overrides whose tuning is kept; more than deployments of one controller have."""


class SettingsTuner:
    """Implements controller.tuning.Tuner over one tree of settings."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._known: dict[str, Tuning] = {}
        """By overrides: it is looked at many times a second for every deployment."""

    def tuning(self, overrides: str) -> Tuning:
        """Return the tuning under these overrides; raises InvalidSettings."""
        if overrides not in self._known:
            while len(self._known) >= MOST_KNOWN:
                del self._known[next(iter(self._known))]
            self._known[overrides] = self._tuning(overrides)
        return self._known[overrides]

    def _tuning(self, overrides: str) -> Tuning:
        settings = self._settings.with_overrides(overrides)
        window, protocol = settings.window, settings.protocol
        return Tuning(
            planning=_planning(settings),
            shares=ShareTerms(**settings.shares.model_dump()),
            gates=GateThresholds(**settings.gates.model_dump()),
            windows=WindowTerms(
                report_steps=window.report_every_steps,
                interval_steps=window.interval_steps,
                num_intervals=window.num_intervals,
            ),
            pace=Pace(
                nudge_interval_s=protocol.nudge_interval_s,
                wave_deadline_s=protocol.wave_deadline_s,
                expiry_steps=protocol.expiry_steps,
                agree_every=protocol.agree_every,
            ),
            cadence=Cadence(window.report_every_steps, window.sent_every_reports),
            num_redundant=settings.registration.num_redundant,
        )

    def usable(self, overrides: str) -> tuple[str, str]:
        """Return the overrides that this release can use, and what is wrong with the others."""
        try:
            self._settings.with_overrides(overrides)
        except InvalidSettings as wrong:
            return self._usable_ones(overrides), str(wrong)
        return overrides, ""

    def _usable_ones(self, overrides: str) -> str:
        """Take them one by one: an upgrade may have renamed or bounded some."""
        kept = NO_OVERRIDES
        try:
            values = read_overrides(overrides)
        except InvalidSettings:
            return kept
        for name, value in values.items():
            with suppress(InvalidSettings):
                kept = self.merged(kept, {name: json.dumps(value)})
        return kept

    def shown(self, overrides: str) -> Mapping[str, str]:
        """Return every setting that operators may change, by dotted name, as JSON."""
        return self._settings.with_overrides(overrides).overridable()

    def merged(self, overrides: str, values: Mapping[str, str]) -> str:
        """Return the overrides with these values set, all or none; raises InvalidSettings."""
        merged = merge_overrides(overrides, values)
        self._settings.with_overrides(merged)
        return merged


def _planning(settings: Settings) -> PlanningTerms:
    planning, budget = settings.planning, settings.budget
    return PlanningTerms(
        is_automatic=planning.is_automatic,
        policy=planning.policy,
        interval_s=planning.interval_s,
        deadline_s=planning.deadline_s,
        phase=planning.phase,
        budget=Budget(
            budget.max_moves,
            budget.max_bytes,
            per_layer=budget.max_moves_per_layer,
            per_rank=budget.max_moves_per_rank,
        ),
        round_bytes=budget.round_bytes,
        max_slowdown=budget.max_slowdown,
        distances=planning.distances,
        costs=RankCosts(planning.rank_speeds or (), planning.expert_cost),
    )
