/* A pretended libcublasLt.so.12: it keeps descriptors, refuses what the real one refuses of them, and
 * hands a product that is well described to whoever has the memory (the pretended CuPy).
 *
 * Numbers, types and rules are those of cublasLt.h, cublas_api.h and library_types.h (CUDA 12.9),
 * written down here once more. Whatever a descriptor is used for after its end, or is no descriptor,
 * ends the program: the real library would read foreign memory.
 */

#include "machine.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SUCCESS = 0,
    NOT_INITIALIZED = 1,
    INVALID_VALUE = 7,
    EXECUTION_FAILED = 13,
    INTERNAL_ERROR = 14,
    NOT_SUPPORTED = 15,
};

/* cublasLtMatmulDescAttributes_t, cublasLtMatmulPreferenceAttributes_t */
enum {
    POINTER_MODE = 2,
    TRANSA = 3,
    TRANSB = 4,
    TRANSC = 5,
    A_SCALE_POINTER = 17,
    B_SCALE_POINTER = 18,
    C_SCALE_POINTER = 19,
    D_SCALE_POINTER = 20,
    AMAX_D_POINTER = 21,
    FAST_ACCUM = 25,
};
enum { SEARCH_MODE = 0, MAX_WORKSPACE_BYTES = 1 };

typedef enum { NOTHING, HANDLE = 0x4c74, PRODUCT, LAYOUT, PREFERENCE } kind;

typedef struct {
    kind kind;
    int type;
    int scale_type;
    int operation[3];
    int pointer_mode;
    int8_t fast;
    void *scale[4];
    uint64_t rows;
    uint64_t columns;
    int64_t leading;
    uint64_t workspace_bytes;
} object;

/* cublasLtMatmulHeuristicResult_t */
typedef struct {
    uint64_t algorithm[8];
    size_t workspace_bytes;
    int state;
    float waves;
    int reserved[4];
} heuristic;

/* A product in full, as it is handed over; `asking` while only an algorithm is looked for. */
typedef struct {
    int64_t m, n, k, lda, ldb, ldd;
    uintptr_t a, b, c, d, a_scale, b_scale, stream;
    double alpha, beta;
    int32_t a_type, b_type, c_type, d_type, compute_type, scale_type;
    int32_t transa, transb, fast, asking;
} product;

typedef int (*answerer)(const product *);

static const uint64_t ALGORITHM = 0x66703861;
static const size_t WORKSPACE_BYTES = 4 << 20;

static answerer answer;
static int living;

static object *make(kind kind)
{
    object *made = calloc(1, sizeof *made);
    if (made == NULL)
        abort();
    made->kind = kind;
    living++;
    return made;
}

static object *used(void *given, kind wanted)
{
    object *found = given;
    if (found == NULL || found->kind != wanted) {
        fprintf(stderr, "cublasLt: not a living descriptor of kind %d\n", (int)wanted);
        abort();
    }
    return found;
}

static int end(void *given, kind kind)
{
    /* Not freed, so that a use after it is seen. */
    used(given, kind)->kind = NOTHING;
    living--;
    return SUCCESS;
}

/* ---- For the tests ---- */

API void cublasLtFakeConnect(answerer function)
{
    answer = function;
}

API int cublasLtFakeLiving(void)
{
    return living;
}

/* ---- The library ---- */

API const char *cublasLtGetStatusName(int status)
{
    switch (status) {
    case SUCCESS:
        return "CUBLAS_STATUS_SUCCESS";
    case NOT_INITIALIZED:
        return "CUBLAS_STATUS_NOT_INITIALIZED";
    case INVALID_VALUE:
        return "CUBLAS_STATUS_INVALID_VALUE";
    case EXECUTION_FAILED:
        return "CUBLAS_STATUS_EXECUTION_FAILED";
    case INTERNAL_ERROR:
        return "CUBLAS_STATUS_INTERNAL_ERROR";
    case NOT_SUPPORTED:
        return "CUBLAS_STATUS_NOT_SUPPORTED";
    default:
        return "CUBLAS_STATUS_UNKNOWN";
    }
}

API int cublasLtCreate(void **handle)
{
    if (handle == NULL)
        return INVALID_VALUE;
    if (answer == NULL)
        return NOT_INITIALIZED;
    *handle = make(HANDLE);
    return SUCCESS;
}

API int cublasLtDestroy(void *handle)
{
    return end(handle, HANDLE);
}

API int cublasLtMatmulDescCreate(void **descriptor, int compute_type, int scale_type)
{
    if (descriptor == NULL)
        return INVALID_VALUE;
    object *made = make(PRODUCT);
    made->type = compute_type;
    made->scale_type = scale_type;
    *descriptor = made;
    return SUCCESS;
}

API int cublasLtMatmulDescDestroy(void *descriptor)
{
    return end(descriptor, PRODUCT);
}

static int stored(void *place, size_t wanted, const void *value, size_t given)
{
    if (value == NULL || given != wanted)
        return INVALID_VALUE;
    memcpy(place, value, wanted);
    return SUCCESS;
}

API int cublasLtMatmulDescSetAttribute(void *descriptor, int attribute, const void *value,
                                       size_t size)
{
    object *product = used(descriptor, PRODUCT);
    switch (attribute) {
    case POINTER_MODE:
        return stored(&product->pointer_mode, sizeof(int32_t), value, size);
    case TRANSA:
    case TRANSB:
    case TRANSC:
        return stored(&product->operation[attribute - TRANSA], sizeof(int32_t), value, size);
    case A_SCALE_POINTER:
    case B_SCALE_POINTER:
    case C_SCALE_POINTER:
    case D_SCALE_POINTER:
        return stored(&product->scale[attribute - A_SCALE_POINTER], sizeof(void *), value, size);
    case FAST_ACCUM:
        return stored(&product->fast, sizeof(int8_t), value, size);
    default:
        return INVALID_VALUE;
    }
}

API int cublasLtMatrixLayoutCreate(void **layout, int type, uint64_t rows, uint64_t columns,
                                   int64_t leading)
{
    if (layout == NULL)
        return INVALID_VALUE;
    object *made = make(LAYOUT);
    made->type = type;
    made->rows = rows;
    made->columns = columns;
    made->leading = leading;
    *layout = made;
    return SUCCESS;
}

API int cublasLtMatrixLayoutDestroy(void *layout)
{
    return end(layout, LAYOUT);
}

API int cublasLtMatmulPreferenceCreate(void **preference)
{
    if (preference == NULL)
        return INVALID_VALUE;
    *preference = make(PREFERENCE);
    return SUCCESS;
}

API int cublasLtMatmulPreferenceDestroy(void *preference)
{
    return end(preference, PREFERENCE);
}

API int cublasLtMatmulPreferenceSetAttribute(void *preference, int attribute, const void *value,
                                             size_t size)
{
    object *found = used(preference, PREFERENCE);
    if (attribute != MAX_WORKSPACE_BYTES)
        return INVALID_VALUE;
    return stored(&found->workspace_bytes, sizeof(uint64_t), value, size);
}

/* Describes the product; false where its matrices do not fit each other. */
static bool described(product *found, const object *operation, const object *const layouts[4])
{
    const object *a = layouts[0], *b = layouts[1], *c = layouts[2], *d = layouts[3];
    bool ta = operation->operation[0] != 0, tb = operation->operation[1] != 0;
    uint64_t m = ta ? a->columns : a->rows, k = ta ? a->rows : a->columns;
    uint64_t n = tb ? b->rows : b->columns, other_k = tb ? b->columns : b->rows;
    if (k != other_k || d->rows != m || d->columns != n || c->rows != m || c->columns != n)
        return false;
    for (int at = 0; at < 4; at++)
        if (layouts[at]->leading < (int64_t)layouts[at]->rows)
            return false;
    *found = (product){
        .m = (int64_t)m,
        .n = (int64_t)n,
        .k = (int64_t)k,
        .lda = a->leading,
        .ldb = b->leading,
        .ldd = d->leading,
        .a_scale = (uintptr_t)operation->scale[0],
        .b_scale = (uintptr_t)operation->scale[1],
        .a_type = a->type,
        .b_type = b->type,
        .c_type = c->type,
        .d_type = d->type,
        .compute_type = operation->type,
        .scale_type = operation->scale_type,
        .transa = operation->operation[0],
        .transb = operation->operation[1],
        .fast = operation->fast,
    };
    /* Neither a transposed C nor a scaled one goes with these types. */
    return operation->operation[2] == 0 && !operation->scale[2] && !operation->scale[3];
}

API int cublasLtMatmulAlgoGetHeuristic(void *handle, void *operation, void *a, void *b, void *c,
                                       void *d, void *preference, int wanted, heuristic *results,
                                       int *count)
{
    used(handle, HANDLE);
    const object *limits = used(preference, PREFERENCE);
    const object *const layouts[4] = {used(a, LAYOUT), used(b, LAYOUT), used(c, LAYOUT),
                                      used(d, LAYOUT)};
    product asked;
    if (wanted < 1 || results == NULL || count == NULL)
        return INVALID_VALUE;
    *count = 0;
    if (!described(&asked, used(operation, PRODUCT), layouts))
        return INVALID_VALUE;
    asked.asking = 1;
    int status = answer(&asked);
    if (status != SUCCESS)
        return status;
    bool roomy = limits->workspace_bytes >= WORKSPACE_BYTES;
    *results = (heuristic){
        .algorithm = {ALGORITHM, (uint64_t)asked.m, (uint64_t)asked.n, (uint64_t)asked.k},
        .workspace_bytes = roomy ? WORKSPACE_BYTES : 0,
        .waves = 1.0F,
    };
    *count = 1;
    return SUCCESS;
}

API int cublasLtMatmul(void *handle, void *operation, const float *alpha, const void *a,
                       void *a_layout, const void *b, void *b_layout, const float *beta,
                       const void *c, void *c_layout, void *d, void *d_layout,
                       const uint64_t *algorithm, void *workspace, size_t workspace_bytes,
                       void *stream)
{
    used(handle, HANDLE);
    const object *const layouts[4] = {used(a_layout, LAYOUT), used(b_layout, LAYOUT),
                                      used(c_layout, LAYOUT), used(d_layout, LAYOUT)};
    product asked;
    if (!described(&asked, used(operation, PRODUCT), layouts))
        return INVALID_VALUE;
    if (alpha == NULL || beta == NULL || a == NULL || b == NULL || c == NULL || d == NULL)
        return INVALID_VALUE;
    if (algorithm == NULL || algorithm[0] != ALGORITHM || algorithm[1] != (uint64_t)asked.m ||
        algorithm[2] != (uint64_t)asked.n || algorithm[3] != (uint64_t)asked.k)
        return INVALID_VALUE;
    if (workspace_bytes < WORKSPACE_BYTES || (uintptr_t)workspace % 256 != 0)
        return INVALID_VALUE;
    asked.a = (uintptr_t)a;
    asked.b = (uintptr_t)b;
    asked.c = (uintptr_t)c;
    asked.d = (uintptr_t)d;
    asked.alpha = *alpha;
    asked.beta = *beta;
    asked.stream = (uintptr_t)stream;
    return answer(&asked);
}
