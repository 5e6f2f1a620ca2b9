from pretended_card import FREE, TOTAL


def memGetInfo():
    from cupy import cuda

    return (FREE - cuda.pool.pool().used, TOTAL)
