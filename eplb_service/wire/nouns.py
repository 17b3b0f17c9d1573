"""The nouns of types.proto: identity, shape and profile, placement, shares, names, halts.

Limits are those stated in the proto: they keep a message from making its reader allocate far
more than the message itself takes.
"""

from eplb.v1 import types_pb2

from eplb_service.domain.deployment import Counting, DeploymentIdentity, ModelShape, RankProfile
from eplb_service.domain.errors import InvalidRequest, InvalidTable
from eplb_service.domain.ids import Epoch, Revision
from eplb_service.domain.layout import SlotLayout
from eplb_service.domain.placement import Placement
from eplb_service.domain.shares import ShareName, Shares
from eplb_service.protocol.messages import HaltStatus, WaveName
from eplb_service.wire.enums import COUNT_MEANING, OWNERSHIP
from eplb_service.wire.matrix import decode_ints, encode_matrix
from eplb_service.wire.scalars import digest, named, natural, positive, short

MAX_LAYERS = 1_024
MAX_EXPERTS = 16_384
MAX_RANKS = 8_192


def encode_identity(identity: DeploymentIdentity) -> types_pb2.DeploymentIdentity:
    """Translate who is meant."""
    return types_pb2.DeploymentIdentity(
        model=identity.model,
        instance=identity.instance,
        role=identity.role,
        stage=identity.stage,
        group=identity.group,
        weight_format=identity.weight_format,
    )


def decode_identity(message: types_pb2.DeploymentIdentity) -> DeploymentIdentity:
    """Translate who is meant; raises InvalidRequest."""
    return DeploymentIdentity(
        model=named(message.model, "identity.model"),
        instance=short(message.instance, "identity.instance"),
        role=short(message.role, "identity.role"),
        stage=natural(message.stage, "identity.stage"),
        group=short(message.group, "identity.group"),
        weight_format=short(message.weight_format, "identity.weight_format"),
    )


def encode_shape(shape: ModelShape) -> types_pb2.ModelShape:
    """Translate the MoE part of a model."""
    return types_pb2.ModelShape(
        layers=shape.layers,
        num_experts=shape.num_experts,
        num_shared=shape.num_shared,
        top_k=shape.top_k,
        bytes_per_expert=shape.bytes_per_expert,
        num_groups=shape.num_groups,
    )


def decode_shape(message: types_pb2.ModelShape) -> ModelShape:
    """Translate the MoE part of a model; raises InvalidRequest."""
    natural(len(message.layers), "number of shape.layers", most=MAX_LAYERS)
    num_experts = natural(message.num_experts, "shape.num_experts", most=MAX_EXPERTS)
    num_groups = natural(message.num_groups, "shape.num_groups", most=MAX_EXPERTS) or 1
    if num_experts % num_groups:
        raise InvalidRequest(
            f"shape.num_groups is {num_groups}; expected a divisor of {num_experts} experts"
        )
    return ModelShape(
        layers=tuple(natural(layer, "shape.layers") for layer in message.layers),
        num_experts=num_experts,
        num_shared=natural(message.num_shared, "shape.num_shared", most=MAX_EXPERTS),
        top_k=natural(message.top_k, "shape.top_k", most=MAX_EXPERTS),
        bytes_per_expert=natural(message.bytes_per_expert, "shape.bytes_per_expert"),
        num_groups=num_groups,
    )


def encode_profile(profile: RankProfile) -> types_pb2.RankProfile:
    """Translate what a rank is."""
    return types_pb2.RankProfile(
        rank=profile.rank,
        num_ranks=profile.num_ranks,
        node=profile.node,
        supernode=profile.supernode,
        adapter=profile.adapter,
        count_meaning=COUNT_MEANING.encode(profile.counting.meaning),
        count_replicas=profile.counting.num_counters,
        ownership=OWNERSHIP.encode(profile.ownership),
        num_slots=profile.num_slots,
        staging_rows=profile.staging_rows,
        sets_shares=profile.sets_shares,
    )


def decode_profile(message: types_pb2.RankProfile) -> RankProfile:
    """Translate what a rank is; raises InvalidRequest."""
    num_ranks = positive(message.num_ranks, "profile.num_ranks", most=MAX_RANKS)
    return RankProfile(
        rank=natural(message.rank, "profile.rank", most=num_ranks - 1),
        num_ranks=num_ranks,
        node=short(message.node, "profile.node"),
        supernode=short(message.supernode, "profile.supernode"),
        adapter=short(message.adapter, "profile.adapter"),
        counting=Counting(
            COUNT_MEANING.decode(message.count_meaning, "profile.count_meaning"),
            positive(message.count_replicas, "profile.count_replicas", most=MAX_RANKS),
        ),
        ownership=OWNERSHIP.decode(message.ownership, "profile.ownership"),
        num_slots=natural(message.num_slots, "profile.num_slots"),
        staging_rows=natural(message.staging_rows, "profile.staging_rows"),
        sets_shares=message.sets_shares,
    )


def encode_placement(placement: Placement) -> types_pb2.Placement:
    """Translate a placement."""
    return types_pb2.Placement(
        phy2log=encode_matrix(placement.phy2log),
        num_experts=placement.num_experts,
        num_shared=placement.num_shared,
        slots_per_rank=placement.layout.slots_per_rank,
    )


def decode_placement(message: types_pb2.Placement) -> Placement:
    """Translate a placement, sound or not; raises InvalidTable or InvalidRequest."""
    phy2log = decode_ints(message.phy2log, "placement.phy2log", axes=2)
    natural(len(phy2log), "number of layers of placement.phy2log", most=MAX_LAYERS)
    natural(len(message.slots_per_rank), "number of placement.slots_per_rank", most=MAX_RANKS)
    slots = tuple(message.slots_per_rank)
    if not slots or min(slots) < 0 or sum(slots) != phy2log.shape[1] or not sum(slots):
        raise InvalidTable(
            f"placement has slots per rank {list(slots)} and {phy2log.shape[1]} slots; expected "
            "the sum of at least one count, none negative, and at least one slot in all"
        )
    return Placement(
        phy2log,
        natural(message.num_experts, "placement.num_experts", most=MAX_EXPERTS),
        SlotLayout(slots),
        natural(message.num_shared, "placement.num_shared", most=MAX_EXPERTS),
    )


def encode_shares(shares: Shares) -> types_pb2.Shares:
    """Translate dispatch tables."""
    return types_pb2.Shares(
        tables=encode_matrix(shares.tables), ownership=OWNERSHIP.encode(shares.ownership)
    )


def decode_shares(message: types_pb2.Shares) -> Shares:
    """Translate dispatch tables; raises InvalidTable or InvalidRequest."""
    return Shares(
        decode_ints(message.tables, "shares.tables", axes=4),
        OWNERSHIP.decode(message.ownership, "shares.ownership"),
    )


def encode_share_name(name: ShareName) -> types_pb2.ShareName:
    """Translate the name of a share revision."""
    return types_pb2.ShareName(
        epoch=name.epoch, placement=name.placement, revision=name.revision, digest=name.digest
    )


def decode_share_name(message: types_pb2.ShareName) -> ShareName:
    """Translate the name of a share revision; raises InvalidRequest."""
    return ShareName(
        Epoch(natural(message.epoch, "shares.epoch")),
        digest(message.placement, "shares.placement"),
        Revision(natural(message.revision, "shares.revision")),
        digest(message.digest, "shares.digest"),
    )


def encode_wave(wave: WaveName) -> types_pb2.WaveName:
    """Translate the name of a wave."""
    return types_pb2.WaveName(epoch=wave.epoch, digest=wave.digest)


def decode_wave(message: types_pb2.WaveName) -> WaveName:
    """Translate the name of a wave; raises InvalidRequest."""
    return WaveName(
        Epoch(natural(message.epoch, "wave.epoch")), digest(message.digest, "wave.digest")
    )


def encode_halt(halt: HaltStatus) -> types_pb2.HaltStatus:
    """Translate a halt."""
    return types_pb2.HaltStatus(number=halt.number, is_active=halt.is_active, reason=halt.reason)


def decode_halt(message: types_pb2.HaltStatus) -> HaltStatus:
    """Translate a halt; raises InvalidRequest."""
    return HaltStatus(natural(message.number, "halt.number"), message.is_active, message.reason)
