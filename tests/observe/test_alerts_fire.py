"""Every alert is told for its fault and again when it is mended.

Real: the controller and its store, Prometheus that scrapes it, Alertmanager, and the webhook that
it tells. The rules are those that are shipped with seconds for minutes (`tools.hurried`). Ranks
are scripted, for their faults; what they say and how they switch is the real machine's.
"""

import os
import sqlite3
from collections.abc import Generator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest
import yaml

from tests.host.processes import await_so, free_port
from tests.observe.dashboards import RULES
from tests.observe.house import House, house
from tests.observe.scripted import ScriptedGroup
from tests.observe.tools import Heard, Prometheus, hurried, prometheus, webhook
from tests.observe.troubles import (
    LOOK_S,
    PLACEMENT,
    ROLLED_BACK,
    TROUBLES,
    Trouble,
    freeze,
    planners_dying,
)

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(900)]
TELL_S = 240.0
TURN_S = 0.4
"""Of a group: there are as many as alerts, on one machine."""
OF_THE_CONTROLLER = {"EplbStoreDown", "EplbTwoLeaders", "EplbControllerAbsent", "EplbWatchdog"}


@dataclass
class Site:
    """Everything that runs: one controller, with one deployment for each trouble."""

    folder: Path
    home: House
    ports: tuple[int, int]
    """For the metrics of two further controllers that Prometheus scrapes too."""
    heard: Heard
    prometheus: Prometheus
    groups: dict[str, ScriptedGroup] = field(default_factory=dict[str, ScriptedGroup])

    @property
    def store(self) -> Path:
        """The controllers' database."""
        return self.folder / "eplb.db"

    def await_firing(self, trouble: Trouble, alert: str) -> None:
        """Wait until the webhook was told of an alert; one that counts may be over again."""
        group, labels = self.groups[trouble.name], self.labels(trouble)

        def is_told() -> bool:
            if self.heard.has("firing", alert, **labels):
                return True
            if trouble.again:
                trouble.again(self.home, group)
            return False

        await_so(is_told, within_s=TELL_S, what=f"{alert} {labels} is told", every_s=LOOK_S)

    def await_told(self, alert: str) -> None:
        """Wait until the webhook was told of an alert of the controller itself."""
        await_so(lambda: self.heard.has("firing", alert), within_s=TELL_S, what=f"{alert} is told")

    def await_resolved(self, alert: str, **labels: str) -> None:
        """Wait until the newest that the webhook was told of an alert is its end."""
        await_so(
            lambda: self.heard.newest(alert, **labels) == "resolved",
            within_s=TELL_S,
            what=f"the end of {alert} {labels} is told",
        )

    def labels(self, trouble: Trouble) -> dict[str, str]:
        """What the alert of a trouble must name."""
        return {"deployment": self.groups[trouble.name].name, **dict(trouble.labels)}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Generator[Site]:
    folder = tmp_path_factory.mktemp("alerts")
    ports = free_port(), free_port()
    with ExitStack() as stack:
        home = stack.enter_context(house(folder, metrics_port=free_port(), **SECTIONS))
        hook, heard = stack.enter_context(webhook())
        targets = {"eplb": ("/metrics", home.metrics_port, *ports)}
        rules = hurried(RULES.read_text())
        watching = stack.enter_context(prometheus(folder, targets, rules=rules, hook=hook))
        one = Site(folder, home, ports, heard, watching)
        for trouble in TROUBLES:
            one.groups[trouble.name] = home.serve(
                trouble.name, PLACEMENT, trouble.heat, every_s=TURN_S
            )
        for group in one.groups.values():
            await_so(lambda g=group: home.has_window(g.name), within_s=60, what=group.name)
        await_so(
            lambda: len(watching.query("eplb_ranks{state='connected'} == 2")) == len(TROUBLES),
            within_s=60,
            what="a scrape of all deployments",
        )
        yield one


SECTIONS: dict[str, dict[str, str | float | bool]] = {
    # Planning is automatic, and a deployment must ask for it by a trigger of its own.
    "planning": {"is_automatic": True, "interval_s": 1.0, "deadline_s": 240.0},
    "gates": {
        "min_steps": 20,
        "cooldown_s": 0.0,
        "trigger_imbalance": 1000.0,
        "trigger_worst_layer": 1000.0,
    },
    "shares": {"is_automatic": False},
    # A leader learns at its next beat that it was fenced: these have none while the test runs.
    "leading": {"beat_s": 3600.0, "takeover_s": 7200.0},
    "protocol": {"nudge_interval_s": 0.5, "wave_deadline_s": 240.0},
}


@pytest.fixture(scope="module")
def begun(site: Site) -> Generator[ExitStack]:
    """Every deployment has its fault."""
    with ExitStack() as dying:
        for trouble in TROUBLES[:-1]:
            trouble.begin(site.home, site.groups[trouble.name])
        dying.enter_context(planners_dying(site.home))
        TROUBLES[-1].begin(site.home, site.groups[TROUBLES[-1].name])
        yield dying


@pytest.fixture(scope="module")
def mended(site: Site, begun: ExitStack) -> Site:
    """Every fault was told of and is mended."""
    for trouble, alert in FAULTS:
        site.await_firing(trouble, alert)
    begun.close()
    for trouble in TROUBLES:
        trouble.mend(site.home, site.groups[trouble.name])
    return site


FAULTS = [(trouble, alert) for trouble in TROUBLES for alert in trouble.alerts]
EACH = pytest.mark.parametrize(("trouble", "alert"), FAULTS, ids=[alert for _, alert in FAULTS])


def test_every_alert_that_is_shipped_is_made_to_fire_here() -> None:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    shipped = {rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule}
    assert {alert for _, alert in FAULTS} | {"EplbThrash"} | OF_THE_CONTROLLER == shipped


@pytest.mark.usefixtures("begun")
@EACH
def test_a_fault_is_told(site: Site, trouble: Trouble, alert: str) -> None:
    site.await_firing(trouble, alert)


@EACH
def test_its_end_is_told(mended: Site, trouble: Trouble, alert: str) -> None:
    mended.await_resolved(alert, **mended.labels(trouble))


def test_a_plan_that_is_taken_back_is_told_as_thrash(mended: Site) -> None:
    mended.await_firing(ROLLED_BACK, "EplbThrash")
    mended.await_resolved("EplbThrash", **mended.labels(ROLLED_BACK))


def test_a_store_that_does_not_answer_is_told(mended: Site) -> None:
    site, group = mended, mended.groups["mute"]
    holder = sqlite3.connect(site.store, isolation_level=None)
    try:
        holder.execute("BEGIN EXCLUSIVE")  # as another process does that holds the file
        with pytest.raises(grpc.RpcError, match="store"):
            freeze(60.0)(site.home, group)
        site.await_told("EplbStoreDown")
        holder.execute("ROLLBACK")
    finally:
        holder.close()
    freeze(0.0)(site.home, group)
    site.await_resolved("EplbStoreDown")


def test_a_second_leader_is_told_and_then_that_there_is_none(mended: Site) -> None:
    site = mended
    store: dict[str, str | float | bool] = {"url": f"sqlite:///{site.store}"}
    with house(site.folder, metrics_port=site.ports[0], store=store, **SECTIONS):
        site.await_told("EplbTwoLeaders")
        with suppress(grpc.RpcError):  # the older one is fenced at its next write, and ends
            freeze(60.0)(site.home, site.groups["mute"])
        site.await_resolved("EplbTwoLeaders")
    site.await_told("EplbControllerAbsent")
    with house(site.folder, metrics_port=site.ports[1], store=store, **SECTIONS):
        site.await_resolved("EplbControllerAbsent")


def test_the_watchdog_falls_silent_with_prometheus(mended: Site) -> None:
    mended.await_told("EplbWatchdog")
    os.kill(mended.prometheus.pid, 15)
    mended.await_resolved("EplbWatchdog")
