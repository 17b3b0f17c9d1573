"""One epoch's record as one blob: an npz archive (zip, deflated, checked by CRC).

Readable by numpy alone. Shares that are the even ones of their placement, which is
nearly always, are left out and derived again when read: for 64 ranks of a large model
they would be a hundred times the placement.

Axes    L MoE layers   P physical slots   N ranks   C changed layers
"""

import io
import struct
import tokenize
import zipfile
import zlib
from dataclasses import dataclass
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from eplb_service.controller.records import EpochRecord
from eplb_service.domain.errors import EplbError, StoreUnavailable
from eplb_service.domain.ids import CountArray, Digest, Epoch, Incarnation, IntArray
from eplb_service.domain.layout import SlotLayout
from eplb_service.domain.placement import Placement
from eplb_service.domain.shares import Ownership, Shares, even_shares
from eplb_service.domain.wave import WaveContent
from eplb_service.protocol.messages import WaveName

_Arrays = dict[str, NDArray[np.generic]]


@dataclass(frozen=True, slots=True)
class _Head:
    """The small part of an epoch's record."""

    wave: WaveName
    incarnation: Incarnation
    expires_at_step: int
    plan_id: str
    note: str
    spent_at_s: float
    num_experts: int
    num_shared: int
    layout: SlotLayout
    ownership: Ownership


_HEAD: Final = TypeAdapter(_Head)


DAMAGED = (
    *(ValueError, KeyError, OSError, EOFError, MemoryError, NotImplementedError, RuntimeError),
    *(SyntaxError, tokenize.TokenError, zipfile.BadZipFile, zlib.error, struct.error, EplbError),
)
"""What reading bytes raises that are not, or not any more, what encode made."""


def encode(record: EpochRecord) -> bytes:
    """Pack one epoch's record."""
    placement, shares = record.placement, record.shares
    arrays: _Arrays = {
        "head": np.array(_HEAD.dump_json(_head(record)).decode()),
        "phy2log": placement.phy2log,
        "who": np.array(record.who),
    }
    if not np.array_equal(even_shares(placement, shares.ownership).tables, shares.tables):
        arrays["tables"] = shares.tables
    if record.content is not None:
        arrays |= _content_arrays(record.content)
    blob = io.BytesIO()
    np.savez_compressed(blob, allow_pickle=False, **arrays)
    return blob.getvalue()


def decode(blob: bytes, *, what: str) -> EpochRecord:
    """Unpack one epoch's record; raises StoreUnavailable naming `what` if it is damaged."""
    try:
        with np.load(io.BytesIO(blob), allow_pickle=False) as archive:
            arrays = {name: cast("NDArray[np.generic]", archive[name]) for name in archive.files}
        return _record(arrays)
    except DAMAGED as error:
        raise StoreUnavailable(
            f"{what} is damaged in the store ({error}); restore the file from a backup"
        ) from error


def _head(record: EpochRecord) -> _Head:
    return _Head(
        record.wave,
        record.incarnation,
        record.expires_at_step,
        record.plan_id,
        record.note,
        record.spent_at_s,
        record.placement.num_experts,
        record.placement.num_shared,
        record.placement.layout,
        record.shares.ownership,
    )


def _content_arrays(content: WaveContent) -> _Arrays:
    head = [content.base_epoch, content.base, content.target]
    return {
        "wave": np.array(head, dtype=np.int64),
        "layers": content.layers,
        "rows": content.rows,
        "transfers": content.transfers,
        "round_ends": np.array(content.round_ends, dtype=np.int64),
        "dispatch": np.array(content.dispatch, dtype=np.int64),
    }


def _record(arrays: _Arrays) -> EpochRecord:
    head = _HEAD.validate_json(str(arrays["head"]))
    phy2log = cast("IntArray", arrays["phy2log"])
    placement = Placement(phy2log, head.num_experts, head.layout, head.num_shared)
    if "tables" in arrays:
        shares = Shares(cast("IntArray", arrays["tables"]), head.ownership)
    else:
        shares = even_shares(placement, head.ownership)
    return EpochRecord(
        head.wave,
        head.incarnation,
        head.expires_at_step,
        _content(arrays) if "wave" in arrays else None,
        placement,
        shares,
        head.plan_id,
        head.note,
        head.spent_at_s,
        str(arrays["who"]) if "who" in arrays else "",  # releases before did not say
    )


def _content(arrays: _Arrays) -> WaveContent:
    base_epoch, base, target = _integers(arrays["wave"])
    return WaveContent(
        Epoch(base_epoch),
        Digest(base),
        Digest(target),
        cast("IntArray", arrays["layers"]),
        cast("IntArray", arrays["rows"]),
        cast("IntArray", arrays["transfers"]),
        tuple(_integers(arrays["round_ends"])),
        tuple(Digest(d) for d in _integers(arrays["dispatch"])),
    )


def _integers(array: NDArray[np.generic]) -> list[int]:
    return cast("CountArray", array).tolist()
