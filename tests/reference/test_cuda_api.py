import sqlite3

import pytest

from profiler_job.analysis.reference.cuda_api import API_CALLS, GROUPS, explain, find_group, strip_version


@pytest.mark.parametrize(
    ("name", "expected", "in_group"),
    [
        ("cudaLaunchKernel_v7000", "cudaLaunchKernel", "launch"),
        ("cudaLaunchKernel_ptsz_v7000", "cudaLaunchKernel", "launch"),
        ("cudaLaunchKernelExC_v11060", "cudaLaunchKernelExC", "launch"),
        ("cuLaunchKernel", "cuLaunchKernel", "launch"),
        ("cuLaunchKernelEx", "cuLaunchKernelEx", "launch"),
        ("cudaLaunchCooperativeKernel_v9000", "cudaLaunchCooperativeKernel", "launch"),
        ("cudaGraphLaunch_v10000", "cudaGraphLaunch", "launch"),
        ("cudaMemcpyAsync_v3020", "cudaMemcpyAsync", "copy"),
        ("cuMemcpyHtoDAsync_v2", "cudaMemcpyAsync", "copy"),
        ("cudaMemcpy_v3020", "cudaMemcpy", "copy"),
        ("cudaMemsetAsync_v3020", "cudaMemsetAsync", "copy"),
        ("cudaStreamSynchronize_v3020", "cudaStreamSynchronize", "synchronisation"),
        ("cudaDeviceSynchronize_v3020", "cudaDeviceSynchronize", "synchronisation"),
        ("cudaEventSynchronize_v3020", "cudaEventSynchronize", "synchronisation"),
        ("cudaEventRecord_v3020", "cudaEventRecord", "event"),
        ("cudaEventRecordWithFlags_v11010", "cudaEventRecord", "event"),
        ("cudaEventQuery_v3020", "cudaEventQuery", "event"),
        ("cudaEventCreateWithFlags_v3020", "cudaEventCreate", "event"),
        ("cudaMalloc_v3020", "cudaMalloc", "allocation"),
        ("cudaMallocAsync_v11020", "cudaMallocAsync", "allocation"),
        ("cudaFree_v3020", "cudaFree", "allocation"),
        ("cudaHostAlloc_v3020", "cudaHostAlloc", "allocation"),
        ("cuMemExportToShareableHandle", "cuMemCreate", "allocation"),
        ("cudaGraphInstantiateWithFlags_v11040", "cudaGraphInstantiate", "graph"),
        ("cudaStreamBeginCapture_v10000", "cudaStreamBeginCapture", "graph"),
        ("cudaStreamIsCapturing_v10000", "cudaStreamIsCapturing", "stream"),
        ("cudaThreadExchangeStreamCaptureMode_v10010", "cudaStreamIsCapturing", "stream"),
        ("cudaStreamWaitEvent_v3020", "cudaStreamWaitEvent", "stream"),
        ("cudaFuncSetAttribute_v9000", "cudaFuncSetAttribute", "query"),
        ("cudaOccupancyMaxActiveClusters_v11070", "cudaOccupancyMaxActiveBlocksPerMultiprocessor", "query"),
        ("cudaPeekAtLastError", "cudaGetDevice", "query"),
        ("cuKernelGetName", "cuKernelGetName", "query"),
        ("cuModuleLoadData", "cuModuleLoadData", "module"),
        ("cuLibraryGetKernel", "cuModuleLoadData", "module"),
    ],
)
def test_call_is_explained(name, expected, in_group):
    assert (explain(name).name, find_group(name)) == (expected, in_group)


def test_unknown_call_is_none():
    assert explain("hipLaunchKernel") is None and find_group("hipLaunchKernel") is None


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("cudaMalloc_v3020", "cudaMalloc"),
        ("cudaLaunchKernelExC_v11060", "cudaLaunchKernelExC"),
        ("cudaLaunchKernel_ptsz_v7000", "cudaLaunchKernel"),
        ("cuMemAlloc_v2", "cuMemAlloc"),
        ("cuMemcpyHtoDAsync_v2_ptsz", "cuMemcpyHtoDAsync"),
        ("cudaStreamGetCaptureInfo_v2_v11030", "cudaStreamGetCaptureInfo"),
        ("cudaMalloc3D", "cudaMalloc3D"),
        ("cuInit", "cuInit"),
    ],
)
def test_no_version_of_an_entry_point_is_left(name, base):
    assert strip_version(name) == base


@pytest.mark.parametrize("call", API_CALLS, ids=[call.name for call in API_CALLS])
def test_each_row_explains_the_call_it_is_named_after(call):
    assert explain(call.name) == call
    assert call.family in GROUPS and call.explanation.endswith(".")


def test_every_call_of_the_shared_profiles_is_explained(shared_profiles):
    unexplained = set()
    for path in shared_profiles.glob("*.sqlite"):
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        rows = connection.execute(
            "SELECT DISTINCT s.value FROM CUPTI_ACTIVITY_KIND_RUNTIME r JOIN StringIds s ON s.id = r.nameId"
        ).fetchall()
        connection.close()
        unexplained |= {name for (name,) in rows if explain(name) is None}
    assert unexplained == set()
