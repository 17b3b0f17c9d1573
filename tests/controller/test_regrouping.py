"""Rank groups that come, go and come back in another shape, against a whole controller."""

import numpy as np
import pytest

from eplb_service.controller.gauges import show
from eplb_service.controller.machine_state import RankGreeted
from eplb_service.controller.views import NothingView, PlanView
from eplb_service.domain.errors import (
    InvalidReport,
    RegistrationRefused,
    UnknownDeployment,
)
from eplb_service.domain.placement import placement_from_ranks
from eplb_service.load.forecast import first_forecast
from eplb_service.protocol.messages import CutOver, Welcome, Word
from eplb_service.settings.tree import RegistrationSettings
from eplb_service.store.memory import MemoryStore
from tests.controller.group import FLAT
from tests.controller.office import SETTINGS, Office, act, office
from tests.controller.ranks import agree, start_ranks
from tests.controller.test_desks import ANY, SKEWED, ready

THREE = placement_from_ranks([[[0, 1], [2, 3], [0, 1]]], num_experts=4)


async def test_a_group_that_grew_is_welcomed_served_and_recovered() -> None:
    store = MemoryStore()
    async with office(store) as o:
        await ready(o)
        await o.controller.acts.rebalance(act(), ANY)
        await o.settle()
        await o.register(THREE, incarnation=2)
        told = [m for m in o.ranks[2].told if isinstance(m, Welcome)]
        assert [m.placement.digest() for m in told] == [THREE.digest()]
        (view,) = await o.controller.operators.status("")
        assert len(view.ranks) == 3
    async with office(store) as o:
        await o.register(THREE, incarnation=2)
        (view,) = await o.controller.operators.status("")
        assert [rank.is_connected for rank in view.ranks] == [True] * 3


@pytest.mark.parametrize(("num_redundant", "is_taken"), [(None, True), (0, True), (2, False)])
async def test_f44_an_engine_with_other_redundancy_than_expected_is_refused_with_both_numbers(
    num_redundant: int | None, *, is_taken: bool
) -> None:
    expected = RegistrationSettings(num_redundant=num_redundant)
    async with office(settings=SETTINGS.model_copy(update={"registration": expected})) as o:
        if is_taken:
            await o.register(FLAT)
            return
        with pytest.raises(RegistrationRefused, match="has 4 slots per layer, expected 6"):
            await o.register(FLAT)
        with pytest.raises(UnknownDeployment):
            await o.controller.operators.heat("", ())


async def test_reports_of_an_older_incarnation_are_not_counted_for_the_new_one() -> None:
    async with office() as o:
        await ready(o)
        old = o.links[0]
        await o.register(FLAT, incarnation=2)
        o.links[0] = old
        with pytest.raises(InvalidReport, match="incarnation 1, but 2 is counted") as refused:
            o.report(SKEWED)
        assert refused.value.reason == "incarnation"


async def test_figures_of_the_old_group_are_never_read_with_the_new_ones_map() -> None:
    async with office() as o:
        await ready(o)
        deployment = o.controller.registry.find("")
        ranks = start_ranks(THREE, incarnation=2)
        # The driver takes the Hello before the desk starts to count anew.
        for rank in ranks:
            await deployment.driver.ask(RankGreeted(rank.greeting()), rank)
        show(deployment, o.controller.registry.tools)
        (view,) = await o.controller.operators.status("")
        assert view.imbalance.mean == pytest.approx(500 / 300)


async def test_counts_under_a_committed_wave_are_folded_by_its_own_map() -> None:
    async with office() as o:
        await ready(o)
        assert isinstance(await o.controller.acts.rebalance(act(), ANY), PlanView)
        while not isinstance((word := await next_word(o, 0)), CutOver):
            await o.links[0].said(word)
            await o.links[1].said(await next_word(o, 1))
        await o.links[0].said(word)
        deployment = o.controller.registry.find("")
        target = o.ranks[0].placement
        assert deployment.driver.state.serving.placement.digest() != target.digest()
        tokens = np.array([[7, 5, 3, 1]], dtype=np.int64)
        o.report(tokens)
        expected = np.zeros((1, 4))
        np.add.at(expected[0], target.phy2log[0], 2 * tokens[0])
        assert (await o.controller.operators.heat("", ())).tokens.tolist() == expected.tolist()


async def next_word(o: Office, rank: int) -> Word:
    """The rank's next word, after as many agreements as it takes."""
    while not o.ranks[rank].words:
        agree(o.ranks)
    return o.ranks[rank].words.pop(0)


async def test_f41_balancing_begins_anew_after_a_full_window_with_the_last_load_as_prior() -> None:
    async with office() as o:
        await ready(o)
        await o.controller.acts.rebalance(act(), ANY)
        await o.settle()
        deployment = o.controller.registry.find("")
        before = deployment.foresight
        assert before is not None
        await o.register(THREE, incarnation=2)
        early = await o.controller.acts.rebalance(act("2"), ANY)
        assert isinstance(early, NothingView)
        assert early.reason == "insufficient_samples"
        # Seen in the new group: expert 0 is no hotter than the others, of a tenth as many tokens.
        o.report(np.array([[10, 20, 20, 20, 10, 0]], dtype=np.int64))
        await o.controller.acts.rebalance(act("3"), ANY)
        found = deployment.foresight
        assert found is not None
        assert found.incarnation == 2
        share = np.exp(found.forecast.log_share[0])
        seen = np.exp(first_forecast(np.array([[20.0, 20.0, 20.0, 20.0]])).log_share[0])
        prior = np.exp(before.forecast.log_share[0])
        assert seen[0] < share[0] < prior[0], "what was expected is where the new count begins"
