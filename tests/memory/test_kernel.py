"""The fused kernel: equal to its torch twin, whatever it is given, and harmless where it is missing."""

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from reference import random_run
from torch._subclasses.fake_tensor import FakeTensorMode

from fastweights import FastWeights, FastWeightsCell, backend
from fastweights.memory import chunked, kernel
from fastweights.memory.equations import Dynamics

needs_kernel = pytest.mark.skipif(not kernel.AVAILABLE, reason=f"no kernel: {kernel.STATUS.reason}")


@st.composite
def runs(draw):
    """Any sizes around the number of lanes, any options, all the ways that tensors can lie in memory."""
    dtype = draw(st.sampled_from([torch.float64, torch.float32]))
    T, B = draw(st.integers(1, 20)), draw(st.sampled_from([1, 2, 7, 8, 9, 15, 16, 17, 33, 63]))
    features, H = draw(st.integers(1, 41)), draw(st.integers(1, 37))
    K = draw(st.one_of(st.just(T), st.integers(1, T)))
    torch.manual_seed(draw(st.integers(0, 100)))

    def lay(tensor):
        layout = draw(st.sampled_from(["plain", "transposed", "offset", "sparse"]))
        if layout == "transposed":
            places = range(tensor.dim() - 1, -1, -1)
            return tensor.permute(*places).contiguous().permute(*places)
        if layout == "offset":  # not even aligned to 16 bytes
            return torch.cat((tensor.new_zeros(1), tensor.flatten()))[1:].view(tensor.shape)
        if layout == "sparse":
            return torch.stack((tensor, tensor), -1)[..., 0]
        return tensor

    names = ("norm", "bias", "before", "start", "shared", "wiped", "parted", "integrated", "steps")
    run = random_run(T, B, features, H, K, dtype=dtype, lay=lay, **{name: draw(st.booleans()) for name in names})
    settling, nonlinearity = draw(st.sampled_from(["sustained", "identity"])), draw(st.sampled_from(["relu", "tanh"]))
    dynamics = Dynamics(draw(st.integers(0, 3)), settling, nonlinearity, draw(st.booleans()))
    grads = lay(torch.rand(T, B, H, dtype=dtype)), lay(torch.rand(B, H, H, dtype=dtype)) if K < T else None
    return run, dynamics, grads, draw(st.sampled_from(list(ARRANGEMENTS)))


# Sequences to a vector; 1: vectors of units.
ARRANGEMENTS = {"lanes": lambda most: most, "half as many lanes": lambda most: most // 2, "units": lambda most: 1}


@contextlib.contextmanager
def arranged(arrangement):
    with pytest.MonkeyPatch.context() as patch:
        choose = ARRANGEMENTS[arrangement]
        patch.setattr(kernel, "lanes_of", lambda run, threads=None: choose(kernel.LANES[run.x.dtype]))
        yield


@needs_kernel
@settings(max_examples=300)
@given(runs())
def test_equals_its_torch_twin(case):
    run, dynamics, grads, arrangement = case
    everything = (True,) * len(chunked.Gradients._fields)
    theirs = chunked.forward(run, dynamics, True)
    assume((theirs.hs.abs() < 1e3).all())  # without layer norm a ReLU net may grow as h ← h³
    with arranged(arrangement):
        ours = kernel.forward(run, dynamics, True)
        alone = kernel.forward(run, dynamics, False)  # saves nothing
    found = kernel.backward(*grads, run, ours, dynamics, everything)
    expected = chunked.backward(*grads, run, theirs, dynamics, everything)
    assert torch.equal(alone.hs, ours.hs)
    assert alone.A is None or torch.equal(alone.A, ours.A)
    pairs = {"hs": (ours.hs, theirs.hs), "A": (ours.A, theirs.A)}
    pairs |= {name: (getattr(found, name), getattr(expected, name)) for name in found._fields}
    for name, (actual, wanted) in pairs.items():
        if (actual is None) != (wanted is None):
            assert getattr(run, name) is None  # a gradient that nobody can want
        elif actual is not None:
            assert actual.shape == wanted.shape
            assert actual.isfinite().all()
            # In float32 a state next to ReLU's corner may fall on either side: numbers are compared in float64 only.
            if actual.dtype == torch.float64 and not (name == "p_left" and run.steps is not None):
                scale = max(1.0, wanted.abs().max().item()) if wanted.numel() else 1.0
                torch.testing.assert_close(actual / scale, wanted / scale, rtol=0, atol=1e-9, msg=name)


@needs_kernel
@pytest.mark.parametrize("options", [{}, {"learn_decay": True, "layer_norm": False, "nonlinearity": "tanh"}])
@pytest.mark.parametrize("chunk_size", [None, 4])
def test_the_number_of_threads_does_not_matter(options, chunk_size):
    layer = FastWeights(7, 13, inner_steps=2, **options)
    layer._chunk_size = chunk_size
    x, lengths = torch.randn(9, 100, 7), torch.randint(0, 10, (100,))
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            layer.zero_grad()
            output, state = layer(x, lengths=lengths)
            (output.sum() + state.h.sum()).backward()
            torch.set_num_threads(1)
            results.append([output, state.h, *(p.grad.clone() for p in layer.parameters() if p.grad is not None)])
    finally:
        torch.set_num_threads(before)
    kernel_only = {
        "bias_l0",
        "norm_weight_l0",
        "norm_bias_l0",
    }  # the others go through torch's own products, which may differ
    names = ["output", "h", *(name for name, p in layer.named_parameters() if p.grad is not None)]
    for other in results[1:]:
        for name, one, many in zip(names, results[0], other, strict=True):
            if name in kernel_only | {"output", "h"}:
                assert torch.equal(one, many), name
            else:
                torch.testing.assert_close(one, many)


@needs_kernel
@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@pytest.mark.parametrize("parted", [False, True])
def test_neither_batch_mates_nor_threads_matter(arrangement, parted):
    """To the bit, in any arrangement: values, what goes on, and what each sequence has gradients of its own for."""
    T, B, H, dynamics, before = 23, 21, 39, Dynamics(2), torch.get_num_threads()
    wanted, found = (True,) * chunked.WEIGHTS + (False,) * 4, []
    # One feature: torch's own products, which may differ with the number of rows and threads, have nothing to add up.
    run = random_run(T, B, 1, H, 6, dtype=torch.float32, parted=parted, steps=True)
    some = torch.randperm(B)[: B // 2]

    def of(name, tensor):
        """What belongs to the sequences in `some`."""
        if tensor is None or name in ("C", "b", "W", "W_int", "gain", "shift"):
            return tensor
        return tensor.index_select(0 if name in ("h0", "A0", "steps") else 1, some)

    part = chunked.Run(*(of(name, tensor) for name, tensor in zip(run._fields, run, strict=True)))
    grads = torch.rand(T, B, H), torch.rand(B, H, H)
    try:
        with arranged(arrangement):
            fewer = grads[0][:, some], grads[1][some]
            for threads, each, given_back in ((1, run, grads), (3, run, grads), (2, part, fewer)):
                torch.set_num_threads(threads)
                saved = kernel.forward(each, dynamics, True)
                back = kernel.backward(*given_back, each, saved, dynamics, wanted)
                found.append({"hs": saved.hs, "h0": back.h0, "A0": back.A0, "A": saved.A})
                if each is run:
                    found[-1] |= {"gain": back.gain, "shift": back.shift, "b": back.b}
    finally:
        torch.set_num_threads(before)
    for name, tensor in found[0].items():
        assert torch.equal(tensor, found[1][name]), name
        if name in found[2]:
            assert torch.equal(tensor.index_select(1 if name == "hs" else 0, some), found[2][name]), name


@needs_kernel
@pytest.mark.parametrize("arrangement", ["half as many lanes"])
def test_narrower_vectors_make_the_same_numbers(arrangement):
    run, found = random_run(9, 21, 5, 13, 4, dtype=torch.float32), []
    for name in ("lanes", arrangement):
        with arranged(name):
            saved = kernel.forward(run, Dynamics(2), True)
        found.append((saved.hs, *kernel.backward(saved.hs, None, run, saved, Dynamics(2), (True,) * 13)[:9]))
    for wide, narrow in zip(*found, strict=True):
        assert torch.equal(wide, narrow)


@needs_kernel
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc that tells how much memory is in use")
def test_inference_needs_little_memory_and_gives_it_back():
    code = """
import torch
from fastweights import FastWeights
def memory(what):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(what)) / 1024
def peak():
    return memory("VmHWM")
def now():
    return memory("VmRSS")
with torch.no_grad():
    FastWeights(8, 8)(torch.randn(4, 1, 8))
    layer, x = FastWeights(64, 64), torch.randn(20000, 1, 64)
    before = peak()
    layer(x)
    print(peak() - before)
    layer, x = FastWeights(8, 1500), torch.randn(2, 20, 8)
    layer(x)[1].A  # before measuring: what torch keeps is torch's
    before = now()
    layer(x, layer.initial_state(20))
    print(now() - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    at_work, kept = map(float, done.stdout.split())
    assert at_work < 40  # MB: the output alone is 5, what a backward would need 26 and more
    assert kept < 100


@needs_kernel
@given(st.data())
def test_sums_of_outer_products(data):
    dtype = data.draw(st.sampled_from([torch.float64, torch.float32]))
    rows, M, N = data.draw(st.integers(0, 600)), data.draw(st.integers(1, 40)), data.draw(st.integers(1, 140))
    threads = data.draw(st.integers(1, 3))
    a, b = torch.randn(rows, M, dtype=dtype), torch.randn(rows, N, dtype=dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "WORTH_THREADS", 0)
        patch.setattr(torch, "get_num_threads", lambda: threads)
        many = kernel._outer(a, b)
        patch.setattr(torch, "get_num_threads", lambda: 1)
        assert torch.equal(kernel._outer(a, b), many)
    exact = a.double().t() @ b.double()
    torch.testing.assert_close(many.double(), exact, rtol=0, atol=1e-12 if dtype == torch.float64 else 1e-3)


@needs_kernel
@pytest.mark.parametrize("build", kernel.BUILDS)
def test_every_build_does_the_same(build, tmp_path):
    library = kernel.PATH.with_name(f"libfastweights_{build}.so")
    runs_on = kernel.BUILDS[build]
    if not library.exists():
        pytest.skip(f"no {build} build: the compiler has no such CPUs")
    if runs_on is not None and torch.backends.cpu.get_cpu_capability() not in runs_on:
        pytest.skip(f"this CPU cannot run the {build} build")
    shutil.copy(library, tmp_path)
    assert_equals_torch(build, tmp_path)


# Of each family an old one and a new one; where none is installed, the compiler that built the package is tested alone.
@pytest.mark.parametrize("compiler", ["g++-9", "g++-11", "g++-14", "clang++-11", "clang++-13", "clang++-19"])
def test_other_compilers_build_it(compiler, tmp_path):
    if not shutil.which(compiler) or not shutil.which("cmake"):
        pytest.skip(f"no {compiler}, or no cmake")
    cpu = torch.backends.cpu.get_cpu_capability()
    build = next(build for build, runs_on in kernel.BUILDS.items() if runs_on is None or cpu in runs_on)
    sources = Path(kernel.__file__).parent
    if not (sources / "CMakeLists.txt").exists():
        pytest.skip("the kernel's sources are not installed")
    flags = [f"-DCMAKE_CXX_COMPILER={compiler}", "-DCMAKE_CXX_FLAGS=-Werror -Wno-deprecated-declarations"]
    flags.append("-DFASTWEIGHTS_OPTIMIZATION=-O1")
    for command in (["-S", str(sources), "-B", str(tmp_path), *flags], ["--build", str(tmp_path)]):
        target = ["--target", f"fastweights_{build}"] if "--build" in command else []
        done = subprocess.run(["cmake", *command, *target], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert_equals_torch(build, tmp_path)


def assert_equals_torch(build, folder):
    """A build of the library in this folder, in a process of its own."""
    code = """
import torch, fastweights
print(fastweights.backend())
torch.manual_seed(0)
for dtype, near in ((torch.float64, 1e-10), (torch.float32, 1e-3)):
    for steps, batch, features, units in ((5, 37, 19, 23), (300, 2, 3, 18))[: 1 + (dtype == torch.float64)]:
        layers = [fastweights.FastWeights(features, units, backend=name, dtype=dtype) for name in ("kernel", "torch")]
        layers[1].load_state_dict(layers[0].state_dict())
        x, found = torch.randn(steps, batch, features, dtype=dtype, requires_grad=True), []
        for layer in layers:
            output, state = layer(x)
            loss = output.square().sum() + state.A.square().sum()
            found.append([output, state.A, *torch.autograd.grad(loss, [x, *layer.parameters()])])
        torch.testing.assert_close(*found, rtol=near, atol=near)
"""
    environment = {**os.environ, "FASTWEIGHTS_KERNEL": str(folder)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"kernel ({build})")


@needs_kernel
def test_tensors_without_memory_never_reach_the_kernel():
    x = torch.randn(4, 1, 3)
    with FakeTensorMode():
        fake, layer, cell = torch.randn(4, 1, 3), FastWeights(3, 5), FastWeightsCell(3, 5)
        output, state = layer(fake)
        assert output.shape == (4, 1, 5)
        (output.sum() + state.A.sum()).backward()
        with torch.no_grad():
            assert cell(fake[0]).A.shape == (1, 5, 5)
    assert FastWeights(3, 5)(x)[0].isfinite().all()  # nothing of it was kept for later


@needs_kernel
def test_lengths_that_nobody_checked_reach_no_further_than_the_steps():
    run = random_run(6, 11, 3, 5, 4, steps=True)
    wild = run.steps.clone()
    wild[run.steps == 6], wild[run.steps == 0] = 1000, -1000
    wild[:2], bounded = torch.tensor([1000, -1000]), run.steps.clone()
    bounded[:2] = torch.tensor([6, 0])
    everything = (True,) * len(chunked.Gradients._fields)
    results = []
    for steps in (wild, bounded):
        one = run._replace(steps=steps)
        saved = kernel.forward(one, Dynamics(), True)
        results.append((saved.hs, *kernel.backward(saved.hs, None, one, saved, Dynamics(), everything)))
    for ours, theirs in zip(*results, strict=True):
        assert torch.equal(ours, theirs)


@needs_kernel
def test_nan_stays_nan():
    layer = FastWeights(3, 5, backend="kernel", layer_norm=False)
    x = torch.randn(4, 20, 3)
    x[2, 7, 1] = torch.nan
    output, _ = layer(x)
    assert output[2:, 7].isnan().any()
    assert output[:, torch.arange(20) != 7].isfinite().all()


def test_backend_says_what_and_why():
    name, reason = backend()
    assert name.startswith("kernel" if kernel.AVAILABLE else "torch")
    assert reason in str(backend())
    done = subprocess.run([sys.executable, "-m", "fastweights"], capture_output=True, text=True, check=True)
    assert str(backend()) in done.stdout


@pytest.mark.parametrize(
    ("setting", "reason"),
    [("off", "FASTWEIGHTS_KERNEL is 'off'"), ("/nowhere", "was not built"), (None, "cannot be loaded")],
)
def test_without_the_kernel_the_torch_path_is_used(setting, reason, tmp_path):
    if setting is None:
        setting = str(tmp_path)
        (tmp_path / "libfastweights_baseline.so").write_bytes(b"not a library")
    code = """
import torch, fastweights
print(fastweights.backend())
print(fastweights.FastWeights(3, 5)(torch.zeros(2, 1, 3))[0].shape)
fastweights.FastWeights(3, 5, backend="kernel")
"""
    environment = {**os.environ, "FASTWEIGHTS_KERNEL": setting}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert done.stdout.startswith("torch: ")
    assert reason in done.stdout
    assert "[2, 1, 5]" in done.stdout
    assert "ValueError: backend 'kernel' cannot be used" in done.stderr


@needs_kernel
def test_what_the_kernel_does_not_cover_goes_to_torch():
    x = torch.randn(2, 1, 3)
    fused = FastWeights(3, 5, backend="kernel")
    twin = torch.func.functional_call(fused, {"norm_weight_l0": torch.tensor([2.0])}, (x,))[0]  # broadcast
    torch.nn.init.constant_(fused.norm_weight_l0, 2.0)
    torch.testing.assert_close(fused(x)[0], twin)
    with pytest.raises(ValueError, match="backend 'kernel' takes tensors on the CPU, got meta"):
        fused.to("meta")(x.to("meta"))


WARNED = """
import os, sys, warnings
warnings.simplefilter("always")
with warnings.catch_warnings(record=True) as caught:
    import torch, fastweights
    device = "{device}"
    for kind in (fastweights.FastWeights, fastweights.FastWeightsCell):
        module = kind(3, 5, backend="{backend}").to(device)
        before = len(caught)
        assert before == 0 or kind is not fastweights.FastWeights  # at the first use, not before
        x = torch.zeros(*(7,) * (kind is fastweights.FastWeights), 2, 3, device=device)
        for grad in (False, True, True):
            with torch.set_grad_enabled(grad):
                module(x)
for warning in caught:
    print(warning.category.__name__, warning.message)
"""


def warned(setting, backend="auto", device="cpu"):
    """The lines of what is warned of in a process of its own."""
    environment = {name: value for name, value in os.environ.items() if name != "FASTWEIGHTS_KERNEL"}
    environment |= {} if setting is None else {"FASTWEIGHTS_KERNEL": str(setting)}
    code = WARNED.format(backend=backend, device=device)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(("built", "reason"), [(False, "it was not built"), (True, "cannot be loaded")])
def test_without_the_kernel_the_first_use_warns_once(built, reason, tmp_path):
    if built:
        (tmp_path / "libfastweights_baseline.so").write_bytes(b"not a library")
    (line,) = warned(tmp_path)
    assert line.startswith("UserWarning FastWeights runs without its fused kernel, several times slower: ")
    assert reason in line
    assert "install a C++ compiler (GCC 9 or newer, or clang 11 or newer) and the package again" in line
    assert 'say backend="torch" or set FASTWEIGHTS_KERNEL=off' in line


@pytest.mark.parametrize("case", [("off",), ("nowhere", "torch"), ("nowhere", "auto", "meta")])
def test_who_wants_no_kernel_is_not_warned(case, tmp_path):
    setting, *rest = case
    assert warned(setting if setting == "off" else tmp_path, *rest) == []


@needs_kernel
def test_who_has_the_kernel_is_not_warned():
    assert warned(os.environ.get("FASTWEIGHTS_KERNEL")) == []
