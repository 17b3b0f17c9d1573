"""Every enum that travels on the agents' stream, word by word."""

from eplb.v1 import agent_pb2, types_pb2

from eplb_service.domain.deployment import CountMeaning
from eplb_service.domain.report import Phase
from eplb_service.domain.shares import Ownership
from eplb_service.protocol.messages import DropReason, NackReason, OutcomeKind, RankPhase
from eplb_service.wire.scalars import EnumTable

COUNT_MEANING = EnumTable(
    {
        CountMeaning.RECEIVED: types_pb2.COUNT_MEANING_RECEIVED,
        CountMeaning.PARTIAL: types_pb2.COUNT_MEANING_PARTIAL,
        CountMeaning.REPLICATED: types_pb2.COUNT_MEANING_REPLICATED,
    }
)
OWNERSHIP = EnumTable(
    {
        Ownership.OWN: types_pb2.OWNERSHIP_OWN,
        Ownership.REPLICATED: types_pb2.OWNERSHIP_REPLICATED,
    }
)
PHASE = EnumTable(
    {
        Phase.PREFILL: agent_pb2.PHASE_PREFILL,
        Phase.DECODE: agent_pb2.PHASE_DECODE,
    }
)
RANK_PHASE = EnumTable(
    {
        RankPhase.SERVING: agent_pb2.RANK_PHASE_SERVING,
        RankPhase.ACCEPTED: agent_pb2.RANK_PHASE_ACCEPTED,
        RankPhase.MOVING: agent_pb2.RANK_PHASE_MOVING,
        RankPhase.STAGED: agent_pb2.RANK_PHASE_STAGED,
        RankPhase.ARMED: agent_pb2.RANK_PHASE_ARMED,
        RankPhase.DRAINING: agent_pb2.RANK_PHASE_DRAINING,
    }
)
OUTCOME_KIND = EnumTable(
    {
        OutcomeKind.CUT_OVER: agent_pb2.OUTCOME_KIND_CUT_OVER,
        OutcomeKind.DROPPED: agent_pb2.OUTCOME_KIND_DROPPED,
    }
)
NACK_REASON = EnumTable(
    {
        NackReason.BUSY: agent_pb2.NACK_REASON_BUSY,
        NackReason.CONFLICT: agent_pb2.NACK_REASON_CONFLICT,
        NackReason.STALE: agent_pb2.NACK_REASON_STALE,
        NackReason.WRONG_BASE: agent_pb2.NACK_REASON_WRONG_BASE,
        NackReason.UNSOUND: agent_pb2.NACK_REASON_UNSOUND,
        NackReason.NO_ROOM: agent_pb2.NACK_REASON_NO_ROOM,
        NackReason.EXPIRED: agent_pb2.NACK_REASON_EXPIRED,
        NackReason.HALTED: agent_pb2.NACK_REASON_HALTED,
    }
)
DROP_REASON = EnumTable(
    {
        DropReason.ABORTED: agent_pb2.DROP_REASON_ABORTED,
        DropReason.SUPERSEDED: agent_pb2.DROP_REASON_SUPERSEDED,
        DropReason.EXPIRED: agent_pb2.DROP_REASON_EXPIRED,
        DropReason.WITHDRAWN: agent_pb2.DROP_REASON_WITHDRAWN,
        DropReason.TRANSFER_FAILED: agent_pb2.DROP_REASON_TRANSFER_FAILED,
        DropReason.DIGEST_MISMATCH: agent_pb2.DROP_REASON_DIGEST_MISMATCH,
        DropReason.HALTED: agent_pb2.DROP_REASON_HALTED,
        DropReason.REFUSED: agent_pb2.DROP_REASON_REFUSED,
        DropReason.BELOW_MARK: agent_pb2.DROP_REASON_BELOW_MARK,
    }
)
