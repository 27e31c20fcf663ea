#!/usr/bin/env python3
"""Lists, shows or saves the tensors of a checkpoint, whatever the mesh that wrote it.

    read_tensor.py runs/quickstart/checkpoints/latest
    read_tensor.py runs/quickstart/checkpoints/latest head.weight
    read_tensor.py runs/quickstart/checkpoints/latest head.weight --state m --out m.npy

Needs h5py and numpy. In a script of your own three lines do:

    import h5py
    with h5py.File("runs/quickstart/checkpoints/latest/index.h5") as file:
        weight = file["model/head.weight"][:]
"""
import argparse
import difflib
import sys
from pathlib import Path

import h5py
import numpy as np

GROUPS = {"weights": "model", "master": "optimizer/master", "m": "optimizer/m", "v": "optimizer/v"}


def missing_shards(checkpoint, file):
    """Shards that are not there or have another size; HDF5 would read them as NaN, silently."""
    wrong = []
    for row in file["shards"][:]:
        path = checkpoint / row["file"].decode()
        if not path.is_file() or path.stat().st_size != row["bytes"]:
            wrong.append(path.name)
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("tensor", nargs="?")
    parser.add_argument("--state", choices=GROUPS, default="weights",
                        help="weights (default), or the optimizer's master weights and moments")
    parser.add_argument("--out", type=Path, help="save as .npy")
    options = parser.parse_args()

    with h5py.File(options.checkpoint / "index.h5", "r") as file:
        wrong = missing_shards(options.checkpoint, file)
        if wrong:
            return f"{options.checkpoint}: missing or cut: {', '.join(wrong)}"
        group = file[GROUPS[options.state]]
        if options.tensor is None:
            print(f"step {file.attrs['step']}, {len(group)} tensors")
            for name in group:
                print(f"{name:40} {group[name].shape}")
            return 0
        if options.tensor not in group:
            near = difflib.get_close_matches(options.tensor, group, 1)
            return f"no tensor {options.tensor}" + (f"; did you mean {near[0]}?" if near else "")
        values = group[options.tensor][:]
    if np.isnan(values).any():
        return f"{options.tensor}: elements are missing; run `voltapile verify` on this checkpoint"
    if options.out:
        np.save(options.out, values)
    print(f"{options.tensor} {values.shape} mean {values.mean():.6g} standard deviation "
          f"{values.std():.6g} from {values.min():.6g} to {values.max():.6g}")
    if not options.out:
        print(values)
    return 0


if __name__ == "__main__":
    sys.exit(main())
