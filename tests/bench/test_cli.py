"""The command line: in a process of its own as users run it; arguments and their errors in the test's."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from rich.table import Table

import ortmulti
from ortmulti import _core
from ortmulti._runtime.libraries import OVERRIDE, find_onnxruntime
from ortmulti.bench import models
from ortmulti.cli import output
from ortmulti.cli.devices import report
from ortmulti.cli.options import device_names
from ortmulti.cli.output import say
from ortmulti.devices.plugins import _registrations
from tests.support import onnx_models, plugins
from tests.support.command import invoke, run
from tests.support.plugins import plugin_package
from tests.support.processes import check_child, run_child


def test_version() -> None:
    shown = run("--version")
    assert (shown.returncode, shown.stdout) == (0, f"ortmulti {ortmulti.__version__}\n")


@pytest.mark.essential
@pytest.mark.parametrize(
    ("arguments", "mentions"),
    [
        ("compose", "No such command"),
        ("serve identity.onnx --port 8000", "such as --http 127.0.0.1:8000"),
        ("serve identity.onnx --host 0.0.0.0", "such as --http 0.0.0.0:8000"),
        ("bench create", "Missing argument"),
        ("bench create absent.onnx", "absent.onnx does not exist"),
        ("bench create absent.onnx --devices 99", "cuda:99"),
        ("bench create absent.onnx --strategies magic", "'magic'"),
        ("bench create absent.onnx --repeat 0", "repeat is at least 1, not 0"),
        ("bench create absent.onnx --threads -1", "intra_op_num_threads is at least 0, not -1"),
        ("bench create absent.onnx --provider-option x", "NAME=VALUE"),
        ("bench create absent.onnx --config shared:=1", "NAME=VALUE"),
        ("bench create absent.onnx --contexts-ready --second-model", "exclude"),
        ("bench create absent.onnx --plot p.xyz", "matplotlib does not write .xyz"),
        ("bench gil absent.onnx --device cpu*2", "one device is measured at a time, not cpu x2"),
        ("bench gil absent.onnx --repeat 0", "repeat is at least 1, not 0"),
        ("bench repository identity.onnx --budget 10", "the budget is 10 bytes, and identity alone has"),
        ("bench repository identity.onnx --budget much", "a share, bytes, or a size such as '8GiB', not 'much'"),
        ("bench repository identity.onnx --budget 1MB --rate 0", "rate is more than 0, not 0"),
        ("bench repository identity.onnx a/identity.onnx --budget 1MB", "two models have the name 'identity'"),
        ("bench run magic", "'magic'"),
        ("bench run identity matmul:megabytes", "NAME=VALUE"),
        ("bench run identity matmul:megabytes=0", "megabytes must be"),
        ("bench run identity --counts 0", "numbers of sessions"),
        ("bench run identity --variants magic", "variant"),
        ("bench run identity --rate fast", "rate"),
        ("bench run identity --batch x", "batch sizes"),
        ("bench run identity --batch 0", "batch sizes"),
        ("bench run identity --seconds 0", "seconds is more than 0, not 0"),
        ("bench run identity --seconds nan", "seconds is more than 0, not nan"),
        ("bench run identity --inputs moon", "inputs are host or device, not 'moon'"),
        ("bench run identity --outputs device", "threads, processes"),
        ("bench run identity --in-flight 0", "in_flight is at least 1, not 0"),
        ("bench sleep absent.onnx --kinds deep", "unknown kind of sleep 'deep': it is one of files,"),
        ("bench sleep absent.onnx --kinds session,files", "session, files are not for the CPU"),
        ("bench sleep absent.onnx --graphs", "--graphs is not for the CPU"),
        ("bench sleep absent.onnx --random -1", "random is at least 0, not -1"),
        ("diagnose identity.onnx --devices cpu*0", "number of sessions"),
        ("diagnose identity.onnx --ways fastest", "sequential, threads, processes, native, shared"),
        ("diagnose identity.onnx --ways native,native", "named twice"),
        ("diagnose identity.onnx --faster", "No such option"),
        ("diagnose identity.onnx --quick --repeat 3", "repeat is 3"),
        ("diagnose identity.onnx --budget nan", "budget"),
        ("diagnose identity.onnx --timeout -1", "timeout"),
        ("diagnose identity.onnx --batch 0", "batch"),
        ("diagnose identity.onnx --input missing.npz", "missing.npz"),
        ("diagnose identity.onnx --custom-ops missing.so", "missing.so"),
        ("diagnose identity.onnx --threads -1", "must not be negative"),
        ("diagnose identity.onnx --input inputs.npz --batch 2", "inputs were given"),
        ("run identity.onnx --dim m=5", "no dynamic dimension called m"),
        ("run identity.onnx --dim n", "--dim is NAME=SIZE"),
        ("run identity.onnx --input x=absent.npy", "'absent.npy' does not exist"),
        ("run identity.onnx --output out.txt", "--output is an .npz file"),
        ("run identity.onnx --repeat 0", "--repeat is 1 or more"),
        ("run identity.onnx --device gpu", "did you mean 'cuda'?"),
        ("tune identity.onnx --only nothing_known", "no setting 'nothing_known'"),
        ("tune identity.onnx --json /nowhere/x.json", "cannot be written"),
        ("tune identity.onnx --out same.json --json same.json", "the same file"),
    ],
)
def test_wrong_arguments_say_what_is_wrong_before_any_work(arguments: str, mentions: str, tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "a"):
        models.make("identity", folder)
    np.savez(tmp_path / "inputs.npz", x=np.ones((1, 128), np.float32))
    given = arguments.split()
    if given[:1] != ["compose"] and not {"--devices", "--device"} & {*given}:
        given += ["--device" if given[0] in ("run", "tune") or given[1] == "gil" else "--devices", "cpu"]
    shown = invoke(*given, cwd=tmp_path)
    usage = ("Missing argument", "exclude", "No such command", "No such option")
    assert shown.returncode == (2 if mentions in usage else 1)
    assert mentions in " ".join(shown.stderr.split())
    assert "Traceback" not in shown.stderr
    assert not (tmp_path / "models").exists()


def test_error_is_one_line_and_debug_shows_the_traceback() -> None:
    shown = invoke("models", "make", "magic")
    assert (shown.returncode, shown.stdout) == (1, "")
    [line] = [line for line in shown.stderr.splitlines() if line.startswith("error:")]
    assert "'magic'" in line
    assert "Traceback" not in shown.stderr
    shown = invoke("--debug", "models", "make", "magic")
    assert shown.returncode == 1
    assert "Traceback" in shown.stderr
    assert "InvalidArgument" in shown.stderr


ESCAPES = "\x1b]0;owned\x07\x1b[31m\x9b2J\u202e"
"""A terminal's title, its colours, and a right-to-left override."""


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose tensor and file of weights have escapes in their names."""
    weight = TensorProto(name=f"w{ESCAPES}", data_type=TensorProto.FLOAT, dims=[3], data_location=TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value=f"{ESCAPES}.bin")
    x, y = ((name, TensorProto.FLOAT, [3]) for name in "xy")
    node = helper.make_node("Add", ["x", weight.name], ["y"], name=f"node{ESCAPES}")
    path = tmp_path_factory.mktemp("hostile") / "hostile.onnx"
    path.write_bytes(onnx_models.model([node], [x], [y], [weight]).SerializeToString())
    return path


@pytest.mark.essential
@pytest.mark.parametrize("options", [(), ("--debug",)])
def test_names_in_files_do_not_control_the_terminal(hostile: Path, options: tuple[str, ...]) -> None:
    """Neither in errors and tracebacks nor in the log and warnings."""
    shown = run(*options, "optimize", hostile)
    assert shown.returncode == 1
    assert "\\u001b]0;owned" in shown.stderr
    assert not [c for c in shown.stdout + shown.stderr if not c.isprintable() and c != "\n"]


@pytest.mark.essential
def test_consoles_show_control_characters() -> None:
    table = Table("a", title=f"title{ESCAPES}")
    table.add_row(f"cell{ESCAPES}")
    for make in (output.stdout, output.stderr):
        console = make()
        with console.capture() as captured:
            console.print(f"text{ESCAPES}", style="red")
            console.print(f"a :cat: of [lists]{ESCAPES}", markup=False)
            console.print(table)
        assert not [c for c in captured.get() if not c.isprintable() and c != "\n"]
        assert captured.get().count("\\u001b]0;owned") == 4
        assert "a :cat: of [lists]" in captured.get()


def test_log_and_warnings_show_control_characters() -> None:
    code = """
        import logging, sys, warnings
        from ortmulti.cli import app
        def command(): logging.getLogger("any").warning("log\\x1b[31m"); warnings.warn("warning\\x1b[31m")
        app.app = command
        app.run()
    """
    shown = run_child(code)
    assert "log\\u001b[31m\n" in shown.stderr
    assert "UserWarning: warning\\u001b[31m\n" in shown.stderr
    assert "\x1b" not in shown.stderr


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_missing_package_is_one_line_that_names_the_extra(package: str) -> None:
    shown = run_child(f"import sys; sys.modules[{package!r}] = None; from ortmulti.cli import main; main()")
    assert shown.returncode == 1
    assert shown.stderr == f'ortmulti: the command line needs {package}: pip install "ortmulti[cli]"\n'


def test_models_are_listed_and_made_where_asked(tmp_path: Path) -> None:
    listed = invoke("models", "list").stdout
    assert all(name in listed for name in models.MODELS)
    made = invoke("models", "make", "matmul", "--megabytes", "1", "--output", "there", cwd=tmp_path)
    assert made.returncode == 0
    assert (tmp_path / made.stdout.strip()).is_file()


# --- `ortmulti inspect` and `ortmulti run` ----------------------------------------------------------------------------


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(onnx_models.matmul())
    return path


def facts(*arguments: str | Path) -> Any:
    shown = invoke(*arguments, "--json")
    assert shown.returncode == 0, shown.stderr
    return json.loads(shown.stdout)


def test_inspect_says_what_a_session_and_the_file_say(model: Path) -> None:
    found = facts("inspect", model)
    with onnx_models.cpu_session(model) as session:
        for key, declared in (("inputs", session.get_inputs()), ("outputs", session.get_outputs())):
            assert [(one["name"], one["type"], one["shape"]) for one in found[key]] == [
                (one.name, one.type, one.shape) for one in declared
            ]
    proto = onnx_models.matmul_proto()
    assert found["opsets"] == {"ai.onnx": proto.opset_import[0].version}
    assert found["ir_version"] == proto.ir_version
    assert found["dynamic_dimensions"] == ["n"]
    assert found["weights"]["tensors"] == len(proto.graph.initializer)
    assert found["weights"]["bytes"] == sum(len(one.raw_data) for one in proto.graph.initializer)
    shown = invoke("inspect", model).stdout
    assert "tensor(float)  (n, 64)" in shown
    assert "Dynamic dimensions of the inputs: n" in shown


def test_inspect_says_why_weights_are_not_shared(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(onnx_models.one_node("Neg"))
    assert "the model has no weights" in invoke("inspect", path).stdout
    path.write_bytes(onnx_models.matmul(8))
    assert "Each one has its own copy, since each weight is smaller than 1 KiB." in invoke("inspect", path).stdout


def test_inspect_says_that_weights_lie_in_nodes(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    value = numpy_helper.from_array(np.ones((64, 64), np.float32))
    nodes = [helper.make_node("Constant", [], ["w"], value=value), helper.make_node("MatMul", ["x", "w"], ["y"])]
    ends = [("x", TensorProto.FLOAT, ["n", 64])], [("y", TensorProto.FLOAT, ["n", 64])]
    path.write_bytes(onnx_models.model(nodes, *ends).SerializeToString())
    assert 16384 < facts("inspect", path)["weights"]["attribute_bytes"] < 16500
    shown = " ".join(invoke("inspect", path).stdout.split())
    assert "0 B of weights in 0 tensors, and 16.4 kB in attributes of nodes" in shown
    assert "no weights" not in shown
    assert "Sharing: the weights are in attributes of nodes, which each session has for itself." in shown


def test_inspect_and_run_find_inputs_of_a_recurrent_model(tmp_path: Path) -> None:
    """The batch of its state is the second dimension, and it takes windows of 512."""
    path = tmp_path / "model.onnx"
    shapes = [numpy_helper.from_array(np.array(shape), name) for name, shape in (("w", [1, 512]), ("s", [2, 1, 4]))]
    nodes = [
        helper.make_node("Reshape", ["x", "w"], ["window"]),
        helper.make_node("ReduceMean", ["window"], ["mean"]),
        helper.make_node("Reshape", ["state", "s"], ["before"]),
        helper.make_node("Add", ["before", "mean"], ["after"]),
    ]
    ends = [("x", 1, [None, None]), ("state", 1, [2, None, 4])], [("after", 1, [2, None, 4])]
    path.write_bytes(onnx_models.model(nodes, *ends, shapes).SerializeToString())
    last = facts("inspect", path)["advice"][-1]
    with ortmulti.load(path, "cpu") as pool:
        [output] = eval(last.removeprefix("A request to try: "), {"pool": pool, "np": np})
    assert output.shape == (2, 1, 4)
    assert invoke("run", path, "--device", "cpu", "--repeat", "1").returncode == 0


def test_inspect_proposes_no_request_that_does_not_run(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(onnx_models.at_least(5000))
    assert facts("inspect", path)["advice"][-1].startswith("No made-up inputs run: ")


@pytest.mark.parametrize(
    ("make", "against"),
    [
        (onnx_models.matmul, []),
        (onnx_models.control_flow, ["If: control flow"]),
        (onnx_models.nonzero, ["NonZero: sizes that the run finds"]),
    ],
)
def test_inspect_says_what_is_against_cuda_graphs(
    make: Callable[[], bytes], against: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(make())
    assert facts("inspect", path)["against_cuda_graphs"] == against
    shown = invoke("inspect", path).stdout
    assert all(reason in shown for reason in against)
    assert ("nothing against them" in shown) == (not against)


TEXT = """(int64[batch, length] ids, string[batch] name) => (int64[batch, length] y, string[batch] same) {
    y = Identity(ids)
    same = Identity(name)
}"""


STATE = """(float[n, m] x, float[2, k, 2] state, int64 sr) => (float[n, k, 2] y) {
    expected = Constant <value_int = 16000> ()
    same = Equal(sr, expected)
    axis = Constant <value_ints = [0]> ()
    scale = CastLike(same, state)
    states = ReduceSum <keepdims = 0> (state, axis)
    scaled = Div(states, scale)
    samples = ReduceSum <keepdims = 1> (x)
    row = Add(scaled, samples)
    shape = Constant <value_ints = [1, 1, 2]> ()
    y = Reshape(row, shape)
}"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "(int64[batch, length] ids) => (int64[batch, length] y) { y = Identity(ids) }",
            ["can be joined along dimension 0", "Requests of different length can be joined"],
        ),
        (TEXT, ["cannot be joined", "input 'name' is of type tensor(string)"]),
        ("(float[n, 4] x) => (float[n, 4] y) { y = Softmax <axis=0> (x) }", ["Softmax 'y' normalizes over the batch"]),
        ("(float[1, 4] x) => (float[1, 4] y) { y = Relu(x) }", ["cannot be joined", "input 'x' has the fixed size 1"]),
        (STATE, ["cannot be joined", "input 'sr' is a scalar"]),
    ],
)
def test_inspect_ends_with_how_requests_are_joined_and_one_to_try(text: str, said: list[str], tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(onnx_models.parsed(text).SerializeToString())
    *advice, last = facts("inspect", path)["advice"]
    assert len(advice) == max(1, len(said) - ("cannot be joined" in said))
    assert all(any(one in line for line in advice) for one in said)
    shown = invoke("inspect", path).stdout.replace("\n", " ")
    assert all(one in shown for one in said)
    with ortmulti.load(path, "cpu") as pool:
        outputs = eval(last.removeprefix("A request to try: "), {"pool": pool, "np": np})
    assert len(outputs) == len(pool.get_outputs())


def test_inspect_shows_what_it_can_of_a_model_that_cannot_be_opened(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    proto = onnx_models.matmul_proto()
    proto.ir_version = 99
    path.write_bytes(proto.SerializeToString())
    shown = invoke("inspect", path)
    assert shown.returncode == 0
    assert "IR version 99" in shown.stdout
    assert "install a newer ONNX Runtime" in shown.stderr
    path.write_bytes(proto.SerializeToString()[:-1])
    shown = invoke("inspect", path)
    assert shown.returncode == 1
    assert "Copy or download it again" in shown.stderr.splitlines()[0]


@pytest.mark.parametrize("given", ["x={}/x.npy", "{}/x.npy", "{}/x.npz"])
def test_run_takes_given_inputs_and_writes_the_outputs(given: str, model: Path, tmp_path: Path) -> None:
    x, out = np.arange(3 * 64, dtype=np.float32).reshape(3, 64), tmp_path / "out.npz"
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "x.npz", x=x)
    with onnx_models.cpu_session(model) as session:
        [expected] = session.run(["y"], {"x": x})
    found = facts("run", model, "--input", given.format(tmp_path), "--device", "cpu", "--repeat", "2", "--output", out)
    assert found["inputs"] == [{"name": "x", "type": "float32", "shape": [3, 64], "given": True}]
    assert found["seconds"]["runs"] == 2
    np.testing.assert_array_equal(np.load(out)["y"], expected)


def test_run_makes_inputs_of_the_sizes_asked_for(model: Path) -> None:
    options = ("--device", "cpu", "--repeat", "1")
    assert facts("run", model, *options, "--dim", "n=5")["inputs"][0]["shape"] == [5, 64]
    assert facts("run", model, *options, "--batch", "7")["outputs"][0]["shape"][0] == 7
    shown = invoke("run", model, *options)
    assert "on cpu: a run takes" in shown.stdout
    assert shown.stderr == ""  # no progress where nobody looks
    assert "random" in shown.stdout


def test_run_makes_larger_inputs_for_a_model_with_a_smallest_size(tmp_path: Path) -> None:
    path = tmp_path / "conv.onnx"
    path.write_bytes(onnx_models.at_least(400))
    assert facts("run", path, "--device", "cpu", "--repeat", "1")["inputs"][0]["shape"] == [1, 1, 512]
    shown = invoke("run", path, "--device", "cpu", "--sequence", "399")
    assert shown.returncode == 1
    assert "Invalid input shape: {399}" in shown.stderr


GIB = 1 << 30


@pytest.fixture(autouse=True)
def no_registration_stays() -> Iterator[None]:
    before = set(_registrations)
    yield
    for name in _registrations.keys() - before:
        ortmulti.unregister_execution_provider_library(name)


def printed(facts: dict[str, Any]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        say(*report(facts))
    return shown.getvalue()


def gpu(index: int, persistence_mode: bool | None) -> dict[str, Any]:
    return {
        "device": f"cuda:{index}",
        "name": "Some [GPU]",
        "memory_total": 80 * GIB,
        "memory_free": (70 + index) * GIB,
        "compute_capability": "9.0",
        "pci_bus_id": f"0000:{index}b:00.0",
        "uuid": f"GPU-{index}",
        "persistence_mode": persistence_mode,
        "processes": [{"process": 4321, "bytes": (1 + index) * GIB}, {"process": 77, "bytes": None}],
    }


@pytest.fixture
def two_gpus() -> dict[str, Any]:
    """What `collect` gives on a machine with two GPUs, the second of which lacks peer access to the first."""
    system, runtime = (
        {"path": "/lib64/libcublas.so.13", "source": "system", "distribution": None, "problem": None},
        {"path": "/site/libcudart.so.13", "source": "nvidia", "distribution": "cuda-runtime 13.0.96", "problem": None},
    )
    return {
        "devices": [
            {"device": "cpu", "name": "Some CPU", "cores": 8, "memory_total": 64 * GIB},
            gpu(0, True),
            gpu(1, None),
        ],
        "peer_access": [[True, True], [False, True]],
        "hidden_gpus": [{"name": "Hidden GPU", "uuid": "GPU-9", "pci_bus_id": "0000:9b:00.0"}],
        "driver": {"version": "580.95.05", "cuda": "13.0", "problem": None},
        "onnxruntime": {
            "distribution": "onnxruntime-gpu",
            "version": "1.31.1",
            "path": "/somewhere/libonnxruntime.so.1.31.1",
            "cuda": 13,
            "cuda_provider": "built-in",
            "problem": None,
        },
        "cuda_libraries": {"found": [system, runtime], "missing": [], "missing_optional": ["libcudnn.so.9"]},
        "cpu_sessions": {"usable": True, "reasons": []},
        "cuda_sessions": {"usable": True, "reasons": []},
        "plugin_devices": [],
        "plugin_packages": [],
        "shared_weights": [],
    }


def test_this_machine() -> None:
    facts = json.loads(run("devices", "--json").stdout)
    gpus = [f"cuda:{index}" for index in range(_core.cuda_device_count())]
    assert [device["device"] for device in facts["devices"]] == ["cpu", *gpus]
    assert facts["devices"][0]["cores"] == _core.usable_cores()
    runtime = find_onnxruntime()
    assert facts["onnxruntime"]["path"] == str(runtime.path)
    assert facts["onnxruntime"]["version"] == (runtime.version or None)
    assert facts["cuda_sessions"]["usable"] == (not facts["cuda_sessions"]["reasons"])
    if not runtime.has_cuda or _core.cuda_driver_version() is None:
        assert not facts["cuda_sessions"]["usable"]
    assert all(line[row] is True and len(line) == len(gpus) for row, line in enumerate(facts["peer_access"]))


def test_a_machine_without_a_gpu_says_so() -> None:
    if _core.cuda_device_count():
        pytest.skip("needs a machine without a GPU")
    text = run("devices").stdout
    assert "There is no GPU that this process can use." in text
    assert "Sessions on a GPU will not work:" in text
    assert _core.cuda_driver_problem() in text


@pytest.mark.parametrize("exists", [False, True], ids=["missing", "damaged"])
def test_without_a_usable_onnxruntime_no_device_is_ready(
    exists: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "libonnxruntime.so.1.32.0"
    if exists:
        library.write_bytes(b"no library")
    monkeypatch.setenv(OVERRIDE, str(library))
    shown = run("devices")
    assert shown.returncode == 1
    text = " ".join(shown.stdout.split())
    assert "No session can be created, not even on the CPU" in text
    assert library.name in text
    assert "ready" not in text
    assert "the CPU works" not in text
    as_json = run("devices", "--json")
    assert as_json.returncode == 1
    facts = json.loads(as_json.stdout)
    assert facts["cpu_sessions"] == {"usable": False, "reasons": [facts["onnxruntime"]["problem"]]}
    assert facts["onnxruntime"]["problem"] in facts["cuda_sessions"]["reasons"]


def test_devices_are_named_by_a_text_or_a_list() -> None:
    assert device_names("0,cuda:1") == ["0", "cuda:1"]
    for as_it_is in ("all", 0, ["cuda:0", "cuda:1"]):
        assert device_names(as_it_is) == as_it_is


def test_two_gpus_are_printed_with_everything_known(two_gpus: dict[str, Any]) -> None:
    lines = printed(two_gpus).splitlines()
    for texts in (
        ("cuda:0", "GPU-0", "Some [GPU]", "70.0 GiB / 80.0 GiB", "9.0", "0000:0b:00.0", "on"),
        ("cuda:1", "GPU-1", "unknown"),
        ("cpu", "Some CPU, 8 cores usable", "64.0 GiB"),
        ("Not shown to this process", "Hidden GPU", "GPU-9", "0000:9b:00.0"),
        ("cuda:0", "4321", "1.0 GiB"),
        ("cuda:1", "4321", "2.0 GiB"),
        ("cuda:1", " 77 ", "unknown"),
        ("NVIDIA driver", "580.95.05, CUDA 13.0"),
        ("onnxruntime-gpu 1.31.1, for CUDA 13", "/somewhere/libonnxruntime.so.1.31.1"),
        ("/lib64", "libcublas.so.13", "system"),
        ("/site", "libcudart.so.13", "cuda-runtime 13.0.96"),
        ("libcudnn.so.9", "missing", "needed for convolution"),
        ("cuda:0 │", "yes"),
        ("cuda:1 │", "   no   "),
        ("Sessions on the GPUs will work.",),
    ):
        assert len([line for line in lines if all(text in line for text in texts)]) == 1, texts
    reason = 'install them with pip install "onnxruntime-gpu[cuda,cudnn]==1.31.1"'
    two_gpus["onnxruntime"]["cuda_provider"] = "plug-in"
    two_gpus["cuda_sessions"] = {"usable": False, "reasons": [reason]}
    two_gpus["cuda_libraries"]["missing"] = ["libcurand.so.10"]
    text = printed(two_gpus)
    for part in ("for CUDA 13 as a plug-in", f"  - {reason}", "will not work", "libcurand.so.10"):
        assert part in text


def test_plugins_are_listed_with_their_devices(tmp_path: Path) -> None:
    plugin_package(tmp_path, "onnxruntime_ep_fake", plugins.build(tmp_path))
    (tmp_path / "idle").mkdir()
    idle = plugins.build(tmp_path / "idle", DEVICES=0, PROVIDER="IdleExecutionProvider")
    plugin_package(tmp_path, "onnxruntime_ep_idle", idle, "IdleExecutionProvider")
    broken = tmp_path / "onnxruntime_ep_broken"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise ImportError('a part is missing')")
    code = "import sys; sys.path.append(sys.argv.pop()); from ortmulti.cli import main; main()"
    facts = json.loads(check_child(code, "devices", "--json", tmp_path))
    [device] = [device for device in facts["plugin_devices"] if device["device"] == "fake:CPU"]
    assert (device["provider"], device["version"]) == ("FakeExecutionProvider", "1.2.3")
    problems = {package["package"]: package["problem"] for package in facts["plugin_packages"]}
    assert problems["onnxruntime_ep_fake"] is None
    assert "a part is missing" in problems["onnxruntime_ep_broken"]
    text = printed(facts)
    assert "fake:CPU" in text
    assert "Not usable: the package onnxruntime_ep_broken cannot be used" in text
    assert "Not usable: the package onnxruntime_ep_idle supports no hardware of this machine\n" in text
