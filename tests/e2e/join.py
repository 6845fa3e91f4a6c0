#!/usr/bin/env python3
"""Peers that come into a running job, die and come back: they get the state and a share while the others go on, and the
model ends in the hash of the undisturbed run."""

import os
import signal

import shoal

STEPS = 150         # some ten seconds: a peer measures its device for one, then joins within another
MICROBATCHES = 128  # so many that peers pay who hold the whole model each


class Join(shoal.Case):
    def coordinate(self, job, *args):
        c = self.start("coordinator", job, "--run", self.run_dir(), "--listen", "127.0.0.1", "--port", "0", *args)
        return c, c.wait_named("invite")["invite"]

    def peer(self, invite, name):
        return self.start("peer", invite, "--key", self.path(name), "--threads", "1", json_events=False)

    def wait_plan(self, c, peers, after):
        """A plan with so many peers, of whom none is joining any more, newer than event number `after`."""
        found = c.wait_event(lambda e: e["event"] == "plan" and e["peers"] == peers and "joining" not in e["plan"]
                             and c.events.index(e) >= after)
        self.assertIsNotNone(found, c.describe())
        return found

    def check_steps(self, c):
        """Every step once, in order."""
        self.assertEqual([e["step"] for e in c.events if e["event"] == "step"], list(range(1, STEPS + 1)))

    def test_a_peer_joins_dies_and_comes_back(self):
        job = self.job(steps=STEPS, checkpoint_every=100, microbatches=MICROBATCHES)
        calm = self.train(job, "--peers", "1")
        c, invite = self.coordinate(job, "--peers", "1")
        first = self.peer(invite, "key-a")
        c.wait_event(lambda e: e["event"] == "step" and e["step"] == 5)
        second = self.peer(invite, "key-b")
        plan = self.wait_plan(c, 2, 0)
        self.assertIn("units 0-4", plan["plan"], c.describe())  # both hold it all: one may die
        self.assertNotIn("shadow", plan["plan"], c.describe())
        seen = len(c.events)
        c.wait_event(lambda e: e["event"] == "step" and c.events.index(e) >= seen + 5)
        os.kill(second.pid, signal.SIGKILL)
        again = self.peer(invite, "key-b")
        self.wait_plan(c, 2, seen)
        self.assertEqual(c.finish(), 0, c.describe())
        self.assertEqual(first.finish(30), 0, first.describe())
        self.assertEqual(again.finish(30), 0, again.describe())
        self.check_steps(c)
        self.assertEqual(c.event("done")["hash"], calm.hash)


if __name__ == "__main__":
    shoal.main()
