"""Survivors that no test can kill, with the reason: (file, function, change) -> why."""

EXPLAINED: dict[tuple[str, str, str], str] = {
    (
        "ops/bounds.py",
        "_checked",
        "len(call.admitted) > 1000 -> len(call.admitted) >= 1000",
    ): "when the memory of passed checks is emptied makes no difference to any value",
    (
        "nn.py",
        "_any_input",
        "1 -> 2",
    ): "the dimensions beside the axis may have any size, and there may be more of them",
    ("rewrite/primitives.py", "pulled", "False -> True"): "a gradient to a constant bound is computed and thrown away",
    (
        "rewrite/primitives.py",
        "pulled",
        "True -> False",
    ): "the pull of fake_quantize computes the gradient to x in any case",
    (
        "ops/quantize.py",
        "pull",
        "code > high -> code >= high",
    ): "a code at the end of the grid is that end, clamped or not",
    (
        "ops/registration.py",
        "reference",
        "1 + 2.0 ** (-40) -> 1 - 2.0 ** (-40)",
    ): "float32 rounds both to 1, float64 neither",
    ("ops/quantize.py", "_check", "0 -> 1"): "in the place of no axis, any integer is one",
    ("ops/jump.py", "_share", "0.0 -> 1.0"): "what it takes the place of is multiplied by 0",
    ("rewrite/primitives.py", "pulled", "x > max -> x >= max"): "x at max is max, clamped or not",
    ("ops/nearest_code.py", "_settled", "-1 -> 1"): "of two dimensions the last is the second",
    ("ops/nearest_code.py", "_of_finite", "-1 -> 1"): "of two dimensions the last is the second",
    (
        "rewrite/bisection.py",
        "work",
        "sys.path and sys.path[0] == '' -> sys.path or sys.path[0] == ''",
    ): "it runs under `python -c`, where there is a first entry, and it is that one",
    ("trace/frames.py", "compiled_line", "0 -> 1"): "for a frame without a line, which Dynamo does not give",
}
