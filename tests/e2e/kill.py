#!/usr/bin/env python3
"""A peer is killed at a random moment: the run ends soon, with a code and a sentence, leaves nobody behind, and its
resumption gives the model of the undisturbed run. Moments come from a seed; a failure prints it."""

import os
import random
import signal
import time

import shoal

SEEDS = (1, 2, 3, 4)
# Nobody idle: the scheduler might leave one of three peers out of so small a job, and would be right.
EVERYONE = "units 0-1: 0 1\nunits 2-4: 2 1\nin-flight 4\n"


class Kill(shoal.Case):
    def three(self, plan=EVERYONE):
        return ["--peers", "3", "--plan", self.write("plan", plan)]

    def check_end(self, p, pids, killed_at):
        self.assertEqual(p.finish(30), 7, p.describe())
        self.assertLess(p.ended - killed_at, 10 * shoal.SLOWNESS, p.describe())
        stopped = p.event("stopped")
        self.assertIsNotNone(stopped, p.describe())
        self.assertIn("--resume", stopped["why"])
        self.assertIn("killed by signal 9", "".join(e["why"] for e in p.events if e.get("state") == "dead")
                      + stopped["why"], p.describe())
        self.assert_nobody_left(pids)

    def disturb(self, job, run, rng, resume):
        """One run in which one of three peers is killed somewhere in its steps."""
        p = self.start("train", job, "--run", run, *self.three(), *(["--resume"] if resume else []))
        first = p.wait_named("step")["step"]
        pids = shoal.peers_of(p.pid)
        self.assertEqual(len(pids), 3, p.describe())
        step = first + rng.randrange(20)
        seconds = p.wait_event(lambda e: e["event"] == "step" and e["step"] == step)["seconds"]
        shoal.wait_moment(p, rng.uniform(0, 2 * seconds))
        killed_at = time.monotonic()
        os.kill(rng.choice(pids), signal.SIGKILL)
        self.check_end(p, pids, killed_at)
        return p

    def test_any_moment_of_the_run(self):
        job = self.job(steps=40, checkpoint_every=5)
        calm = self.train(job, "--peers", "1")
        for seed in SEEDS:
            with self.subTest(seed=seed):
                rng, run = random.Random(seed), self.run_dir()
                self.disturb(job, run, rng, False)
                result = self.train(job, "--peers", "2", "--resume", run=run)
                self.assertEqual(result.hash, calm.hash)
                self.assertEqual(result.steps, calm.steps[len(calm.steps) - len(result.steps):])

    def test_twice_in_one_run(self):
        job = self.job(steps=60, checkpoint_every=5)
        calm = self.train(job, "--peers", "1")
        rng, run = random.Random(99), self.run_dir()
        self.disturb(job, run, rng, False)
        self.disturb(job, run, rng, True)
        self.assertEqual(self.train(job, "--peers", "3", "--resume", run=run).hash, calm.hash)

    def test_before_the_first_step(self):
        job = self.job(steps=6)
        calm = self.train(job, "--peers", "1")
        for seed in SEEDS:
            with self.subTest(seed=seed):
                rng, run = random.Random(seed), self.run_dir()
                p = self.start("train", job, "--run", run, "--peers", "3")
                p.wait_event(lambda e: e["event"] == "peer" and e["state"] == "joined")
                shoal.wait_moment(p, rng.uniform(0, 0.1))
                pids = shoal.peers_of(p.pid)
                killed_at = time.monotonic()
                os.kill(rng.choice(pids), signal.SIGKILL)
                self.check_end(p, pids, killed_at)
                self.assertEqual(self.train(job, "--peers", "2", "--resume", run=run).hash, calm.hash)

    def test_a_peer_without_a_share_may_go(self):
        job = self.job(steps=30)
        calm = self.train(job, "--peers", "1")
        p = self.start("train", job, "--run", self.run_dir(), *self.three("units 0-2: 0\nunits 3-4: 1\n"))
        p.wait_event(lambda e: e["event"] == "step" and e["step"] == 3)
        os.kill(shoal.peers_of(p.pid)[2], signal.SIGKILL)
        self.assertEqual(p.finish(), 0, p.describe())
        self.assertEqual([e["why"] for e in p.events if e.get("state") == "dead"], ["killed by signal 9 (Killed)"])
        self.assertEqual(p.event("done")["hash"], calm.hash)

    def test_a_frozen_peer_is_noticed(self):
        p = self.start("train", self.job(steps=1000), "--run", self.run_dir(), *self.three())
        p.wait_event(lambda e: e["event"] == "step" and e["step"] == 2)
        pids = shoal.peers_of(p.pid)
        frozen_at = time.monotonic()
        os.kill(pids[1], signal.SIGSTOP)
        self.assertEqual(p.finish(30), 7, p.describe())
        self.assertLess(p.ended - frozen_at, 20 * shoal.SLOWNESS, p.describe())
        self.assertIn("--resume", p.event("stopped")["why"])
        self.assert_nobody_left(pids)

    def test_peers_do_not_outlive_their_coordinator(self):
        p = self.start("train", self.job(steps=1000), "--run", self.run_dir(), "--peers", "3")
        p.wait_event(lambda e: e["event"] == "step" and e["step"] == 2)
        pids = shoal.peers_of(p.pid)
        self.assertEqual(len(pids), 3)
        p.popen.kill()
        self.assert_nobody_left(pids)

    def test_a_peer_elsewhere_ends_when_its_coordinator_dies(self):
        """The same without a parent that watches: what a volunteer's machine sees."""
        job = self.job(steps=1000)
        coordinator = self.start("coordinator", job, "--run", self.run_dir(), "--listen", "127.0.0.1", "--port", "0",
                                 "--peers", "1")
        invite = coordinator.wait_named("invite")["invite"]
        peer = self.start("peer", invite, "--key", self.path("key"), "--threads", "1", "--wait", "3")
        coordinator.wait_event(lambda e: e["event"] == "step" and e["step"] == 2)
        coordinator.popen.kill()
        self.assertEqual(peer.finish(30), 7, peer.describe())
        self.assertIn("coordinator", peer.err)


if __name__ == "__main__":
    shoal.main()
