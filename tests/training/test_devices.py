"""Devices by name: those that are there, what is said of others, and workers spread over GPUs."""

import os
from types import SimpleNamespace

import jobs
import pytest
import torch

from fastweights.training import devices, workers
from fastweights.training.workers import Job, Workers, gpus_of, run_all

NO_GPU = not (torch.cuda.is_available() or torch.backends.mps.is_available())


@pytest.mark.skipif(not NO_GPU, reason="there is a GPU")
def test_without_a_gpu():
    assert devices.find("auto") == devices.find("cpu") == devices.prepared("cpu") == torch.device("cpu")
    for name in ("cuda", "mps"):
        with pytest.raises(
            ValueError, match=f"device must be one that is here, 'cpu'; got '{name}': torch .*without it"
        ):
            devices.find(name)


def test_a_device_that_nobody_knows():
    with pytest.raises(ValueError, match="device must be one of 'cpu', 'cuda', 'mps', 'auto'; got 'gpu'"):
        devices.find("gpu")


def with_gpus(monkeypatch, count):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


def test_with_a_gpu(monkeypatch):
    with_gpus(monkeypatch, 1)
    assert devices.find("auto") == devices.find("cuda") == torch.device("cuda")
    assert devices.find("cpu") == torch.device("cpu")


def test_a_gpu_computes_in_float32_and_repeats_itself_and_the_cpu_is_left_alone(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    devices.prepared("cpu")
    assert not torch.are_deterministic_algorithms_enabled()
    with_gpus(monkeypatch, 1)
    allowed = torch.backends.cudnn.allow_tf32
    try:
        devices.prepared("cuda")
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.backends.cudnn.allow_tf32
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    finally:
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.allow_tf32 = allowed
        os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "cuda", "gpus": 0}, "gpus must be at least 1, got 0"),
        ({"device": "cuda", "gpus": 3}, "gpus must be at most 2, as many as are here; got 3"),
        ({"device": "cpu", "gpus": 1}, "gpus must go with the device 'cuda', got 1 with the device 'cpu'"),
        (
            {"device": "mps", "gpus": 1, "ray": "auto"},
            "gpus must go with the device 'cuda', got 1 with the device 'mps'",
        ),
    ],
)
def test_bad_gpus(options, message, monkeypatch):
    with_gpus(monkeypatch, 2)
    with pytest.raises(ValueError, match=message):
        Workers(2, **options)


@pytest.mark.parametrize(
    ("there", "gpus", "expected"), [(4, None, [0, 1, 2, 3, 0, 1]), (4, 2, [0, 1] * 3), (1, None, [0] * 6)]
)
def test_workers_are_spread_over_gpus(there, gpus, expected, monkeypatch):
    with_gpus(monkeypatch, there)
    assert [Workers(6, device="cuda", gpus=gpus).gpu_of(number) for number in range(6)] == expected
    assert Workers(6).gpu_of(1) is None


def test_the_workers_of_a_run_are_where_the_run_is(monkeypatch):
    """With A3C, a process that has a GPU starts others."""
    with_gpus(monkeypatch, 4)
    monkeypatch.setattr(torch.cuda, "set_device", lambda gpu: None)
    monkeypatch.setattr(devices, "taken", None)
    devices.take(None)
    assert Workers(6, device="cuda").gpu_of(1) == 1
    devices.take(2)
    assert Workers(6, device="cuda").gpu_of(1) == 2


def test_each_process_takes_its_gpu_and_one_that_dies_leaves_it_to_the_next(monkeypatch, tmp_path):
    with_gpus(monkeypatch, 2)
    monkeypatch.setattr(workers, "_work", jobs.work_on_gpu)
    work = [Job(f"gpu {number}", jobs.gpu, {"folder": tmp_path, "together": 3}) for number in range(3)]
    work.append(Job("dies", jobs.die))
    work += [Job(f"then {number}", jobs.gpu, {"folder": tmp_path, "together": 4}) for number in range(3)]
    outcomes = run_all(work, Workers(3, device="cuda"))
    assert list(outcomes.failures) == ["dies"]
    assert sorted(outcomes.results[f"gpu {number}"] for number in range(3)) == [0, 0, 1]
    assert sorted(outcomes.results[f"then {number}"] for number in range(3)) == [0, 0, 1]


def cluster(gpus):
    return SimpleNamespace(cluster_resources=lambda: {"CPU": 8.0, "GPU": float(gpus)} if gpus else {"CPU": 8.0})


@pytest.mark.parametrize(
    ("there", "count", "device", "gpus", "each"),
    [
        (4, 2, "cpu", None, 0),
        (4, 2, "cuda", None, 1),
        (4, 16, "cuda", 4, 0.25),
        (4, 3, "cuda", 1, 0.3333),
        (4, 2, "cuda", 4, 1),
        (4, 2, "auto", None, 1),
        (0, 2, "auto", None, 0),
    ],
)
def test_what_a_worker_asks_of_a_cluster(there, count, device, gpus, each):
    assert gpus_of(Workers(count, "auto", device, gpus), cluster(there)) == each


@pytest.mark.parametrize(
    ("there", "gpus", "message"),
    [
        (0, None, "device must be one that the Ray cluster has, which has no GPU; got 'cuda'"),
        (2, 3, "gpus must be at most 2, as many as the Ray cluster has; got 3"),
    ],
)
def test_what_a_cluster_has_not(there, gpus, message):
    with pytest.raises(ValueError, match=message):
        gpus_of(Workers(2, "auto", "cuda", gpus), cluster(there))


def test_runs_on_a_cluster_share_its_gpus(monkeypatch):
    pytest.importorskip("ray", reason="the extra `cluster` is not installed")
    import ray
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", os.path.dirname(jobs.__file__))
    there = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "num_gpus": 2, "include_dashboard": False})
    try:
        work = [Job(f"gpu {number}", jobs.visible) for number in range(4)]
        outcomes = run_all(work, Workers(4, there.address, "cuda", 2))
    finally:
        ray.shutdown()
        there.shutdown()
    assert outcomes.failures == {}
    assert sorted(outcomes.results.values()) == ["0", "0", "1", "1"]


@pytest.mark.skipif(NO_GPU, reason="there is no GPU")
def test_a_real_device_goes_on_to_the_same_numbers(tmp_path):
    """The only test that needs one."""
    import dataclasses

    from fastweights.base.interrupts import Interrupted
    from fastweights.paper.retrieval.run import Retrieval
    from fastweights.paper.run import train
    from fastweights.training.runs import RunFolder
    from fastweights.training.supervised import Recipe

    config = dataclasses.replace(Retrieval(units=20, examples=2000, dropout=0.1), training=Recipe(epochs=3))

    def stop(progress):
        if progress.epoch == 1:
            raise Interrupted

    whole = train(config, tmp_path / "whole", "", device="auto")
    with pytest.raises(Interrupted):
        train(config, tmp_path / "part", "", device="auto", report=stop)
    again = train(config, tmp_path / "part", "", device="auto")
    assert again["validation_loss"] == whole["validation_loss"]
    weights = [RunFolder(tmp_path / name).best()[0] for name in ("whole", "part")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
