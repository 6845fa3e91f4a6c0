#!/usr/bin/env python3
"""The answer does not depend on the fleet: one job, many fleets and plans, one model hash, the same loss and norm at
every step, bit for bit."""

import os
import shutil
import sys
import unittest

import shoal

PIPELINE = "units 0-1: 0\nunits 2-3: 1\nunits 4-4: 2\nin-flight 3\n"
DATA_PARALLEL = "units 0-4: 0 1 2\n"
MIXED = "units 0-1: 0 1*3\nunits 2-4: 2 1\nin-flight 4\n"
UNIT_PER_PEER = "units 0-0: 0\nunits 1-1: 1\nunits 2-2: 2\nunits 3-3: 3\nunits 4-4: 4\nin-flight 5\n"


class Exactness(shoal.Case):
    def check(self, variants, job, env=None):
        """Runs each (name, arguments) and compares it with the first one."""
        first = None
        for name, args in variants:
            with self.subTest(name):
                result = self.train(job, *args, env=env)
                if first is None:
                    first = result
                self.assertEqual(result.steps, first.steps)
                self.assertEqual(result.hash, first.hash)
                self.assertEqual(result.done["eval_loss"], first.done["eval_loss"])
        return first

    def plan(self, name, text):
        return self.write(name, text)

    def test_any_number_of_peers(self):
        first = self.check([(f"{n} peers", ["--peers", str(n)]) for n in (1, 2, 3, 5)], self.job())
        self.assertEqual(len(first.steps), 12)
        self.assertTrue(all(loss > 0 for _, loss, _ in first.steps))

    def test_any_speeds_and_threads(self):
        self.check([("one peer", ["--peers", "1"]),
                    ("two threads", ["--peers", "1", "--threads", "2"]),
                    ("unequal speeds", ["--speeds", "1,0.5,0.25"]),
                    ("unequal threads", ["--peers", "3", "--threads", "1,2,3"])], self.job())

    def test_any_plan(self):
        self.check([("one peer", ["--peers", "1"]),
                    ("pipeline", ["--peers", "3", "--plan", self.plan("pipeline", PIPELINE)]),
                    ("data parallel", ["--peers", "3", "--plan", self.plan("data", DATA_PARALLEL)]),
                    ("mixed", ["--peers", "3", "--plan", self.plan("mixed", MIXED)]),
                    ("one unit per peer", ["--peers", "5", "--plan", self.plan("units", UNIT_PER_PEER)])], self.job())

    def test_another_numerics_class_agrees_with_itself(self):
        self.check([("one peer", ["--peers", "1"]),
                    ("three peers", ["--peers", "3"]),
                    ("mixed", ["--peers", "3", "--plan", self.plan("mixed", MIXED)])], self.job(),
                   env={"OPENBLAS_CORETYPE": "Haswell"})

    def test_another_seed_is_another_model(self):
        job = self.job()
        self.assertNotEqual(self.train(job, "--peers", "1").hash, self.train(job, "--peers", "1", "--seed", "6").hash)


class Slow(Exactness):
    """The job of the front page, its first 20 steps."""

    def test_any_number_of_peers(self):
        if not os.path.isdir("/usr/share/games/fortunes"):
            self.skipTest("needs the package fortunes")
        job = shutil.copy(os.path.join(shoal.ROOT, "examples", "gpt-nano.yaml"), self.path("gpt-nano.yaml"))
        self.check([(f"{n} peers", ["--peers", str(n), "--steps", "20"]) for n in (1, 2, 3, 5)] +
                   [("speeds", ["--speeds", "1,0.5,0.25", "--steps", "20"])], job)


def load_tests(loader, _tests, _pattern):
    """`--slow` as the last argument runs the long test and nothing else."""
    if SLOW:
        return unittest.TestSuite([Slow("test_any_number_of_peers")])
    return loader.loadTestsFromTestCase(Exactness)


if __name__ == "__main__":
    SLOW = "--slow" in sys.argv
    if SLOW:
        sys.argv.remove("--slow")
    shoal.main()
