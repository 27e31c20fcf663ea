"""PyTorch's side of vit32b_against_pytorch.py, one rank: a deep and wide Vision Transformer under
FSDP2 with parameters, gradients and AdamW in host memory.

    torchrun --nproc_per_node 4 tests/benchmark/pytorch_fsdp2.py --depth 20 --steps 4

Everything as PyTorch does it best: blocks are sharded, checkpointed and compiled one by one, matrix
products run in bf16, AdamW is the fused one, gradients are clipped at 1. Rank 0 prints one line of
JSON: seconds and loss of each step, and the most GPU memory of a rank.
"""

import argparse
import json
import os
import time

import torch
import torch.distributed as dist
from timm.models.vision_transformer import VisionTransformer
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard


def build(arguments, device):
    with torch.device("meta"):
        model = VisionTransformer(
            img_size=arguments.image,
            patch_size=14,
            embed_dim=arguments.dim,
            depth=arguments.depth,
            num_heads=arguments.heads,
            num_classes=arguments.classes,
            qk_norm=True,
            global_pool="avg",
            class_token=False,
        ).train()
    rules = {
        "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    }
    if arguments.offload:
        rules["offload_policy"] = CPUOffloadPolicy(pin_memory=device.type == "cuda")
    for at, block in enumerate(model.blocks):
        block = checkpoint_wrapper(block)
        if device.type == "cuda":
            block.compile()
        model.blocks[at] = fully_shard(block, **rules)
    fully_shard(model, **rules)
    model.to_empty(device="cpu" if arguments.offload else device)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            local = parameter.to_local()
            if "norm" in name and name.endswith("weight"):
                local.fill_(1)
            elif name.endswith("bias"):
                local.zero_()
            else:  # drawn on the device: billions of them take a core a minute
                local.copy_(torch.randn(local.shape, device=device).mul_(0.02))
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--depth", type=int, default=20)
    parser.add_argument("--dim", type=int, default=8192)
    parser.add_argument("--heads", type=int, default=64)
    parser.add_argument("--image", type=int, default=224)
    parser.add_argument("--classes", type=int, default=21841)
    parser.add_argument("--batch", type=int, default=32, help="of all ranks together")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--gpu-gb", type=float, default=32, help="of which PyTorch may use so much")
    parser.add_argument("--offload", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    arguments = parser.parse_args()
    local = int(os.environ["LOCAL_RANK"])
    device = torch.device(arguments.device, local if arguments.device == "cuda" else None)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, arguments.gpu_gb * 1e9 / total))
    # Norms of parameters in host memory are reduced by gloo.
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    ranks = dist.get_world_size()
    torch.manual_seed(dist.get_rank())
    torch.set_num_threads(max(1, os.cpu_count() // ranks))
    model = build(arguments, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-5, weight_decay=0.01, fused=True)
    shape = (arguments.batch // ranks, 3, arguments.image, arguments.image)
    pictures = torch.randn(shape, device=device)
    labels = torch.randint(0, arguments.classes, shape[:1], device=device)
    seconds, losses = [], []
    for _ in range(arguments.steps):
        dist.barrier()
        began = time.perf_counter()
        loss = torch.nn.functional.cross_entropy(model(pictures).float(), labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        dist.barrier()
        seconds.append(time.perf_counter() - began)
    peak = torch.cuda.max_memory_reserved() if device.type == "cuda" else 0
    peaks = [None] * ranks
    dist.all_gather_object(peaks, peak)
    if dist.get_rank() == 0:
        report = {"seconds": seconds, "losses": losses, "gpu_bytes": max(peaks)}
        print(json.dumps({**report, "torch": torch.__version__}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
