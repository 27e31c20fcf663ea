"""What activations in 8 bits cost of the final loss, over pairs of runs that share a seed.

    python3 tests/benchmark/eight_bit_loss.py [--device cuda --type f16 --jobs 8] [--vit-s]
        [--set optimizer.lr=1e-3]

Fashion-MNIST by input_decks/quickstart.toml, or a ViT-S on the same pictures, on one rank. Every
micro-batch's activations are stored and fetched, since all of a step's go forward first. The
figures of a run are its mean training loss over the last epoch and its last test loss; the schedule
ends with --epochs.
"""

import argparse
import functools
import math
import statistics
from concurrent.futures import ThreadPoolExecutor

from runs import ROOT, read_metrics, settings, train

DECK = ROOT / "input_decks/quickstart.toml"
ONE_RANK = {
    "parallel.pipeline": 1,
    "parallel.data": 1,
    "parallel.chunks": 1,
    "parallel.schedule": "gpipe",
    "batch.global": 128,
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


def losses(run, epochs):
    """(training, test)"""
    steps = read_metrics(run)
    last_epoch = steps[-(len(steps) // epochs) :]
    test = read_metrics(run, "eval")[-1]["loss"]
    return statistics.mean(record["loss"] for record in last_epoch), test


def final_losses(shape, more, seed, store):
    keys = {**shape, "run.seed": seed, "memory.activations": store}
    read = functools.partial(losses, epochs=shape["run.epochs"])
    return train(DECK, *settings(**keys), *more, read=read)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5, 6])
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--type", choices=("f32", "bf16", "f16"), default="f32")
    parser.add_argument("--vit-s", action="store_true")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    more = [part for text in arguments.set for part in ("--set", text)]
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
            [pool.submit(final_losses, shape, more, seed, store) for store in ("working", "int8")]
            for seed in arguments.seeds
        ]
        changes = {"training": [], "test": []}
        for seed, (working, int8) in zip(arguments.seeds, pairs):
            parts = []
            for name, kept, stored in zip(changes, working.result(), int8.result()):
                changes[name].append(100 * (stored / kept - 1))
                parts.append(
                    f"{name} {kept:.5f} as they are, {stored:.5f} in 8 bits, "
                    f"{changes[name][-1]:+.2f} %"
                )
            print(f"seed {seed}: " + "; ".join(parts), flush=True)
    for name, each in changes.items():
        if len(each) > 1:
            error = statistics.stdev(each) / math.sqrt(len(each))
            print(f"{name}: mean {statistics.mean(each):+.2f} +- {error:.2f} % (standard error)")


if __name__ == "__main__":
    main()
