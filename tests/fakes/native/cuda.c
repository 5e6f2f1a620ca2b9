/* A pretended libcuda.so.1: which devices a program sees, and what the driver says about them.
 *
 * CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER are read here from scratch, at cuInit, so that
 * gpucheck's own rules can be compared with another reading of the same documents.
 *
 * Open in those documents, and chosen here:
 *   - an entry out of range ends the list before a duplicate after it is looked at ("0,9,0" is 0);
 *   - an unknown CUDA_DEVICE_ORDER counts as FASTEST_FIRST; equal cards keep the order of the bus;
 *   - numbers are decimal; an empty entry is invalid; a UUID is taken letter by letter, with no
 *     blanks around it; MIG UUIDs may be shortened as GPU UUIDs may;
 *   - an index or UUID of a card in MIG mode stands for its instances;
 *   - GPU- and MIG- entries may be mixed from R570 on, before it the other kind ends the list.
 */

#define _GNU_SOURCE
#include "machine.h"

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    UNKNOWN = 999,
};

enum { WHOLE = -1, MAX_INSTANCES = 16, MOST_MIG_DEVICES = 64, ONE_PROCESS_MANY_MIG = 570 };

typedef enum { INDEX, GPU_UUID, MIG_UUID } kind;

typedef struct {
    int gpu;
    int mig; /* WHOLE for the card itself */
} seat;

typedef struct {
    seat *seats;
    int count;
    int room;
} seats;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static seats visible;
static bool initialized;

/* ---- Who sits where ---- */

static int gpu_total(void)
{
    return (int)machine_number_or(0, "gpu.count");
}

static const char *seat_text(seat at, const char *key)
{
    return at.mig == WHOLE ? machine_text("gpu.%d.%s", at.gpu, key)
                           : machine_text("gpu.%d.mig.%d.%s", at.gpu, at.mig, key);
}

static long long seat_number(seat at, const char *key)
{
    const char *text = seat_text(at, key);
    return text ? strtoll(text, NULL, 10) : 0;
}

static bool is_split(int gpu)
{
    return machine_number_or(0, "gpu.%d.mig_mode", gpu) != 0;
}

static bool exists(seat at)
{
    return at.mig == WHOLE || (is_split(at.gpu) && seat_text(at, "uuid"));
}

static bool same(seat one, seat two)
{
    return one.gpu == two.gpu && one.mig == two.mig;
}

static bool same_gpu_instance(seat one, seat two)
{
    return one.gpu == two.gpu && one.mig != WHOLE && two.mig != WHOLE &&
           seat_number(one, "gpu_instance_id") == seat_number(two, "gpu_instance_id");
}

static bool add(seats *list, seat at)
{
    if (list->count == list->room) {
        int room = list->room ? 2 * list->room : 16;
        seat *larger = realloc(list->seats, (size_t)room * sizeof *larger);
        if (!larger)
            return false;
        list->seats = larger;
        list->room = room;
    }
    list->seats[list->count++] = at;
    return true;
}

static bool contains(const seats *list, seat at)
{
    for (int i = 0; i < list->count; i++)
        if (same(list->seats[i], at))
            return true;
    return false;
}

static void clear(seats *list)
{
    free(list->seats);
    *list = (seats){NULL, 0, 0};
}

/* ---- The order of the cards ---- */

static long long speed(int gpu)
{
    return machine_number_or(0, "gpu.%d.cuda_speed", gpu);
}

static void order_cards(int *cards, int count)
{
    const char *order = getenv("CUDA_DEVICE_ORDER");
    bool by_bus = order && strcmp(order, "PCI_BUS_ID") == 0;
    for (int i = 0; i < count; i++) {
        int at = i;
        for (; !by_bus && at > 0 && speed(cards[at - 1]) < speed(i); at--)
            cards[at] = cards[at - 1];
        cards[at] = i;
    }
}

/* ---- The entries of CUDA_VISIBLE_DEVICES ---- */

static kind kind_of(const char *entry)
{
    if (strncmp(entry, "GPU-", 4) == 0)
        return GPU_UUID;
    return strncmp(entry, "MIG-", 4) == 0 ? MIG_UUID : INDEX;
}

static bool by_index(const char *entry, const int *cards, int count, seat *out)
{
    char *end;
    errno = 0;
    long index = strtol(entry, &end, 10);
    if (end == entry || errno || index < 0 || index >= count)
        return false;
    *out = (seat){cards[index], WHOLE};
    return true;
}

/* "MIG-GPU-<uuid>/<GPU instance>/<compute instance>", the form of R450. */
static bool is_path_of(const char *entry, seat at)
{
    char path[128];
    const char *uuid = machine_text("gpu.%d.uuid", at.gpu);
    snprintf(path, sizeof path, "MIG-%s/%lld/%lld", uuid, seat_number(at, "gpu_instance_id"),
             seat_number(at, "compute_instance_id"));
    return strcmp(entry, path) == 0;
}

static bool by_uuid(const char *entry, kind wanted, seat *out)
{
    int found = 0;
    int first = wanted == GPU_UUID ? WHOLE : 0;
    int last = wanted == GPU_UUID ? WHOLE : MAX_INSTANCES - 1;
    for (int gpu = 0; gpu < gpu_total(); gpu++) {
        for (int mig = first; mig <= last; mig++) {
            seat at = {gpu, mig};
            const char *uuid = exists(at) ? seat_text(at, "uuid") : NULL;
            if (!uuid || (strncmp(uuid, entry, strlen(entry)) != 0 &&
                          (mig == WHOLE || !is_path_of(entry, at))))
                continue;
            found++;
            *out = at;
        }
    }
    return found == 1;
}

static bool kinds_agree(kind first, kind now)
{
    bool mixed_allowed = machine_number_or(0, "driver.version") >= ONE_PROCESS_MANY_MIG;
    return first == now || (mixed_allowed && first != INDEX && now != INDEX);
}

/* The entries before the first invalid one; none at all when one is named twice. */
static bool read_entries(char *text, const int *cards, int count, seats *named)
{
    kind first = kind_of(text);
    for (char *entry = text, *next; entry; entry = next) {
        next = strchr(entry, ',');
        if (next)
            *next++ = '\0';
        kind now = kind_of(entry);
        seat at;
        bool valid = kinds_agree(first, now) && (now == INDEX ? by_index(entry, cards, count, &at)
                                                              : by_uuid(entry, now, &at));
        if (!valid)
            return true;
        if (contains(named, at)) {
            clear(named);
            return true;
        }
        if (!add(named, at))
            return false;
    }
    return true;
}

/* Drop the cards that this driver does not enumerate. */
static int leave_out(int *cards, int count)
{
    int kept = 0;
    for (int i = 0; i < count; i++)
        if (!machine_number_or(0, "gpu.%d.cuda_left_out", cards[i]))
            cards[kept++] = cards[i];
    return kept;
}

static bool name_all(const int *cards, int count, seats *named)
{
    for (int i = 0; i < count; i++)
        if (!add(named, (seat){cards[i], WHOLE}))
            return false;
    return true;
}

/* ---- What MIG makes of them ---- */

static bool add_device(seats *devices, seat at)
{
    int instances = 0;
    for (int i = 0; i < devices->count; i++) {
        if (same_gpu_instance(devices->seats[i], at))
            return true; /* one compute instance of each GPU instance */
        instances += devices->seats[i].mig != WHOLE;
    }
    if (at.mig != WHOLE && instances == MOST_MIG_DEVICES)
        return true;
    return contains(devices, at) || add(devices, at);
}

static bool expand(const seats *named, seats *devices)
{
    for (int i = 0; i < named->count; i++) {
        seat at = named->seats[i];
        if (at.mig != WHOLE || !is_split(at.gpu)) {
            if (!add_device(devices, at))
                return false;
            continue;
        }
        for (int mig = 0; mig < MAX_INSTANCES; mig++) {
            seat instance = {at.gpu, mig};
            if (exists(instance) && !add_device(devices, instance))
                return false;
        }
    }
    return true;
}

/* Before R570 a process gets one MIG device, and then nothing else. */
static void keep_one_instance(seats *devices)
{
    for (int i = 0; i < devices->count; i++) {
        if (devices->seats[i].mig == WHOLE)
            continue;
        devices->seats[0] = devices->seats[i];
        devices->count = 1;
        return;
    }
}

static bool enumerate(void)
{
    int count = gpu_total();
    const char *wanted = getenv("CUDA_VISIBLE_DEVICES");
    int *cards = calloc((size_t)count + 1, sizeof *cards);
    char *text = wanted ? strdup(wanted) : NULL;
    seats named = {NULL, 0, 0};
    bool good = cards && (!wanted || text);
    if (good) {
        order_cards(cards, count);
        count = leave_out(cards, count);
        good = text ? read_entries(text, cards, count, &named) : name_all(cards, count, &named);
    }
    if (good)
        good = expand(&named, &visible);
    if (good && machine_number_or(0, "driver.version") < ONE_PROCESS_MANY_MIG)
        keep_one_instance(&visible);
    clear(&named);
    free(text);
    free(cards);
    return good;
}

/* ---- Calls ---- */

API int cuInit(unsigned flags)
{
    machine_log(__func__, -1);
    if (!machine_load())
        return UNKNOWN;
    if (flags)
        return INVALID_VALUE;
    int code = machine_fault(__func__, -1);
    if (code)
        return code;
    for (int gpu = 0; gpu < gpu_total(); gpu++)
        machine_wake(gpu);
    pthread_mutex_lock(&lock);
    bool good = initialized || enumerate();
    initialized = initialized || (good && visible.count > 0);
    pthread_mutex_unlock(&lock);
    if (!good)
        return OUT_OF_MEMORY;
    return initialized ? SUCCESS : NO_DEVICE;
}

static int enter(const char *function, int device)
{
    bool known = initialized && device >= 0 && device < visible.count;
    int gpu = known ? visible.seats[device].gpu : -1;
    machine_log(function, gpu);
    if (!initialized)
        return NOT_INITIALIZED;
    return known ? machine_fault(function, gpu) : INVALID_DEVICE;
}

#define ENTER(device)                                                                              \
    do {                                                                                           \
        int code_ = enter(__func__, device);                                                       \
        if (code_)                                                                                 \
            return code_;                                                                          \
    } while (0)

#define NEED(condition)                                                                            \
    do {                                                                                           \
        if (!(condition))                                                                          \
            return INVALID_VALUE;                                                                  \
    } while (0)

API int cuDriverGetVersion(int *out)
{
    machine_log(__func__, -1);
    int code = machine_fault(__func__, -1);
    NEED(out);
    if (code == SUCCESS)
        *out = (int)machine_number_or(0, "driver.cuda_version");
    return code;
}

API int cuDeviceGetCount(int *out)
{
    machine_log(__func__, -1);
    NEED(out);
    if (!initialized)
        return NOT_INITIALIZED;
    int code = machine_fault(__func__, -1);
    if (code == SUCCESS)
        *out = visible.count;
    return code;
}

API int cuDeviceGet(int *out, int ordinal)
{
    ENTER(ordinal);
    NEED(out);
    *out = ordinal;
    return SUCCESS;
}

API int cuDeviceGetName(char *out, int size, int device)
{
    ENTER(device);
    NEED(out && size > 0);
    const char *name = seat_text(visible.seats[device], "name");
    snprintf(out, (size_t)size, "%s", name ? name : "");
    return SUCCESS;
}

static int raw_uuid(seat at, unsigned char out[16])
{
    const char *text = seat_text(at, "uuid");
    int digits = 0;
    NEED(out);
    memset(out, 0, 16);
    for (text = text ? text + strlen("GPU-") : ""; *text && digits < 32; text++) {
        char digit[2] = {*text, '\0'};
        if (*text == '-')
            continue;
        unsigned value = (unsigned)strtoul(digit, NULL, 16);
        out[digits / 2] |= (unsigned char)(digits % 2 ? value : value << 4);
        digits++;
    }
    return SUCCESS;
}

/* The first form knows no MIG: it names the card. */
API int cuDeviceGetUuid(unsigned char out[16], int device)
{
    ENTER(device);
    return raw_uuid((seat){visible.seats[device].gpu, WHOLE}, out);
}

API int cuDeviceGetUuid_v2(unsigned char out[16], int device)
{
    ENTER(device);
    return raw_uuid(visible.seats[device], out);
}

static bool pci_address(int gpu, unsigned *domain, unsigned *bus, unsigned *slot)
{
    const char *text = machine_text("gpu.%d.pci_bus_id", gpu);
    return text && sscanf(text, "%x:%x:%x", domain, bus, slot) == 3;
}

API int cuDeviceGetPCIBusId(char *out, int size, int device)
{
    unsigned domain, bus, slot;
    ENTER(device);
    NEED(out && size > 12);
    if (!pci_address(visible.seats[device].gpu, &domain, &bus, &slot))
        return UNKNOWN;
    snprintf(out, (size_t)size, "%04X:%02X:%02X.0", domain, bus, slot);
    return SUCCESS;
}

static size_t total_memory(seat at)
{
    if (at.mig == WHOLE)
        return (size_t)seat_number(at, "cuda_memory_total_bytes");
    return (size_t)(seat_number(at, "memory_total_bytes") -
                    seat_number(at, "memory_reserved_bytes"));
}

API int cuDeviceTotalMem(unsigned *out, int device)
{
    ENTER(device);
    NEED(out);
    size_t total = total_memory(visible.seats[device]);
    *out = total > UINT32_MAX ? UINT32_MAX : (unsigned)total;
    return SUCCESS;
}

API int cuDeviceTotalMem_v2(size_t *out, int device)
{
    ENTER(device);
    NEED(out);
    *out = total_memory(visible.seats[device]);
    return SUCCESS;
}

static int capability(seat at, int *major, int *minor)
{
    const char *text = machine_text("gpu.%d.compute_capability", at.gpu);
    return text && sscanf(text, "%d.%d", major, minor) == 2 ? SUCCESS : UNKNOWN;
}

API int cuDeviceComputeCapability(int *major, int *minor, int device)
{
    ENTER(device);
    NEED(major && minor);
    return capability(visible.seats[device], major, minor);
}

static int card_number(seat at, const char *key)
{
    return (int)seat_number((seat){at.gpu, WHOLE}, key);
}

API int cuDeviceGetAttribute(int *out, int attribute, int device)
{
    unsigned domain, bus, slot;
    int major, minor;
    ENTER(device);
    seat at = visible.seats[device];
    NEED(out);
    if (!pci_address(at.gpu, &domain, &bus, &slot) || capability(at, &major, &minor))
        return UNKNOWN;
    switch (attribute) {
    case 1: /* most threads of a block */
        *out = 1024;
        return SUCCESS;
    case 10: /* warp */
        *out = 32;
        return SUCCESS;
    case 13: /* clock in kHz */
        *out = 1000 * card_number(at, "clock_sm_max_mhz");
        return SUCCESS;
    case 16: /* multiprocessors */
        *out = (int)seat_number(at, "sm_count");
        return SUCCESS;
    case 18: { /* integrated, as the pretended CuPy's script says too */
        const char *script = getenv("FAKE_GPU_SCRIPT");
        *out = card_number(at, "integrated") > 0 || (script && strstr(script, "unified"));
        return SUCCESS;
    }
    case 20: /* compute mode */
        *out = card_number(at, "compute_mode");
        return SUCCESS;
    case 32: /* ECC */
        *out = card_number(at, "ecc_mode");
        return SUCCESS;
    case 33:
        *out = (int)bus;
        return SUCCESS;
    case 34:
        *out = (int)slot;
        return SUCCESS;
    case 36: /* memory clock in kHz */
        *out = 1000 * card_number(at, "clock_memory_max_mhz");
        return SUCCESS;
    case 37:
        *out = card_number(at, "memory_bus_width_bits");
        return SUCCESS;
    case 38:
        *out = card_number(at, "l2_bytes");
        return SUCCESS;
    case 50:
        *out = (int)domain;
        return SUCCESS;
    case 75:
        *out = major;
        return SUCCESS;
    case 76:
        *out = minor;
        return SUCCESS;
    default:
        return INVALID_VALUE;
    }
}

static const struct {
    int code;
    const char *name, *text;
} ERRORS[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {34, "CUDA_ERROR_STUB_LIBRARY", "CUDA driver is a stub library"},
    {46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {214, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
    {303, "CUDA_ERROR_SHARED_OBJECT_INIT_FAILED", "shared object initialization failed"},
    {304, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported on this OS"},
    {800, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {802, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
     "system has unsupported display driver / cuda driver combination"},
    {804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
     "forward compatibility was attempted on non supported HW"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static int find_error(int code)
{
    for (int i = 0; i < (int)(sizeof ERRORS / sizeof *ERRORS); i++)
        if (ERRORS[i].code == code)
            return i;
    return -1;
}

API int cuGetErrorName(int code, const char **out)
{
    machine_log(__func__, -1);
    NEED(out);
    int found = find_error(code);
    *out = found < 0 ? NULL : ERRORS[found].name;
    return found < 0 ? INVALID_VALUE : SUCCESS;
}

API int cuGetErrorString(int code, const char **out)
{
    machine_log(__func__, -1);
    NEED(out);
    int found = find_error(code);
    *out = found < 0 ? NULL : ERRORS[found].text;
    return found < 0 ? INVALID_VALUE : SUCCESS;
}

/* ---- Running a kernel: memory is the host's, and the only kernel that runs is x -> 3x + 7 ---- */

enum { MODULE = 0x30, FUNCTION = 0x31 };

enum { MOST_DEVICES = 256 };

static _Thread_local int current = -1;
static int retained[MOST_DEVICES];

/* A context is its device's number plus one, so that none is NULL. */
API int cuDevicePrimaryCtxRetain(void **out, int device)
{
    ENTER(device);
    NEED(out && device < MOST_DEVICES);
    *out = (void *)(intptr_t)(device + 1);
    retained[device]++;
    return SUCCESS;
}

API int cuDevicePrimaryCtxRelease_v2(int device)
{
    ENTER(device);
    NEED(device < MOST_DEVICES);
    retained[device] -= retained[device] > 0;
    return SUCCESS;
}

API int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active)
{
    ENTER(device);
    NEED(flags && active && device < MOST_DEVICES);
    *flags = 0;
    *active = retained[device] > 0;
    return SUCCESS;
}

API int cuCtxSetCurrent(void *context)
{
    int device = (int)(intptr_t)context - 1;
    ENTER(device);
    current = device;
    return SUCCESS;
}

API int cuCtxSynchronize(void)
{
    ENTER(current);
    return SUCCESS;
}

enum { LARGEST_REAL = 1 << 26 };
/* By device, never given back: a proof ends its process. */
static unsigned long long taken[MOST_DEVICES];

API int cuMemAlloc_v2(uint64_t *out, size_t size)
{
    ENTER(current);
    NEED(out && size);
    struct machine_limit limit;
    if (machine_own_limit(visible.seats[current].gpu, &limit) && taken[current] + size > limit.hard)
        return OUT_OF_MEMORY;
    /* Nobody writes into what is larger than a kernel test: there need not be so much. */
    *out = (uint64_t)(uintptr_t)malloc(size > LARGEST_REAL ? LARGEST_REAL : size);
    taken[current] += *out ? size : 0;
    return *out ? SUCCESS : OUT_OF_MEMORY;
}

API int cuMemFree_v2(uint64_t memory)
{
    ENTER(current);
    free((void *)(uintptr_t)memory);
    return SUCCESS;
}

API int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t size)
{
    ENTER(current);
    NEED(to && from);
    memcpy((void *)(uintptr_t)to, from, size);
    return SUCCESS;
}

API int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size)
{
    ENTER(current);
    NEED(to && from);
    memcpy(to, (const void *)(uintptr_t)from, size);
    return SUCCESS;
}

API int cuModuleLoadData(void **out, const void *image)
{
    ENTER(current);
    NEED(out && image && strstr(image, ".entry probe"));
    /* The image is PTX, which the driver compiles. */
    const char *forbidden = getenv("CUDA_DISABLE_PTX_JIT");
    if (forbidden && strcmp(forbidden, "1") == 0)
        return 223; /* CUDA_ERROR_JIT_COMPILATION_DISABLED */
    *out = (void *)(intptr_t)MODULE;
    return SUCCESS;
}

API int cuModuleGetFunction(void **out, void *module, const char *name)
{
    ENTER(current);
    NEED(out && module == (void *)(intptr_t)MODULE && name && strcmp(name, "probe") == 0);
    *out = (void *)(intptr_t)FUNCTION;
    return SUCCESS;
}

API int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                       unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                       void *stream, void **arguments, void **extra)
{
    (void)stream;
    (void)extra;
    ENTER(current);
    NEED(function == (void *)(intptr_t)FUNCTION && arguments && shared == 0);
    NEED(grid_y == 1 && grid_z == 1 && block_y == 1 && block_z == 1);
    uint32_t *values = (uint32_t *)(uintptr_t) * (uint64_t *)arguments[0];
    uint32_t count = *(uint32_t *)arguments[1];
    NEED(values && (uint64_t)grid_x * block_x >= count);
    uint32_t wrong = (uint32_t)machine_number_or(0, "driver.wrong_results");
    for (uint32_t i = 0; i < count; i++)
        values[i] = 3 * values[i] + 7 + wrong;
    return SUCCESS;
}
