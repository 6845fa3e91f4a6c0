#!/usr/bin/env python3
"""The coordinator is killed at random moments and started again with --resume: its peers, processes of their own, come
back by themselves, and the model is the undisturbed run's. Moments come from a seed; a failure prints it."""

import os
import random
import signal
import sqlite3
import time

import shoal

PEERS = 3
EVERYONE = "units 0-1: 0 1\nunits 2-4: 2 1\nin-flight 4\n"
ALONE = "units 0-1: 0\nunits 2-3: 1\nunits 4-4: 2\nin-flight 4\n"  # nobody holds what another one holds


class Restart(shoal.Case):
    def coordinator(self, job, run, *args):
        return self.start("coordinator", job, "--run", run, "--listen", "127.0.0.1", "--peers", str(PEERS), *args)

    def peers(self, invite):
        """Of one run; a repetition within the test gets other keys."""
        self.n_peers = getattr(self, "n_peers", 0) + PEERS
        return [self.start("peer", invite, "--key", self.path(f"key-{self.n_peers - i}"), "--threads", "1")
                for i in range(PEERS)]

    def kill(self, p, seconds):
        shoal.wait_moment(p, seconds)
        os.kill(p.pid, signal.SIGKILL)
        p.finish()

    def run_with_kills(self, job, plan, n_kills, rng):
        """Starts a run, kills its coordinator n_kills times, and starts it again each time; the last one and the peers."""
        run = self.run_dir()
        plan = ["--plan", self.write("plan", plan)]
        c = self.coordinator(job, run, "--port", "0", *plan)
        peers = self.peers(c.wait_named("invite")["invite"])
        lives = [c]
        for _ in range(n_kills):
            step = c.wait_named("step")
            self.assertIsNotNone(step, c.describe())
            c.wait_event(lambda e, at=step["step"] + rng.randrange(12): e["event"] == "step" and e["step"] >= at)
            self.kill(c, rng.uniform(0, 2 * step["seconds"]))
            c = self.coordinator(job, run, "--resume", *plan)  # and no --port: it is in the ledger
            lives.append(c)
        return run, lives, peers

    def check_good_end(self, run, lives, peers, calm):
        self.assertEqual(lives[-1].finish(), 0, lives[-1].describe())
        for p in peers:
            self.assertEqual(p.finish(20), 0, p.describe())
        self.assertEqual(lives[-1].event("done")["hash"], calm.hash)
        # Every step was told once, or, where the kill came between writing and telling, not at all; as in a calm run.
        told = [(e["step"], e["loss"], e["norm"]) for c in lives for e in c.events if e["event"] == "step"]
        self.assertEqual(sorted(set(told)), told)
        self.assertLessEqual(set(told), set(calm.steps))
        self.assertGreater(len(told), len(calm.steps) - len(lives))
        with sqlite3.connect(f"file:{run}/ledger.db?mode=ro", uri=True) as db:
            commits = [key for (key,) in db.execute("SELECT key FROM record WHERE kind = 'commit' ORDER BY key")]
        self.assertEqual(commits, list(range(len(calm.steps))))  # one lineage, each step once

    def test_killed_at_any_moment_it_goes_on_when_it_is_back(self):
        job = self.job(steps=60, checkpoint_every=20)
        calm = self.train(job, "--peers", "1")
        for seed, plan in enumerate((EVERYONE, ALONE, EVERYONE)):
            with self.subTest(seed=seed):
                run, lives, peers = self.run_with_kills(job, plan, 3, random.Random(seed))
                self.check_good_end(run, lives, peers, calm)
                for c in lives[1:]:
                    self.assertFalse([e for e in c.events if e.get("state") == "dead"], c.describe())
                self.assertIn("the coordinator is back", "".join(e["text"] for p in peers for e in p.events))

    def test_killed_before_the_first_step_it_gathers_again(self):
        job = self.job(steps=100)  # it is not over by then
        calm = self.train(job, "--peers", "1")
        for seed in range(3):
            with self.subTest(seed=seed):
                rng, run = random.Random(seed), self.run_dir()
                c = self.coordinator(job, run, "--port", "0")
                peers = self.peers(c.wait_named("invite")["invite"])
                c.wait_event(lambda e: e["event"] == "peer" and e["state"] == "joined")
                self.kill(c, rng.uniform(0, 1.2))
                c = self.coordinator(job, run, "--resume")
                self.assertEqual(c.finish(), 0, c.describe())
                self.assertEqual(c.event("done")["hash"], calm.hash)

    def test_a_peer_killed_meanwhile_is_a_death_like_any(self):
        job = self.job(steps=40, checkpoint_every=10)
        calm = self.train(job, "--peers", "1")
        for plan in ("units 0-4: 0 1 2\n", ALONE):
            with self.subTest(plan=plan):
                run = self.run_dir()
                plan = ["--plan", self.write("plan", plan)]
                c = self.coordinator(job, run, "--port", "0", *plan)
                peers = self.peers(c.wait_named("invite")["invite"])
                c.wait_event(lambda e: e["event"] == "step" and e["step"] == 15)
                self.kill(c, 0)
                os.kill(peers[1].pid, signal.SIGKILL)
                c = self.coordinator(job, run, "--resume", *plan)
                self.assertEqual(c.finish(), 0, c.describe())
                self.assertEqual(c.event("done")["hash"], calm.hash)

    def test_nobody_is_left_who_could_come_back(self):
        """From the checkpoint, with a new fleet."""
        job = self.job(steps=30, checkpoint_every=10)
        calm = self.train(job, "--peers", "1")
        run = self.run_dir()
        c = self.coordinator(job, run, "--port", "0")
        peers = self.peers(c.wait_named("invite")["invite"])
        c.wait_event(lambda e: e["event"] == "checkpoint" and e["step"] == 10)
        for p in [c] + peers:
            self.kill(p, 0)
        c = self.coordinator(job, run, "--resume")
        self.peers(c.wait_named("invite")["invite"])
        self.assertEqual(c.finish(), 0, c.describe())
        self.assertEqual(c.event("done")["hash"], calm.hash)

    def test_a_second_coordinator_is_refused(self):
        job, run = self.job(steps=1000), self.run_dir()
        c = self.coordinator(job, run, "--port", "0")
        c.wait_named("invite")
        second = self.coordinator(job, run, "--port", "0", "--resume")
        self.assertEqual(second.finish(20), 3, second.describe())
        self.assertIn("another coordinator is running", second.err)

    def test_a_damaged_ledger_is_named(self):
        job, run = self.job(steps=4), self.run_dir()
        self.train(job, "--peers", "1", "--steps", "2", run=run)
        with open(os.path.join(run, "ledger.db"), "r+b") as f:
            f.write(b"something else altogether")
        p = self.start("train", job, "--run", run, "--peers", "1", "--resume")
        self.assertEqual(p.finish(20), 3, p.describe())
        self.assertIn("is not a ledger", p.err)

    def test_time_to_the_next_commit(self):
        job, run = self.job(steps=600, checkpoint_every=0), self.run_dir()
        plan = ["--plan", self.write("plan", EVERYONE)]
        c = self.coordinator(job, run, "--port", "0", *plan)
        self.peers(c.wait_named("invite")["invite"])
        seconds = []
        for _ in range(5):
            c.wait_event(lambda e: e["event"] == "step")
            os.kill(c.pid, signal.SIGKILL)
            began = time.monotonic()
            c.finish()
            c = self.coordinator(job, run, "--resume", *plan)
            self.assertIsNotNone(c.wait_named("step"), c.describe())
            seconds.append(time.monotonic() - began)
        print(f"\nSIGKILL and restart to the next commit: {', '.join(f'{s:.2f}' for s in seconds)} s, "
              f"median {sorted(seconds)[2]:.2f} s")
        self.assertLess(sorted(seconds)[2], 2 * shoal.SLOWNESS)


if __name__ == "__main__":
    shoal.main()
