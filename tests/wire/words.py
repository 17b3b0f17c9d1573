"""Any word of the agents' stream, drawn by hypothesis."""

from typing import TypeVar

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from eplb_service.domain.deployment import (
    Counting,
    CountMeaning,
    DeploymentIdentity,
    ModelShape,
    RankProfile,
)
from eplb_service.domain.ids import Digest, Epoch, Generation, Incarnation, Revision
from eplb_service.domain.layout import SlotLayout
from eplb_service.domain.placement import Placement
from eplb_service.domain.report import CountedUnder, LoadReport, Phase, SentCounts, StepCounts
from eplb_service.domain.shares import Ownership, ShareName, Shares
from eplb_service.domain.wave import Order, WaveContent
from eplb_service.protocol import messages as m

Drawn = TypeVar("Drawn")

naturals = st.integers(0, 2**63 - 1)
small = st.integers(0, 9)
texts = st.text(max_size=12)
digests = st.integers(0, 2**63 - 1).map(Digest)
epochs = naturals.map(Epoch)
generations = naturals.map(Generation)
incarnations = naturals.map(Incarnation)
seconds = st.floats(0, 1e12)


def ints(*shape: int, least: int = -(2**31)) -> st.SearchStrategy[np.ndarray]:
    """An int32 array."""
    return npst.arrays(np.int32, shape, elements=st.integers(least, 2**31 - 1))


def counts(*shape: int) -> st.SearchStrategy[np.ndarray]:
    """An int64 array of counts."""
    return npst.arrays(np.int64, shape, elements=st.integers(0, 2**63 - 1))


identities = st.builds(
    DeploymentIdentity,
    model=st.text(min_size=1, max_size=12),
    instance=texts,
    role=texts,
    stage=small,
    group=texts,
    weight_format=texts,
)
shapes = st.builds(
    ModelShape,
    layers=st.lists(small, max_size=5).map(tuple),
    num_experts=st.integers(0, 16_384),
    num_shared=small,
    top_k=small,
    bytes_per_expert=naturals,
)


@st.composite
def profiles(draw: st.DrawFn) -> RankProfile:
    """A rank's profile."""
    num_ranks = draw(st.integers(1, 8_192))
    return RankProfile(
        rank=draw(st.integers(0, num_ranks - 1)),
        num_ranks=num_ranks,
        node=draw(texts),
        supernode=draw(texts),
        adapter=draw(texts),
        counting=Counting(draw(st.sampled_from(CountMeaning)), draw(st.integers(1, 9))),
        ownership=draw(st.sampled_from(Ownership)),
        num_slots=draw(small),
        staging_rows=draw(small),
        sets_shares=draw(st.booleans()),
    )


@st.composite
def placements(draw: st.DrawFn) -> Placement:
    """A placement, sound or not, over ranks with different slot counts."""
    slots = draw(st.lists(st.integers(0, 4), min_size=1, max_size=5).filter(any))
    phy2log = draw(ints(draw(st.integers(0, 4)), sum(slots)))
    return Placement(phy2log, draw(small), SlotLayout(tuple(slots)), draw(small))


@st.composite
def shares(draw: st.DrawFn) -> Shares:
    """Dispatch tables."""
    ownership = draw(st.sampled_from(Ownership))
    sources = 1 if ownership is Ownership.REPLICATED else draw(st.integers(1, 3))
    rest = draw(st.tuples(*[st.integers(0, 3)] * 3))
    return Shares(draw(ints(sources, *rest)), ownership)


share_names = st.builds(ShareName, epochs, digests, naturals.map(Revision), digests)
waves = st.builds(m.WaveName, epochs, digests)
halts = st.builds(m.HaltStatus, naturals, st.booleans(), texts)
outcomes = st.builds(m.Outcome, waves, st.sampled_from(m.OutcomeKind), naturals)
statuses = st.builds(
    m.RankStatus,
    served=share_names,
    high_mark=epochs,
    phase=st.sampled_from(m.RankPhase),
    held=st.none() | waves,
    outcome=st.none() | outcomes,
    halt=halts,
    step=naturals,
    is_idle=st.booleans(),
)
hellos = st.builds(
    m.Hello, identities, shapes, profiles(), incarnations, placements(), statuses, generations
)
step_counts = st.builds(StepCounts, *[naturals] * 7, step_seconds=seconds, expert_seconds=seconds)


@st.composite
def reports(draw: st.DrawFn) -> LoadReport:
    """A load report, with sent counts or without."""
    layers, slots, sent = draw(st.tuples(*[st.integers(0, 4)] * 3))
    return LoadReport(
        under=CountedUnder(draw(epochs), draw(digests), draw(naturals.map(Revision))),
        phase=draw(st.sampled_from(Phase)),
        step=draw(naturals),
        reset=draw(naturals),
        is_closing=draw(st.booleans()),
        received=draw(counts(layers, slots)),
        sent_total=draw(counts(layers)),
        sent=SentCounts(draw(ints(sent, least=0)), draw(ints(sent, least=0)), draw(counts(sent))),
        steps=draw(step_counts),
    )


words: st.SearchStrategy[m.Word] = st.one_of(
    st.builds(m.Accepted, waves),
    st.builds(m.Nack, waves, st.sampled_from(m.NackReason), texts),
    st.builds(m.Staged, waves),
    st.builds(m.Armed, waves),
    st.builds(m.CutOver, waves, naturals),
    st.builds(m.Dropped, waves, naturals, st.sampled_from(m.DropReason)),
    st.builds(m.Halted, halts, naturals),
    st.builds(m.Idle, st.booleans(), naturals),
    st.builds(m.SharesApplied, share_names, naturals),
)


@st.composite
def contents(draw: st.DrawFn) -> WaveContent:
    """What a wave changes."""
    changed, slots, moves = draw(st.tuples(*[st.integers(0, 4)] * 3))
    ends = sorted(draw(st.lists(st.integers(0, moves), max_size=3)))
    return WaveContent(
        base_epoch=draw(epochs),
        base=draw(digests),
        target=draw(digests),
        layers=draw(ints(changed)),
        rows=draw(ints(changed, slots)),
        transfers=draw(ints(moves, 4)),
        round_ends=(*ends, moves),
        dispatch=tuple(draw(st.lists(digests, max_size=3))),
    )


@st.composite
def orders(draw: st.DrawFn) -> Order:
    """A rank's part of a wave."""
    content = draw(contents())
    table = draw(ints(len(content.layers), *draw(st.tuples(*[st.integers(0, 3)] * 2))))
    return Order(
        draw(epochs), draw(generations), draw(incarnations), draw(naturals), content, table
    )


cadences = st.integers(1, 2**31 - 1)
welcomes = st.builds(
    m.Welcome, generations, incarnations, epochs, placements(), shares(), cadences, cadences
)
downs: st.SearchStrategy[m.Down] = st.one_of(
    welcomes,
    orders(),
    st.builds(m.NewShares, generations, incarnations, share_names, digests, shares()),
    st.builds(m.Arm, generations, incarnations, waves),
    st.builds(m.Abort, generations, incarnations, waves),
    st.builds(m.Resume, generations, incarnations, naturals),
    st.builds(m.ReportAck, generations, incarnations, epochs),
)


def a_placement() -> Placement:
    """Two layers, three experts, two ranks of two slots."""
    phy2log = np.array([[0, 1, 2, 0], [1, 2, 0, 1]], dtype=np.int32)
    return Placement(phy2log, 3, SlotLayout((2, 2)))


def a_hello(*, rank: int = 0, model: str = "m", incarnation: int = 1) -> m.Hello:
    """One rank of two, serving."""
    placement = a_placement()
    served = ShareName(Epoch(1), placement.digest(), Revision(0), Digest(5))
    counting = Counting(CountMeaning.RECEIVED)
    return m.Hello(
        DeploymentIdentity(model, "i", "serve", 0, "g", "float32"),
        ModelShape((3, 4), 3, 0, 2, 1_000, num_groups=3),
        RankProfile(rank, 2, "node-a", "", "test", counting, Ownership.OWN, 2, 8, sets_shares=True),
        Incarnation(incarnation),
        placement,
        m.RankStatus(
            served,
            Epoch(1),
            m.RankPhase.SERVING,
            None,
            None,
            m.HaltStatus(0, is_active=False, reason=""),
            0,
            is_idle=False,
        ),
        Generation(0),
    )


def an_order() -> Order:
    """One layer changes by two transfers in two rounds."""
    content = WaveContent(
        Epoch(1),
        Digest(1),
        Digest(2),
        np.array([1], dtype=np.int32),
        np.array([[1, 2, 2, 0]], dtype=np.int32),
        np.array([[1, 2, 1, 2], [1, 0, 2, 3]], dtype=np.int32),
        (1, 2),
        (Digest(3), Digest(4)),
    )
    dispatch = np.array([[[3], [0], [1]]], dtype=np.int32)
    return Order(Epoch(2), Generation(1), Incarnation(1), 99, content, dispatch)


def a_welcome(*, generation: int = 1) -> m.Welcome:
    """Answer to a_hello."""
    tables = np.zeros((1, 2, 3, 1), dtype=np.int32)
    shares_of_rank = Shares(tables, Ownership.OWN)
    return m.Welcome(
        Generation(generation), Incarnation(1), Epoch(1), a_placement(), shares_of_rank, 10, 3
    )


def a_report() -> LoadReport:
    """What a_hello's rank may report."""
    none = np.zeros(0, dtype=np.int32)
    return LoadReport(
        CountedUnder(Epoch(1), a_placement().digest(), Revision(0)),
        Phase.DECODE,
        10,
        0,
        False,  # noqa: FBT003 - is_closing
        np.array([[3, 1], [2, 2]], dtype=np.int64),
        np.array([4, 4], dtype=np.int64),
        SentCounts(none, none, np.zeros(0, dtype=np.int64)),
        StepCounts(10, 0, 0, 0, 2, 0, 0, 0.5, 0.1),
    )


def a_large_welcome() -> m.Welcome:
    """About a mebibyte."""
    tables = np.zeros((1, 64, 64, 64), dtype=np.int32)
    shares_of_rank = Shares(tables, Ownership.OWN)
    return m.Welcome(Generation(1), Incarnation(1), Epoch(1), a_placement(), shares_of_rank, 10, 3)
