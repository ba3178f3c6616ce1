"""One file uses all private names of torch, and the ops are right without any of them."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.autograd import graph
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

import pseudograd
from pseudograd.torch_table import private as torch_private

from .test_import import nodes_of_file

ROOT = Path(pseudograd.__file__).parent
# What looks private and is not torch's: our own, Python's, and torch's own name for its compiler, whose import we watch.
OURS = {"_dynamo_marked_constant"}


def _private_names_of_torch(path: Path) -> set[str]:
    """Attributes with a leading underscore of anything that hangs on torch, and such names imported from it."""
    private_names: set[str] = set()
    from_torch = {"torch", "Tensor", "functional", "forward_ad", "graph", "checkpoint", "fx", "nn"}
    for node in nodes_of_file(path):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch" and node.level == 0:
            private_names |= {part for part in (node.module or "").split(".") if part.startswith("_")}
            private_names |= {alias.name for alias in node.names if alias.name.startswith("_")}
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            root: ast.expr = node
            while isinstance(root, ast.Attribute):
                root = root.value
            if isinstance(root, ast.Name) and root.id in from_torch:
                private_names.add(node.attr)
    return private_names - OURS


def test_nobody_else_names_them() -> None:
    others = [path for path in ROOT.rglob("*.py") if path.name != "private.py"]
    named = {path.relative_to(ROOT).as_posix(): _private_names_of_torch(path) for path in others}
    assert {path: names for path, names in named.items() if names} == {}
    assert len(named) > 200


def test_an_optimiser_has_four_lists_of_hooks() -> None:
    """Those of all optimisers, and its own."""
    optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)])
    optimizer.register_step_pre_hook(lambda *_: None)
    before, after, *own = torch_private.step_hooks(optimizer)
    assert [before, after] == torch_private.global_step_hooks()
    assert list(map(len, own)) == [1, 0]


def test_a_mode_is_taken_off_from_any_place_of_the_stack() -> None:
    modes = [TorchFunctionMode() for _ in range(4)]
    for mode in modes:
        for other in modes:
            torch_private.push_mode(other)
        assert torch_private.take_off_the_stack(mode)
        assert not torch_private.take_off_the_stack(mode)
        rest = [torch_private.pop_mode() for _ in range(torch_private.mode_count())]
        assert rest[::-1] == [other for other in modes if other is not mode]


def test_this_torch_has_all_of_them() -> None:
    """Otherwise the table would have a name that nobody needs."""
    assert torch_private.status() == []


_WITHOUT = """
import importlib.util, json, os, sys
import torch
source = importlib.util.find_spec("pseudograd").submodule_search_locations[0] + "/torch_table/private.py"
text = open(source).read()

def check():
    import pseudograd as pg
    from pseudograd import doctor
    x = torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0, float("nan")])
    grad = torch.tensor([1.0, -2.0, 3.0, -4.0, 5.0, -6.0])
    wanted = [0.0, -2.0, 3.0, -4.0, 5.0, -6.0]
    f = lambda x: pg.clamp(x, -1, 1)
    leaf, checkpointed = (x.clone().requires_grad_() for _ in range(2))
    torch.utils.checkpoint.checkpoint(f, checkpointed, use_reentrant=False).backward(grad)
    for gradient in (
        torch.autograd.grad(f(leaf), leaf, grad)[0],
        torch.autograd.grad(f(leaf), leaf, grad, create_graph=True)[0],
        torch.autograd.grad(f(leaf), leaf, grad[None], is_grads_batched=True)[0][0],
        torch.func.vjp(f, x)[1](grad)[0],
        torch.vmap(lambda x, g: torch.func.vjp(f, x)[1](g)[0])(x, grad),
        checkpointed.grad,
    ):
        assert gradient.tolist() == wanted
    with torch.no_grad():
        assert f(x)[1:5].tolist() == [-1.0, 0.0, 1.0, 1.0]
    assert not f(x).requires_grad
    assert pg.round(leaf).requires_grad
    step = lambda x: pg.heaviside(x ** 2, rule="arctan")
    try:
        twice = torch.func.jvp(lambda x: torch.func.jvp(step, (x,), (torch.ones(6),))[1], (x,), (torch.ones(6),))[1]
    except NotImplementedError:
        pass
    else:
        wanted_twice = torch.func.grad(lambda x: torch.func.grad(lambda x: step(x).sum())(x).sum())(x)
        assert torch.allclose(twice[:5], wanted_twice[:5]), "forward mode twice"
    with pg.override(clamp="inward") as context:
        (ours,) = torch.autograd.grad(torch.clamp(leaf, -1, 1), leaf, grad)
    (torchs,) = torch.autograd.grad(torch.clamp(leaf, -1, 1), leaf, grad)
    assert ours.tolist() == (wanted if context.report().rewritten else torchs.tolist())
    with pg.pin_edge("half"), pg.pin_edge("torch<=2.13"):
        torch.clamp(leaf, -1, 1).sum().backward()
    p = torch.nn.Parameter(torch.tensor([2.0]))
    with pg.optim.project(torch.optim.SGD([p], 1.0), {p: (0, 1)}):
        assert p.item() == 1.0
    missing = [row["name"] for row in doctor.examine()["missing_private_names"]]
    assert missing == [HIDDEN], missing
    assert f"this torch has no {HIDDEN}" in doctor.text(doctor.examine())

# What torch loads when first asked, so that the children need not.
torch.func.jvp(lambda x: torch.func.jvp(torch.sin, (x,), (x,))[1], (torch.ones(1),), (torch.ones(1),))
torch.utils.checkpoint.checkpoint(torch.sin, torch.ones(1, requires_grad=True), use_reentrant=False).backward()
failures = {}
for HIDDEN in json.loads(sys.argv[1]):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        import types
        module = types.ModuleType("pseudograd.torch_table.private")
        module.__package__, module.__file__ = "pseudograd", source
        looked_up = "getattr(value, part, sys.modules"
        hidden = text.replace(looked_up, f"MISSING if name == {HIDDEN!r} else {looked_up}")
        assert hidden != text
        package = importlib.util.module_from_spec(importlib.util.find_spec("pseudograd"))
        sys.modules["pseudograd.torch_table.private"] = module
        try:
            exec(compile(hidden, source, "exec"), module.__dict__)
            check()
        except BaseException as error:
            import traceback
            os.write(write, traceback.format_exc()[-3000:].encode())
        os.close(write)
        os._exit(0)
    os.close(write)
    said = b""
    while part := os.read(read, 65536):
        said += part
    os.waitpid(child, 0)
    if said:
        failures[HIDDEN] = said.decode()
print(json.dumps(failures))
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="one process for each name, forked")
def test_the_ops_are_right_without_any_one_of_them() -> None:
    """In children of one process that has imported torch but not us. Each child hides one name."""
    names = json.dumps([name.name for name in torch_private.NAMES if not callable(name.is_there)])
    done = subprocess.run([sys.executable, "-c", _WITHOUT, names], capture_output=True, text=True, check=True)
    failures = json.loads(done.stdout.splitlines()[-1])
    assert failures == {}, "\n".join(f"{name}: {text}" for name, text in failures.items())


@pytest.mark.skipif(not torch_private.tells_unpack_hooks, reason="torch 2.8 does not say what unpacks")
def test_no_saved_value_is_read_by_code_of_the_program() -> None:
    x, index, inside = torch.ones(2, requires_grad=True), torch.tensor([0, 1]), []

    def nodes() -> list[Any]:
        return [x.sin().grad_fn, x[index].grad_fn]

    checkpoint(lambda x: inside.extend(nodes()) or x.sin(), x, use_reentrant=False)
    with graph.save_on_cpu():  # by a hook of torch
        of_torch = nodes()
    with graph.saved_tensors_hooks(lambda x: x, lambda x: x):
        of_program = nodes()
    for of_sin, of_index in (nodes(), of_torch):
        assert torch.equal(torch_private.saved(of_sin, "self"), x)
        assert torch.equal(*torch_private.saved(of_index, "indices"), index)
    for of_sin, of_index in (of_program, inside):
        for node, name in ((of_sin, "self"), (of_index, "indices")):
            with pytest.raises(RuntimeError, match="code of the program"):
                torch_private.saved(node, name)
