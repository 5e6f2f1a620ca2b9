"""BLAS instruction sets: whether a BLAS uses an older one than the CPU supports.

OpenBLAS and BLIS choose their kernels on loading, by the CPU's name or by a variable
(OPENBLAS_CORETYPE, BLIS_ARCH_TYPE); MKL also by MKL_ENABLE_INSTRUCTIONS. With AVX2 kernels on a CPU
with AVX-512, a product takes about twice as long. Sources for the core types: OpenBLAS'
driver/others/dynamic.c and TargetList.txt, BLIS' config_registry.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpucheck.drivers.host.blas import BlasFacts

#: Linux's names for the relevant instruction sets, newest first.
INSTRUCTION_SETS = ("avx512f", "avx2", "avx", "sse2")
_Cores = Mapping[str, tuple[str, ...]]
#: Core types in lower case, by the newest of these sets that their kernels use.
_OF_OPENBLAS: _Cores = {
    "avx512f": ("skylakex", "cooperlake", "sapphirerapids"),
    "avx2": ("haswell", "zen", "excavator"),
    "avx": ("sandybridge", "bulldozer", "piledriver", "steamroller"),
    "sse2": (
        *("prescott", "core2", "penryn", "dunnington", "nehalem", "atom", "nano"),
        *("opteron", "opteron_sse3", "barcelona", "bobcat"),
    ),
}
_OF_BLIS: _Cores = {
    "avx512f": ("skx", "knl", "zen4", "zen5"),
    "avx2": ("haswell", "zen", "zen2", "zen3", "excavator"),
    "avx": ("sandybridge", "bulldozer", "piledriver", "steamroller"),
    "sse2": ("penryn", "generic"),
}
_OF_MKL: _Cores = {
    "avx512f": ("avx512",),
    "avx2": ("avx2",),
    "avx": ("avx",),
    "sse2": ("sse4_2",),
}


def older_than_cpu(
    blas: BlasFacts | None, instruction_sets: frozenset[str], variables: Mapping[str, str]
) -> str | None:
    """Return which older kernels the BLAS uses; None if the newest, or unknown.

    `instruction_sets` are the CPU's, by Linux's names; `variables` may force a choice.
    """
    if blas is None:
        return None
    known, core = _OF_OPENBLAS, blas.architecture
    if blas.name == "blis":
        known = _OF_BLIS
    elif blas.name == "mkl":
        known, core = _OF_MKL, variables.get("MKL_ENABLE_INSTRUCTIONS")
    elif blas.name != "openblas":
        return None
    has = next((name for name in INSTRUCTION_SETS if name in instruction_sets), None)
    uses = next((name for name, cores in known.items() if (core or "").lower() in cores), None)
    if has is None or uses is None:
        return None
    if INSTRUCTION_SETS.index(uses) <= INSTRUCTION_SETS.index(has):
        return None
    forced = next((f" ({name}={variables[name]})" for name in _FORCING if name in variables), "")
    return f"{blas.name} uses its kernels for {core}{forced}"


#: Variables that choose the kernels of a BLAS.
_FORCING = ("OPENBLAS_CORETYPE", "BLIS_ARCH_TYPE", "MKL_ENABLE_INSTRUCTIONS")
