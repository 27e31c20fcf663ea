"""Attention and LayerNorm alone, on one GPU: voltapile's kernels against PyTorch's, alternating.

    python3 tests/benchmark/attention_against_pytorch.py [--rounds 3] [--type f16]

Needs torch in the Python that runs it, and a build with CUDA. Each round runs `voltapile bench` on
these kernels, then PyTorch's scaled_dot_product_attention and layer_norm on random tensors of the
same shapes, timed by events around many calls. Both read q, k and v from one packed tensor,
as timm does; PyTorch's backward pass leaves their gradients apart, voltapile's packs them.
voltapile's LayerNorm backward pass also adds the residual's gradient and sums into f32 gradients.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile
import tomllib

import torch
import torch.nn.functional as F

from runs import PROGRAM, spread

KERNELS = ("attention", "attention_backward", "layer_norm", "layer_norm_backward")
TYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}
# Used where voltapile's side is left out.
SHAPES = [
    *(
        (kernel, shape)
        for kernel in KERNELS[:2]
        for shape in ((256, 256, 3, 16, 64), (256, 256, 3, 8, 128))
    ),
    *((kernel, (65536, 1024)) for kernel in KERNELS[2:]),
]


def time_of(call, repetitions=12):
    """Median seconds of a call; each repetition is long enough to hide the launches."""
    for _ in range(3):
        call()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def run(calls):
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e-3 / calls

    calls = max(1, round(3e-3 / run(3)))
    return statistics.median(run(calls) for _ in range(repetitions))


def attention(shape, dtype):
    """Of q, k, v (B, H, T, D), as views of one (B, T, 3, H, D)."""
    qkv = torch.randn(shape, device="cuda", dtype=dtype)
    q, k, v = (t.detach().requires_grad_() for t in qkv.permute(2, 0, 3, 1, 4).unbind(0))
    forward = F.scaled_dot_product_attention
    out = forward(q, k, v)
    dout = torch.randn_like(out)
    backward = lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)
    return {"attention": lambda: forward(q, k, v), "attention_backward": backward}


def layer_norm(shape, dtype):
    """Of rows and columns; what the backward pass needs is kept, as in training."""
    columns = shape[-1:]
    x = torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True)
    gamma, beta = (torch.randn(columns, device="cuda", dtype=dtype).requires_grad_() for _ in "gb")
    forward = lambda: F.layer_norm(x, columns, gamma, beta, 1e-6)
    out = forward()
    dout = torch.randn_like(out)
    backward = lambda: torch.autograd.grad(out, (x, gamma, beta), dout, retain_graph=True)
    return {"layer_norm": forward, "layer_norm_backward": backward}


def pytorch(kernel, shape, type_name):
    calls = (attention if kernel.startswith("attention") else layer_norm)(shape, TYPES[type_name])
    return time_of(calls[kernel])


def copy_rate():
    a, b = (torch.empty(1 << 30, device="cuda", dtype=torch.uint8) for _ in range(2))
    return 2 * a.numel() / time_of(lambda: b.copy_(a))


def voltapile(type_name):
    """{(kernel, shape): seconds} and the copy rate, by `voltapile bench`."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "hardware.toml"
        command = [PROGRAM, "bench", "--device", "cuda", "--type", type_name, "--write", file]
        subprocess.run([*command, "--only", ",".join(KERNELS)], check=True, capture_output=True)
        measured = tomllib.loads(file.read_text())
    seconds = {(k["name"], tuple(k["shape"])): k["seconds"] for k in measured["kernels"]}
    return seconds, measured["ceilings"]["copy_bytes_per_second"]


def microseconds(seconds):
    return spread([1e6 * value for value in seconds], 1, " us")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--type", choices=TYPES, default="f16")
    parser.add_argument("--pytorch-only", action="store_true")
    parser.add_argument("--write", type=pathlib.Path, help="every figure as JSON")
    arguments = parser.parse_args()
    ours, theirs, copies = {}, {}, {"voltapile": [], "PyTorch": []}
    for _ in range(arguments.rounds):
        shapes = SHAPES
        if not arguments.pytorch_only:
            seconds, copy = voltapile(arguments.type)
            copies["voltapile"].append(copy)
            shapes = list(seconds)
            for what, value in seconds.items():
                ours.setdefault(what, []).append(value)
        for what in shapes:
            theirs.setdefault(what, []).append(pytorch(*what, arguments.type))
            torch.cuda.empty_cache()
        copies["PyTorch"].append(copy_rate())
    rows = []
    for what, seconds in theirs.items():
        kernel, shape = what
        row = {"kernel": kernel, "shape": shape, "pytorch_seconds": seconds}
        line = f"{kernel} {'x'.join(map(str, shape))}: PyTorch {microseconds(seconds)}"
        if what in ours:
            row["voltapile_seconds"] = ours[what]
            ratios = [b / a for a, b in zip(ours[what], seconds)]
            line += f", voltapile {microseconds(ours[what])}, PyTorch / voltapile {spread(ratios)}"
        rows.append(row)
        print(line)
    for side, rates in copies.items():
        if rates:
            print(f"device copy, {side}: {spread([r * 1e-9 for r in rates], 0, ' GB/s')}")
    if arguments.write:
        arguments.write.write_text(json.dumps({"kernels": rows, "copies": copies}, indent=2) + "\n")


if __name__ == "__main__":
    main()
