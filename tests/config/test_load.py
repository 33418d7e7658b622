"""Job files read: what is right comes out as settings, what is wrong as one clear line per fault."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from splitfl.config import ConfigError, JobSettings, load_job, parse_job
from splitfl.errors import SplitflError


def faults(path) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        load_job(path)
    return caught.value.lines


def test_a_small_job_gets_its_defaults(write, tmp_path):
    job = load_job(write())
    assert job.model.cuts == ("auto",)
    assert job.training.loss == "cross_entropy"
    assert job.training.epochs == 1
    assert job.training.optimizer.options() == {"lr": 0.05, "momentum": 0.9}
    assert job.method.method().micro_batches == 4
    assert job.server.deadlines.enrollment == 300
    assert job.strategy is None
    assert job.base == tmp_path


def test_every_section_can_be_set(write):
    more = """
[strategy]
name = "FedAdam"
options = { eta = 0.01 }
[codec]
activation = "int8"
gradient = "bf16"
update = "fp16"
[server]
address = "0.0.0.0:9000"
tls = { certificate = "server.pem", key = "server.key", client_ca = "ca.pem" }
deadlines = { enrollment = 60, step = 5.5, round = 600 }
slots = 2
[client]
server = "example.org:9000"
tls = { ca = "ca.pem", certificate = "me.pem", key = "me.key" }
name = "phone-1"
[planning]
device = ["raspberry-pi-4", "laptop"]
link = "wifi-50"
"""
    job = load_job(write(more=more))
    assert job.strategy.options == {"eta": 0.01}
    assert job.server.deadlines.step == 5.5
    assert job.client.name == "phone-1"
    assert job.planning.device == ("raspberry-pi-4", "laptop")
    assert job.codec.update == "fp16"


def test_settings_are_frozen(write):
    with pytest.raises(ValidationError, match="frozen"):
        load_job(write()).training.batch_size = 1


def test_settings_return_from_json(write):
    job = load_job(write("[data]", 'seed = 3\n[data]\nsplit = "dirichlet"\nalpha = 0.5'))
    again = parse_job(job.to_json(), base=job.base)
    assert again == job
    assert again.to_json() == job.to_json()


def test_json_holds_what_was_set_and_nothing_of_this_machine(write, tmp_path):
    text = load_job(write()).to_json()
    assert str(tmp_path) not in text
    assert "deadlines" not in text


def test_a_missing_file_is_named(tmp_path):
    assert faults(tmp_path / "absent.toml") == (f"{tmp_path}/absent.toml: no such file",)


def test_a_folder_is_no_job(tmp_path):
    assert "cannot be read" in faults(tmp_path)[0]


def test_a_binary_file_is_no_job(tmp_path):
    path = tmp_path / "job.toml"
    path.write_bytes(b"\xff\xfe\x00")
    assert faults(path) == (f"{path}: cannot be read: is not a text in UTF-8",)


def test_a_syntax_error_names_its_line(write):
    (line,) = faults(write("rounds = 5", "rounds = = 5"))
    assert line.startswith("job.toml: line 10, column 10: ")


def test_a_config_error_is_one_for_the_user(write):
    with pytest.raises(SplitflError, match=r"^job\.toml: \[training\] rounds = 0: expected 1 or more$"):
        load_job(write("rounds = 5", "rounds = 0"))


VALUES = [
    ("batch_size = 32", "batch_size = -3", "[training] batch_size = -3: expected 1 or more"),
    ("batch_size = 32", "batch_size = 3.5", "[training] batch_size = 3.5: expected a whole number"),
    ("batch_size = 32", "batch_size = true", "[training] batch_size = true: expected a whole number"),
    ("batch_size = 32", 'batch_size = "32"', '[training] batch_size = "32": expected a whole number'),
    ("batch_size = 32", "batch_size = [1]", "[training] batch_size = [1]: expected a whole number"),
    ("batch_size = 32", "shuffle = 1\nbatch_size = 32", "[training] shuffle = 1: expected true or false"),
    ("batch_size = 32", "seed = -1\nbatch_size = 32", "[training] seed = -1: expected 0 or more"),
    ("batch_size = 32", 'device = "gpu"\nbatch_size = 32', "expected a torch device such as"),
    ("batch_size = 32", 'optimizer_state = "drop"\nbatch_size = 32', "expected 'reset' or 'keep'"),
    ("batch_size = 32", 'loss = "cross_entropi"\nbatch_size = 32', "did you mean cross_entropy?"),
    ("batch_size = 32", 'loss = "relu"\nbatch_size = 32', '[training] loss = "relu": '),
    ("batch_size = 32", 'loss = "my losses:f"\nbatch_size = 32', 'expected "file.py:function"'),
    ('build = "models.py:cnn"', 'build = "models.py"', '[model] build = "models.py": expected "file.py:function"'),
    ('build = "models.py:cnn"', "build = 3", '[model] build = 3: expected a text in quotes ("...")'),
    ("[1, 8, 8]", "[1, -8]", "[model] example_shape = [1, -8]: expected the shape of one sample"),
    ("[1, 8, 8]", "[]\ncut = []", "[model] cut = []: expected a text, or a list of texts"),
    ("[1, 8, 8]", '[1]\nexample_dtype = "flaot32"', "did you mean float32?"),
    ('name = "pipar"', 'name = "pipr"', "[method] name = 'pipr': did you mean pipar?"),
    (
        'name = "pipar"',
        'name = "pipar"\nmicro_batches = 0',
        "[method] micro_batches = 0: expected a whole number from 1",
    ),
    ('name = "pipar"', 'name = "pipar"\nmicro_batches = "many"', 'from 1, or "auto"'),
    ('name = "pipar"', 'name = "pipar"\nschedule = "gpip"', '[method] schedule = "gpip": did you mean gpipe?'),
    (
        'name = "pipar"',
        'name = "pipar"\norder = "random"',
        "[method] order = 'random': expected 'forwards-first' or '1f1b'",
    ),
    ('name = "pipar"', 'name = "sl"\nmicro_batches = 2', "method sl has no such option"),
    (
        "momentum = 0.9",
        "momentun = 0.9",
        "[training] optimizer.momentun: sgd has no such option: did you mean momentum?",
    ),
    ("momentum = 0.9", "wings = 2", "[training] optimizer.wings: sgd has no such option: expected one of dampening"),
    ("lr = 0.05", "lr = -1", "[training] optimizer.sgd refuses these options: Invalid learning rate: -1"),
    ("lr = 0.05", 'lr = "fast"', "[training] optimizer.sgd refuses these options"),
    ('name = "sgd"', 'name = "sdg"', "[training] optimizer.name = 'sdg': did you mean sgd?"),
    ('{ name = "sgd", lr = 0.05, momentum = 0.9 }', '"sgd"', '[training] optimizer = "sgd": expected a table'),
    ('{ name = "sgd", lr = 0.05, momentum = 0.9 }', "{ lr = 0.05 }", "[training] optimizer.name: missing setting"),
    ('name = "digits"', 'name = "digit"', '[data] name = "digit": did you mean digits?'),
    ("clients = 3", "clients = 0", "[data] clients = 0: expected 1 or more"),
    (
        "clients = 3",
        'split = "random"',
        "[data] split = \"random\": expected 'iid', 'dirichlet', 'shards', 'by_user' or 'vertical'",
    ),
    ("clients = 3", 'split = "dirichlet"\nalpha = 0', "[data] alpha = 0: expected more than 0"),
    ("clients = 3", 'split = "dirichlet"\nalpha = inf', "expected a finite number"),
]


@pytest.mark.parametrize(("old", "new", "expected"), VALUES, ids=[new.splitlines()[0] for _, new, _ in VALUES])
def test_a_wrong_value_is_one_line_that_says_what_is_right(write, old, new, expected):
    (line,) = faults(write(old, new))
    assert line.startswith("job.toml: [")
    assert expected in line
    assert "\n" not in line


SECTIONS = [
    ('[server]\naddress = "nowhere"', '[server] address = "nowhere": expected "host:port"'),
    ('[server]\naddress = "host:70000"', "a port from 1 to 65535"),
    ("[server]\ndeadlines = { step = 0 }", "[server] deadlines.step = 0: expected more than 0"),
    ("[server]\ndeadlines = { stp = 1 }", "[server] deadlines.stp: unknown setting, did you mean step?"),
    ('[server]\ntls = { key = "a" }', "[server] tls.certificate: missing setting"),
    ('[client]\nname = "a b"', '[client] name = "a b": expected 1 to 64 letters'),
    ('[client]\ntls = { ca = "a", key = "b" }', "[client] tls.certificate and key go together"),
    ('[codec]\nactivation = "int9"', '[codec] activation = "int9": did you mean int8?'),
    ('[planning]\ndevice = ["laptop", "raspberry-pi-44"]', "did you mean raspberry-pi-4?"),
    ('[planning]\nlink = "smoke"', '[planning] link = "smoke": expected one of '),
    ('[codec]\nactivation = ""', '[codec] activation = "": expected a text that is not empty'),
    ("[trainig]\nrounds = 1", "[trainig]: unknown section, did you mean training?"),
    ("[base]\nx = 1", "[base]: unknown section"),
]


@pytest.mark.parametrize(("more", "expected"), SECTIONS, ids=[more for more, _ in SECTIONS])
def test_a_wrong_section_is_one_line(write, more, expected):
    (line,) = faults(write(more=more))
    assert expected in line


def test_an_unknown_setting_suggests_a_close_one(write):
    assert faults(write("batch_size = 32", "batchsize = 3\nbatch_size = 32")) == (
        "job.toml: [training] batchsize: unknown setting, did you mean batch_size?",
    )


def test_an_unknown_setting_far_from_all_lists_them(write):
    (line,) = faults(write("clients = 3", "qqq = 3"))
    assert line.startswith("job.toml: [data] qqq: unknown setting, expected one of alpha, args, clients, ")


def test_missing_sections_say_what_they_hold(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text("")
    assert faults(path) == (
        "job.toml: [model]: missing section; it holds at least build",
        "job.toml: [method]: missing section; it holds at least name",
        "job.toml: [training]: missing section; it holds at least rounds, batch_size, optimizer",
        "job.toml: [data]: missing section",
    )


def test_all_faults_are_reported_at_once(write):
    lines = faults(write("rounds = 5", "rounds = 0\nshuffle = 3\nfoo = 1"))
    assert len(lines) == 3


def test_a_section_that_is_no_table(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text('model = "cnn"')
    assert 'job.toml: [model] = "cnn": expected a table' in faults(path)


def test_braces_in_a_value_do_no_harm(write):
    (line,) = faults(write('name = "pipar"', 'name = "{0}{x}"'))
    assert "{0}{x}" in line


def test_dates_in_a_value_do_no_harm(write):
    (line,) = faults(write("rounds = 5", "rounds = 2026-12-01"))
    assert line == "job.toml: [training] rounds = 2026-12-01: expected a whole number"


def test_settings_can_be_made_without_a_file():
    content = {
        "model": {"build": "torch.nn:Identity"},
        "method": {"name": "fedavg"},
        "training": {"rounds": 1, "batch_size": 1, "optimizer": {"name": "adam", "betas": [0.9, 0.99]}},
        "data": {"load": "data.py:load"},
    }
    job = parse_job(content)
    assert isinstance(job, JobSettings)
    assert job.training.optimizer.options() == {"betas": (0.9, 0.99)}
