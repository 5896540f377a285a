"""What `read_settings` finds in an export's files, and what it refuses."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import ortmulti
from ortmulti import text
from tests.support import exports
from tests.support.command import invoke

POOLING = "1_Pooling/config.json"


def refused(folder: Path, message: str, **arguments: Any) -> None:
    with pytest.raises(ortmulti.InvalidArgument) as caught:
        text.read_settings(folder, **arguments)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_export_of_the_transformer_alone_is_pooled_by_the_mean(tmp_path: Path) -> None:
    found = text.read_settings(exports.export(tmp_path / "minilm"))
    assert (found.name, found.task, found.pooling, found.normalize) == ("minilm", "embedding", "mean", False)
    assert (found.output, found.inputs) == ("last_hidden_state", exports.INPUTS)
    assert (found.model.name, found.max_length, found.model_type) == ("model.onnx", 256, "bert")
    assert (found.prompts, found.default_prompt, found.labels, found.activation) == ({}, None, (), "none")
    assert (found.pad_token, found.pad_side, found.truncation_side, found.lower_case) == (0, "right", "right", False)


def test_no_configuration_is_needed(tmp_path: Path) -> None:
    folder = exports.export(tmp_path)
    (folder / "config.json").unlink()
    found = text.read_settings(folder)
    assert (found.task, found.max_length, found.pad_token) == ("embedding", 512, 0)


@pytest.mark.parametrize(
    ("config", "pooling"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_max_tokens": True}, "max"),
        ({"pooling_mode_lasttoken": True}, "last"),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, "mean_sqrt_len"),
        ({"pooling_mode_weightedmean_tokens": True}, "weightedmean"),
        ({"pooling_mode": "lasttoken", "embedding_dimension": 6}, "last"),
        ({"pooling_mode": ["cls"]}, "cls"),
        ({"pooling_mode": ["mean", "cls"]}, ("mean", "cls")),
        (
            {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True, "pooling_mode_cls_token": True},
            ("cls", "max", "mean"),
        ),
        ({}, "mean"),
    ],
)
def test_the_pooling_is_that_of_its_configuration(tmp_path: Path, config: dict[str, Any], pooling: object) -> None:
    files = {"modules.json": exports.modules("Pooling", "Normalize"), POOLING: config}
    found = text.read_settings(exports.export(tmp_path, files=files))
    assert (found.pooling, found.normalize, found.include_prompt) == (pooling, True, True)
    assert text.read_settings(tmp_path, pooling="mean", normalize=False).pooling == "mean"
    assert text.read_settings(tmp_path, pooling=["last", "max"]).pooling == ("last", "max")
    assert not text.read_settings(tmp_path, normalize=False).normalize


def test_the_models_own_vector_is_used_unless_a_pooling_is_asked_for(tmp_path: Path) -> None:
    files = {"modules.json": exports.modules("Pooling", "Dense", "Normalize"), POOLING: {"pooling_mode": "cls"}}
    exports.export(tmp_path, "token_embeddings", "sentence_embedding", files=files)
    found = text.read_settings(tmp_path)
    assert (found.output, found.pooling, found.normalize) == ("sentence_embedding", None, True)
    files["modules.json"] = exports.modules("Pooling", "Normalize")
    exports.export(tmp_path, "token_embeddings", "sentence_embedding", files=files)
    found = text.read_settings(tmp_path, pooling="max")
    assert (found.output, found.pooling) == ("token_embeddings", "max")


def test_a_module_that_the_model_lacks_is_refused(tmp_path: Path) -> None:
    exports.export(tmp_path, files={"modules.json": exports.modules("Pooling", "CNN"), POOLING: {}})
    refused(tmp_path, "modules.json has a module CNN in '2_CNN', which ")


@pytest.mark.parametrize(
    ("files", "file", "choice"),
    [
        (["model.onnx", "onnx/model.onnx"], None, "model.onnx"),
        (["onnx/model.onnx", "onnx/model_quantized.onnx"], None, "onnx/model.onnx"),
        (["onnx/model.onnx", "onnx/model_quantized.onnx"], "onnx/model_quantized.onnx", "onnx/model_quantized.onnx"),
        (["onnx/model.onnx", "onnx/model_quantized.onnx"], "model_quantized.onnx", "onnx/model_quantized.onnx"),
        (["onnx/model_fp16.onnx"], None, "onnx/model_fp16.onnx"),
        (["any name.onnx"], None, "any name.onnx"),
    ],
)
def test_the_plain_model_wins(tmp_path: Path, files: list[str], file: str | None, choice: str) -> None:
    for one in files:
        exports.export(tmp_path, at=one)
    assert text.read_settings(tmp_path, file=file).model == tmp_path / choice
    assert text.is_export(tmp_path)


def test_a_snapshot_in_the_hubs_cache_has_the_repositorys_name(tmp_path: Path) -> None:
    """Its files are links to others, which have no names."""
    root = tmp_path / "models--owner--all-MiniLM-L6-v2"
    exports.export(root / "blobs", at="0123")
    (snapshot := root / "snapshots" / "abcd").mkdir(parents=True)
    for name, target in (("model.onnx", "0123"), ("tokenizer.json", "tokenizer.json")):
        (snapshot / name).symlink_to(f"../../blobs/{target}")
    assert text.read_settings(snapshot).name == "all-MiniLM-L6-v2"
    with text.load(snapshot, "cpu") as model:
        assert model.embed(["a cat"]).shape == (1, exports.WIDTH)


def test_several_models_and_none_are_refused(tmp_path: Path) -> None:
    exports.export(tmp_path, at="onnx/model_q4.onnx")
    exports.export(tmp_path, at="onnx/model_fp16.onnx")
    refused(tmp_path, "several ONNX files, onnx/model_fp16.onnx, onnx/model_q4.onnx: choose one by file=")
    with pytest.raises(ortmulti.NoSuchFile, match=r"has no file 'other.onnx'; it has onnx/model_fp16.onnx, onnx/model"):
        text.read_settings(tmp_path, file="other.onnx")
    with pytest.raises(ortmulti.NoSuchFile, match="there is no folder"):
        text.read_settings(tmp_path / "missing")
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(ortmulti.NoSuchFile, match=r"has no tokenizer.json"):
        text.read_settings(tmp_path, file="model_q4.onnx")
    assert not text.is_export(tmp_path)
    exports.tokenizer(tmp_path / "tokenizer.json")
    for file in (tmp_path / "onnx").iterdir():
        file.unlink()
    with pytest.raises(ortmulti.NoSuchFile, match="no ONNX file"):
        text.read_settings(tmp_path)
    assert not text.is_export(tmp_path)
    assert not text.is_export(tmp_path / "missing")
    assert not text.is_export(tmp_path / "tokenizer.json")


def test_the_transformer_may_lie_in_a_folder_of_its_own(tmp_path: Path) -> None:
    exports.export(
        tmp_path / "0_Transformer", at="onnx/model.onnx", files={"sentence_bert_config.json": {"max_seq_length": 32}}
    )
    listed = exports.modules("Pooling")
    listed[0]["path"] = "0_Transformer"
    (tmp_path / "modules.json").write_text(json.dumps(listed))
    (tmp_path / POOLING).parent.mkdir()
    (tmp_path / POOLING).write_text("{}")
    found = text.read_settings(tmp_path)
    assert found.model == tmp_path / "0_Transformer/onnx/model.onnx"
    assert found.tokenizer == tmp_path / "0_Transformer/tokenizer.json"
    assert (found.max_length, found.model_type) == (32, "bert")
    assert text.is_export(tmp_path)


@pytest.mark.parametrize(
    ("config", "of_tokenizer", "of_transformer", "length"),
    [
        ({"max_position_embeddings": 512}, {"model_max_length": 128}, {}, 128),
        ({"max_position_embeddings": 512}, {"model_max_length": 1e30}, {}, 512),
        ({"max_position_embeddings": 512}, {"model_max_length": 512}, {"max_seq_length": 256}, 256),
        ({"max_position_embeddings": 512}, {"model_max_length": 128}, {"max_seq_length": 256}, 256),
        ({"max_position_embeddings": 512}, {}, {"max_seq_length": 1024}, 512),
        ({"max_position_embeddings": 512}, {}, {"max_seq_length": None}, 512),
        ({"max_position_embeddings": 514, "model_type": "roberta", "pad_token_id": 1}, {}, {}, 512),
        (
            {"max_position_embeddings": 514, "model_type": "mpnet", "pad_token_id": 1},
            {"model_max_length": 514},
            {},
            512,
        ),
        (
            {"max_position_embeddings": 514, "model_type": "xlm-roberta", "pad_token_id": 1},
            {},
            {"max_seq_length": 514},
            512,
        ),
        ({"max_position_embeddings": -1, "model_type": "xlnet"}, {"model_max_length": 77}, {}, 77),
        ({}, {"model_max_length": 1000000000000000019884624838656}, {}, 512),
    ],
)
def test_the_longest_length(
    tmp_path: Path, config: dict[str, Any], of_tokenizer: dict[str, Any], of_transformer: dict[str, Any], length: int
) -> None:
    files = {
        "config.json": config,
        "tokenizer_config.json": of_tokenizer,
        "sentence_bert_config.json": of_transformer,
    }
    exports.export(tmp_path, files=files)
    assert text.read_settings(tmp_path).max_length == length
    assert text.read_settings(tmp_path, max_length=20).max_length == 20


def test_no_text_may_be_longer_than_the_model_has_positions(tmp_path: Path) -> None:
    exports.export(tmp_path)
    assert text.read_settings(tmp_path, max_length=256).max_length == 256
    refused(tmp_path, "max_length is 1 to 256, not 257", max_length=257)
    refused(tmp_path, "max_length is 1 to 256, not 0", max_length=0)


@pytest.mark.parametrize(
    ("config", "task", "labels", "activation"),
    [
        ({"id2label": {"0": "LABEL_0"}}, "ranking", ("LABEL_0",), "sigmoid"),
        ({"id2label": {"0": "no", "1": "yes"}}, "classification", ("no", "yes"), "softmax"),
        ({}, "classification", ("LABEL_0", "LABEL_1"), "softmax"),
        ({"num_labels": 1}, "ranking", ("LABEL_0",), "sigmoid"),
        (
            {"id2label": {"0": "a", "1": "b"}, "problem_type": "multi_label_classification"},
            "classification",
            ("a", "b"),
            "sigmoid",
        ),
        (
            {"num_labels": 1, "sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}},
            "ranking",
            ("LABEL_0",),
            "none",
        ),
        (
            {"num_labels": 1, "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"},
            "ranking",
            ("LABEL_0",),
            "none",
        ),
        (
            {"num_labels": 2, "sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}},
            "classification",
            ("LABEL_0", "LABEL_1"),
            "softmax",
        ),
        (
            {"num_labels": 1, "sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Tanh"}},
            "ranking",
            ("LABEL_0",),
            "tanh",
        ),
        (
            {"num_labels": 1, "sentence_transformers": {"activation_fn": "torch.nn.modules.activation.GELU"}},
            "ranking",
            ("LABEL_0",),
            "GELU",
        ),
        (
            {"num_labels": 1, "sbert_ce_default_activation_function": "os.system"},
            "ranking",
            ("LABEL_0",),
            "os.system",
        ),
        (
            {"num_labels": 2, "sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}},
            "classification",
            ("LABEL_0", "LABEL_1"),
            "sigmoid",
        ),
    ],
)
def test_the_task_is_that_of_the_architecture(
    tmp_path: Path, config: dict[str, Any], task: str, labels: tuple[str, ...], activation: str
) -> None:
    files = {"config.json": {"architectures": ["BertForSequenceClassification"], **config}}
    found = text.read_settings(exports.export(tmp_path, "logits", files=files))
    assert (found.task, found.labels, found.activation) == (task, labels, activation)
    assert (found.output, found.pooling) == ("logits", None)


def test_a_cross_encoder_of_sentence_transformers(tmp_path: Path) -> None:
    """Since its release 5 such a folder has a modules.json, too."""
    files = {
        "config.json": {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}},
        "modules.json": exports.modules(),
        "config_sentence_transformers.json": {
            "model_type": "CrossEncoder",
            "activation_fn": "torch.nn.modules.linear.Identity",
        },
    }
    found = text.read_settings(exports.export(tmp_path, "logits", files=files))
    assert (found.task, found.activation) == ("ranking", "none")
    refused(tmp_path, "pooling is for embeddings, and the task is ranking", pooling="mean")


def test_a_task_that_is_asked_for(tmp_path: Path) -> None:
    exports.export(tmp_path, "logits")
    refused(tmp_path, "has the output 'logits' and no vectors")
    assert text.read_settings(tmp_path, task="ranking").labels == ("LABEL_0",)
    assert text.read_settings(tmp_path, task="classification").labels == ("LABEL_0", "LABEL_1")
    refused(tmp_path, "task is 'embedding', 'ranking' or 'classification', not 'rank'", task="rank")
    refused(tmp_path, "pooling is 'cls', ", pooling="middle")
    refused(tmp_path, "pooling is 'cls', ", pooling=["cls", "middle"])
    refused(tmp_path, "or a list of several, not []", pooling=[])
    refused(tmp_path, "normalize is True, False or None, not 1", normalize=1)


def test_prompts_and_the_tokenizers_settings(tmp_path: Path) -> None:
    files = {
        "config_sentence_transformers.json": {
            "prompts": {"query": "query: ", "document": ""},
            "default_prompt_name": "query",
        },
        "modules.json": exports.modules("Pooling"),
        POOLING: {"include_prompt": False},
        "sentence_bert_config.json": {"do_lower_case": True},
        "tokenizer_config.json": {
            "pad_token": {"content": "<pad>", "lstrip": False},
            "padding_side": "left",
            "truncation_side": "left",
            "added_tokens_decoder": {"0": {"content": "<s>"}, "5": {"content": "<pad>"}},
        },
    }
    found = text.read_settings(exports.export(tmp_path, files=files))
    assert (found.prompts, found.default_prompt) == ({"query": "query: ", "document": ""}, "query")
    assert (found.include_prompt, found.lower_case) == (False, True)
    assert (found.pad_token, found.pad_side, found.truncation_side) == (5, "left", "left")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", "{", "config.json is no JSON file"),
        ("config.json", "[1]", "config.json is a JSON object, not [1]"),
        ("config.json", "[" * 100_000, "config.json is no JSON file: it is nested too deeply"),
        ("config.json", {"architectures": "Bert"}, "'architectures' is a list of texts, not 'Bert'"),
        ("config.json", {"architectures": [1]}, "'architectures' is a list of texts, not [1]"),
        ("config.json", {"max_position_embeddings": "512"}, "'max_position_embeddings' is a number"),
        ("config.json", {"max_position_embeddings": 1.5}, "'max_position_embeddings' is a whole number, not 1.5"),
        ("config.json", {"max_position_embeddings": True}, "'max_position_embeddings' is a number"),
        ("config.json", '{"max_position_embeddings": NaN}', "'max_position_embeddings' is a number"),
        ("config.json", {"model_type": 3}, "'model_type' is a text, not 3"),
        ("config.json", {"model_type": ["x" * 1000]}, "'model_type' is a text, not ['xxx"),
        ("config.json", {"pad_token_id": -1}, "'pad_token_id' is a number of 0 or more, not -1"),
        (
            "config.json",
            {"architectures": ["XForSequenceClassification"], "id2label": {"1": "a", "2": "b"}},
            "'id2label' is an object of the names of '0' to '1'",
        ),
        (
            "config.json",
            {"architectures": ["XForSequenceClassification"], "id2label": {"0": 1}},
            "'id2label' is an object of texts",
        ),
        ("modules.json", {}, "modules.json is a list of objects"),
        ("modules.json", ["a"], "modules.json is a list of objects"),
        ("modules.json", [{"path": "../other", "type": "Transformer"}], "the path '../other' is not within the folder"),
        ("modules.json", [{"path": "/etc", "type": "Transformer"}], "the path '/etc' is not within the folder"),
        ("modules.json", [{"path": "a/../../b", "type": "T"}], "is not within the folder"),
        ("modules.json", [{"path": "a\0b", "type": "T"}], "is not within the folder"),
        ("modules.json", [{"path": 1, "type": "T"}], "'path' is a text, not 1"),
        (POOLING, {"pooling_mode": "middle"}, "'pooling_mode' is one of 'cls', 'max'"),
        (POOLING, {"pooling_mode": ["cls", "middle"]}, "'pooling_mode' is of 'cls', 'max'"),
        (POOLING, {"pooling_mode_cls_token": 1}, "'pooling_mode_cls_token' is true or false, not 1"),
        (POOLING, {"include_prompt": "no"}, "'include_prompt' is true or false, not 'no'"),
        ("tokenizer_config.json", {"padding_side": "up"}, "'padding_side' is one of 'right', 'left', not 'up'"),
        ("tokenizer_config.json", {"model_max_length": 0}, "'model_max_length' is a number of 1 or more, not 0"),
        ("tokenizer_config.json", {"pad_token": 1}, "'pad_token' is a text, not 1"),
        ("sentence_bert_config.json", {"max_seq_length": "x"}, "'max_seq_length' is a number"),
        ("config_sentence_transformers.json", {"prompts": {"a": 1}}, "'prompts' is an object of texts"),
        ("config_sentence_transformers.json", {"default_prompt_name": "q"}, "'default_prompt_name' is one of"),
        (
            "config_sentence_transformers.json",
            {"model_type": "SparseEncoder"},
            "'model_type' is 'SentenceTransformer' or",
        ),
    ],
)
def test_a_wrong_file_is_one_clear_error(tmp_path: Path, name: str, content: Any, message: str) -> None:
    files = {"modules.json": exports.modules("Pooling"), POOLING: {}, name: content}
    refused(exports.export(tmp_path, files=files), message)


def test_no_large_file_is_read_and_none_that_never_ends(tmp_path: Path) -> None:
    exports.export(tmp_path, files={"tokenizer_config.json": " " * ((32 << 20) + 1)})
    refused(tmp_path, "tokenizer_config.json is no JSON file: it has more than 33554432 bytes")
    (tmp_path / "tokenizer_config.json").unlink()
    os.mkfifo(tmp_path / "tokenizer_config.json")
    with pytest.raises(ortmulti.NoSuchFile, match=r"tokenizer_config.json cannot be read: not a regular file"):
        text.read_settings(tmp_path)


def test_models_that_want_more_than_texts_are_refused(tmp_path: Path) -> None:
    exports.export(tmp_path, inputs=(*exports.INPUTS, "pixel_values"))
    refused(tmp_path, "has the input 'pixel_values', and texts give input_ids, attention_mask")
    (tmp_path / "model.onnx").write_bytes(b"no model")
    with pytest.raises(ortmulti.InvalidProtobuf):
        text.read_settings(tmp_path)


def test_what_sentence_transformers_cuts_and_what_is_not_all_there(tmp_path: Path) -> None:
    files = {"modules.json": exports.modules("Pooling"), "config_sentence_transformers.json": {"truncate_dim": 3}}
    exports.export(tmp_path, files=files)
    with pytest.raises(ortmulti.NoSuchFile, match=r"1_Pooling/config.json', which modules.json names"):
        text.read_settings(tmp_path)
    assert text.read_settings(tmp_path, pooling="cls").pooling == "cls"
    with text.load(tmp_path, "cpu", pooling="mean") as model:
        assert (model.dimensions, model.embed(["a", "b"]).shape, model.embed(["a"], dimensions=5).shape) == (
            3,
            (2, 3),
            (1, 5),
        )
        assert next(model.embed_stream(["a"])).shape == (3,)
    with pytest.raises(ortmulti.NoSuchFile, match="give its folder, and the file by file="):
        text.read_settings(tmp_path / "model.onnx")


def test_inspect_shows_what_an_export_says(tmp_path: Path) -> None:
    files = {"config_sentence_transformers.json": {"prompts": {"query": "query: "}}}
    exports.export(tmp_path, at="onnx/model.onnx", files=files)
    shown = invoke("inspect", tmp_path)
    assert shown.returncode == 0, shown.stderr
    said = " ".join(shown.stdout.split())
    assert "Texts: embedding, mean of the tokens, 256 tokens at most, prompts 'query'" in said
    assert "token" in said
    found = json.loads(invoke("inspect", tmp_path, "--json").stdout)
    assert found["model"] == str(tmp_path / "onnx/model.onnx")
    assert (found["texts"]["task"], found["texts"]["pooling"], found["texts"]["max_length"]) == (
        "embedding",
        "mean",
        256,
    )
    plain = invoke("inspect", tmp_path / "onnx")
    assert plain.returncode == 1
    assert "has no tokenizer.json" in plain.stderr
    assert "last_hidden_state" in plain.stdout
    (tmp_path / "onnx/model.onnx").unlink()
    empty = invoke("inspect", tmp_path)
    assert (empty.returncode, empty.stdout) == (1, "")
    assert "has no ONNX file" in empty.stderr


def test_inspect_shows_what_does_not_load_and_why(tmp_path: Path) -> None:
    files = {"modules.json": exports.modules("Pooling", "CNN"), POOLING: {}}
    exports.export(tmp_path, at="onnx/model.onnx", files=files)
    exports.export(tmp_path, at="onnx/a.onnx", files=files)
    shown = invoke("inspect", tmp_path)
    assert shown.returncode == 1
    assert "modules.json has a module CNN in '2_CNN'" in shown.stderr
    said = " ".join(shown.stdout.split())
    assert "onnx/model.onnx, onnx/a.onnx, tokenizer.json, and the modules Transformer, Pooling, CNN." in said
    assert "last_hidden_state" in said
    found = invoke("inspect", tmp_path, "--json")
    assert found.returncode == 1
    texts = json.loads(found.stdout)["texts"]
    assert texts["files"] == ["onnx/model.onnx", "onnx/a.onnx", "tokenizer.json"]
    assert "has a module CNN" in texts["problem"]
