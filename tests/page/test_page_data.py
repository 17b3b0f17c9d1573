"""What the page's scripts are answered, and what they are refused."""

import json
import struct
import urllib.error
import urllib.request
from urllib.parse import quote

import numpy as np
import pytest

from tests.observe.house import House

pytestmark = [pytest.mark.slow]


def get(home: House, path: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(f"{home.url}{path}", timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read()


def test_heat_is_told_as_numbers_of_every_expert_rank_and_slot(home: House, name: str) -> None:
    status, body = get(home, f"/api/v1/heat?deployment={quote(name)}")
    assert status == 200
    (size,) = struct.unpack_from("<I", body)
    head = json.loads(body[4 : 4 + size])
    assert (head["layers"], head["experts"], head["ranks"]) == (4, 16, 4)
    assert head["starts"] == [0, 5, 10, 15, 20]
    numbers = body[4 + size :]
    tokens = np.frombuffer(numbers, "<f4", 4 * 16).reshape(4, 16)
    load = np.frombuffer(numbers, "<f4", 4 * 4, 4 * 4 * 16).reshape(4, 4)
    placed = np.frombuffer(numbers, "<i4", 4 * 20, 4 * 4 * 20).reshape(4, 20)
    assert len(numbers) == 4 * (64 + 16 + 80)
    assert tokens.argmax(axis=1).tolist() == [0] * 4
    assert load.sum() == pytest.approx(tokens.sum())
    assert {expert for row in placed.tolist() for expert in row} == set(range(16))


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/api/v1/heat?deployment=nobody", 404, "unknown_deployment"),
        ("/api/v1/plan?deployment=&plan=none", 404, "unknown_plan"),
        ("/api/v1/history?deployment=nobody", 404, "unknown_deployment"),
        ("/api/v1/other", 404, "not_found"),
        ("/../pyproject.toml", 404, "not_found"),
    ],
)
def test_what_does_not_exist_is_said_in_words(
    home: House, path: str, status: int, code: str
) -> None:
    found, body = get(home, path)
    assert (found, json.loads(body)["code"]) == (status, code)


def test_it_changes_nothing(home: House) -> None:
    asked = urllib.request.Request(f"{home.url}/api/v1/looks", data=b"{}", method="POST")
    with pytest.raises(urllib.error.HTTPError, match="405") as refused:
        urllib.request.urlopen(asked, timeout=30)
    with refused.value as answer:
        assert json.loads(answer.read())["code"] == "read_only"


def test_metrics_stay_where_they_were(home: House) -> None:
    assert b"eplb_leader 1.0" in get(home, "/metrics")[1]
    assert b"eplb_expert_tokens{" in get(home, "/metrics/experts")[1]
