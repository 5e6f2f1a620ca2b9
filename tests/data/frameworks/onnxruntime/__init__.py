"""Stands in for ONNX Runtime: a session remembers which providers it was created with."""

import os

from pretended_card import log

__version__ = "1.31.1"


def get_available_providers():
    names = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    return names if os.environ.get("STUB_ORT_GPU", "1") == "1" else names[1:]


class InferenceSession:
    def __init__(self, path, sess_options=None, providers=None, provider_options=None):
        self._sess_options = sess_options
        self._create_inference_session(providers, provider_options)

    def _create_inference_session(self, providers, provider_options, disabled_optimizers=None):
        log("onnxruntime", "create", providers, provider_options)

    def set_providers(self, providers=None, provider_options=None):
        self._create_inference_session(providers, provider_options)
