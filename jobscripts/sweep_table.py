"""The ranked table of a sweep: python3 sweep_table.py FOLDER, as sweep.sh made it.

By accuracy on the test part, best first; runs without an evaluation after them, by the mean loss of
their last ten steps; then those that never finished a step.
"""

import json
import math
import pathlib
import sys

COLUMNS = ("place", "top-1", "test loss", "train loss", "steps", "values", "run")


def read(run):
    """(last step, mean loss of the last ten steps, last evaluation or None)"""
    losses, step, evaluation = [], 0, None
    try:
        lines = (run / "metrics.jsonl").read_text().splitlines()
    except FileNotFoundError:
        lines = []
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue  # cut short by a kill
        if record["kind"] == "eval":
            evaluation = record
        elif record["kind"] == "train":
            step = record["step"]
            losses = losses[-9:] + [record["loss"]]
    finite = [loss for loss in losses if loss is not None]
    # A loss that is not finite is null in the file: worse than any other.
    mean = sum(finite) / len(finite) if finite and len(finite) == len(losses) else math.inf
    return step, mean, evaluation


def row(line):
    """(sort key, cells)"""
    folder, steps, values = line.split("\t")
    run = pathlib.Path(folder)
    step, loss, evaluation = read(run)
    if evaluation:
        key = (0, -evaluation["top1"], loss)
    else:
        key = (1 if step else 2, loss)
    cells = [
        f"{100 * evaluation['top1']:.2f} %" if evaluation else "-",
        f"{evaluation['loss']:.4f}" if evaluation and evaluation["loss"] is not None else "-",
        f"{loss:.4f}" if step else "-",
        f"{step} of {steps}",
        values,
        folder,
    ]
    return key, cells


def main(folder):
    listed = pathlib.Path(folder) / "runs.tsv"
    try:
        lines = listed.read_text().splitlines()
    except OSError as error:
        sys.exit(f"{listed}: {error.strerror}; name a folder that sweep.sh made, in runs/sweeps")
    rows = [row(line) for line in lines]
    rows.sort(key=lambda entry: entry[0])
    table = [COLUMNS] + [(str(place), *cells) for place, (_, cells) in enumerate(rows, 1)]
    widths = [max(len(cells[column]) for cells in table) for column in range(len(COLUMNS))]
    for cells in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(cells, widths)).rstrip())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
