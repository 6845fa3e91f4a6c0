#!/usr/bin/env python3
"""The rules of the house that a compiler does not know: who may include whom, where third-party headers may appear,
and the form of source files. Not a formatter and not a linter for bugs.

    tidy.py ROOT

Prints file:line: what is wrong, one a line, and exits with 1 if there is any. Uses nothing but Python's own library.
The tables below are the rules; docs/design.md, section 3, says why.
"""

import fnmatch
import os
import re
import sys

# ---- Tables ----------------------------------------------------------------------------------------------------------

# A folder may include itself and these (folders or single headers).
LAYERS = {
    "runtime/base": [],
    "crypto": ["runtime/base"],
    "runtime/net": ["runtime/base"],
    "runtime/store": ["runtime/base", "crypto/hash.h"],
    "kernels": ["runtime/base"],
    "model": ["kernels", "runtime/base", "runtime/store", "crypto"],
    "parallel": ["model", "kernels", "runtime", "crypto"],
    "scheduler": ["parallel", "model", "kernels", "runtime", "crypto"],
    "peer": ["parallel", "model", "kernels", "runtime", "crypto"],
    "sim": ["scheduler", "peer", "parallel", "model", "kernels", "runtime", "crypto"],
    "cli": ["sim", "scheduler", "peer", "parallel", "model", "kernels", "runtime", "crypto"],
    # Tests may look at everything; nothing but tests may look at them.
    "tests": ["cli", "sim", "scheduler", "peer", "parallel", "model", "kernels", "runtime", "crypto"],
    "tools": ["cli", "sim", "scheduler", "peer", "parallel", "model", "kernels", "runtime", "crypto"],
}

# Third-party headers and their one place. Tests may use them too: a hostile peer is written with the bare library.
THIRD_PARTY = [
    (r"zmq(_utils)?\.h", "runtime/net/*"),
    (r"msgpack(\.h|/.*)", "parallel/proto*.c"),
    (r"sodium(\.h|/.*)", "crypto/*"),
    (r"(cblas|openblas_config|lapacke)\.h", "kernels/cpu/*"),
    (r"sqlite3\.h", "runtime/store/*"),
    (r"(cjson/)?cJSON\.h", "runtime/store/*"),
    (r"microhttpd\.h", "scheduler/http.c"),
    (r"cyaml/.*", "*_yaml.c"),
    (r"(cuda|cublas|nvrtc|nvml)\w*(\.h|/.*)", "kernels/cuda/*"),
    (r"(CL/.*|clblast\w*\.h)", "kernels/opencl/*"),
    (r"cmocka\.h", "tests/*"),
]

# Headers of the C library, the kernel and the compiler. What is neither here nor above has no place yet: give it one.
SYSTEM = re.compile(
    r"(assert|complex|ctype|errno|fenv|float|inttypes|limits|locale|math|setjmp|signal|stdalign|stdarg|stdatomic|stdbool"
    r"|stddef|stdint|stdio|stdlib|stdnoreturn|string|strings|threads|time|uchar|wchar|wctype"
    r"|dirent|dlfcn|endian|fcntl|fnmatch|ftw|getopt|glob|grp|ifaddrs|libgen|link|netdb|poll|pthread|pwd|regex|sched"
    r"|semaphore|spawn|syslog|termios|ucontext|unistd|utime|wordexp|execinfo|malloc|elf|byteswap"
    r"|immintrin|x86intrin|cpuid|arm_neon|arm_sve"
    r"|(sys|net|netinet|arpa|linux|bits|asm)/\w+)\.h")

# Pure engines (docs/design.md, section 3): time, messages and work reach them in events. What they may neither include
# nor call; clock.h itself they may include for its units.
ENGINES = ["scheduler/coord.c", "scheduler/coord_*", "scheduler/coord.h", "scheduler/search*", "scheduler/cost*",
           "peer/worker*", "parallel/reduce*", "parallel/lease*", "parallel/fetch*"]
IMPURE = re.compile(r"runtime/(base/(pool|queue)\.h|net/.*|store/.*)|(pthread|time|poll|threads|unistd|fcntl)\.h"
                    r"|sys/(socket|time|epoll|eventfd|file|mman)\.h")
IMPURE_CALL = re.compile(r"\b(clock_(now|wall|sleep)_ns|getenv|rand|random)\s*\(")

LINES_PER_FUNCTION = 80
LINES_PER_FILE = 600
COLUMNS = 120

# (rule, file) -> why this one may. An exception that nothing needs any more is reported too.
EXCEPTIONS = {
    ("sleep", "tests/unit/base/test_clock.c"): "sleeping is what it tests",
    ("file-length", "tests/golden/gpt2_tiny.h"): "numbers, written by tools/golden.py",
}

C_FILES = (".c", ".h", ".cu", ".cuh", ".cl")
TEXT_FILES = C_FILES + (".py", ".sh", ".build", ".options", ".yaml", ".yml")

# ---- Reading ---------------------------------------------------------------------------------------------------------


def source_files(root):
    """Paths below root, relative and sorted, of the text files that are ours: no build folders, no hidden ones."""
    found = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = sorted(d for d in subfolders if not d.startswith(".") and d not in ("__pycache__", "subprojects")
                               and not os.path.exists(os.path.join(folder, d, "meson-private")))
        for name in names:
            if name.endswith(TEXT_FILES) or name == "meson_options.txt":
                found.append(os.path.relpath(os.path.join(folder, name), root))
    return sorted(found)


TOKEN = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.S)


def without_comments_and_strings(text):
    """The same text with comments and literals blanked, line for line."""
    return TOKEN.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)


def layer_of(path):
    """The longest folder of LAYERS that path lies in, None for a file outside all of them."""
    return max((layer for layer in LAYERS if path.startswith(layer + "/")), key=len, default=None)


# ---- Rules: each yields (rule, line, sentence) -----------------------------------------------------------------------


def is_within(path, places):
    return any(path == place or path.startswith(place + "/") for place in places)


def is_engine(path):
    return any(fnmatch.fnmatch(path, engine) for engine in ENGINES)


def check_include(path, line, opening, name, root):
    """One #include of path."""
    layer = layer_of(path)
    if is_engine(path) and IMPURE.fullmatch(name):
        yield "pure", line, f"a pure engine may not include {name}: it takes time, messages and work from events"
    if opening == '"':
        if not os.path.isfile(os.path.join(root, name)):
            yield "include", line, f'"{name}" is no file: write the path from the root of the project'
        elif layer_of(name) is None:
            yield "include", line, f'"{name}" lies in no folder that may be included'
        elif layer is None:
            yield "include", line, "this file lies in no folder of the include table, so it may include nothing of ours"
        elif layer != layer_of(name) and not is_within(name, LAYERS[layer]):
            yield "include", line, f"{layer} may not include {name} (it may see: {', '.join(LAYERS[layer]) or 'itself only'})"
        return
    for pattern, place in THIRD_PARTY:
        if re.fullmatch(pattern, name):
            if not fnmatch.fnmatch(path, place) and not path.startswith("tests/"):
                yield "third-party", line, f"<{name}> may appear in {place} only"
            return
    if not SYSTEM.fullmatch(name):
        yield "third-party", line, f"<{name}> has no place yet: add it to the table of third-party headers"


def check_includes(path, text, root):
    for number, line in enumerate(text.split("\n"), 1):
        m = re.match(r"\s*#\s*include\s*([<\"])([^>\"]+)[>\"]", line)
        if m:
            yield from check_include(path, number, m.group(1), m.group(2), root)


def check_calls(path, text):
    if is_engine(path):
        for number, line in enumerate(without_comments_and_strings(text).split("\n"), 1):
            m = IMPURE_CALL.search(line)
            if m:
                yield "pure", number, f"a pure engine may not call {m.group(1)}: what it needs reaches it in events"


def check_guard(path, text):
    guard = "SHOAL_" + re.sub(r"[^A-Z0-9]", "_", path.upper())
    directives = [(n, line.split()) for n, line in enumerate(text.split("\n"), 1) if line.startswith("#")]
    want = [["#ifndef", guard], ["#define", guard]]
    if [words for _, words in directives[:2]] != want or directives[-1][1][0] != "#endif":
        yield "guard", directives[0][0] if directives else 1, f"a header is wrapped in #ifndef {guard} ... #endif"


def check_lengths(text):
    """Relies on the format: a function's body is what stands between a { and a } in the first column."""
    lines = text.rstrip("\n").split("\n")
    if len(lines) > LINES_PER_FILE:
        yield "file-length", LINES_PER_FILE + 1, f"{len(lines)} lines, {LINES_PER_FILE} are the most: split by what it does"
    start = None
    for number, line in enumerate(lines, 1):
        if line == "{":
            start = number
        elif line.startswith("}") and start:
            length = number - start + 1
            if length > LINES_PER_FUNCTION:
                yield "function-length", start, f"function of {length} lines, {LINES_PER_FUNCTION} are the most"
            start = None


UNFINISHED = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "X" + "XX"]) + r")\b")
SLEEPS = {
    C_FILES: re.compile(r"\b(sleep|usleep|nanosleep|clock_nanosleep|clock_sleep_ns|thrd_sleep)\s*\("),
    (".py",): re.compile(r"\btime\.sleep\s*\(|\bfrom\s+time\s+import\b.*\bsleep\b"),
    (".sh",): re.compile(r"(^|[;&|]|\bdo|\bthen)\s*sleep\s"),
}


def check_lines(path, text):
    for number, line in enumerate(text.split("\n"), 1):
        if line != line.rstrip():
            yield "blanks", number, "blanks at the end of the line"
        if path.endswith(C_FILES):
            if "\t" in line:
                yield "blanks", number, "a tab: indent by four blanks"
            if len(line) > COLUMNS:
                yield "columns", number, f"{len(line)} columns, {COLUMNS} are the most"
        m = UNFINISHED.search(line)
        if m:
            yield "unfinished", number, f"{m.group()}: finish it or leave it out"


def check_sleeps(path, text):
    if not path.startswith("tests/"):
        return
    for endings, pattern in SLEEPS.items():
        if path.endswith(endings):
            code = without_comments_and_strings(text) if endings == C_FILES else text
            for number, line in enumerate(code.split("\n"), 1):
                if pattern.search(line):
                    yield "sleep", number, "a test waits for the event, it does not sleep"


def check_file(path, text, root):
    yield from check_lines(path, text)
    yield from check_sleeps(path, text)
    if path.endswith(C_FILES):
        if not text.startswith("/*"):
            yield "opening", 1, "a file opens with a comment: what it is, what it is not, the invariant it keeps"
        yield from check_includes(path, text, root)
        yield from check_calls(path, text)
        yield from check_lengths(text)
    if path.endswith((".h", ".cuh")):
        yield from check_guard(path, text)


def check(root, exceptions=EXCEPTIONS):
    """All violations below root, as lines of text."""
    found = []
    used = set()
    for path in source_files(root):
        with open(os.path.join(root, path), encoding="utf-8", errors="replace") as f:
            text = f.read()
        for rule, line, sentence in check_file(path, text, root):
            if (rule, path) in exceptions:
                used.add((rule, path))
            else:
                found.append(f"{path}:{line}: {sentence} [{rule}]")
    for rule, path in exceptions:
        if (rule, path) not in used:
            found.append(f"{path}:1: the exception from rule '{rule}' is needed no more: take it out of tests/tidy/tidy.py")
    return found


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    found = check(sys.argv[1])
    for line in found:
        print(line)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
