#!/usr/bin/env python3
"""Everything that the processes of a run send each other is recorded, and nothing of what they talk about can be found
in it: no training text, no tokens, no parameters, no job. Needs the right to listen on the loopback interface; skipped
without it."""

import os
import random
import socket
import struct
import sys
import threading

import shoal

ETH_P_ALL = 3
BUFFER = 64 << 20


def open_capture():
    s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    s.bind(("lo", 0))
    s.setsockopt(socket.SOL_SOCKET, 33, BUFFER)  # SO_RCVBUFFORCE
    s.settimeout(0.2)
    return s


def tcp_payload(frame):
    """(source port, destination port, payload) of a TCP/IPv4 frame on loopback, or None."""
    if frame[12:14] != b"\x08\x00" or frame[14 + 9] != socket.IPPROTO_TCP:
        return None
    ip_len = (frame[14] & 15) * 4
    total = struct.unpack("!H", frame[16:18])[0]
    tcp = 14 + ip_len
    source, to = struct.unpack("!HH", frame[tcp:tcp + 4])
    return source, to, frame[tcp + (frame[tcp + 12] >> 4) * 4:14 + total]


class Capture:
    """Records the TCP payloads on loopback, by direction of each connection, until stopped."""

    def __init__(self):
        self.socket = open_capture()
        self.streams, self.stopped = {}, threading.Event()
        self.thread = threading.Thread(target=self.listen)
        self.thread.start()

    def listen(self):
        while not self.stopped.is_set():
            try:
                frame, address = self.socket.recvfrom(1 << 17)
            except TimeoutError:
                continue
            if address[2] == socket.PACKET_OUTGOING:
                continue  # loopback shows each packet twice
            found = tcp_payload(frame)
            if found and found[2]:
                self.streams.setdefault(found[:2], []).append(found[2])

    def stop(self):
        """The streams, each as one string."""
        self.stopped.set()
        self.thread.join()
        received, dropped = struct.unpack("II", self.socket.getsockopt(263, 6, 8))  # PACKET_STATISTICS
        self.socket.close()
        return [b"".join(parts) for parts in self.streams.values()], received, dropped


def as_tokens(text):
    return b"".join(struct.pack("<i", byte) for byte in text)


class Secrecy(shoal.Case):
    def test_nothing_of_the_job_can_be_read_on_the_wire(self):
        rng = random.Random(3)
        words = ["".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randrange(3, 10))) for _ in range(300)]
        text = " ".join(rng.choice(words) for _ in range(4000))
        job = self.job(steps=4, data=self.write("secret.txt", text), name="very-secret-name")
        planted = b"planted: a capture that misses this is worth nothing " + as_tokens(text[:64].encode())
        capture = Capture()
        with socket.create_server(("127.0.0.1", 0)) as server:
            with socket.create_connection(server.getsockname()) as out, server.accept()[0] as back:
                out.sendall(planted)
                back.recv(len(planted), socket.MSG_WAITALL)
        try:
            result = self.train(job, "--peers", "3", "--plan",
                                self.write("plan", "units 0-1: 0 1\nunits 2-4: 2 1\nin-flight 4\n"))
        finally:
            streams, received, dropped = capture.stop()
        self.assertLess(dropped, received / 10, "the capture lost too much to tell")
        control, streams = [s for s in streams if planted in s], [s for s in streams if planted not in s]
        self.assertEqual(len(control), 1, "the capture sees what is sent in the clear")

        checkpoint = os.path.join(self.dir, result.done["checkpoint"])
        with open(os.path.join(checkpoint, "model.safetensors"), "rb") as f:
            tensors = f.read()
        header = 8 + struct.unpack("<Q", tensors[:8])[0]
        self.assertGreater(sum(map(len, streams)), len(tensors), "the state travelled at least once")

        secrets = [b"very-secret-name", b"microbatches", b"secret.txt"]
        secrets += [text[i:i + 16].encode() for i in range(0, len(text) - 16, 5)]
        secrets += [as_tokens(text[i:i + 6].encode()) for i in range(0, len(text) - 6, 5)]
        values = [tensors[i:i + 16] for i in range(header, len(tensors) - 16, 512)]
        secrets += [v for v in values if v != bytes(16) and len(set(v)) > 8]
        found = [s for s in secrets if any(s in stream for stream in streams)]
        self.assertEqual(found, [])
        self.assertGreater(len(secrets), 1500)


if __name__ == "__main__":
    try:
        open_capture().close()
    except (PermissionError, OSError, AttributeError) as e:
        print(f"skipped: cannot listen on the loopback interface: {e}")
        sys.exit(77)
    shoal.main()
