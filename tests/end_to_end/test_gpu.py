"""Jobs of several ranks under real mpirun, one a GPU where there are enough of them; else they
share one, and what they send goes through the hosts' memory. Skips, and says why, without any."""

import os
import random
import signal
import subprocess
import time

import h5py
import numpy as np
import pytest

from conftest import (
    BINARY,
    DECK,
    Program,
    fill_disk,
    is_running,
    kill_everything,
    losses,
    metrics,
    rank_processes,
)

CUDA = ["--set", "run.device=cuda", "--set", "parallel.data=1", "--set", "run.steps=30"]


def mesh(pipeline=1, data=1, tensor=1, **more):
    axes = {"pipeline": pipeline, "data": data, "tensor": tensor}
    keys = {**{f"parallel.{axis}": size for axis, size in axes.items()}, **more}
    return [part for key, value in keys.items() for part in ("--set", f"{key}={value}")]


MESHES = {  # ranks, overrides
    "pipeline": (2, mesh(pipeline=2)),
    "data": (2, mesh(data=2)),
    "zero": (2, mesh(data=2, **{"optimizer.zero": 1})),
    "tensor": (2, mesh(tensor=2)),
    "pipeline and tensor": (4, mesh(pipeline=2, tensor=2)),
    "pipeline and zero": (4, mesh(pipeline=2, data=2, **{"optimizer.zero": 1})),
    "data and tensor": (4, mesh(data=2, tensor=2)),
}
PAIRS = [name for name, (ranks, _) in MESHES.items() if ranks == 2]
ENDLESS = ["--set", "run.steps=100000000", "--set", "checkpoint.every_steps=0"]


def gpus():
    """How many there are, and why none can be used, if so."""
    probe = subprocess.run([BINARY, "--help"], capture_output=True, text=True)
    assert probe.returncode == 0, probe.stderr
    linked = subprocess.run(["ldd", BINARY], capture_output=True, text=True).stdout
    if "libnccl" not in linked:
        return 0, "built without CUDA"
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)
    except FileNotFoundError:
        return 0, "no GPU: there is no nvidia-smi"
    if listed.returncode != 0:
        return 0, f"no GPU: {listed.stdout.strip()}"
    return len(listed.stdout.splitlines()), ""


GPUS, WHY_NOT = gpus()
pytestmark = pytest.mark.skipif(GPUS == 0, reason=WHY_NOT)


def transports(ranks):
    return ["nccl", "staged"] if GPUS >= ranks else ["staged"]


def needs(transport, ranks):
    if transport not in transports(ranks):
        pytest.skip(f"{transport} needs {ranks} GPUs, and there are {GPUS}")


def wait_for_step(run, step, process):
    while process.poll() is None:
        try:
            if len(metrics(run)) >= step:
                return
        except (FileNotFoundError, ValueError):
            pass
        time.sleep(0.01)
    pytest.fail(process.stdout.read())


@pytest.fixture(scope="module")
def losses_of_one(tmp_path_factory):
    program = Program(tmp_path_factory.mktemp("one"))
    program.good("train", program.deck(), *CUDA, "--set", "parallel.pipeline=1", ranks=1)
    return losses(program.folder / "runs/small")


@pytest.mark.parametrize("name", list(MESHES))
def test_ranks_train_as_one_does(program, losses_of_one, name):
    ranks, overrides = MESHES[name]
    deck, runs, one = program.deck(), program.folder / "runs", losses_of_one
    for transport in ["auto", *transports(ranks)[1:]]:
        keys = ["--set", f"run.name={transport}", "--set", f"parallel.transport={transport}"]
        out = program.good("train", deck, *CUDA, *overrides, *keys, ranks=ranks)
        if transport == "auto":
            assert f'parallel.transport = "auto" became "{transports(ranks)[0]}"' in out
        many = losses(runs / transport)
        assert many.keys() == one.keys()
        for step, loss in one.items():
            assert abs(many[step] - loss) <= 1e-4 * loss, (transport, step)
    again = ["--set", "run.name=again"]
    program.good("train", deck, *CUDA, *overrides, *again, ranks=ranks)
    assert losses(runs / "again") == losses(runs / "auto")


def test_each_gpu_tells_what_it_took(program):
    deck = program.deck()
    more = ["--set", "run.steps=5000", "--set", "checkpoint.every_steps=0"]
    program.good("train", deck, *CUDA[:4], *MESHES["data"][1], *more, ranks=2)
    run = program.folder / "runs/small"
    with h5py.File(run / "trace.h5") as trace:
        samples = trace["gpu_samples"][:]
    assert set(samples["rank"]) == {0, 1}
    for rank in (0, 1):
        mine = samples[samples["rank"] == rank]
        assert mine["step"][-1] == 5000 and (np.diff(mine["time_ns"]) > 0).all()
        assert mine["energy_joules"][-1] > 0 and (mine["power_watts"] > 10).all()
        assert (mine["utilisation"] <= 1).all() and (mine["memory_bytes"] > 1e8).all()
        for name in ("sm_activity", "tensor_activity", "sm_occupancy"):
            told = mine[name][~np.isnan(mine[name])]  # none before Hopper
            assert ((0 <= told) & (told <= 1)).all(), name
    out = program.good("report", "runs/small")
    assert "samples/kWh" in out and "GPUs by NVML" in out


def test_ranks_that_share_a_gpu_are_told_to_stage(program):
    program.environment["CUDA_VISIBLE_DEVICES"] = "0"
    deck = program.deck()
    asked = [*CUDA, *MESHES["data"][1], "--set", "parallel.transport=nccl"]
    done = program.run("train", deck, *asked, ranks=2)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.count("error: ") == 1, done.stderr
    assert "rank 0 of 2 and rank 1 of 2 share GPU" in done.stderr
    assert 'parallel.transport = "staged"' in done.stderr
    out = program.good("train", deck, *CUDA, *MESHES["data"][1], ranks=2)
    assert 'parallel.transport = "auto" became "staged": rank 0 of 2 and rank 1 of 2' in out


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("transport", ["nccl", "staged"])
def test_a_killed_rank_ends_the_whole_job(program, name, transport):
    needs(transport, 2)
    rng = random.Random(name)
    asked = [*CUDA, *MESHES[name][1], *ENDLESS, "--set", f"parallel.transport={transport}"]
    process = program.start("train", program.deck(), *asked, ranks=2)
    try:
        wait_for_step(program.folder / "runs/small", 20, process)
        ranks = rank_processes(process.pid)
        assert len(ranks) == 2
        began = time.monotonic()
        os.kill(rng.choice(ranks), signal.SIGKILL)
        process.wait(timeout=30)
        while any(is_running(rank) for rank in ranks):
            assert time.monotonic() - began < 30, "a rank is left"
            time.sleep(0.05)
        assert process.returncode != 0
    finally:
        kill_everything(process)


@pytest.mark.parametrize("name", PAIRS)
def test_a_rank_that_fails_ends_the_whole_job_and_names_itself(program, name):
    disk = program.folder / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "none", disk]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("needs the right to mount a small tmpfs")
    asked = [*CUDA, *MESHES[name][1], *ENDLESS, "--set", f"run.dir={disk}"]
    process = program.start("train", program.deck(), *asked, ranks=2)
    try:
        wait_for_step(disk / "small", 20, process)
        fill_disk(disk)
        out, _ = process.communicate(timeout=30)
        assert process.returncode == 5, out
        assert "rank 0 (pp0 dp0 tp0) on " in out and "metrics" in out, out
        assert out.count("error: ") == 1, out
    finally:
        kill_everything(process)
        subprocess.run(["umount", "-l", disk], check=True)
