"""Kernels that the GPU executes for one transformer block, forward and backward: voltapile's
against those of PyTorch without torch.compile.

    python3 tests/benchmark/kernels_per_block.py

Needs torch and timm in the Python that runs it, and a build with CUDA. Counts the kernels of
ViT-L/16 with 2 and with 4 blocks; what is outside the blocks cancels. PyTorch's are those of
forward and backward under torch.autocast, counted by torch.profiler. voltapile's are the nodes of
the two CUDA graphs that it replays for them, which `train` counts at its end.
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

from runs import PROGRAM, settings

DEPTHS = (2, 4)

DECK = """
[run]
steps = 5
device = "cuda"
[model]
image = 224
patch = 16
dim = 1024
depth = 2
heads = 16
classes = 1000
pool = "token"
[batch]
global = 8
micro = 8
[precision]
type = "f16"
initial_loss_scale = 256
[data]
format = "synthetic"
synthetic_test = 0
[checkpoint]
at_end = false
"""


def voltapile(depth):
    with tempfile.TemporaryDirectory() as folder:
        deck = pathlib.Path(folder) / "deck.toml"
        deck.write_text(DECK)
        where = settings(**{"run.dir": folder, "run.name": "bench", "model.depth": depth})
        done = subprocess.run([PROGRAM, "train", deck, *where], text=True, capture_output=True)
    found = re.search(r"([\d,]+) kernels in 2 recordings", done.stdout)
    if done.returncode != 0 or found is None:
        sys.exit(f"voltapile train: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return int(found[1].replace(",", "")), []


def pytorch(depth):
    import torch
    from pytorch_vit import Training

    training = Training("vit_l16", 8, "f16", "no", depth)
    for _ in range(3):
        training.step()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        training.gradients()
        torch.cuda.synchronize()
    names = [e.name for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    names = [name for name in names if not name.startswith(("Memcpy", "Memset"))]
    return len(names), names


def slope(side, show):
    (few, shorter), (many, longer) = (side(depth) for depth in DEPTHS)
    if show:
        for name in sorted(set(longer)):
            more = longer.count(name) - shorter.count(name)
            if more:
                print(f"  {more / (DEPTHS[1] - DEPTHS[0]):5.1f}  {name[:90]}")
    return (many - few) / (DEPTHS[1] - DEPTHS[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--pytorch-only", action="store_true")
    parser.add_argument("--names", action="store_true", help="list PyTorch's kernels of a block")
    arguments = parser.parse_args()
    theirs = slope(pytorch, arguments.names)
    print(f"PyTorch, eager: {theirs:g} kernels a block", flush=True)
    if arguments.pytorch_only:
        return
    ours = slope(voltapile, False)
    print(f"voltapile: {ours:g} kernels a block, {100 * ours / theirs:.0f} % of PyTorch's")


if __name__ == "__main__":
    main()
