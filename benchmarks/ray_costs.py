"""CPU time that a real Ray driver needs for one chunk, by the number of pending chunks, on this machine.

`python -m benchmarks.ray_costs` prints a line for each number. `scale.MEASURED` has the results.
"""

from __future__ import annotations

import os
import statistics
import time
from typing import Any

CROWDS = (1, 16, 64, 256, 1000)
TIMES = 100


class Worker:
    """An actor that answers immediately, or much later."""

    def score(self, prompts: list[str], seeds: list[int], split: str) -> tuple[list[float], None]:
        """Return an answer of the size of a score."""
        return [1.0], None

    def hold(self, seconds: float) -> None:
        """Stay pending."""
        time.sleep(seconds)


def main() -> None:
    """Measure and print."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        actor = ray.remote(Worker).options(num_cpus=0)
        quick = actor.remote()
        ray.get(quick.score.remote(["x"], [1], "train"))
        for crowd in CROWDS:
            slow = ray.remote(Worker).options(num_cpus=0, max_concurrency=max(CROWDS)).remote()
            others = [slow.hold.remote(600.0) for _ in range(crowd - 1)]
            time.sleep(2)  # they are sent in the background
            spent: dict[str, list[float]] = {"send": [], "wait": [], "get": []}
            for _ in range(TIMES):
                reference = _timed(spent["send"], lambda: quick.score.remote(["x"], [1], "train"))
                time.sleep(0.01)  # so that waiting finds it ready
                asked = [*others, reference]
                ready = _timed(spent["wait"], lambda asked=asked: ray.wait(asked, num_returns=1))[0][0]
                _timed(spent["get"], lambda ready=ready: ray.get(ready))
            shown = ", ".join(f"{name} {1e6 * statistics.median(taken):.0f} us" for name, taken in spent.items())
            print(f"{crowd} on their way: {shown} (load {os.getloadavg()[0]:.1f})")
            ray.kill(slow)
    finally:
        ray.shutdown()


def _timed(spent: list[float], work: Any) -> Any:
    began = time.process_time()
    found = work()
    spent.append(time.process_time() - began)
    return found


if __name__ == "__main__":
    main()
