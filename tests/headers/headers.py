#!/usr/bin/env python3
"""Each header of the project compiles alone, twice in a row, as C; the ones named by --cxx-header as C++ too. So a header
includes all it needs, and its guard works. Not a test of what the headers say.

    headers.py ROOT [--cxx COMPILER [--cxx-header HEADER]...] [--skip FOLDER]... -- COMPILER [ARGUMENT]...

Headers are looked for when the test runs, so a new one cannot be forgotten. Exits with 1 if one does not compile.
"""

import argparse
import concurrent.futures
import os
import subprocess
import sys


def headers_below(root, skipped):
    for folder, subfolders, names in os.walk(root):
        relative = os.path.relpath(folder, root)
        subfolders[:] = sorted(d for d in subfolders if not d.startswith(".") and d != "subprojects"
                               and os.path.normpath(os.path.join(relative, d)) not in skipped
                               and not os.path.exists(os.path.join(folder, d, "meson-private")))
        yield from (os.path.normpath(os.path.join(relative, name)) for name in sorted(names) if name.endswith(".h"))


def compile_alone(compiler, language, header):
    """The compiler's complaints, empty if there are none."""
    source = f'#include "{header}"\n#include "{header}"\nextern int not_empty;\n'
    run = subprocess.run(compiler + ["-fsyntax-only", "-Werror", "-x", language, "-"], input=source, text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return run.stdout or f"exit status {run.returncode}" if run.returncode else ""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("--cxx")
    parser.add_argument("--cxx-header", action="append", default=[])
    parser.add_argument("--skip", action="append", default=[])
    parser.add_argument("compiler", nargs="+")
    options = parser.parse_args()

    jobs = [(options.compiler, "c", header) for header in headers_below(options.root, options.skip)]
    if not jobs:
        sys.exit(f"no headers below {options.root}")
    if options.cxx:
        cxx = [options.cxx, "-std=c++17", "-Wall", "-Wextra", "-I", options.root]
        jobs += [(cxx, "c++", header) for header in options.cxx_header]

    failed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for job, complaints in zip(jobs, pool.map(lambda job: compile_alone(*job), jobs)):
            if complaints:
                failed += 1
                print(f"{job[2]} does not compile alone as {job[1]}:\n{complaints}")
    print(f"{len(jobs) - failed} of {len(jobs)} compile alone")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
