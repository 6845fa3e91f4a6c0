#!/usr/bin/env python3
"""The command line as a whole: help, mistakes, exit codes, JSON lines."""

import json
import os
import re
import socket
import subprocess

import shoal

COMMANDS = ["train", "coordinator", "peer", "status", "generate", "devices", "keygen", "version", "help"]


class CommandLine(shoal.Case):
    def shoal(self, *args, stdin=b""):
        return subprocess.run([shoal.SHOAL, *args], cwd=self.dir, input=stdin, capture_output=True, check=False,
                              timeout=60 * shoal.SLOWNESS, env={**shoal.ENV, "HOME": self.dir})

    def assert_refused(self, code, words, *args, stdin=b""):
        r = self.shoal(*args, stdin=stdin)
        err = r.stderr.decode()
        self.assertEqual(r.returncode, code, err)
        self.assertIn(words, err)
        self.assertEqual(r.stdout, b"")

    def test_every_command_has_help(self):
        listed = self.shoal("help")
        self.assertEqual(listed.returncode, 0)
        for command in COMMANDS:
            self.assertRegex(listed.stdout.decode(), rf"(?m)^  {command} ")
            r = self.shoal(command, "--help")
            text = r.stdout.decode()
            self.assertEqual((r.returncode, r.stderr), (0, b""))
            self.assertTrue(text.startswith(f"usage: shoal {command}"))
            self.assertIn("Example:", text)
            self.assertLessEqual(max(map(len, text.split("\n"))), 80)
            self.assertEqual(self.shoal("help", command).stdout.decode(), text)

    def test_help_documents_what_docs_do(self):
        with open(os.path.join(shoal.ROOT, "docs", "cli.md"), encoding="utf-8") as f:
            documented = f.read()
        for command in COMMANDS:
            for option in re.findall(r"(?m)^  (--[a-z-]+)", self.shoal(command, "--help").stdout.decode()):
                if not re.search(rf"`({command} )?{option}[ `]", documented):
                    self.fail(f"{command} {option} is not in docs/cli.md")
        for code, meaning in re.findall(r"(?m)^ +(\d+)  (.*)$", self.shoal("help", "exit-codes").stdout.decode()):
            self.assertRegex(documented, rf"(?m)^\| {code} \| {re.escape(meaning)} \|$")

    def test_wrong_words_and_options(self):
        self.assertEqual(self.shoal().returncode, 2)
        self.assert_refused(2, 'did you mean "train"?', "trian")
        self.assert_refused(2, "shoal help lists them", "frobnicate")
        self.assert_refused(2, "JOB.yaml is missing", "train")
        self.assert_refused(2, "did you mean --peers?", "train", "--peer", "3", "x.yaml")
        self.assert_refused(2, "unknown option --gpu", "train", "--gpu=3")
        self.assert_refused(2, "--peers needs a value", "train", "x.yaml", "--peers")
        self.assert_refused(2, "not a whole number", "train", "x.yaml", "--peers", "two")
        self.assert_refused(2, "must lie between", "train", "x.yaml", "--peers", "0")
        self.assert_refused(2, "one word too many", "train", "x.yaml", "y.yaml")
        self.assert_refused(2, "must be error, warn, info or debug", "devices", "--log-level", "loud")
        self.assert_refused(2, "is not a size", "peer", "shoal1", "--memory", "much")

    def test_wrong_lists(self):
        job = self.job()
        self.assert_refused(2, "3 values for 2 peers", "train", job, "--peers", "2", "--speeds", "1,0.5,0.25")
        self.assert_refused(2, "--speeds 0", "train", job, "--speeds", "1,0")
        self.assert_refused(2, "--threads", "train", job, "--threads", "1,none")
        self.assert_refused(2, "--memory", "train", job, "--memory", "1GiB,", "--peers", "2")
        self.assert_refused(2, "--emulate", "train", job, "--emulate", "rate=fast")
        self.assert_refused(2, "--device", "train", job, "--device", "gpu:7")
        self.assert_refused(2, "take one", "train", job, "--resume", "--overwrite")
        self.assertFalse(os.path.exists(self.path("runs")), "a mistake leaves no folder")

    def test_wrong_jobs(self):
        self.assert_refused(3, "there is no job file", "train", "nowhere.yaml")
        self.assert_refused(3, "layerz", "train", self.write("bad.yaml", shoal.JOB.format(
            name="bad", data="x", steps=4, microbatches=2, checkpoint_every=0).replace("layers", "layerz")))
        self.assert_refused(3, "nothing.txt", "train", self.job(data="nothing.txt", name="nodata"))
        self.assert_refused(3, "--steps 13", "train", self.job(steps=12), "--steps", "13")
        self.assert_refused(3, "--plan", "train", self.job(), "--plan", "noplan.txt")
        self.assert_refused(3, "begins at unit 3", "train", self.job(), "--plan",
                            self.write("plan", "units 0-1: 0\nunits 3-4: 0\n"))

    def test_data_without_permission_is_named(self):
        data = self.write("secret.txt", "x" * 10000)
        os.chmod(data, 0)
        if os.access(data, os.R_OK):
            self.skipTest("everything may be read here")
        self.assert_refused(3, "data.paths", "train", self.job(data=data, name="noread"))

    def test_what_does_not_fit_is_said_with_numbers_and_no_false_advice(self):
        job = self.job()
        p = self.start("train", job, "--run", self.run_dir(), "--peers", "2", "--memory", "64KiB")
        self.assertEqual(p.finish(), 8, p.describe())
        self.assertIn("does not fit", p.event("stopped")["why"])
        self.assertNotIn("--resume", p.event("stopped")["why"])
        plan = self.write("one-each.plan", "units 0-3: 0\nunits 4-4: 1\nin-flight 2\n")
        p = self.start("train", job, "--run", self.run_dir(), "--plan", plan, "--memory", "64KiB,1GiB")
        self.assertEqual(p.finish(), 8, p.describe())
        self.assertIn("peer 0 ", p.event("stopped")["why"])

    def test_wrong_invites(self):
        self.assert_refused(2, "neither an invite", "peer", "hello")
        self.assert_refused(2, "cut short", "peer", "shoal1abc")
        self.assert_refused(2, "invite is empty", "peer", "-")
        self.assert_refused(2, "this is no invite", "peer", "-", stdin=b"hello\n")
        self.assert_refused(2, self.path("file"), "status", self.write("file", "hello\n"))
        self.assert_refused(3, "no run goes on", "status", self.dir)
        good = shoal.Invite(bytes(32), bytes(8), bytes(16), [("127.0.0.1", 1)])
        self.assert_refused(6, "install the newer Shoal", "peer", good.encode(version=2))
        mistyped = good.encode()
        mistyped = mistyped[:20] + ("0" if mistyped[20] != "0" else "1") + mistyped[21:]
        self.assert_refused(2, "mistyped", "peer", mistyped)

    def test_a_taken_port_is_named(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            s.listen()
            port = s.getsockname()[1]
            self.assert_refused(3, f"--port {port} takes the ports {port} to {port + 2}, --port 0", "coordinator",
                                self.job(), "--listen", "127.0.0.1", "--port", str(port))
            # The third of three ports is the taken one.
            self.assert_refused(3, f"--port {port - 2} takes", "coordinator", self.job(), "--run", self.run_dir(),
                                "--listen", "127.0.0.1", "--port", str(port - 2))

    def test_identity(self):
        made = json.loads(self.shoal("keygen", "--json").stdout)
        self.assertTrue(made["made"])
        self.assertEqual(made["path"], self.path(".config/shoal/key"))
        self.assertEqual(os.stat(made["path"]).st_mode & 0o777, 0o600)
        again = json.loads(self.shoal("keygen", "--json").stdout)
        self.assertEqual((again["key"], again["made"]), (made["key"], False))
        forced = json.loads(self.shoal("keygen", "--json", "--force").stdout)
        self.assertNotEqual(forced["key"], made["key"])
        elsewhere = json.loads(self.shoal("keygen", "--json", "--state", self.path("state")).stdout)
        self.assertEqual(elsewhere["path"], self.path("state/key"))
        os.chmod(made["path"], 0o644)
        self.assert_refused(3, made["path"], "keygen")
        self.assert_refused(3, "--state DIR", "keygen", "--state", self.write("no-folder", "") + "/in")

    def test_devices(self):
        devices = [json.loads(line) for line in self.shoal("devices", "--json").stdout.splitlines()]
        self.assertIn("cpu:0", [d["device"] for d in devices])
        for d in devices:
            self.assertRegex(d["fingerprint"], r"^[0-9a-f]{16}$")
            self.assertGreater(d["memory_bytes"], 0)
        two = [json.loads(line) for line in self.shoal("devices", "--json", "--threads", "2").stdout.splitlines()]
        self.assertEqual([d["fingerprint"] for d in two], [d["fingerprint"] for d in devices])
        self.assertIn(devices[0]["fingerprint"], self.shoal("devices").stdout.decode())

    def test_json_errors(self):
        r = self.shoal("train", "nowhere.yaml", "--json")
        self.assertEqual(r.returncode, 3)
        event = json.loads(r.stdout)
        self.assertEqual((event["event"], event["exit_code"]), ("error", 3))
        self.assertIn("nowhere.yaml", event["text"])

    def test_version(self):
        self.assertRegex(self.shoal("--version").stdout.decode(), r"^shoal \d+\.\d+\.\d+ \(protocol \d+\)\n$")
        self.assertEqual(set(json.loads(self.shoal("version", "--json").stdout)), {"version", "protocol"})

    def test_a_run_from_first_to_last(self):
        """What people see, what programs see, and what can be done with the result."""
        job, run = self.job(steps=6, checkpoint_every=3), self.run_dir()
        result = self.train(job, "--peers", "2", run=run)
        events = result.process.events
        self.assertEqual(events[0]["event"], "invite")
        self.assertEqual([e["step"] for e in events if e["event"] == "step"], [1, 2, 3, 4, 5, 6])
        for name, fields in {
                "plan": {"epoch", "peers", "predicted_seconds", "plan"},
                "step": {"step", "loss", "tokens_per_s", "seconds", "epoch", "peers", "norm", "skipped"},
                "peer": {"id", "state", "name", "why"},
                "eval": {"step", "loss"},
                "checkpoint": {"step", "path"},
                "done": {"steps", "loss", "hash", "eval_loss", "unigram_loss", "checkpoint"}}.items():
            found = [e for e in events if e["event"] == name]
            self.assertTrue(found, name)
            for e in found:
                self.assertLessEqual(fields, set(e), name)
        self.assertEqual(len({e["id"] for e in events if e["event"] == "peer" and e["state"] == "joined"}), 2)
        self.assertFalse(os.path.exists(os.path.join(run, "invite")), "an ended run leaves no invite")
        with open(os.path.join(run, "peer-0.log"), encoding="utf-8") as f:
            said = f.read().splitlines()
        self.assertEqual(said[:2] + said[3:], ["joined job tiny; measuring this device",
                                               "measured; waiting for the plan", "the job is done"])
        self.assertRegex(said[2], r"^work begins on units \d")
        self.assertTrue(os.path.isdir(result.done["checkpoint"]) or
                        os.path.isdir(self.path(result.done["checkpoint"])))

        text = json.loads(self.shoal("generate", run, "--prompt", "The ", "--tokens", "20", "--json").stdout)
        self.assertEqual((text["prompt"], text["step"]), ("The ", 6))
        again = json.loads(self.shoal("generate", result.done["checkpoint"], "--prompt", "The ", "--tokens", "20",
                                      "--json", "--threads", "1").stdout)
        self.assertEqual(again["text"], text["text"])
        people = self.shoal("generate", run, "--prompt", "The ", "--tokens", "20")
        self.assertTrue(people.stdout.startswith(b"The "))
        self.assert_refused(3, "there is no", "generate", "nowhere")
        self.assert_refused(3, "no checkpoint", "generate", self.dir)

    def test_plain_lines_for_people(self):
        r = self.shoal("train", self.job(steps=3), "--peers", "2", "--run", self.run_dir())
        out = r.stdout.decode()
        self.assertEqual(r.returncode, 0, r.stderr.decode())
        self.assertRegex(out, r"(?m)^step 3/3  loss \d+\.\d{4}  \d+.* tok/s  .*2 peers")
        self.assertTrue(out.startswith("run folder: "), out)
        self.assertRegex(out, r"(?m)^done: 3 steps, loss \d")
        self.assertRegex(out, r"(?m)^model hash [0-9a-f]{64}$")
        self.assertNotIn("\r", out)
        self.assertNotIn("shoal1", out)

    def test_a_reader_that_goes_away_stops_the_run_with_a_checkpoint(self):
        run = self.run_dir()
        p = self.start("train", self.job(steps=100000, checkpoint_every=0), "--run", run, "--peers", "1")
        p.wait_event(lambda e: e["event"] == "step" and e["step"] == 2)
        p.popen.stdout.close()
        self.assertEqual(p.popen.wait(60 * shoal.SLOWNESS), 130)
        self.assertTrue([n for n in os.listdir(os.path.join(run, "checkpoints"))])

    def test_status_of_a_run(self):
        run = self.run_dir()
        p = self.start("train", self.job(steps=100000), "--run", run, "--peers", "2")
        p.wait_event(lambda e: e["event"] == "step" and e["step"] == 2)
        self.assertEqual(os.stat(os.path.join(run, "invite")).st_mode & 0o777, 0o600)
        status = json.loads(self.shoal("status", run, "--json").stdout)
        self.assertEqual((status["job"], len(status["peers"])), ("tiny", 2))
        self.assertGreaterEqual(status["step"], 1)
        table = self.shoal("status", p.event("invite")["invite"]).stdout.decode()
        self.assertIn("job tiny  step ", table)
        for peer in status["peers"]:
            self.assertIn(peer["id"][:8], table)


if __name__ == "__main__":
    shoal.main()
