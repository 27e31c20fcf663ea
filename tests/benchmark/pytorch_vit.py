"""PyTorch's side of gpu_step_against_pytorch.py and kernels_per_block.py: trains one of timm's
Vision Transformers in mixed precision, as many steps as its input asks for.

Everything as PyTorch does it best: torch.autocast, GradScaler (f16), torch.compile, fused AdamW,
clipping at 1, gradients freed rather than zeroed, and one batch that stays on the GPU.
"""

import argparse
import time

import torch
from timm.models.vision_transformer import VisionTransformer

from runs import serve

MODELS = {
    "vit_l16": dict(patch_size=16, embed_dim=1024, depth=24, num_heads=16),
    "vit_h14": dict(patch_size=14, embed_dim=1280, depth=32, num_heads=16),
    "vit_ti16": dict(patch_size=16, embed_dim=192, depth=12, num_heads=3),
}
TYPES = {"f16": torch.float16, "bf16": torch.bfloat16}


class Training:
    def __init__(self, name, batch, type_name, compile_what, depth=None, device="cuda"):
        torch.manual_seed(0)
        shape = {**MODELS[name], **({"depth": depth} if depth else {})}
        self.device = device
        self.type = TYPES[type_name]
        with torch.device(device):  # initial weights are drawn there: quicker by far
            self.model = VisionTransformer(num_classes=1000, **shape).train()
        if compile_what == "whole":
            self.model.compile()
        elif compile_what == "blocks":
            for block in self.model.blocks:
                block.compile()
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=5e-4, weight_decay=0.05, fused=True
        )
        self.scaler = torch.amp.GradScaler(device, enabled=self.type == torch.float16)
        self.pictures = torch.randn(batch, 3, 224, 224, device=device)
        self.labels = torch.randint(0, 1000, (batch,), device=device)

    def gradients(self):
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.device, self.type):
            logits = self.model(self.pictures)
            loss = torch.nn.functional.cross_entropy(logits, self.labels)
        self.scaler.scale(loss).backward()
        return loss

    def step(self):
        loss = self.gradients()
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss

    def round(self, steps, skipped=0, release=False):
        """Seconds of each of `steps` steps, after `skipped` more; the loss is read every step, as
        voltapile does. `release`: first gives back what the allocator keeps and does not use."""
        if release:
            torch.cuda.empty_cache()
        seconds = []
        before = time.perf_counter()
        for _ in range(skipped + steps):
            loss = self.step().item()
            now = time.perf_counter()
            seconds.append(now - before)
            before = now
        return {"seconds": seconds[skipped:], "loss": loss, "torch": torch.__version__}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--type", choices=TYPES, default="f16")
    parser.add_argument("--compile", choices=("whole", "blocks", "no"), default="whole")
    arguments = parser.parse_args()
    training = Training(arguments.model, arguments.batch, arguments.type, arguments.compile)
    serve(training.round)


if __name__ == "__main__":
    main()
