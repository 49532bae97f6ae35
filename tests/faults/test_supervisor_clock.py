"""The wall clock is set while a run goes on (libfaketime): the deadline neither comes early nor late."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from pods import wait_for
from supervised import box

LIBRARY = next((p for p in Path("/usr/lib").glob("**/faketime/libfaketime.so.1")), None)


@pytest.mark.skipif(LIBRARY is None, reason="needs libfaketime (Debian: faketime)")
@pytest.mark.parametrize("first_step_s", [3600, -7200])
def test_a_clock_that_is_set_moves_nothing(tmp_path: Path, first_step_s: int) -> None:
    moved = tmp_path / "moved"
    moved.write_text("+0")
    faked = {
        "LD_PRELOAD": str(LIBRARY),
        "FAKETIME_TIMESTAMP_FILE": str(moved),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_DONT_RESET": "1",
    }
    # signal.pause: with the library in it time.sleep fails in newer Pythons (clock_nanosleep)
    code = "import signal, sys; signal.signal(10, lambda *_: sys.exit(75)); print('up', flush=True); signal.pause()"
    with box(tmp_path / "root", env=faked) as here:
        first = here.start(sys.executable, "-c", code, max_s=14.0)
        armed_s = time.monotonic() - (time.time() - first["deadline"]["armed_unix_s"])
        here.wait_for_log("up")
        moved.write_text(f"{first_step_s:+d}")
        wait_for(lambda: here.events("clock stepped"), "the step is seen", 5)
        assert abs(here.status()["deadline"]["unix_s"] - first["deadline"]["unix_s"] - first_step_s) < 2
        moved.write_text("-60")
        wait_for(lambda: len(here.events("clock stepped")) == 2, "the second step is seen", 5)
        ended = here.end(30)
        late_s = time.monotonic() - armed_s - (14.0 - 5.0)  # the reserve is 5 s
        assert (ended["cause"], ended["code"]) == ("deadline", 75)
        assert abs(late_s) < 2
