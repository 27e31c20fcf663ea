"""One layout of the 32-billion-parameter deck, a few steps, and what they took.

    python3 tests/benchmark/vit32b.py pipeline                # or pipeline_tensor, tensor
    python3 tests/benchmark/vit32b.py pipeline --ranks 2      # half of the model on two GPUs
    python3 tests/benchmark/vit32b.py tensor --blocks 2 --one-gpu   # four ranks share GPU 0
    python3 tests/benchmark/vit32b.py pipeline --small        # 1/64 of the width, on CPU ranks

Ranks train input_decks/vit32b_synthetic_4xv100.toml, ten blocks on each (fewer ranks or --blocks
train a model of less depth), each held to the deck's memory.device_limit; no checkpoint is written.
With --one-gpu what they send goes through host memory, and times say nothing.
Printed are loss and time of every step, the most memory that the driver reported in use on each GPU
(NVML, less what was in use before) and that the ranks held on the host, each beside the plan's, and
what `voltapile report` says of the last two steps: bubble, exposed optimizer and communication.
Exit 1 where the loss did not fall or more memory was in use than --most-gpu-gb and --most-host-gb
allow.
"""

import argparse
import contextlib
import pathlib
import re
import subprocess
import sys
import tempfile

from runs import PROGRAM, ROOT, GpuMemory, PeakMemory, read_metrics, settings

DECK = ROOT / "input_decks" / "vit32b_synthetic_4xv100.toml"


def layouts(ranks, blocks):
    """Where the model's blocks go; each chunk has one, of which tensor ranks share the width."""
    return {
        "pipeline": {"parallel.pipeline": ranks, "parallel.tensor": 1, "parallel.chunks": blocks},
        "pipeline_tensor": {
            "parallel.pipeline": ranks // 2,
            "parallel.tensor": 2,
            "parallel.chunks": 2 * blocks,
        },
        "tensor": {
            "parallel.pipeline": 1,
            "parallel.tensor": ranks,
            "parallel.chunks": ranks * blocks,
        },
    }


SMALL = {
    "run.device": "cpu",
    "run.threads": 1,
    "model.image": 56,
    "model.dim": 128,
    "model.heads": 8,
    "model.mlp": 512,
    "model.classes": 341,
    "optimizer.lr": 1e-3,
}


class HostMemory:
    """Bytes resident of a process and all below it; what several share counts once for each."""

    def __init__(self, root):
        self.root = root

    def used(self):
        total, waiting = 0, [self.root]
        while waiting:
            process = pathlib.Path("/proc") / str(waiting.pop())
            try:
                resident = re.search(r"VmRSS:\s+(\d+)", (process / "status").read_text())
                total += int(resident[1]) * 1024
                for task in (process / "task").iterdir():
                    waiting += (task / "children").read_text().split()
            except (OSError, TypeError):
                continue  # it ended meanwhile, or has no memory any more
        return total


def planned_host_gb(text):
    """The plan's sum over all ranks, in GB."""
    found = re.search(r"host memory of all \d+ ranks?: ([\d.]+) ([kMGT]?)B", text)
    if found is None:
        sys.exit(f"the plan does not give the host memory:\n{text}")
    return float(found[1]) * {"": 1e-9, "k": 1e-6, "M": 1e-3, "G": 1, "T": 1e3}[found[2]]


def run(arguments):
    keys = {
        "run.steps": arguments.steps,
        "run.name": arguments.layout,
        "run.log_every": 1,
        "optimizer.lr": 5e-6,  # from the first step on; the deck's would need its warm-up
        "batch.global": arguments.batch,
        "data.synthetic_train": arguments.batch,  # random labels: a few steps learn those they saw
        "optimizer.warmup_steps": 1,
        "checkpoint.every_steps": 0,
        "checkpoint.at_end": "false",
        # The last step waits for updates of the one before it.
        "trace.steps": f'"{max(1, arguments.steps - 1)}:{arguments.steps + 1}"',
        "model.depth": arguments.blocks * arguments.ranks,
        **layouts(arguments.ranks, arguments.blocks)[arguments.layout],
        **({"parallel.transport": "staged"} if arguments.one_gpu else {}),
        **(SMALL if arguments.small else {}),
    }
    overrides = settings(**keys) + [part for text in arguments.set for part in ("--set", text)]
    plan = subprocess.run([PROGRAM, "plan", DECK, *overrides], text=True, capture_output=True)
    print(plan.stdout, plan.stderr, flush=True)
    count = 0 if arguments.small else 1 if arguments.one_gpu else arguments.ranks
    gpus = [GpuMemory(index) for index in range(count)]
    before = [gpu.used() for gpu in gpus]
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(arguments.folder or temporary)
        where = settings(**{"run.dir": folder})
        process = subprocess.Popen(
            ["mpirun", "-n", str(arguments.ranks), PROGRAM, "train", DECK, *overrides, *where]
        )
        with contextlib.ExitStack() as stack:
            meters = [HostMemory(process.pid), *gpus]
            host, *peaks = [stack.enter_context(PeakMemory(meter, 0.05)) for meter in meters]
            code = process.wait()
        if code != 0:
            sys.exit(f"voltapile train ended with {code}")
        one = folder / arguments.layout
        report = subprocess.run([PROGRAM, "report", one], text=True, capture_output=True)
        print(report.stdout, report.stderr, flush=True)
        gpu_bytes = [peak.bytes - idle for peak, idle in zip(peaks, before)]
        return read_metrics(one), gpu_bytes, host.bytes, planned_host_gb(plan.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("layout", choices=layouts(4, 1))
    parser.add_argument("--ranks", type=int, choices=(1, 2, 4), default=4)
    parser.add_argument("--blocks", type=int, default=10, help="of each rank")
    parser.add_argument("--one-gpu", action="store_true", help="that all ranks share")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--small", action="store_true", help="on CPU ranks, 1/64 of the width")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--folder", help="where the run folder stays; else it goes away")
    parser.add_argument("--most-gpu-gb", type=float, default=28.7, help="for each rank on it")
    parser.add_argument("--most-host-gb", type=float, default=500)
    arguments = parser.parse_args()
    steps, gpu_bytes, host_bytes, host_gb = run(arguments)
    faults = []
    most_gb = arguments.most_gpu_gb * (arguments.ranks if arguments.one_gpu else 1)
    for step in steps:
        print(f"step {step['step']}: loss {step['loss']:.4f}, {step['seconds']:.3f} s")
    if len(steps) < 2 or not steps[-1]["loss"] < steps[0]["loss"]:
        faults.append("the loss did not fall")
    for at, peak in enumerate(gpu_bytes):
        print(f"GPU {at}: {peak / 1e9:.3f} GB in use at most, as the driver reports it")
        if peak > most_gb * 1e9:
            faults.append(f"GPU {at} had more than {most_gb:.1f} GB in use")
    print(f"host: {host_bytes / 1e9:.2f} GB resident at most; planned {host_gb:.2f} GB")
    if host_bytes > arguments.most_host_gb * 1e9:
        faults.append(f"the ranks held more than {arguments.most_host_gb} GB of host memory")
    sys.exit("; ".join(faults) or 0)


if __name__ == "__main__":
    main()
