"""The parameters of a model, as the lines of its class make them, and what they start as."""

from __future__ import annotations

import ast
from typing import NamedTuple

from .names import FUNCTIONS, Module, changes_in_place, find_keyword, is_constant, key_of, last_name, words
from .values import fill_value, strip_moves, tensor_values

_MAKERS = ("torch.nn.Parameter", "torch.nn.parameter.Parameter", "torch.nn.UninitializedParameter")
_EMPTY = ("torch.empty", "torch.empty_like", "torch.Tensor", "torch.FloatTensor")
_LOOK = words("print len isinstance repr str getattr hasattr id type list dict set super setattr register_parameter")


class Parameter(NamedTuple):
    """values: what its entries start as, if every line that sets them says so; else empty."""

    name: str
    line: int
    values: frozenset[float]


def find_parameter(module: Module, node: ast.expr) -> Parameter | None:
    """The parameter that this is, behind names, views and slices; None for anything else."""
    leaf = module.resolve(node)
    if isinstance(leaf, ast.Call) and isinstance(leaf.func, ast.Attribute) and leaf.func.attr == "requires_grad_":
        values = tensor_values(module, leaf.func.value)
        return None if values is None else Parameter("this leaf", leaf.lineno, values)
    node = strip_moves(module, node)
    if isinstance(node, ast.Attribute):
        return _attribute_parameter(module, node)
    tensor = parameter_tensor(module, node)
    if isinstance(node, ast.Call) and is_constant(find_keyword(node, "requires_grad"), True):
        tensor = tensor or node
    return None if tensor is None else Parameter("this leaf", node.lineno, tensor_values(module, tensor) or frozenset())


def parameter_tensor(module: Module, node: ast.expr | None) -> ast.expr | None:
    """The tensor that `nn.Parameter(tensor)` is given; None for what makes no parameter, or one that does not learn."""
    if not isinstance(node, ast.Call) or module.called_name(node) not in _MAKERS or len(node.args) > 1:
        return None
    flag = find_keyword(node, "requires_grad")
    if flag is not None and not is_constant(flag, True):
        return None
    return find_keyword(node, "data") or (node.args[0] if node.args else None)


def is_buffer(module: Module, node: ast.expr) -> bool:
    """Does the class register `self.x` as a buffer?"""
    owner, key = module.owner(node), key_of(node) or ""
    return key.startswith("self.") and any(
        module.owner(load) is owner
        and isinstance(call := module.above[load], ast.Call)
        and [getattr(argument, "value", None) for argument in call.args[:1]] == [key.removeprefix("self.")]
        for load in module.loads["register_buffer"]
    )


def _attribute_parameter(module: Module, node: ast.Attribute) -> Parameter | None:
    """`self.x`, if a line of the class makes it a parameter."""
    owner, key = module.owner(node), key_of(node) or ""
    if owner is None or not key.startswith("self."):
        return None
    starts: list[tuple[int, frozenset[float] | None]] = []
    is_parameter = False
    for _, binding in (*module.attribute_bindings(owner, key), *module.attribute_bindings(owner, f"{key}.data")):
        value = binding.value
        tensor = parameter_tensor(module, None if value is None else module.resolve(value))
        is_parameter = is_parameter or tensor is not None
        if value is not None and _is_off_by_default(module, value):
            continue
        if tensor is not None:
            values = tensor_values(module, tensor)
            if values is None and module.called_name(module.resolve(tensor)) in _EMPTY:
                continue  # what fills it says what it holds
        else:
            values = _written(module, value, value.args) if isinstance(value, ast.Call) else None
        starts.append((binding.end[0], values))
    if not is_parameter:
        return None
    for load in module.loads[last_name(node)]:
        starts += _set_by_call(module, load, owner, key)
    known = {values for _, values in starts}
    start = known.pop() if len(known) == 1 and not _is_set_in_a_loop(module, owner) else None
    return Parameter(key, max((line for line, _ in starts), default=node.lineno), start or frozenset())


def _written(module: Module, call: ast.Call, arguments: list[ast.expr]) -> frozenset[float] | None:
    """What `x.fill_(2)` and `nn.init.constant_(x, 2)` write."""
    fills = [fill for name in ("val", "value") if (fill := find_keyword(call, name)) is not None]
    value = fill_value(module, last_name(call), [*arguments, *fills]) if changes_in_place(last_name(call)) else None
    return None if value is None else frozenset({value})


def _set_by_call(
    module: Module, load: ast.expr, owner: ast.ClassDef, key: str
) -> list[tuple[int, frozenset[float] | None]]:
    """`nn.init.zeros_(self.x)`; what another function does to `self.x` where a model is set up is not known, nor `init.zeros_(m.x)`."""
    if isinstance(module.above[load], ast.Attribute) and last_name(module.above[load]) == "data":
        load = module.above[load]  # type: ignore[assignment]
    call = module.above[load]
    call = module.above[call] if isinstance(call, (ast.keyword, ast.Attribute)) else call
    if not isinstance(call, ast.Call) or last_name(call) in _LOOK or last_name(call) == "requires_grad_":
        return []
    is_in_place = changes_in_place(last_name(call))
    if (key_of(load) or "").removesuffix(".data") != key or module.owner(load) is not owner:
        is_other = is_in_place and not (key_of(load) or "self.").startswith("self.")
        return [(call.lineno, None)] if is_other else []
    if load is not call.func and module.called_name(call).startswith("torch.nn.init."):
        return [(call.lineno, _written(module, call, call.args[1:]))]
    method = next((up.name for up in module.parents(call) if isinstance(up, FUNCTIONS)), "")
    is_helper = not isinstance(call.func, ast.Attribute) and ("init" in method or "reset" in method)
    is_helper = is_helper and not module.called_name(call).startswith("torch.nn.functional.")
    return [(call.lineno, None)] if is_helper else []


def _is_set_in_a_loop(module: Module, owner: ast.ClassDef) -> bool:
    """`for p in self.parameters()` where the model is set up."""
    loads = (load for name in ("parameters", "named_parameters") for load in module.loads[name])
    methods = [
        up for load in loads if module.owner(load) is owner for up in module.parents(load) if isinstance(up, FUNCTIONS)
    ]
    return any("init" in method.name or "reset" in method.name for method in methods)


def _is_off_by_default(module: Module, node: ast.expr) -> bool:
    """Does the line stand behind `if flag:` where the argument `flag` is False by default? Most calls do not run it."""
    child: ast.AST = node
    for parent in module.parents(node):
        if isinstance(parent, ast.If) and isinstance(parent.test, ast.Name):
            flag = module.resolve(parent.test)
            branch = parent.orelse if is_constant(flag, True) else parent.body if is_constant(flag, False) else []
            if child in branch:
                return True
        child = parent
    return False
