"""Are the tests good? Change the package in hundreds of small ways; the tests must fail for each.

    python tests/mutation/run.py                                             all: hours
    python tests/mutation/run.py --files optim.py ops/codebook.py --sample 30  thirty of these, the same thirty for one --seed
    python tests/mutation/run.py --sample 200 --minutes 60                   what can be tried in an hour

Every mutant is a copy of the package in a temporary directory, tested in a forked child of this process, which has imported torch and
pytest but not pseudograd. Each file has tests of its own, below; they run until one fails. Exit status 1 if fewer than 95 % are killed.
A survivor that no test can kill belongs into explained.py.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

os.environ.setdefault("MPLBACKEND", "Agg")
import matplotlib.pyplot  # noqa: F401  (imported before the fork, so that no child pays for it)
import pytest
import torch
import torch._dynamo

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

from explained import EXPLAINED  # noqa: E402
from mutants import Mutant, mutants_of  # noqa: E402

# No mutant is made of the C code, nor of a kernel's loops.
NOT_OF_THE_C_CODE = "not every_processor and not every_product"
# The fast tests first: most mutants die in the first second. These are for what decides the gradient of a clamp.
GRADIENTS = [
    [*(f"tests/engine/test_{part}.py" for part in ("lowering", "rounding", "kinds_of_tensors")), "tests/export"],
    [
        *("tests/ops", "tests/contract/test_bounds.py", "tests/contract/test_second_slopes.py"),
        *("tests/contract/test_samples.py", "--ignore=tests/ops/test_flush_denormal.py"),
    ],
    [
        "tests/contract/test_values.py",
        "-k",
        "(clamp- or lower_bound- or relu- or replace_grad-) and not ascent and float32",
    ],
    ["tests/contract/test_derivatives.py", "-k", "clamp- and not ascent"],
    ["tests/contract/test_compile.py", "tests/analysis", "tests/test_api.py"],
    [f"tests/engine/test_{part}.py" for part in ("import", "threads", "fork", "memories", "residuals")],
    ["tests/ops/test_flush_denormal.py", "tests/kernels/test_native.py", "-k", NOT_OF_THE_C_CODE],
    ["tests/rewrite/test_context.py", "tests/rewrite/test_other_families.py"],
    ["tests/contract/test_transforms.py", "-k", "(clamp- or replace_grad-) and not ascent"],
    ["tests/contract/test_values.py", "-k", "clamp- and not ascent and not float32"],
    [
        "tests/contract/test_values.py",
        "-k",
        "(ascent or lower_bound- or relu6-) and (float16 or float32) and not bfloat16",
    ],
]
# GRADIENTS takes the clamps and replace_grad.
OTHER_OPS = (
    *("sign", "heaviside", "round", "trunc", "abs", "scale_grad", "reverse_grad", "clip_grad"),
    *("jumprelu", "gelu", "silu", "leaky_relu", "hardsigmoid"),
)
OTHER_OPS_GRADIENTS = [
    ["tests/ops/test_new_bad_calls.py"],
    ["tests/contract/test_values.py", "-k", f"({' or '.join(f'{op}-' for op in OTHER_OPS)}) and float32"],
    ["tests/contract/test_derivatives.py", "-k", " or ".join(f"{op}-" for op in OTHER_OPS)],
]
# What other files have of their own; GRADIENTS is for files without. Prefixes, the first that fits.
TESTS: dict[str, list[list[str]]] = {
    "ops/quantize.py": [
        [f"tests/ops/test_{part}.py" for part in ("fake_quantize", "new_bad_calls")],
        ["tests/contract/test_samples.py", "tests/contract/test_second_slopes.py"],
        ["tests/contract/test_values.py", "-k", "fake_quantize- and not ascent and float32"],
        ["tests/ops", "tests/contract/test_derivatives.py", "-k", "fake_quantize"],
        ["tests/contract/test_transforms.py", "-k", "fake_quantize- and not ascent"],
    ],
    "ops/activations.py": [["tests/ops/test_few_bits.py"], *OTHER_OPS_GRADIENTS],
    "ops/fitted_slopes.py": [["tests/ops/test_few_bits.py"]],
    "ops/jump.py": [["tests/ops/test_jumprelu.py"], *OTHER_OPS_GRADIENTS],
    "ops/rounding.py": [["tests/ops/test_round_by_error.py"], *OTHER_OPS_GRADIENTS],
    "ops/registration.py": [["tests/testing/test_register_rule.py"], *GRADIENTS],
    "ops/nearest_code.py": [["tests/ops/test_vector_quantize.py"]],
    "ops/codebook.py": [["tests/ops/test_vector_quantize.py"]],
    "ops/policy": [
        ["tests/policy/test_policy_loss.py", "tests/policy/test_clip_report.py"],
        ["tests/contract/test_values.py", "-k", "policy_loss- and float32"],
    ],
    "optim.py": [["tests/test_optim.py"]],
    "nn.py": [["tests/test_nn.py"], ["tests/rewrite/test_convert.py", "tests/test_api.py"]],
    "torch_": [
        ["tests/test_torch_forms.py"],
        ["tests/rewrite/test_override.py", "tests/rewrite/test_pin_edge.py"],
        ["tests/rewrite/test_transforms.py", "tests/rewrite/test_report.py", "tests/rewrite/test_context.py"],
        ["tests/rewrite/test_compile.py"],
    ],
    "trace/": [
        ["tests/trace", "tests/rewrite/test_report.py", "tests/diagnosis/test_sites.py"],
        ["tests/rewrite/test_context.py", "tests/diagnosis/test_contexts.py"],
        ["tests/rewrite/test_compile.py"],
    ],
    "rewrite/bisection.py": [["tests/rewrite/test_bisect.py"]],
    "rewrite/": [
        [f"tests/rewrite/test_{part}.py" for part in ("small_promises", "context", "report", "other_families")],
        [f"tests/rewrite/test_{part}.py" for part in ("convert", "run", "transforms")],
        ["tests/rewrite/test_override.py", "tests/rewrite/test_pin_edge.py"],
        ["tests/rewrite/test_compile.py"],
    ],
    "ops/": [
        *GRADIENTS,
        *OTHER_OPS_GRADIENTS,
    ],
    "kernels/few_bits.py": [["tests/ops/test_few_bits.py"]],
    "kernels/": [
        ["tests/engine/test_residuals.py", "tests/engine/test_memories.py"],
        ["tests/kernels/test_native.py", "-k", NOT_OF_THE_C_CODE],
        ["tests/ops/test_in_place.py", "tests/ops/test_layouts.py", "tests/ops/test_few_bits.py"],
        ["tests/kernels/test_contract.py", "-k", "native or parts"],
        *GRADIENTS[:-1],
    ],
    "": GRADIENTS[:-1],  # engine and kernels take no part in the last that the others do not show
}
SINGLE_FILES = ("engine.py", "formula.py", "arguments.py", "torch_forms.py", "torch_eras.py", "nn.py", "optim.py")
ARGUMENTS = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", "--tb=no", "--assert=plain"]
THRESHOLD = 0.95


def prefix_of(mutant: Mutant) -> str:
    """Which tests are for it: a key of TESTS."""
    return next(prefix for prefix in TESTS if mutant.file.startswith(prefix))


class Workplace:
    """The package and the tests as they were at the start, so that editing goes on while this runs."""

    def __init__(self, directory: Path) -> None:
        self.root = directory
        self.source = directory / "src"
        self.package = self.source / "pseudograd"
        self.failing = directory / "failing"
        leave = shutil.ignore_patterns("__pycache__", ".*")
        shutil.copytree(ROOT / "src" / "pseudograd", self.package, ignore=leave)
        shutil.copytree(ROOT / "tests", directory / "tests", ignore=leave)
        shutil.copy(ROOT / "pyproject.toml", directory)

    def mutants(self, only: list[str], texts: list[str]) -> list[Mutant]:
        """Of the files that decide gradients or where a parameter goes."""
        data_of_tests = ("bound_samples.py", "samples.py")
        files = [
            *(path for path in sorted((self.package / "ops").glob("*.py")) if path.name not in data_of_tests),
            *sorted((self.package / "kernels").glob("*.py")),
            self.package / "kernels" / "native" / "__init__.py",
            *sorted((self.package / "rewrite").glob("*.py")),
            *sorted((self.package / "trace").glob("*.py")),
        ]
        files += [self.package / name for name in SINGLE_FILES]
        names = {path: path.relative_to(self.package).as_posix() for path in files}
        chosen = [path for path in files if not only or names[path].startswith(tuple(only))]
        found = [mutant for path in chosen for mutant in mutants_of(names[path], path.read_text())]
        return [mutant for mutant in found if any(text in str(mutant) for text in texts)]


class Known:
    """A plugin: leaves out the tests that fail on the package as it is, after it has noted them in a first run."""

    def __init__(self, file: Path, note: bool) -> None:
        self.file, self.note = file, note
        self.failing = set(file.read_text().splitlines()) if file.exists() else set()

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid not in self.failing]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self.note:
            with self.file.open("a") as file:
                print(report.nodeid, file=file)


def passes(place: Workplace, source: Path, limit: float, groups: list[list[str]], note: bool = False) -> bool:
    """Do all tests pass on the package under `source`? Runs them in a forked child; too slow counts as failing."""
    pid = os.fork()
    if pid == 0:
        os._exit(_test_here(place, source, groups, note))
    end = time.monotonic() + limit
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return False


def _test_here(place: Workplace, source: Path, groups: list[list[str]], note: bool) -> int:
    """In the child: `source` comes first on the path, here and in the processes that tests start."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    for stream in (1,) if note else (1, 2):
        os.dup2(devnull, stream)
    os.chdir(place.root)
    sys.path[:] = [str(source), *(p for p in sys.path if p not in (str(ROOT / "src"), str(HERE)))]
    sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder).lower()]
    sys.argv = ["pytest"]
    os.environ["PYTHONPATH"] = str(source)
    torch.set_num_threads(1)
    arguments = [argument for argument in ARGUMENTS if not (note and argument == "-x")]
    worst = 0
    for tests in groups:
        start = time.monotonic()
        try:
            code = int(
                pytest.main([*arguments, f"--rootdir={place.root}", *tests], plugins=[Known(place.failing, note)])
            )
        except BaseException:
            if note:
                raise
            return 1
        if note:
            print(f"{time.monotonic() - start:6.1f} s  {' '.join(tests)}", file=sys.stderr)
        if not note and (code != 0 or not _came_from(source)):
            return 1
        worst = max(worst, code)
    return worst


def _came_from(source: Path) -> bool:
    return str(sys.modules["pseudograd"].__file__).startswith(str(source))


def is_killed(place: Workplace, mutant: Mutant, limit: float) -> bool:
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory) / "pseudograd"
        shutil.copytree(place.package, copy)
        (copy / mutant.file).write_text(mutant.source)
        return not passes(place, Path(directory), limit, TESTS[prefix_of(mutant)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--limit", type=float, default=240.0, help="seconds for one mutant, beside what the tests take")
    parser.add_argument("--files", nargs="*", default=[], help="as in ops/bounds.py, or rewrite/; default: all")
    parser.add_argument("--only", nargs="*", default=[""], help="only mutants whose text holds one of these")
    parser.add_argument("--sample", type=int, metavar="N", help="only N of them, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of the sample; default: 0")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no mutant after so many")
    parser.add_argument("--list", action="store_true", help="only list the mutants")
    parser.add_argument(
        "--explained", action="store_true", help="also run those in explained.py, else survivors untried"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        place = Workplace(Path(directory))
        mutants = place.mutants(arguments.files, arguments.only)
        if arguments.sample is not None and arguments.sample < len(mutants):
            mutants = random.Random(arguments.seed).sample(mutants, arguments.sample)
        if arguments.list:
            print(*mutants, sep="\n")
            return 0
        all_groups = [tuple(group) for mutant in mutants for group in TESTS[prefix_of(mutant)]]
        groups = [list(group) for group in dict.fromkeys(all_groups)]
        start = time.monotonic()
        with ThreadPoolExecutor(arguments.jobs) as pool:  # group by group, on every core
            as_it_is = list(
                pool.map(lambda group: passes(place, place.source, 10 * arguments.limit, [group], note=True), groups)
            )
            if not all(as_it_is):
                failing = place.failing.read_text().splitlines() if place.failing.exists() else ["none was reached"]
                print(f"{len(set(failing))} tests fail on the package as it is and are left out, first {failing[0]}")
            limit = arguments.limit + arguments.jobs * (time.monotonic() - start)
            end = time.monotonic() + 60 * arguments.minutes
            judged = pool.map(lambda mutant: _judged(place, mutant, limit, end, arguments.explained), mutants)
            verdicts = dict(zip(mutants, judged, strict=True))
    return report({mutant: killed for mutant, killed in verdicts.items() if killed is not None}, len(mutants))


def _judged(place: Workplace, mutant: Mutant, limit: float, end: float, tries_explained: bool) -> bool | None:
    """Is it killed? None if the time is over."""
    if time.monotonic() > end:
        return None
    killed = (tries_explained or mutant.key not in EXPLAINED) and is_killed(place, mutant, limit)
    print("." if killed else f"\nsurvived: {mutant}\n", end="", flush=True)
    return killed


def report(killed: dict[Mutant, bool], asked: int) -> int:
    survivors = [mutant for mutant, dead in killed.items() if not dead]
    explained = [mutant for mutant in survivors if mutant.key in EXPLAINED]
    print(f"\n\n{len(explained)} survivors are explained:")
    for mutant in explained:
        print(f"  {mutant}\n      {EXPLAINED[mutant.key]}")
    unexplained = [mutant for mutant in survivors if mutant.key not in EXPLAINED]
    print(f"{len(unexplained)} survivors are not:")
    for mutant in unexplained:
        print(f"  {mutant}")
    if len(killed) < asked:
        print(f"{asked - len(killed)} of {asked} were not tried: the time was over")
    rate = sum(killed.values()) / max(1, len(killed))
    can_be = len(killed) - len(explained)
    print(f"{sum(killed.values())} of {len(killed)} mutants killed: {rate:.1%}; {can_be} of them can be")
    print(f"at least {THRESHOLD:.0%} must be, the explained not counted as killed")
    return 0 if rate >= THRESHOLD else 1


if __name__ == "__main__":
    sys.exit(main())
