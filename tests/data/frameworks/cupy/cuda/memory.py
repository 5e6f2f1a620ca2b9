class OutOfMemoryError(MemoryError):
    pass


def refuse(size, pool):
    return OutOfMemoryError(
        f"Out of memory allocating {size:,} bytes (allocated so far: {pool.used:,} bytes, "
        f"limit set to: {pool.limit:,} bytes)."
    )
