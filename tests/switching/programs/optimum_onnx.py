"""optimum: a classifier, a decoder and an encoder-decoder of transformers, exported; with and without bound memory."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from optimum.exporters.onnx import onnx_export_from_model
from optimum.onnxruntime import (
    ORTModelForCausalLM,
    ORTModelForSeq2SeqLM,
    ORTModelForSequenceClassification,
    ORTOptimizer,
    ORTQuantizer,
)
from optimum.onnxruntime.configuration import AutoOptimizationConfig, AutoQuantizationConfig

TOKENS = torch.arange(3, 27).reshape(2, 12)


def prepare(folder: Path) -> None:
    """Exports small models with random weights: nothing can be fetched."""
    torch.manual_seed(0)
    small = {"vocab_size": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    bert = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, num_labels=5, **small
    )
    gpt2 = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=64, **small)
    t5 = transformers.T5Config(
        d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0, **small
    )
    for name, model, task in (
        ("bert", transformers.BertForSequenceClassification(bert), "text-classification"),
        ("gpt2", transformers.GPT2LMHeadModel(gpt2), "text-generation-with-past"),
        ("t5", transformers.T5ForConditionalGeneration(t5), "text2text-generation-with-past"),
    ):
        model.eval()
        onnx_export_from_model(model, folder / name, task=task, do_validation=False)
        model.config.save_pretrained(folder / name)


def outputs(onnxruntime: Any, folder: Path) -> Any:  # noqa: ARG001  # optimum imports it
    results: list[Any] = []
    for bound in (False, True):
        classifier = ORTModelForSequenceClassification.from_pretrained(folder / "bert", use_io_binding=bound)
        mask = torch.ones_like(TOKENS)
        mask[1, 7:] = 0
        logits = classifier(input_ids=TOKENS, attention_mask=mask, token_type_ids=torch.zeros_like(TOKENS)).logits
        results.append(["bert", bound, logits.numpy()])

        decoder = ORTModelForCausalLM.from_pretrained(folder / "gpt2", use_io_binding=bound)
        logits = decoder(input_ids=TOKENS, attention_mask=torch.ones_like(TOKENS)).logits
        results.append(["gpt2", bound, logits.numpy()])
        for beams in (1, 3):
            generated = decoder.generate(
                TOKENS, attention_mask=torch.ones_like(TOKENS), max_new_tokens=16, num_beams=beams, do_sample=False
            )
            results.append(["gpt2", bound, beams, generated.numpy()])

        translator = ORTModelForSeq2SeqLM.from_pretrained(folder / "t5", use_io_binding=bound)
        generated = translator.generate(TOKENS, max_new_tokens=12, num_beams=2, do_sample=False)
        results.append(["t5", bound, generated.numpy()])

    # By onnxruntime's own tools, which use sessions too.
    for name in ("quantized", "optimized"):
        with tempfile.TemporaryDirectory() as changed:
            if name == "quantized":
                quantizer = ORTQuantizer.from_pretrained(folder / "bert")
                quantizer.quantize(AutoQuantizationConfig.avx2(is_static=False), changed)
            else:
                optimizer = ORTOptimizer.from_pretrained(folder / "bert")
                optimizer.optimize(AutoOptimizationConfig.O2(), changed)
            classifier = ORTModelForSequenceClassification.from_pretrained(changed)
        logits = classifier(
            input_ids=TOKENS, attention_mask=torch.ones_like(TOKENS), token_type_ids=torch.zeros_like(TOKENS)
        ).logits
        results.append([name, logits.numpy()])
    return results
