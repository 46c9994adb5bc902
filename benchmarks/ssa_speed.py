"""Time and memory of SSA attention against softmax attention and the power form.

Prints, for each case, the CPU time of PyTorch's ``scaled_dot_product_attention`` (one
thread) and the ratio of SSA attention's to it, forward and forward + backward; the
gradients of n and b are always included. The calls are interleaved and the ratio is
the median of the rounds' ratios. ``--memory`` measures the peak resident memory of
each case in a process of its own instead.

    python benchmarks/ssa_speed.py
    python benchmarks/ssa_speed.py --memory
"""

import argparse
import gc
import itertools
import math
import resource
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F

from sdm_sklearn.attention import ssa_attention

HEADS, WIDTH = 8, 64
MEBI = 2**20


def power_form(query, key, value, n, b, attn_mask=None, is_causal=False):
    """The formula as published: (1 + b|s|) ** (sgn(s) n), normalised."""
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    n, b = n.view(-1, 1, 1), b.view(-1, 1, 1)
    weights = (1 + b * scores.abs()) ** (torch.sign(scores) * n)
    if is_causal:
        weights = weights.masked_fill(
            torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), 0
        )
    weights = weights / weights.sum(-1, keepdim=True)
    return weights.to(value.dtype) @ value


def make_inputs(length, dtype, batch=2, key_heads=HEADS, needs_grad=True):
    generator = torch.Generator().manual_seed(0)
    shapes = [(batch, h, length, WIDTH) for h in (HEADS, key_heads, key_heads)]
    parts = [torch.randn(s, generator=generator).to(dtype) for s in shapes]
    n, b = torch.full((HEADS,), 1.5), torch.full((HEADS,), 0.8)
    return [part.requires_grad_(needs_grad) for part in (*parts, n, b)]


def make_mask(kind, length, batch):
    generator = torch.Generator().manual_seed(1)
    if kind is None:
        return None
    if kind == "padding":
        lengths = torch.randint(length // 2, length + 1, (batch,), generator=generator)
        return (torch.arange(length) < lengths[:, None])[:, None, None]
    keep = torch.rand(length, length, generator=generator) > 0.5
    keep.fill_diagonal_(True)
    return (
        keep
        if kind == "bool"
        else torch.randn(length, length).masked_fill_(~keep, -math.inf)
    )


def runners(length, dtype, causal, mask_kind, gqa, backward, batch, power):
    """Return functions without arguments, one a method, on the same inputs."""
    key_heads = HEADS // 4 if gqa else HEADS
    inputs = make_inputs(length, dtype, batch, key_heads, needs_grad=backward)
    query, key, value, n, b = inputs
    mask = make_mask(mask_kind, length, batch)
    soft_mask = mask
    if mask is not None and mask.dtype != torch.bool:
        soft_mask = mask.to(dtype)
    upstream = torch.ones(batch, HEADS, length, WIDTH, dtype=dtype)

    def finish(output, wanted):
        if backward:
            torch.autograd.grad(output, wanted, upstream)

    def softmax():
        finish(
            F.scaled_dot_product_attention(
                query, key, value, soft_mask, is_causal=causal, enable_gqa=gqa
            ),
            inputs[:3],
        )

    def ssa():
        finish(
            ssa_attention(
                query, key, value, n, b, mask, is_causal=causal, enable_gqa=gqa
            ),
            inputs,
        )

    def published():
        finish(power_form(query, key, value, n, b, is_causal=causal), inputs)

    return [softmax, ssa, published] if power else [softmax, ssa]


def interleaved(functions, rounds):
    """Return the CPU seconds of each function in each round."""
    for function in functions:
        function()
    seconds = [[] for _ in functions]
    for _ in range(rounds):
        for function, taken in zip(functions, seconds, strict=True):
            start = time.process_time()
            function()
            taken.append(time.process_time() - start)
    return seconds


VARIANTS = {
    "plain": (False, None, False),
    "causal": (True, None, False),
    "padding": (False, "padding", False),
    "bool": (False, "bool", False),
    "float": (False, "float", False),
    "gqa": (False, None, True),
}


def time_cases(lengths, dtypes, cases, budget):
    print("dtype     L     case      pass      softmax ms  SSA/softmax  power/SSA")
    for dtype, length, name, backward in itertools.product(
        dtypes, lengths, cases, (False, True)
    ):
        causal, mask, gqa = VARIANTS[name]
        batch = 2 if length <= 4096 else 1
        power = length == 2048 and name in ("plain", "causal")
        functions = runners(
            length, getattr(torch, dtype), causal, mask, gqa, backward, batch, power
        )
        guess = 1e-8 * batch * HEADS * length**2 * (3 if backward else 1)
        rounds = int(min(25, max(5, budget / guess)))
        soft, ssa, *published = interleaved(functions, rounds)
        ratio = statistics.median(a / b for a, b in zip(ssa, soft, strict=True))
        slower = ""
        if published:
            slower = statistics.median(
                a / b for a, b in zip(published[0], ssa, strict=True)
            )
            slower = f"{slower:10.1f}"
        label = "fwd+bwd" if backward else "forward"
        print(
            f"{dtype:9} {length:<5} {name:9} {label:9} "
            f"{statistics.median(soft) * 1e3:10.1f} {ratio:12.2f} {slower}",
            flush=True,
        )
        del functions
        gc.collect()


def peak_of(method, length):
    """Print the growth of peak memory by one forward + backward, in MiB."""
    warm = runners(64, torch.float32, False, None, False, True, 2, True)
    index = {"softmax": 0, "ssa": 1, "power": 2}[method]
    warm[index]()
    run = runners(length, torch.float32, False, None, False, True, 2, True)[index]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run()
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print((after - before) / 1024)


def memory_cases(lengths):
    print("peak growth in MiB, float32, forward + backward, B=2 H=8 D=64")
    print("L      softmax   SSA    SSA/softmax")
    peaks = {}
    for length in lengths:
        for method in ("softmax", "ssa"):
            command = [sys.executable, __file__, "--peak", method, str(length)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            peaks[method, length] = float(done.stdout)
        soft, ssa = peaks["softmax", length], peaks["ssa", length]
        print(f"{length:<6} {soft:8.1f} {ssa:8.1f} {ssa / soft:8.2f}", flush=True)
    first, last = lengths[0], lengths[-1]
    slope = math.log(peaks["ssa", last] / peaks["ssa", first]) / math.log(last / first)
    print(f"exponent of SSA between {first} and {last}: {slope:.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=None)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--cases", nargs="+", default=[*VARIANTS])
    parser.add_argument("--seconds", type=float, default=3.0, help="a method and case")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--peak", nargs=2, metavar=("METHOD", "L"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.peak:
        peak_of(arguments.peak[0], int(arguments.peak[1]))
    elif arguments.memory:
        memory_cases(arguments.lengths or [2048, 4096, 8192])
    else:
        lengths = arguments.lengths or [128, 512, 1024, 2048, 4096, 8192]
        time_cases(lengths, arguments.dtypes, arguments.cases, arguments.seconds)


if __name__ == "__main__":
    main()
