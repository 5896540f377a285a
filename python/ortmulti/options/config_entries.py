"""Configuration entries of sessions and runs: ONNX Runtime's keys by release, their values, and contradictions."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence

from ortmulti import _core, checks
from ortmulti._runtime.libraries import needs_newer, release_of
from ortmulti.errors import InvalidArgument

__all__ = ["check_options", "check_providers", "check_run_entry", "check_session_entry", "leave_out_optimizers"]

_LOGGER = logging.getLogger("ortmulti")

# ONNX Runtime's keys by the first release that has them. After "=" are the values that a key takes: words, or ints from
# the least one on. Keys without "=" take any text.
_SESSION = """
1.21: ep.context_embed_mode=0|1 ep.context_enable=0|1 ep.context_file_path
    ep.context_model_external_initializers_file_name ep.context_node_name_prefix ep.nnapi.partitioning_stop_ops
    ep.share_ep_contexts=0|1 mlas.enable_gemm_fastmath_arm64_bfloat16=0|1 optimization.disable_specified_optimizers
    optimization.enable_gelu_approximation=0|1 optimization.enable_memory_probe_recompute_config
    optimization.memory_optimizer_config optimization.minimal_build_optimizations=|save|apply
    session.allow_released_opsets_only=0|1 session.collect_node_memory_stats_to_file
    session.debug_layout_transformation=0|1 session.disable_aot_function_inlining=0|1
    session.disable_cpu_ep_fallback=0|1 session.disable_double_qdq_remover=0|1 session.disable_prepacking=0|1
    session.disable_quant_qdq=0|1 session.dynamic_block_base=0.. session.enable_quant_qdq_cleanup=0|1
    session.force_spinning_stop=0|1 session.inter_op.allow_spinning=0|1 session.intra_op.allow_spinning=0|1
    session.intra_op_thread_affinities session.load_model_format=ONNX|ORT
    session.model_external_initializers_file_folder_path session.node_partition_config_file
    session.optimized_model_external_initializers_file_name
    session.optimized_model_external_initializers_min_size_in_bytes=0.. session.qdq_matmulnbits_accuracy_level
    session.qdqisint8allowed=0|1 session.resource_cuda_partitioning_settings
    session.save_external_prepacked_constant_initializers=0|1 session.save_model_format=ONNX|ORT
    session.set_denormal_as_zero=0|1 session.strict_shape_type_inference=0|1
    session.use_device_allocator_for_initializers=0|1 session.use_env_allocators=0|1
    session.use_ort_model_bytes_directly=0|1 session.use_ort_model_bytes_for_initializers=0|1
    session.x64quantprecision=0|1
1.22: session.disable_model_compile
1.23: ep.stop_share_ep_contexts optimization.enable_cast_chain_elimination session.fail_on_suboptimal_compiled_model
    session.graph_optimizations_loop_level
1.24: mlas.use_lut_gemm session.enable_dq_matmulnbits_fusion session.record_ep_graph_assignment_info
1.25: mlas.disable_kleidiai session.layer_assignment_settings session.qdq_matmulnbits_block_size
1.26: session.disable_qdq_constant_folding session.inter_op.spin_backoff_max=1.. session.inter_op.spin_duration_us=0..
    session.intra_op.spin_backoff_max=1.. session.intra_op.spin_duration_us=0.. session.use_memory_mapped_ort_model
1.27: optimization.constant_folding_max_output_size_in_bytes session.compile_only session.prepack.enable_parallel
1.28: mlas.kleidiai.conv_igemm_max_work session.enable_cpu_mem_arena session.enable_mem_pattern session.enable_profiling
    session.execution_mode session.graph_optimization_level session.inter_op_num_threads session.intra_op_num_threads
    session.log_id session.log_severity_level session.log_verbosity_level session.name_based_layer_assignment
    session.optimized_model_filepath session.use_deterministic_compute session.use_per_session_threads
1.29: ep.enable_weightless session.max_shape_override
1.30: mlas.nchwc_pointwise_conv_max_input_channel_batch session.enable_saved_runtime_optimizations
    session.gqa_value_layout
1.31: ep.cuda.fpa_intb_gemm ep.cuda.fpa_intb_profile_m ep.cuda.gqa_workspace_max_total_sequence_length
    mlas.nchwc_depthwise_sliding mlas.qnbit.force_fp32 session.enable_moe_expert_counting
    session.enable_moe_expert_statistics session.function_expansion_byte_limit session.function_expansion_node_limit
    session.moe_expert_counter_alpha session.moe_expert_counter_beta session.moe_expert_counter_state_file
    session.strict_workspace_verification session.use_external_initializer_file_buffers_directly
1.32: ep.context_source_model_path ep.cpu.qmoe_deferred_scale ep.cuda.fpa_intb_dequant_gemm_min_m
    ep.cuda.matmul_nbits_m_chunk_size ep.cuda.moe_packed_gpu_experts ep.cuda.runtime_fusion.causal_conv_with_state
    ep.cuda.runtime_fusion.unit_swish ep.enable_weightless_ep_context_nodes ep.enable_weightless_mode
    session.external_data_loader.chunk_bytes session.external_data_loader.min_size_bytes
    session.external_data_loader.pinned_memory_bytes session.external_data_loader.threads session.kernel_dispatch_policy
    session.moe.offload.allow_file_backing session.moe.offload.async_max_tokens session.moe.offload.budget_group
    session.moe.offload.cpu_execution session.moe.offload.cpu_threads session.moe.offload.derived_cache_dir
    session.moe.offload.device_expert_bytes session.moe.offload.device_working_bytes
    session.moe.offload.gpu_budget_bytes session.moe.offload.gpu_device_mem_limit session.moe.offload.host_expert_bytes
    session.moe.offload.host_working_bytes session.moe.offload.min_expert_weight session.moe.offload.mode
    session.moe.offload.node_overrides session.moe.offload.pinned_bytes session.moe.offload.placement
    session.moe.offload.popularity_file session.moe.offload.prefill_wave_experts
    session.moe.offload.reserve_device_bytes session.moe.offload.skip_tail_cold_only
    session.moe.offload.skip_zero_cold_doorbell session.moe.offload.source_root
    session.moe.offload.tail_substitution_min_rank session.moe.offload.tail_substitution_threshold
"""
_RUN = """
1.21: disable_synchronize_execution_providers=0|1 gpu_graph_id memory.enable_memory_arena_shrinkage qnn.htp_perf_mode
    qnn.htp_perf_mode_post_run qnn.rpc_control_latency
1.23: qnn.lora_config
"""


_LEAST: dict[str, int] = {}
_WORDS: dict[str, list[str]] = {}


def _parse(table: str) -> dict[str, str]:
    """Return the first release of each key, and note its values."""
    found: dict[str, str] = {}
    release = ""
    for word in table.split():
        if word.endswith(":"):
            release = word[:-1]
            continue
        key, _, values = word.partition("=")
        found[key] = release
        if values.endswith(".."):
            _LEAST[key] = int(values[:-2])
        elif values:
            _WORDS[key] = values.split("|")
    return found


SESSION = _parse(_SESSION)
"""The keys of session options, each with the first release that has it, such as ``"1.26"``."""

RUN = _parse(_RUN)
"""The keys of run options, likewise."""

AFFINITIES = "session.intra_op_thread_affinities"
ENV_ALLOCATORS = "session.use_env_allocators"
SHRINKAGE = "memory.enable_memory_arena_shrinkage"

_INT_MAX = 2**31 - 1
_SHRINKAGE_FORM = re.compile(r"(?:(?:cpu|gpu):[0-9]{1,9}(?:;(?:cpu|gpu):[0-9]{1,9})*)?")


def check_session_entry(key: str, value: str) -> None:
    """Raise InvalidArgument where a key of session options that ONNX Runtime defines cannot have this value."""
    _check_value(key, value)
    if key not in SESSION and (meant := checks.did_you_mean(key, SESSION, 0.9)):
        _LOGGER.warning("ONNX Runtime has no config entry %r%s: it is passed on and has no effect there", key, meant)
    if key == AFFINITIES:
        checks.affinities(key, value)
    if key.endswith("spin_backoff_max") and key in _LEAST and (number := int(value)) & (number - 1):
        power = 1 << (number.bit_length() - 1)
        _LOGGER.warning("%s=%d is not a power of two: ONNX Runtime uses %d", key, number, power)


def check_run_entry(key: str, value: str) -> None:
    """Raise InvalidArgument where a key of run options that ONNX Runtime defines cannot have this value."""
    _check_value(key, value)
    if key == SHRINKAGE and not _SHRINKAGE_FORM.fullmatch(value):
        raise InvalidArgument(
            f"config entry {key!r} names arenas in the form 'cpu:0;gpu:0', without spaces, not {value!r}"
        )


def _check_value(key: str, value: str) -> None:
    if key in _LEAST and not (re.fullmatch(r"[0-9]{1,10}", value) and _LEAST[key] <= int(value) <= _INT_MAX):
        raise InvalidArgument(f"config entry {key!r} is a whole number from {_LEAST[key]} to {_INT_MAX}, not {value!r}")
    if key in _WORDS and value not in _WORDS[key]:
        raise InvalidArgument(f"config entry {key!r} is {' or '.join(map(repr, _WORDS[key]))}, not {value!r}")


def check_options(options: _core.SessionOptions, release: Callable[[], str]) -> None:
    """Check session options against each other, before a thread is started.

    Args:
        options: Any session's.
        release: Returns ONNX Runtime's release, such as ``"1.31.1"``; called only if it matters. Empty: unknown, and
            every entry is accepted.

    Raises:
        InvalidArgument: An entry needs a later release, or options contradict each other.
    """
    entries = options.config_entries
    if newer := needs_newer({key: release_of(SESSION.get(key, "")) for key in entries}, release):
        key, (major, minor), loaded = newer
        raise InvalidArgument(
            f"config entry {key!r} is one of ONNX Runtime {major}.{minor} and newer, and this one is {loaded}"
        )
    if not options.use_per_session_threads:
        for given, name in ((options.threads is not None, "threads"), (AFFINITIES in entries, AFFINITIES)):
            if given:
                raise InvalidArgument(
                    f"use_per_session_threads is False, so {name} has no effect: configure the global threads with "
                    "ortmulti.GlobalThreadPools"
                )
    if AFFINITIES in entries:
        if options.threads is not None:
            raise InvalidArgument(
                f"{AFFINITIES} binds only threads that ONNX Runtime makes, and with threads the core makes them: set "
                "the CPUs in ortmulti.Threads"
            )
        checks.affinities(AFFINITIES, entries[AFFINITIES], options.intra_op_num_threads)
    if entries.get(ENV_ALLOCATORS) == "1" and not options.enable_cpu_mem_arena and _core.has_arena("cpu"):
        raise InvalidArgument(
            f"enable_cpu_mem_arena is False, but {ENV_ALLOCATORS} selects the shared CPU arena: set one of them"
        )


def check_providers(options: _core.SessionOptions, providers: Sequence[tuple[str, Mapping[str, str]]]) -> None:
    """Raise InvalidArgument where a provider's options are for an arena that the session does not have."""
    if options.config_entries.get(ENV_ALLOCATORS) != "1":
        return
    for name, given in providers:
        own = [option for option in ("gpu_mem_limit", "arena_extend_strategy") if option in given]
        if own and name == "CUDAExecutionProvider" and _core.has_arena(f"cuda:{given.get('device_id', '0')}"):
            raise InvalidArgument(
                f"{' and '.join(own)} of {name} {'is' if len(own) == 1 else 'are'} for an arena of the session's own, "
                f"but {ENV_ALLOCATORS} selects the shared one: set max_mem and arena_extend_strategy of ArenaConfig"
            )


def leave_out_optimizers(options: _core.SessionOptions, names: Sequence[str]) -> None:
    """Have sessions created without these graph optimizers, beside those that the options leave out already."""
    key = "optimization.disable_specified_optimizers"
    given = [name for name in options.config_entries.get(key, "").split(";") if name]
    options.config_entries = {**options.config_entries, key: ";".join(dict.fromkeys([*given, *names]))}
