"""No record or backup makes a store fail in any way but a named one."""

import hashlib
import json
from contextlib import suppress
from pathlib import Path

from hypothesis import HealthCheck, given
from hypothesis import settings as rules
from hypothesis import strategies as st

from eplb_service.domain.errors import EplbError
from eplb_service.store.codec import decode, encode
from eplb_service.store.redis_file import Kept, pack, unpack
from tests.store.ledger import wave
from tests.wire.damage import damaged

RECORD = encode(wave(1))
KEPT = Kept("{eplb}:fence", "string", (b"7",)), Kept("{eplb}:x", "hash", (b"a", b"b"))
PACKED = pack(KEPT, at_s=1.0)
ONE_FOLDER = rules(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=60,
)


@given(st.binary(max_size=100) | damaged(RECORD))
def test_any_record_is_read_or_refused_by_name(blob: bytes) -> None:
    with suppress(EplbError):
        decode(blob, what="epoch 1")


@ONE_FOLDER
@given(st.binary(max_size=100) | damaged(PACKED))
def test_any_backup_is_read_or_refused_by_name(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "backup"
    file.write_bytes(data)
    with suppress(EplbError):
        assert unpack(file) == KEPT, "a damaged backup was taken"


@ONE_FOLDER
@given(damaged(PACKED[: PACKED.rstrip().rindex(b"\n") + 1]))
def test_any_backup_with_a_true_digest_is_read_or_refused_by_name(
    tmp_path: Path, text: bytes
) -> None:
    digest = hashlib.sha256(text).hexdigest()
    end = json.dumps({"lines": text.count(b"\n"), "sha256": digest}).encode()
    file = tmp_path / "backup"
    file.write_bytes(text + end + b"\n")
    with suppress(EplbError):
        unpack(file)
