"""Which models a server finds, and what it reads of Triton's configuration."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from itertools import cycle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ortmulti
from ortmulti.serve import pbtxt
from ortmulti.serve.folder import Models
from ortmulti.serve.service import Defaults

CONFIG = """
# a comment
name: "bert"
platform: "onnxruntime_onnx"
max_batch_size: 32
input [ { name: "ids" data_type: TYPE_INT64 dims: [ -1 ] }, { name: "mask", data_type: TYPE_INT64, dims: [-1] } ]
output: [{ name: 'y' data_type: TYPE_FP32 dims: [ 768 ] }]
dynamic_batching {
  preferred_batch_size: [ 8, 16 ]
  max_queue_delay_microseconds: 2000
  priority_levels: 3
  default_priority_level: 2
  preserve_ordering: true
  default_queue_policy { max_queue_size: 100 default_timeout_microseconds: 500000 timeout_action: DELAY }
}
instance_group [ { count: 2 kind: KIND_GPU gpus: [ 0, 1 ] } ]
optimization { cuda { graphs: true } graph { level: 1 } input_pinned_memory { enable: true } }
parameters { key: "intra_op_thread_count" value: { string_value: "3" } }
parameters [ { key: "other", value: { string_value: "x" } } ]
version_policy: { latest { num_versions: 2 } }
model_warmup [ { name: "w" } ]
response_cache { enable: true }
"""


def test_a_configuration_is_read_as_far_as_it_means_something() -> None:
    read = pbtxt.read(CONFIG)
    options, ignored = read.options, read.ignored
    session = options.pop("options")
    assert session.intra_op_num_threads == 3
    assert session.graph_optimization_level == ortmulti.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    assert options == {
        "batching": ortmulti.Batching(32, 2.0),
        "max_queue": 100,
        "devices": ["cuda:0", "cuda:1"],
        "in_flight": 2,
        "cuda_graph": "auto",
    }
    assert (read.timeout, read.may_override, read.priority, read.name) == (0.5, False, 2, "bert")
    assert (read.file, read.versions, read.max_batch_size) == ("model.onnx", None, 32)
    assert read.tensors == [
        ("input", "ids", "TYPE_INT64", [-1, -1]),
        ("input", "mask", "TYPE_INT64", [-1, -1]),
        ("output", "y", "TYPE_FP32", [-1, 768]),
    ]
    assert [text.partition(":")[0] for text in ignored] == [
        "dynamic_batching.preserve_ordering",
        "dynamic_batching.default_queue_policy.timeout_action",
        "model_warmup",
        "parameters",
        "version_policy",
        "response_cache",
        "optimization.input_pinned_memory",
    ]
    assert pbtxt.read("") == pbtxt.Config({}, None, False, 1, "", "model.onnx", None, 0, [], [], [])
    tensors = pbtxt.read("""
        input { name: "a" dims: 3 optional: true format: FORMAT_NCHW dtype: TYPE_FP32 }
        output { name: "b" label_filename: "names" }
    """)
    assert tensors.ignored == ["input.format of 'a'", "input.dtype of 'a'", "output.label_filename of 'b'"]
    for value, trusted in (("true", True), ("no", False)):
        text = f"parameters {{ key: 'trust_batching' value: {{ string_value: '{value}' }} }}"
        read = pbtxt.read(f"max_batch_size: 8 dynamic_batching {{}} {text}")
        assert (read.options["batching"].trust, read.ignored) == (trusted, [])
    for text in ("max_batch_size: 8", "max_batch_size: 0", "dynamic_batching {}"):
        assert pbtxt.read(text).options == {"batching": None}, "whatever the command says"


# Without its comment and blanks in texts.
PIECES = CONFIG.replace("# a comment", "").split()
COMMENTS = ("#\n", "# }{ \"'\n", "# dynamic_batching { }\n", "#" * 80 + "\n")
GAPS = st.lists(st.sampled_from((" ", "\t", "\n", "\r\n", *COMMENTS)), max_size=5).map("".join)


@settings(max_examples=100, deadline=None)
@given(st.lists(GAPS, min_size=1, max_size=9), st.sampled_from(("", "#", "# the end")))
def test_comments_and_blanks_change_nothing(gaps: list[str], last: str) -> None:
    text = gaps[0] + "".join(piece + (gap or " ") for piece, gap in zip(PIECES, cycle(gaps), strict=False)) + last
    assert pbtxt._parse(text) == pbtxt._parse(CONFIG)


@pytest.mark.parametrize(
    "text", ["a: 1\n" + "#" * 100_000 + "\n", "a: 1" + " " * 1_000_000 + "b: 1", "#" * 60 + "\n# my model\n" + "#" * 60]
)
def test_a_long_comment_and_many_blanks_are_read(text: str) -> None:
    assert pbtxt.read(text).ignored == [name for name in ("a", "b") if f"{name}:" in text]


WORDS = (*PIECES, "{", "}", "[", ":", "3", "'x'", "1e9", "9" * 400, "parameters", "key", "value", "level", "gpus")


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(WORDS)).map(" ".join) | st.text())
def test_no_configuration_is_a_fault_of_the_reader(text: str) -> None:
    with contextlib.suppress(ortmulti.InvalidArgument):
        pbtxt.read(text)


@pytest.mark.parametrize(
    ("groups", "options", "ignored"),
    [
        (["count: 3 kind: KIND_CPU"], {"devices": "cpu", "sessions_per_device": 3}, []),
        (["count: 3 kind: KIND_CPU", "kind: KIND_CPU"], {"devices": "cpu", "sessions_per_device": 4}, []),
        (["count: 2", "count: 3 kind: KIND_GPU"], {"in_flight": 5}, []),
        (
            ["count: 1 kind: KIND_GPU gpus: [0, 1]", "count: 2 kind: KIND_GPU gpus: [0, 1]"],
            {"devices": ["cuda:0", "cuda:1"], "in_flight": 3},
            [],
        ),
        (
            ["count: 1 kind: KIND_GPU gpus: 0", "count: 2 kind: KIND_GPU gpus: 1"],
            {"devices": ["cuda:0", "cuda:1"], "in_flight": 2},
            ["instance_group: every GPU of the model has the largest count, 2"],
        ),
        (["kind: KIND_GPU", "kind: KIND_CPU"], {}, ["instance_group: KIND_CPU beside GPUs"]),
        (["rate_limiter {}"], {}, ["instance_group.rate_limiter"]),
    ],
)
def test_groups_of_instances_add_up(groups: list[str], options: dict[str, object], ignored: list[str]) -> None:
    read = pbtxt.read(" ".join(f"instance_group {{ {group} }}" for group in groups))
    assert (read.options, read.ignored) == (options, ignored)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("sequence_batching {}", "a model with sequence_batching is not served"),
        ("model_transaction_policy { decoupled: true }", "a decoupled model is not served"),
        ("backend: 'python'", "the model is one of python: only onnxruntime's are served"),
        ("name: 'a", "line 1 is not protobuf's text format"),
        ("a {", "a '}' is missing"),
        ("a: [1", "a has no value"),
        ("a {}\n\n%", "line 3"),
        ("}", "a field's name was expected"),
        ("a", "a has no value"),
        ("a {" * 100, "nested more than 50 times"),
        ("parameters { key: 'intra_op_thread_count' value { string_value: 'x' } }", "is a number, not 'x'"),
        ("max_batch_size: -1", "max_batch_size is a number of 0 or more, not -1"),
        ("dynamic_batching: 3", "dynamic_batching is a message, not 3"),
        ("input: 3", "input is a message, not 3"),
        ("parameters { key: 'a' value: 3 }", "value is a message, not 3"),
        (
            "dynamic_batching { default_queue_policy { max_queue_size: 9" + "0" * 400 + "}}",
            "0 or more, not 90000",
        ),
    ],
)
def test_a_configuration_that_cannot_be_read_says_where(text: str, error: str) -> None:
    with pytest.raises(ortmulti.InvalidArgument, match=error):
        pbtxt.read(text)


def touch(path: Path, text: str = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_models_are_found_in_files_and_folders(tmp_path: Path) -> None:
    alone = touch(tmp_path / "alone.onnx")
    touch(tmp_path / "models/flat.onnx")
    touch(tmp_path / "models/bert/config.pbtxt", CONFIG)
    for version in ("2", "10", "9", "a"):
        touch(tmp_path / f"models/bert/{version}/model.onnx")
    touch(tmp_path / "models/named/config.pbtxt", 'default_model_filename: "m.onnx"')
    touch(tmp_path / "models/named/1/m.onnx")
    touch(tmp_path / "models/none/readme.txt")
    models = Models([alone, tmp_path / "models"], {"max_queue": 7, "devices": "cpu"})
    found, refused = models.all()
    assert refused == {}
    assert {
        name: (Path(model.path).relative_to(tmp_path).as_posix(), model.version) for name, model in found.items()
    } == {
        "alone": ("alone.onnx", "1"),
        "bert": ("models/bert/10/model.onnx", "10"),
        "flat": ("models/flat.onnx", "1"),
        "named": ("models/named/1/m.onnx", "1"),
    }
    assert found["bert"].options["max_queue"] == 100
    assert found["flat"].options == {"max_queue": 7, "devices": "cpu"}
    [only] = Models([tmp_path / "models/bert"]).all()[0].values()
    assert (only.name, only.version, only.defaults) == ("bert", "10", Defaults(0.5, 2, False, 32))
    touch(tmp_path / "models/bert/11/model.onnx")
    touch(tmp_path / "models/bert/12/other.onnx")
    assert models.find("bert").version == "11"
    assert models.find("bert").ignored[-1] == "version 12, which has no model.onnx"
    touch(tmp_path / "models/bert/config.pbtxt", "version_policy { specific { versions: [ 2, 9 ] } }")
    assert models.find("bert").version == "9", "a pinned version"
    for name in ("x", "../alone", "/etc/passwd", ""):
        with pytest.raises(ortmulti.NotFound):
            models.find(name)


def test_a_toml_file_has_everything_that_load_takes(tmp_path: Path) -> None:
    touch(tmp_path / "m.onnx")
    text = """
    devices = "cpu"
    http = "127.0.0.1:9000"
    [models.bert]
    path = "m.onnx"
    version = 4
    timeout = 0.25
    batching = { max_size = 16, max_delay_ms = 1.5, pad = 0, mask = 'mask', packed = true }
    warmup = { dimensions = [{ sequence = 16 }] }
    sessions_per_device = 2
    loading = { trim_after = 60.0, tuning = "t.json" }
    options = { intra_op_num_threads = 1, "session.intra_op.allow_spinning" = 0 }
    """
    models = Models([touch(tmp_path / "server.toml", "token_file = 'token'" + text)])
    token = str(tmp_path / "token")  # beside the TOML file, as the models are
    assert models.settings == {"devices": "cpu", "http": "127.0.0.1:9000", "token_file": token}
    [model] = models.all()[0].values()
    session = model.options.pop("options")
    assert (session.intra_op_num_threads, model.version, model.defaults.timeout) == (1, "4", 0.25)
    assert session.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    assert model.options == {
        "batching": ortmulti.Batching(16, 1.5, pad=0, mask="mask", packed=True),
        "warmup": ortmulti.Warmup(dimensions=[{"sequence": 16}]),
        "sessions_per_device": 2,
        "loading": ortmulti.Loading(trim_after=60.0, tuning="t.json"),
    }


def test_a_toml_file_may_name_a_folder_of_versions(tmp_path: Path) -> None:
    touch(tmp_path / "bert/2/model.onnx")
    touch(tmp_path / "bert/config.pbtxt", "max_batch_size: 4 dynamic_batching {}")
    models = Models([touch(tmp_path / "s.toml", "[models.text]\npath = 'bert'\nmax_queue = 3")])
    [model] = models.all()[0].values()
    assert (model.name, model.version) == ("text", "2")
    assert model.options == {"batching": ortmulti.Batching(4), "max_queue": 3}
    touch(tmp_path / "bert/3/model.onnx")
    assert models.find("text").version == "3"


def test_a_model_of_a_toml_file_may_have_no_batching(tmp_path: Path) -> None:
    text = "[models.a]\npath = 'a'\nbatching = false\n[models.b]\npath = 'b'\n[models.c]\npath = 'c'\nbatching = '8:1'"
    models = Models([touch(tmp_path / "s.toml", text)], {"batching": ortmulti.Batching(32)})
    found = [model.options["batching"] for model in models.all()[0].values()]
    assert found == [None, ortmulti.Batching(32), ortmulti.Batching(8, 1)]


@pytest.mark.parametrize(
    ("files", "places", "error"),
    [
        ({}, ["missing.onnx"], "there is no model file or folder"),
        ({"empty/x.txt": ""}, ["empty"], "has no model: NAME.onnx, NAME/VERSION/model.onnx"),
        ({"a.onnx": "", "b/a.onnx": ""}, ["a.onnx", "b"], "two models have the name 'a'"),
        ({"m/config.pbtxt": "{", "m/1/model.onnx": ""}, ["m"], "config.pbtxt of 'm': a field's name was expected"),
        ({"m/config.pbtxt": "name: 'n'", "m/1/model.onnx": ""}, ["m"], "the name is 'n', and the folder's another one"),
        (
            {"m/config.pbtxt": "version_policy { specific { versions: 3 } }", "m/1/model.onnx": ""},
            ["m"],
            r"none of the versions \[3\] is there",
        ),
        ({"s.toml": "[models.a]\npath = 'a'\ntimeout = 'x'"}, ["s.toml"], "timeout is a number, not 'x'"),
        ({"s.toml": "[models.a]\npath = 'a'\noptions = { intra_op = 1 }"}, ["s.toml"], "has no option 'intra_op'"),
        ({"s.toml": "[models.a]\npath = 'f'", "f/x": ""}, ["s.toml"], "has no version with a model.onnx"),
        ({"m/config.pbtxt": "default_model_filename: '../x'", "m/1/model.onnx": ""}, ["m"], "is a file's name"),
        ({"s.toml": "["}, ["s.toml"], "s.toml: "),
        ({"s.toml": "[models]\na = 1"}, ["s.toml"], "each model is a table"),
        ({"s.toml": "[models.a]\nversion = 1"}, ["s.toml"], r"\[models.a\] has no path"),
        ({"s.toml": "[models.a]\npath = 'a'\nloading = { trim_after = 'x' }"}, ["s.toml"], "trim_after .* is a number"),
        ({"s.toml": "[models.a]\npath = 'a'\nbatching = { max_siz = 3 }"}, ["s.toml"], "did you mean 'max_size'"),
        ({"s.toml": "[models.a]\npath = 'a'\nbatching = 3.5"}, ["s.toml"], r"s.toml: \[models.a\]: batching is SIZE"),
        ({"s.toml": "[models.a]\npath = 'a'\nbatching = true"}, ["s.toml"], r"s.toml: \[models.a\]: batching is SIZE"),
        ({"s.toml": "[models.a]\npath = 'a'\nbatching = 'off'"}, ["s.toml"], "and false for none"),
        (
            {"s.toml": "[models.a]\npath = 'a'\ngpu_memory = 'x'"},
            ["s.toml"],
            r"s.toml: \[models.a\]: a model's table has no 'gpu_memory'.*: it may have batching, .*path, .*version",
        ),
        *(
            ({"s.toml": f"{key} = {value}"}, ["s.toml"], f"s.toml: {key} is .*, not ")
            for key, value in (
                ("http", "8000"),
                ("grpc", "false"),
                ("devices", "true"),
                ("gpu_memory", "true"),
                ("batching", "true"),
                ("allowed_hosts", "5"),
                ("allowed_hosts", "[5]"),
                ("limits", "5"),
                ("model_control", "true"),
                ("exit_on_error", "1"),
                ("access_log", "'x'"),
                ("share", "'x'"),
                ("id", "5"),
                ("token_file", "5"),
                ("custom_ops", "5"),
            )
        ),
        ({"s.toml": "limits = { body = 'x' }"}, ["s.toml"], "s.toml: limits: body is an int, not 'x'"),
        ({"s.toml": "limits = { bodi = 5 }"}, ["s.toml"], "s.toml: limits: .*did you mean 'body'"),
        ({"s.toml": "batching = { max_size = 'x' }"}, ["s.toml"], "s.toml: batching: max_size is an int"),
        ({"s.toml": "htp = 'off'"}, ["s.toml"], "s.toml: 'htp' is no setting of a server .did you mean 'http'"),
        ({}, ["missing.toml"], "there is no file"),
    ],
)
def test_what_cannot_be_served_is_an_error(
    tmp_path: Path, files: dict[str, str], places: list[str], error: str
) -> None:
    for name, text in files.items():
        touch(tmp_path / name, text)
    try:
        [refused] = Models([tmp_path / place for place in places]).all()[1].values()
    except ortmulti.Error as told:
        refused = told
    assert re.search(error, str(refused)), refused


def test_another_models_configuration_is_not_read(tmp_path: Path) -> None:
    for name in ("good", "bad"):
        touch(tmp_path / name / "1/model.onnx")
    models = Models([tmp_path])
    touch(tmp_path / "bad/config.pbtxt", "{")
    assert models.find("good").version == "1"
    with pytest.raises(ortmulti.InvalidArgument, match=r"config.pbtxt of 'bad': a field's name was expected"):
        models.find("bad")


def test_every_model_that_cannot_be_served_is_named(tmp_path: Path) -> None:
    touch(tmp_path / "good.onnx")
    touch(tmp_path / "a/1/model.onnx")
    touch(tmp_path / "a/config.pbtxt", "backend: 'python'")
    touch(tmp_path / "b/1/model.onnx")
    (tmp_path / "b/config.pbtxt").write_bytes(b"# caf\xe9\n")
    touch(tmp_path / "c.onnx")
    touch(tmp_path / "c/1/model.onnx")
    touch(tmp_path / "stats.onnx")
    os.link(tmp_path / "good.onnx", os.fsencode(tmp_path) + b"/caf\xe9.onnx")
    found, refused = Models([tmp_path]).all()
    assert list(found) == ["good"]
    assert {name: str(error).partition(" rename")[0] for name, error in refused.items()} == {
        "a": "config.pbtxt of 'a': the model is one of python: only onnxruntime's are served",
        "b": "config.pbtxt of 'b': 'utf-8' codec can't decode byte 0xe9 in position 5: invalid continuation byte",
        "c": f"two models have the name 'c', '{tmp_path}/c' and '{tmp_path}/c.onnx':",
        "stats": "the name 'stats' has another meaning in the protocol's addresses:",
        "caf\udce9": "the name of the file or folder 'caf\\udce9' is not UTF-8:",
    }


def test_hidden_files_and_folders_are_left_out(tmp_path: Path) -> None:
    for name in ("m.onnx", "._m.onnx", ".ipynb_checkpoints/1/model.onnx", "n/1/model.onnx", "n/._1/model.onnx"):
        touch(tmp_path / name)
    assert list(Models([tmp_path]).all()[0]) == ["m", "n"]


def test_a_model_of_several_files_is_in_a_folder_of_its_files_name(tmp_path: Path) -> None:
    touch(tmp_path / "bert/1/model.onnx/model.onnx")
    touch(tmp_path / "bert/1/model.onnx/weights.bin")
    touch(tmp_path / "named/config.pbtxt", "default_model_filename: 'm.onnx'")
    touch(tmp_path / "named/2/m.onnx/model.onnx")
    found, _ = Models([tmp_path]).all()
    assert {name: Path(model.path).relative_to(tmp_path).as_posix() for name, model in found.items()} == {
        "bert": "bert/1/model.onnx/model.onnx",
        "named": "named/2/m.onnx/model.onnx",
    }
    [alone] = Models([tmp_path / "bert"]).all()[0].values()
    assert (alone.name, alone.version) == ("bert", "1")


def test_a_folder_of_versions_without_a_model_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    touch(tmp_path / "empty/1/other.onnx")
    with pytest.raises(ortmulti.NoSuchFile, match="the folder 'empty' has no version with a model's file"):
        Models([tmp_path]).all()
    touch(tmp_path / "m.onnx")
    touch(tmp_path / "named/latest/model.onnx")
    models = Models([tmp_path])
    for _ in range(2):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "ortmulti.serve"):
            assert models.all() == ({"m": Models([tmp_path]).find("m")}, {})
        assert caplog.messages == [
            f"left out: the folder '{name}' has no version with a model's file, NAME/VERSION/model.onnx"
            for name in ("empty", "named")
        ]


def test_the_only_model_may_get_a_name(tmp_path: Path) -> None:
    touch(tmp_path / "model.onnx")
    models = Models([tmp_path])
    models.name = "iris"
    assert models.find("iris").name == "iris"
    assert list(models.all()[0]) == ["iris"]
    touch(tmp_path / "other.onnx")
    with pytest.raises(ortmulti.InvalidArgument, match="'iris' is for one model, and there are 2"):
        models.all()


def test_a_library_of_custom_operators_is_named_at_the_start(tmp_path: Path) -> None:
    touch(tmp_path / "m/1/model.onnx")
    touch(tmp_path / "m/config.pbtxt", "model_operations { op_library_filename: ['libs/ops.so'] }")
    with pytest.raises(ortmulti.InvalidArgument, match=r"names the library 'libs/ops\.so', whose code would run"):
        Models([tmp_path]).find("m")
