"""Text in, vectors out: models of texts as Hugging Face's tools export them, with their tokenizer.

``model = ortmulti.text.load(folder)``; then `TextModel.embed`, `TextModel.rank` or `TextModel.classify`.
"""

from __future__ import annotations

from ortmulti._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "ortmulti.text.fusing": "fuse",
        "ortmulti.text.loading": "load load_options",
        "ortmulti.text.model": "Label TextModel",
        "ortmulti.text.settings": "Settings is_export read_settings",
    },
)
