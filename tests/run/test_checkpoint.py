"""Checkpoints are whole or absent, and nothing in them is ever unpickled."""

from __future__ import annotations

import os
import pickle
import resource

import pytest
import torch

import splitfl
from splitfl.run.checkpoint import CheckpointError, load, prune, save
from splitfl.run.resume import newest


def state():
    tied = torch.arange(6.0).reshape(2, 3)
    return {"a": tied, "b": tied, "half": torch.ones(2, dtype=torch.bfloat16), "count": torch.tensor(7)}


def test_what_is_saved_is_loaded(tmp_path):
    path = tmp_path / "new" / "round.safetensors"
    save(path, state(), {"round": 3, "names": ["ü"]})
    tensors, record = load(path)
    assert record == {"round": 3, "names": ["ü"]}
    assert all(
        torch.equal(tensors[name], value) and tensors[name].dtype == value.dtype for name, value in state().items()
    )
    assert os.listdir(path.parent) == ["round.safetensors"]


def test_a_writer_that_dies_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "round.safetensors"
    save(path, state(), {"round": 1})

    def die(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", die)
    with pytest.raises(KeyboardInterrupt):
        save(path, {"a": torch.zeros(1)}, {"round": 2})
    assert load(path)[1] == {"round": 1}


def test_a_full_disk_is_an_error_that_names_the_file(tmp_path, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match=r"round.safetensors: No space left on device"):
        save(tmp_path / "round.safetensors", state(), {})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("where", [0.1, 0.5, 0.999])
def test_a_flipped_bit_is_noticed(tmp_path, where):
    path = tmp_path / "round.safetensors"
    save(path, {"a": torch.zeros(1000)}, {"round": 1})
    content = bytearray(path.read_bytes())
    content[int(where * (len(content) - 1))] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError):
        load(path)


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "evil.safetensors"

    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "owned"),)

    path.write_bytes(pickle.dumps(Evil()))
    with pytest.raises(CheckpointError, match="expected one that splitfl wrote"):
        load(path)
    torch.save({"a": torch.zeros(1)}, path)
    with pytest.raises(CheckpointError):
        load(path)
    with pytest.raises(CheckpointError):
        load(tmp_path / "missing.safetensors")
    assert not (tmp_path / "owned").exists()


def test_the_newest_whole_checkpoint_is_offered(tmp_path):
    assert newest(tmp_path) is None
    for number in (1, 2, 10):
        save(tmp_path / f"round-{number:06d}.safetensors", state(), {"round": number})
    assert newest(tmp_path).name == "round-000010.safetensors"
    (tmp_path / "round-000010.safetensors").write_bytes(b"rubbish")
    with pytest.raises(CheckpointError, match=r"round-000010.*the newest whole one is .*round-000002"):
        newest(tmp_path)
    prune(tmp_path, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["round-000002.safetensors", "round-000010.safetensors"]


def test_a_full_disk_is_recorded_and_training_goes_on(bench, tmp_path):
    """A limit on the size of files stands for the disk: the kernel refuses the write in the same place."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    seen = []

    def on_round(record):
        seen.append(record)
        full = 256 if record.round == 1 else soft
        resource.setrlimit(resource.RLIMIT_FSIZE, (full, hard))

    clients = {"c0": bench.dataset(6), "c1": bench.dataset(7, seed=1)}
    made = bench.job(bench.Mlp, "fc1", splitfl.methods.splitfed_v1())
    try:
        work = bench.over_grpc(made.blueprint(), clients, rounds=3, checkpoint=tmp_path, on_round=on_round)
        trained, _ = bench.run(work)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [[failure.client for failure in record.failures] for record in trained.rounds] == [[], ["server"], []]
    assert "File too large" in seen[1].failures[0].reason
    assert [path.name for path in sorted(tmp_path.iterdir())] == [
        "round-000001.safetensors",
        "round-000003.safetensors",
    ]


def test_a_folder_that_cannot_be_written_is_refused_before_the_first_round(bench, tmp_path):
    (tmp_path / "file").touch()
    made = bench.job(bench.Mlp, "fc1", splitfl.methods.splitfed_v1())
    work = bench.over_grpc(made.blueprint(), {"c0": bench.dataset(6)}, rounds=1, checkpoint=tmp_path / "file")
    with pytest.raises(CheckpointError, match=r"checkpoint folder .*file cannot be written: File exists"):
        bench.run(work)
