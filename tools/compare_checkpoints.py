#!/usr/bin/env python3
"""Compares two checkpoints tensor by tensor, whatever the meshes that wrote them.

    compare_checkpoints.py runs/a/checkpoints/latest runs/b/checkpoints/latest
    compare_checkpoints.py A B --tolerance 1e-5 --state v

Prints the largest difference of each tensor that differs, relative to the largest value of A's.
Exit code 0: equal (bit for bit, or within the tolerance); 1: not, or not the same tensors.
Needs h5py and numpy.
"""
import argparse
import sys
from pathlib import Path

import h5py
import numpy as np

GROUPS = {"weights": "model", "m": "optimizer/m", "v": "optimizer/v"}


def difference(a, b):
    """Largest |a - b| relative to the largest |a|; NaN (an element that is missing) is infinite."""
    if a.shape != b.shape:
        return np.inf
    if np.array_equal(a, b):
        return 0.0
    largest = float(np.max(np.abs(a.astype(np.float64))))
    value = float(np.max(np.abs(a.astype(np.float64) - b)))
    return np.inf if np.isnan(value) else value / largest if largest > 0 else value


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("a", type=Path)
    parser.add_argument("b", type=Path)
    parser.add_argument("--tolerance", type=float, default=0.0)
    parser.add_argument("--state", choices=[*GROUPS, "all"], default="all")
    options = parser.parse_args()
    states = GROUPS if options.state == "all" else [options.state]

    differing = compared = 0
    with h5py.File(options.a / "index.h5", "r") as a, h5py.File(options.b / "index.h5", "r") as b:
        for state in states:
            group_a, group_b = a[GROUPS[state]], b[GROUPS[state]]
            for name in sorted(set(group_a) | set(group_b)):
                compared += 1
                if name not in group_a or name not in group_b:
                    print(f"{state:8} {name:40} only in {'b' if name in group_b else 'a'}")
                    differing += 1
                    continue
                largest = difference(group_a[name][:], group_b[name][:])
                if largest > options.tolerance:
                    print(f"{state:8} {name:40} {largest:.3e}")
                    differing += 1
        print(f"step {a.attrs['step']} and step {b.attrs['step']}: {differing} of {compared} "
              f"tensors differ by more than {options.tolerance:g}")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
