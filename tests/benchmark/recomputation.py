"""What recomputation every 4 layers costs in time and saves in memory, alternating in one run.

    python3 tests/benchmark/recomputation.py [--rounds 5]

ViT-Ti/16 at 224 with 24 blocks, batch 16, one rank; the figure of a round is the median step after
two warm-up steps. The saving is the plan's count of activation bytes.
"""

import argparse
import statistics
import subprocess

from runs import PROGRAM, ROOT, settings, train

DECK = ROOT / "input_decks/vit_tiny_synthetic.toml"
SHAPE = settings(**{"model.depth": 24, "batch.global": 16, "batch.micro": 16})
RECOMPUTE = settings(**{"memory.recompute": "layers", "memory.checkpoint_every": 4})


def step(overrides):
    fixed = settings(**{"run.steps": 8, "data.synthetic_test": 32})
    return statistics.median([r["seconds"] for r in train(DECK, *fixed, *SHAPE, *overrides)][2:])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    plan = subprocess.run(
        [PROGRAM, "plan", DECK, *SHAPE, *RECOMPUTE], check=True, text=True, capture_output=True
    ).stdout
    print(next(line.strip() for line in plan.splitlines() if "without recomputation" in line))
    ratios = []
    for number in range(rounds):
        without, with_it = step([]), step(RECOMPUTE)
        ratios.append(with_it / without)
        print(
            f"round {number + 1}: {without:.3f} s without, {with_it:.3f} s with, "
            f"ratio {ratios[-1]:.3f}",
            flush=True,
        )
    print(f"median ratio {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")


if __name__ == "__main__":
    main()
