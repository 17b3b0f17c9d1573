"""No file of tokens, name or certificate makes the doorman fail in any way but a named one."""

from contextlib import suppress
from pathlib import Path

from hypothesis import HealthCheck, given
from hypothesis import settings as rules
from hypothesis import strategies as st

from eplb_service.domain.access import caller_of
from eplb_service.domain.errors import InvalidSettings, Unauthenticated
from eplb_service.server.tokens import read_tokens
from tests.wire.damage import damaged

TOKENS = b"""# whose each is
eplb://operator/anna 0123456789abcdef0123456789abcdef
eplb://agent/k3/0/serve/0/0/7 fedcba9876543210fedcba9876543210
"""
ONE_FOLDER = rules(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=60,
)


@ONE_FOLDER
@given(st.binary(max_size=200) | damaged(TOKENS))
def test_any_file_of_tokens_is_read_or_refused_without_telling_a_token(
    tmp_path: Path, data: bytes
) -> None:
    file = tmp_path / "tokens"
    file.write_bytes(data)
    try:
        read_tokens(file)
    except InvalidSettings as refused:
        assert "0123456789abcdef" not in str(refused)  # noqa: PT017 -- it need not fail
        assert "fedcba9876543210" not in str(refused)  # noqa: PT017 -- it need not fail


@given(
    st.text(max_size=40)
    | damaged(b"eplb://agent/k3/0/serve/0/0/7").map(lambda raw: raw.decode(errors="replace"))
)
def test_any_name_is_a_caller_or_refused(name: str) -> None:
    with suppress(Unauthenticated):
        caller_of(name)
