"""Peak rates of the GPUs people rent, from NVIDIA's datasheets: the denominators of MFU and of bandwidth utilisation.

All rates are dense. Datasheets since Ampere headline tensor rates "with sparsity", twice the dense ones; where the
sheet prints only those, the row here is half. On GeForce cards, tensor cores that accumulate in FP32, as training does,
run at half the rate of FP16 accumulation; the rows give the FP32-accumulate rate. No rate holds below the boost clock
that the sheet assumes.

To add a GPU: one row in `GPUS`, with the name as `nvidia-smi --query-gpu=name --format=csv` prints it.
"""

from typing import NamedTuple

PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "fp8")
"""Keys of `Gpu.peak_flops`: fp32 on CUDA cores, the others on tensor cores, dense."""


class Gpu(NamedTuple):
    """One GPU model.

    names: as nvidia-smi prints them, without the leading "NVIDIA ".
    fp32 ... fp8: dense peak in TFLOP/s (1e12 operations a second); None where the hardware has no such unit.
    memory_gbps: peak memory bandwidth in GB/s (1e9 bytes a second). memory_gb: size in GB (1e9 bytes) as sold.
    num_sms: streaming multiprocessors. source: the vendor's document. l2_mib: size of the L2 cache in MiB,
    as the driver tells nsys (`l2CacheSize` of TARGET_INFO_GPU) or torch; None where neither was seen.
    """

    key: str
    names: tuple[str, ...]
    fp32: float
    tf32: float | None
    bf16: float | None
    fp16: float | None
    fp8: float | None
    memory_gbps: float
    memory_gb: float
    num_sms: int
    source: str
    l2_mib: float | None = None

    def peak_flops(self, precision: str) -> float | None:
        """Return the dense peak in FLOP/s for a key of `PRECISIONS`; None if the hardware has no unit for it."""
        if precision not in PRECISIONS:
            raise ValueError(f"precision {precision!r} is unknown; choose one of {', '.join(PRECISIONS)}")
        rate = getattr(self, precision)
        return None if rate is None else rate * 1e12

    @property
    def memory_bandwidth(self) -> float:
        """Peak memory bandwidth in bytes a second."""
        return self.memory_gbps * 1e9

    @property
    def l2_bytes(self) -> float | None:
        return None if self.l2_mib is None else self.l2_mib * 2**20

    @property
    def board_watts(self) -> float | None:
        """Power that the data sheet allows the board, in W; None where it was not looked up."""
        return BOARD_WATTS.get(self.key)

    @property
    def memory_bytes(self) -> float:
        return self.memory_gb * 1e9


_VOLTA = "NVIDIA Tesla V100 GPU Accelerator datasheet"
_A100 = "NVIDIA A100 Tensor Core GPU datasheet"
_H100 = "NVIDIA H100 Tensor Core GPU datasheet (tensor rates halved: given with sparsity)"
_H200 = "NVIDIA H200 Tensor Core GPU datasheet (tensor rates halved: given with sparsity)"
_GH200 = "NVIDIA GH200 Grace Hopper Superchip datasheet (tensor rates halved: given with sparsity)"
_BLACKWELL = "NVIDIA Blackwell Architecture Technical Brief (dense rates)"
_GA102 = "NVIDIA Ampere GA102 GPU Architecture whitepaper"
_ADA = "NVIDIA Ada GPU Architecture whitepaper"

# "checked" rows: rates, bandwidth and size agreed with at least one reproduction of the datasheet; SM counts marked
# "device" were read off a device. "from memory" rows could not be looked up again and want a second pair of eyes.
GPUS = (
    #   key             names                                    fp32   tf32    bf16    fp16     fp8    GB/s   GB  SMs
    Gpu("T4", ("Tesla T4", "T4"), 8.1, None, None, 65.0, None, 320, 16, 40, "NVIDIA T4 datasheet"),  # rates checked
    Gpu("V100 PCIe 16GB", ("Tesla V100-PCIE-16GB",), 14.0, None, None, 112.0, None, 900, 16, 80, _VOLTA),  # checked
    Gpu("V100 PCIe 32GB", ("Tesla V100-PCIE-32GB",), 14.0, None, None, 112.0, None, 900, 32, 80, _VOLTA),  # checked
    Gpu("V100 SXM2 16GB", ("Tesla V100-SXM2-16GB",), 15.7, None, None, 125.0, None, 900, 16, 80, _VOLTA),  # checked
    Gpu("V100 SXM2 32GB", ("Tesla V100-SXM2-32GB",), 15.7, None, None, 125.0, None, 900, 32, 80, _VOLTA),  # checked
    Gpu("A10", ("A10",), 31.2, 62.5, 125.0, 125.0, None, 600, 24, 72, "NVIDIA A10 datasheet"),  # checked
    # A10G: rates from memory (its datasheet lists half the A10's tensor rates); SM count: device.
    Gpu("A10G", ("A10G",), 31.5, 35.0, 70.0, 70.0, None, 600, 24, 80, "NVIDIA A10G datasheet"),
    Gpu("A30", ("A30",), 10.3, 82.0, 165.0, 165.0, None, 933, 24, 56, "NVIDIA A30 datasheet"),  # bf16, GB/s checked
    Gpu("A40", ("A40",), 37.4, 74.8, 149.7, 149.7, None, 696, 48, 84, "NVIDIA A40 datasheet"),  # checked
    Gpu("RTX A6000", ("RTX A6000",), 38.7, 77.4, 154.8, 154.8, None, 768, 48, 84, _GA102),  # from memory
    Gpu("A100 SXM4 40GB", ("A100-SXM4-40GB",), 19.5, 156.0, 312.0, 312.0, None, 1555, 40, 108, _A100),  # checked
    Gpu("A100 SXM4 80GB", ("A100-SXM4-80GB",), 19.5, 156.0, 312.0, 312.0, None, 2039, 80, 108, _A100),  # checked
    Gpu("A100 PCIe 40GB", ("A100-PCIE-40GB",), 19.5, 156.0, 312.0, 312.0, None, 1555, 40, 108, _A100),  # checked
    Gpu("A100 PCIe 80GB", ("A100 80GB PCIe",), 19.5, 156.0, 312.0, 312.0, None, 1935, 80, 108, _A100),  # checked
    Gpu("L4", ("L4",), 30.3, 60.0, 121.0, 121.0, 242.5, 300, 24, 58, "NVIDIA L4 datasheet"),  # rates, GB/s checked
    Gpu("L40", ("L40",), 90.5, 90.5, 181.05, 181.05, 362.0, 864, 48, 142, "NVIDIA L40 datasheet"),  # checked
    Gpu("L40S", ("L40S",), 91.6, 183.0, 362.05, 362.05, 733.0, 864, 48, 142, "NVIDIA L40S datasheet"),  # checked
    # RTX 6000 Ada: from memory.
    Gpu("RTX 6000 Ada", ("RTX 6000 Ada Generation",), 91.1, 182.1, 364.2, 364.2, 728.5, 960, 48, 142, _ADA),
    Gpu("H100 SXM5", ("H100 80GB HBM3",), 67.0, 494.7, 989.4, 989.4, 1978.9, 3350, 80, 132, _H100, 50),  # checked
    Gpu("H100 PCIe", ("H100 PCIe",), 51.0, 378.0, 756.5, 756.5, 1513.0, 2000, 80, 114, _H100),  # checked
    # H100 NVL: BF16 checked; the others from memory.
    Gpu("H100 NVL", ("H100 NVL",), 60.0, 417.5, 835.5, 835.5, 1670.5, 3900, 94, 132, _H100),
    Gpu("H200 SXM5", ("H200",), 67.0, 494.7, 989.4, 989.4, 1978.9, 4800, 141, 132, _H200, 60),  # checked
    Gpu("H200 NVL", ("H200 NVL",), 60.0, 417.5, 835.5, 835.5, 1670.5, 4800, 141, 132, _H200),  # from memory
    # GH200: BF16 and bandwidth checked; 480GB in the first name is the processor's memory, the GPU's is 96 GB.
    Gpu("GH200 96GB", ("GH200 480GB",), 67.0, 494.0, 990.0, 990.0, 1979.0, 4000, 96, 132, _GH200),
    Gpu("GH200 144GB", ("GH200 144G HBM3e",), 67.0, 494.0, 990.0, 990.0, 1979.0, 4900, 144, 132, _GH200),
    # B200 and GB200: rates checked; B200 size and SM count: device. GB200's size and SM count from memory.
    Gpu("B200", ("B200",), 80.0, 1100.0, 2250.0, 2250.0, 4500.0, 8000, 180, 148, _BLACKWELL),
    Gpu("GB200", ("GB200",), 90.0, 1250.0, 2500.0, 2500.0, 5000.0, 8000, 186, 152, _BLACKWELL),
    # RTX 3090: FP32 checked; tensor rates, with FP32 accumulation, from memory of the whitepaper's table.
    Gpu("RTX 3090", ("GeForce RTX 3090",), 35.6, 35.6, 71.2, 71.2, None, 936, 24, 82, _GA102),
    Gpu("RTX 3090 Ti", ("GeForce RTX 3090 Ti",), 40.0, 40.0, 80.0, 80.0, None, 1008, 24, 84, _GA102),  # rates checked
    Gpu("RTX 4090", ("GeForce RTX 4090",), 82.6, 82.6, 165.2, 165.2, 330.3, 1008, 24, 128, _ADA),  # checked
    # RTX 5090: from memory.
    Gpu(
        "RTX 5090",
        ("GeForce RTX 5090",),
        *(104.8, 104.8, 209.5, 209.5, 419.0, 1792, 32, 170, "NVIDIA RTX Blackwell GPU Architecture whitepaper"),
    ),
)


BOARD_WATTS = {
    "T4": 70.0,
    "V100 PCIe 16GB": 250.0,
    "V100 PCIe 32GB": 250.0,
    "V100 SXM2 16GB": 300.0,
    "V100 SXM2 32GB": 300.0,
    "A10": 150.0,
    "A100 SXM4 40GB": 400.0,
    "A100 SXM4 80GB": 400.0,
    "A100 PCIe 40GB": 250.0,
    "A100 PCIe 80GB": 300.0,
    "L4": 72.0,
    "L40S": 350.0,
    "H100 SXM5": 700.0,
    "H100 PCIe": 350.0,
    "H200 SXM5": 700.0,
    "B200": 1000.0,
    "RTX 3090": 350.0,
    "RTX 4090": 450.0,
}
"""Largest power of the board in W, from the same data sheets, by `key`."""


def _normalise(name: str) -> str:
    return " ".join(name.casefold().removeprefix("nvidia ").split())


_BY_NAME = {_normalise(name): gpu for gpu in GPUS for name in gpu.names}


def lookup(gpu_name: str) -> Gpu | None:
    """Find the GPU that nvidia-smi calls `gpu_name`; None if it is not listed.

    Only full names match: variants of one model differ in rates, and a MIG slice has only part of them.
    """
    return _BY_NAME.get(_normalise(gpu_name))
