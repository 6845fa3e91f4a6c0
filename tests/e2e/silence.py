#!/usr/bin/env python3
"""A coordinator that stands still: for a moment it costs nothing; for good, its peers end and say so."""

import os
import re
import resource
import signal
import time

import shoal


class Silence(shoal.Case):
    def pair(self, steps):
        coordinator = self.start("coordinator", self.job(steps=steps), "--run", self.run_dir(), "--listen", "127.0.0.1",
                                 "--port", "0", "--peers", "1")
        peer = self.start("peer", coordinator.wait_named("invite")["invite"], "--key", self.path("key"), "--threads",
                          "1")
        coordinator.wait_event(lambda e: e["event"] == "step" and e["step"] == 2)
        return coordinator, peer

    def test_a_pause_costs_nobody(self):
        coordinator, peer = self.pair(steps=60)
        os.kill(coordinator.pid, signal.SIGSTOP)
        shoal.wait_moment(peer, 3)
        os.kill(coordinator.pid, signal.SIGCONT)
        self.assertEqual(coordinator.finish(), 0, coordinator.describe())
        self.assertEqual(peer.finish(10), 0, peer.describe())

    def test_silence_for_good_ends_a_peer(self):
        """Its connections stay up: the kernel of a stopped process acknowledges all that comes."""
        coordinator, peer = self.pair(steps=100000)
        stopped_at = time.monotonic()
        os.kill(coordinator.pid, signal.SIGSTOP)
        self.assertEqual(peer.finish(40), 7, peer.describe())
        self.assertGreater(peer.ended - stopped_at, 15, peer.describe())
        self.assertIn("the coordinator is gone", peer.err)

    def test_the_limit_on_descriptors_is_raised(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))
        try:
            p = self.start("coordinator", self.job(), "--run", self.run_dir(), "--listen", "127.0.0.1", "--port", "0")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        p.wait_named("invite")
        with open(f"/proc/{p.pid}/limits", encoding="ascii") as f:
            limits = re.search(r"(?m)^Max open files +(\d+) +(\d+)", f.read()).groups()
        self.assertEqual(limits, (str(hard), str(hard)))


if __name__ == "__main__":
    shoal.main()
