"""A caller's name says what it is, and every other text is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eplb_service.domain.access import Caller, Role, caller_of
from eplb_service.domain.errors import AccessDenied, Unauthenticated

NAMES = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), min_size=1)
CALLERS = st.builds(
    Caller, st.sampled_from([Role.VIEWER, Role.OPERATOR]), NAMES, st.none()
) | st.builds(
    Caller, st.just(Role.AGENT), NAMES, st.none() | st.integers(min_value=0, max_value=10**6)
)


@given(CALLERS)
def test_a_name_that_is_written_is_read_back(caller: Caller) -> None:
    assert caller_of(caller.uri) == caller


@given(st.text() | st.text(alphabet="eplb:/agentoviwr*%0123456789").map(lambda t: f"eplb://{t}"))
def test_any_other_text_is_refused(text: str) -> None:
    try:
        found = caller_of(text)
    except Unauthenticated:
        return
    assert caller_of(found.uri) == found


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "eplb://",
        "eplb://operator",
        "eplb://operator/",
        "eplb://operator/a/b",
        "eplb://admin/a",
        "eplb://agent/3",
        "eplb://agent//3",
        "eplb://agent/m/0/serve/0/0/-1",
        "eplb://agent/m/0/serve/0/0/",
        "eplb://agent/m/0/serve/0/0/\u0663",
        "spiffe://operator/a",
    ],
)
def test_a_name_that_makes_no_sense_is_refused(uri: str) -> None:
    with pytest.raises(Unauthenticated, match="names no caller"):
        caller_of(uri)


@pytest.mark.parametrize(
    ("role", "meets"),
    [
        (Role.VIEWER, {Role.VIEWER}),
        (Role.OPERATOR, {Role.VIEWER, Role.OPERATOR}),
        (Role.AGENT, {Role.AGENT}),
    ],
)
def test_a_role_meets_only_what_is_its_own(role: Role, meets: set[Role]) -> None:
    caller = Caller(role, "x")
    for needed in Role:
        if needed in meets:
            caller.require(needed, "Freeze")
            continue
        says = f"Freeze needs the role {needed}, .* has the role {role}"
        with pytest.raises(AccessDenied, match=says):
            caller.require(needed, "Freeze")
