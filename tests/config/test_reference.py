"""Functions named as text: found in files and modules, and refused by name where they are not."""

from __future__ import annotations

import sys

import pytest
import torch

from splitfl.config import ConfigError, build_optimizer, load_job, resolve


def test_a_function_of_a_file(tmp_path):
    (tmp_path / "models.py").write_text("def cnn(width=3):\n    return width\n")
    assert resolve("models.py:cnn", tmp_path)(width=7) == 7


def test_a_file_is_imported_once(tmp_path):
    (tmp_path / "models.py").write_text("def a(): pass\ndef b(): pass\n")
    assert resolve("models.py:a", tmp_path).__globals__ is resolve("models.py:b", tmp_path).__globals__


def test_files_of_the_same_name_stay_apart(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "models.py").write_text(f"def name(): return {folder!r}\n")
    assert [resolve("models.py:name", tmp_path / folder)() for folder in ("one", "two")] == ["one", "two"]


def test_a_file_imports_what_lies_beside_it(tmp_path):
    (tmp_path / "layers_beside.py").write_text("WIDTH = 5\n")
    (tmp_path / "models.py").write_text("from layers_beside import WIDTH\ndef width(): return WIDTH\n")
    before = list(sys.path)
    assert resolve("models.py:width", tmp_path)() == 5
    assert sys.path == before


def test_a_dataclass_in_a_file_works(tmp_path):
    # With postponed annotations a dataclass looks its own module up by name.
    head = "from __future__ import annotations\nfrom dataclasses import dataclass\n"
    (tmp_path / "models.py").write_text(f"{head}@dataclass\nclass Net:\n    w: int = 2\n")
    assert resolve("models.py:Net", tmp_path)().w == 2


def test_a_function_of_an_installed_module(tmp_path):
    assert resolve("torch.nn.functional:relu", tmp_path) is torch.nn.functional.relu


def test_a_module_beside_the_job_file(tmp_path):
    (tmp_path / "module_beside.py").write_text("def build(): return 1\n")
    assert resolve("module_beside:build", tmp_path)() == 1


def test_through_the_settings(write, tmp_path):
    (tmp_path / "models.py").write_text("def cnn(): return 'made'\n")
    job = load_job(write())
    assert job.resolve(job.model.build)() == "made"


REFUSED = [
    ("absent.py:f", "no file .*absent.py; the path counts from the job file's folder"),
    ("absent_module:f", "no module 'absent_module' on the Python path or "),
    ("torch.absent:f", "no module 'torch.absent'"),
    ("models.py:cn", "models.py has no function 'cn': did you mean cnn?"),
    ("models.py:VALUE", "VALUE is of type int, expected a function"),
    ("models.py", "expected .file.py:function. or .package.module:function."),
    ("models.py:", "expected .file.py:function."),
    (":f", "expected .file.py:function."),
    ("../x y:f", "expected .file.py:function."),
    ("broken.py:f", "importing broken.py failed at line 2: ZeroDivisionError: "),
    ("syntax.py:f", "importing syntax.py failed at line 1: SyntaxError: "),
    ("needs.py:f", "importing needs.py failed at line 1: ModuleNotFoundError: No module named 'not_installed'"),
]


@pytest.mark.parametrize(("reference", "message"), REFUSED, ids=[reference for reference, _ in REFUSED])
def test_a_reference_that_leads_nowhere_is_one_line(tmp_path, reference, message):
    (tmp_path / "models.py").write_text("VALUE = 3\ndef cnn(): pass\n")
    (tmp_path / "broken.py").write_text("def f(): pass\n1 / 0\n")
    (tmp_path / "syntax.py").write_text("def f(: pass\n")
    (tmp_path / "needs.py").write_text("import not_installed\n")
    with pytest.raises(ConfigError, match=message) as caught:
        resolve(reference, tmp_path)
    assert len(caught.value.lines) == 1
    assert str(caught.value).startswith(f"{reference}: ")


def test_a_file_that_failed_is_tried_again(tmp_path):
    path = tmp_path / "models.py"
    path.write_text("1 / 0\n")
    with pytest.raises(ConfigError):
        resolve("models.py:f", tmp_path)
    path.write_text("def f(): return 'mended at last'\n")
    assert resolve("models.py:f", tmp_path)() == "mended at last"


def test_an_optimizer_by_name_is_torchs_own():
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = build_optimizer("adam", {"lr": 0.1, "betas": [0.8, 0.9]}, parameters=[weight])
    assert isinstance(optimizer, torch.optim.Adam)
    assert optimizer.param_groups[0]["betas"] == (0.8, 0.9)


@pytest.mark.parametrize("name", ["lbfgs", "sparseadam", "muon", "SGD"])
def test_an_optimizer_that_cannot_train_any_module_is_refused(name):
    with pytest.raises(ValueError, match=f"name = '{name}': "):
        build_optimizer(name, {}, parameters=[torch.nn.Parameter(torch.ones(1))])
