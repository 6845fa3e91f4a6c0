#!/usr/bin/env python3
"""Each rule of tidy.py catches a planted violation, at its line, and lets the right form pass."""

import os
import tempfile
import unittest

import tidy

OPENING = "/* What it is. */\n"


def header(path, body=""):
    guard = "SHOAL_" + path.upper().replace("/", "_").replace(".", "_").replace("-", "_")
    return f"{OPENING}#ifndef {guard}\n#define {guard}\n{body}\n#endif\n"


class TidyTest(unittest.TestCase):
    def found(self, files, exceptions=None):
        """The violations in a tree of these files, beside one header in each folder."""
        with tempfile.TemporaryDirectory() as root:
            tree = {f"{layer}/room.h": header(f"{layer}/room.h") for layer in tidy.LAYERS}
            tree["crypto/hash.h"] = header("crypto/hash.h")
            tree["runtime/base/clock.h"] = header("runtime/base/clock.h")
            tree.update(files)
            for path, text in tree.items():
                os.makedirs(os.path.join(root, os.path.dirname(path)), exist_ok=True)
                with open(os.path.join(root, path), "w", encoding="utf-8") as f:
                    f.write(text)
            return tidy.check(root, exceptions or {})

    def assert_caught(self, path, text, where, words, exceptions=None):
        found = self.found({path: text}, exceptions)
        self.assertEqual(len(found), 1, found)
        self.assertTrue(found[0].startswith(f"{path}:{where}: "), found)
        self.assertIn(words, found[0])

    def assert_clean(self, path, text):
        self.assertEqual(self.found({path: text}), [])

    def test_clean_tree_passes(self):
        self.assertEqual(self.found({}), [])

    def test_include_table(self):
        allowed = {
            "runtime/base": set(),
            "crypto": {"runtime/base"},
            "runtime/net": {"runtime/base"},
            "runtime/store": {"runtime/base"},
            "kernels": {"runtime/base"},
            "model": {"kernels", "runtime/base", "runtime/store", "crypto"},
            "parallel": {"model", "kernels", "runtime/base", "runtime/net", "runtime/store", "crypto"},
        }
        below_peers = {"parallel", "model", "kernels", "runtime/base", "runtime/net", "runtime/store", "crypto"}
        allowed["scheduler"] = allowed["peer"] = below_peers
        allowed["sim"] = below_peers | {"scheduler", "peer"}
        allowed["cli"] = allowed["sim"] | {"sim"}
        allowed["tests"] = allowed["tools"] = allowed["cli"] | {"cli"}
        self.assertEqual(set(allowed), set(tidy.LAYERS))
        others = list(tidy.LAYERS)
        text = OPENING + "".join(f'#include "{other}/room.h"\n' for other in others)
        for layer, seen in allowed.items():
            found = self.found({f"{layer}/file.c": text})
            want = [(2 + i, other) for i, other in enumerate(others) if other != layer and other not in seen]
            self.assertEqual(len(found), len(want), found)
            for sentence, (line, other) in zip(found, want):
                self.assertTrue(sentence.startswith(f"{layer}/file.c:{line}: {layer} may not include {other}/room.h"))

    def test_store_sees_hashes_but_no_other_crypto(self):
        self.assert_clean("runtime/store/file.c", OPENING + '#include "crypto/hash.h"\n')
        self.assert_caught("runtime/store/file.c", OPENING + '#include "crypto/room.h"\n', 2, "may not include")

    def test_includes_are_written_from_the_root(self):
        self.assert_caught("crypto/file.c", OPENING + '#include "hash.h"\n', 2, "path from the root")
        self.assert_caught("docs/file.c", OPENING + '#include "crypto/hash.h"\n', 2, "no folder of the include table")

    def test_third_party_headers_have_one_place(self):
        for name, right, wrong in [
                ("zmq.h", "runtime/net/zap.c", "peer/peer.c"),
                ("msgpack.h", "parallel/proto_read.c", "parallel/plan.c"),
                ("msgpack.h", "parallel/proto.c", "parallel/proto.h"),
                ("sodium.h", "crypto/key.c", "model/digest.c"),
                ("cblas.h", "kernels/cpu/gemm.c", "kernels/registry.c"),
                ("sqlite3.h", "runtime/store/ledger.c", "scheduler/coordinator.c"),
                ("cjson/cJSON.h", "runtime/store/json.c", "cli/main.c"),
                ("microhttpd.h", "scheduler/http.c", "scheduler/coordinator.c"),
                ("cyaml/cyaml.h", "model/job_yaml.c", "model/job.c"),
                ("cuda_runtime.h", "kernels/cuda/cuda.c", "kernels/cpu/cpu.c"),
                ("cublas_v2.h", "kernels/cuda/cuda.c", "kernels/opencl/opencl.c"),
                ("CL/cl.h", "kernels/opencl/opencl.c", "kernels/cuda/cuda.c"),
                ("clblast_c.h", "kernels/opencl/opencl.c", "kernels/gpu/map.c"),
                ("cmocka.h", "tests/unit/base/test_mem.c", "runtime/base/mem.c")]:
            text = f"{OPENING}#include <{name}>\n"
            if right.endswith(".c"):
                self.assert_clean(right, text)
            wrong_text = text if wrong.endswith(".c") else header(wrong, f"#include <{name}>")
            self.assert_caught(wrong, wrong_text, 2 if wrong.endswith(".c") else 4, f"<{name}> may appear in")

    def test_system_headers_pass_and_unknown_ones_need_a_place(self):
        self.assert_clean("cli/main.c", OPENING + "#include <stdio.h>\n#include <sys/stat.h>\n#include <netinet/in.h>\n")
        self.assert_caught("cli/main.c", OPENING + "#include <curl/curl.h>\n", 2, "no place yet")

    def test_pure_engines_see_no_clock_and_no_thread(self):
        now = OPENING + "int64_t now = clock_now_ns();\n"
        for engine in ["scheduler/coord.c", "scheduler/coord_lease.c", "peer/worker.c", "parallel/reduce.c",
                       "parallel/lease.c", "parallel/fetch.c", "scheduler/search.c"]:
            self.assert_caught(engine, now, 2, "may not call clock_now_ns")
        self.assert_clean("scheduler/coordinator.c", now)
        self.assert_clean("peer/worker.c", OPENING + '#include "runtime/base/clock.h"\n/* not clock_now_ns() */\n')
        self.assert_caught("peer/worker.c", OPENING + "#include <pthread.h>\n", 2, "pure engine")
        self.assert_caught("peer/worker.c", OPENING + '#include "runtime/net/room.h"\n', 2, "pure engine")

    def test_function_length(self):
        def function(lines):
            return OPENING + "int f(void)\n{\n" + "    f();\n" * (lines - 2) + "}\n"
        self.assert_clean("cli/main.c", function(80))
        self.assert_caught("cli/main.c", function(81), 3, "function of 81 lines")

    def test_file_length(self):
        self.assert_clean("cli/main.c", OPENING + "int x;\n" * 599)
        self.assert_caught("cli/main.c", OPENING + "int x;\n" * 600, 601, "601 lines")

    def test_include_guard_is_named_by_path(self):
        self.assert_clean("crypto/my-key.h", header("crypto/my-key.h"))
        self.assert_caught("crypto/key.h", header("crypto/kye.h"), 2, "SHOAL_CRYPTO_KEY_H")
        self.assert_caught("crypto/key.h", OPENING + "#pragma once\n", 2, "SHOAL_CRYPTO_KEY_H")
        self.assert_caught("crypto/key.h", OPENING + "int x;\n", 1, "SHOAL_CRYPTO_KEY_H")

    def test_columns(self):
        self.assert_clean("cli/main.c", OPENING + "/* " + "é" * 114 + " */\n")
        self.assert_caught("cli/main.c", OPENING + "/* " + "é" * 115 + " */\n", 2, "121 columns")

    def test_blanks_and_tabs(self):
        self.assert_caught("cli/main.c", OPENING + "int x; \n", 2, "blanks at the end")
        self.assert_caught("cli/main.c", OPENING + "\tint x;\n", 2, "a tab")
        self.assert_caught("cli/meson.build", "x = 1 \n", 1, "blanks at the end")

    def test_unfinished_work(self):
        for word in ["TO" + "DO", "FIX" + "ME", "X" + "XX"]:
            self.assert_caught("cli/main.c", f"{OPENING}/* {word}: later */\n", 2, word)
        self.assert_clean("cli/main.c", OPENING + 'char name[] = "/tmp/a-XXXXXX";\n')

    def test_tests_do_not_sleep(self):
        for call in ["sleep(1)", "usleep (1)", "nanosleep(&t, NULL)", "clock_sleep_ns(5)"]:
            self.assert_caught("tests/unit/a.c", f"{OPENING}int x = {call};\n", 2, "waits for the event")
            self.assert_clean("peer/peer.c", f"{OPENING}int x = {call};\n")
            self.assert_clean("tests/unit/a.c", f'{OPENING}/* no {call} */\nchar s[] = "{call}";\n')
        self.assert_clean("tests/unit/a.c", OPENING + "void workers_sleep(void);\n")
        self.assert_caught("tests/e2e/a.py", "time." + "sleep(1)\n", 1, "waits for the event")
        self.assert_caught("tests/e2e/a.sh", "run & sl" + "eep 1\n", 1, "waits for the event")

    def test_file_opens_with_a_comment(self):
        self.assert_caught("cli/main.c", "int x;\n", 1, "opens with a comment")

    def test_exceptions_are_used_or_reported(self):
        sleeping = {"tests/a.c": OPENING + "int x = sleep(1);\n"}
        exception = {("sleep", "tests/a.c"): "because"}
        self.assertEqual(self.found(sleeping, exception), [])
        stale = self.found({}, exception)
        self.assertEqual(len(stale), 1)
        self.assertIn("needed no more", stale[0])

    def test_build_folders_are_not_looked_at(self):
        bad = "int x; \n"
        self.assertEqual(self.found({"build/a.c": bad, "build/meson-private/x.txt": "", ".hidden/a.c": bad}), [])


if __name__ == "__main__":
    unittest.main()
