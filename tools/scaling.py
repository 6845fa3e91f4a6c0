#!/usr/bin/env python3
"""What a second peer is worth: tokens/s of one one-thread peer, of two as a pipeline, of two data-parallel, and of 1.0 + 0.5 speeds, side by side.

    tools/scaling.py [--shoal build/cli/shoal] [--steps 12] [--rounds 3] [--job FILE]

Real processes over encrypted loopback links. The four runs take turns, `rounds` times; each gives the median over its steps (the first two are left out),
each figure is the median over the rounds. Nothing else should run on the machine: two peers and a coordinator share its cores.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

JOB = """\
name: scaling
seed: 1
peers: 1
reduction: exact
model: {arch: gpt2, layers: 8, heads: 4, embd: 256, context: 128, vocab: 256}
data: {paths: ["/usr/share/common-licenses/*"], validation: 0.1}
train: {steps: 1000, microbatches: 32, sequences: 4, lr: 0.001, warmup: 10}
eval: {every: 0, microbatches: 1}
checkpoint: {every: 0, keep: 1}
"""

# name, peers, speeds, forced plan (units 0-9: embedding, eight blocks, head; where there is none the scheduler decides)
RUNS = [
    ("one peer", "1", "1", None),
    ("two, pipeline", "2", "1,1", "units 0-4: 0\nunits 5-9: 1\nin-flight 3\n"),
    ("two, data-parallel", "2", "1,1", "units 0-9: 0 1\n"),
    ("1.0 + 0.5", "2", "1,0.5", None),
]


def run(shoal, job, folder, steps, peers, speeds, plan):
    """Median tokens/s of one run, and its predicted and actual seconds a step."""
    command = [shoal, "train", job, "--peers", peers, "--speeds", speeds, "--threads", "1", "--steps", str(steps),
               "--run", os.path.join(folder, "run"), "--overwrite", "--json"]
    if plan:
        path = os.path.join(folder, "plan")
        with open(path, "w", encoding="utf-8") as f:
            f.write(plan)
        command += ["--plan", path]
    out = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
    events = [json.loads(line) for line in out.splitlines()]
    speed = [e["tokens_per_s"] for e in events if e["event"] == "step"][2:]
    seconds = [e["seconds"] for e in events if e["event"] == "step"][2:]
    predicted = [e["predicted_seconds"] for e in events if e["event"] == "plan"][-1]
    return statistics.median(speed), predicted, statistics.median(seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shoal", default="build/cli/shoal")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--job", help="a job file of your own; the plans speak of units 0-9")
    args = parser.parse_args()
    results = {name: [] for name, *_ in RUNS}
    with tempfile.TemporaryDirectory() as folder:
        job = args.job or os.path.join(folder, "job.yaml")
        if not args.job:
            with open(job, "w", encoding="utf-8") as f:
                f.write(JOB)
        for turn in range(args.rounds):
            for name, peers, speeds, plan in RUNS:
                results[name].append(run(args.shoal, job, folder, args.steps, peers, speeds, plan))
                print(f"round {turn + 1}: {name}: {results[name][-1][0]:.0f} tokens/s", file=sys.stderr)
    print(f"{'':20} {'tokens/s':>10} {'of one':>8} {'s a step':>9} {'predicted':>10}")
    for name, *_ in RUNS:
        # The ratio is taken round by round, so that a machine that drifts drifts out of it.
        ratio = statistics.median(r[0] / one[0] for r, one in zip(results[name], results["one peer"]))
        median = [statistics.median(x) for x in zip(*results[name])]
        print(f"{name:20} {median[0]:10.0f} {ratio:7.2f}x {median[2]:9.3f} {median[1]:10.3f}")


if __name__ == "__main__":
    main()
