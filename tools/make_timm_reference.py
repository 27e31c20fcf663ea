#!/usr/bin/env python3
"""Writes tests/golden/timm/*.ref: what PyTorch and timm compute for small Vision Transformers.

Needs torch and timm (written with torch 2.11 and timm 1.0.31), so it does not run in the tests; the
test tests/unit/model/timm_test.cpp reads what it wrote. Everything is computed in double and
stored in single precision.

    python3 tools/make_timm_reference.py [FOLDER]

A .ref file is a text header and raw little-endian data:

    voltapile-timm-reference 1
    value NAME NUMBER...              settings of the model and of the optimizer
    tensor NAME TYPE OFFSET DIM...    TYPE is f32, u8 or i32; OFFSET in bytes from the data's start
    data
    <bytes>

Tensors: pictures (S, B, channels, H, W) u8 and labels (S, B) i32 or targets (S, B, classes) f32 of
S steps; logits (B, classes), loss and gradient/NAME of the first step, before clipping; norm of
every step's gradient; before/NAME and after/NAME, the weights before the first step and after the
last.
"""

import pathlib
import sys

import numpy as np
import timm.models.vision_transformer as vit
import torch
from timm.optim import param_groups_weight_decay

STEPS = 5
BATCH = 4
# Adam divides by the gradient's size, so single precision's rounding of a gradient near zero
# reaches the weight with a factor of lr over that gradient: at 1e-3 one weight of 20,000 was off by
# 1.05e-5.
OPTIMIZER = dict(lr=5e-4, weight_decay=0.05, beta1=0.9, beta2=0.999, eps=1e-8, clip=1.0)

COMMON = dict(
    image=(16, 16),
    patch=(4, 4),
    channels=3,
    dim=24,
    depth=3,
    heads=3,
    mlp=48,
    classes=10,
    token=1,
    qkv_bias=1,
    layer_scale=0.0,
    qk_norm=0,
    smoothing=0.0,
    soft=0,
)
VARIANTS = {
    "class_token": dict(),
    "mean_pool_not_square": dict(token=0, image=(12, 20), patch=(4, 5), channels=1),
    "qk_norm": dict(qk_norm=1, smoothing=0.1),
    "layer_scale": dict(layer_scale=0.1, token=0, soft=1, smoothing=0.1),
    "all_options": dict(
        token=0,
        qk_norm=1,
        layer_scale=0.1,
        qkv_bias=0,
        image=(8, 12),
        heads=4,
        classes=7,
        smoothing=0.1,
    ),
    # Frozen: the embedding and the first block.
    "fine_tuning": dict(layer_decay=0.7, frozen_layers=2),
}


def build(s):
    return vit.VisionTransformer(
        img_size=s["image"],
        patch_size=s["patch"],
        in_chans=s["channels"],
        embed_dim=s["dim"],
        depth=s["depth"],
        num_heads=s["heads"],
        mlp_ratio=s["mlp"] / s["dim"],
        num_classes=s["classes"],
        class_token=bool(s["token"]),
        global_pool="token" if s["token"] else "avg",
        qkv_bias=bool(s["qkv_bias"]),
        init_values=s["layer_scale"] or None,
        qk_norm=bool(s["qk_norm"]),
    ).double()


def randomise(model, generator):
    """Values of ordinary size everywhere, so that no path is silent (timm starts biases at 0)."""
    for name, p in model.named_parameters():
        noise = torch.randn(p.shape, generator=generator, dtype=torch.float64)
        is_norm_weight = p.ndim == 1 and "norm" in name and name.endswith("weight")
        value = 1 + 0.2 * noise if is_norm_weight else 0.15 * noise
        # Single precision holds it exactly, so that both programs start from the same weights.
        p.data.copy_(value.float().double())


def layer_of(name, depth):
    """As BEiT and MAE count them: the embedding is 0, the head and the last norm depth + 1."""
    if name in ("cls_token", "pos_embed") or name.startswith("patch_embed."):
        return 0
    return int(name.split(".")[1]) + 1 if name.startswith("blocks.") else depth + 1


def trained_groups(model, settings):
    """The optimizer's groups, by layer where each has a learning rate of its own."""
    unlisted = model.no_weight_decay()
    if "layer_decay" not in settings:
        return param_groups_weight_decay(
            model, OPTIMIZER["weight_decay"], no_weight_decay_list=unlisted
        )
    groups = []
    for name, p in model.named_parameters():
        layer = layer_of(name, settings["depth"])
        if layer < settings["frozen_layers"]:
            continue
        scale = settings["layer_decay"] ** (settings["depth"] + 1 - layer)
        decays = p.ndim > 1 and name not in unlisted
        weight_decay = OPTIMIZER["weight_decay"] if decays else 0.0
        groups.append(dict(params=[p], lr=OPTIMIZER["lr"] * scale, weight_decay=weight_decay))
    return groups


def reference(settings, seed):
    generator = torch.Generator().manual_seed(seed)
    model = build(settings)
    randomise(model, generator)
    height, width = settings["image"]
    classes = settings["classes"]
    mean = [0.5, 0.45, 0.4][: settings["channels"]]
    std = [0.25, 0.2, 0.3][: settings["channels"]]
    pictures = torch.randint(
        0,
        256,
        (STEPS, BATCH, settings["channels"], height, width),
        generator=generator,
        dtype=torch.uint8,
    )
    tensors = {"pictures": pictures.numpy()}
    if settings["soft"]:
        targets = torch.rand((STEPS, BATCH, classes), generator=generator, dtype=torch.float64)
        targets = (targets / targets.sum(-1, keepdim=True)).float()
        tensors["targets"] = targets.numpy()
        targets = targets.double()
    else:
        targets = torch.randint(0, classes, (STEPS, BATCH), generator=generator)
        tensors["labels"] = targets.int().numpy()

    def column(values):
        return torch.tensor(values, dtype=torch.float64)[None, :, None, None]

    for name, p in model.named_parameters():
        tensors["before/" + name] = p.detach().float().numpy().copy()
    groups = trained_groups(model, settings)
    trained = [p for group in groups for p in group["params"]]
    optimizer = torch.optim.AdamW(
        groups,
        lr=OPTIMIZER["lr"],
        eps=OPTIMIZER["eps"],
        betas=(OPTIMIZER["beta1"], OPTIMIZER["beta2"]),
    )
    norms = []
    for step in range(STEPS):
        x = (pictures[step].double() / 255 - column(mean)) / column(std)
        logits = model(x)
        loss = torch.nn.functional.cross_entropy(
            logits, targets[step], label_smoothing=settings["smoothing"]
        )
        model.zero_grad()
        loss.backward()
        if step == 0:
            tensors["logits"] = logits.detach().float().numpy()
            tensors["loss"] = loss.detach().float().numpy().reshape(1)
            for name, p in model.named_parameters():
                tensors["gradient/" + name] = p.grad.float().numpy().copy()
        norms.append(torch.nn.utils.clip_grad_norm_(trained, OPTIMIZER["clip"]).item())
        optimizer.step()
    tensors["norm"] = np.array(norms, dtype=np.float32)
    for name, p in model.named_parameters():
        tensors["after/" + name] = p.detach().float().numpy().copy()
    return {**settings, **OPTIMIZER, "mean": mean, "std": std}, tensors


def write(path, values, tensors):
    lines, blobs, offset = ["voltapile-timm-reference 1"], [], 0
    for name, value in values.items():
        numbers = value if isinstance(value, (list, tuple)) else [value]
        lines.append(" ".join(["value", name, *map(repr, numbers)]))
    types = {"float32": "f32", "uint8": "u8", "int32": "i32"}
    for name, array in tensors.items():
        blob = np.ascontiguousarray(array).tobytes()
        dims = map(str, array.shape)
        lines.append(" ".join(["tensor", name, types[array.dtype.name], str(offset), *dims]))
        blobs.append(blob)
        offset += len(blob)
    path.write_bytes(("\n".join(lines) + "\ndata\n").encode() + b"".join(blobs))


def main():
    here = pathlib.Path(__file__).resolve().parent
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here.parent / "tests/golden/timm"
    torch.set_num_threads(1)
    for seed, (name, changes) in enumerate(VARIANTS.items()):
        values, tensors = reference({**COMMON, **changes}, seed)
        write(folder / f"{name}.ref", values, tensors)
        print(f"{name}: loss {tensors['loss'][0]:.6f}, norms {tensors['norm']}")


if __name__ == "__main__":
    main()
