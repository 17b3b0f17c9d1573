"""F66: reports in any number leave behind what the windows hold, and no more."""

import pytest

from benchmarks.load.hour import simulate

MIB = 1 << 20


@pytest.mark.slow
def test_f66_reports_in_any_number_leave_no_more_behind_than_full_windows() -> None:
    hour = simulate(400)
    assert hour.num_reports == 400 * 64
    assert hour.grown_bytes < MIB, hour
    assert hour.held_bytes < 48 * MIB, "sent counts are most of a report, and kept of three cuts"
