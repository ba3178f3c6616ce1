"""What a class says of itself: its parameters and what they start as, its buffers, its constants."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from .tensors import filled_with, tensor_values
from .terms import Env, Module, Parameter, Term, arguments_of, bindings, key_of

_MAKERS = ("torch.nn.Parameter", "torch.nn.parameter.Parameter", "torch.nn.UninitializedParameter")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


_ALL = "*"  # parameters, in a loop over them


class Facts(NamedTuple):
    parameters: dict[str, Parameter]
    buffers: frozenset[str]
    attributes: Env


def facts_of(node: ast.ClassDef, env: Env, module: Module) -> Facts:
    """attributes: by "self.x", what is given to it once and in `__init__` or at the class itself."""
    values: dict[str, list[tuple[Term, bool]]] = {}
    starts: dict[str, list[tuple[int, frozenset[float] | None]]] = {}
    buffers: set[str] = set()
    for statement in node.body:
        if (
            isinstance(statement, ast.Assign)
            and len(statement.targets) == 1
            and isinstance(statement.targets[0], ast.Name)
        ):
            values.setdefault(f"self.{statement.targets[0].id}", []).append((Term(statement.value, env, module), True))
        if isinstance(statement, _FUNCTIONS):
            _of_method(statement, env, module, values, starts, buffers)
    made = {
        name: [*found, *([(0, None)] if _ALL in starts or name.removeprefix("self.") in module.set_from_afar else [])]
        for name, found in starts.items()
        if any(_is_made(term) for term, _ in values.get(name, ()))
    }
    parameters = {name: _parameter(name, found) for name, found in made.items()}
    attributes = {
        name: some[0][0] if len(some) == 1 and some[0][1] and name not in parameters else None
        for name, some in values.items()
    }
    return Facts(parameters, frozenset(buffers), attributes)


def _parameter(name: str, found: list[tuple[int, frozenset[float] | None]]) -> Parameter:
    """The values of every line that sets them; none if one of these is not known."""
    known = [one for _, one in found if one is not None]
    last = max(line for line, _ in found)
    values = (
        frozenset[float]().union(*known) if len(known) == len(found) and len(set(known)) == 1 else frozenset[float]()
    )
    return Parameter(name, last, values)


def made_as_parameter(term: Term) -> Term | None:
    """The tensor that `nn.Parameter(tensor)` is given."""
    node = term.node
    if not isinstance(node, ast.Call) or term.module.dotted(node.func, term.env) not in _MAKERS:
        return None
    for keyword in node.keywords:
        if keyword.arg == "requires_grad" and not (
            isinstance(keyword.value, ast.Constant) and keyword.value.value is True
        ):
            return None
        if keyword.arg == "data":
            return term.of(keyword.value)
    if len(node.args) > 1:
        return None
    return term.of(node.args[0]) if node.args else None


def _is_made(term: Term) -> bool:
    return made_as_parameter(term) is not None


def _of_method(
    method: ast.FunctionDef | ast.AsyncFunctionDef,
    env: Env,
    module: Module,
    values: dict[str, list[tuple[Term, bool]]],
    starts: dict[str, list[tuple[int, frozenset[float] | None]]],
    buffers: set[str],
) -> None:
    inner: Env = {**env, **arguments_of(method.args, env, module)}
    touched: dict[str, int] = {}
    for node in ast.walk(method):
        if isinstance(node, (ast.Assign, ast.AugAssign)):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for name in _names(target):
                    touched[name] = touched.get(name, 0) + 1
    for name in set(touched) & set(inner):
        inner[name] = None
    unused = _off_by_default(method, inner)
    for node in ast.walk(method):
        if id(node) in unused:
            continue
        if isinstance(node, ast.Assign) or (isinstance(node, ast.AnnAssign) and node.value is not None):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            assert node.value is not None
            for target in targets:
                _given(
                    target,
                    Term(node.value, bindings(node.value, inner), module),
                    method.name,
                    touched,
                    inner,
                    values,
                    starts,
                )
        elif isinstance(node, ast.AugAssign):
            for name in _names(node.target):
                starts.setdefault(name.removesuffix(".data"), []).append((node.lineno, None))
                values.setdefault(name, []).append((Term(node.value, bindings(node.value, inner), module), False))
        elif isinstance(node, ast.Call):
            if key_of(node.func) in ("self.parameters", "self.named_parameters") and _sets_up(method.name):
                starts[_ALL] = [(node.lineno, None)]
            for name, start in _set_by(Term(node, bindings(node, inner), module), buffers):
                if start is None and isinstance(node.func, ast.Name) and not _sets_up(method.name):
                    continue
                starts.setdefault(name, []).append((node.lineno, start))


def _sets_up(method: str) -> bool:
    return "init" in method or "reset" in method


def _off_by_default(method: ast.FunctionDef | ast.AsyncFunctionDef, env: Env) -> set[int]:
    """What stands behind `if flag:` where the argument `flag` is False by default: most calls do not run it."""
    found: set[int] = set()
    for node in ast.walk(method):
        flag = env.get(node.test.id) if isinstance(node, ast.If) and isinstance(node.test, ast.Name) else None
        value = flag.node.value if flag is not None and isinstance(flag.node, ast.Constant) else None
        if isinstance(node, ast.If) and isinstance(value, bool):
            branch = node.orelse if value else node.body
            found |= {id(inner) for statement in branch for inner in ast.walk(statement)}
    return found


def _given(
    target: ast.expr,
    value: Term,
    method: str,
    touched: dict[str, int],
    inner: Env,
    values: dict[str, list[tuple[Term, bool]]],
    starts: dict[str, list[tuple[int, frozenset[float] | None]]],
) -> None:
    key = key_of(target)
    if key is None:
        for name in _names(target):
            values.setdefault(name, []).append((value, False))
            starts.setdefault(name.removesuffix(".data"), []).append((target.lineno, None))
        return
    if key.startswith("self."):
        values.setdefault(key, []).append((value, method == "__init__"))
        tensor = made_as_parameter(value)
        start = None if tensor is None else tensor_values(tensor)
        if tensor is not None and start is None and _is_empty(tensor):
            return  # what fills it says what it holds
        starts.setdefault(key.removesuffix(".data"), []).append((target.lineno, start))
    elif touched.get(key) == 1:
        inner[key] = value


def _is_empty(tensor: Term) -> bool:
    node = tensor.resolved().node
    return isinstance(node, ast.Call) and (tensor.module.dotted(node.func, tensor.env) or "") in (
        "torch.empty", "torch.empty_like", "torch.Tensor", "torch.FloatTensor"
    )  # fmt: skip


def _set_by(call: Term, buffers: set[str]) -> Iterator[tuple[str, frozenset[float] | None]]:
    """`nn.init.zeros_(self.x)`, `self.x.data.fill_(1)`; what any other function in place does to it is not known."""
    node = call.node
    assert isinstance(node, ast.Call)
    if not isinstance(node.func, ast.Attribute):
        yield from _handed_over(call, node)
        return
    name = node.func.attr
    first = node.args[0] if node.args else None
    if name == "register_buffer" and isinstance(first, ast.Constant) and isinstance(first.value, str):
        buffers.add(f"self.{first.value}")
    if name == "register_parameter" and len(node.args) > 1 and isinstance(first, ast.Constant):
        return
    if not name.endswith("_") or name.endswith("__") or name == "requires_grad_":
        return
    is_init = (call.module.dotted(node.func, call.env) or "").startswith("torch.nn.init.")
    named = next((one.value for one in node.keywords if one.arg == "tensor"), None) if is_init else None
    target = key_of(named or (first if is_init and first is not None else node.func.value))
    if target is None or not target.startswith("self."):
        return
    arguments = [call.of(one) for one in (node.args[1:] if is_init else node.args)]
    arguments += [call.of(one.value) for one in node.keywords if one.arg in ("val", "value")]
    value = filled_with(name, arguments)
    yield target.removesuffix(".data"), None if value is None else frozenset({value})


_LOOK = frozenset(
    [
        "print",
        "len",
        "isinstance",
        "repr",
        "str",
        "getattr",
        "hasattr",
        "id",
        "type",
        "list",
        "dict",
        "set",
        "super",
        "setattr",
    ]
)


def _handed_over(call: Term, node: ast.Call) -> Iterator[tuple[str, None]]:
    """`trunc_normal_(self.x)`, `helper(self.x)`: what it holds then is not known."""
    if isinstance(node.func, ast.Name) and node.func.id in _LOOK:
        return
    if (call.module.dotted(node.func, call.env) or "").startswith("torch.nn.functional."):
        return
    for one in (*node.args, *(keyword.value for keyword in node.keywords)):
        if (key := key_of(one)) is not None and key.startswith("self."):
            yield key.removesuffix(".data"), None


def _names(target: ast.AST) -> Iterator[str]:
    if isinstance(target, (ast.Tuple, ast.List)):
        for one in target.elts:
            yield from _names(one)
    elif isinstance(target, ast.Subscript):
        yield from _names(target.value)
    elif (key := key_of(target)) is not None:
        yield key
