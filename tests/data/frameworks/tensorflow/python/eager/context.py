from pretended_card import log

_context = None


class Context:
    def __init__(self):
        self._initialized = False

    def ensure_initialized(self):
        if not self._initialized:
            log("tensorflow", "devices-start")
            self._initialized = True


def context():
    global _context
    if _context is None:
        _context = Context()
    return _context
