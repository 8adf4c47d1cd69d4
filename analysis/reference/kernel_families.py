"""The taxonomy of GPU kernels: which family a kernel belongs to, told from its name alone.

`RULES` is ordered data, one row per rule; the first rule whose pattern is found in the name wins. Patterns ignore case
and match anywhere in the name, so they hold for demangled names as nsys prints them (`<unnamed>`, `(int)4`), as the
PyTorch profiler prints them (`(anonymous namespace)`, `4`), and mostly for mangled ones.

Names lie, so the order matters: fused attention says `cutlass` and `wgmma`, a convolution says `gemm`, `splitKreduce`
says `reduce`, a hand-written softmax says nothing at all. What a name cannot tell (a hand-written norm, a plain AdamW)
is told by NVTX ranges, not here.
"""

import re
import tomllib
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple


class Family(NamedTuple):
    """One family of kernels: `key` in tables, `label` on pages, `explanation` in the glossary."""

    key: str
    label: str
    explanation: str


class Rule(NamedTuple):
    """One row of the taxonomy.

    `name` is unique. `pattern` is a regular expression searched in the kernel name, ignoring case. `example` is a real
    kernel name this rule catches. `explanation` says what such a kernel computes and where a Transformer uses it.
    """

    name: str
    family: str
    part: str
    pattern: str
    example: str
    explanation: str
    source: str = ""


class Classification(NamedTuple):
    """What the taxonomy says of a kernel name; `rule_index` is the rule's place in the order, -1 if none matched."""

    family: str
    part: str
    rule: str
    rule_index: int


OTHER = "other"
COMMUNICATION = "communication"
UNCLASSIFIED = Classification(OTHER, "", "", -1)

_FAMILY_ROWS = (
    Family(
        "gemm",
        "GEMM",
        "Dense matmuls: the linear layers, and QK^T and AV in eager attention. A matmul may need more than one launch: "
        "split-K kernels that add up partial results and epilogue kernels that finish the output count in its time, "
        "but not as further matmuls.",
    ),
    Family(
        "attention",
        "Fused attention",
        "QK^T, scaling, mask, softmax and AV in one kernel (FlashAttention and its relatives): the scores never reach "
        "memory. The backward pass has helper kernels that belong to it.",
    ),
    Family(
        "convolution",
        "Convolution",
        "Convolutions, most of them computed as implicit GEMMs. A plain Transformer has none; patch embeddings and "
        "state-space layers launch them.",
    ),
    Family(
        "elementwise",
        "Elementwise",
        "One independent operation for each element: add, multiply, exp, sigmoid, where. They compute almost nothing "
        "for each byte that they move, so they are memory-bound or launch-bound. A hand-written softmax or norm and "
        "the reference AdamW are chains of them.",
    ),
    Family(
        "softmax",
        "Softmax",
        "Library softmax and log-softmax, forward and backward: inside cross-entropy, or in attention that calls the "
        "library. A hand-written softmax (max, sub, exp, sum, div) appears as reduce and elementwise kernels instead.",
    ),
    Family(
        "norm",
        "Normalisation",
        "Library LayerNorm, RMSNorm, BatchNorm and GroupNorm. A hand-written norm appears as reduce and elementwise "
        "kernels instead.",
    ),
    Family(
        "reduce",
        "Reduction",
        "Sums, means, maxima and norms along a dimension, and losses that end in one number: row statistics of "
        "softmax and norms, gradients of broadcast weights, gradient clipping.",
    ),
    Family(
        "copy",
        "Copy, cat, cast",
        "Moving elements without computing: making a tensor contiguous, concatenating, converting the data type, "
        "changing the layout. Mixed precision adds casts; splitting and merging heads adds copies.",
    ),
    Family(
        "fill",
        "Fill",
        "Writing a constant or a counter: zeroed gradients, masks, position indices.",
    ),
    Family(
        "index",
        "Gather, scatter, index",
        "Reading or writing at computed positions: embedding lookup and its gradient, the target's logit in "
        "cross-entropy, rearranging tokens between experts.",
    ),
    Family(
        "sort",
        "Sort, scan, top-k",
        "Sorting, prefix sums, selection and counting: sampling the next token, routing to experts, sorted "
        "embedding gradients.",
    ),
    Family(
        "random",
        "Random numbers",
        "Random numbers: dropout, weight initialisation, synthetic data, sampling.",
    ),
    Family(
        "optimizer",
        "Optimizer",
        "Kernels made for optimizers: updates of many tensors at once and fused Adam. An optimizer written in plain "
        "tensor operations, like the reference AdamW, appears as elementwise kernels; the NVTX range tells.",
    ),
    Family(
        "triton",
        "Triton, generated",
        "Kernels that a compiler (torch.compile) generated by fusing several operations; the name lists the "
        "operations.",
    ),
    Family(
        COMMUNICATION,
        "Communication",
        "Data between GPUs: all-reduce, all-gather, reduce-scatter, all-to-all. Their time includes waiting for the "
        "other GPUs.",
    ),
    Family(
        "memory",
        "Memcpy, memset",
        "The driver's own copies and fills, where a tool lists them among kernels.",
    ),
    Family(
        OTHER,
        "Unclassified",
        "No rule matched. Add one in a TOML file of your own, or to the taxonomy.",
    ),
)
FAMILIES: dict[str, Family] = {family.key: family for family in _FAMILY_ROWS}
"""Families by key, in display order."""

MAIN_GEMM_PARTS = frozenset({"main", "gemv"})
"""Parts of the gemm family that are a matmul; the others (splitk, epilogue) belong to the one launched before."""

_SHARED = "recorded on an H200"
_PYTORCH = "https://github.com/pytorch/pytorch"
_LLM_C = "https://github.com/karpathy/llm.c"


def _make_functor_pattern(part: str, pattern: str, example: str, explanation: str, source: str = _PYTORCH) -> Rule:
    """An elementwise rule: `pattern` has to stand in the name after PyTorch's `...elementwise_kernel`."""
    return Rule(
        f"elementwise-{part.replace(' ', '-')}",
        "elementwise",
        part,
        f"(?:elementwise_kernel|kernelPointwiseApply).*?(?:{pattern})",
        example,
        explanation,
        source,
    )


_VEC = "void at::native::vectorized_elementwise_kernel<(int)4, at::native::"
_TAIL2 = ", std::array<char *, (unsigned long)2>>(int, T2, T3)"
_TAIL3 = ", std::array<char *, (unsigned long)3>>(int, T2, T3)"
_FLOAT_LAMBDA = (
    "::[lambda() (instance 2)]::operator ()() const::[lambda() (instance 2)]::operator ()() const"
    "::[lambda(float) (instance 1)]"
)

_LEADING_RULES = (
    # Driver operations and communication say so plainly.
    Rule(
        "memory-memcpy",
        "memory",
        "memcpy",
        r"^\[?(?:cuda )?memcpy\b|^memcpy[0-9A-Z]",
        "[CUDA memcpy Host-to-Device]",
        "A copy between host and device or within the device, made by the copy engine or the driver.",
        "https://docs.nvidia.com/nsight-systems/UserGuide/",
    ),
    Rule(
        "memory-memset",
        "memory",
        "memset",
        r"^\[?(?:cuda )?memset\b|^memset[0-9A-Z]",
        "[CUDA memset]",
        "The driver sets a block of device memory to a byte value.",
        "https://docs.nvidia.com/nsight-systems/UserGuide/",
    ),
    # What a compiler generated carries the fused operations in its name, so it has to come before everything else.
    Rule(
        "gemm-triton-template",
        "gemm",
        "main",
        r"^triton_tem_.*?(?:mm|bmm|matmul)|^triton_(?:mm|bmm)|^gemm_fusion_dot",
        "triton_tem_fused_bmm_7",
        "A GEMM that torch.compile or XLA generated in Triton after it measured faster than the library's.",
        "https://github.com/pytorch/pytorch (torch/_inductor)",
    ),
    Rule(
        "attention-flex",
        "attention",
        "fused",
        r"^triton_tem_.*?(?:flex_attention|flex_decoding|attention)",
        "triton_tem_fused_flex_attention_backward",
        "FlexAttention: fused attention with a user-defined score function, generated by torch.compile.",
        "https://github.com/pytorch/pytorch (torch/_inductor)",
    ),
    Rule(
        "triton-pointwise",
        "triton",
        "pointwise",
        r"^triton_poi_",
        "triton_poi_fused__to_copy_abs_add_div_exp_mul_pow_sub_3",
        "Elementwise operations fused into one kernel by torch.compile; the name lists them.",
        "https://github.com/pytorch/pytorch (torch/_inductor)",
    ),
    Rule(
        "triton-persistent-reduction",
        "triton",
        "persistent reduction",
        r"^triton_per_",
        "triton_per_fused_add_embedding_mean_mul_pow_rsqrt_6",
        "A fused reduction whose row fits into one block: norms and softmax under torch.compile.",
        "https://github.com/pytorch/pytorch (torch/_inductor)",
    ),
    Rule(
        "triton-reduction",
        "triton",
        "reduction",
        r"^triton_(?:red|spl|ass)_",
        "triton_red_fused_native_layer_norm_16",
        "A fused reduction that loops over its row: norms, losses and sums under torch.compile.",
        "https://github.com/pytorch/pytorch (torch/_inductor)",
    ),
    Rule(
        "triton-foreach",
        "triton",
        "foreach",
        r"^triton_for_",
        "triton_for_fused_1",
        "Many tensors treated in one launch: a compiled optimizer step.",
        "https://github.com/pytorch/pytorch (torch/_inductor)",
    ),
    Rule(
        "triton-other",
        "triton",
        "generated",
        r"^triton_(?!softmax)|_[0-9a-f]+d[0-9]+d[0-9]+(?:d[0-9a-f]+)*(?:de|c)?$",
        "triton_tem_fused_0",
        "A kernel written in or generated through Triton whose name says no more.",
        "https://github.com/triton-lang/triton",
    ),
    Rule(
        "communication-nccl",
        "communication",
        "nccl",
        r"nccl(?:dev)?kernel|^nccl|ncclSym",
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)",
        "An NCCL collective: data-parallel gradients, sharded weights, tensor-parallel activations.",
        "https://github.com/NVIDIA/nccl",
    ),
    Rule(
        "communication-custom",
        "communication",
        "custom",
        r"cross_device_reduce|(?:one|two)_?shot_?all_?reduce|all_?reduce_?(?:fusion|kernel|residual)|multimem_"
        r"|deep_ep::|nvshmem"
        r"|all_?to_?all|reduce_scatter_kernel|all_?gather_kernel|device_sync_kernel|userbuffers",
        "void deep_ep::intranode::combine<__nv_bfloat16, (int)2, (int)768, (int)4096>(T1 *, float *",
        "Communication written outside NCCL: all-reduce over NVLink for inference, exchange of tokens between experts.",
        "https://github.com/deepseek-ai/DeepEP",
    ),
    # Fused attention, before gemm: it says cutlass, wgmma and gemm too.
    Rule(
        "attention-cudnn",
        "attention",
        "fused",
        r"cudnn.*?(?:sdpa|flash|mha)",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_4x1x1_cga1x1x1_kernel0_0",
        "cuDNN's fused attention: fprop is the forward pass, bprop the backward pass.",
        _SHARED,
    ),
    Rule(
        "attention-cudnn-backward-helper",
        "attention",
        "backward helper",
        r"compute_dot_do_o|convert_dq_to_16bits|dot_do_o|flash_bwd_convert|flashattnbwd(?:pre|post)process"
        r"|flash.*bwd.*(?:pre|post)process",
        "void cudnn::fusion::compute_dot_do_o_specialized<(bool)1, (int)64>(const void *, const void *, v"
        "oid *, void *, unsigned int",
        "Around the backward kernel of fused attention: row sums of dO times O before it, conversion of dQ after it.",
        _SHARED,
    ),
    Rule(
        "attention-memory-efficient",
        "attention",
        "fused",
        r"fmha|PyTorchMemEffAttention|AttentionKernel<|AttentionBackwardKernel",
        "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float, cutlass::arch::Sm80, "
        "(bool)1, (int)64, (int)64, (int)64, (bool)1, (bool)1>::Params)",
        "Memory-efficient attention from CUTLASS, PyTorch's fused attention where FlashAttention does not apply "
        "(FP32): F is the forward pass, B the backward pass.",
        _SHARED,
    ),
    Rule(
        "attention-flash",
        "attention",
        "fused",
        r"flash_?(?:fwd|bwd|attn|attention|mla|decod)|flashattn|flashattention|flash::|flash_ncc",
        "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<(int)128, (int)128, (int)64, (int)4, (bool)0, "
        "(bool)0, "
        "cutlass::bfloat16_t, Flash_kernel_traits<(int)128, (int)128, (int)64, (int)4, cutlass::bfloat16_t>>, (bool)0, "
        "(bool)1, (bool)0, (bool)0, (bool)0, (bool)1, (bool)0, (bool)0>(pytorch_flash::Flash_fwd_params)",
        "FlashAttention: fwd is the forward pass, bwd the backward pass, splitkv the decoding variant.",
        "https://github.com/Dao-AILab/flash-attention",
    ),
    # Before fused attention: one product of an attention in three kernels.
    Rule(
        "gemm-attention-product",
        "gemm",
        "main",
        r"attention_(?:query_key|value)_kernel",
        "attention_query_key_kernel1(float *, const float *, int, int, int, int)",
        "QK^T or AV alone, written by hand, in an attention whose softmax is a kernel of its own.",
        _LLM_C,
    ),
    Rule(
        "attention-serving",
        "attention",
        "fused",
        r"paged_?(?:kv|attention|attn)|(?:BatchPrefill|BatchDecode|SinglePrefill|SingleDecode)With"
        r"|unified_attention|mla_(?:decode|fwd)"
        r"|_attn_(?:fwd|bwd)|attn_(?:fwd|bwd)|attention_?(?:fwd|bwd|forward|backward|pool|kernel|query|decode"
        r"|prefill)|sparse_attention|sage_?attn"
        r"|fused_attention|kernel_mha|multi_?head_?attention|_fwd_(?:grouped_)?kernel_stage[12]",
        "void flashinfer::BatchDecodeWithPagedKVCacheKernel<(flashinfer::PosEncodingMode)0, (unsigned int)2, "
        "(unsigned int)1, "
        "(unsigned int)8, (unsigned int)16, (unsigned int)2, (unsigned int)4, flashinfer::DefaultAttention<(bool)0, "
        "(bool)0, "
        "(bool)0, (bool)0>, Params>(T9)",
        "Attention kernels of serving engines and of tutorials, with a paged key-value cache or without.",
        "https://github.com/flashinfer-ai/flashinfer",
    ),
    # Convolution, before gemm: most are implicit gemms.
    Rule(
        "copy-cudnn-layout",
        "copy",
        "layout",
        r"nchwTo\w*Kernel|nhwcTo\w*Kernel|nchw2nhwc|nhwc2nchw|convertTensor_kernel|tensorTransformGeneric"
        r"|nchwAddPadding|nhwcAddPadding",
        "void cudnn::ops::nchwToNhwcKernel<__half, __half, float, bool=0, bool=1, cudnnKernelDataType_t=0>"
        "(cudnn::ops::nchw2nhwc_params_t<float>, __half const *, __half*)",
        "cuDNN changes the memory layout of an image tensor around a convolution.",
        "https://docs.nvidia.com/deeplearning/cudnn/",
    ),
    Rule(
        "convolution-implicit-gemm",
        "convolution",
        "implicit gemm",
        r"^(?!.*winograd).*(?:implicit_?(?:gemm|convolve)|fprop|dgrad|wgrad|scudnn|hcudnn|icudnn|nhwckrsc"
        r"|(?:precomputed"
        r"|explicit)_convolve)",
        "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x16_stage4_warpsize2x2x1_g1_"
        "tensor16x8x8",
        "A convolution computed as a GEMM: fprop is the forward pass, dgrad the input's gradient, wgrad the weight's.",
        "https://docs.nvidia.com/deeplearning/cudnn/",
    ),
    Rule(
        "convolution-other",
        "convolution",
        "direct",
        r"winograd|fft2d|conv(?:olve|olution)|conv_?(?:transpose_?)?[123]d|conv_depthwise|depthwise|cudnn::cnn"
        r"|cask_cudnn|computeOffsets|im2col|col2im|conv_?(?:fwd|bwd)",
        "void fft2d_r2c_32x32<float, false, 0u, false>(float2*, float const*, int, int, int, int, int, int, int, "
        "int, int, "
        "cudnn::reduced_divisor, bool, int2, int, int)",
        "Convolutions by other means: Winograd or Fourier transforms, direct and depthwise kernels.",
        "https://docs.nvidia.com/deeplearning/cudnn/",
    ),
    # Before gemm: a gradient that is part of a linear layer's backward pass and is no matmul.
    Rule(
        "reduce-bias-gradient",
        "reduce",
        "sum",
        r"backward_bias_kernel",
        "void matmul_backward_bias_kernel9<float, (bool)0>(T1 *, const __nv_bfloat16 *, int, int, int, "
        "std::integral_constant<bool, T2>)",
        "The gradient of a bias: the sum of the output's gradient over all tokens, column by column.",
        _LLM_C,
    ),
    # GEMM: parts first, then the main kernels.
    Rule(
        "gemm-splitk-kernel",
        "gemm",
        "splitk",
        r"execute_split_k_kernel",
        "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8_stage3_warpsize1x4x1_ffma_aligna4_alignc4"
        "_execute_split_k_kernel__5x_cublas",
        "Second launch of a split-K GEMM: adds the partial results that slices of K left in memory.",
        _SHARED,
    ),
    Rule(
        "gemm-splitk-reduce",
        "gemm",
        "splitk",
        r"split_?k_?reduc|splitKreduce|reduce_?split_?k|gemm_?split_?k_?(?:parallel_)?reduc|ReduceSplitK"
        r"|stream_k_fixup",
        "void cublasLt::splitKreduce_kernel<(int)32, (int)16, int, float, float, float, float, (bool)0, float, "
        "float, float, "
        "(bool)1, (bool)0, (bool)0, (bool)0>(cublasLt::cublasSplitKParams<T6>, const T4 *, const T10 *, T9 *, T5 *)",
        "cuBLASLt adds the partial results of a split-K GEMM and applies its epilogue: a reduction that belongs to the "
        "GEMM.",
        _SHARED,
    ),
    Rule(
        "gemm-epilogue",
        "gemm",
        "epilogue",
        r"cublasLt::epilogue|cublas\w*::.*?epilogue::impl|scal_kernel|reduce_1Block_kernel",
        "void cublasLt::epilogue::impl::globalKernel<8, 32, float, float, float, true, true, 1>(int, int, long, "
        "float*, "
        "cublasLtEpilogue_t, int, float*, long, void*, long, long, long, float*, long, int*)",
        "Finishes a GEMM in a launch of its own where the main kernel could not: bias, activation or their gradients.",
        "https://docs.nvidia.com/cuda/cublas/",
    ),
    Rule(
        "gemm-gemv",
        "gemm",
        "gemv",
        r"gemv|gemmk1_kernel|\bdot_kernel<|mul_mat_vec|matvec",
        "void gemvNSP_kernel<float, float, float, float, 1, 32, 4, 1024, false, cublasGemvParamsEx<int, "
        "cublasGemvTensorStridedBatched<float const>, cublasGemvTensorStridedBatched<float const>, "
        "cublasGemvTensorStridedBatched<float>, float> >(cublasGemvParamsEx<int, "
        "cublasGemvTensorStridedBatched<float const>, "
        "cublasGemvTensorStridedBatched<float const>, cublasGemvTensorStridedBatched<float>, float>)",
        "A matmul with a vector or a very thin matrix, memory-bound by reading the matrix: decoding one token at a "
        "time.",
        "https://docs.nvidia.com/cuda/cublas/",
    ),
    Rule(
        "gemm-nvjet",
        "gemm",
        "main",
        r"nvjet",
        "nvjet_sm90_tst_192x128_64x5_1x2_h_bz_coopB_NNT",
        "cuBLAS's GEMMs for Hopper and Blackwell tensor cores. The name is not documented.",
        _SHARED,
    ),
    Rule(
        "gemm-xmma",
        "gemm",
        "main",
        r"xmma_(?:sparse_)?gemm",
        "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize64x64x8_stage3_warpsize1x4x1_ffma_aligna4_alignc4_execute_ker"
        "nel__5x_cublas",
        "A cuBLAS GEMM; `ffma` means FP32 on CUDA cores, no tensor cores.",
        _SHARED,
    ),
    Rule(
        "gemm-cutlass",
        "gemm",
        "main",
        r"cutlass_?(?:3x_)?(?:sm)?\d*_(?:simt|tensorop|wmma)|cutlass3x_|cutlass::.*?gemm|cutlass::(?:Kernel2?"
        r"|device_kernel)\b",
        "void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nn_align1>(T1::Params)",
        "A GEMM instantiated from CUTLASS templates: `simt` runs on CUDA cores, `tensorop` on tensor cores.",
        _SHARED,
    ),
    Rule(
        "gemm-architecture-named",
        "gemm",
        "main",
        r"(?:kepler|maxwell|pascal|volta|turing|ampere|ada|hopper)_\w*gemm",
        "ampere_sgemm_128x64_tn",
        "A hand-tuned cuBLAS GEMM named after the architecture it was written for: `sgemm` is FP32 on CUDA cores, "
        "`s16816gemm` runs on tensor cores.",
        "https://docs.nvidia.com/cuda/cublas/",
    ),
    Rule(
        "gemm-generic",
        "gemm",
        "main",
        r"gemm|mat_?mul|mul_mat|(?:^|[_:])(?:b?add)?b?mm_(?:kernel|[A-Z])|\bbmm_|sgmv|_linear_(?:fp8_"
        r"|fp4_)?kernel|marlin|trimul_global"
        r"|grouped_fp[48]|_fp8_kernel|fused_moe_kernel|matrixMul|_logits_kernel|^Cijk_",
        "void magma_sgemmEx_kernel<float, float, float, (bool)1, (bool)0, (int)6, (int)4",
        "A GEMM from another library or written by hand, known only by its name.",
        "https://icl.utk.edu/magma/",
    ),
    # Optimizer, random: before elementwise.
    Rule(
        "copy-foreach",
        "copy",
        "foreach copy",
        r"multi_tensor_apply_kernel.*?(?:::|\b)Copy<",
        "void at::native::<unnamed>::multi_tensor_apply_kernel<at::native::<unnamed>::TensorListMetadata<(int)2>, "
        "at::native::<unnamed>::UnaryOpFunctor<float, (int)2, (int)1, (int)1>, at::native::Copy<float, float>>(T1, "
        "T2, T3...)",
        "Copies a list of tensors in one launch: inputs into the static buffers of a CUDA graph, sharded weights.",
        _SHARED,
    ),
    Rule(
        "optimizer-fused-adam",
        "optimizer",
        "fused adam",
        r"multi_tensor_apply.*?(?:FusedAdam|FusedOptimize|AdamFunctor|adam)|fused_?adam|adamw?_(?:kernel|update"
        r"|cuda)|\badamw?\d*_?kernel"
        r"|kOptimizer\d*bit",
        "void at::native::<unnamed>::multi_tensor_apply_kernel<at::native::<unnamed>::FusedOptimize",
        "One launch reads gradient, weight and both moments of many tensors and writes the update.",
        "https://github.com/NVIDIA/apex",
    ),
    Rule(
        "optimizer-norm",
        "optimizer",
        "gradient norm",
        r"multi_tensor_apply.*?(?:LpNorm|L2Norm)|lpnorm_cleanup|multi_tensor_l2norm|(?:LpNorm|L2Norm)Functor",
        "lpnorm_cleanup",
        "Norms of a list of tensors: gradient clipping.",
        _PYTORCH,
    ),
    Rule(
        "optimizer-foreach",
        "optimizer",
        "foreach",
        r"multi_tensor_apply|lamb_stage|kLamb|\bsgd_kernel",
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous "
        "namespace)::TensorListMetadata<3>, "
        "at::native::(anonymous namespace)::PointwiseOpScalarFunctor<float, 3, 3, 0>, std::multiplies<float>, float>"
        "(at::native::(anonymous namespace)::TensorListMetadata<3>, at::native::(anonymous "
        "namespace)::PointwiseOpScalarFunctor"
        "<float, 3, 3, 0>, std::multiplies<float>, float)",
        "One elementwise operation over a list of tensors: the steps of a foreach optimizer, gradient scaling.",
        _PYTORCH,
    ),
    Rule(
        "random-dropout",
        "random",
        "dropout",
        r"dropout",
        "void at::native::(anonymous namespace)::fused_dropout_kernel_vec<float, float, unsigned int, 1, 4>"
        "(at::cuda::detail::TensorInfo<float, unsigned int>, at::cuda::detail::TensorInfo<float, unsigned int>, "
        "at::cuda::detail::TensorInfo<unsigned char, unsigned int>, unsigned int, float, std::pair<unsigned long, "
        "unsigned long>)",
        "Draws a mask and applies it: dropout after attention and feed-forward.",
        _PYTORCH,
    ),
    Rule(
        "random-distribution",
        "random",
        "distribution",
        r"distribution_(?:elementwise|nullary|binary)|curand|philox_?kernel|generate_seed_pseudo|gen_sequenced"
        r"|(?:normal|uniform|exponential|"
        r"cauchy|geometric|bernoulli)_(?:and_transform|kernel|tensor)|sampleMultinomial|multinomial|randperm"
        r"|random_(?:from_to|kernel)|"
        r"threefry|rng_|poisson",
        "void at::native::<unnamed>::distribution_elementwise_grid_stride_kernel<float, (int)4, void "
        "at::native::templates::cuda"
        "::normal_and_transform<float, float, at::CUDAGeneratorImpl *, void at::native::templates::cuda::normal_kernel"
        "<at::CUDAGeneratorImpl *>(const at::TensorBase &, double, double, T1)::[lambda() (instance 1)]::operator "
        "()() const>",
        "Fills a tensor with random numbers: weight initialisation, synthetic inputs, sampling.",
        _SHARED,
    ),
    Rule(
        "softmax-library",
        "softmax",
        "softmax",
        r"soft_?max",
        "void at::native::<unnamed>::cunn_SoftMaxForwardSmem<(int)4, float, float, float, at::native::<unnamed>"
        "::LogSoftMaxForwardEpilogue, long>(T4 *, const T2 *, T6)",
        "Softmax or, with a LogSoftMax epilogue, log-softmax of each row: cross-entropy over the vocabulary, "
        "library attention.",
        _SHARED,
    ),
    Rule(
        "softmax-classifier",
        "softmax",
        "softmax and loss",
        r"fused_classifier",
        "void fused_classifier_kernel5<(bool)1, (bool)0>(__nv_bfloat16 *, float *, __nv_bfloat16 *, float, "
        "const int *, int, int, int, int, std::integral_constant<bool, T1>)",
        "Softmax over the vocabulary, the loss, and the gradient of the logits, all in one kernel.",
        _LLM_C,
    ),
    Rule(
        "reduce-loss",
        "reduce",
        "loss",
        r"nll_loss|ClassNLLCriterion|cross_?entropy|(?:mse|l1|smooth_l1|bce|kl_div|ctc)_(?:loss|kernel)"
        r"|_ce_(?:fwd|bwd)_kernel",
        "void at::native::<unnamed>::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>(T1 *, T1 *, const "
        "T1 *, const T3 *, "
        "const T1 *, bool, long, long, long, long)",
        "Picks the target's log-probability of each token and averages: the end of cross-entropy, and its gradient.",
        _SHARED,
    ),
    Rule(
        "reduce-pooling",
        "reduce",
        "pooling",
        r"max_?pool|av(?:era)?ge?_?pool|pooling_(?:fw|bw)",
        "void at::native::(anonymous namespace)::max_pool_forward_nchw<float, float>(int, float const*, int, int, "
        "int, int, int, "
        "int, int, int, int, int, int, int, int, int, float*, long*)",
        "Maximum or average over windows of an image: convolutional networks.",
        _PYTORCH,
    ),
    Rule(
        "reduce-norm",
        "reduce",
        "norm",
        r"reduce_kernel.*?Norm(?:Two|One|Zero)?Ops|global_norm_(?:squared|aggregate)|\bnorm_kernel\d",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::NormTwoOps<float, float>, "
        "unsigned int, "
        "float, 4> >(at::native::ReduceOp<float, at::native::NormTwoOps<float, float>, unsigned int, float, 4>)",
        "Vector norm of a tensor or of its rows: gradient clipping.",
        _PYTORCH,
    ),
    Rule(
        "norm-layer",
        "norm",
        "layer norm",
        r"layer_?norm|GammaBeta|RowwiseMoments|(?:^|[^a-z])ln_(?:fwd|bwd|parallel)|fused_residual_forward",
        "void at::native::<unnamed>::vectorized_layer_norm_kernel<float, float, (bool)0>(int, T2, const T1 *, const "
        "T1 *, const T1 *, "
        "T2 *, T2 *, T1 *)",
        "LayerNorm, forward or backward; the GammaBeta kernels compute the gradients of its weight and bias.",
        _SHARED,
    ),
    Rule(
        "norm-rms",
        "norm",
        "rms norm",
        r"rms_?norm",
        "void transformer_engine::normalization::rmsnorm_fwd_general_kernel<transformer_engine::nor",
        "RMSNorm as one kernel, often together with the residual addition.",
        "https://github.com/NVIDIA/TransformerEngine",
    ),
    Rule(
        "norm-batch",
        "norm",
        "batch and group norm",
        r"batch_?norm|group_?norm|instance_?norm|cudnn::bn_|bn_(?:fw|bw)_|(?:^|[_:])norm(?:alization)?_(?:fwd|bwd"
        r"|forward|backward|kernel|f32|f16)|l2_?norm",
        "void cudnn::bn_fw_tr_1C11_kernel_NCHW<__half, float, 512, true, 1>(cudnnTensorStruct, __half con"
        "st*, cudnnTensorStruct, __half*, float const*, float const*, float, float, float*, float*, float"
        "*, float*, float, float)",
        "Normalisation over a batch or over groups of channels: convolutional networks and diffusion models.",
        "https://docs.nvidia.com/deeplearning/cudnn/",
    ),
    Rule(
        "sort-sort",
        "sort",
        "sort",
        r"radix_?sort|merge_?sort|bitonic_?sort|segmented_?sort|device_?sort|sort_?(?:kernel|keys|pairs|by)|(?:^"
        r"|[_:])sort|BlockSort",
        "void cub::DeviceRadixSortOnesweepKernel<cub::DeviceRadixSortPolicy<unsigned long, unsigned int, "
        "int>::Policy800, false, "
        "unsigned long, unsigned int, int, int>(int*, int*, int*, int const*, unsigned long*, unsigned long const*, "
        "unsigned int*, "
        "unsigned int const*, int, int, int)",
        "Sorts keys, with values or without: sampling, expert routing, embedding gradients over sorted indices.",
        "https://github.com/NVIDIA/cccl",
    ),
    Rule(
        "sort-topk",
        "sort",
        "top-k",
        r"top_?k|kthvalue|radix_?(?:select|find)|computeBlockDigitCounts|top_?p|gatherMedian|argsort",
        "void at::native::mbtopk::computeBlockDigitCounts<float, unsigned int, unsigned int, "
        "(int)2>(at::cuda::detail::TensorInfo"
        "<const T1, T2>, unsigned int, unsigned int *, unsigned int, T2, int, int, unsigned int, T3, T3 *, short *)",
        "Selects the largest values: sampling the next token, choosing experts.",
        _PYTORCH,
    ),
    Rule(
        "sort-scan",
        "sort",
        "scan and select",
        r"DeviceScan|scan_(?:kernel|innermost|outer|by)|(?:tensor_kernel_|segmented_|prefix_|inclusive_|exclusive_"
        r"|chunk_|selective_|block_offset_)scan"
        r"|prefix_?sum|cum_?(?:sum|prod|max|min)|DeviceSelect|DeviceCompact|DevicePartition|Device(?:Unique"
        r"|RunLength)|nonzero|histogram"
        r"|searchsorted|bucketize|chunk_state|bincount|lower_bound",
        "void at_cuda_detail::cub::DeviceSelectSweepKernel<at_cuda_detail::cub::detail::device_select_policy_hub<lon"
        "g, bool, int, "
        "(bool)0, (bool)0>::Policy900, at_cud",
        "Prefix sums, selections and counts: positions of tokens, expert loads, state-space layers.",
        "https://github.com/NVIDIA/cccl",
    ),
    Rule(
        "index-embedding",
        "index",
        "embedding",
        r"embedding|compute_grad_weight|sum_and_scatter|krn_partial|num_of_partial_segments|EmbeddingBag"
        r"|encoder_(?:forward|backward)_kernel|wte_backward|wpe_backward",
        "void at::native::<unnamed>::embedding_backward_feature_kernel<float, float, long>(const T3 *, const T1 *, "
        "T1 *, int, long, int)",
        "Embedding rows: lookup of token vectors, or adding gradients back into the table.",
        _SHARED,
    ),
    Rule(
        "index-gather-scatter",
        "index",
        "gather and scatter",
        r"gather|scatter",
        "void at::native::vectorized_gather_kernel<(int)16, long>(char *, char *, T2 *, int, long, long, long, "
        "long, bool)",
        "Reads or writes at positions given by another tensor: embedding lookup, the target's logit and its gradient.",
        _SHARED,
    ),
    # Before indexing: its permutations are of tokens, by a table. A permutation of dimensions is a layout.
    Rule(
        "copy-heads",
        "copy",
        "layout",
        r"^(?:un)?permute_kernel(?:_backward|_lowp)?(?:\(|$)",
        "unpermute_kernel(__nv_bfloat16 *, __nv_bfloat16 *, int, int, int, int)",
        "Splits queries, keys and values into heads, or merges the heads again.",
        _LLM_C,
    ),
    Rule(
        "index-select",
        "index",
        "index",
        r"index_elementwise_kernel|index(?:ing)?_?(?:backward|select|func|add|copy|fill|put|kernel)"
        r"|indexing_?backward|take_put|masked_select"
        r"|get_rows|set_rows|(?:un)?permute_(?:kernel|tokens)|moe_(?:route|align|permute|unpermute)|grid_sampler"
        r"|reshape_and_cache|kv_?cache|token_permut",
        "void at::native::(anonymous namespace)::indexSelectLargeIndex<c10::Half, long, unsigned int, 2, 2, -2, true>"
        "(at::cuda::detail::TensorInfo<c10::Half, unsigned int>, at::cuda::detail::TensorInfo<c10::Half const, "
        "unsigned int>, "
        "at::cuda::detail::TensorInfo<long const, unsigned int>, int, int, unsigned int, unsigned int, long)",
        "Tensor indexing: selecting rows, writing to a key-value cache, rearranging tokens between experts.",
        _PYTORCH,
    ),
    Rule(
        "copy-cast",
        "copy",
        "cast",
        r"(?:bfloat16|half|float16|float8\w*|fp8\w*)_?copy_kernel"
        r"|unrolled_elementwise_kernel.*?copy_kernel.*?WithCast|gpu_kernel_impl<[^<]*?direct_copy"
        r"|(?:^|(?<!no)_)cast_?(?:GPU|kernel|transpose)|_convert_|convert_?(?:kernel|unary|fp)|cpy_f32_f16|dequantize"
        r"|fp32_to_lowp|lowp_to_fp32|init_from_master|copy_to_dweight"
        r"|quantize|_quant_",
        "void at::native::vectorized_elementwise_kernel<(int)8, "
        "at::native::bfloat16_copy_kernel_cuda(at::TensorIteratorBase &)"
        "::[lambda(float) (instance 1)], std::array<char *, (unsigned long)2>>(int, T2, T3)",
        "Copies while converting the data type: weights and activations of mixed precision on their way to a matmul.",
        _SHARED,
    ),
    Rule(
        "copy-cat",
        "copy",
        "cat",
        r"CatArray|concat|split_with_sizes_copy|stack_kernel|chunk_cat",
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy_vectorized<at::native::(anonymous "
        "namespace)::OpaqueType<4u>, "
        "unsigned int, 3, 128, 1, 16, 4>(char*, at::native::(anonymous "
        "namespace)::CatArrInputTensorMetadata<at::native::(anonymous "
        "namespace)::OpaqueType<4u>, unsigned int, 128, 1>, at::native::(anonymous "
        "namespace)::TensorSizeStride<unsigned int, 4u>, "
        "int, unsigned int)",
        "Joins tensors, or splits one into pieces: rotary embeddings written with cat, a growing key-value cache.",
        _PYTORCH,
    ),
    Rule(
        "copy-direct",
        "copy",
        "copy",
        r"direct_copy_kernel|copy_kernel|copy_device_to_device|batched_?copy|copy_?kernel|\bcpy_|memcpy",
        "void at::native::elementwise_kernel<(int)128, (int)2, void at::native::gpu_kernel_impl_nocast<at::native"
        "::direct_copy_kernel_cuda(at::TensorIteratorBase &)::[lambda() (instance 3)]::operator ()() "
        "const::[lambda() (instance 7)]"
        "::operator ()() const::[lambda(float) (instance 1)]>(at::TensorIteratorBase &, const T1 &)::[lambda(int) "
        "(instance 1)]>(int, T3)",
        "Copies a strided tensor into a contiguous one: after splitting or merging heads, and for transposed "
        "gradients.",
        _SHARED,
    ),
    Rule(
        "copy-layout",
        "copy",
        "layout",
        r"transpose|permute_|(?:^|_)permute|roll_cuda|flip_cuda|_flip|pad_kernel|reflection_pad|constant_pad|unfold"
        r"|repeat_interleave|tile_kernel"
        r"|dynamic_update_slice|dynamic_slice|upsample|interp|bicubic|pixel_shuffle|resize",
        "void at::native::roll_cuda_kernel<float>(float const*, float*, long, long, long, long, long, long)",
        "Moves elements to other positions by a fixed rule: transposing, rolling, padding, resizing.",
        _PYTORCH,
    ),
    Rule(
        "fill-arange",
        "fill",
        "arange",
        r"arange|linspace|(?:^|_)iota|eye_kernel|range_cuda",
        "void <unnamed>::elementwise_kernel_with_index<int, at::native::arange_cuda_out(const c10::Scalar &, const "
        "c10::Scalar &, "
        "const c10::Scalar &, at::Tensor &)::[lambda() (instance 1)]::operator ()() const::[lambda() (instance "
        "4)]::operator ()() "
        "const::[lambda(long) (instance 1)]>(T1, T2, function_traits<T2>::result_type *)",
        "Writes a sequence of numbers: token positions for rotary embeddings and masks.",
        _SHARED,
    ),
    Rule(
        "fill-constant",
        "fill",
        "constant",
        r"FillFunctor|TensorFillOp|(?<!masked_)fill_(?:kernel|cuda|reverse)|(?<!masked_)fill_?kernel"
        r"|RepeatBufferKernel|memset|zero_?(?:kernel|out|fill)|set_?(?:zero|value|vector)|"
        r"init_?kernel|broadcast_(?:kernel|in_dim)",
        "void at::native::vectorized_elementwise_kernel<(int)4, at::native::FillFunctor<float>, std::array<char *, "
        "(unsigned long)1>>"
        "(int, T2, T3)",
        "Writes one value everywhere: zeroed gradients, fresh buffers, masks.",
        _SHARED,
    ),
    Rule(
        "reduce-max",
        "reduce",
        "max and min",
        r"reduce_kernel.*?(?:ArgMax|ArgMin|MaxOps|MinOps|MaxNanFunctor|MinNanFunctor|MinMaxOps|max_functor"
        r"|min_functor|NanFunctor)|amax_kernel",
        "void at::native::reduce_kernel<(int)512, (int)1, at::native::ReduceOp<float, at::native::MaxOps<float>, "
        "unsigned int, float, "
        "(int)4, (int)4>>(T3)",
        "Largest or smallest value of a row, with or without its position: the first step of a hand-written softmax.",
        _SHARED,
    ),
    Rule(
        "reduce-mean",
        "reduce",
        "mean",
        r"reduce_kernel.*?MeanOps|^mean_kernel\b",
        "void at::native::reduce_kernel<(int)512, (int)1, at::native::ReduceOp<float, at::native::MeanOps<float, "
        "float, float, float>, "
        "unsigned int, float, (int)4, (int)4>>(T3)",
        "Mean of each row: the mean square inside a hand-written RMSNorm, the mean of a loss.",
        _SHARED,
    ),
    Rule(
        "reduce-variance",
        "reduce",
        "variance",
        r"reduce_kernel.*?Welford|welford|^rstd_kernel\b",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::WelfordOps<float,"
        " float, int, float, thrust::pair<float, float> >, unsigned int, float, 2> >(at::native::ReduceOp"
        "<float, at::native::WelfordOps<float, float, int, float, thrust::pair<float, float> >, unsigned "
        "int, float, 2>)",
        "Variance or standard deviation of each row in one pass.",
        _PYTORCH,
    ),
    Rule(
        "reduce-sum",
        "reduce",
        "sum",
        r"reduce_kernel.*?(?:sum_functor|SumOps|nansum)|sum_?(?:kernel|rows)|sum_single_block",
        "void at::native::reduce_kernel<(int)512, (int)1, at::native::ReduceOp<float, "
        "at::native::func_wrapper_t<float, "
        "at::native::sum_functor<float, float, float>::operator ()(at::TensorIterator &)::[lambda(float, float) "
        "(instance 1)]>, "
        "unsigned int, float, (int)4, (int)4>>(T3)",
        "Sum along a dimension: the denominator of a hand-written softmax, gradients of broadcast weights.",
        _SHARED,
    ),
    Rule(
        "reduce-other",
        "reduce",
        "other",
        r"reduce(?!d)|reduction|prod_kernel|\bcub::.*?Reduc|asum_kernel|nrm2",
        "void cub::DeviceReduceSingleTileKernel<cub::DeviceReducePolicy<int, int, int, thrust::plus<int>>"
        "::Policy600, int*, int*, int, thrust::plus<int>, int>(int, int, int, thrust::plus<int>, cub::Dev"
        "iceReducePolicy<int, int, int, thrust::plus<int>>::Policy600)",
        "Another reduction: any, all, the product of all elements; CUB, XLA and plain CUDA programs.",
        "https://github.com/NVIDIA/cccl",
    ),
)

_ELEMENTWISE_RULES = (
    _make_functor_pattern(
        "masked fill",
        "masked_?fill",
        "void at::native::elementwise_kernel<(int)128, (int)2, void "
        "at::native::gpu_kernel_impl_nocast<at::native::<unnamed>"
        "::masked_fill_kernel(at::TensorIterator &, const c10::Scalar &)::[lambda() (instance 1)]::operator ()() const"
        "::[lambda() (instance 7)]::operator ()() const::[lambda(float, bool) (instance 1)]>(at::TensorIteratorBase "
        "&, const T1 &)"
        "::[lambda(int) (instance 1)]>(int, T3)",
        "Writes a value where a mask is true: the causal mask on attention scores.",
        _SHARED,
    ),
    _make_functor_pattern(
        "where",
        "where_kernel",
        "void at::native::elementwise_kernel<(int)128, (int)2, void "
        "at::native::gpu_kernel_impl_nocast<at::native::<unnamed>"
        "::where_kernel_impl(at::TensorIterator &)::[lambda() (instance 1)]::operator ()() const::[lambda() "
        "(instance 11)]"
        "::operator ()() const::[lambda(bool, float, float) (instance 1)]>(at::TensorIteratorBase &, const T1 &)"
        "::[lambda(int) (instance 1)]>(int, T3)",
        "Chooses between two tensors by a mask: a causal mask written with where.",
    ),
    _make_functor_pattern(
        "addcmul and lerp",
        "addcmul|lerp",
        _VEC + "addcmul_cuda_kernel(at::TensorIteratorBase &, const c10::Scalar &)"
        "::[lambda() (instance 2)]::operator ()() const"
        "::[lambda() (instance 7)]::operator ()() const::[lambda(float, float, float) (instance 1)], "
        "std::array<char *, "
        "(unsigned long)4>>(int, T2, T3)",
        "a + value * b * c, or moving a towards b by a weight: the moments of Adam.",
        _SHARED,
    ),
    _make_functor_pattern(
        "addcdiv",
        "addcdiv",
        _VEC + "addcdiv_cuda_kernel(at::TensorIteratorBase &, const c10::Scalar &)"
        "::[lambda() (instance 2)]::operator ()() const"
        "::[lambda() (instance 7)]::operator ()() const::[lambda(float, float, float) (instance 1)], "
        "std::array<char *, "
        "(unsigned long)4>>(int, T2, T3)",
        "a + value * b / c: the weight update of Adam.",
        _SHARED,
    ),
    _make_functor_pattern(
        "silu",
        "silu",
        _VEC + "<unnamed>::silu_kernel(at::TensorIteratorBase &)::[lambda() (instance 1)]"
        "::operator ()() const::[lambda() (instance 6)]"
        "::operator ()() const::[lambda(c10::BFloat16) (instance 1)]" + _TAIL2,
        "x * sigmoid(x), forward or backward: the gate of SwiGLU.",
    ),
    _make_functor_pattern(
        "sigmoid",
        "sigmoid",
        _VEC + "sigmoid_kernel_cuda(at::TensorIteratorBase &)" + _FLOAT_LAMBDA + _TAIL2,
        "1 / (1 + exp(-x)), forward or backward: gates, a hand-written SiLU.",
        _SHARED,
    ),
    _make_functor_pattern(
        "gelu",
        "gelu",
        _VEC + "GeluCUDAKernelImpl(at::TensorIteratorBase &, at::native::GeluType)"
        "::[lambda() (instance 1)]::operator ()() const"
        "::[lambda() (instance 2)]::operator ()() const::[lambda(float) (instance 1)]" + _TAIL2,
        "GELU, forward or backward: the activation of GPT and BERT feed-forward layers.",
    ),
    _make_functor_pattern(
        "tanh",
        "tanh",
        "void at::native::vectorized_elementwise_kernel<(int)4, at::native::tanh_kernel_cuda(at::TensorIt"
        "eratorBase &)::[lambda() (instance 1)]::operator ()() const::[lambda() (instance 4)]::operator ("
        ")() const::[lambda(float) (instance 1)], at::detail::Array<char *, (int)2>>(int, T2, T3)",
        "Hyperbolic tangent: inside an approximated GELU, logit soft-capping.",
    ),
    _make_functor_pattern(
        "clamp and relu",
        "clamp|relu|threshold|maximum|minimum|(?:max|min)_elementwise|fmax|fmin",
        "void at::native::vectorized_elementwise_kernel<(int)4, at::native::<unnamed>::launch_clamp_scala"
        "r(at::TensorIteratorBase &, c10::Scalar, c10::Scalar, at::native::detail::ClampLimits)::[lambda("
        ") (instance 1)]::operator ()() const::[lambda() (instance 7)]::operator ()() const::[lambda(floa"
        "t) (instance 1)], at::detail::Array<char *, (int)2>>(int, T2, T3)",
        "Limits values to a range, or takes the larger or smaller of two; ReLU is a clamp at zero, threshold its "
        "gradient.",
    ),
    _make_functor_pattern(
        "rsqrt",
        "rsqrt",
        _VEC + "rsqrt_kernel_cuda(at::TensorIteratorBase &)" + _FLOAT_LAMBDA + _TAIL2,
        "1 / sqrt(x): the scale of a hand-written RMSNorm.",
        _SHARED,
    ),
    _make_functor_pattern(
        "sqrt",
        "sqrt",
        _VEC + "sqrt_kernel_cuda(at::TensorIteratorBase &)" + _FLOAT_LAMBDA + _TAIL2,
        "Square root: the denominator of Adam's update.",
        _SHARED,
    ),
    _make_functor_pattern(
        "reciprocal",
        "reciprocal",
        _VEC + "reciprocal_kernel_cuda(at::TensorIteratorBase &)::[lambda() (instance 1)]"
        "::operator ()() const::[lambda() (instance 2)]"
        "::operator ()() const::[lambda(float) (instance 1)]" + _TAIL2,
        "1 / x: the frequencies of rotary embeddings.",
        _SHARED,
    ),
    _make_functor_pattern(
        "pow",
        "pow_tensor|pow_kernel|PowFunctor|pow_scalar",
        "void at::native::vectorized_elementwise_kernel<(int)4, void "
        "at::native::<unnamed>::pow_tensor_scalar_kernel_impl<float, float>"
        "(at::TensorIteratorBase &, T2)::[lambda(float) (instance 1)]" + _TAIL2,
        "Powers: squares inside a hand-written RMSNorm.",
        _SHARED,
    ),
    _make_functor_pattern(
        "exp",
        r"exp2?_kernel|expm1|ExpFunctor",
        _VEC + "exp_kernel_cuda(at::TensorIteratorBase &)" + _FLOAT_LAMBDA + _TAIL2,
        "Exponential: the numerator of a hand-written softmax.",
        _SHARED,
    ),
    _make_functor_pattern(
        "log",
        r"::log(?:2|10|1p)?_kernel|LogFunctor|(?<![a-z])log_kernel",
        "void at::native::vectorized_elementwise_kernel<(int)4, at::native::log_kernel_cuda(at::TensorIterat",
        "Logarithm: a hand-written cross-entropy.",
    ),
    _make_functor_pattern(
        "sin and cos",
        r"(?:::|_)(?:sin|cos)_kernel",
        _VEC + "cos_kernel_cuda(at::TensorIteratorBase &)" + _FLOAT_LAMBDA + _TAIL2,
        "Sine or cosine: the tables of rotary embeddings.",
        _SHARED,
    ),
    _make_functor_pattern(
        "neg",
        r"neg_kernel",
        _VEC + "neg_kernel_cuda(at::TensorIteratorBase &)::[lambda() (instance 2)]"
        "::operator ()() const::[lambda() (instance 7)]"
        "::operator ()() const::[lambda(float) (instance 1)]" + _TAIL2,
        "Changes the sign: gradients of subtraction and division, the rotated half of rotary embeddings.",
        _SHARED,
    ),
    _make_functor_pattern(
        "compare",
        r"Compare\w*Functor|compare_scalar|isneginf|isposinf|isinf|isnan|isfinite|(?:eq|ne|lt|le|gt|ge)_kernel",
        _VEC.replace("(int)4", "4")
        + "AUnaryFunctor<long, long, bool, at::native::(anonymous namespace)::CompareEqFunctor<long> >, "
        "std::array<char*, 2ul> >(int, at::native::AUnaryFunctor<long, long, bool, at::native::(anonymous "
        "namespace)::CompareEqFunctor"
        "<long> >, std::array<char*, 2ul>)",
        "Compares elements and writes a mask.",
    ),
    _make_functor_pattern(
        "logic",
        r"bitwise|logical|shift_kernel|BitwiseAnd|BitwiseOr|__lshift|__rshift",
        _VEC + "bitwise_not_kernel_cuda(at::TensorIteratorBase &)::[lambda(bool) (instance 1)]" + _TAIL2,
        "Bitwise or logical operations: inverting or joining masks.",
        _SHARED,
    ),
    _make_functor_pattern(
        "mul",
        r"MulFunctor|mul_kernel|MulScalar",
        _VEC + "BinaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float>>" + _TAIL3,
        "Multiplication: norm weights, rotary embeddings, gates, scaling of moments; AUnary and BUnary mean one "
        "operand is a scalar.",
        _SHARED,
    ),
    _make_functor_pattern(
        "div",
        r"DivFunctor|div_(?:true_|floor_|trunc_)?kernel|remainder|fmod",
        "void at::native::elementwise_kernel<(int)128, (int)2, void "
        "at::native::gpu_kernel_impl_nocast<at::native::BinaryFunctor<float, "
        "float, float, at::native::binary_internal::DivFunctor<float>>>(at::TensorIteratorBase &, const T1 &)"
        "::[lambda(int) (instance 1)]>(int, T3)",
        "Division: the last step of a hand-written softmax.",
        _SHARED,
    ),
    _make_functor_pattern(
        "add",
        r"CUDAFunctor(?:OnSelf|OnOther)?_add|AddFunctor|add_kernel|SubFunctor|sub_kernel|rsub",
        _VEC + "CUDAFunctor_add<float>" + _TAIL3,
        "Addition, and subtraction as adding with a factor of -1: residual connections, x - max in softmax, "
        "accumulated gradients.",
        _SHARED,
    ),
    _make_functor_pattern(
        "abs and round",
        r"AbsFunctor|abs_kernel|sign_kernel|round|floor_kernel|ceil_kernel|trunc_kernel|frac_kernel",
        "void at::native::vectorized_elementwise_kernel<4, at::native::AbsFunctor<float>, std::array<char*, 2ul> "
        ">(int, "
        "at::native::AbsFunctor<float>, std::array<char*, 2ul>)",
        "Magnitude, sign or rounding: quantisation scales.",
    ),
    Rule(
        "elementwise-triangle",
        "elementwise",
        "triangle",
        r"triu|tril",
        "void at::native::triu_tril_kernel<bool, int, (bool)0, (int)8, (bool)0>(at::cuda::detail::TensorInfo<T1, T2>, "
        "at::cuda::detail::TensorInfo<const T1, T2>, long, long, T2)",
        "Keeps one triangle of a matrix: building the causal mask.",
        _SHARED,
    ),
    Rule(
        "elementwise-rope",
        "elementwise",
        "rope",
        r"rope|rotary",
        "_rope_kernel",
        "Rotary position embedding as one kernel, applied to queries and keys.",
        "https://github.com/linkedin/Liger-Kernel",
    ),
    Rule(
        "elementwise-gated-activation",
        "elementwise",
        "activation",
        r"swiglu|geglu|act_and_mul|activation|(?:silu|gelu|relu|sigmoid|tanh|swish|quick_gelu)(?:_|\d|f|$|<|k)",
        "_swiglu_bwd_kernel",
        "An activation as one kernel, often with the gate's multiplication: SwiGLU outside PyTorch's own operators.",
        "https://github.com/linkedin/Liger-Kernel",
    ),
    Rule(
        "elementwise-other",
        "elementwise",
        "other",
        r"elementwise|kernelPointwiseApply|pointwise|op_(?:generic_)?tensor_kernel|for_each|transform_kernel",
        "void at::native::elementwise_kernel_manual_unroll<128, 8, ...>",
        "Another elementwise operation of PyTorch; the functor in the name says which.",
        _PYTORCH,
    ),
    Rule(
        "elementwise-xla",
        "elementwise",
        "xla fusion",
        r"^(?:loop_|input_|wrapped_)?\w*fusion(?:[._]\d+)*$|^wrapped_\w+$",
        "loop_add_fusion_4",
        "Elementwise operations fused by XLA (JAX, TensorFlow); the name holds the last of them.",
        "https://github.com/openxla/xla",
    ),
    Rule(
        "elementwise-tensorflow",
        "elementwise",
        "tensorflow",
        r"EigenMetaKernel|_GPU_DT_\w+_kernel|GpuLaunch|__xla_fp\d+_comparison|redzone_checker",
        "Mul_GPU_DT_FLOAT_DT_FLOAT_kernel",
        "An elementwise operation of TensorFlow, generated or through Eigen.",
        "https://github.com/tensorflow/tensorflow",
    ),
    Rule(
        "elementwise-plain",
        "elementwise",
        "plain",
        r"vector_?add|saxpy|daxpy|axpy|(?:^|[_: ])(?:add|mul|sub|div|scale|sum|residual|bias)_?(?:\w*_)?(?:kernel"
        r"|forward|backward|arrays|f32|vec|vectors?)"
        r"|bin_bcast|unary_op|scale_f32|bias_?(?:kernel|add)|\badd_bias\b|residual_forward",
        "vectorAdd(const float *, const float *, float *, int)",
        "An elementwise operation of a plain CUDA program.",
        "https://github.com/NVIDIA/cuda-samples",
    ),
)

RULES: tuple[Rule, ...] = _LEADING_RULES + _ELEMENTWISE_RULES
"""The built-in taxonomy, in order."""


class Taxonomy:
    """An ordered set of rules that classifies kernel names, remembering each name it has seen."""

    def __init__(self, rules: Iterable[Rule]):
        self.rules = tuple(rules)
        self._patterns = [re.compile(rule.pattern, re.IGNORECASE | re.DOTALL) for rule in self.rules]
        self.classify = lru_cache(maxsize=100_000)(self._classify)

    def _classify(self, name: str) -> Classification:
        for index, (rule, pattern) in enumerate(zip(self.rules, self._patterns, strict=True)):
            if pattern.search(name):
                return Classification(rule.family, rule.part, rule.name, index)
        return UNCLASSIFIED

    def family(self, name: str) -> str:
        """Key of the family of kernel `name`, `other` if no rule matches."""
        return self.classify(name).family


BUILT_IN = Taxonomy(RULES)


def classify(name: str, taxonomy: Taxonomy = BUILT_IN) -> Classification:
    """Family, part and rule of the kernel with the full (never truncated) demangled `name`."""
    return taxonomy.classify(name)


def find_family(name: str, taxonomy: Taxonomy = BUILT_IN) -> str:
    """Key of the family of kernel `name`: one of `FAMILIES`."""
    return taxonomy.classify(name).family


def is_main_gemm(name: str, taxonomy: Taxonomy = BUILT_IN) -> bool:
    """Whether kernel `name` is the main kernel of a matmul: exactly one launch per matmul.

    False for split-K and epilogue kernels, which belong to the matmul launched before them, and for fused attention.
    """
    classification = taxonomy.classify(name)
    return classification.family == "gemm" and classification.part in MAIN_GEMM_PARTS


def find_rule(classification: Classification, taxonomy: Taxonomy = BUILT_IN) -> Rule | None:
    """The rule behind a classification made by the same `taxonomy`; None if nothing matched."""
    return taxonomy.rules[classification.rule_index] if classification.rule_index >= 0 else None


def add_user_rules(path: Path | str) -> Taxonomy:
    """The built-in taxonomy with the rules of a TOML file before it, so that the user's own win."""
    return Taxonomy((*load_user_rules(path), *RULES))


_REQUIRED = ("family", "pattern")
_OPTIONAL = ("name", "part", "example", "explanation", "source")


def load_user_rules(path: Path | str) -> tuple[Rule, ...]:
    """Rules from a TOML file of `[[rule]]` tables, in the order of the file.

        [[rule]]
        family = "attention"              # one of FAMILIES
        pattern = "my_attn_.*_kernel"     # regular expression, searched anywhere in the name, ignoring case
        part = "fused"                    # optional, as are name, explanation and source
        example = "my_attn_fwd_kernel"    # optional: a kernel name; it is an error if the pattern does not match it

    Raises ValueError naming the file, the rule and what to do.
    """
    path = Path(path)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not valid TOML: {error}") from error
    unknown = sorted(set(content) - {"rule"})
    tables = content.get("rule", [])
    if unknown or not isinstance(tables, list) or not tables:
        hint = f"unknown key {unknown[0]!r}; " if unknown else ""
        raise ValueError(f"{path}: {hint}expected one or more [[rule]] tables with {' and '.join(_REQUIRED)}")
    return tuple(_parse_user_rule(path, number, table) for number, table in enumerate(tables, start=1))


def _parse_user_rule(path: Path, number: int, table: dict) -> Rule:
    where = f"{path}: rule {number}"
    for key in table:
        if key not in _REQUIRED + _OPTIONAL:
            raise ValueError(f"{where}: unknown key {key!r}; allowed: {', '.join(_REQUIRED + _OPTIONAL)}")
    for key in _REQUIRED:
        if not table.get(key):
            raise ValueError(f"{where}: {key!r} is missing")
    for key, value in table.items():
        if not isinstance(value, str):
            raise ValueError(f"{where}: {key!r} must be a string, not {value!r}")
    if table["family"] not in FAMILIES:
        raise ValueError(f"{where}: family {table['family']!r} is unknown; choose one of {', '.join(FAMILIES)}")
    try:
        pattern = re.compile(table["pattern"], re.IGNORECASE | re.DOTALL)
    except re.error as error:
        raise ValueError(f"{where}: pattern {table['pattern']!r} is not a regular expression: {error}") from error
    if pattern.search(""):
        raise ValueError(f"{where}: pattern {table['pattern']!r} matches every name; make it more specific")
    example = table.get("example", "")
    if example and not pattern.search(example):
        raise ValueError(f"{where}: pattern {table['pattern']!r} does not match its example {example!r}")
    return Rule(
        name=table.get("name", f"user-{number}"),
        family=table["family"],
        part=table.get("part", ""),
        pattern=table["pattern"],
        example=example,
        explanation=table.get("explanation", f"Rule {number} of {path.name}."),
        source=table.get("source", path.name),
    )
