"""Host AdamW: against the best stream over the same memory, and against PyTorch's fused CPU AdamW.

    ninja -C build tests/benchmark/host_adamw
    python3 tests/benchmark/host_adamw_against_pytorch.py [--millions 64] [--threads 2] [--rounds 5]

PyTorch is left out where the Python that runs this has no torch. Each round is a fresh process a
side, alternating; its figures are the best of the repetitions. Streams and AdamW alternate within
one process. PyTorch's update knows f32 alone, so it is compared alone, and with the copies from f16
gradients and to f16 weights that voltapile's update holds. --busy, for a machine that others use,
takes one thread and its processor time on both sides.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import subprocess
import sys

from runs import ROOT, spread

PROGRAM = pathlib.Path(
    os.environ.get("HOST_ADAMW_BINARY", ROOT / "build/tests/benchmark/host_adamw")
)
PYTORCH = """
import json, sys, time, torch
n, threads, repetitions = (int(a) for a in sys.argv[1:4])
clock = time.thread_time if sys.argv[4] == "cpu" else time.perf_counter
torch.set_num_threads(threads)
parameter = torch.nn.Parameter(torch.full((n,), 0.01))
parameter.grad = torch.full((n,), 0.001)
gradient = torch.full((n,), 0.001, dtype=torch.float16)
weights = torch.zeros(n, dtype=torch.float16)
optimizer = torch.optim.AdamW([parameter], lr=1e-4, weight_decay=0.01, fused=True)
parts = []
for _ in range(repetitions + 1):
    times = [clock()]
    with torch.no_grad():
        parameter.grad.copy_(gradient)
    times.append(clock())
    optimizer.step()
    times.append(clock())
    with torch.no_grad():
        weights.copy_(parameter)
    times.append(clock())
    parts.append([b - a for a, b in zip(times, times[1:])])
print(json.dumps([min(column) for column in zip(*parts[1:])]))
"""
# What to compare with which of PyTorch's parts: gradients to f32, update, weights to f16.
SAME_WORK = {
    "f32 gradients, no weights": slice(1, 2),
    "f32 gradients, f16 weights": slice(1, 3),
    "f16 gradients, f16 weights": slice(0, 3),
}


def printed_json(*command):
    return json.loads(subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout)


class Figures:
    """Values of each round under a name, in the order in which they came."""

    def __init__(self):
        self.values = {}

    def add(self, name, value):
        self.values.setdefault(name, []).append(value)

    def show(self, digits, unit=""):
        for name, values in self.values.items():
            print(f"  {name}: {spread(values, digits, unit)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--millions", type=int, default=64, help="of parameters, of 2^20")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--busy", action="store_true", help="one thread, processor time")
    arguments = parser.parse_args()
    threads = 1 if arguments.busy else arguments.threads
    rest = [str(threads), str(arguments.repetitions), "cpu" if arguments.busy else "wall"]
    with_torch = importlib.util.find_spec("torch") is not None
    rates, shares, ratios = Figures(), Figures(), Figures()
    for _ in range(arguments.rounds):
        ours = printed_json(PROGRAM, str(arguments.millions), *rest)
        best_stream, adamw = {}, {}
        for one in ours["timed"]:
            group, name, seconds = one["group"], one["name"], min(one["seconds"])
            rate = one["bytes"] * ours["elements"] / seconds / 1e9
            rates.add(f"{group}: {name}", rate)
            if name.startswith("stream"):
                best_stream[group] = max(best_stream.get(group, 0), rate)
            elif name == "adamw":
                adamw[group] = seconds
                shares.add(group, 100 * rate / best_stream[group])
        if with_torch:
            theirs = printed_json(sys.executable, "-c", PYTORCH, str(ours["elements"]), *rest)
            for group, parts in SAME_WORK.items():
                ratios.add(group, sum(theirs[parts]) / adamw[group])
    print(f"{ours['elements']:,} parameters, {ours['threads']} threads, {ours['instruction_set']}")
    print("GB/s, counting each byte read or written once:")
    rates.show(1)
    print("AdamW's share of the best stream of its round:")
    shares.show(1, " %")
    if with_torch:
        print("PyTorch's fused AdamW, with the copies that it needs, / voltapile, time:")
        ratios.show(2)


if __name__ == "__main__":
    main()
