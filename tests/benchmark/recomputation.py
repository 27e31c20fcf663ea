"""What recomputation every 4 layers costs in time and saves in memory, alternating in one run.

    python3 tests/benchmark/recomputation.py [--rounds 5]
    python3 tests/benchmark/recomputation.py --gpu     # ViT-L/16's width, 40 blocks, f16

ViT-Ti/16 at 224 with 24 blocks, batch 16, one rank; the figure of a round is the median step after
some warm-up steps. The saving is the plan's count of activation bytes.
"""

import argparse
import statistics
import subprocess

from runs import PROGRAM, ROOT, settings, train

CPU = {
    "deck": ROOT / "input_decks/vit_tiny_synthetic.toml",
    "shape": {"model.depth": 24, "batch.global": 16, "batch.micro": 16},
    "steps": 8,
    "skipped": 2,
}
GPU = {
    "deck": ROOT / "input_decks/vit_l16_synthetic_1gpu.toml",
    "shape": {"model.depth": 40, "batch.global": 128, "batch.micro": 64},
    "steps": 24,
    "skipped": 8,
}
RECOMPUTE = {"memory.recompute": "layers", "memory.checkpoint_every": 4}


def step(side, **more):
    keys = {"run.steps": side["steps"], "data.synthetic_test": 32, "optimizer.warmup_steps": 1}
    records = train(side["deck"], *settings(**{**keys, **side["shape"], **more}))
    return statistics.median([record["seconds"] for record in records][side["skipped"] :])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--gpu", action="store_true")
    arguments = parser.parse_args()
    side, rounds = GPU if arguments.gpu else CPU, arguments.rounds
    overrides = settings(**{**side["shape"], **RECOMPUTE})
    plan = subprocess.run(
        [PROGRAM, "plan", side["deck"], *overrides], check=True, text=True, capture_output=True
    ).stdout
    print(next(line.strip() for line in plan.splitlines() if "without recomputation" in line))
    ratios = []
    for number in range(rounds):
        without, with_it = step(side), step(side, **RECOMPUTE)
        ratios.append(with_it / without)
        print(
            f"round {number + 1}: {without:.4f} s without, {with_it:.4f} s with, "
            f"ratio {ratios[-1]:.3f}",
            flush=True,
        )
    print(f"median ratio {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")


if __name__ == "__main__":
    main()
