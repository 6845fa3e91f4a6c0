#!/usr/bin/env python3
"""How long a lost peer holds a run up: from SIGKILL or SIGSTOP of one of three data-parallel peers to the moment when the coordinator gives its work to the others.

    tools/recovery.py [--shoal build/cli/shoal] [--rounds 5] [--dead-after 2] [--job FILE]

Real processes over encrypted loopback links; a new fleet for each figure. "elsewhere" is `shoal coordinator` and three `shoal peer`, whose ends nobody
tells the coordinator: it has its links and heartbeats only. "local" is `shoal train`, which is told. The clock starts before the signal and stops when
the coordinator's event `released` is read: it is printed while the leases go out. "step" is how long the step took in which it happened, of which a
part would have been needed anyway: the median of the steps before stands beside it. Everything on the machine counts: leave it alone meanwhile.
"""
import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import tempfile
import time

JOB = """\
name: recovery
seed: 1
peers: 3
model: {arch: gpt2, layers: 4, heads: 4, embd: 128, context: 64}
data: {paths: ["/usr/share/common-licenses/*"], validation: 0.1}
train: {steps: 10000, microbatches: 24, sequences: 4, lr: 0.001, warmup: 10}
eval: {every: 0, microbatches: 1}
checkpoint: {every: 0, keep: 1}
"""
PLAN = "units 0-5: 0 1 2\n"
SETTLE = 5  # steps before the harm


class Fleet:
    """A run and the process numbers of its peers; all gone at the end of the `with`."""

    def __init__(self, args, folder, local):
        self.processes = []
        common = [args.job, "--peers", "3", "--plan", os.path.join(folder, "plan"), "--run", os.path.join(folder, "run"),
                  "--overwrite", "--dead-after", str(args.dead_after), "--json"]
        if local:
            self.main = self.start([args.shoal, "train"] + common)
        else:
            self.main = self.start([args.shoal, "coordinator"] + common + ["--listen", "127.0.0.1", "--port", "0"])
            invite = self.wait(lambda e: e["event"] == "invite")["invite"]
            for i in range(3):
                self.start([args.shoal, "peer", invite, "--threads", "1", "--key", os.path.join(folder, f"key-{i}")])
        self.local = local

    def start(self, command):
        p = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        self.processes.append(p)
        return p

    def wait(self, matches):
        """The next event that matches."""
        for line in self.main.stdout:
            event = json.loads(line)
            if matches(event):
                return event
        raise SystemExit("the run ended before its time")

    def peers(self):
        if not self.local:
            return [p.pid for p in self.processes[1:]]
        with open(f"/proc/{self.main.pid}/task/{self.main.pid}/children", encoding="ascii") as f:
            return [int(pid) for pid in f.read().split()]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for p in self.processes:  # local peers die with their parent
            p.kill()
            p.wait()
            p.stdout.close()


def measure(args, folder, local, sig, rng):
    """Seconds to `released`, of the step in which it was, and of the median step before."""
    with Fleet(args, folder, local) as fleet:
        calm = [fleet.wait(lambda e: e["event"] == "step")["seconds"] for _ in range(SETTLE)][1:]
        time.sleep(rng.uniform(0, statistics.median(calm)))
        began = time.monotonic()
        os.kill(rng.choice(fleet.peers()), sig)
        step = fleet.wait(lambda e: e["event"] == "released")["step"]
        seconds = time.monotonic() - began
        return seconds, fleet.wait(lambda e: e["event"] == "step" and e["step"] > step)["seconds"], statistics.median(calm)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shoal", default="build/cli/shoal")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dead-after", type=float, default=2)
    parser.add_argument("--job", help="a job file of your own; its model has six units, its steps must not run out")
    args = parser.parse_args()
    rng = random.Random(1)
    rows = [("SIGKILL, elsewhere", False, signal.SIGKILL), ("SIGSTOP, elsewhere", False, signal.SIGSTOP),
            ("SIGKILL, local", True, signal.SIGKILL)]
    print(f"medians of {args.rounds} (smallest to largest), seconds, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(f"{'':20} {'to released':>12} {'':16} {'step':>8} {'calm step':>10}")
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "plan"), "w", encoding="utf-8") as f:
            f.write(PLAN)
        if not args.job:
            args.job = os.path.join(folder, "job.yaml")
            with open(args.job, "w", encoding="utf-8") as f:
                f.write(JOB)
        for name, local, sig in rows:
            released, step, calm = zip(*[measure(args, folder, local, sig, rng) for _ in range(args.rounds)])
            spread = f"({min(released):.3f} to {max(released):.3f})"
            print(f"{name:20} {statistics.median(released):12.3f} {spread:>16} {statistics.median(step):8.3f} "
                  f"{statistics.median(calm):10.3f}", flush=True)


if __name__ == "__main__":
    main()
