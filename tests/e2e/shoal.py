"""What the end-to-end tests share: small jobs, processes of the real binary, their events, their ends, invites.

A test is a unittest file that is called as `test.py SHOAL [SLOWNESS]`: the binary, and a factor for deadlines (sanitized
builds are slow). Standard library only. Nothing here sleeps: everything waits for an event, with a deadline.
"""

import base64
import dataclasses
import hashlib
import json
import os
import select
import signal
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

SHOAL = ""
SLOWNESS = 1.0
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DEADLINE_S = 120  # of anything that is not said to be quick

# Every test runs with its own identity and never reads the user's.
ENV = {k: v for k, v in os.environ.items() if not k.startswith(("SHOAL_", "XDG_", "OPENBLAS_"))}


def main():
    """Runs the calling file's tests."""
    global SHOAL, SLOWNESS
    if len(sys.argv) < 2:
        sys.exit(f"usage: {sys.argv[0]} SHOAL [SLOWNESS] [unittest's arguments]")
    SHOAL = os.path.abspath(sys.argv.pop(1))
    if len(sys.argv) > 1 and sys.argv[1].replace(".", "").isdigit():
        SLOWNESS = float(sys.argv.pop(1))
    unittest.main(verbosity=2)


JOB = """name: {name}
seed: 5
model: {{arch: gpt2, layers: 3, heads: 2, embd: 32, context: 32}}
data:
  paths: [{data}]
  validation: 0.1
train: {{steps: {steps}, microbatches: {microbatches}, sequences: 2, lr: 3e-3, lr_min: 3e-4, warmup: 2}}
eval: {{every: 5, microbatches: 2}}
checkpoint: {{every: {checkpoint_every}, keep: 3}}
"""
UNITS = 5  # of that job: the embedding, three blocks, the head


class Case(unittest.TestCase):
    """A test with its own folder, whose processes are gone when it ends."""

    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="shoal-e2e-")
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        self.n_runs = 0

    def path(self, name):
        return os.path.join(self.dir, name)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as f:
            f.write(text)
        return self.path(name)

    def job(self, steps=12, microbatches=8, checkpoint_every=4, name="tiny", data=None):
        if data is None:  # a copy, so that every run of a test sees the same text
            data = self.path("text.txt")
            if not os.path.exists(data):
                shutil.copy(os.path.join(ROOT, "docs", "design.md"), data)
        return self.write(f"{name}.yaml", JOB.format(name=name, data=data, steps=steps, microbatches=microbatches,
                                                     checkpoint_every=checkpoint_every))

    def run_dir(self):
        self.n_runs += 1
        return self.path(f"run-{self.n_runs}")

    def start(self, *args, env=None, json_events=True):
        args = list(args) + (["--json"] if json_events else [])
        if SLOWNESS > 1 and args[0] in ("train", "coordinator") and "--dead-after" not in args:
            args += ["--dead-after", f"{2 * SLOWNESS:g}"]
        p = Process(args, self.dir, env or {})
        self.addCleanup(p.close)
        return p

    def train(self, job, *args, env=None, run=None):
        """A run to its end, which must be a good one."""
        p = self.start("train", job, "--run", run or self.run_dir(), *args, env=env)
        p.finish()
        self.assertEqual(p.code, 0, p.describe())
        done = p.event("done")
        self.assertIsNotNone(done, p.describe())
        return Result([(e["step"], e["loss"], e["norm"]) for e in p.events if e["event"] == "step"], done, p)

    def assert_nobody_left(self, pids):
        """The processes end, all of them, soon."""
        for pid in pids:
            self.assertTrue(wait_gone(pid, 10 * SLOWNESS), f"process {pid} is still there")


@dataclasses.dataclass
class Result:
    steps: list  # (step, loss, norm)
    done: dict
    process: object

    @property
    def hash(self):
        return self.done["hash"]


class Process:
    """One running shoal: its standard output as JSON events, standard error as text."""

    def __init__(self, args, cwd, env):
        self.args = args
        self.err_file = tempfile.TemporaryFile()
        self.started = time.monotonic()
        self.ended = None
        self.popen = subprocess.Popen([SHOAL] + args, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                      stderr=self.err_file, env={**ENV, "HOME": cwd, **env})
        self.events, self.lines, self.rest, self.code = [], [], b"", None

    @property
    def pid(self):
        return self.popen.pid

    @property
    def err(self):
        self.err_file.seek(0)
        return self.err_file.read().decode(errors="replace")

    def _take(self, data):
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            text = line.decode(errors="replace")
            self.lines.append(text)
            if "--json" in self.args:
                self.events.append(json.loads(text))

    def read(self, timeout_s):
        """Reads what is there within timeout_s; False at the end of the output."""
        ready, _, _ = select.select([self.popen.stdout], [], [], max(timeout_s, 0))
        if not ready:
            return True
        data = os.read(self.popen.stdout.fileno(), 65536)
        self._take(data)
        return bool(data)

    def wait_event(self, matches, deadline_s=DEADLINE_S):
        """The first event, past or to come, for which matches(event); None when the output ends before."""
        seen, end = 0, time.monotonic() + deadline_s * SLOWNESS
        more = True
        while True:
            for e in self.events[seen:]:
                if matches(e):
                    return e
            seen = len(self.events)
            if not more:
                return None
            if time.monotonic() > end:
                raise AssertionError("no such event in time\n" + self.describe())
            more = self.read(end - time.monotonic())

    def wait_named(self, name, deadline_s=DEADLINE_S):
        return self.wait_event(lambda e: e["event"] == name, deadline_s)

    def finish(self, deadline_s=DEADLINE_S):
        """Waits for the end."""
        end = time.monotonic() + deadline_s * SLOWNESS
        while self.read(end - time.monotonic()):
            if time.monotonic() > end:
                raise AssertionError(f"does not end within {deadline_s * SLOWNESS:.0f} s\n" + self.describe())
        try:
            self.code = self.popen.wait(max(end - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            raise AssertionError("closed its output but does not end\n" + self.describe()) from None
        self.ended = time.monotonic()
        return self.code

    def event(self, name):
        """The last event of that name, None if there was none."""
        return next((e for e in reversed(self.events) if e["event"] == name), None)

    def describe(self):
        logs = ""
        if "--run" in self.args:
            run = self.args[self.args.index("--run") + 1]
            for name in sorted(os.listdir(run)) if os.path.isdir(run) else []:
                if name.endswith(".log"):
                    with open(os.path.join(run, name), encoding="utf-8", errors="replace") as f:
                        logs += f"---- {name}\n" + f.read()[-2000:]
        return (f"shoal {' '.join(self.args)}\nexit code {self.code}, {time.monotonic() - self.started:.1f} s\n"
                f"---- last output\n" + "\n".join(self.lines[-15:]) + f"\n---- errors\n{self.err[-3000:]}\n{logs}")

    def close(self):
        pids = peers_of(self.pid) if self.popen.poll() is None else []
        if self.popen.poll() is None:
            self.popen.kill()
            self.popen.wait()
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.popen.stdout.close()
        self.err_file.close()


def peers_of(pid):
    """Process numbers of the local peers of the `shoal train` that is pid, in the order in which they were started."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", encoding="ascii", errors="replace") as f:
                fields = f.read().rsplit(")", 1)[1].split()
            with open(f"/proc/{name}/cmdline", "rb") as f:
                words = f.read().split(b"\0")
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] not in "ZX" and words[1:2] == [b"peer"]:
            found.append((int(fields[19]), int(name)))
    return [p for _, p in sorted(found)]


def wait_gone(pid, timeout_s):
    """Waits for the end of a process that need not be a child of ours."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([fd], [], [], timeout_s)[0])
    finally:
        os.close(fd)


def wait_moment(process, seconds):
    """Lets the process go on for so long (a moment to do harm at, not an event to wait for), reading its output."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.read(end - time.monotonic()):
        pass


CROCKFORD = "0123456789abcdefghjkmnpqrstvwxyz"
RFC4648 = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"


@dataclasses.dataclass
class Invite:
    """An invite taken apart (crypto/invite.c has the layout), to be put together wrongly."""
    key: bytes
    job_id: bytes
    capability: bytes
    addrs: list  # (host, port)

    @staticmethod
    def decode(text):
        chars = text[len("shoal1"):].translate(str.maketrans(CROCKFORD, RFC4648))
        data = base64.b32decode(chars + "=" * (-len(chars) % 8))
        key, job_id, capability, n, at = data[3:35], data[35:43], data[43:59], data[59], 60
        addrs = []
        for _ in range(n):
            host = data[at + 1:at + 1 + data[at]].decode()
            at += 1 + data[at]
            addrs.append((host, int.from_bytes(data[at:at + 2], "little")))
            at += 2
        return Invite(key, job_id, capability, addrs)

    def encode(self, version=1):
        body = self.key + self.job_id + self.capability + bytes([len(self.addrs)])
        for host, port in self.addrs:
            body += bytes([len(host)]) + host.encode() + port.to_bytes(2, "little")
        data = bytes([version]) + (len(body) + 7).to_bytes(2, "little") + body
        data += hashlib.blake2b(data, digest_size=32).digest()[:4]
        return "shoal1" + base64.b32encode(data).decode().rstrip("=").translate(str.maketrans(RFC4648, CROCKFORD))
