r"""The pipeline's bubble, measured, against simulate() fed with the measured costs: every schedule.

    . jobscripts/env_workstation.sh    # as root, or on few cores
    python3 tests/benchmark/bubble.py --write bubble.json      # four ranks on eight cores or more
    python3 tests/benchmark/bubble.py --rounds 3 --schedules breadth_first --optimizers host
    python3 tests/benchmark/bubble.py --schedules breadth_first --optimizers device --blocks 10 \
      --micros 16 --steps 6 --traced 4 --set model.dim=1024 --set model.image=64   # as ViT-32B's
    python3 tests/benchmark/bubble.py --ranks 2 --small        # that it works, on any machine

Each schedule trains a ViT on CPU ranks of one thread and records its last steps, once with the
optimizer on the device, and once on the host with weights so many and pictures so small that the
next step waits for updates. The figures are those of `voltapile report`, medians over these steps;
a row is the middle one of --rounds runs. Each rank is bound to cores of its own, since its lanes
(compute, host, transfers) run beside each other; where there are fewer cores than ranks they share,
and the figures say nothing. Exit 1 where the measured and the simulated bubble are more than
--most-points percentage points apart.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from runs import PROGRAM, ROOT, settings

DECK = ROOT / "input_decks/vit_tiny_synthetic.toml"
SCHEDULES = ["gpipe", "1f1b", "interleaved", "breadth_first", "zero_bubble_h1"]
ONE_CHUNK = {"gpipe", "1f1b", "zero_bubble_h1"}
# Blocks of each rank, and as many chunks where the schedule has several.
BLOCKS = {"device": 2, "host": 4}
# Some milliseconds are computed for each micro-batch of a chunk.
MODELS = {
    "device": {"model.image": 96, "model.dim": 512, "model.heads": 8, "batch.micro": 2},
    "host": {
        "model.image": 32,
        "model.dim": 1024,
        "model.heads": 16,
        "batch.micro": 1,
        "optimizer.moments": "int8",
    },
}
MOST_CORES_OF_A_RANK = 4
SMALL = {"model.dim": 192, "model.heads": 3}
PERCENT = r"(-|[\d.]+ %)"
BUBBLE = re.compile(
    rf"bubble {PERCENT} measured; {PERCENT} simulated with the measured times; "
    rf"{PERCENT} by the formula"
)
OPTIMIZER = re.compile(rf"optimizer {PERCENT} measured; {PERCENT} simulated")


def keys_of(options, schedule, optimizer):
    micros = options.micros if optimizer == "device" else options.ranks
    blocks = options.blocks or BLOCKS[optimizer]
    pictures = micros * MODELS[optimizer]["batch.micro"]
    return {
        "run.device": "cpu",
        "run.threads": 1,
        "run.steps": options.steps,
        "model.depth": blocks * options.ranks,
        "model.classes": 10,
        **MODELS[optimizer],
        **(SMALL if options.small else {}),
        "batch.global": pictures,
        "parallel.pipeline": options.ranks,
        "parallel.schedule": schedule,
        "parallel.chunks": 1 if schedule in ONE_CHUNK else blocks,
        "memory.optimizer": optimizer,
        "data.synthetic_train": pictures,
        "data.synthetic_test": 0,
        "checkpoint.every_steps": 0,
        "checkpoint.at_end": "false",
        "trace.steps": f'"{options.steps - options.traced + 1}:{options.steps + 1}"',
    }


def count_cores():
    """Those that this process may use; threads that share one count once."""
    cores = set()
    for number in os.sched_getaffinity(0):
        siblings = pathlib.Path(
            f"/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list"
        )
        cores.add(siblings.read_text() if siblings.exists() else number)
    return len(cores)


def command(options):
    """mpirun with its ranks bound, or sharing what there is."""
    bound = ["--bind-to", "none", "--oversubscribe"]
    if options.cores >= options.ranks:
        each = min(MOST_CORES_OF_A_RANK, options.cores // options.ranks)
        bound = ["--map-by", f"slot:PE={each}", "--bind-to", "core"]
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


def train(options, schedule, optimizer, folder):
    name = f"{schedule}_{optimizer}"
    keys = {"run.dir": folder, "run.name": name, **keys_of(options, schedule, optimizer)}
    overrides = [part for text in options.set for part in ("--set", text)]
    done = subprocess.run(
        [*command(options), "train", DECK, *settings(**keys), *overrides],
        text=True,
        capture_output=True,
    )
    if done.returncode != 0:
        sys.exit(f"voltapile train, {name}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return read_report(pathlib.Path(folder) / name)


def middle(rounds):
    """The one whose figures are apart by the median; of two, the one that is further."""
    ordered = sorted(rounds, key=lambda row: row["apart"])
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return max(low, high, key=lambda row: abs(row["apart"]))


WIDTHS = [14, 9, 9, 9, 8, 7, 19, 10]
HEADS = ["schedule", "optimizer", "formula", "simulated", "measured", "apart"]
HEADS += ["exposed: sim., meas.", "step"]


def show(cells):
    print("".join(f"{cell:>{width + 2}}" for cell, width in zip(cells, WIDTHS)), flush=True)


def show_row(row):
    cells = [row["schedule"], row["optimizer"]]
    cells.append("-" if row["formula"] is None else f"{row['formula']:.1f}")
    cells += [f"{row['simulated']:.1f}", f"{row['measured']:.1f}", f"{row['apart']:+.1f}"]
    cells.append(f"{row['optimizer_simulated']:.1f}, {row['optimizer_measured']:.1f}")
    show([*cells, row["step"]])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument(
        "--cores", type=int, default=count_cores(), help="fewer than ranks: bind none"
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--traced", type=int, default=7, help="of these, the last")
    parser.add_argument("--blocks", type=int, help="of each rank, one a chunk")
    parser.add_argument("--micros", type=int, default=8, help="of a step; host: --ranks")
    parser.add_argument("--small", action="store_true", help="a narrow model")
    parser.add_argument("--schedules", nargs="+", choices=SCHEDULES, default=SCHEDULES)
    parser.add_argument(
        "--optimizers", nargs="+", choices=("device", "host"), default=["device", "host"]
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--folder", help="where the run folders stay; else they go away")
    parser.add_argument("--most-points", type=float, default=2)
    parser.add_argument("--write", metavar="FILE.json", help="what is printed, and every round")
    options = parser.parse_args()
    if options.ranks < 2 or not 2 <= options.traced < options.steps:
        parser.error("there must be 2 ranks or more, and 2 steps traced after some others")

    cases = [
        (optimizer, schedule) for optimizer in options.optimizers for schedule in options.schedules
    ]
    print(
        f"{options.ranks} ranks on {options.cores} cores; {options.micros} micro-batches, with an "
        f"optimizer on the host {options.ranks}; bubbles in percent of a step's first forward to\n"
        "last backward, exposed optimizers of the time from one step's last backward to the next's"
    )
    show(HEADS)
    rounds = {case: [] for case in cases}
    with tempfile.TemporaryDirectory() as temporary:
        for number in range(options.rounds):
            for optimizer, schedule in cases:
                where = pathlib.Path(options.folder or temporary) / str(number)
                figures = train(options, schedule, optimizer, where)
                row = {"schedule": schedule, "optimizer": optimizer, **figures}
                row["apart"] = row["measured"] - row["simulated"]
                rounds[optimizer, schedule].append(row)
                show_row(row)
    rows = [middle(of_case) for of_case in rounds.values()]
    if options.rounds > 1:
        print(f"the middle one of {options.rounds} rounds each:")
        for row in rows:
            show_row(row)
    if options.write:
        written = {"options": vars(options), "rows": rows, "rounds": list(rounds.values())}
        pathlib.Path(options.write).write_text(json.dumps(written, indent=1) + "\n")
    worst = max(abs(row["apart"]) for row in rows)
    print(f"at most {worst:.1f} points apart; {options.most_points:g} are allowed")
    sys.exit(worst > options.most_points)


if __name__ == "__main__":
    os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")
    main()
