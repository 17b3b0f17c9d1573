"""The share loop: better tables reach every rank, nothing moves, and noise changes nothing."""

import asyncio

import numpy as np
import pytest

from eplb_service.controller.desk import MapRequest
from eplb_service.controller.drawing import Draw, task_of
from eplb_service.controller.planning import Pricing, ToPlacement
from eplb_service.domain.ids import CountArray, IntArray
from eplb_service.domain.map_file import format_map
from eplb_service.domain.placement import Placement, placement_from_ranks
from eplb_service.domain.plan import Cause, Origin
from eplb_service.domain.report import CountedUnder, LoadReport, Phase, SentCounts
from eplb_service.domain.shares import Ownership, even_shares
from eplb_service.protocol.messages import Down, NewShares
from eplb_service.settings.settings import Settings
from eplb_service.settings.tree import PlanningSettings, ShareSettings, WindowSettings
from eplb_service.store.memory import MemoryStore
from tests.controller.office import TOP_K, Office, act, office, step_counts

JOINED = placement_from_ranks([[[0, 1, 2], [3, 0, 2]]], num_experts=4)
"""Experts 0 and 2 sit on both ranks, so that shares can level any load of theirs."""
SKEWED = np.array([[[150, 350, 200, 0]], [[300, 300, 350, 50]]])
"""[N, L, E] tokens that each rank sends in ten steps."""
SETTINGS = Settings(
    planning=PlanningSettings(is_automatic=False),
    shares=ShareSettings(interval_s=0.1, deadline_s=3.0),
    window=WindowSettings(
        report_every_steps=10, sent_every_reports=1, interval_steps=10, num_intervals=4
    ),
)
QUIET = SETTINGS.model_copy(update={"shares": ShareSettings(is_automatic=False)})


class Floor:
    """Ranks that send tokens where their tables say, and report it truthfully."""

    def __init__(self, desk: Office) -> None:
        self._desk = desk
        self._step = 10
        self._received: dict[int, CountArray] = {}
        self._sent: dict[int, CountArray] = {}

    def serve(self, sent: CountArray, *, intervals: int = 3) -> None:
        """Serve and report; sent [N, L, E] are the tokens of one interval."""
        for _ in range(intervals):
            self._step += 10
            for rank, of in enumerate(self._desk.ranks):
                self._count(rank, of.table, sent[rank], of.placement)
            for rank in range(len(self._desk.ranks)):
                self._report(rank)

    def load(self, sent: CountArray) -> list[int]:
        """Tokens of each rank in one interval, by the tables in use."""
        slots = np.zeros(JOINED.phy2log.shape[1], dtype=np.int64)
        for rank, of in enumerate(self._desk.ranks):
            np.add.at(slots, of.table[0, :, 0], sent[rank][0])
        return slots.reshape(2, -1).sum(axis=1).tolist()

    def restart(self) -> None:
        """Counting starts anew."""
        self._received.clear()
        self._sent.clear()

    def _count(self, rank: int, table: IntArray, sent: CountArray, placement: Placement) -> None:
        self._sent[rank] = self._sent.get(rank, np.zeros_like(sent)) + sent
        for layer, tokens in enumerate(sent):
            for expert, number in enumerate(tokens.tolist()):
                slot = int(table[layer, expert, 0])
                owner = int(placement.layout.rank_of_slot()[slot])
                own = placement.layout.slots_of(owner)
                empty = np.zeros((len(sent), own.stop - own.start), dtype=np.int64)
                self._received.setdefault(owner, empty)[layer, slot - own.start] += number

    def _report(self, rank: int) -> None:
        of, sent = self._desk.ranks[rank], self._sent[rank]
        layers, experts = np.nonzero(of.placement.replica_count() > 1)
        total = int(sent[0].sum())
        assert total % TOP_K == 0
        self._desk.links[rank].reported(
            LoadReport(
                under=CountedUnder(
                    of.state.served.epoch, of.state.served.placement, of.state.served.revision
                ),
                phase=Phase.DECODE,
                step=self._step,
                reset=1 + int(of.state.served.epoch),
                is_closing=False,
                received=self._received[rank].copy(),
                sent_total=sent.sum(axis=1),
                sent=SentCounts(
                    layers.astype(np.int32), experts.astype(np.int32), sent[layers, experts]
                ),
                steps=step_counts(self._step, total // TOP_K),
            )
        )


async def turn(desk: Office) -> None:
    """One turn of the loop, while the ranks step and speak."""
    (deployment,) = desk.controller.registry.all()
    looping = asyncio.create_task(desk.controller.shares.share_once(deployment))
    while not looping.done():
        await desk.settle(1)
        await asyncio.sleep(0.01)
    await looping


def words(desk: Office) -> list[list[NewShares]]:
    return [[word for word in rank.told if isinstance(word, NewShares)] for rank in desk.ranks]


async def lines(desk: Office, store: MemoryStore, kind: str) -> list[str]:
    await asyncio.sleep(0.05)
    (deployment,) = desk.controller.registry.all()
    return [e.text for e in await store.history(deployment.name, 50) if e.kind == kind]


async def test_shares_level_what_even_ones_do_not_and_no_weight_moves() -> None:
    store = MemoryStore()
    async with office(store, QUIET) as desk:
        await desk.register(JOINED)
        floor = Floor(desk)
        floor.serve(SKEWED)
        even = floor.load(SKEWED)
        await turn(desk)
        (status,) = await desk.controller.operators.status("")
        assert (status.epoch, status.revision) == (0, 1)
        assert max(floor.load(SKEWED)) < max(even)
        assert [len(told) for told in words(desk)] == [1, 1]
        (line,) = await lines(desk, store, "shares")
        assert line.startswith("revision 1 of epoch 0 in use on all ranks")
        assert all(rank.placement is JOINED for rank in desk.ranks)
        figures = desk.figures.values
        assert figures["eplb_share_revisions_total", status.deployment, "in_use"] == 1
        assert figures.get(("eplb_moves_total", status.deployment), 0) == 0


async def test_the_same_load_again_sends_nothing() -> None:
    async with office(settings=QUIET) as desk:
        await desk.register(JOINED)
        floor = Floor(desk)
        floor.serve(SKEWED)
        await turn(desk)
        for _ in range(3):
            floor.serve(SKEWED)
            await turn(desk)
        assert [len(told) for told in words(desk)] == [1, 1]


async def test_noise_sends_nothing() -> None:
    draw = np.random.default_rng(5)
    even = np.full((2, 1, 4), 200)
    async with office(settings=QUIET) as desk:
        await desk.register(JOINED)
        floor = Floor(desk)
        for _ in range(4):
            noisy = draw.poisson(even)
            floor.serve(noisy + noisy % 2, intervals=1)
        await turn(desk)
        assert words(desk) == [[], []]


async def test_a_freeze_is_honoured_and_so_is_a_plan_that_runs() -> None:
    async with office(settings=QUIET) as desk:
        await desk.register(JOINED)
        Floor(desk).serve(SKEWED)
        await desk.controller.acts.freeze(act(), 60.0)
        await turn(desk)
        assert words(desk) == [[], []]
        await desk.controller.acts.freeze(act(), 0.0)
        await turn(desk)
        assert [len(told) for told in words(desk)] == [1, 1]


async def test_ranks_that_take_no_shares_get_none_and_plans_are_priced_by_even_ones() -> None:
    async with office(settings=SETTINGS) as desk:
        await desk.register(JOINED, sets_shares=False)
        Floor(desk).serve(SKEWED)
        await turn(desk)
        assert words(desk) == [[], []]
        (status,) = await desk.controller.operators.status("")
        assert status.shares.even_because == (
            "ranks [0, 1] (test) take no shares; they stay even, and plans are priced by that"
        )
        (deployment,) = desk.controller.registry.all()
        draw = Draw(ToPlacement(JOINED), (), Cause(Origin.OPERATOR, "test"))
        task, heat = task_of(deployment, draw), SKEWED.sum(axis=0)[0]
        assert not task.limits.sets_shares
        # Rank r uses replica r of the experts 0 and 2; of all tokens it sends this part.
        part = SKEWED.sum(axis=(1, 2)) / SKEWED.sum()
        load = heat[[0, 2]].sum() * part + np.array([heat[1], heat[3]])
        assert Pricing(task).imbalance(JOINED)[0] == pytest.approx(load.max() / load.mean())


async def test_nothing_is_said_against_shares_where_all_ranks_take_them() -> None:
    async with office(settings=SETTINGS) as desk:
        await desk.register(JOINED)
        (status,) = await desk.controller.operators.status("")
        assert not status.shares.even_because
    async with office(settings=QUIET) as desk:
        await desk.register(JOINED)
        (status,) = await desk.controller.operators.status("")
        assert status.shares.even_because == "the setting shares.is_automatic is off"


async def test_a_rank_that_lost_the_word_hears_it_again() -> None:
    async with office(settings=QUIET) as desk:
        await desk.register(JOINED)
        Floor(desk).serve(SKEWED)
        deaf = desk.ranks[1]
        take = deaf.send
        lost: list[object] = []

        def losing(message: Down) -> None:
            if isinstance(message, NewShares) and not lost:
                lost.append(message)
                return
            take(message)

        deaf.send = losing
        await turn(desk)
        assert len(lost) == 1
        assert {rank.state.served.revision for rank in desk.ranks} == {1}


async def test_a_revision_that_a_rank_never_uses_is_given_up_and_a_higher_one_follows() -> None:
    store = MemoryStore()
    short = QUIET.model_copy(update={"shares": ShareSettings(is_automatic=False, deadline_s=0.3)})
    async with office(store, short) as desk:
        await desk.register(JOINED)
        Floor(desk).serve(SKEWED)
        take, unheard = desk.ranks[1].send, list[Down]()
        desk.ranks[1].send = lambda message: unheard.append(message)  # noqa: PLW0108
        await turn(desk)
        assert [rank.state.served.revision for rank in desk.ranks] == [1, 0]
        (line,) = await lines(desk, store, "failure")
        assert "not in use on ranks [1] within 0.3 s" in line
        assert unheard
        desk.ranks[1].send = take
        await turn(desk)
        assert [rank.state.served.revision for rank in desk.ranks] == [2, 2]


async def test_a_new_controller_spends_above_its_elder_and_replaces_what_it_does_not_know() -> None:
    store = MemoryStore()
    async with office(store, QUIET) as desk:
        await desk.register(JOINED)
        Floor(desk).serve(SKEWED)
        await turn(desk)
        ranks = desk.ranks
    async with office(store, QUIET) as heir:
        heir.ranks = ranks
        heir.links = [await heir.controller.ranks.hello(r.greeting(), r) for r in ranks]
        assert {rank.state.served.revision for rank in ranks} == {1}
        Floor(heir).serve(SKEWED)
        await turn(heir)
        assert {rank.state.served.revision for rank in ranks} == {2}
        assert [len(told) for told in words(heir)] == [2, 2]


async def test_after_a_cutover_heat_from_before_it_brings_shares_at_once() -> None:
    after = placement_from_ranks([[[0, 1, 3], [1, 0, 2]]], num_experts=4)
    async with office(settings=QUIET) as desk:
        await desk.register(JOINED)
        floor = Floor(desk)
        floor.serve(SKEWED)
        await turn(desk)
        (deployment,) = desk.controller.registry.all()
        await desk.controller.acts.import_map(act("r1"), MapRequest(format_map(after, (1,))))
        await desk.settle(16)
        assert {rank.state.served.epoch for rank in desk.ranks} == {1}
        assert all(not rank.tables for rank in desk.ranks)
        await turn(desk)
        assert {(r.state.served.epoch, r.state.served.revision) for r in desk.ranks} == {(1, 1)}
        assert deployment.shares.num_revisions == 2
        await turn(desk)
        assert {rank.state.served.revision for rank in desk.ranks} == {1}


async def test_every_table_sent_is_sound() -> None:
    async with office(settings=QUIET) as desk:
        await desk.register(JOINED)
        Floor(desk).serve(SKEWED)
        await turn(desk)
        for rank in desk.ranks:
            experts = np.arange(4)
            assert (JOINED.phy2log[0, rank.table[0, :, 0]] == experts).all()
        assert any(
            rank.table.tolist() != even_shares(JOINED, Ownership.OWN).table_of(number).tolist()
            for number, rank in enumerate(desk.ranks)
        )
