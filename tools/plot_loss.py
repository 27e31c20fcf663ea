#!/usr/bin/env python3
"""Plots a run's loss and test accuracy from metrics.h5; may be used while the run goes on.

    plot_loss.py runs/quickstart                      a picture in text
    plot_loss.py runs/quickstart --out loss.png       needs matplotlib
    plot_loss.py runs/a runs/b                        several runs, one below the other

Needs h5py and numpy.
"""
import argparse
import sys
from pathlib import Path

import h5py
import numpy as np

WIDTH, HEIGHT = 72, 16


def read(run):
    """{"train": {...}, "eval": {...}} of a run folder or a metrics.h5."""
    path = run if run.is_file() else run / "metrics.h5"
    with h5py.File(path, "r") as file:
        return {group: {name: file[group][name][:] for name in file[group]} for group in file}


def text_plot(step, loss):
    """Lines of a plot: the mean of the finite losses that fall in each column."""
    finite = np.isfinite(loss)
    step, loss = step[finite], loss[finite]
    if len(step) == 0:
        return ["  no steps yet"]
    first, last = step[0], max(step[-1], step[0] + 1)
    column = np.minimum((step - first) * WIDTH // (last - first), WIDTH - 1)
    count = np.bincount(column, minlength=WIDTH)
    mean = np.bincount(column, loss, WIDTH) / np.maximum(count, 1)
    low, high = mean[count > 0].min(), mean[count > 0].max()
    row = ((mean - low) / max(high - low, 1e-30) * (HEIGHT - 1)).round().astype(int)
    lines = []
    for height in reversed(range(HEIGHT)):
        label = f"{low + (high - low) * height / (HEIGHT - 1):9.4g}"
        marks = "".join("*" if n and r == height else " " for n, r in zip(count, row))
        lines.append(f"{label} |{marks}".rstrip())
    lines.append(" " * 10 + "+" + "-" * WIDTH)
    lines.append(f"{'step':>9}  {first}{last:>{WIDTH - len(str(first))}}")
    return lines


def picture(runs, out):
    try:
        import matplotlib
    except ImportError:
        return "--out needs matplotlib (python3-matplotlib); without it the plot is text"
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    figure, axes = plt.subplots(figsize=(8, 5))
    for run, metrics in runs.items():
        axes.plot(metrics["train"]["step"], metrics["train"]["loss"], label=f"{run} training")
        axes.plot(metrics["eval"]["step"], metrics["eval"]["loss"], "o-", label=f"{run} test")
    axes.set(xlabel="step", ylabel="loss")
    axes.legend()
    figure.savefig(out, dpi=150)
    print(f"wrote {out}")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, nargs="+", help="run folder or metrics.h5")
    parser.add_argument("--out", type=Path, help="write a picture (.png, .svg, .pdf)")
    options = parser.parse_args()
    runs = {run.name: read(run) for run in options.run}
    if options.out:
        return picture(runs, options.out)
    for name, metrics in runs.items():
        print(f"{name}: training loss")
        print("\n".join(text_plot(metrics["train"]["step"], metrics["train"]["loss"])))
        tests = metrics["eval"]
        columns = (tests[name] for name in ("step", "loss", "top1", "top5"))
        for step, loss, top1, top5 in zip(*columns):
            print(f"step {step}: test loss {loss:.4f}, top-1 {100 * top1:.2f} %, "
                  f"top-5 {100 * top5:.2f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
