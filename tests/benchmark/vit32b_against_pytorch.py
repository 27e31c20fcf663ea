"""Half of ViT-32B (depth 20) on four GPUs held to 32 GB, the optimizer in host memory: voltapile
against PyTorch's FSDP2 with CPU offload.

    python3 tests/benchmark/vit32b_against_pytorch.py --batch 32 --rounds 2
    python3 tests/benchmark/vit32b_against_pytorch.py --ranks 2          # depth 10 on two GPUs
    python3 tests/benchmark/vit32b_against_pytorch.py --small            # tiny, on CPU ranks

Needs torch and timm in the Python that runs it, and a build with CUDA. The states of both sides
together do not fit into one machine's memory, so each round starts both anew, one after the other,
and leaves their first steps out. Both compute in bf16, recompute every block and clip at 1.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

from runs import PROGRAM, read_metrics, settings, spread
from vit32b import DECK, SMALL, layouts

BLOCKS = 5  # of each rank
HALF = {
    "precision.type": "bf16",
    "precision.loss_scale": 1,
    "checkpoint.every_steps": 0,
    "checkpoint.at_end": "false",
}


def voltapile(arguments):
    keys = {
        "model.depth": BLOCKS * arguments.ranks,
        **layouts(arguments.ranks, BLOCKS)[arguments.layout],
        **HALF,
        "batch.global": arguments.batch,
        "batch.micro": arguments.micro,
        "run.steps": arguments.steps,
        **(SMALL if arguments.small else {}),
    }
    overrides = settings(**keys) + [part for text in arguments.set for part in ("--set", text)]
    with tempfile.TemporaryDirectory() as folder:
        where = settings(**{"run.dir": folder, "run.name": "half"})
        command = ["mpirun", "-n", str(arguments.ranks), PROGRAM, "train", DECK, *overrides, *where]
        done = subprocess.run(command, text=True, capture_output=True)
        if done.returncode != 0:
            sys.exit(f"voltapile train: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return [record["seconds"] for record in read_metrics(pathlib.Path(folder) / "half")]


def pytorch(arguments):
    script = pathlib.Path(__file__).with_name("pytorch_fsdp2.py")
    sizes = ("dim", "heads", "image", "classes")
    small = ["--device=cpu"] + [f"--{size}={SMALL[f'model.{size}']}" for size in sizes]
    options = [f"--batch={arguments.batch}", f"--steps={arguments.steps}"]
    options.append(f"--depth={BLOCKS * arguments.ranks}")
    workers = f"--nproc_per_node={arguments.ranks}"
    command = [sys.executable, "-m", "torch.distributed.run", workers, script]
    command += options + (small if arguments.small else [])
    done = subprocess.run(command, text=True, capture_output=True)
    if done.returncode != 0:
        sys.exit(f"FSDP2: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])["seconds"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--layout", choices=layouts(4, 1), default="pipeline")
    parser.add_argument("--ranks", type=int, choices=(1, 2, 4), default=4)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--micro", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--skipped", type=int, default=2, help="of them, the first")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    sides = {"voltapile": voltapile, "FSDP2": pytorch}
    rates = {name: [] for name in sides}
    for number in range(arguments.rounds):
        for name, side in sides.items():
            seconds = side(arguments)[arguments.skipped :]
            rates[name].append(arguments.batch / statistics.median(seconds))
            print(f"round {number + 1}: {name} {rates[name][-1]:.2f} samples/s", flush=True)
    for name in sides:
        print(f"{name}: {spread(rates[name], 2, ' samples/s')}")
    ratios = [a / b for a, b in zip(rates["voltapile"], rates["FSDP2"])]
    print(f"voltapile / FSDP2: {spread(ratios)}")


if __name__ == "__main__":
    main()
