"""Planned device memory against what the allocator counts and the driver reports, over 20 decks.

    python3 tests/benchmark/planned_memory.py --hardware FILE [--ranks 1] [--only NAME ...]
    python3 tests/benchmark/planned_memory.py --hardware FILE --ranks 2 --one-gpu  # that they share

FILE comes from `voltapile bench --device cuda --write FILE` on the same machine: its
`overhead_bytes` is what driver and libraries hold. Each deck trains for four steps, the last one
recorded; its trace.h5 has the plan's lines and what was allocated. Printed for the rank that comes
out worst: planned bytes less allocated ones (to be 0), and the driver's peak (NVML, less what was
in use before) over planned bytes with overheads (to be 0.99 to 1 where the peak is over 8 GB).
With --one-gpu, what ranks send goes through host memory, and the driver's figure is of all of them.
Exit 1 where one is not. Decks for more ranks than --ranks are left out. Needs h5py.
"""

import argparse
import contextlib
import pathlib
import re
import subprocess
import sys
import tempfile

import h5py

from runs import PROGRAM, ROOT, GpuMemory, PeakMemory, settings

DECK = ROOT / "input_decks/vit_l16_synthetic_1gpu.toml"
LARGE = {"batch.global": 128, "batch.micro": 64}
HUGE = {"model.patch": 14, "model.dim": 1280, "model.depth": 32, **LARGE}
GPIPE = {**LARGE, "parallel.schedule": "gpipe"}  # keeps the activations of all micro-batches
HOST = {"memory.optimizer": "host", "memory.weights": "host"}
TWO = {"parallel.pipeline": 2, "parallel.chunks": 2, "parallel.schedule": "breadth_first"}
DECKS = {
    "plain": {"batch.global": 256, "batch.micro": 128},
    "bf16": {**LARGE, "precision.type": "bf16", "precision.loss_scale": 1},
    "f32": {"batch.global": 64, "batch.micro": 32, "precision.type": "f32"},
    "one micro-batch": {"batch.global": 192, "batch.micro": 192},
    "recompute layers": {**LARGE, "memory.recompute": "layers", "memory.checkpoint_every": 4},
    "recompute selective": {**LARGE, "memory.recompute": "selective"},
    "recompute chunks": {**LARGE, "memory.recompute": "layers", "memory.checkpoint_every": "chunk"},
    "8-bit activations": {**GPIPE, "memory.activations": "int8"},
    "activations on the host": {**GPIPE, "memory.activations": "host"},
    "optimizer on the host": {**LARGE, "memory.optimizer": "host"},
    "weights on the host": {**LARGE, **HOST, "parallel.chunks": 8, "batch.micro": 128},
    "8-bit moments": {**LARGE, "memory.optimizer": "host", "optimizer.moments": "int8"},
    "averaged weights": {**LARGE, "optimizer.ema": 0.9999},
    "ViT-H": HUGE,
    "ViT-H, 8-bit activations": {**HUGE, **GPIPE, "memory.activations": "int8"},
    "ViT-H, gpipe": {**HUGE, **GPIPE},
    "two pipeline ranks": {**LARGE, "batch.micro": 32, **TWO},
    "two data ranks": {**LARGE, "batch.global": 256, "parallel.data": 2, "optimizer.zero": 1},
    "two tensor ranks": {**LARGE, "parallel.tensor": 2},
    "ViT-H, two pipeline ranks, host": {**HUGE, "batch.micro": 32, **TWO, **HOST},
}


def ranks_of(keys):
    ranks = 1
    for axis in ("pipeline", "data", "tensor"):
        ranks *= keys.get(f"parallel.{axis}", 1)
    return ranks


def measure(keys, folder, gpus, tuned):
    """Bytes of each rank: (planned, allocated, what the driver takes for them), and in use on each
    of these GPUs; rank r computes on GPU r, or all of them on the only one."""
    ranks = ranks_of(keys)
    fixed = {
        "run.dir": folder,
        "run.name": "memory",
        "run.steps": 4,
        "trace.steps": '"4:5"',
        "checkpoint.at_end": "false",
        "data.synthetic_test": 0,
        "optimizer.warmup_steps": 1,
    }
    command = [PROGRAM, "train", DECK, "--fresh", *settings(**{**fixed, **keys}), *tuned]
    if ranks > 1:
        command = ["mpirun", "-n", str(ranks), *command]
    before = [gpu.used() for gpu in gpus]
    with contextlib.ExitStack() as stack:
        peaks = [stack.enter_context(PeakMemory(gpu)) for gpu in gpus]
        done = subprocess.run(command, text=True, capture_output=True)
    in_use = [peak.bytes - idle for peak, idle in zip(peaks, before)]
    if done.returncode != 0:
        return f"exit {done.returncode}: {(done.stdout + done.stderr).strip()[-600:]}"
    found = []
    with h5py.File(folder / "memory/trace.h5") as trace:
        for rank in range(ranks):
            rows = [row for row in trace[f"rank_{rank:05}/memory"][:] if not row["on_host"]]
            names = trace["names"]["name"].astype(str)
            sizes = {names[row["name"]]: int(row["bytes"]) for row in rows}
            del sizes["driver and libraries"]
            allocated = sizes.pop("allocated")
            blocks = sizes.pop("blocks, page tables and graphs")
            found.append((sum(sizes.values()), allocated, blocks))
    return found, in_use


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--hardware", required=True, type=pathlib.Path)
    parser.add_argument("--ranks", type=int, default=1, help="the most ranks that a deck may have")
    parser.add_argument("--one-gpu", action="store_true", help="that all ranks share")
    parser.add_argument("--first-gpu", type=int, default=0, help="NVML's number of rank 0's")
    parser.add_argument("--only", nargs="*", choices=list(DECKS), metavar="NAME")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    overhead = int(re.search(r"overhead_bytes = (\d+)", arguments.hardware.read_text())[1])
    tuned = [part for text in arguments.set for part in ("--set", text)]
    faults = 0
    for name, keys in DECKS.items():
        if ranks_of(keys) > arguments.ranks or (arguments.only and name not in arguments.only):
            continue
        ranks = ranks_of(keys)
        shared = arguments.one_gpu and ranks > 1
        keys = {**keys, **({"parallel.transport": "staged"} if shared else {})}
        count = 1 if shared else ranks
        gpus = [GpuMemory(arguments.first_gpu + at) for at in range(count)]
        with tempfile.TemporaryDirectory() as folder:
            result = measure(keys, pathlib.Path(folder), gpus, tuned)
        if isinstance(result, str):
            print(f"{name}: {result}", flush=True)
            faults += 1
            continue
        found, in_use = result
        sums = [planned + blocks + overhead for planned, _, blocks in found]
        sums = [sum(sums)] if shared else sums
        expected, used = max(zip(sums, in_use), key=lambda one: abs(one[1] / one[0] - 1))
        share = used / expected
        off = max(abs(planned - allocated) for planned, allocated, _ in found)
        wrong = off != 0 or (used > 8e9 and not 0.99 <= share <= 1)
        faults += wrong
        print(
            f"{name}: planned {found[0][0] / 1e9:.3f} GB, allocated {off} bytes apart; "
            f"with overheads {expected / 1e9:.3f} GB, driver {used / 1e9:.3f} GB: "
            f"{share:.4f}{' WRONG' if wrong else ''}",
            flush=True,
        )
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
