"""Import hook that caps frameworks which read no environment variable.

A single file for any interpreter from Python 3.7 on; standard library only. Nothing here starts
CUDA: each framework's call waits for the program's own first use of a GPU. If anything goes
wrong, one warning is written and the program runs on as if this file were not there.
"""

from __future__ import annotations

import os
import sys
from _thread import get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

#: The limit as JSON: `text`, `visible` (CUDA_VISIBLE_DEVICES when it was worked out), `gpus`
#: (`uuid`, `bytes`, in CUDA's order), `frameworks` to hold, and what was put in their variables:
#: `torch` (`variable`, `value`, `before`), `jax` (`variable`, `value`), `cupy`.
VARIABLE = "GPUCHECK_MEMORY_LIMIT"

CUPY_LIMIT = "CUPY_GPU_MEMORY_LIMIT"
JAX_FRACTIONS = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
#: PyTorch reads the first of these that is set, even if it is empty.
TORCH_CONFS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
TORCH_KEY = "per_process_memory_fraction"
TORCH_UNCACHED = "PYTORCH_NO_CUDA_MEMORY_CACHING"
#: The first PyTorch that knows the key; in an older one it is fatal.
TORCH_KEY_SINCE = (2, 10)
CUDA_PROVIDER = "CUDAExecutionProvider"
TENSORFLOW_GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"
MIB = 1 << 20

_warned: set[str] = set()


class Limit:
    """Limit of each GPU in bytes, looked up by what this process knows of the GPU."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.frameworks = frozenset(document["frameworks"])
        self.torch: dict[str, Any] = document.get("torch") or {}
        self.jax: dict[str, str] = document.get("jax") or {}
        self.cupy: str = document.get("cupy") or ""
        self._visible = document["visible"]
        self._sizes: list[int] = [int(gpu["bytes"]) for gpu in document["gpus"]]
        self._by_uuid = {
            _plain_uuid(gpu["uuid"]): int(gpu["bytes"]) for gpu in document["gpus"] if gpu["uuid"]
        }
        self.smallest = min(self._sizes)

    def bytes_of(self, ordinal: int, uuid: object = None) -> int:
        """Return the limit of a GPU, or the smallest one if it is unknown which GPU it is."""
        by_uuid = self._by_uuid.get(_plain_uuid(uuid)) if uuid else None
        if by_uuid is not None:
            return by_uuid
        same_order = os.environ.get("CUDA_VISIBLE_DEVICES") == self._visible
        return self._sizes[ordinal] if same_order and ordinal < len(self._sizes) else self.smallest


def _plain_uuid(uuid: object) -> str:
    text = str(uuid).lower()
    return text[4:] if text.startswith("gpu-") else text


def warn(framework: str, problem: object) -> None:
    """Write one line for each framework; without a usable stderr, none."""
    if framework in _warned:
        return
    _warned.add(framework)
    try:
        text = ascii(str(problem))[1:-1]
        sys.stderr.write(f"gpucheck: warning: {framework} is not held to the limit: {text}\n")
    except Exception:
        return


def _quietly(framework: str, action: Callable[..., None], *arguments: Any) -> None:
    try:
        action(*arguments)
    except Exception as error:
        warn(framework, f"{type(error).__name__}: {error}")


# ------------------------------------------------------------------------------------- PyTorch


def _version(text: str) -> tuple[int, int] | None:
    major, _, rest = text.partition(".")
    minor = rest.partition(".")[0]
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None


def _torch_version(spec: Any) -> tuple[int, int] | None:
    """Read the version of a PyTorch that is about to be imported."""
    if not spec.origin:
        return None
    name = spec.origin.rpartition("/")[0] + "/version.py"
    if not os.access(name, os.R_OK):
        return None
    with open(name, encoding="utf-8") as file:  # noqa: PTH123
        for line in file:
            if line.startswith("__version__"):
                return _version(line.partition("=")[2].strip(" '\"\n"))
    return None


def _remove_torch_key(spec: Any, limit: Limit) -> None:
    """Remove our key again for an older PyTorch than the one it was set for."""
    name = limit.torch.get("variable")
    if not name or os.environ.get(name) != limit.torch.get("value"):
        return
    version = _torch_version(spec)
    if version is not None and version >= TORCH_KEY_SINCE:
        return
    before = limit.torch.get("before")
    if before is None:
        del os.environ[name]
    else:
        os.environ[name] = before


def _torch_is_held(limit: Limit) -> bool:
    """Return whether PyTorch has read our fraction, with the allocator that enforces it."""
    texts = [os.environ[name] for name in TORCH_CONFS if name in os.environ]
    read = [entry.strip() for entry in texts[0].split(",")] if texts else []
    ours = [entry.strip() for entry in str(limit.torch.get("value")).split(",")]
    fraction = [entry for entry in ours if entry.startswith(TORCH_KEY)]
    return bool(fraction) and fraction[0] in read and "cudaMallocAsync" not in texts[0]


def limit_torch(torch: Any, limit: Limit) -> None:
    """Cap the caching allocator when the program first uses CUDA, unless the environment does.

    Only then is it certain which settings it has read: a program may set its own first.
    """
    capped: set[int] = set()
    set_device = torch.cuda.set_device

    def cap(ordinal: int) -> None:
        properties = torch.cuda.get_device_properties(ordinal)
        size = limit.bytes_of(ordinal, getattr(properties, "uuid", None))
        fraction = min(1.0, size / properties.total_memory)
        torch.cuda.set_per_process_memory_fraction(float(fraction), ordinal)
        capped.add(ordinal)

    def start() -> None:
        if TORCH_UNCACHED in os.environ:
            warn("torch", f"{TORCH_UNCACHED} turns off the allocator that would enforce it")
            return
        if _torch_is_held(limit):
            return
        current = torch.cuda.current_device()
        # Capping a GPU makes a context on it. One of many ranks uses only its own GPU.
        every = range(torch.cuda.device_count())
        for ordinal in (current,) if "LOCAL_RANK" in os.environ else every:
            cap(ordinal)
        set_device(current)

    def set_device_and_cap(device: Any) -> None:
        set_device(device)
        if torch.cuda.is_initialized() and not _torch_is_held(limit):
            current = torch.cuda.current_device()
            if current not in capped:
                _quietly("torch", cap, current)

    if "LOCAL_RANK" in os.environ:
        torch.cuda.set_device = set_device_and_cap
    torch.cuda._lazy_call(lambda: _quietly("torch", start))


# ---------------------------------------------------------------------------------- TensorFlow


def limit_tensorflow(tensorflow: Any, limit: Limit) -> None:
    """Give every GPU one logical device of that size, just before TensorFlow starts its devices.

    That is late enough for a program to choose memory growth or logical devices of its own first.
    """
    eager = sys.modules["tensorflow.python.eager.context"]
    if getattr(getattr(eager, "_context", None), "_initialized", False):
        warn("tensorflow", "it has already started its devices")
        return
    context = eager.Context
    original = context.ensure_initialized

    def ensure_initialized(self: Any) -> Any:
        if not self._initialized and context.ensure_initialized is ensure_initialized:
            context.ensure_initialized = original
            _quietly("tensorflow", _set_logical_devices, tensorflow, limit)
        return original(self)

    context.ensure_initialized = ensure_initialized


def _set_logical_devices(tensorflow: Any, limit: Limit) -> None:
    config = tensorflow.config
    for ordinal, gpu in enumerate(config.list_physical_devices("GPU")):
        size = limit.bytes_of(ordinal) // MIB
        theirs = config.get_logical_device_configuration(gpu)
        if theirs:
            _warn_of_wider(theirs, size)
            continue
        if config.experimental.get_memory_growth(gpu):
            # With logical devices it forgets growth, but it still reads this variable.
            os.environ.setdefault(TENSORFLOW_GROWTH, "true")
        if size < 1:
            warn("tensorflow", "it counts whole MiB")
            return
        device = config.LogicalDeviceConfiguration(memory_limit=size)
        config.set_logical_device_configuration(gpu, [device])


def _warn_of_wider(devices: Any, size_mib: int) -> None:
    """Warn that the program's own logical devices of a GPU are kept, if they may take more."""
    sizes = [device.memory_limit for device in devices]
    if None in sizes or sum(sizes) > size_mib:
        taken = "all memory" if None in sizes else f"{sum(sizes):g} MiB"
        warn("tensorflow", f"the program's own logical devices take {taken} of a GPU, and are kept")


# ------------------------------------------------------------------- JAX, CuPy and ONNX Runtime


def limit_jax(client: Any, limit: Limit) -> None:
    """Check its fraction again when it reads it: a program may set its own."""
    original = getattr(client, "generate_pjrt_gpu_plugin_options", None)
    if original is None or not limit.jax:
        return  # older than the plugins: it has read the environment anyway

    def options(*arguments: Any, **named: Any) -> Any:
        _quietly("jax", _narrow_jax, limit)
        return original(*arguments, **named)

    client.generate_pjrt_gpu_plugin_options = options


def _narrow_jax(limit: Limit) -> None:
    """Keep a fraction that is no wider than ours, under one name: JAX refuses both."""
    name, value = limit.jax["variable"], limit.jax["value"]
    theirs = {key: os.environ[key] for key in JAX_FRACTIONS if os.environ.get(key)}
    if len(theirs) > 1:
        if theirs[name] != value:
            return  # both are the program's: JAX reports what is wrong
        del theirs[name], os.environ[name]
    (name, text) = next(iter(theirs.items()), (name, ""))
    if not text or not 0 < float(text) <= float(value):
        os.environ[name] = value


def limit_cupy(cupy: Any, limit: Limit) -> None:
    """Narrow its variable again if the program has widened or lost it."""
    text = os.environ.get(CUPY_LIMIT, "")
    if not (limit.cupy and text == limit.cupy) and not _is_within(text, limit):
        os.environ[CUPY_LIMIT] = limit.cupy or str(limit.smallest)


def _is_within(text: str, limit: Limit) -> bool:
    """Return whether CuPy would take this as a limit within ours."""
    if text.isascii() and text.isdigit():
        return 0 < int(text) <= limit.smallest
    if text.endswith("%") and limit.cupy.endswith("%"):
        return 0 < float(text[:-1]) <= float(limit.cupy[:-1])
    return False


def limit_onnxruntime(onnxruntime: Any, limit: Limit) -> None:
    """Add `gpu_mem_limit` to the CUDA provider of every session."""
    session = onnxruntime.InferenceSession
    original = session._create_inference_session

    def create(self: Any, providers: Any, provider_options: Any, *rest: Any, **named: Any) -> Any:
        arguments = (providers, provider_options)
        try:
            available = onnxruntime.get_available_providers()
            chosen = getattr(self, "_sess_options", None)
            if not (chosen is not None and chosen.has_providers()):
                arguments = cap_providers(providers, provider_options, available, limit)
        except Exception as error:
            warn("onnxruntime", f"{type(error).__name__}: {error}")
        return original(self, *arguments, *rest, **named)

    session._create_inference_session = create


def cap_providers(
    providers: Any, provider_options: Any, available: list[str], limit: Limit
) -> tuple[Any, Any]:
    """Return the two arguments of a session with a limit on the CUDA provider's arena."""
    if not providers:
        if CUDA_PROVIDER not in available:
            return providers, provider_options
        providers, provider_options = list(available), None  # the default
    pairs = [(item, {}) if isinstance(item, str) else tuple(item) for item in providers]
    if provider_options:
        names = [name for name, _ in pairs]
        same = len(names) == len(provider_options)  # else onnxruntime reports what is wrong
        pairs = list(zip(names, provider_options)) if same else []  # noqa: B905
    if CUDA_PROVIDER not in [name for name, _ in pairs]:
        return providers, provider_options
    capped = [
        (name, _cap_options(options, limit) if name == CUDA_PROVIDER else options)
        for name, options in pairs
    ]
    return capped, None


def _cap_options(options: dict[Any, Any], limit: Limit) -> dict[Any, Any]:
    size = limit.bytes_of(int(options.get("device_id", 0)))
    theirs = str(options.get("gpu_mem_limit", ""))
    if theirs.isdigit() and 0 < int(theirs) <= size:
        return options
    # A copy: the program may use its own dictionary again.
    return dict(options, gpu_mem_limit=str(size))


# --------------------------------------------------------------------------------- import hook

#: Module -> function to call once it has been imported.
HANDLERS: dict[str, Callable[[Any, Limit], None]] = {
    "torch": limit_torch,
    "tensorflow": limit_tensorflow,
    "cupy": limit_cupy,
    "onnxruntime": limit_onnxruntime,
    "jaxlib.xla_client": limit_jax,
}
#: Module -> its framework, where the names differ.
FRAMEWORK_OF = {"jaxlib.xla_client": "jax"}


class Finder:
    """Finder that finds nothing itself: it notices the frameworks and acts after their import."""

    def __init__(self, read: Callable[[], Limit]) -> None:
        self._read = read
        self._busy: set[tuple[int, str]] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the other finders' spec, with a step added after its import."""
        # Another finder may query all finders, and so us again, before it answers.
        here = (get_ident(), name)
        if name not in HANDLERS or here in self._busy:
            return None
        self._busy.add(here)
        try:
            spec = self._found_by_others(name, path, target)
            if spec is not None and hasattr(spec.loader, "exec_module"):
                _quietly(FRAMEWORK_OF.get(name, name), self._prepare, name, spec)
        finally:
            self._busy.discard(here)
        return spec

    def _found_by_others(self, name: str, path: Any, target: Any) -> Any:
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find and finder is not self else None
            if spec is not None:
                return spec
        return None

    def _prepare(self, name: str, spec: Any) -> None:
        limit = self._read()
        if FRAMEWORK_OF.get(name, name) not in limit.frameworks:
            return
        if name == "torch":
            _remove_torch_key(spec, limit)
        loader = spec.loader
        exec_module = loader.exec_module

        def execute(module: Any) -> None:
            # On the instance, and only until it is used: the loader's type is unchanged.
            del loader.exec_module
            exec_module(module)
            limit_now(name, module, limit)

        loader.exec_module = execute


def limit_now(name: str, module: Any, limit: Limit) -> None:
    """Cap a framework that has already been imported."""
    _quietly(FRAMEWORK_OF.get(name, name), HANDLERS[name], module, limit)


def install(read: Callable[[], Limit]) -> None:
    """Put the finder in front of the others; `read` gives the limit when it is first needed."""
    sys.meta_path.insert(0, Finder(read))


def uninstall() -> None:
    """Remove our finders."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, Finder)]


def read_environment() -> Limit:
    """Read the limit that the environment carries."""
    import json

    return Limit(json.loads(os.environ[VARIABLE]))


def install_from_environment() -> None:
    """Install the hook if there is a limit in the environment."""
    if os.environ.get(VARIABLE) and not any(type(e).__name__ == "Finder" for e in sys.meta_path):
        install(read_environment)
