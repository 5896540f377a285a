"""Experiments of public reports, repeated: what they published beside what is measured here, and whether it holds.

The scripts in benchmarks/ are built on this: `reports` has the published tables, `claims` what they claim, `rounds`
measures cases with several releases of ONNX Runtime in turns, `verdicts` says whether a claim holds, `script` has what
the scripts share.
"""

from __future__ import annotations
