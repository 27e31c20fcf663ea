"""What activations in 8 bits cost of the final loss, over pairs of runs that share a seed.

    python3 tests/benchmark/eight_bit_loss.py [--device cuda --type f16 --jobs 8] [--vit-s]

Fashion-MNIST by input_decks/quickstart.toml, or a ViT-S on the same pictures, on one rank. Every
micro-batch's activations are stored and fetched, since all of a step's go forward first. The figure
of a run is its mean training loss over the last epoch; the schedule ends with --epochs.
"""

import argparse
import math
import statistics
from concurrent.futures import ThreadPoolExecutor

from runs import ROOT, settings, train

DECK = ROOT / "input_decks/quickstart.toml"
BATCH, PICTURES = 128, 60000
ONE_RANK = {
    "parallel.pipeline": 1,
    "parallel.data": 1,
    "parallel.chunks": 1,
    "parallel.schedule": "gpipe",
    "batch.global": BATCH,
    "checkpoint.every_steps": 0,
}
VIT_S = {
    "model.patch": 4,
    "model.dim": 384,
    "model.depth": 12,
    "model.heads": 6,
    "model.mlp": 1536,
    "model.initial_std": 0.02,
    "optimizer.lr": 5e-4,
    "optimizer.warmup_steps": 200,
    "batch.micro": 64,
}


def final_loss(shape, seed, store):
    keys = {**shape, "run.seed": seed, "memory.activations": store}
    records = train(DECK, *settings(**keys))
    return statistics.mean(record["loss"] for record in records[-(PICTURES // BATCH) :])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5, 6])
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--type", choices=("f32", "bf16", "f16"), default="f32")
    parser.add_argument("--vit-s", action="store_true")
    arguments = parser.parse_args()
    shape = {
        **ONE_RANK,
        **(VIT_S if arguments.vit_s else {}),
        "run.epochs": arguments.epochs or (4 if arguments.vit_s else 8),
        "run.device": arguments.device,
        "precision.type": arguments.type,
    }
    if arguments.jobs > 1:
        shape["run.threads"] = 1
    with ThreadPoolExecutor(arguments.jobs) as pool:
        pairs = [
            [pool.submit(final_loss, shape, seed, store) for store in ("working", "int8")]
            for seed in arguments.seeds
        ]
        changes = []
        for seed, (working, int8) in zip(arguments.seeds, pairs):
            changes.append(100 * (int8.result() / working.result() - 1))
            print(
                f"seed {seed}: {working.result():.5f} as they are, {int8.result():.5f} in 8 bits, "
                f"{changes[-1]:+.2f} %",
                flush=True,
            )
    if len(changes) > 1:
        error = statistics.stdev(changes) / math.sqrt(len(changes))
        print(f"mean {statistics.mean(changes):+.2f} +- {error:.2f} % (standard error)")


if __name__ == "__main__":
    main()
