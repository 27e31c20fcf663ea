"""Training steps of large Vision Transformers on one GPU: voltapile against PyTorch, alternating.

    python3 tests/benchmark/gpu_step_against_pytorch.py [--models vit_l16 vit_h14] [--rounds 5]

Needs torch and timm in the Python that runs it, and a build with CUDA. ViT-L/16 on batches of 256
and ViT-H/14 on batches of 128, 1000 classes, f16 with dynamic loss scaling, AdamW, clipping at 1.
PyTorch runs timm's model under torch.autocast, compiled, with fused AdamW, on a batch that stays on
the GPU; voltapile is one `voltapile train` that makes, reads and copies its batches in that time.
Both processes live through all rounds, one at rest while the other works. Memory is what the driver
says is in use (NVML, sampled), less what was in use before that side began; PyTorch gives back its
allocator's unused blocks after compiling, before it is measured.
"""

import argparse
import json
import pathlib
import statistics
import tempfile

from runs import Child, GpuMemory, PausedRun, PeakMemory, spread

DECK = """
[run]
name = "bench"
steps = 1000000
device = "cuda"
[model]
image = 224
patch = {patch}
dim = {dim}
depth = {depth}
heads = 16
classes = 1000
pool = "token"
[batch]
global = {batch}
micro = {micro}
[precision]
type = "{type}"
[optimizer]
lr = 5e-4
weight_decay = 0.05
clip = 1.0
[memory]
recompute = "{recompute}"
{checkpoint_every}
[data]
format = "synthetic"
synthetic_test = 0
workers = 8
"""
MODELS = {
    "vit_l16": dict(patch=16, dim=1024, depth=24, batch=256),
    "vit_h14": dict(patch=14, dim=1280, depth=32, batch=128),
}


def deck_text(model, arguments):
    every = arguments.checkpoint_every
    shape = {**MODELS[model], **({"batch": arguments.batch} if arguments.batch else {})}
    return DECK.format(
        **shape,
        micro=arguments.micro or shape["batch"],
        type=arguments.type,
        recompute=arguments.recompute,
        checkpoint_every=f"checkpoint_every = {every}" if every else "",
    )


class Voltapile:
    def __init__(self, model, arguments, folder):
        deck = pathlib.Path(folder) / f"{model}.toml"
        deck.write_text(deck_text(model, arguments))
        overrides = [part for key in arguments.set for part in ("--set", key)]
        self.training = PausedRun(deck, folder, model, *overrides)

    def warm_up(self):
        self.training.round(5, skipped=5)  # kernels are tuned, then recorded

    def round(self, steps):
        return self.training.round(steps, skipped=3)

    def end(self):
        self.training.end()


class PyTorch:
    def __init__(self, model, arguments, _):
        script = pathlib.Path(__file__).with_name("pytorch_vit.py")
        batch = arguments.batch or MODELS[model]["batch"]
        options = ["--model", model, "--batch", batch, "--type", arguments.type]
        self.child = Child(script, *options, "--compile", arguments.compile)

    def warm_up(self):
        self.child.ask(steps=5)
        self.child.ask(steps=1, release=True)

    def round(self, steps):
        return self.child.ask(steps=steps, skipped=2)["seconds"]

    def end(self):
        self.child.end()


def measure(model, arguments):
    gpu = GpuMemory()
    batch = arguments.batch or MODELS[model]["batch"]
    sides = {"voltapile": Voltapile, "PyTorch": PyTorch}
    running, rates, memory = {}, {}, {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            for name in arguments.sides:
                before = gpu.used()
                running[name] = sides[name](model, arguments, folder)
                running[name].warm_up()
                # This round is for the memory only: the second side may not be there yet.
                with PeakMemory(gpu) as peak:
                    running[name].round(arguments.steps)
                memory[name], rates[name] = peak.bytes - before, []
            for number in range(arguments.rounds):
                for name in arguments.sides:
                    seconds = running[name].round(arguments.steps)
                    rates[name].append(batch / statistics.median(seconds))
                figures = ", ".join(f"{name} {rates[name][-1]:.1f}" for name in arguments.sides)
                print(f"{model} round {number + 1}: {figures} samples/s", flush=True)
        finally:
            for side in running.values():
                side.end()
    return {"model": model, "batch": batch, "samples_per_second": rates, "peak_bytes": memory}


def show(result):
    rates, memory = result["samples_per_second"], result["peak_bytes"]
    for name in rates:
        print(
            f"{result['model']} {name}: {spread(rates[name], 1, ' samples/s')}, "
            f"peak {memory[name] / 1e9:.2f} GB"
        )
    if len(rates) == 2:
        ratios = [a / b for a, b in zip(rates["voltapile"], rates["PyTorch"])]
        share = memory["voltapile"] / memory["PyTorch"]
        print(f"{result['model']} voltapile / PyTorch: {spread(ratios)}, memory {share:.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--sides", nargs="+", default=["voltapile", "PyTorch"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10, help="measured steps of a round")
    parser.add_argument("--type", choices=("f16", "bf16"), default="f16")
    parser.add_argument("--batch", type=int, help="instead of 256 and 128")
    parser.add_argument("--micro", type=int, help="voltapile's micro-batch; default: the batch")
    parser.add_argument("--recompute", choices=("none", "layers", "selective"), default="none")
    parser.add_argument("--checkpoint-every", type=int, help="memory.checkpoint_every")
    parser.add_argument("--set", action="append", default=[], help="one more key of the deck")
    parser.add_argument("--compile", choices=("whole", "blocks", "no"), default="whole")
    parser.add_argument("--write", type=pathlib.Path, help="every figure as JSON")
    arguments = parser.parse_args()
    results = []
    for model in arguments.models:
        results.append(measure(model, arguments))
        show(results[-1])
    if arguments.write:
        arguments.write.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
