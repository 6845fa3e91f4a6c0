#!/usr/bin/python3
"""Writes tests/golden/gpt2_tiny.h: what PyTorch makes of a tiny GPT-2 trained for ten steps.

tests/unit/model/test_golden.c runs the same training with our kernels and compares losses, gradient norms and the first
step's gradients. Weights and tokens come from the integer formulas below, which that test repeats, so that nothing is
shared but this text. PyTorch computes in double: the numbers do not depend on its version or on the machine's BLAS.

    apt-get install python3-torch        # Debian 12: 1.13
    /usr/bin/python3 tools/golden.py     # writes the header; --check compares with the one that is there
"""
import argparse
import math
import os
import sys

import torch
import torch.nn.functional as F

L, H, C, T, V = 2, 2, 16, 16, 256  # layers, heads, width, positions, vocabulary
B, M, STEPS = 2, 2, 10  # sequences of a microbatch, microbatches of a step
LR, LR_MIN, WARMUP = 1e-2, 1e-3, 3
WEIGHT_DECAY, BETA1, BETA2, EPS, CLIP = 0.1, 0.9, 0.95, 1e-8, 1.64  # clips in some of the steps

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "golden", "gpt2_tiny.h")


def tensors():
    """(name, shape) in canonical order: Hugging Face's names, of GPT2Model."""
    yield "wte.weight", (V, C)
    yield "wpe.weight", (T, C)
    for l in range(L):
        for name, shape in (
            ("ln_1.weight", (C,)), ("ln_1.bias", (C,)),
            ("attn.c_attn.weight", (C, 3 * C)), ("attn.c_attn.bias", (3 * C,)),
            ("attn.c_proj.weight", (C, C)), ("attn.c_proj.bias", (C,)),
            ("ln_2.weight", (C,)), ("ln_2.bias", (C,)),
            ("mlp.c_fc.weight", (C, 4 * C)), ("mlp.c_fc.bias", (4 * C,)),
            ("mlp.c_proj.weight", (4 * C, C)), ("mlp.c_proj.bias", (C,)),
        ):
            yield f"h.{l}.{name}", shape
    yield "ln_f.weight", (C,)
    yield "ln_f.bias", (C,)


def mix(x):
    """A 32-bit integer, stirred."""
    x = (x * 2654435761) & 0xFFFFFFFF
    x ^= x >> 16
    x = (x * 2246822519) & 0xFFFFFFFF
    return x ^ (x >> 13)


def weight(t, i, is_gain):
    """Element i of tensor number t: 24 bits, spread over +-0.25, around 1 for the gains of the norms."""
    u = (mix((t << 20) + i) >> 8) / 2**24
    return (1.0 if is_gain else 0.0) + (u - 0.5) * 0.5


def token(step, microbatch, sequence, position):
    """Token number position of a sequence of T + 1: letters in a pattern that can be learned a little."""
    x = ((step * M + microbatch) * B + sequence) * 7 + position
    return 97 + (x * x * 3 + x) % 26


def make_params():
    params = {}
    for t, (name, shape) in enumerate(tensors()):
        is_gain = name.split(".")[-2].startswith("ln_") and name.endswith("weight")
        flat = [weight(t, i, is_gain) for i in range(math.prod(shape))]
        # Rounded to float first: that is what the other side starts from.
        p = torch.tensor(flat, dtype=torch.float32).double().reshape(shape)
        params[name] = p.requires_grad_(True)
    return params


def forward(p, tokens, targets):
    """Sum over all tokens of the cross-entropy. tokens, targets: (B, T)."""
    x = p["wte.weight"][tokens] + p["wpe.weight"]
    mask = torch.full((T, T), -math.inf, dtype=torch.double).triu(1)
    for l in range(L):
        h = f"h.{l}."
        a = F.layer_norm(x, (C,), p[h + "ln_1.weight"], p[h + "ln_1.bias"], 1e-5)
        qkv = a @ p[h + "attn.c_attn.weight"] + p[h + "attn.c_attn.bias"]
        q, k, v = (z.reshape(B, T, H, C // H).transpose(1, 2) for z in qkv.split(C, dim=2))
        att = torch.softmax(q @ k.transpose(2, 3) / math.sqrt(C // H) + mask, dim=-1) @ v
        att = att.transpose(1, 2).reshape(B, T, C)
        x = x + att @ p[h + "attn.c_proj.weight"] + p[h + "attn.c_proj.bias"]
        a = F.layer_norm(x, (C,), p[h + "ln_2.weight"], p[h + "ln_2.bias"], 1e-5)
        a = F.gelu(a @ p[h + "mlp.c_fc.weight"] + p[h + "mlp.c_fc.bias"], approximate="tanh")
        x = x + a @ p[h + "mlp.c_proj.weight"] + p[h + "mlp.c_proj.bias"]
    x = F.layer_norm(x, (C,), p["ln_f.weight"], p["ln_f.bias"], 1e-5)
    logits = x @ p["wte.weight"].T
    return F.cross_entropy(logits.reshape(B * T, V), targets.reshape(B * T), reduction="sum")


def learning_rate(version):
    """Of the step that makes version + 1: linear warm-up to LR, then a cosine that reaches LR_MIN in the last step."""
    k = version + 1
    if k <= WARMUP:
        return LR * k / WARMUP
    return LR_MIN + 0.5 * (LR - LR_MIN) * (1 + math.cos(math.pi * (k - WARMUP) / (STEPS - WARMUP)))


def train():
    p = make_params()
    optimizer = torch.optim.AdamW(
        [{"params": [x for x in p.values() if x.dim() >= 2], "weight_decay": WEIGHT_DECAY},
         {"params": [x for x in p.values() if x.dim() < 2], "weight_decay": 0.0}],
        lr=LR, betas=(BETA1, BETA2), eps=EPS)
    losses, norms, first = [], [], None
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = 0.0
        for m in range(M):
            seq = torch.tensor([[token(step, m, b, i) for i in range(T + 1)] for b in range(B)])
            part = forward(p, seq[:, :-1], seq[:, 1:]) / (M * B * T)
            part.backward()
            loss += part.item()
        norm = math.sqrt(sum((x.grad**2).sum().item() for x in p.values()))
        if first is None:
            first = {name: x.grad.clone() for name, x in p.items()}
        for x in p.values():
            x.grad *= min(1.0, CLIP / norm)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        optimizer.step()
        losses.append(loss)
        norms.append(norm)
    return losses, norms, first


def header(losses, norms, first):
    n = sum(g.numel() for g in first.values())
    out = ["/* Written by tools/golden.py: ten steps of a tiny GPT-2 in PyTorch (double precision). Do not edit. */",
           "#ifndef SHOAL_TESTS_GOLDEN_GPT2_TINY_H", "#define SHOAL_TESTS_GOLDEN_GPT2_TINY_H", "",
           "/* clang-format off */",
           "enum {"]
    for name, value in (("LAYERS", L), ("HEADS", H), ("EMBD", C), ("CONTEXT", T), ("VOCAB", V), ("SEQUENCES", B),
                        ("MICROBATCHES", M), ("STEPS", STEPS), ("WARMUP", WARMUP), ("PARAMS", n)):
        out.append(f"    GOLDEN_{name} = {value},")
    out += ["};",
            f"static const double golden_lr = {LR!r}, golden_lr_min = {LR_MIN!r}, golden_weight_decay = {WEIGHT_DECAY!r},"
            f" golden_beta1 = {BETA1!r},",
            f"    golden_beta2 = {BETA2!r}, golden_eps = {EPS!r}, golden_clip = {CLIP!r};", "",
            "/* Mean cross-entropy of each step, and the norm of its gradient before clipping. */"]
    for name, values in (("losses", losses), ("norms", norms)):
        out.append(f"static const double golden_{name}[GOLDEN_STEPS] = {{")
        out += [f"    {v:.12g}," for v in values]
        out.append("};")
    out += ["", "/* The first step's gradients, tensor after tensor in canonical order. */",
            "static const float golden_gradients[GOLDEN_PARAMS] = {"]
    for name, g in first.items():
        out.append(f"    /* {name} */")
        # What is zero by mathematics (the keys' biases) is noise of double precision here.
        flat = [f"{x if abs(x) > 1e-12 else 0.0:.7e}f," for x in g.flatten().tolist()]
        out += ["    " + " ".join(flat[i:i + 6]) for i in range(0, len(flat), 6)]
    out += ["};", "/* clang-format on */", "", "#endif", ""]
    return "\n".join(out)


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("--check", action="store_true", help="compare with the header that is there, write nothing")
    text = header(*train())
    if not args.parse_args().check:
        with open(OUT, "w") as f:
            f.write(text)
        return 0
    with open(OUT) as f:
        same = f.read() == text
    print("the same" if same else "different")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
