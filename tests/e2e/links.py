#!/usr/bin/env python3
"""Strangers, mistakes and noise at the coordinator's door: each gets a sentence and a code, and the run inside goes on
as if nothing had been."""

import dataclasses
import random
import socket
import threading

import shoal


class Server:
    """A program that is not Shoal, on a port of its own: says `greeting` to everyone and nothing more."""

    def __init__(self, greeting):
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.greeting = greeting
        self.connections = []
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                connection, _ = self.socket.accept()
                self.connections.append(connection)
                connection.sendall(self.greeting)
            except OSError:
                return

    def close(self):
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        for c in self.connections:
            c.close()


class Links(shoal.Case):
    def coordinator(self, job, *args):
        p = self.start("coordinator", job, "--run", self.run_dir(), "--listen", "127.0.0.1", "--port", "0", *args)
        return p, p.wait_named("invite")["invite"]

    def peer(self, invite, name="key", *args):
        return self.start("peer", invite, "--key", self.path(name), "--threads", "1", *args)

    def assert_refused(self, invite, code, words):
        p = self.peer(invite, "stranger")
        self.assertEqual(p.finish(40), code, p.describe())
        self.assertIn(words, p.err, p.describe())

    def test_each_mistake_has_its_sentence(self):
        coordinator, text = self.coordinator(self.job(), "--peers", "2")
        invite = shoal.Invite.decode(text)
        self.assertEqual(invite.encode(), text)
        other_key = self.other_key()
        closed = socket.create_server(("127.0.0.1", 0))
        nobody = closed.getsockname()[1]
        closed.close()
        web = Server(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n" + b"x" * 64)
        mute = Server(b"")
        self.addCleanup(web.close)
        self.addCleanup(mute.close)
        changed = dataclasses.replace
        cases = [
            ("another coordinator's key", changed(invite, key=other_key), 5, "key"),
            ("another job", changed(invite, job_id=b"\1" * 8), 5, ""),
            ("a capability that is not the invite's", changed(invite, capability=b"\2" * 16), 5, ""),
            ("a port where nobody listens", changed(invite, addrs=[("127.0.0.1", nobody)]), 4, str(nobody)),
            ("a port of another program", changed(invite, addrs=[("127.0.0.1", web.port)]), 4, str(web.port)),
            ("a port that says nothing", changed(invite, addrs=[("127.0.0.1", mute.port)]), 4, str(mute.port)),
            ("a host that does not exist", changed(invite, addrs=[("no-such-host.invalid", 7001)]), 4, "no-such-host"),
        ]
        for command in ("peer", "status"):
            started = [self.peer(bad.encode(), f"stranger-{i}") if command == "peer" else self.start("status", bad.encode())
                       for i, (_, bad, _, _) in enumerate(cases)]
            for p, (name, _, code, words) in zip(started, cases):  # they wait side by side
                with self.subTest(name, command=command):
                    self.assertEqual(p.finish(40), code, p.describe())
                    self.assertIn(words, p.err, p.describe())
        # A right address among wrong ones is found.
        good = changed(invite, addrs=[("127.0.0.1", nobody), ("127.0.0.1", mute.port)] + invite.addrs)
        p = self.start("status", good.encode())
        self.assertEqual(p.finish(40), 0, p.describe())
        self.assertEqual(p.events[0]["peers"], [])
        self.assertIsNone(coordinator.popen.poll(), "the coordinator is still there")

    def other_key(self):
        p = self.start("keygen", "--key", self.path("other"))
        p.finish()
        return bytes.fromhex(p.events[0]["key"])

    def test_a_run_is_not_disturbed_by_noise(self):
        job = self.job(steps=30)
        calm = self.train(job, "--peers", "1")
        coordinator, text = self.coordinator(job, "--peers", "2")
        invite = shoal.Invite.decode(text)
        first = self.peer(text, "first")
        coordinator.wait_event(lambda e: e["event"] == "peer" and e["state"] == "joined")
        stop = threading.Event()
        noise = threading.Thread(target=make_noise, args=(invite.addrs[0][1], stop))
        noise.start()
        self.addCleanup(noise.join)
        self.addCleanup(stop.set)
        second = self.peer(text, "second")
        coordinator.wait_named("step")
        self.assert_refused(dataclasses.replace(invite, capability=b"\2" * 16).encode(), 5, "")
        self.assert_refused(dataclasses.replace(invite, key=self.other_key()).encode(), 5, "key")
        self.assertEqual(coordinator.finish(), 0, coordinator.describe())
        self.assertEqual(first.finish(20), 0, first.describe())
        self.assertEqual(second.finish(20), 0, second.describe())
        self.assertEqual(coordinator.event("done")["hash"], calm.hash)
        dead = [e for e in coordinator.events if e["event"] == "peer" and e["state"] == "dead"]
        self.assertEqual(dead, [])

    def test_the_same_key_twice_is_told(self):
        coordinator, text = self.coordinator(self.job(steps=2000), "--peers", "2")
        first = self.peer(text, "same")
        coordinator.wait_event(lambda e: e["event"] == "peer" and e["state"] == "joined")
        second = self.peer(text, "same")
        self.assertEqual(first.finish(30), 5, first.describe())  # the newest incarnation wins
        self.assertIn("--key FILE", first.err)
        third = self.peer(text, "another")
        coordinator.wait_event(lambda e: e["event"] == "step" and e["step"] == 3)
        self.assertIsNone(second.popen.poll())
        self.assertIsNone(third.popen.poll())
        self.assertIsNone(coordinator.popen.poll())

    def test_a_slow_link_changes_nothing(self):
        job = self.job(steps=3, microbatches=2)
        calm = self.train(job, "--peers", "1")
        slow = self.train(job, "--peers", "2", "--emulate", "rate=50mbit,delay=10ms")
        self.assertEqual(slow.hash, calm.hash)


def make_noise(port, stop):
    """Random bytes, half greetings, connections that say nothing: on the lobby and the two ports after it."""
    rng = random.Random(7)
    open_ones = []
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00CURVE" + bytes(15) + b"\x00" + bytes(31)
    while not stop.is_set():
        try:
            s = socket.create_connection(("127.0.0.1", port + rng.randrange(3)), timeout=1)
            s.settimeout(0.2)
            what = rng.randrange(4)
            if what == 0:
                s.sendall(rng.randbytes(rng.randrange(1, 5000)))
            elif what == 1:
                s.sendall(greeting[:rng.randrange(1, 64)])
            elif what == 2:
                s.sendall(greeting + rng.randbytes(rng.randrange(1, 500)))
            open_ones.append(s)
            if len(open_ones) > 20:
                open_ones.pop(0).close()
        except OSError:
            pass
        stop.wait(0.02)
    for s in open_ones:
        s.close()


if __name__ == "__main__":
    shoal.main()
