"""In-context tasks: how attention weights behave outside the training distribution.

Small causal transformers without positions learn, from N(0, 1) numbers, whether every
(or some) number so far is positive, or a linear function from examples. They are tested
on N(0, sigma ** 2), on longer sequences and with one first value of 1000. One line of
JSON is appended to ``--out`` for each trained model; a run that was stopped goes on
where it was. The tables show mean, median and worst over the seeds.

    python benchmarks/ssa_icl.py --out icl.jsonl             # train what is missing
    python benchmarks/ssa_icl.py --out icl.jsonl --report    # only print the tables
"""

import argparse
import inspect
import json
import math
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from sdm_sklearn.attention import SSAParameters, ssa_parameter_groups, ssa_weights


class Entmax15(torch.autograd.Function):
    """1.5-entmax along the last dimension, by sorting."""

    @staticmethod
    def forward(ctx, scores):
        z = scores / 2
        z = z - z.amax(-1, keepdim=True)
        ordered = z.sort(-1, descending=True).values
        count = torch.arange(1, z.shape[-1] + 1, dtype=z.dtype)
        mean = ordered.cumsum(-1) / count
        spread = count * ((ordered**2).cumsum(-1) / count - mean**2)
        threshold = mean - ((1 - spread) / count).clamp(min=0).sqrt()
        support = (threshold <= ordered).sum(-1, keepdim=True)
        weights = (z - threshold.gather(-1, support - 1)).clamp(min=0) ** 2
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    def backward(ctx, grad):
        (weights,) = ctx.saved_tensors
        root = weights.sqrt()
        inner = grad * root
        share = inner.sum(-1, keepdim=True) / root.sum(-1, keepdim=True)
        return inner - share * root


class Weights(nn.Module):
    """Weights of causally masked scores (B, H, L, L) by one of the methods."""

    def __init__(self, method, heads):
        super().__init__()
        self.method = method
        if method in ("ssa", "ssa-fixed"):
            learn = method == "ssa"
            self.ssa = SSAParameters(heads, learn_n=learn, learn_b=learn)
        elif method == "ssmax":
            self.slope = nn.Parameter(torch.full((heads, 1, 1), 0.4))

    def forward(self, scores):
        keep = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        if self.method in ("ssa", "ssa-fixed"):
            return ssa_weights(scores, self.ssa.n, self.ssa.b, mask=keep)
        if self.method == "ssmax":
            seen = torch.arange(1, scores.shape[-2] + 1).view(-1, 1)
            scores = scores * self.slope * seen.log()
        scores = scores.masked_fill(~keep, -1e9)
        if self.method == "entmax15":
            return Entmax15.apply(scores)
        if self.method == "softmax1":
            top = scores.amax(-1, keepdim=True).clamp(min=0)
            powers = (scores - top).exp()
            return powers / (powers.sum(-1, keepdim=True) + (-top).exp())
        return scores.softmax(-1)


class Block(nn.Module):
    def __init__(self, method, width, heads, full):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.weights = Weights(method, heads)
        self.norm, self.mlp = nn.Identity(), None
        if full:
            self.norm = nn.LayerNorm(width)
            self.mlp = nn.Sequential(
                nn.LayerNorm(width),
                nn.Linear(width, 4 * width),
                nn.GELU(),
                nn.Linear(4 * width, width),
            )

    def forward(self, x):
        parts = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        weights = self.weights(q @ k.mT / math.sqrt(q.shape[-1]))
        x = x + self.out((weights @ v).transpose(1, 2).flatten(2))
        return x if self.mlp is None else x + self.mlp(x)


class Model(nn.Module):
    def __init__(self, method, embedding, outputs, width, layers, full, length=None):
        super().__init__()
        self.embedding = embedding
        self.positions = None if length is None else nn.Embedding(length, width)
        self.blocks = nn.Sequential(
            *(Block(method, width, 4, full) for _ in range(layers))
        )
        self.norm = nn.LayerNorm(width) if full else nn.Identity()
        self.head = nn.Linear(width, outputs)

    def forward(self, tokens):
        x = self.embedding(tokens)
        if self.positions is not None:
            x = x + self.positions.weight[: x.shape[1]]
        return self.head(self.norm(self.blocks(x)))


@dataclass(frozen=True)
class Quantifier:
    """Is every (some) number so far positive? One answer at each position."""

    every: bool
    length: int = 16

    def batch(self, size, generator, sigma=1.0, stretch=1, spike=None):
        length = self.length * stretch
        x = torch.randn(size, length, generator=generator).abs()
        first = torch.randint(0, length + 1, (size, 1), generator=generator)
        place = torch.arange(length)
        later = torch.rand(size, length, generator=generator) < 0.5
        negative = (place == first) | ((place > first) & later)
        x = torch.where(negative, -x, x) * sigma
        if spike is not None:
            x[:, 0] = x[:, 0].sign() * spike
        answer = (place < first).float()
        return (x if self.every else -x).unsqueeze(-1), (
            answer if self.every else 1 - answer
        )

    def model(self, method, full, layers):
        return Model(method, nn.Linear(1, 32), 1, 32, layers, full)

    def loss(self, model, x, y):
        return F.binary_cross_entropy_with_logits(model(x).squeeze(-1), y)

    def error(self, model, x, y):
        """Percentage of wrong answers."""
        return 100 * ((model(x).squeeze(-1) > 0) != (y > 0.5)).float().mean().item()


@dataclass(frozen=True)
class Linear:
    """Predict w.x after examples (x, w.x); w is new in every sequence."""

    dim: int = 1
    length: int = 8

    def batch(self, size, generator, sigma=1.0, stretch=1, spike=None):
        length = self.length * stretch
        w = torch.randn(size, self.dim, 1, generator=generator)
        x = torch.randn(size, length, self.dim, generator=generator) * sigma
        if spike is not None:
            x[:, 0, 0] = spike
        y = x @ w
        zeros = torch.zeros_like(y)
        tokens = torch.stack(
            [torch.cat([x, zeros], -1), torch.cat([torch.zeros_like(x), y], -1)], 2
        ).flatten(1, 2)
        return tokens, y.squeeze(-1)

    def model(self, method, full, layers):
        embedding = nn.Linear(self.dim + 1, 32)
        return Model(method, embedding, 1, 32, layers, full, 2 * 4 * self.length)

    def loss(self, model, x, y):
        return F.mse_loss(model(x)[:, ::2, 0], y)

    def error(self, model, x, y):
        """Squared error of the last answer, as a percentage of the variance of w.x."""
        wrong = (model(x)[:, -2, 0] - y[:, -1]).square().mean()
        return 100 * (wrong / y[:, -1].square().mean()).item()


@dataclass(frozen=True)
class Configuration:
    title: str
    task: Quantifier | Linear
    full: bool
    layers: int
    steps: int
    decay: float
    methods: tuple[str, ...]


ALL = ("softmax", "ssa", "ssa-fixed", "entmax15", "softmax1", "ssmax")
PAIR = ("softmax", "ssa")
EVERY, SOME = Quantifier(True), Quantifier(False)
CONFIGURATIONS = {
    "A": Configuration(
        "every, attention only, weight decay 1", EVERY, False, 2, 1500, 1.0, ALL
    ),
    "A-free": Configuration(
        "every, attention only, no weight decay", EVERY, False, 2, 1500, 0.0, PAIR
    ),
    "A-short": Configuration(
        "every, attention only, no weight decay, 800 steps",
        *(EVERY, False, 2, 800, 0.0, ALL),
    ),
    "B": Configuration("every, LayerNorm + MLP", EVERY, True, 2, 500, 0.0, PAIR),
    "C": Configuration("some, attention only", SOME, False, 2, 1500, 1.0, PAIR),
    "D": Configuration(
        "linear function, LayerNorm + MLP", Linear(), True, 3, 600, 0.0, PAIR
    ),
}
TESTS = {
    "in": {},
    **{f"sigma {s}": {"sigma": float(s)} for s in (2, 5, 10)},
    "2 x length": {"stretch": 2},
    "4 x length": {"stretch": 4},
    "spike 1000": {"spike": 1000.0},
}


def fit(model, loss, steps, rate, decay=0.0):
    groups = ssa_parameter_groups(model, weight_decay=decay)  # none for n and b
    optimiser = torch.optim.AdamW(groups, lr=rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, steps)
    for _ in range(steps):
        optimiser.zero_grad()
        value = loss()
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
    return value.item()


def run(configuration, method, seed):
    """Train and test one model; return its errors."""
    task = configuration.task
    torch.manual_seed(seed)
    model = task.model(method, configuration.full, configuration.layers)
    stream = torch.Generator().manual_seed(1000 + seed)
    start = time.process_time()
    fit(
        model,
        lambda: task.loss(model, *task.batch(64, stream)),
        configuration.steps,
        3e-3,
        configuration.decay,
    )
    seconds = time.process_time() - start
    with torch.no_grad():
        errors = {
            name: task.error(
                model, *task.batch(2000, torch.Generator().manual_seed(7), **options)
            )
            for name, options in TESTS.items()
        }
    return {"errors": errors, "seconds": seconds, **learnt(model)}


def learnt(model):
    """The values of n and b, if the model has any."""
    found = [m for m in model.modules() if isinstance(m, SSAParameters)]
    if not found:
        return {}
    n, b = (torch.cat([getattr(m, name) for m in found]) for name in "nb")
    return {"n": n.tolist(), "b": b.tolist()}


def language_model(method, seed, steps=200, length=64):
    """Train a character model on the source of a standard module."""
    text = inspect.getsource(argparse)
    alphabet = sorted(set(text))
    codes = torch.tensor([alphabet.index(c) for c in text])
    cut = int(0.9 * len(codes))
    torch.manual_seed(seed)
    model = Model(
        method, nn.Embedding(len(alphabet), 64), len(alphabet), 64, 2, True, length
    )
    stream = torch.Generator().manual_seed(seed)

    def loss(part=codes[:cut], size=32):
        start = torch.randint(0, len(part) - length - 1, (size, 1), generator=stream)
        window = part[start + torch.arange(length + 1)]
        return F.cross_entropy(
            model(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten()
        )

    before = loss().item()
    start = time.process_time()
    fit(model, loss, steps, 3e-3)
    seconds = time.process_time() - start
    with torch.no_grad():
        held_out = loss(codes[cut:], 400).item()
    errors = {"loss before": before, "held-out loss": held_out}
    return {"errors": errors, "seconds": seconds, **learnt(model)}


def train(out, names, methods, seeds):
    done = {(r["configuration"], r["method"], r["seed"]) for r in read(out)}
    jobs = [
        (name, method, seed)
        for name in names
        for seed in range(2 if name == "LM" else seeds)
        for method in (PAIR if name == "LM" else CONFIGURATIONS[name].methods)
    ]
    for name, method, seed in jobs:
        if (name, method, seed) in done or method not in methods:
            continue
        if name == "LM":
            result = language_model(method, seed)
        else:
            result = run(CONFIGURATIONS[name], method, seed)
        line = {"configuration": name, "method": method, "seed": seed, **result}
        with out.open("a") as file:
            file.write(json.dumps(line) + "\n")


def read(out):
    return [json.loads(line) for line in out.open()] if out.exists() else []


def report(out):
    """Print mean, median and worst over the seeds, a line for each method and test."""
    results = read(out)
    for name in sorted({r["configuration"] for r in results}):
        rows = [r for r in results if r["configuration"] == name]
        title = "character model" if name == "LM" else CONFIGURATIONS[name].title
        tests = list(rows[0]["errors"])
        print(f"{name}: {title} (mean / median / worst)")
        lines = [["", *tests]]
        for method in dict.fromkeys(r["method"] for r in rows):
            chosen = [r for r in rows if r["method"] == method]
            lines.append([f"{method} ({len(chosen)})"])
            for test in tests:
                values = [r["errors"][test] for r in chosen]
                three = statistics.mean(values), statistics.median(values), max(values)
                lines[-1].append("/".join(f"{value:.2f}" for value in three))
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        for first, *cells in lines:
            line = f"  {first:{widths[0]}}"
            for cell, width in zip(cells, widths[1:], strict=True):
                line += f"  {cell:>{width}}"
            print(line)
        trained = [r for r in rows if r["method"] == "ssa"]
        for parameter in "nb" if trained else "":
            values = [v for r in trained for v in r[parameter]]
            print(f"  {parameter} from {min(values):.2f} to {max(values):.2f}")
        print()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--configurations", nargs="+", default=[*CONFIGURATIONS, "LM"])
    parser.add_argument("--methods", nargs="+", default=list(ALL))
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--report", action="store_true", help="train nothing")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if not arguments.report:
        train(
            arguments.out,
            arguments.configurations,
            arguments.methods,
            arguments.seeds,
        )
    report(arguments.out)


if __name__ == "__main__":
    main()
