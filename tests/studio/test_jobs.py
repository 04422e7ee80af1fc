"""The queue of searches: what a search says while it starts."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from pinprompt.studio.forms import SearchCommand
from pinprompt.studio.jobs import Jobs


class Speaking(SearchCommand):
    """A process that says what it does and then waits until it is stopped."""

    def process(self, *more: str) -> list[str]:
        said = "import sys; sys.stderr.write('[   0.0 s] loading models\\n'); sys.stderr.flush(); sys.stdin = None; "
        return [sys.executable, "-c", said + "import time; time.sleep(900)"]


def test_the_last_line_of_a_search_is_shown_from_the_start(tmp_path: Path) -> None:
    async def follow() -> dict[str, object]:
        jobs = Jobs(tmp_path)
        job = jobs.add(Speaking((), tmp_path / "run", "a search"))
        while not job.doing:
            await jobs.news(900)
        shown = job.data()
        await jobs.close()
        return shown

    shown = asyncio.run(follow())
    assert (shown["state"], shown["doing"]) == ("running", "loading models")
