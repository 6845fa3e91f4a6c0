#!/usr/bin/env python3
"""A run that stops and goes on is the run that never stopped."""

import os
import signal

import shoal


class Resume(shoal.Case):
    def test_ten_and_ten_steps_are_twenty(self):
        job = self.job(steps=20, checkpoint_every=0)
        straight = self.train(job, "--peers", "2")
        run = self.run_dir()
        first = self.train(job, "--peers", "2", "--steps", "10", run=run)
        second = self.train(job, "--peers", "2", "--resume", run=run)
        self.assertEqual(first.steps + second.steps, straight.steps)
        self.assertEqual(second.hash, straight.hash)
        self.assertNotEqual(first.hash, straight.hash)

    def test_another_fleet_may_go_on(self):
        job = self.job(steps=12)
        straight = self.train(job, "--peers", "1")
        run = self.run_dir()
        self.train(job, "--peers", "3", "--steps", "5", run=run)
        second = self.train(job, "--speeds", "1,0.5", "--resume", run=run)
        self.assertEqual(second.hash, straight.hash)

    def test_ctrl_c_writes_a_checkpoint_and_leaves_nobody(self):
        job = self.job(steps=1000, checkpoint_every=0)
        run = self.run_dir()
        p = self.start("train", job, "--run", run, "--peers", "2")
        p.wait_event(lambda e: e["event"] == "step" and e["step"] == 3)
        pids = shoal.peers_of(p.pid)
        self.assertEqual(len(pids), 2)
        os.kill(p.pid, signal.SIGINT)
        self.assertEqual(p.finish(20), 130, p.describe())
        self.assert_nobody_left(pids)
        stopped = p.event("stopped")
        self.assertIsNotNone(stopped, p.describe())
        self.assertIn("--resume", stopped["why"])
        step = p.event("checkpoint")["step"]
        self.assertGreaterEqual(step, 3)
        # What comes after is what would have come: the first step after the resume is the one after the checkpoint.
        second = self.train(job, "--peers", "2", "--resume", "--steps", str(step + 3), run=run)
        straight = self.train(job, "--peers", "1", "--steps", str(step + 3))
        self.assertEqual(second.steps, straight.steps[step:])
        self.assertEqual(second.hash, straight.hash)

    def test_a_second_signal_stops_at_once(self):
        p = self.start("train", self.job(steps=1000), "--run", self.run_dir(), "--peers", "2")
        p.wait_event(lambda e: e["event"] == "step" and e["step"] == 2)
        pids = shoal.peers_of(p.pid)
        os.kill(p.pid, signal.SIGTERM)
        os.kill(p.pid, signal.SIGTERM)
        self.assertIn(p.finish(20), (130, -signal.SIGTERM), p.describe())
        self.assert_nobody_left(pids)

    def test_checkpoints_are_not_overwritten_by_mistake(self):
        job, run = self.job(steps=4), self.run_dir()
        first = self.train(job, "--peers", "1", run=run)
        p = self.start("train", job, "--run", run, "--peers", "1")
        self.assertEqual(p.finish(), 3, p.describe())
        for option in ("--resume", "--overwrite", "--run"):
            self.assertIn(option, p.err)
        again = self.train(job, "--peers", "1", "--overwrite", run=run)
        self.assertEqual(again.steps, first.steps)

    def test_resume_of_nothing_begins_and_says_so(self):
        job = self.job(steps=4)
        result = self.train(job, "--peers", "1", "--resume")
        self.assertEqual(len(result.steps), 4)
        self.assertTrue(any(e["event"] == "warning" and "step 0" in e["text"] for e in result.process.events),
                        result.process.describe())

    def said(self, result, kind):
        return [e["text"] for e in result.process.events if e["event"] == kind]

    def test_where_it_goes_on_and_what_changed_is_said(self):
        run = self.run_dir()
        first = self.train(self.job(steps=8, checkpoint_every=2), "--peers", "1", "--steps", "4", run=run)
        with open(os.path.join(self.dir, first.done["checkpoint"], "state.json"), "w", encoding="utf-8") as f:
            f.write("{")
        second = self.train(self.job(steps=9, checkpoint_every=3), "--peers", "1", "--resume", run=run)
        self.assertTrue([t for t in self.said(second, "waiting") if "resuming at step 2 from " in t and "00000002" in t])
        warnings = self.said(second, "warning")
        self.assertTrue([t for t in warnings if "damaged" in t and "00000004" in t], warnings)
        self.assertTrue([t for t in warnings if ": train.steps;" in t], warnings)
        self.assertEqual(second.steps[0][0], 3)

    def test_a_finished_run_says_so_and_claims_no_loss(self):
        job, run = self.job(steps=6), self.run_dir()
        first = self.train(job, "--peers", "1", run=run)
        again = self.train(job, "--peers", "1", "--steps", "4", "--resume", run=run)
        self.assertTrue([t for t in self.said(again, "waiting") if "already at step 6" in t])
        self.assertEqual((again.steps, again.hash, again.done["eval_loss"]), ([], first.hash, None))

    def test_changed_data_is_noticed(self):
        text = self.write("data.txt", "the quick brown fox jumps over the lazy dog. " * 400)
        job, run = self.job(steps=8, data=text), self.run_dir()
        self.train(job, "--peers", "1", "--steps", "4", run=run)
        with open(text, "a", encoding="utf-8") as f:
            f.write("and more of it")
        p = self.start("train", job, "--run", run, "--peers", "1", "--resume")
        p.finish()
        noticed = p.err + "".join(e.get("text", "") for e in p.events if e["event"] in ("warning", "error"))
        self.assertIn("text changed", noticed, p.describe())

    def test_a_damaged_checkpoint_is_named(self):
        job, run = self.job(steps=8), self.run_dir()
        result = self.train(job, "--peers", "1", "--steps", "4", run=run)
        path = os.path.join(self.dir, result.done["checkpoint"])
        with open(os.path.join(path, "optimizer.safetensors"), "r+b") as f:
            f.truncate(1000)
        p = self.start("train", job, "--run", run, "--peers", "1", "--resume")
        self.assertEqual(p.finish(), 3, p.describe())
        self.assertIn("none that is whole", p.err)


if __name__ == "__main__":
    shoal.main()
