"""Run every benchmark and write the tables of docs/benchmarks.md: `make bench`, 15 minutes on two idle cores.

`python -m benchmarks.run update score` runs some of them and leaves the other tables unchanged. Each runs in a separate
process. All figures are kept in build/benchmarks.json. `--json NAME` only prints the figures of one, measured in this
process.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks import BENCHES, ON_REQUEST

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
MEASURED = ROOT / "build" / "benchmarks.json"
# The rows of each benchmark's table: a label, and the path of its figure in the results.
ROWS: dict[str, tuple[tuple[str, str], ...]] = {
    "update": (
        ("released formulation, seconds", "released_seconds"),
        ("Monte-Carlo, seconds", "monte_carlo_seconds"),
        ("bootstrapped, seconds", "bootstrapped_seconds"),
        ("Monte-Carlo, times faster", "monte_carlo_speedup"),
        ("bootstrapped, all prefixes distinct, times faster", "bootstrapped_speedup"),
        ("bootstrapped, 40 % distinct, times faster", "bootstrapped_speedup_40"),
        ("bootstrapped, psi as it begins, times faster", "bootstrapped_speedup_fresh"),
        ("CPU seconds: released", "cpu_seconds.released"),
        ("CPU seconds: Monte-Carlo", "cpu_seconds.monte_carlo"),
        ("CPU seconds: bootstrapped", "cpu_seconds.bootstrapped"),
        ("memory of the update: released, MB", "update_mb.released"),
        ("memory of the update: Monte-Carlo, MB", "update_mb.monte_carlo"),
        ("memory of the update: bootstrapped, MB", "update_mb.bootstrapped"),
    ),
    "step": (
        ("released formulation, a whole step, seconds", "released_step_seconds"),
        ("ours, Monte-Carlo, seconds", "step_seconds.monte-carlo"),
        ("ours, bootstrapped, seconds", "step_seconds.bootstrap"),
        ("a step, Monte-Carlo, times faster", "speedup.monte-carlo"),
        ("a step, bootstrapped, times faster", "speedup.bootstrap"),
        ("writing 16 prompts, seconds", "write_seconds"),
        ("writing, times faster", "write_speedup"),
        ("peak memory, GB", "peak_gb"),
    ),
    "write": (
        ("with the tree, batches of 16, prompts/s", "batches.0.with_tree"),
        ("without it", "batches.0.without_tree"),
        ("with the tree, batches of 256, prompts/s", "batches.1.with_tree"),
        ("without it", "batches.1.without_tree"),
        ("16 prompts of L = 128, seconds", "long.seconds"),
        ("ms per token, vocabulary of 50,272, L = 5", "cost.0.ms_per_token"),
        ("L = 64", "cost.2.ms_per_token"),
        ("L = 128", "cost.3.ms_per_token"),
        ("ms per token, vocabulary of 262,144, L = 5", "cost.4.ms_per_token"),
        ("L = 128", "cost.7.ms_per_token"),
    ),
    "score": (
        ("plain: whole strings, all positions, whole vocabulary, prompts/s", "prompts_per_second.plain"),
        ("careful: padded on the left, last position only", "prompts_per_second.careful"),
        ("ours, inputs read once", "prompts_per_second.inputs read once"),
        ("times faster than plain", "speedup"),
        ("times faster than careful", "speedup_to_careful"),
        ("largest difference of a probability", "largest_difference"),
        ("a gradient at prompt vectors, times faster", "gradient_speedup"),
    ),
    "generate": (
        ("samples/s", "samples_per_second"),
        ("samples/s of the model's own generate", "generate_samples_per_second"),
        ("times faster", "speedup"),
    ),
    "search": (
        ("a default search, seconds", "seconds"),
        ("share of starting", "shares.start"),
        ("share of writing", "shares.write"),
        ("share of scoring", "shares.score"),
        ("share of perplexities", "shares.perplexity"),
        ("share of the end (evaluations and report)", "end_share"),
        ("calls/s while scoring", "calls_per_second"),
        ("limit of this machine's products, GFLOP/s", "limit_gflops"),
        ("scoring as a share of the limit", "score_share_of_limit"),
        ("the same without padding", "score_useful_share"),
    ),
    "neighbour": (
        ("slowdown beside a busy core", "slowdown"),
        ("the same with threads that spin", "slowdown_spinning"),
    ),
    "clip": (
        ("text tower of ViT-B/32's shape, trimmed, prompts/s", "trimmed_prompts_per_second"),
        ("padded to 77", "padded_prompts_per_second"),
        ("times faster", "speedup"),
        ("emoji-clip, prompts/s", "small_model_prompts_per_second"),
    ),
    "invert": (
        ("guided, prompts per CPU second", "guided_prompts_per_second"),
        ("pin", "pin_prompts_per_second"),
        ("pin with rewards per prefix", "pin_prefix_prompts_per_second"),
    ),
    "scale": (
        ("1,000 workers, 20,000 prompts: share of the ideal", "scoring_all_at_once.3.share_of_ideal"),
        ("the same in steps of 16 prompts", "scoring_steps_of_16.3.share_of_ideal"),
        ("rate limit shared by 1,000 workers: share of the limit", "limits.2.share_of_limit"),
        ("refused requests", "limits.2.refused_share"),
    ),
}
ROWS["score_large"] = ROWS["score"][:-1]  # no gradient: bfloat16 is for answers only


def machine() -> dict[str, Any]:
    """What a reader needs to know about this machine for a comparison."""
    import torch

    said = Path("/proc/cpuinfo").read_text("utf-8") if Path("/proc/cpuinfo").exists() else ""
    lines = [line.split(":", 1) for line in said.splitlines() if ":" in line]
    fields = {name.strip(): value.strip() for name, value in lines}
    return {
        "cpu": fields.get("model name") or platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "torch": f"{torch.__version__}, {torch.backends.cpu.get_cpu_capability()}",
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def load() -> float | None:
    """The load average of the last minute."""
    return round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None


def figures(name: str, threads: int) -> dict[str, Any]:
    """The figures of one benchmark, measured in this process."""
    from pinprompt.run import build

    build.set_threads(threads)
    found: dict[str, Any] = import_module(f"benchmarks.{name}").measure()
    return found


def measured(name: str, threads: int) -> dict[str, Any]:
    """One benchmark in a separate process: its figures, the load before and after, and how long it took."""
    before, began = load(), time.monotonic()
    command = [sys.executable, "-m", "benchmarks.run", "--json", name, "--threads", str(threads)]
    sleeping = {"OMP_WAIT_POLICY": "PASSIVE", **os.environ}  # as the command line sets it
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=sleeping)
    if done.returncode:
        raise RuntimeError(f"the benchmark {name} failed: {done.stderr.strip() or done.stdout.strip()}")
    took = {"load_before": before, "load_after": load(), "took": round(time.monotonic() - began)}
    return {"figures": json.loads(done.stdout.splitlines()[-1]), "threads": threads, "machine": machine(), **took}


def at(figures: Any, path: str) -> Any:
    """The figure at a dotted path; None if there is none."""
    for part in path.split("."):
        if isinstance(figures, Mapping):
            figures = figures.get(part)
        elif isinstance(figures, Sequence) and not isinstance(figures, str) and int(part) < len(figures):
            figures = figures[int(part)]
        else:
            return None
    return figures


def shown(value: Any) -> str:
    """A figure with three digits."""
    if value is None:
        return "-"
    size = abs(float(value))
    return f"{value:,.0f}" if size >= 100 else f"{value:.3g}" if size < 1 else f"{value:.1f}"


def table(name: str, found: Mapping[str, Any]) -> str:
    """A benchmark's block of the page: the machine, then its rows."""
    on = found["machine"]
    gpu = f", {on['gpu']}" if on["gpu"] else ", no GPU"
    told = (
        f"{on['date']}; {on['cpu']}, {on['cores']} cores{gpu}, torch "
        f"{on['torch']}, {found['threads']} threads; load {found['load_before']} before and {found['load_after']} "
        f"after; {found['took']} s."
    )
    rows = [f"| {label} | {shown(at(found['figures'], path))} |" for label, path in ROWS[name]]
    return "\n".join([told, "", "| | |", "|---|---:|", *rows])


def written(page: str, found: Mapping[str, Mapping[str, Any]]) -> str:
    """The page with the blocks of these benchmarks replaced."""
    for name, one in found.items():
        begin, end = f"<!-- bench {name} -->", f"<!-- end {name} -->"
        if page.count(begin) != 1 or page.count(end) != 1:
            raise SystemExit(f"docs/benchmarks.md has no place for '{name}': put {begin} and {end} there")
        head, rest = page.split(begin)
        page = f"{head}{begin}\n{table(name, one)}\n{end}{rest.split(end)[1]}"
    return page


def main() -> None:
    """Run the benchmarks, save the figures, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"which of {', '.join(BENCHES)}; default: all but {', '.join(ON_REQUEST)}",
    )
    parser.add_argument("--json", choices=[*BENCHES], metavar="NAME", help="print the figures of one, and stop")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1), help="threads of each benchmark")
    options = parser.parse_args()
    if options.json:
        print(json.dumps(figures(options.json, options.threads)))
        return
    if unknown := set(options.names) - set(BENCHES):
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}; there are {', '.join(BENCHES)}")
    found: dict[str, Any] = {}
    failures: list[str] = []
    for name in options.names or [name for name in BENCHES if name not in ON_REQUEST]:
        print(f"{name}: {BENCHES[name]} (load {load()})", flush=True)
        try:
            found[name] = measured(name, options.threads)
        except RuntimeError as error:
            failures.append(str(error))
            continue
        # Written after each benchmark, so that an interruption loses no figures.
        MEASURED.parent.mkdir(exist_ok=True)
        MEASURED.write_text(json.dumps(found, indent=1), "utf-8")
        PAGE.write_text(written(PAGE.read_text("utf-8"), {name: found[name]}), "utf-8")
    print(f"{sum(one['took'] for one in found.values())} s in all; {PAGE} and {MEASURED} written")
    if failures:
        raise SystemExit("\n".join(failures))


if __name__ == "__main__":
    main()
