"""What recording costs, and how fast a large trace is exported, alternating in one run.

    python3 tests/benchmark/tracing.py [--rounds 5] [--ranks 1]

ViT-Ti/16 at 96, batch 16 in micro-batches of 4, with trace.steps empty or over all steps (so with
the publishing of trace.h5 once a second). A round gives two ratios: of the median step after two
warm-up steps, and of the whole run's processor time, which other work on the machine disturbs less.
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


def train(folder, name, ranks, steps, window):
    """A run in folder/name; its folder."""
    keys = {
        "run.dir": folder,
        "run.name": name,
        "run.steps": steps,
        "run.threads": 1,
        "model.image": 96,
        "parallel.pipeline": ranks,
        "batch.global": 16,
        "batch.micro": 4,
        "data.synthetic_test": 0,
        "checkpoint.at_end": "false",
        "trace.steps": window,
    }
    command = [PROGRAM, "train", DECK, *settings(**keys)]
    if ranks > 1:
        command = ["mpirun", "-n", str(ranks), *command]
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
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        steps, processor = [], []
        for number in range(options.rounds):
            shared = (options.ranks, options.steps)
            without = measure(folder, f"plain{number}", *shared, "")
            with_it = measure(folder, f"traced{number}", *shared, f"1:{options.steps + 1}")
            steps.append(with_it[0] / without[0])
            processor.append(with_it[1] / without[1])
            print(
                f"round {number + 1}: step {1e3 * without[0]:.1f} ms without, "
                f"{1e3 * with_it[0]:.1f} ms with; processor {without[1]:.2f} s, {with_it[1]:.2f} s",
                flush=True,
            )
        show("step", steps)
        show("processor time", processor)
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
