"""Loss curves of one small Vision Transformer: voltapile against PyTorch in mixed precision.

    python3 tests/benchmark/loss_against_pytorch.py [--types f32 f16 bf16] [--device cuda]

Needs torch, timm and h5py in the Python that runs it. Both sides start from the same weights (read
from a checkpoint of voltapile's after a step at learning rate 0), see the same pictures in the same
order (made here, written as IDX files) and use the learning rates that voltapile recorded. PyTorch
trains timm's model under torch.autocast, with GradScaler for f16. A fifth of the labels are wrong,
so that the loss stays well above zero. The learning rate is low enough that rounding does not grow
into another course within the 200 steps; f32 shows how far two programs part by that alone. The
last 20 steps must agree within 1 % in the mean.
"""

import argparse
import json
import pathlib
import statistics
import struct
import subprocess
import sys
import tempfile

import h5py
import numpy as np
import torch
from timm.models.vision_transformer import VisionTransformer
from timm.optim import param_groups_weight_decay

from runs import PROGRAM, read_metrics, settings

STEPS, BATCH, PICTURES, LAST = 200, 64, 6400, 20
IMAGE, PATCH, DIM, DEPTH, HEADS, CLASSES = 28, 4, 192, 6, 3, 10
MEAN, STD, SEED = 0.5, 0.25, 1
LOSS_SCALE, WEIGHT_DECAY = 4096, 0.05
TYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}

DECK = f"""
[run]
name = "loss"
steps = {STEPS}
seed = {SEED}
[model]
image = {IMAGE}
channels = 1
patch = {PATCH}
dim = {DIM}
depth = {DEPTH}
heads = {HEADS}
classes = {CLASSES}
pool = "mean"
[batch]
global = {BATCH}
micro = {BATCH}
[precision]
initial_loss_scale = {LOSS_SCALE}
[optimizer]
lr = 2e-4
weight_decay = {WEIGHT_DECAY}
clip = 1.0
warmup_steps = 20
[data]
format = "idx"
train = "pictures"
train_labels = "labels"
mean = [{MEAN}]
std = [{STD}]
flip = false
shift = 0
"""


def make_pictures():
    """Ten blurred patterns under strong noise, and labels of which a fifth are drawn anew."""
    generator = np.random.default_rng(7)
    coarse = generator.uniform(60, 190, (CLASSES, 7, 7))
    patterns = coarse.repeat(4, axis=1).repeat(4, axis=2)
    labels = generator.integers(0, CLASSES, PICTURES)
    noise = generator.normal(0, 40, (PICTURES, IMAGE, IMAGE))
    pictures = np.clip(patterns[labels] + noise, 0, 255).astype(np.uint8)
    wrong = generator.random(PICTURES) < 0.2
    labels = np.where(wrong, generator.integers(0, CLASSES, PICTURES), labels)
    return pictures, labels.astype(np.uint8)


def write_idx(path, array):
    """The format of MNIST: a magic number, the extents, the bytes."""
    head = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    path.write_bytes(head + array.tobytes())


def philox(index, purpose, item):
    """First word of random_words in src/base/philox.cpp, for the deck's seed."""
    counter = [index & 0xFFFFFFFF, index >> 32, item, purpose]
    key = [SEED & 0xFFFFFFFF, SEED >> 32]
    for _ in range(10):
        a, b = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [
            (b >> 32) ^ counter[1] ^ key[0],
            b & 0xFFFFFFFF,
            (a >> 32) ^ counter[3] ^ key[1],
            a & 0xFFFFFFFF,
        ]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return counter[0]


def picture_of(sample):
    """Which picture the run's sample is: permuted() in src/base/philox.cpp, of its epoch."""
    order = 3  # Purpose::order
    epoch, value = divmod(sample, PICTURES)
    half = ((PICTURES - 1).bit_length() + 1) // 2
    mask = (1 << half) - 1
    while True:
        left, right = value >> half, value & mask
        for step in range(6):
            left, right = right, left ^ (philox(right, order, epoch * 8 + step) & mask)
        value = left << half | right
        if value < PICTURES:
            return value


def voltapile(folder, name, type_name, device, **keys):
    deck = folder / "loss.toml"
    deck.write_text(DECK)
    where = {"run.dir": folder, "run.name": name, "run.device": device, **keys}
    command = [PROGRAM, "train", deck, *settings(**where, **{"precision.type": type_name})]
    done = subprocess.run(command, text=True, capture_output=True)
    if done.returncode != 0:
        sys.exit(f"voltapile train: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return folder / name


def initial_weights(folder, type_name, device):
    keys = {"run.steps": 1, "optimizer.lr": 0, "optimizer.warmup_steps": 0}
    run = voltapile(folder, f"start_{type_name}", type_name, device, **keys)
    weights = {}
    with h5py.File(run / "checkpoints/latest/index.h5") as file:
        file["model"].visititems(
            lambda name, item: isinstance(item, h5py.Dataset)
            and weights.update({name: torch.from_numpy(item[:])})
        )
    return weights


def pytorch(weights, rates, type_name, device, pictures, labels):
    model = VisionTransformer(
        img_size=IMAGE,
        patch_size=PATCH,
        in_chans=1,
        embed_dim=DIM,
        depth=DEPTH,
        num_heads=HEADS,
        num_classes=CLASSES,
        class_token=False,
        global_pool="avg",
    )
    model.load_state_dict(weights)
    model.to(device).train()
    decay = model.no_weight_decay()
    groups = param_groups_weight_decay(model, WEIGHT_DECAY, no_weight_decay_list=decay)
    optimizer = torch.optim.AdamW(groups, lr=0, betas=(0.9, 0.999), eps=1e-8)
    mixed = type_name != "f32"
    scaler = torch.amp.GradScaler(device, init_scale=LOSS_SCALE, enabled=type_name == "f16")
    losses = []
    for step, rate in enumerate(rates):
        at = [picture_of(step * BATCH + i) for i in range(BATCH)]
        x = torch.from_numpy(pictures[at]).to(device)[:, None]
        y = torch.from_numpy(labels[at].astype(np.int64)).to(device)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        with torch.autocast(device, TYPES[type_name], enabled=mixed):
            logits = model((x.float() / 255 - MEAN) / STD)
            loss = torch.nn.functional.cross_entropy(logits, y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses


def compare(type_name, device, pictures, labels):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_idx(folder / "pictures", pictures)
        write_idx(folder / "labels", labels)
        weights = initial_weights(folder, type_name, device)
        where = {"checkpoint.at_end": "false"}
        run = voltapile(folder, f"run_{type_name}", type_name, device, **where)
        records = read_metrics(run)
    rates = [record["learning_rate"] for record in records]
    on = "cuda" if torch.cuda.is_available() else "cpu"
    return {
        "type": type_name,
        "voltapile": [record["loss"] for record in records],
        "pytorch": pytorch(weights, rates, type_name, on, pictures, labels),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--types", nargs="+", choices=TYPES, default=["f32", "f16", "bf16"])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda", help="voltapile's")
    parser.add_argument("--write", type=pathlib.Path, help="every loss as JSON")
    arguments = parser.parse_args()
    pictures, labels = make_pictures()
    results, good = [], True
    for type_name in arguments.types:
        results.append(compare(type_name, arguments.device, pictures, labels))
        ours, theirs = results[-1]["voltapile"], results[-1]["pytorch"]
        for step in (0, 1, 9, 49, 99, 149, 199):
            print(f"{type_name} step {step + 1}: {ours[step]:.5f}, PyTorch {theirs[step]:.5f}")
        final = [statistics.mean(losses[-LAST:]) for losses in (ours, theirs)]
        apart = abs(final[0] / final[1] - 1)
        good = good and apart <= 0.01
        print(
            f"{type_name} last {LAST} steps: voltapile {final[0]:.5f}, PyTorch {final[1]:.5f}, "
            f"{100 * apart:.2f} % apart"
        )
    if arguments.write:
        arguments.write.write_text(json.dumps(results) + "\n")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
