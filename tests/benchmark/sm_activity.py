"""How many of the GPU's multiprocessors work while kernels of a step run, and in which kernels.

    python3 tests/benchmark/sm_activity.py                       # ViT-H/14, batch 128, f16
    python3 tests/benchmark/sm_activity.py --set batch.micro=32

Needs Nsight Compute (ncu), the right to read the GPU's counters (root has it), and a build with
CUDA. ncu measures as many kernels as some steps have, nodes of CUDA graphs one by one, from a step
on in which nothing is tried out any more: its time, and the cycles in which a multiprocessor had a
warp (sm__cycles_active), averaged over all. Printed is the mean, each kernel weighted by its time,
and the kernels that take the most time. What passes between two kernels is not in it.
"""

import argparse
import collections
import csv
import subprocess
import sys
import tempfile

from runs import PROGRAM, ROOT, settings

DECK = ROOT / "input_decks/vit_l16_synthetic_1gpu.toml"
VIT_H = {
    "model.patch": 14,
    "model.dim": 1280,
    "model.depth": 32,
    "batch.global": 128,
    "batch.micro": 64,
}
FIXED = {
    "run.name": "activity",
    "checkpoint.at_end": "false",
    "data.synthetic_test": 0,
    "optimizer.warmup_steps": 1,
}
TIME, ACTIVE = "gpu__time_duration.sum", "sm__cycles_active.avg.pct_of_peak_sustained_elapsed"
NANOSECONDS = {"ns": 1, "nsecond": 1, "us": 1e3, "usecond": 1e3, "ms": 1e6, "msecond": 1e6}


def rows(text):
    """(kernel, nanoseconds, percent active) of each measured kernel."""
    lines = text.splitlines()
    start = next((at for at, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        sys.exit(f"ncu measured no kernel:\n{text[-2000:]}")
    table = csv.DictReader(line for line in lines[start:] if line.startswith('"'))
    units = next(table)
    for row in table:
        time = float(row[TIME].replace(",", "")) * NANOSECONDS[units[TIME]]
        yield row["Kernel Name"].split("(")[0], time, float(row[ACTIVE].replace(",", ""))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--skip", type=int, default=8000, help="kernels, of the first steps")
    parser.add_argument("--count", type=int, default=2200, help="kernels measured")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        keys = {**FIXED, **VIT_H, "run.dir": folder, "run.steps": arguments.steps}
        overrides = settings(**keys) + [part for text in arguments.set for part in ("--set", text)]
        ncu = ["ncu", "--csv", "--page", "raw", "--metrics", f"{TIME},{ACTIVE}"]
        ncu += ["--graph-profiling", "node", "--cache-control", "none", "--clock-control", "none"]
        ncu += [f"--launch-skip={arguments.skip}", f"--launch-count={arguments.count}"]
        command = [*ncu, PROGRAM, "train", DECK, *overrides]
        done = subprocess.run(command, text=True, capture_output=True)
    if done.returncode != 0:
        sys.exit(f"ncu: exit {done.returncode}\n{done.stdout[-3000:]}{done.stderr}")
    times, actives = collections.Counter(), collections.Counter()
    measured = list(rows(done.stdout))
    for name, time, active in measured:
        times[name] += time
        actives[name] += time * active
    total = sum(times.values())
    print(f"{len(measured)} kernels, {total / 1e6:.1f} ms of them")
    print(f"SM activity: {sum(actives.values()) / total:.1f} %, weighted by time")
    for name, time in times.most_common(12):
        print(
            f"  {100 * time / total:5.1f} % of the time  {actives[name] / time:5.1f} %  {name[:80]}"
        )


if __name__ == "__main__":
    main()
