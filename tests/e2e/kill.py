#!/usr/bin/env python3
"""Peers die, freeze and come back too late at random moments of real runs: where others hold the same, the run goes on
within the step; where nobody does, it goes back to its last checkpoint by itself; where nobody is left, it ends soon,
with a code, a sentence and what --resume needs. The model is the undisturbed run's in every case. Moments come from a
seed; a failure prints it. `--slow` as the last argument runs every peer of every plan at every phase instead."""

import os
import random
import signal
import sys
import time
import unittest

import shoal

STEPS = 120
# Nobody idle: the scheduler might leave one of three peers out of so small a job, and would be right.
PIPELINE = "units 0-1: 0\nunits 2-3: 1\nunits 4-4: 2\nin-flight 3\n"
DATA_PARALLEL = "units 0-4: 0 1 2\n"
MIXED = "units 0-1: 0 1\nunits 2-4: 2 1\nin-flight 4\n"
SHADOW = "units 0-4: 0 1*0\n"
HALF_SHADOWED = "units 0-1: 0 2*0\nunits 2-4: 1\nin-flight 2\n"


def stages_of(plan):
    """The peers of each stage."""
    return [{int(word.split("*")[0]) for word in line.split(":")[1].split()} for line in plan.splitlines()
            if line.startswith("units")]


def n_peers_of(plan):
    return len(set.union(*stages_of(plan)))


def is_covered(plan, dead):
    """Whether the others hold every unit."""
    return all(peers - set(dead) for peers in stages_of(plan))


class Faults(shoal.Case):
    def start_train(self, job, plan, run=None, *more):
        return self.start("train", job, "--run", run or self.run_dir(), "--peers", str(n_peers_of(plan)), "--plan",
                          self.write("plan", plan), *more)

    def wait_step(self, p, step):
        """Waits until a step is committed; returns the peers' processes and how long the step took."""
        seconds = p.wait_event(lambda e: e["event"] == "step" and e["step"] == step)["seconds"]
        pids = shoal.peers_of(p.pid)
        return pids, seconds

    def harm(self, p, pids, victims, sig=signal.SIGKILL):
        for victim in victims:
            os.kill(pids[victim], sig)
        return time.monotonic()

    def check_steps(self, p, calm):
        """The steps follow each other, from where the run went back to if it did, each as in the undisturbed run."""
        calm_steps = {step: (loss, norm) for step, loss, norm in calm.steps}
        expected = 1
        for e in p.events:
            if e["event"] == "rollback":
                self.assertLess(e["step"], expected, p.describe())
                expected = e["step"] + 1
            elif e["event"] == "step":
                self.assertEqual(e["step"], expected, p.describe())
                self.assertEqual((e["loss"], e["norm"]), calm_steps[expected], p.describe())
                expected += 1
        self.assertEqual(expected, len(calm.steps) + 1, p.describe())

    def check_survived(self, p, pids, calm, n_dead, covered):
        """The run came to its good end by itself."""
        self.assertEqual(p.finish(), 0, p.describe())
        self.assertEqual(p.event("done")["hash"], calm.hash, p.describe())
        self.check_steps(p, calm)
        self.assertEqual(sum(e.get("state") == "dead" for e in p.events), n_dead, p.describe())
        self.assertEqual(p.event("rollback") is None, covered, p.describe())
        if covered:
            released = [e for e in p.events if e["event"] == "released"]
            self.assertEqual(len(released), n_dead, p.describe())
        self.assert_nobody_left(pids)

    def check_ended(self, p, pids, harmed_at):
        """Nobody was left to go on: the end came soon, and says how to go on."""
        self.assertEqual(p.finish(30), 7, p.describe())
        self.assertLess(p.ended - harmed_at, 10 * shoal.SLOWNESS, p.describe())
        why = p.event("stopped")["why"]
        self.assertIn("killed by signal 9", why, p.describe())
        saved = [e for e in p.events if e["event"] == "checkpoint"]
        self.assertIn(f"step {saved[-1]['step']} is saved in" if saved else "run the same command again to begin anew", why,
                      p.describe())
        self.assertEqual("--resume" in why, bool(saved), p.describe())
        self.assert_nobody_left(pids)

    def survive(self, job, calm, plan, victims, step, after, sig=signal.SIGKILL):
        """One run of the plan in which the victims are harmed some seconds after a step."""
        p = self.start_train(job, plan)
        pids, _ = self.wait_step(p, step)
        shoal.wait_moment(p, after)
        self.harm(p, pids, victims, sig)
        self.check_survived(p, pids, calm, len(victims), is_covered(plan, victims))
        return p


class Kill(Faults):
    undisturbed = (None, None)  # the text and its result: every test's job is the same, unless the text changes meanwhile

    def setUp(self):
        super().setUp()
        self.steady = self.job(steps=STEPS, checkpoint_every=10)
        with open(self.path("text.txt"), "rb") as f:
            text = f.read()
        if Kill.undisturbed[0] != text:
            Kill.undisturbed = (text, self.train(self.steady, "--peers", "1"))
        self.calm = Kill.undisturbed[1]

    def at_random(self, seed, plan, n_victims=1):
        rng = random.Random(seed)
        victims = rng.sample(range(n_peers_of(plan)), n_victims)
        with self.subTest(seed=seed, plan=plan, victims=victims):
            self.survive(self.steady, self.calm, plan, victims, rng.randrange(1, STEPS // 3), rng.uniform(0, 0.02))

    def test_who_is_replicated_is_not_missed(self):
        for seed, plan in enumerate((DATA_PARALLEL, MIXED, SHADOW, HALF_SHADOWED)):
            self.at_random(seed, plan)

    def test_a_unit_that_nobody_holds_comes_from_the_checkpoint(self):
        self.at_random(1, PIPELINE)

    def test_two_at_once(self):
        self.survive(self.steady, self.calm, MIXED, [0, 2], 12, 0.01)
        self.survive(self.steady, self.calm, MIXED, [0, 1], 12, 0.01)

    def test_one_after_the_other(self):
        p = self.start_train(self.steady, DATA_PARALLEL)
        pids, _ = self.wait_step(p, 10)
        self.harm(p, pids, [1])
        self.wait_step(p, 20)
        self.harm(p, pids, [0])
        self.check_survived(p, pids, self.calm, 2, True)

    def test_the_only_peer(self):
        for step in (1, 25):  # before and after the first checkpoint
            with self.subTest(step=step):
                run = self.run_dir()
                job = self.job(steps=STEPS, checkpoint_every=20, name="only")
                p = self.start("train", job, "--run", run, "--peers", "1")
                pids, _ = self.wait_step(p, step)
                self.check_ended(p, pids, self.harm(p, pids, [0]))
                self.assertEqual(self.train(job, "--peers", "1", "--resume", run=run).hash, self.calm.hash)

    def test_all_at_once(self):
        for seed in range(2):
            with self.subTest(seed=seed):
                rng, run = random.Random(seed), self.run_dir()
                plan = rng.choice((DATA_PARALLEL, PIPELINE, MIXED))
                p = self.start_train(self.steady, plan, run)
                pids, _ = self.wait_step(p, rng.randrange(1, STEPS // 3))
                shoal.wait_moment(p, rng.uniform(0, 0.02))
                self.check_ended(p, pids, self.harm(p, pids, [0, 1, 2]))
                result = self.train(self.steady, "--peers", "2", "--resume", run=run)
                self.assertEqual(result.hash, self.calm.hash)
                self.assertEqual(result.steps, self.calm.steps[len(self.calm.steps) - len(result.steps):])

    def test_before_the_first_step(self):
        """Whoever starts local peers starts no others: it says so and ends."""
        for seed in range(2):
            with self.subTest(seed=seed):
                rng, run = random.Random(seed), self.run_dir()
                p = self.start("train", self.steady, "--run", run, "--peers", "3", "--speeds", "1,0.5,0.5")
                p.wait_event(lambda e: e["event"] == "peer" and e["state"] == "joined")
                shoal.wait_moment(p, rng.uniform(0, 0.05))
                pids = shoal.peers_of(p.pid)
                harmed_at = self.harm(p, pids, [rng.randrange(len(pids))])
                if p.wait_event(lambda e: e["event"] in ("step", "stopped"))["event"] == "step":
                    self.assertEqual(p.finish(), 0, p.describe())  # the first step was quicker than we
                    continue
                self.check_ended(p, pids, harmed_at)
                self.assertEqual(self.train(self.steady, "--peers", "2", "--resume", run=run).hash, self.calm.hash)

    def test_a_peer_without_a_share_may_go(self):
        p = self.start("train", self.steady, "--run", self.run_dir(), "--peers", "3", "--plan",
                       self.write("plan", "units 0-2: 0\nunits 3-4: 1\n"))
        pids, _ = self.wait_step(p, 3)
        self.harm(p, pids, [2])
        self.assertEqual(p.finish(), 0, p.describe())
        self.assertEqual([e["why"] for e in p.events if e.get("state") == "dead"], ["killed by signal 9 (Killed)"])
        self.assertIsNone(p.event("released"), p.describe())
        self.assertEqual(p.event("done")["hash"], self.calm.hash)


class Freeze(Faults):
    def test_a_frozen_peer_is_given_up(self):
        job = self.job(steps=STEPS, checkpoint_every=10)
        calm = self.train(job, "--peers", "1")
        p = self.survive(job, calm, MIXED, [1], 7, 0, signal.SIGSTOP)
        self.assertIn("no sign of life", next(e["why"] for e in p.events if e.get("state") == "dead"))

    def remote(self, job, n, *more):
        """A coordinator and peers that nobody watches."""
        coordinator = self.start("coordinator", job, "--run", self.run_dir(), "--listen", "127.0.0.1", "--port", "0",
                                 "--peers", str(n), "--plan", self.write("plan", "units 0-4: 0 1\n"), *more)
        invite = coordinator.wait_named("invite")["invite"]
        return coordinator, [self.start("peer", invite, "--key", self.path(f"key-{i}"), "--threads", "1")
                             for i in range(n)]

    def test_who_wakes_up_too_late_is_told_and_disturbs_nobody(self):
        job = self.job(steps=3000, microbatches=16, checkpoint_every=1000)
        coordinator, peers = self.remote(job, 2)
        coordinator.wait_event(lambda e: e["event"] == "step" and e["step"] == 5)
        os.kill(peers[1].pid, signal.SIGSTOP)
        self.assertIsNotNone(coordinator.wait_named("released", 30), coordinator.describe())
        os.kill(peers[1].pid, signal.SIGCONT)
        self.assertEqual(peers[1].finish(20), 5, peers[1].describe())
        self.assertIn("took this peer for dead; start it again", peers[1].err)
        step = coordinator.event("step")["step"]
        self.assertIsNotNone(coordinator.wait_event(lambda e: e["event"] == "step" and e["step"] > step + 3))
        self.assertIsNone(peers[0].popen.poll(), peers[0].describe())
        self.assertEqual([e["state"] for e in coordinator.events if e["event"] == "peer"], ["joined", "joined", "dead"])

    def test_a_short_freeze_costs_time_only(self):
        job = self.job(steps=60)
        calm = self.train(job, "--peers", "1")
        coordinator, peers = self.remote(job, 2)
        coordinator.wait_event(lambda e: e["event"] == "step" and e["step"] == 5)
        os.kill(peers[1].pid, signal.SIGSTOP)
        shoal.wait_moment(coordinator, 0.7)
        os.kill(peers[1].pid, signal.SIGCONT)
        self.assertEqual(coordinator.finish(), 0, coordinator.describe())
        self.assertEqual([p.finish(20) for p in peers], [0, 0], coordinator.describe())
        self.assertIsNone(coordinator.event("released"), coordinator.describe())
        self.assertEqual(coordinator.event("done")["hash"], calm.hash)

    def test_a_killed_peer_elsewhere_is_noticed_by_its_links(self):
        job = self.job(steps=3000, microbatches=16, checkpoint_every=1000)
        coordinator, peers = self.remote(job, 2, "--dead-after", "20")
        coordinator.wait_event(lambda e: e["event"] == "step" and e["step"] == 5)
        killed_at = time.monotonic()
        peers[0].popen.kill()
        self.assertIsNotNone(coordinator.wait_named("released", 30), coordinator.describe())
        self.assertLess(time.monotonic() - killed_at, 9, coordinator.describe())  # 2 s, and not the 10 of one link
        self.assertIn("broke", next(e["why"] for e in coordinator.events if e.get("state") == "dead"))


class Coordinator(shoal.Case):
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
        peer = self.start("peer", invite, "--key", self.path("key"), "--threads", "1", "--wait", "5")
        coordinator.wait_event(lambda e: e["event"] == "step" and e["step"] == 2)
        coordinator.popen.kill()
        self.assertEqual(peer.finish(30), 7, peer.describe())
        self.assertIn("coordinator", peer.err)


class Slow(Kill):
    """More of the same, and every peer of every plan at every phase of a step that takes long enough to have phases."""

    PHASES = (0, 0.3, 0.6, 0.95)  # of a step; 0 is also right after the commit, when a checkpoint is begun
    PLANS = (PIPELINE, DATA_PARALLEL, MIXED, SHADOW, HALF_SHADOWED)

    def test_every_peer_of_every_plan_at_every_phase(self):
        job = self.job(steps=16, microbatches=96, checkpoint_every=4, name="long")
        calm = self.train(job, "--peers", "1")
        for plan in self.PLANS:
            p = self.start_train(job, plan)
            _, seconds = self.wait_step(p, 8)
            self.assertEqual(p.finish(), 0, p.describe())
            for victim in range(n_peers_of(plan)):
                for i, phase in enumerate(self.PHASES):
                    sig = signal.SIGSTOP if (victim, i) == (1, 2) else signal.SIGKILL
                    with self.subTest(plan=plan, victim=victim, phase=phase, sig=sig):
                        self.survive(job, calm, plan, [victim], 4 + i % 2, phase * seconds, sig)

    def test_random_moments(self):
        for seed in range(100, 104):
            for plan in self.PLANS:
                self.at_random(seed, plan)
            for plan in (DATA_PARALLEL, MIXED, PIPELINE):
                self.at_random(seed, plan, 2)

    def test_every_pair(self):
        job = self.job(steps=16, microbatches=32, checkpoint_every=4, name="pairs")
        calm = self.train(job, "--peers", "1")
        for plan in self.PLANS:
            for victims in ([0, 1], [0, 2], [1, 2]):
                if n_peers_of(plan) == 3:
                    with self.subTest(plan=plan, victims=victims):
                        self.survive(job, calm, plan, victims, 5, 0.01)


def load_tests(loader, _tests, _pattern):
    if SLOW:
        return unittest.TestSuite(Slow(name) for name in vars(Slow) if name.startswith("test"))
    return unittest.TestSuite(loader.loadTestsFromTestCase(case) for case in (Kill, Freeze, Coordinator))


if __name__ == "__main__":
    SLOW = "--slow" in sys.argv
    if SLOW:
        sys.argv.remove("--slow")
    shoal.main()
