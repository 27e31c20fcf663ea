"""A training step of ViT-Ti/16 on the CPU: voltapile against PyTorch with timm, alternating.

    python3 tests/benchmark/step_against_pytorch.py [--rounds 5] [--steps 8] [--threads 2]

Needs torch and timm in the Python that runs it, and build/src/voltapile. Both sides train the same
model (vit_tiny_patch16_224, 1000 classes) on batches of 32 in f32 with AdamW, gradient clipping at
1 and the same number of threads. Each round is a fresh process a side; its figure is the median
step after two warm-up steps. voltapile reads its batches in that time; PyTorch has one in memory.
"""

import argparse
import os
import statistics
import subprocess
import sys

from runs import ROOT, settings, spread, train

PYTORCH = """
import sys, time, torch, timm
threads, steps = int(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(threads)
torch.manual_seed(0)
model = timm.create_model('vit_tiny_patch16_224', num_classes=1000).train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05, fused=True)
pictures, labels = torch.randn(32, 3, 224, 224), torch.randint(0, 1000, (32,))
loss_of = torch.nn.CrossEntropyLoss()
for _ in range(steps):
    begin = time.perf_counter()
    optimizer.zero_grad(set_to_none=True)
    loss = loss_of(model(pictures), labels)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    loss.item()
    print(time.perf_counter() - begin)
"""


def median_step(seconds):
    return statistics.median(seconds[2:])


def pytorch(arguments):
    environment = {**os.environ, "OMP_NUM_THREADS": str(arguments.threads)}
    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
        environment.pop(name, None)
    out = subprocess.run(
        [sys.executable, "-c", PYTORCH, str(arguments.threads), str(arguments.steps)],
        env=environment,
        check=True,
        text=True,
        capture_output=True,
    ).stdout
    return median_step([float(line) for line in out.split()])


def voltapile(arguments):
    fixed = {
        "run.steps": arguments.steps,
        "run.threads": arguments.threads,
        "data.synthetic_test": 32,
    }
    more = [part for key in arguments.set for part in ("--set", key)]
    deck = ROOT / "input_decks/vit_tiny_synthetic.toml"
    return median_step([r["seconds"] for r in train(deck, *settings(**fixed), *more)])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--set", action="append", default=[], help="section.key=value for voltapile's side"
    )
    arguments = parser.parse_args()
    ours, theirs = [], []
    for number in range(arguments.rounds):
        ours.append(voltapile(arguments))
        theirs.append(pytorch(arguments))
        print(
            f"round {number + 1}: voltapile {ours[-1]:.3f} s, PyTorch {theirs[-1]:.3f} s, "
            f"ratio {theirs[-1] / ours[-1]:.2f}",
            flush=True,
        )
    ratios = [b / a for a, b in zip(ours, theirs)]
    print(
        f"median: voltapile {spread(ours, 3, ' s')}, PyTorch {spread(theirs, 3, ' s')}, "
        f"ratio {spread(ratios, 2)}"
    )


if __name__ == "__main__":
    main()
