"""Which tests are to notice a change of which file: (list of groups, each the arguments of one pytest), the fast ones first."""

import importlib.util
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "pseudograd"

# No mutant is made of the C code, nor of a kernel's loops.
NOT_OF_THE_C_CODE = "not every_processor and not every_product"
# The fast tests first: most mutants die in the first second. These are for what decides the gradient of a clamp.
GRADIENTS = [
    [*(f"tests/engine/test_{part}.py" for part in ("lowering", "rounding", "kinds_of_tensors")), "tests/export"],
    [
        *("tests/ops", "tests/contract/test_bounds.py", "tests/contract/test_second_slopes.py"),
        *("tests/contract/test_samples.py", "--ignore=tests/ops/test_flush_denormal.py"),
    ],
    ["tests/contract/test_values.py"],
    ["tests/contract/test_derivatives.py"],
    ["tests/contract/test_compile.py", "tests/analysis", "tests/test_api.py"],
    [f"tests/engine/test_{part}.py" for part in ("import", "threads", "fork", "memories", "residuals", "watch")],
    ["tests/ops/test_flush_denormal.py", "tests/kernels/test_native.py", "-k", NOT_OF_THE_C_CODE],
    ["tests/rewrite/test_context.py", "tests/rewrite/test_other_families.py"],
    ["tests/contract/test_transforms.py"],
]
# Files of these ops alone need no more of the contract.
OTHER_OPS = (
    *("sign", "heaviside", "round", "trunc", "abs", "scale_grad", "reverse_grad", "clip_grad"),
    *("jumprelu", "gelu", "silu", "leaky_relu", "hardsigmoid"),
)
OTHER_OPS_GRADIENTS = [
    ["tests/ops/test_new_bad_calls.py"],
    ["tests/contract/test_values.py", "-k", " or ".join(f"{op}-" for op in OTHER_OPS)],
    ["tests/contract/test_derivatives.py", "-k", " or ".join(f"{op}-" for op in OTHER_OPS)],
]
PROGRAMS = [["tests/running/test_program.py"], [f"tests/{command}/test_run.py" for command in ("rewrite", "diagnosis")]]
# Prefixes, the first that fits. A folder's last line is for the files without one of their own, also for those to come.
TESTS: dict[str, list[list[str]]] = {
    "familiar.py": [["tests/ops/test_familiar.py", "tests/ops/test_numbers_of_the_texts.py"]],
    "policy.py": [["tests/test_api.py", "tests/policy/test_policy_loss.py"]],
    "codebook.py": [["tests/test_api.py", "tests/ops/test_vector_quantize.py"]],
    "public_names.py": [["tests/test_api.py"]],
    "ops/quantize.py": [
        [f"tests/ops/test_{part}.py" for part in ("fake_quantize", "new_bad_calls")],
        ["tests/contract/test_samples.py", "tests/contract/test_second_slopes.py"],
        ["tests/contract/test_values.py", "-k", "fake_quantize-"],
        ["tests/ops", "tests/contract/test_derivatives.py", "-k", "fake_quantize"],
        ["tests/contract/test_transforms.py", "-k", "fake_quantize-"],
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
        ["tests/contract/test_values.py", "-k", "policy_loss-"],
    ],
    "optim.py": [["tests/test_optim.py"]],
    "nn.py": [["tests/test_nn.py"], ["tests/rewrite/test_convert.py", "tests/test_api.py"]],
    "parse_rule.py": [["tests/test_parse_rule.py"]],
    "record.py": [["tests/test_record.py"]],
    "running/output.py": [["tests/running/test_output_and_signals.py"]],
    "running/signals.py": [["tests/running/test_output_and_signals.py"]],
    "running/": PROGRAMS,
    "user_function.py": [["tests/ops/test_custom_slope.py", "tests/test_fx.py"]],
    "errors.py": [["tests/ops/test_bad_calls.py", "tests/ops/test_new_bad_calls.py", "tests/test_fx.py"]],
    "analysis/rule_table.py": [["tests/analysis/test_rule_table.py"]],
    "doctor.py": [["tests/engine/test_torch_private.py"], ["tests/test_cli.py", "-k", "doctor"]],
    "dynamo.py": [["tests/engine/test_import.py", "tests/engine/test_lowering.py"], ["tests/contract/test_compile.py"]],
    "layouts.py": [["tests/ops/test_layouts.py", "tests/ops/test_in_place.py"], *GRADIENTS[:4]],
    "rule.py": [["tests/testing/test_register_rule.py", "tests/ops/test_bad_calls.py"], *GRADIENTS[:5]],
    "geometry.py": [
        ["tests/testing/test_sides_of_users.py", "tests/contract/test_the_suite.py"],
        ["tests/contract/test_values.py", "-k", "row_says and float32"],
        ["tests/kernels/test_contract.py", "-k", "native or parts"],
    ],
    "rules.py": [["tests/test_api.py", "tests/ops/test_custom_slope.py", "tests/ops/test_bad_calls.py"]],
    "__init__.py": [["tests/test_api.py"], ["tests/engine/test_import.py"]],
    "__main__.py": [["tests/test_cli.py"]],
    "cli": [
        ["tests/analysis/test_audit_cli.py", "tests/test_parse_rule.py"],
        ["tests/test_cli.py", "tests/engine/test_torch_private.py"],
        [f"tests/{command}/test_run.py" for command in ("rewrite", "diagnosis")],
        ["tests/report/test_own.py", "tests/report/test_redraw.py", "tests/trials/test_tune.py"],
    ],
    "torch_": [
        ["tests/test_torch_forms.py", "tests/rewrite/test_every_row.py"],
        ["tests/rewrite/test_override.py", "tests/rewrite/test_pin_edge.py"],
        ["tests/rewrite/test_transforms.py", "tests/rewrite/test_report.py", "tests/rewrite/test_context.py"],
        ["tests/rewrite/test_compile.py"],
    ],
    "trace/": [
        ["tests/trace", "tests/engine/test_watch.py", "tests/rewrite/test_report.py", "tests/diagnosis/test_sites.py"],
        ["tests/rewrite/test_context.py", "tests/diagnosis/test_contexts.py"],
        ["tests/rewrite/test_compile.py"],
    ],
    "rewrite/bisect.py": [["tests/rewrite/test_bisect.py"]],
    "rewrite/": [
        [f"tests/rewrite/test_{part}.py" for part in ("small_promises", "context", "report", "other_families")],
        [f"tests/rewrite/test_{part}.py" for part in ("convert", "run", "transforms", "every_row")],
        ["tests/rewrite/test_override.py", "tests/rewrite/test_pin_edge.py"],
        ["tests/rewrite/test_compile.py"],
    ],
    "diagnosis/": [["tests/diagnosis"]],
    "trials/paired.py": [["tests/trials/test_paired.py"]],
    "trials/family.py": [["tests/trials/test_null_comparisons.py", "tests/trials/test_compare.py"]],
    "trials/": [["tests/trials"], ["tests/report/test_own.py", "tests/report/test_tasks.py"]],
    "report/": [["tests/report"]],
    "tasks/": [["tests/tasks"], ["tests/report/test_tasks.py"], ["tests/rewrite/test_tasks.py"]],
    "analysis/audit": [["tests/analysis/test_audit.py", "tests/analysis/test_audit_cli.py"], ["tests/analysis"]],
    "analysis/palette.py": [["tests/analysis/test_palette.py"]],
    "analysis/": [["tests/analysis"]],
    "testing/": [
        ["tests/testing/test_measure.py", "tests/analysis/test_audit.py"],
        ["tests/contract/test_the_suite.py"],
        ["tests/testing/test_register_rule.py"],
    ],
    "reference/policy.py": [["tests/contract/test_values.py", "-k", "policy_loss-"]],
    "reference/activations.py": OTHER_OPS_GRADIENTS[1:2],
    "reference/": [["tests/contract/test_values.py"]],
    "ops/": [["tests/ops/test_new_bad_calls.py"], *GRADIENTS],
    "kernels/few_bits.py": [["tests/ops/test_few_bits.py"]],
    "kernels/triton/": [["tests/kernels/test_triton.py"]],
    "kernels/": [
        ["tests/engine/test_residuals.py", "tests/engine/test_memories.py"],
        ["tests/kernels/test_native.py", "-k", NOT_OF_THE_C_CODE],
        ["tests/ops/test_in_place.py", "tests/ops/test_layouts.py", "tests/ops/test_few_bits.py"],
        ["tests/kernels/test_contract.py", "-k", "native or parts"],
        *GRADIENTS,
    ],
    **dict.fromkeys(("engine.py", "formula.py", "arguments.py"), GRADIENTS),
}
# No mutants are made of these, and why. By the ends of their names.
OUT_OF_REACH = {
    ".c": "C: tests/kernels/test_native.py compares it with the formulas, for every processor and product",
    ".h": "C: tests/kernels/test_native.py compares it with the formulas, for every processor and product",
    ".html": "the frame of a page is no Python; tests/report and tests/diagnosis read the pages",
    ".css": "how a page looks is no Python; tests in a browser look at what it must not do",
    "py.typed": "it is empty: type checkers only ask whether it is there",
    "ops/samples.py": "data of the tests: where a row is tested",
    "ops/bound_samples.py": "data of the tests: where a row is tested",
}
if importlib.util.find_spec("triton") is None:
    OUT_OF_REACH["triton/__init__.py"] = "Triton is not installed here; with it tests/kernels/test_triton.py is run"
    OUT_OF_REACH["triton/loops.py"] = "Triton is not installed here; with it tests/kernels/test_triton.py is run"


def every_file(package: Path = PACKAGE) -> list[str]:
    """Of the package, without what a compiler leaves in it."""
    built = {".so", ".pyd", ".pyc", ".o"}
    files = (path for path in sorted(package.rglob("*")) if path.is_file() and path.suffix not in built)
    return [path.relative_to(package).as_posix() for path in files]


def why_not(file: str) -> str | None:
    """Why no mutant is made of it, if none is."""
    return next((reason for end, reason in OUT_OF_REACH.items() if file.endswith(end)), None)


def prefix_of(file: str) -> str | None:
    """Which tests are for it: a key of TESTS."""
    return next((prefix for prefix in TESTS if file.startswith(prefix)), None)
