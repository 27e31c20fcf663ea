"""What recording costs, and how fast a large trace is exported, alternating in one run.

    python3 tests/benchmark/tracing.py [--rounds 5] [--ranks 1]
    python3 tests/benchmark/tracing.py --deck input_decks/vit_l16_synthetic_1gpu.toml --steps 40

ViT-Ti/16 at 96, batch 16 in micro-batches of 4, with trace.steps empty or over all steps (so with
the publishing of trace.h5 once a second). A round gives two ratios: of the median step after two
warm-up steps, and of the whole run's processor time, which other work on the machine disturbs less.
Another deck runs as it is, and one run of each round is without the sampler of GPUs
(trace.gpu_every).
Then a recorded run's events are repeated to a million, and `voltapile report --perfetto`
is timed on them. Needs h5py.
"""

import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import h5py
import numpy as np

from runs import PROGRAM, ROOT, read_metrics, settings

DECK = ROOT / "input_decks/vit_tiny_synthetic.toml"
EVENTS = 1_000_000
WARM_UP = 2


SMALL = {"run.threads": 1, "model.image": 96, "batch.global": 16, "batch.micro": 4}


def train(options, folder, name, more):
    """A run in folder/name; its folder."""
    keys = {
        "run.dir": folder,
        "run.name": name,
        "run.steps": options.steps,
        "parallel.pipeline": options.ranks,
        "data.synthetic_test": 0,
        "checkpoint.at_end": "false",
        **({} if options.deck else SMALL),
        **more,
    }
    command = [PROGRAM, "train", options.deck or DECK, *settings(**keys)]
    if options.ranks > 1:
        command = ["mpirun", "-n", str(options.ranks), *command]
    done = subprocess.run(command, text=True, capture_output=True)
    if done.returncode != 0:
        sys.exit(f"{done.stdout}{done.stderr}")
    return pathlib.Path(folder) / name


def measure(*arguments):
    """Seconds of the median step, and processor seconds of the whole run."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    records = read_metrics(train(*arguments))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return statistics.median([record["seconds"] for record in records][WARM_UP:]), used


def show(what, ratios):
    print(
        f"{what}: median ratio {statistics.median(ratios):.4f} "
        f"({min(ratios):.4f} to {max(ratios):.4f})"
    )


def repeat_events(path):
    """Repeats the steps of a trace until it has EVENTS events."""
    with h5py.File(path, "r+") as file:
        ranks = [name for name in file if name.startswith("rank_")]
        each = EVENTS // len(ranks)
        for rank in ranks:
            events = file[rank]["events"][:]
            length = events["end_ns"].max() - events["begin_ns"].min()
            steps = events["step"].max() - events["step"].min() + 1
            copies = -(-each // len(events))
            all_events = np.tile(events, copies)
            shift = np.repeat(np.arange(copies), len(events))
            for column in ["begin_ns", "end_ns"]:
                all_events[column] += shift * length
            all_events["step"] += shift * steps
            del file[rank]["events"]
            file[rank]["events"] = all_events[:each]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--deck", help="another one, as it is")
    options = parser.parse_args()
    window = f'"1:{options.steps + 1}"'
    kinds = {"plain": {"trace.steps": '""'}, "traced": {"trace.steps": window}}
    if options.deck:
        kinds["unsampled"] = {"trace.steps": '""', "trace.gpu_every": "never"}
    with tempfile.TemporaryDirectory() as folder:
        rounds = []
        for number in range(options.rounds):
            order = list(kinds.items())[:: -1 if number % 2 else 1]
            took = {kind: measure(options, folder, f"{kind}{number}", keys) for kind, keys in order}
            rounds.append(took)
            print(
                f"round {number + 1}:",
                *(
                    f"{kind} {1e3 * step:.2f} ms, {cpu:.2f} s;"
                    for kind, (step, cpu) in took.items()
                ),
                flush=True,
            )
        show("step, traced / plain", [r["traced"][0] / r["plain"][0] for r in rounds])
        show("processor time, the same", [r["traced"][1] / r["plain"][1] for r in rounds])
        if options.deck:
            show("step, plain / unsampled", [r["plain"][0] / r["unsampled"][0] for r in rounds])
        run = pathlib.Path(folder) / "traced0"
        report = [PROGRAM, "report", run]
        text = subprocess.run(report, text=True, capture_output=True, check=True).stdout
        print("\n".join(line.strip() for line in text.splitlines() if "accounted  " in line))
        repeat_events(run / "trace.h5")
        began = time.monotonic()
        exported = pathlib.Path(folder) / "perfetto.json"
        subprocess.run([*report, "--perfetto", exported], check=True, capture_output=True)
        print(
            f"report and export of {EVENTS:,} events: {time.monotonic() - began:.2f} s, "
            f"{exported.stat().st_size / 1e6:.0f} MB"
        )
        shown = json.loads(exported.read_text())["traceEvents"]
        print(f"spans in the file: {sum(event['ph'] == 'X' for event in shown):,}")


if __name__ == "__main__":
    os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")
    main()
