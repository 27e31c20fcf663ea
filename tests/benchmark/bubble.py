"""The pipeline's bubble, measured, against simulate() fed with the measured costs: every schedule.

    python3 tests/benchmark/bubble.py                          # four ranks on eight cores or more
    python3 tests/benchmark/bubble.py --cores 4 --write bubble.json
    python3 tests/benchmark/bubble.py --ranks 2 --small        # that it works, on any machine

Each schedule trains a small ViT on CPU ranks of one thread, once with the optimizer on the device
and once on the host, and records its last steps; the figures are those of `voltapile report`, which
takes medians over these steps. A row is the median of --rounds runs, which alternate. Ranks are
bound to cores of their own, as many for each as --cores allows: a rank's lanes (compute, host,
transfers) run beside each other. Exit 1 where measured and simulated bubble are more than
--most-points percentage points apart, or the exposed optimizer is.
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

from runs import PROGRAM, ROOT, settings

DECK = ROOT / "input_decks/vit_tiny_synthetic.toml"
# Chunks on each rank.
SCHEDULES = {"gpipe": 1, "1f1b": 1, "interleaved": 2, "breadth_first": 2, "zero_bubble_h1": 1}
SMALL = {"model.dim": 192, "model.heads": 3}
PERCENT = r"(-|[\d.]+ %)"
BUBBLE = re.compile(
    rf"bubble {PERCENT} measured; {PERCENT} simulated with the measured times; "
    rf"{PERCENT} by the formula"
)
OPTIMIZER = re.compile(rf"optimizer {PERCENT} measured; {PERCENT} simulated")


def keys_of(options, schedule, optimizer):
    chunks = SCHEDULES[schedule]
    return {
        "run.device": "cpu",
        "run.threads": 1,
        "run.steps": options.steps,
        "model.image": 96,
        "model.dim": 512,
        "model.heads": 8,
        "model.depth": 2 * options.ranks,
        "model.classes": 10,
        **(SMALL if options.small else {}),
        "batch.micro": 2,
        "batch.global": 2 * options.micros,
        "parallel.pipeline": options.ranks,
        "parallel.schedule": schedule,
        "parallel.chunks": chunks,
        "memory.optimizer": optimizer,
        "data.synthetic_train": 2 * options.micros,
        "data.synthetic_test": 0,
        "checkpoint.every_steps": 0,
        "checkpoint.at_end": "false",
        "trace.steps": f'"{options.steps - options.traced + 1}:{options.steps + 1}"',
    }


def command(options, cores):
    """mpirun with its ranks bound, or sharing what there is."""
    bound = ["--bind-to", "none", "--oversubscribe"]
    if cores >= options.ranks:
        bound = ["--map-by", f"slot:PE={cores // options.ranks}", "--bind-to", "core"]
    return ["mpirun", *bound, "-n", str(options.ranks), PROGRAM]


def percent(text):
    return None if text == "-" else float(text.split()[0])


def read_report(run):
    text = subprocess.run([PROGRAM, "report", run], text=True, capture_output=True, check=True)
    words = " ".join(text.stdout.split())
    bubble, optimizer = BUBBLE.search(words), OPTIMIZER.search(words)
    if bubble is None or optimizer is None:
        sys.exit(f"the report gives no bubble:\n{text.stdout}")
    measured, simulated, formula = map(percent, bubble.groups())
    exposed, exposed_simulated = map(percent, optimizer.groups())
    step = re.search(r"Recorded steps [^:]*: (\S+ \S+) a step", words)[1]
    return {
        "formula": formula,
        "simulated": simulated,
        "measured": measured,
        "optimizer_simulated": exposed_simulated,
        "optimizer_measured": exposed,
        "step": step,
    }


def train(options, cores, schedule, optimizer, folder):
    name = f"{schedule}_{optimizer}"
    keys = {"run.dir": folder, "run.name": name, **keys_of(options, schedule, optimizer)}
    overrides = [part for text in options.set for part in ("--set", text)]
    done = subprocess.run(
        [*command(options, cores), "train", DECK, *settings(**keys), *overrides],
        text=True,
        capture_output=True,
    )
    if done.returncode != 0:
        sys.exit(f"voltapile train, {name}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return read_report(pathlib.Path(folder) / name)


def middle(rounds):
    """The round whose bubble is furthest neither way; of two, the one further apart."""

    def apart(figures):
        return figures["measured"] - figures["simulated"]

    ordered = sorted(rounds, key=apart)
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return max(low, high, key=lambda figures: abs(apart(figures)))


def show(rows):
    widths = [16, 10, 9, 9, 9, 7, 20, 9]
    heads = ["schedule", "optimizer", "formula", "simulated", "measured", "apart"]
    heads += ["exposed, sim. / meas.", "step"]
    print("".join(f"{head:>{width + 2}}" for head, width in zip(heads, widths)))
    for row in rows:
        exposed = f"{row['optimizer_simulated']:.1f} / {row['optimizer_measured']:.1f}"
        formula = "-" if row["formula"] is None else f"{row['formula']:.1f}"
        cells = [row["schedule"], row["optimizer"], formula, f"{row['simulated']:.1f}"]
        cells += [f"{row['measured']:.1f}", f"{row['apart']:+.1f}", exposed, row["step"]]
        print("".join(f"{cell:>{width + 2}}" for cell, width in zip(cells, widths)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=11)
    parser.add_argument("--traced", type=int, default=8, help="of these, the last")
    parser.add_argument("--micros", type=int, default=8, help="micro-batches of a step")
    parser.add_argument("--small", action="store_true", help="a narrow model")
    parser.add_argument("--schedules", nargs="+", choices=SCHEDULES, default=list(SCHEDULES))
    parser.add_argument(
        "--optimizers", nargs="+", choices=("device", "host"), default=["device", "host"]
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--most-points", type=float, default=2)
    parser.add_argument("--write", metavar="FILE.json", help="what is printed, and every round")
    options = parser.parse_args()
    if options.ranks < 2 or not 2 <= options.traced < options.steps:
        parser.error("there must be 2 ranks or more, and 2 steps traced after some others")

    cases = [
        (optimizer, schedule) for optimizer in options.optimizers for schedule in options.schedules
    ]
    rounds = {case: [] for case in cases}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            for optimizer, schedule in cases:
                where = pathlib.Path(folder) / str(number)
                figures = train(options, options.cores, schedule, optimizer, where)
                rounds[optimizer, schedule].append(figures)
    rows = []
    for (optimizer, schedule), figures in rounds.items():
        row = {"schedule": schedule, "optimizer": optimizer, **middle(figures)}
        row["apart"] = row["measured"] - row["simulated"]
        row["optimizer_apart"] = row["optimizer_measured"] - row["optimizer_simulated"]
        rows.append({**row, "rounds": figures})
    print(
        f"{options.ranks} ranks on {options.cores} cores, {options.micros} micro-batches; percent"
    )
    show(rows)
    if options.write:
        written = {"options": vars(options), "rows": rows}
        pathlib.Path(options.write).write_text(json.dumps(written, indent=1) + "\n")
    worst = max(max(abs(row["apart"]), abs(row["optimizer_apart"])) for row in rows)
    print(f"at most {worst:.1f} points apart; {options.most_points:g} are allowed")
    sys.exit(worst > options.most_points)


if __name__ == "__main__":
    os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")
    main()
