"""faster-whisper: its filter of speech, whose model is in the package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from faster_whisper.vad import VadOptions, get_speech_timestamps, get_vad_model


def outputs(onnxruntime: Any, folder: Path) -> Any:  # noqa: ARG001  # faster-whisper imports it
    rate = 16000
    time = np.arange(4 * rate, dtype=np.float32) / rate
    phase = np.cumsum(2 * np.pi * (140 + 20 * np.sin(2 * np.pi * 3 * time)) / rate)
    voice = sum(np.sin(k * phase) / k for k in range(1, 16)) * ((time > 1) & (time < 3))
    audio = (0.2 * voice + 0.003 * np.random.default_rng(0).normal(size=len(time))).astype(np.float32)
    probabilities = get_vad_model()(audio)
    return [probabilities, get_speech_timestamps(audio, VadOptions(threshold=0.1))]
