"""Saving while training goes on: against PyTorch's asynchronous distributed checkpoint, and against
the rate at which the disk takes direct writes.

    python3 tests/benchmark/saving.py [--disk FOLDER] [--rounds 3] [--depth 8] [--write FILE]

A round is, one after the other on the same disk:
* direct writes of as many bytes as the state, by 1 to 4, as fast as is known (O_DIRECT, 8 MiB out
  of large pages into files whose room is reserved, one fsync each);
* a `voltapile train` on the CPU with its optimizer on the host, all of whose state is f32. Saves
  inside the run give the stall: what training stood still plus what updates waited. The save after
  the last step, beside which nothing runs, gives the time to a durable checkpoint;
* torch.distributed.checkpoint.async_save of tensors of the same bytes (one rank, gloo) with the
  DefaultStager that it makes for a save where there is no accelerator: the stall is the time of the
  call, the future's end the time to a checkpoint. (A DefaultStager that is kept fails at its second
  save in 2.11.) Its first save is not counted; voltapile's is.
PyTorch runs in --python, and is left out where that has no torch.
"""

import argparse
import ctypes
import json
import mmap
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from runs import PROGRAM, Child, read_metrics, serve, settings, spread

BLOCK, LARGE_PAGE = 8 << 20, 2 << 20
DECK = """
[run]
name = "bench"
device = "cpu"
steps = {steps}
[model]
image = 32
channels = 3
patch = 16
dim = 1024
depth = {depth}
heads = 16
mlp = 4096
classes = 10
[parallel]
schedule = "breadth_first"
chunks = {depth}
[batch]
global = 4
micro = 4
[optimizer]
clip = 0.0
[memory]
optimizer = "host"
[data]
format = "synthetic"
synthetic_train = 64
synthetic_test = 4
[checkpoint]
every_steps = {every}
keep_last = 1
"""
UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1}


def serve_torch():
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    store = tempfile.mkdtemp() + "/store"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    state = {}

    def answer(sizes, folder):
        if not state:
            for part in ("master", "m", "v"):
                for number, size in enumerate(sizes):
                    state[f"{part}.{number}"] = torch.rand(size)
        began = time.perf_counter()
        saving = dcp.async_save(state, checkpoint_id=folder)
        stall = time.perf_counter() - began
        saving.result()
        return {
            "stall": stall,
            "seconds": time.perf_counter() - began,
            "version": torch.__version__,
        }

    serve(answer)


def block_of_large_pages():
    """Out of small ones, wherever they happen to lie, a disk takes as little as half as much."""
    memory = mmap.mmap(-1, BLOCK + LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    begin = -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % LARGE_PAGE
    memory[begin : begin + BLOCK] = os.urandom(BLOCK)
    return memoryview(memory)[begin : begin + BLOCK]


def write_directly(folder, writers, total):
    memory = block_of_large_pages()
    blocks = total // BLOCK

    def work(number):
        path = folder / f"direct_{number}"
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_DIRECT, 0o600)
        own = blocks // writers + (number < blocks % writers)
        os.posix_fallocate(file, 0, own * BLOCK)
        for block in range(own):
            if os.pwrite(file, memory, block * BLOCK) != BLOCK:
                raise OSError("a short write")
        os.fsync(file)
        os.close(file)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(writers)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rate = blocks * BLOCK / (time.perf_counter() - began)
    for number in range(writers):
        (folder / f"direct_{number}").unlink()
    return rate


def seconds_of(text):
    number, unit = text.split()
    return float(number) * UNITS[unit]


def run_voltapile(folder, depth, overrides):
    deck = folder / "deck.toml"
    deck.write_text(DECK.format(steps=8, every=3, depth=depth))
    runs = folder / "runs"
    done = subprocess.run(
        [PROGRAM, "train", deck, *settings(**{"run.dir": runs}), *overrides],
        text=True,
        capture_output=True,
    )
    if done.returncode != 0:
        sys.exit(f"voltapile: exit {done.returncode}\n{done.stdout}{done.stderr}")
    saves = re.findall(
        r"step (\d+): saved \S+ in (\S+ \S+); training stood still for (\S+ \S+) of it, "
        r"updates waited (\S+ \S+)",
        done.stdout,
    )
    saves = [(int(step), *map(seconds_of, times)) for step, *times in saves]
    checkpoint = runs / "bench" / "checkpoints" / "latest"
    size = sum(file.stat().st_size for file in checkpoint.glob("shard_*.h5"))
    steps = [record["seconds"] for record in read_metrics(runs / "bench")]
    shutil.rmtree(runs)
    return {
        "stalls": [stood + waited for step, _, stood, waited in saves if step < 8],
        "beside": [seconds for step, seconds, *_ in saves if step < 8],
        "alone": saves[-1][1],
        "bytes": size,
        "steps": steps,
    }


def parameter_sizes(depth, dim=1024, mlp=4096):
    block = [dim] * 6 + [3 * dim * dim, 3 * dim, dim * dim, mlp * dim, mlp, dim * mlp]
    return block * depth + [dim * 768, dim, 10 * dim]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--disk", type=pathlib.Path, default=pathlib.Path("."))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--depth", type=int, default=8, help="blocks: 151 MB of state each")
    parser.add_argument("--python", default=sys.executable, help="one that has torch")
    parser.add_argument("--set", action="append", default=[], help="more of voltapile's deck")
    parser.add_argument("--write", type=pathlib.Path)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        return serve_torch()
    overrides = [part for one in arguments.set for part in ("--set", one)]
    has_torch = (
        subprocess.run([arguments.python, "-c", "import torch"], capture_output=True).returncode
        == 0
    )
    peer = None
    if has_torch:
        peer = Child(__file__, "--serve", python=arguments.python)
    rounds = []
    sizes = parameter_sizes(arguments.depth)
    with tempfile.TemporaryDirectory(dir=arguments.disk) as name:
        folder = pathlib.Path(name)
        for _ in range(arguments.rounds):
            total = 12 * sum(sizes)
            one = {"direct": {n: write_directly(folder, n, total) for n in (1, 2, 3, 4)}}
            one["voltapile"] = run_voltapile(folder, arguments.depth, overrides)
            if peer is not None:
                if not rounds:
                    peer.ask(sizes=sizes, folder=str(folder / "dcp"))
                    shutil.rmtree(folder / "dcp")
                one["torch"] = peer.ask(sizes=sizes, folder=str(folder / "dcp"))
                shutil.rmtree(folder / "dcp")
            rounds.append(one)
            show(one)
    if peer is not None:
        peer.end()
    report(rounds)
    if arguments.write:
        arguments.write.write_text(json.dumps(rounds, indent=1))
    return 0


def share_of_direct(one):
    rate = one["voltapile"]["bytes"] / one["voltapile"]["alone"]
    return rate / max(one["direct"].values())


def show(one):
    ours, direct = one["voltapile"], one["direct"]
    print(
        f"direct {', '.join(f'{n}: {rate / 1e9:.2f}' for n, rate in direct.items())} GB/s; "
        f"voltapile {ours['bytes'] / 1e9:.2f} GB in {ours['alone']:.2f} s "
        f"({share_of_direct(one):.2f} of it), "
        f"stalls {', '.join(f'{stall:.3f}' for stall in ours['stalls'])} s, "
        f"steps {statistics.median(ours['steps']):.2f} s"
        + (f"; torch {one['torch']['stall']:.3f} s" if "torch" in one else ""),
        flush=True,
    )


def report(rounds):
    print("share of the best direct write rate:", spread([share_of_direct(one) for one in rounds]))
    stalls = [statistics.mean(one["voltapile"]["stalls"]) for one in rounds]
    print("stall of a save, voltapile:", spread(stalls, unit=" s"))
    if "torch" not in rounds[0]:
        return
    theirs = [one["torch"]["stall"] for one in rounds]
    print(
        f"stall of a save, PyTorch {rounds[0]['torch']['version']}:",
        spread(theirs, unit=" s"),
    )
    print("ratio:", spread([a / b for a, b in zip(stalls, theirs)]))
    print(
        "until the checkpoint is whole, training beside it:",
        spread([statistics.mean(one["voltapile"]["beside"]) for one in rounds], unit=" s"),
        "voltapile;",
        spread([one["torch"]["seconds"] for one in rounds], unit=" s"),
        "PyTorch, nothing beside it",
    )


if __name__ == "__main__":
    sys.exit(main())
