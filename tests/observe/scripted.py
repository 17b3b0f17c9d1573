"""Rank groups on the real street whose machines are real and whose loads and faults are told.

Axes    L MoE layers   P slots   N ranks
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

import grpc.aio
import numpy as np
from eplb.v1 import agent_pb2, agent_pb2_grpc

from eplb_service.domain.deployment import ModelShape
from eplb_service.domain.ids import CountArray, FloatArray
from eplb_service.domain.placement import Placement
from eplb_service.domain.report import CountedUnder, LoadReport, Phase, SentCounts, StepCounts
from eplb_service.protocol.messages import DropReason, NackReason, Word
from eplb_service.protocol.rank_state import Event, Offer, RaiseHalt, RoundDone, RoundFailed
from eplb_service.wire.down import decode_down
from eplb_service.wire.up import encode_up
from tests.controller.ranks import FakeRank, agree, start_ranks

OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_reconnect_backoff_ms", 200),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", 64 << 20),
)
TURN_S = 0.1
STEPS = 10
"""Steps in a turn, and from report to report."""
NO_IDS = np.zeros(0, dtype=np.int32)
NO_TOKENS = np.zeros(0, dtype=np.int64)

Stream = grpc.aio.StreamStreamCall[agent_pb2.UpMessage, agent_pb2.DownMessage]


@dataclass
class Faults:
    """What is wrong with a group; nothing, until it is told."""

    mute: frozenset[int] = frozenset()
    """Ranks that do not report."""
    refuses: bool = False
    """Whether every order is found unsound."""
    spoils: bool = False
    """Whether what arrives has a wrong digest."""
    is_stuck: bool = False
    """Whether no agreement is held, so that what is in flight stays there."""
    overflow: int = 0
    """Tokens beyond capacity in every turn, on every rank."""
    loses: Callable[[int, Word], bool] = lambda _rank, _word: False
    """Words that never leave."""
    lies: bool = False
    """Whether reports say that more was sent than tokens can be."""


class ScriptedRank(FakeRank):
    """A rank whose checks of orders and of what arrives can be told to find a fault."""

    faults: Faults

    def feed(self, event: Event) -> None:
        if isinstance(event, Offer) and self.faults.refuses:
            event = Offer(event.order, (NackReason.UNSOUND, "told to refuse"))
        if isinstance(event, RoundDone) and self.faults.spoils:
            reason = DropReason.DIGEST_MISMATCH
            event = RoundFailed(event.wave, event.number, reason, "told to spoil")
        super().feed(event)


class ScriptedGroup:
    """All ranks of one deployment; `turn` is one round of steps, reports and words."""

    def __init__(self, endpoint: str, name: str, placement: Placement, heat: FloatArray) -> None:
        """Nothing is opened before `connect`.

        heat    [L, E] tokens of each expert in one turn, as many in every layer
        """
        self.faults = Faults()
        self.heat = heat
        self.ranks = [self._rank(rank, name, placement) for rank in start_ranks(placement)]
        self.name = self.ranks[0].hello.identity.name
        self._channels = [grpc.aio.insecure_channel(endpoint, options=OPTIONS) for _ in self.ranks]
        self._streams: list[Stream | None] = [None] * len(self.ranks)
        self._pens = [asyncio.Lock() for _ in self.ranks]
        """A stream takes one message at a time."""
        self._readers: set[asyncio.Task[None]] = set()
        self._step = 10
        self._counted: CountArray = np.zeros(placement.phy2log.shape, dtype=np.int64)
        self._counted_steps = self._overflow = 0
        self._reset = 1
        self._epoch = self.ranks[0].state.served.epoch

    def _rank(self, plain: FakeRank, name: str, placement: Placement) -> FakeRank:
        rank = ScriptedRank(plain.hello, plain.state, plain.placement)
        rank.faults = self.faults
        shape = ModelShape(
            tuple(range(1, placement.num_layers + 1)), placement.num_experts, 0, 2, 1 << 20
        )
        identity = replace(plain.hello.identity, model=name)
        profile = replace(plain.hello.profile, staging_rows=64)
        rank.hello = replace(plain.hello, identity=identity, shape=shape, profile=profile)
        return rank

    async def connect(self, *ranks: int) -> None:
        """Open the streams of these ranks, or of all, and hear their Welcome."""
        for rank in ranks or range(len(self.ranks)):
            stream: Stream = agent_pb2_grpc.AgentServiceStub(self._channels[rank]).Connect()
            await stream.write(encode_up(self.ranks[rank].greeting()))
            self._streams[rank] = stream
            await self._hear(rank, stream)
            reader = asyncio.create_task(self._listen(rank, stream))
            self._readers.add(reader)
            reader.add_done_callback(self._readers.discard)

    def hang_up(self, rank: int) -> None:
        """End one rank's stream."""
        stream, self._streams[rank] = self._streams[rank], None
        assert stream is not None
        stream.cancel()

    async def halt(self, reason: str) -> None:
        """Let rank 0 find something that no wave may run over."""
        self.ranks[0].feed(RaiseHalt(reason))

    async def turn(self) -> None:
        """Hold an agreement, say what is to be said, and report one more turn's load."""
        if not self.faults.is_stuck:
            agree(self.ranks)
        self._step += STEPS
        await self.talk()
        self._count()
        for rank in range(len(self.ranks)):
            if rank not in self.faults.mute:
                await self._write(rank, encode_up(self._report(rank)))

    async def talk(self) -> None:
        """Say what the ranks have to say, but for words that are lost."""
        for number, rank in enumerate(self.ranks):
            words, rank.words = rank.words, []
            for word in words:
                if not self.faults.loses(number, word):
                    await self.say(number, word)

    async def say(self, rank: int, word: Word) -> None:
        """Say a word, whatever the machine thinks."""
        await self._write(rank, encode_up(word))

    async def serve(self, until: asyncio.Event, every_s: float = TURN_S) -> None:
        """Take turns until told, at a steady pace."""
        while not until.is_set():
            await self.turn()
            await asyncio.sleep(every_s)

    async def close(self) -> None:
        """End all streams."""
        for rank, stream in enumerate(self._streams):
            if stream is not None:
                self.hang_up(rank)
        await asyncio.gather(*self._readers, return_exceptions=True)
        for channel in self._channels:
            await channel.close()

    async def _write(self, rank: int, message: agent_pb2.UpMessage) -> None:
        async with self._pens[rank]:
            stream = self._streams[rank]
            if stream is None:
                return
            try:
                await stream.write(message)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                self._streams[rank] = None  # it ended; whoever cares connects again

    async def _hear(self, rank: int, stream: Stream) -> bool:
        message = await stream.read()
        if not isinstance(message, agent_pb2.DownMessage):
            return False
        down = decode_down(message)
        self.ranks[rank].send(down)
        return True

    async def _listen(self, rank: int, stream: Stream) -> None:
        try:
            while await self._hear(rank, stream):
                pass
        except grpc.aio.AioRpcError:
            pass  # the controller is gone or closed the stream

    def _count(self) -> None:
        """Count one turn under what is served; a cutover begins anew."""
        served, placement = self.ranks[0].state.served, self.ranks[0].placement
        if served.epoch != self._epoch:
            self._epoch, self._reset = served.epoch, self._reset + 1
            self._counted = np.zeros_like(self._counted)
            self._counted_steps = self._overflow = 0
        share = self.heat / np.maximum(placement.replica_count(), 1)
        layers = np.arange(len(self.heat))[:, None]
        held = np.where(placement.routed(), placement.phy2log, 0)
        turn = np.where(placement.routed(), share[layers, held], 0).astype(np.int64)
        turn[:, 0] += turn.sum(axis=1) % 2  # copies of whole tokens: two experts each
        even = turn.sum(axis=1).max()
        turn[:, -1] += even - turn.sum(axis=1)  # and the same number of tokens in every layer
        self._counted = self._counted + turn
        self._counted_steps += STEPS
        self._overflow += self.faults.overflow

    def _report(self, rank: int) -> LoadReport:
        me, n = self.ranks[rank], self._counted_steps
        own = self._counted[:, me.placement.layout.slots_of(rank)]
        copies = self._counted.sum(axis=1) if rank == 0 else np.zeros(len(own), dtype=np.int64)
        return LoadReport(
            under=CountedUnder(
                me.state.served.epoch, me.state.served.placement, me.state.served.revision
            ),
            phase=Phase.DECODE,
            step=self._step - self._step % STEPS,
            reset=self._reset,
            is_closing=False,
            received=np.ascontiguousarray(own),
            sent_total=copies + (2 if self.faults.lies else 0),
            sent=SentCounts(NO_IDS, NO_IDS, NO_TOKENS),
            steps=StepCounts(
                n,
                n // 10,
                1,
                1,
                int(copies[0]) // 2,
                n,
                self._overflow,
                0.04 * n,
                0.012 * n,
            ),
        )
