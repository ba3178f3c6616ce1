# %% [markdown]
# # Questions people ask about clamp, its gradient and custom functions
#
# The questions come from forum threads, a Q&A site and an article. Each gets a short answer and a few lines of code
# that assert what they print, so this page is also a test. Where torch's own clamp changed between versions, the code
# shows the rule of both eras, and prints what the installed torch does without asserting it.
#
# Words: `x` is the input, `y` the output, `grad` is `dL/dy`, and `grad_x` is `dL/dx`.

# %%
import torch

import pseudograd as pg

print("torch", ".".join(torch.__version__.split(".")[:2]))


def leaf(*values):
    return torch.tensor(values, requires_grad=True)


def grad_of(f, x, grad=1.0):
    """dL/dx as a list, with the same dL/dy for every element of f(x)."""
    return pg.gradient(f, x, grad).tolist()


# %% [markdown]
# ## What is the simplest custom Function?
#
# One whose slope is its own value: the exponential. `forward` computes `y`, and keeps it. `backward` is given `grad`, how
# much the loss changes with `y`, and returns how much it changes with `x`: `grad` times the slope, which is `y` again.
# That product is the chain rule, and it is all that `backward` has to do.


# %%
class Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.exp(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return grad * y


x = leaf(0.0, 1.0, 2.0)
loss = (10 * Exp.apply(x)).sum()
loss.backward()
print("x       ", x.tolist())
print("y       ", [round(value, 3) for value in Exp.apply(x).tolist()])
print("dL/dx   ", [round(value, 3) for value in x.grad.tolist()], "= 10 * y, because L = 10 * y")
assert torch.allclose(x.grad, 10 * torch.exp(x))

# %% [markdown]
# ## Can a custom Function be differentiated twice?
#
# Yes, if its `backward` is made of operations that torch can differentiate: autograd records them like any others when
# the first gradient is taken with `create_graph=True`. `Exp` keeps its output, which autograd knows as its own, so its
# second and third derivative are the exponential, too.
#
# The second derivative is wrong, without a message, if `backward` uses a value that autograd does not know, such as a
# number or a tensor that `forward` computed and put on `ctx`: such a value counts as a constant. Below, `forward`
# stores the slope of `x ** 3`. The first derivative is right, the second one is missing. `gradgradcheck` notices this.


# %%
def derivatives(f, x, count):
    """f', f'', ... at x."""
    found, y = [], f(x)
    for _ in range(count):
        (y,) = torch.autograd.grad(y.sum(), x, create_graph=True, allow_unused=True, materialize_grads=True)
        found.append(round(y.item(), 3))
        y = y if y.requires_grad else y + 0 * x
    return found


class CubeThatKeepsItsSlope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.slope = 3 * x**2  # autograd is off in here: a constant from now on
        return x**3

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.slope


class CubeThatKeepsX(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 3 * x**2


two = torch.tensor([2.0], dtype=torch.float64, requires_grad=True)
print("exp  at 2, derivatives 1 to 3:", derivatives(Exp.apply, two, 3))
print("x**3 at 2, keeping x:         ", derivatives(CubeThatKeepsX.apply, two, 3))
print("x**3 at 2, keeping its slope: ", derivatives(CubeThatKeepsItsSlope.apply, two, 3))
assert derivatives(Exp.apply, two, 3) == [7.389, 7.389, 7.389]
assert derivatives(CubeThatKeepsX.apply, two, 3) == [12, 12, 6]
assert derivatives(CubeThatKeepsItsSlope.apply, two, 3) == [12, 0, 0]
assert torch.autograd.gradgradcheck(CubeThatKeepsX.apply, two)
try:
    torch.autograd.gradgradcheck(CubeThatKeepsItsSlope.apply, two)
except (RuntimeError, AssertionError) as error:
    print("gradgradcheck:", type(error).__name__)
    noticed = True
assert noticed

# %% [markdown]
# ## What does `ReplaceGrad` do?
#
# `replace_grad(a, b)` has the value of `a`, and sends all of the gradient to `b`. It joins the forward pass of one
# computation to the backward pass of another. So a model can train through a step without a useful derivative, such as
# rounding or picking a codebook entry. If `b` is smaller and broadcasts, its gradient is summed to its shape.

# %%
hard, soft = leaf(0.0, 1.0, 1.0), leaf(0.2, 0.7, 0.9)
y = pg.replace_grad(hard, soft)
(y * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
print("value:", y.tolist(), " gradient to a:", hard.grad, " to b:", soft.grad.tolist())
assert y.tolist() == hard.tolist()
assert hard.grad is None
assert soft.grad.tolist() == [1, 2, 3]

row = torch.zeros(1, 4, requires_grad=True)
pg.replace_grad(torch.ones(3, 4), row).sum().backward()
print("b of shape (1, 4) under a of shape (3, 4):", row.grad.tolist())
assert row.grad.tolist() == [[3, 3, 3, 3]]

# %% [markdown]
# Its common use is a hard step with a soft gradient. `pg.straight_through` builds such a step from two functions.

# %%
step = pg.straight_through(lambda x: (x > 0).float(), torch.sigmoid)
x = leaf(-1.0, 0.0, 3.0)
y = step(x)
y.sum().backward()
slope_of_sigmoid = torch.sigmoid(x) * (1 - torch.sigmoid(x))
print("forward:", y.tolist(), " backward:", [round(value, 3) for value in x.grad.tolist()])
assert y.tolist() == [0, 0, 1]
assert torch.allclose(x.grad, slope_of_sigmoid)

# %% [markdown]
# ## What does the `backward` of `ClampWithGrad` do to `grad_in`?
#
# It returns `grad_in` unchanged, or 0. Inside the range everything passes. Outside, `grad` passes if a descent step
# along it would move `x` back towards the range, and becomes 0 if the step would lead further out. (`grad_in` is a
# misleading name: it is the gradient of the *output*, and what is returned is the gradient of the input.)

# %%
x = torch.tensor([-2.0, 0.0, 2.0])
pushed_down = grad_of(lambda x: pg.familiar.ClampWithGrad.apply(x, -1, 1), x, grad=+1.0)  # descent lowers y
pushed_up = grad_of(lambda x: pg.familiar.ClampWithGrad.apply(x, -1, 1), x, grad=-1.0)  # descent raises y
print("x           ", x.tolist())
print("grad = +1 ->", pushed_down)
print("grad = -1 ->", pushed_up)
assert pushed_down == [0, 1, 1]
assert pushed_up == [-1, -1, 0]

# %% [markdown]
# ## Why does it return `None, None`?
#
# `backward` must return one gradient for each argument of `forward`, in the same order. The two bounds are plain
# numbers, which have no gradient, and `None` says so. With the wrong number of gradients torch raises an error. Bounds
# that are tensors and learn have a gradient: that of the elements that they replaced. `pg.clamp` returns it.


# %%
class Scale(torch.autograd.Function):
    """factor * x, where factor is a number. `answers` is what backward adds behind the gradient of x."""

    answers = (None,)

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return factor * x

    @staticmethod
    def backward(ctx, grad):
        return (ctx.factor * grad, *Scale.answers)


x = leaf(1.0, 2.0)
Scale.apply(x, 3.0).sum().backward()
print("one gradient and one None:", x.grad.tolist())
assert x.grad.tolist() == [3, 3]

Scale.answers = ()
try:
    Scale.apply(x, 3.0).sum().backward()
except RuntimeError as error:
    print("without the None:", str(error).split(" (")[0])
    message = str(error)
assert "incorrect number of gradients" in message

low, high = leaf(-1.0), leaf(1.0)
pg.clamp(torch.tensor([-3.0, -2.0, 0.0, 5.0]), low, high).sum().backward()
print("bounds that learn: low gets", low.grad.tolist(), "and high gets", high.grad.tolist())
assert low.grad.tolist() == [2]
assert high.grad.tolist() == [1]

# %% [markdown]
# ## Is `ctx` like `self`?
#
# Partly: `forward` leaves there what `backward` needs. But `ctx` belongs to one call, not to the function: two calls
# have two of them. It is the node of the graph that the result has as `grad_fn`. Tensors belong into
# `ctx.save_for_backward`, which notices if one was changed in place before `backward`; numbers and shapes can be plain
# attributes.


# %%
class Cube(torch.autograd.Function):
    contexts = []  # noqa: RUF012 - shared on purpose: we look at them afterwards

    @staticmethod
    def forward(ctx, x):
        Cube.contexts.append(ctx)
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * grad


x = leaf(2.0)
first, second = Cube.apply(x), Cube.apply(x)
print("two calls, same ctx?        ", Cube.contexts[0] is Cube.contexts[1])
print("ctx is the result's grad_fn?", Cube.contexts[0] is first.grad_fn)
print("does x need a gradient?     ", Cube.contexts[0].needs_input_grad)
assert Cube.contexts[0] is not Cube.contexts[1]
assert Cube.contexts[0] is first.grad_fn
assert Cube.contexts[1] is second.grad_fn
assert Cube.contexts[0].needs_input_grad == (True,)

with torch.no_grad():
    x.add_(1)
try:
    first.backward()
except RuntimeError as error:
    print("x changed in place: ", str(error).split(":")[0])
    message = str(error)
assert "modified by an inplace operation" in message

# %% [markdown]
# ## Is `grad_out` what `forward` returned?
#
# No. `forward` returned `y`; `grad_out` is `dL/dy`, how much the loss changes with `y`. Autograd computes it from what
# happens to `y` afterwards, and passes it to `backward`. The two have the same shape, and nothing else in common.

# %%
arrived = []


class Watch(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad_out):
        arrived.append(grad_out.tolist())
        return grad_out


y = Watch.apply(leaf(1.0, 2.0, 3.0))
loss = (10 * y).sum()
loss.backward()
print("forward returned", y.tolist(), " backward received", arrived[0])
assert y.tolist() == [1, 2, 3]
assert arrived == [[10, 10, 10]]

# %% [markdown]
# ## Is `ClampWithGrad` wrong?
#
# As a derivative, yes; but it is not meant to be one. A numeric derivative outside the range is 0, and
# `ClampWithGradThatWorks` gives that. `ClampWithGrad` is a pseudo-gradient: a direction that brings back what left the
# range, which the true gradient cannot. Use it if you want this, and do not expect `gradcheck` to pass.

# %%
x = torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0], dtype=torch.float64)
width = 1e-3
numeric = [round(v, 6) for v in ((x + width).clamp(-1, 1) - (x - width).clamp(-1, 1)).div(2 * width).tolist()]
that_works = grad_of(lambda x: pg.familiar.ClampWithGradThatWorks.apply(x, -1, 1), x)
with_grad = grad_of(lambda x: pg.familiar.ClampWithGrad.apply(x, -1, 1), x)
open_edge = grad_of(lambda x: pg.clamp(x, -1, 1, rule="zero", edge="open"), x)
print("x                                  ", x.tolist())
print("numeric derivative                 ", numeric)
print("ClampWithGradThatWorks, zero/closed", that_works)
print("zero/open                          ", open_edge)
print("torch.clamp, installed             ", grad_of(lambda x: torch.clamp(x, -1, 1), x))
print("ClampWithGrad, grad = +1           ", with_grad)
assert numeric == [0, 0.5, 1, 0.5, 0]
assert that_works == [0, 1, 1, 1, 0]  # torch.clamp up to torch 2.13
assert open_edge == [0, 0, 1, 0, 0]  # torch.clamp from torch 2.14
assert with_grad == [0, 1, 1, 1, 1]

# %% [markdown]
# An example: an element that starts at 2 and should become 0.5.

# %%
for rule in ("zero", "inward"):
    x = torch.tensor([2.0])
    for _ in range(200):
        x = x - 0.1 * pg.gradient(lambda x, rule=rule: (pg.clamp(x, -1, 1, rule=rule) - 0.5) ** 2, x)
    print(f"{rule:6} from 2.0 to {x.item():.3f}")
    assert abs(x.item() - (2.0 if rule == "zero" else 0.5)) < 1e-3

# %% [markdown]
# ## Why do `clamp(min=0)` and `relu` differ at 0?
#
# Both are 0 on the left, `x` on the right, and have a corner at 0, where any value from 0 to 1 can serve as the
# slope. relu takes 0. clamp took 1 up to torch 2.13, and takes 0 from 2.14. `torch.maximum` splits it and takes one
# half. Integer data and weights hit that corner often, as this network does.

# %%
data = torch.tensor([[3.0, 2, 1], [1, 0, 2], [4, 1, 2], [0, 0, 1]])
first_layer = torch.tensor([[1.0, 2], [0, 1], [4, 0]])
second_layer = torch.tensor([[-1.0, 1], [-2, 3]])
print("row 4 before the activation:", (data @ first_layer)[3].tolist())
assert (data @ first_layer)[3].tolist() == [4, 0]


def first_layer_grad(activation):
    return pg.gradient(lambda w: ((activation(data @ w) @ second_layer - 1) ** 2).sum(), first_layer)


difference_to_relu = {
    "zero/closed (torch <= 2.13)": lambda x: pg.clamp(x, min=0, rule="zero", edge="closed"),
    "zero/open   (torch >= 2.14)": lambda x: pg.clamp(x, min=0, rule="zero", edge="open"),
    "torch.clamp, installed     ": lambda x: torch.clamp(x, min=0),
}
found = {}
for name, activation in difference_to_relu.items():
    found[name] = (first_layer_grad(torch.relu) - first_layer_grad(activation)).tolist()
    print(name, found[name])
assert found["zero/closed (torch <= 2.13)"] == [[0, 0], [0, 0], [0, -38]]
assert found["zero/open   (torch >= 2.14)"] == [[0, 0], [0, 0], [0, 0]]

# %% [markdown]
# ## Why is the difference of the second layer's weights zero everywhere?
#
# Because their gradient never passes the activation. Reverse mode walks the forward pass backwards, one step at a time,
# and each step needs two things: the gradient that arrives from behind, and the values of that step. For the second
# layer these are `d_out` and the hidden values `h`. Both are the same, since relu and clamp have the same *values*; at 0
# both give 0. The activations differ in the next step only, where `d_h` becomes `d_z`, and only where `z` is exactly 0.
#
# The cell does by hand what `backward()` does, and compares.


# %%
def by_hand(slope_at_zero):
    z = data @ first_layer
    h = torch.where(z > 0, z, 0.0)
    out = h @ second_layer
    d_out = 2 * (out - 1)  # the loss is the sum of (out - 1) ** 2
    d_second = h.T @ d_out  # every hidden value times what arrives behind it: no slope of the activation in it
    d_h = d_out @ second_layer.T
    d_z = d_h * torch.where(z > 0, 1.0, torch.where(z == 0, slope_at_zero, 0.0))
    d_first = data.T @ d_z
    return {
        "z": z,
        "h": h,
        "out": out,
        "d_out": d_out,
        "d_second": d_second,
        "d_h": d_h,
        "d_z": d_z,
        "d_first": d_first,
    }


def second_layer_grad(activation):
    return pg.gradient(lambda w: ((activation(data @ first_layer) @ w - 1) ** 2).sum(), second_layer)


relu, clamp = by_hand(slope_at_zero=0.0), by_hand(slope_at_zero=1.0)
print(f"{'step':9} {'relu':>44}    where a slope of 1 at 0 differs")
for step in relu:
    differs = (relu[step] != clamp[step]).nonzero().tolist()
    print(f"{step:9} {[[int(v) for v in row] for row in relu[step].tolist()]!s:>44}    {differs or 'nowhere'}")
closed = difference_to_relu["zero/closed (torch <= 2.13)"]
assert torch.equal(relu["d_first"], first_layer_grad(torch.relu))
assert torch.equal(clamp["d_first"], first_layer_grad(closed))
assert torch.equal(relu["d_second"], second_layer_grad(torch.relu))
assert torch.equal(clamp["d_second"], second_layer_grad(closed))
assert torch.equal(relu["d_second"], clamp["d_second"])

# %% [markdown]
# The 38 can be followed: row 4 has `z = 0` in its second column, and `d_h` is 38 there. A slope of 1 lets it through to
# `d_z`, a slope of 0 does not. Row 4 of the data is `[0, 0, 1]`, so it reaches the third row of `d_first` alone: relu
# minus clamp is -38 there, and 0 in all other places, because no other `z` is 0.

# %%
at_zero = (relu["z"] == 0).nonzero().tolist()
print("z is 0 at", at_zero, " d_h there:", relu["d_h"][3, 1].item(), " row of the data:", data[3].tolist())
assert at_zero == [[3, 1]]
assert relu["d_h"][3, 1] == 38
assert (relu["d_first"] - clamp["d_first"]).tolist() == found["zero/closed (torch <= 2.13)"]

# %% [markdown]
# The same with one number: the gradient of `(activation(x) - 1) ** 2` at `x = 0`.

# %%
zero = torch.tensor(0.0)
one_number = {
    "relu                 ": (torch.relu, 0),
    "pg.relu              ": (pg.relu, 0),
    "pg.relu, edge closed ": (lambda x: pg.relu(x, edge="closed"), -2),
    "clamp, zero/closed   ": (lambda x: pg.clamp(x, min=0, rule="zero", edge="closed"), -2),
    "clamp, zero/open     ": (lambda x: pg.clamp(x, min=0, rule="zero", edge="open"), 0),
    "clamp, zero/half     ": (lambda x: pg.clamp(x, min=0, rule="zero", edge="half"), -1),
    "torch.maximum        ": (lambda x: torch.maximum(x, torch.tensor(0.0)), -1),
    "torch.clamp installed": (lambda x: torch.clamp(x, min=0), None),
}
for name, (activation, expected) in one_number.items():
    value = grad_of(lambda x, activation=activation: (activation(x) - 1) ** 2, zero)
    print(name, value)
    assert expected is None or value == expected

# %% [markdown]
# ## Why is my gradient zero?
#
# The chain rule multiplies the slopes along a path. A clamped element has slope 0, and no factor before or after it
# can bring that product back. Below, `x = a * b` is clamped to `[1, 5]`, so `dL/da` is `1 * dy/dx * b`. The last
# product is 8, above the range, so its gradient is 0. The first is exactly 1, at the bound: there the version of torch
# decides. Up to 2.13 the slope is 1 wherever nothing was clamped; since 2.14 it is 0 at the bound.

# %%
a, b = torch.tensor([1.0, 2, 3, 4]), torch.tensor([1.0, 2, 1, 2])


def table(edge):
    product = a * b
    y = pg.clamp(product, 1, 5, rule="zero", edge=edge)
    dy_dx = pg.gradient(lambda x: pg.clamp(x, 1, 5, rule="zero", edge=edge), product)
    grad_a = pg.gradient(lambda a: pg.clamp(a * b, 1, 5, rule="zero", edge=edge), a)
    grad_b = pg.gradient(lambda b: pg.clamp(a * b, 1, 5, rule="zero", edge=edge), b)
    print(f"zero/{edge}\n   a   b   a*b   y   dL/dy * dy/dx * dx/da = dL/da   dL/db")
    for row in zip(a, b, product, y, dy_dx, grad_a, grad_b, strict=True):
        a_i, b_i, x_i, y_i, slope, to_a, to_b = (int(value) for value in row)
        print(f"   {a_i}   {b_i}   {x_i:3}   {y_i}       1 *     {slope} *     {b_i} = {to_a:5}   {to_b:5}")
    assert torch.equal(grad_a, dy_dx * b)
    return y.tolist(), grad_a.tolist(), grad_b.tolist()


assert table("closed") == ([1, 4, 3, 5], [1, 2, 1, 0], [1, 2, 3, 0])  # torch.clamp up to torch 2.13
assert table("open") == ([1, 4, 3, 5], [0, 2, 1, 0], [0, 2, 3, 0])  # torch.clamp from torch 2.14
print("torch.clamp, installed: dL/da", grad_of(lambda a: torch.clamp(a * b, 1, 5), a))

# %% [markdown]
# **Where does the sum 13 come from, and what is its part in this?** `c = clamp(a * b, 1, 5)` is `[1, 4, 3, 5]`: the
# products are 1, 4, 3 and 8, and only the 8 is changed. Their sum `d` is 13. Its value is not in any gradient: a sum
# passes the same `dL/dy = 1` to each of its terms, whether they are large or small. So it is the first factor above, and
# another `d` would do the same. The mean would hand 1/4 to each.

# %%
c = torch.clamp(a * b, 1, 5)
d = c.sum()
of_sum, of_mean = (pg.gradient(reduce, c).tolist() for reduce in (torch.sum, torch.mean))
print("c =", c.tolist(), " d =", d.item(), " dd/dc =", of_sum, " of the mean:", of_mean)
assert c.tolist() == [1, 4, 3, 5]
assert d == 13
assert of_sum == [1, 1, 1, 1]
assert of_mean == [0.25, 0.25, 0.25, 0.25]

# %% [markdown]
# In a sum, each branch gets a gradient of its own. If the value also reaches the loss by a path around the clamp, this
# path has a gradient even when the clamped one has none. If there is no such path, choose another rule.

# %%
around = grad_of(lambda a: pg.clamp(a * b, 1, 5, rule="zero") + 0.5 * (a * b), a)
inward = grad_of(lambda a: pg.clamp(a * b, 1, 5), a)
print("with a branch around the clamp:", around)
print("with rule inward:              ", inward)
assert around == [1.5, 3, 1.5, 1]  # the last is the branch alone: 0.5 * b
assert inward == [1, 2, 1, 2]

# %% [markdown]
# ## When is `.detach()` right?
#
# When no gradient should pass at all: for a target, a statistic, a frozen part. `.detach()` cuts a whole branch, a
# clamp only single elements.

# %%
x = leaf(1.0, 3.0)
share = x / x.sum().detach()  # the sum is used as a constant
share[1].backward()
print("sum held constant:", x.grad.tolist())
assert x.grad.tolist() == [0, 0.25]

# %% [markdown]
# `x + (q - x).detach()` is often written for "the value of q, the gradient of x". The gradient is right. The value is
# `q` only up to rounding: if `x` is large `q` is lost, and if `x` is infinite the result is NaN. `replace_grad(q, x)`
# is exact, because it adds nothing.

# %%
x = torch.tensor([1e8, 0.1, torch.inf])
q = torch.tensor([1.0, 0.7, 1.0])
by_detach = x + (q - x).detach()
by_replace = pg.replace_grad(q, x.clone().requires_grad_())
print("wanted     ", q.tolist())
print("detach     ", by_detach.tolist())
print("replace    ", by_replace.tolist())
assert by_detach[0] == 0
assert by_detach[2].isnan()
assert torch.equal(by_replace, q)

points = torch.linspace(-3, 3, 10_001)
clamped = points.clamp(-0.3, 0.7)
wrong = (points + (clamped - points) != clamped).float().mean().item()
print(f"clamp to (-0.3, 0.7) by the detach trick: {wrong:.0%} of the values are not what torch.clamp gives")
assert wrong > 0.1
assert torch.equal(pg.replace_grad(clamped, points.clone().requires_grad_()), clamped)
