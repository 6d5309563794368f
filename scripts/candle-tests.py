#!/usr/bin/env python3
"""Candle's own tests, as its crate has them, with the preloaded library in place of cuBLAS.

    scripts/candle-tests.py --out candle-tests.json

It copies the source of the candle-core that this project uses from cargo's registry into a temporary folder, builds its
tests there with the feature `cuda` (into this project's target folder, so that candle's kernels are not compiled twice),
and runs them under LD_PRELOAD at each precision. The exit status is 0 if all of them pass and every FP32 product was
taken over.

On a machine that has a GPU but no Rust: `--keep FOLDER` where Rust is, which builds into that folder and runs nothing, then
`--bin FOLDER` there.
"""

import argparse
import ctypes
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

TESTS = ["matmul", "tensor", "grad", "custom_op", "layout"]
PRECISIONS = ["fp32-strict", "fp32"]
LIBRARY = "libcandle_sgemm_preload.so"
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# What is passed on for this reason is no FP32 product.
OTHER_TYPES = "matrices of types that no kernel multiplies"


def cargo(*arguments, **options):
    run = subprocess.run(["cargo", *arguments], stdout=subprocess.PIPE, text=True, check=True, **options)
    return run.stdout


def build(folder):
    """The test programs and the library, in `folder`."""
    metadata = json.loads(cargo("metadata", "--format-version", "1", "--features", "cuda", cwd=ROOT))
    manifest = next(p["manifest_path"] for p in metadata["packages"] if p["name"] == "candle-core")
    environment = {**os.environ, "CARGO_TARGET_DIR": metadata["target_directory"]}
    with tempfile.TemporaryDirectory() as temporary:
        source = os.path.join(temporary, "candle-core")
        shutil.copytree(os.path.dirname(manifest), source)
        shutil.copy(os.path.join(ROOT, "Cargo.lock"), source)
        wanted = [word for test in TESTS for word in ("--test", f"{test}_tests")]
        command = ["test", "--release", "--no-run", "--features", "cuda", "--message-format", "json-render-diagnostics"]
        # As this project's Cargo.toml has it: with other options candle's kernels would be compiled once more.
        command += ["--config", 'profile.release.lto="off"']
        lines = cargo(*command, *wanted, cwd=source, env=environment).splitlines()
        for message in map(json.loads, lines):
            if message.get("executable") and message["target"]["kind"] == ["test"]:
                shutil.copy(message["executable"], os.path.join(folder, message["target"]["name"]))
    example = ["--example", "candle_sgemm_preload"]
    cargo("build", "--release", "--features", "cuda,override", *example, cwd=ROOT, env=environment)
    shutil.copy(os.path.join(metadata["target_directory"], "release", "examples", LIBRARY), folder)


def run(folder, test, precision):
    """One test program: a row of the report, and whether all is as it should be."""
    environment = {
        **os.environ,
        "LD_PRELOAD": os.path.join(folder, LIBRARY),
        "CANDLE_SGEMM_PRECISION": precision,
        "CANDLE_SGEMM_LOG": "summary",
    }
    program = os.path.join(folder, f"{test}_tests")
    done = subprocess.run([program], capture_output=True, text=True, env=environment)
    result = re.search(r"test result: \w+\. (\d+) passed; (\d+) failed", done.stdout)
    summary = re.search(r"candle-sgemm: (\d+) of (\d+) cuBLAS products taken over", done.stderr)
    if not result or not summary:
        sys.exit(f"{program} did not run as expected (status {done.returncode}):\n{done.stdout}\n{done.stderr}")
    passed, failed, taken, calls = map(int, result.groups() + summary.groups())
    others = sum(map(int, re.findall(rf"(\d+) passed on: {OTHER_TYPES}", done.stderr)))
    row = {
        "bench": "tests",
        "layer": f"candle-core's {test}_tests",
        "precision": precision,
        "passed": passed,
        "failed": failed,
        "products": calls - others,
        "taken_over": taken,
    }
    print(f"{test:<10} {precision:<12} {passed} passed, {failed} failed; {taken} of {calls - others} FP32 products taken over")
    return row, done.returncode == 0 and failed == 0 and taken == calls - others


def machine():
    """GPU, driver, CUDA and cuBLAS as the other reports name them."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader", "--id=0"]
    name, driver = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip().split(", ")
    version = ctypes.c_int()
    ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    libraries = [f"libcublas.so.{major}" for major in (13, 12)]
    numbers = []
    for library in libraries:
        try:
            cublas = ctypes.CDLL(library)
        except OSError:
            continue
        number = ctypes.c_int()
        for part in range(3):  # major, minor, patch
            cublas.cublasGetProperty(part, ctypes.byref(number))
            numbers.append(str(number.value))
        break
    return {
        "gpu": name,
        "driver": driver,
        "cuda": f"{version.value // 1000}.{version.value % 1000 // 10}",
        "cublas": ".".join(numbers),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "command": "scripts/candle-tests.py",
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", metavar="FILE", help="write the results to this JSON file")
    parser.add_argument("--keep", metavar="FOLDER", help="build into this folder and run nothing")
    parser.add_argument("--bin", metavar="FOLDER", help="run what --keep has built")
    arguments = parser.parse_args()
    if arguments.keep:
        os.makedirs(arguments.keep, exist_ok=True)
        build(arguments.keep)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = os.path.abspath(arguments.bin or temporary)
        if not arguments.bin:
            build(folder)
        results = [run(folder, test, precision) for precision in PRECISIONS for test in TESTS]
    if arguments.out:
        report = {**machine(), "rows": [row for row, _ in results]}
        with open(arguments.out, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=2, ensure_ascii=False)
            file.write("\n")
    sys.exit(0 if all(good for _, good in results) else 1)


main()
