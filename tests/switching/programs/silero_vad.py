"""silero-vad: voice activity in a made sound, with each of the package's ONNX models that it loads."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from silero_vad import get_speech_timestamps, load_silero_vad


def sound(rate: int) -> torch.Tensor:
    """Four seconds: noise, and from the second to the third something like a voice: harmonics with a tremor."""
    generator = torch.Generator().manual_seed(0)
    time = torch.arange(4 * rate) / rate
    noise = 0.003 * torch.randn(len(time), generator=generator)
    pitch = 140 + 20 * torch.sin(2 * torch.pi * 3 * time)
    phase = torch.cumsum(2 * torch.pi * pitch / rate, 0)
    voice = sum((torch.sin(k * phase) / k for k in range(1, 16)), torch.zeros_like(time))
    loud = ((time > 1) & (time < 3)) * (0.6 + 0.4 * torch.sin(2 * torch.pi * 4 * time))
    return noise + 0.2 * loud * voice


def outputs(onnxruntime: Any, folder: Path) -> Any:  # noqa: ARG001  # silero-vad imports it
    warnings.simplefilter("ignore")  # of the model for one rate only
    torch.set_num_threads(1)
    results: list[Any] = []
    for opset in (16, 15):
        model = load_silero_vad(onnx=True, opset_version=opset)
        for rate in (16000, 8000) if opset == 16 else (16000,):
            audio = sound(rate)
            model.reset_states()
            results.append([opset, rate, model.audio_forward(audio, rate).numpy()])
            model.reset_states()
            results.append([opset, rate, get_speech_timestamps(audio, model, sampling_rate=rate, threshold=0.1)])
    return results
