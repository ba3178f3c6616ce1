"""A gradient that is not finite and reached parameters: the op that made it, and an edit that prevents it."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from ....listen.frames import NO_LINE, NOWHERE
from ....wording import counted, shortened
from ...count.drops import MATRIX_PRODUCTS
from ...count.leaf import MOST_IN_WARM_UP, Leaf
from ...records import Finding
from ...sites import expression_at
from .kind import Evidence, Kind

if TYPE_CHECKING:
    from ...count.births import Birth
    from ...count.nonfinite import Nonfinite
    from ...count.optimisers import SteppedOptimiser

_LONG = 24  # characters: a longer operand is written only once in a line to paste
_WHY = {
    "root": "the slope of a root is infinite at 0, and below 0 there is no root",
    "division": "a division by 0, or by a number so small that its inverse or the square of that is too large",
    "log": "the slope of a logarithm is infinite at 0, and below 0 it has no value",
    "log of softmax": "the softmax rounds a small probability to 0, and the logarithm of 0 is -inf",
    "log of sigmoid": "the sigmoid rounds to 0 or 1, and the logarithm of 0 is -inf",
    "arc": "the slope is infinite at the ends of the range of this function, and it has no value outside",
    "softmax": "every entry of a row is -inf, or one is inf or nan: such a row has no softmax",
    "unseen": "this op made it, or a value that enters was not finite before: torch keeps nothing here that tells which",
    "factor": "the other factor is not finite here",
    "half result": f"the result is larger than float16 holds: {torch.finfo(torch.float16).max:,.0f}",
    "function": "the backward of this autograd.Function returns it",
    "product": "the result, or the gradient, is larger than its dtype holds: it grows from layer to layer, or from step to step",
    "minus infinity": "the result is -inf where the loss asks for it: a mask leaves that entry out, or its logit is far below the others",
    "matrix": "equal eigenvalues or singular values, or a matrix that has no inverse: their derivative divides by 0",
    "too few": "too few entries: a mean of none, or the spread of a single one, has no value",
    "data": "the data held it, or a value behind detach or no_grad: no op of this graph made it",
    "weights": "the gradients before it were finite: the weights were made or loaded so, or a step made them so, as by too large a rate",
}
_MASKED = ". What arrives at these entries is 0, as behind a where, a mask, a clamp or a square, and 0 * inf is nan"
# The smallest x with a finite slope in each dtype, with room for a gradient that is larger than 1. None: in all other dtypes.
_LEAST: dict[str, dict[torch.dtype | None, str]] = {
    "root": {torch.float16: "0.0001", torch.float64: "1e-16", None: "1e-12"},
    "division": {torch.float16: "0.01", torch.float64: "1e-16", None: "1e-06"},
    "log": {torch.float16: "0.001", torch.float64: "1e-16", None: "1e-12"},
    "arc": {torch.float16: "0.002", torch.bfloat16: "0.02", torch.float64: "1e-12", None: "1e-06"},
}
# What to write where the line cannot be rewritten, and a remark.
_CLAUSES = {
    "softmax": (
        "x.masked_fill(mask, torch.finfo(x.dtype).min)",
        "in place of -inf: a row that is all masked becomes uniform",
    ),
    "half result": (
        "x.float()",
        "compute it in float32 or torch.bfloat16, or scale x: a GradScaler changes the gradients alone",
    ),
}
# One number added to the whole diagonal leaves equal values equal.
_TO_OPS = dict.fromkeys(
    ("LinalgEigh", "LinalgEig", "LinalgSvd"),
    "Use these values alone, not the vectors; or make them differ: x + torch.diag(torch.linspace(0, 1e-3, n)).",
) | {
    "Mean": "Leave this term out where x has no entries, as in x.sum() / max(x.numel(), 1) in place of x.mean().",
    **dict.fromkeys(
        ("NllLoss", "NllLoss2D"),
        "Leave this loss out where no target counts: all are ignore_index, or have the weight 0.",
    ),
    **dict.fromkeys(
        ("Std", "Var"), "Leave this out where there is a single entry; with correction=0, its spread is 0."
    ),
    "CtcLoss": "zero_infinity=True  # of ctc_loss: a target is longer than its input can hold",
    "Hypot": "(x * x + y * y).clamp(min=1e-12).sqrt()  # in place of hypot(x, y)",
}
_X = re.compile(r"\bx\b")
_DIVIDING = ("Div", "Addcdiv")
_OPERATORS: dict[type, str] = {ast.Div: "Div", ast.Mult: "Mul", ast.Pow: "Pow"}


def _find(evidence: Evidence) -> Iterator[Finding]:
    nonfinite = evidence.nonfinite
    if nonfinite is None:
        yield from _find_late(evidence)
    elif nonfinite.is_finding:
        reached = sum(1 << bit for bit, leaf in evidence.leaves if leaf in nonfinite.reached)
        births = sorted(nonfinite.births.values(), key=_order)
        births = [birth for birth in births if _is_to_blame(birth, reached)]
        for birth in births:
            # A step may have caused a later birth.
            if birth.backward == births[0].backward or not nonfinite.used_backwards:
                yield _finding(evidence, birth, nonfinite)
        if not births and reached:
            yield from _find_late(evidence, list(nonfinite.reached))


def _is_to_blame(birth: Birth, reached: int) -> bool:
    """May these parameters have got what this birth made? A broken loss reaches all, a broken gradient only those upstream."""
    if not birth.upstream or not reached or (birth.is_forward and not birth.origin):
        return True
    return bool(birth.upstream & reached)


def _find_late(evidence: Evidence, reached: Sequence[Leaf] = ()) -> Iterator[Finding]:
    """For an op that was not seen: the first line at which such a gradient arrives. On a device the norms show it, which are read now."""
    leaves = [leaf for _, leaf in evidence.leaves if leaf in reached or _ends_broken(leaf, evidence.backwards)]
    if not leaves:
        return
    bits = sum(1 << bit for bit, leaf in evidence.leaves if leaf in leaves)
    site = next((site for site in evidence.sites if site.nonfinite and site.upstream & bits), None)
    names = tuple(leaf.name for leaf in leaves)
    evidence_text = f"{counted(len(names), 'parameter')} got a gradient that is not finite: {shortened(names, 4)}"
    cause = "a product or a sum between the loss and these parameters exceeds the range of its dtype, or an op that nobody watches made it"
    anomaly = (
        "with torch.autograd.detect_anomaly(): ...  # around the training step: names the first op that returns nan"
    )
    if site is None:
        yield KIND.finding(NO_LINE, "", evidence_text, cause, anomaly, parameters=names)
    else:
        evidence_text += f"; here it arrives first, at {site.nonfinite:,} of {site.arrived:,} entries"
        cause = "an op between here and the loss made it"
        finding = KIND.site_finding(site, evidence_text, cause, anomaly, site.nonfinite / site.arrived)
        yield replace(finding, parameters=names)


def _ends_broken(leaf: Leaf, backwards: int) -> bool:
    """Was the last norm of its gradient not finite? An infinite one of a short run may be the warm-up of a scaler."""
    norms = leaf.sizes.norm_by_step if leaf.sizes is not None and leaf.sizes.count else ()
    return bool(norms) and (math.isnan(norms[-1][1]) or (math.isinf(norms[-1][1]) and backwards >= MOST_IN_WARM_UP))


def _order(birth: Birth) -> tuple[int, int]:
    return birth.backward, 0 if birth.tally is None else birth.tally.order


def _finding(evidence: Evidence, birth: Birth, nonfinite: Nonfinite) -> Finding:
    optimiser = _find_optimiser(evidence, birth)
    location = NOWHERE if birth.tally is None else birth.tally.location
    weights = (leaf.tensor() for leaf in evidence.leaves.unpack(birth.upstream))
    are_half = any(weight is not None and weight.dtype is torch.float16 for weight in weights)
    explained = _explain(birth), _advise(birth, expression_at(location), are_half)
    if optimiser is not None:
        location, explained = optimiser.location, _explain_eps(optimiser, birth.dtype)
    return KIND.call_finding(
        location,
        f"{_describe_birth(birth)}; {_describe_reach(nonfinite)}",
        *explained,
        share=birth.entries / (birth.elements or 1) or 1.0,
        module=location.module,
        parameters=tuple(leaf.name for leaf in nonfinite.reached),
        is_muted=location is not NOWHERE and evidence.deliberate.location(location),
    )


def _describe_birth(birth: Birth) -> str:
    """When it was born, how many entries are not finite, and where."""
    count = f"{birth.entries:,} of {birth.elements:,} entries"
    values = f", where {birth.values}" if birth.values else ""
    if birth.kind == "weights":
        return f"{birth.parameter} is not finite before backward {birth.backward}"
    if birth.kind == "data":
        beside = f" of what is put in with {birth.parameter}" if birth.parameter else f" of {birth.broken!r} here"
        return f"{count}{beside} are {birth.values} in backward {birth.backward}, and so is the loss: it came in from outside of the graph"
    if not birth.is_forward or birth.origin:
        return f"born in backward {birth.backward}: {count} that leave are not finite{values}, and all that arrive are finite"
    result = "the result"
    if birth.tally is None:
        result += f" of {birth.op[:1].lower()}{birth.op[1:]}" + (f" with {birth.parameter}" if birth.parameter else "")
    came = f"it came in with the forward of backward {birth.backward}"
    text = f"{came}: {count} of {result} are not finite{values}, and so is the loss"
    if birth.earlier_backward:
        text += f", as in backward {birth.earlier_backward}, which got such values behind a detach or no_grad"
    return text


def _find_optimiser(evidence: Evidence, birth: Birth) -> SteppedOptimiser | None:
    """The optimiser whose step made weights not finite because its epsilon is 0 in their dtype."""
    if birth.kind != "weights" or not birth.dtype.is_floating_point:
        return None
    leaf = next((leaf for _, leaf in evidence.leaves if leaf.name == birth.parameter), None)
    optimiser = next((optimiser for optimiser in evidence.recorder.optimisers.all if leaf in optimiser.leaves), None)
    if leaf is None or optimiser is None or leaf.stepped_after in (None, birth.backward):
        return None
    if not isinstance(optimiser.eps, float) or float(torch.tensor(optimiser.eps, dtype=birth.dtype)):
        return None
    return optimiser


def _explain_eps(optimiser: SteppedOptimiser, dtype: torch.dtype) -> tuple[str, str]:
    """The cause, and the next step."""
    works, name = 1e-4 if dtype is torch.float16 else 1e-8, str(dtype).removeprefix("torch.")
    if not optimiser.eps:
        return (
            f"eps=0 of {optimiser.kind}, so a step divides by 0 where the square of the gradient is 0",
            f"eps={works:g}  # of {optimiser.kind}",
        )
    why = "so a step divides by 0 where the square of the gradient is 0 there, too"
    remark = f"of {optimiser.kind}; or keep the weights in float32, and compute under torch.autocast"
    return f"eps={optimiser.eps:g} of {optimiser.kind} is 0 in {name}, {why}", f"eps={works:g}  # {remark}"


def _describe_reach(nonfinite: Nonfinite) -> str:
    """The parameters that got it, and the steps that used it."""
    parameters = [leaf.name for leaf in nonfinite.reached if leaf.is_parameter]
    names, used = parameters or [leaf.name for leaf in nonfinite.reached], nonfinite.used_backwards
    if not names:
        return "no parameter got it"
    text = f"{counted(len(names), 'parameter' if parameters else 'tensor')} got it: {shortened(names, 4)}"
    if used:
        spread = f"that of {counted(nonfinite.first_hit, 'parameter')}" if nonfinite.first_hit > len(names) else "it"
        text += f"; the step after backward {used[0]} used {spread}"
    elif nonfinite.are_weights_broken:
        text += "; the weights are not finite since"
    elif nonfinite.lost_steps and nonfinite.has_optimiser():
        text += (
            f"; no step followed {nonfinite.lost_steps:,} of {counted(len(nonfinite.hit_backwards), 'such backward')}"
        )
    return text


def _explain(birth: Birth) -> str:
    """The cause."""
    if birth.kind == "half":
        times = f", {birth.excess:.2g} times as much as" if birth.excess else ", more than"
        return f"a gradient leaves{times} float16 holds: {torch.finfo(torch.float16).max:,.0f}"
    if birth.kind == "overflow":
        limit = f"{torch.finfo(birth.dtype).max:.3g}"
        why = f"the result or its slope is larger than {str(birth.dtype).removeprefix('torch.')} holds: {limit}"
    else:
        why = _WHY.get(
            birth.kind,
            f"the {'forward' if birth.is_forward else 'backward'} of {birth.op} makes it from values that are finite",
        )
    if birth.dtype is torch.float16 and birth.kind in _LEAST:
        why += "; an epsilon below 3e-08 is 0 in float16"
    if birth.origin:
        entered = f"a value that enters is not finite: it came in with the forward, from {birth.origin}"
        why = entered if birth.kind == "broken input" else f"{why}; {entered}"
    return f"{why}{_MASKED if birth.is_masked else ''}"


# --- the next step ----------------------------------------------------------------------------------------------------


def _advise(birth: Birth, expression: str, are_weights_half: bool) -> str:
    plain = {
        "half": "torch.amp.GradScaler lowers its scale until this fits; or take torch.bfloat16, which has the range of float32.",
        "log of softmax": "torch.log_softmax(logits, dim)  # in place of the softmax and this log: it computes both without a 0",
        "log of sigmoid": "F.logsigmoid(logits)  # in place of the sigmoid and this log; of 1 - sigmoid: F.logsigmoid(-logits)",
        "function": "Let its backward return 0, or a bound, where its slope is infinite.",
        "matrix": "Add a small number to its diagonal, as in x + 1e-4 * torch.eye(n).",
        "product": "A smaller learning rate, smaller initial weights, or a normalisation in front of it; print what enters, step by step.",
        "minus infinity": "Leave such entries out of the loss, or mask them with torch.finfo(x.dtype).min in place of -inf.",
        "too few": "Leave this loss out where it has no entries.",
        "data": "assert torch.isfinite(batch).all()  # of inputs, targets and detached values, before they are used",
        "weights": "Before each step, look for the first parameter that is not finite: bool(p.isfinite().all()) is False.",
        **dict.fromkeys(
            ("other", "broken input", "unseen"),
            "Print the values that enter here, their smallest and largest.",
        ),
    }.get(birth.kind)
    if birth.kind == "half" and are_weights_half:  # a GradScaler refuses their gradients
        return f"Keep the weights in float32, and compute under torch.autocast. There {plain}"
    if plain is not None:
        return _TO_OPS.get(birth.op, plain)
    if birth.kind == "half result" and birth.op in MATRIX_PRODUCTS:
        return "Take torch.bfloat16, which has the range of float32; or scale what enters, as a normalisation in front of it does."
    mend = _mend(birth)
    pasted = _rewrite(expression, birth, mend)
    if birth.kind in _CLAUSES:
        otherwise, clause = _CLAUSES[birth.kind]
        return f"{pasted or otherwise}  # {clause}"
    enters = "for the divisor here" if birth.op in _DIVIDING else f"for the x that enters {birth.op.lower()} here"
    why = "in front of it" if pasted else enters
    also = "; in place of log(exp(x).sum(dim)): torch.logsumexp(x, dim)" if birth.op == "Exp" else ""
    return f"{pasted or mend}  # {why}{': what stands behind it comes too late' if birth.is_masked else ''}{also}"


def _mend(birth: Birth) -> str:
    """The source of what to write in place of the x that enters: its result and its slope are finite."""
    kind, op, dtype = birth.kind, birth.op, birth.dtype
    if kind == "half result":
        return "x.float()"
    if kind == "softmax":
        end = "6e4" if dtype is torch.float16 else "1e30"
        return f"x.clamp(-{end}, {end})"
    if kind == "overflow":  # a loss squares it
        return f"x.clamp(max={ {torch.float16: 5, torch.float64: 350}.get(dtype, 40) })"
    if kind == "factor":
        return "torch.where(x.isfinite(), x, 0)"
    least = _least(birth, "arc" if op in ("Log1P", "Logit") else kind)
    if birth.divides_by_number:  # abs() takes a number of Python, too
        return f"({1 if birth.is_masked else least} if abs(x) < {least} else x)"
    if dtype.is_complex or (kind == "division" and op in (*_DIVIDING, "Reciprocal")):
        return f"torch.where(x.abs() > {least}, x, {1 if birth.is_masked else least})"
    if kind == "arc":
        return f"x.clamp(min=1 + {least})" if op == "Acosh" else f"x.clamp(-1 + {least}, 1 - {least})"
    if op == "Logit":
        return f"x.clamp({least}, 1 - {least})"
    return f"x.clamp(min={'-1 + ' if op == 'Log1P' else ''}{least})"


def _least(birth: Birth, kind: str) -> str:
    return _LEAST[kind].get(birth.dtype, _LEAST[kind][None])


def _rewrite(expression: str, birth: Birth, mend: str) -> str:
    """The call with its x mended; "" if the expression is no call of this op."""
    try:
        tree = ast.parse(expression, mode="eval").body
    except SyntaxError:
        return ""
    position = {"Div": 1, "Xlogy": 1, "Addcdiv": 2}.get(birth.op, 1 if birth.broken == "other" else 0)
    operand = _operand(tree, birth.op, position)
    root = None if birth.kind != "division" or operand is None else _operand(operand, "Sqrt", 0)
    if root is not None:  # a root as divisor: the slope of the root is infinite at 0, too
        operand, mend = root, f"x.clamp(min={_least(birth, 'root')})"
    source = None if operand is None else ast.get_source_segment(expression, operand)
    if operand is None or source is None or operand.lineno != operand.end_lineno or "\n" in expression:
        return ""
    x = source if isinstance(operand, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)) else f"({source})"
    start, end = operand.col_offset, operand.end_col_offset
    before, after = expression.encode()[:start].decode(), expression.encode()[end:].decode()
    first, *others = _X.split(mend)
    if len(x) > _LONG and len(others) > 1:
        return f"{before}{first}(inner := {source}){'inner'.join(others)}{after}"
    return f"{before}{x.join([first, *others])}{after}"


def _operand(tree: ast.expr, op: str, position: int) -> ast.expr | None:
    """The x of an expression of this op: a divisor, a base, the first argument of a function of torch, or the owner of a method."""
    if isinstance(tree, ast.BinOp):
        is_op = _OPERATORS.get(type(tree.op)) == op or (isinstance(tree.op, ast.Div) and op == "Reciprocal")
        return None if not is_op else tree.right if position or op == "Reciprocal" else tree.left
    if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Attribute):
        return None
    if tree.func.attr.replace("_", "").replace("arc", "a") != op.lower().removeprefix("special"):
        return None
    owner = root = tree.func.value
    while isinstance(root, ast.Attribute):
        root = root.value
    is_function = isinstance(root, ast.Name) and root.id in ("torch", "F", "functional", "special")
    values = tree.args if is_function else [owner, *tree.args]
    return values[position] if position < len(values) else None


KIND = Kind("PG211", order=5, find=_find)
