/* A pretended libnvidia-ml.so.1: NVML's ABI, answered from the machine's values. */

#define _GNU_SOURCE
#include "machine.h"

#include <ctype.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    CORRUPTED_INFOROM = 14,
    VERSION_MISMATCH = 25,
    UNKNOWN = 999,
};

enum { MAX_LINKS = 36, MAX_MIG = 16, NO_INSTANCE = -1 };

typedef unsigned long long ull;

typedef struct device {
    int gpu;
    int mig; /* position on its GPU, NO_INSTANCE for the GPU itself */
} *nvmlDevice_t;

static struct device *devices; /* for each GPU: itself, then its MIG devices */
static int gpu_count;
static int init_count;

/* ---- Structures, as pynvml declares them ---- */

typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} pci_info;

typedef struct {
    char bus_id[16];
    unsigned domain, bus, device, device_id, subsystem_id, reserved[4];
} pci_info_v2;

typedef struct {
    unsigned version, domain, bus, device, device_id, subsystem_id, base_class, sub_class;
    char bus_id[32];
} pci_info_ext;

typedef struct {
    ull total, free, used;
} memory_info;

typedef struct {
    unsigned version;
    ull total, reserved, free, used;
} memory_info_v2;

typedef struct {
    unsigned pid;
    ull used;
} process_info_v1;

typedef struct {
    unsigned pid;
    ull used;
    unsigned gpu_instance, compute_instance;
} process_info;

typedef struct {
    unsigned pid;
    ull used;
    unsigned gpu_instance, compute_instance;
    ull protected_used;
} process_detail;

typedef struct {
    unsigned version, mode, count;
    process_detail *entries;
} process_detail_list;

typedef struct {
    unsigned pid;
    ull time_stamp;
    unsigned sm, memory, encoder, decoder;
} process_sample;

typedef struct {
    ull time_stamp;
    unsigned pid, sm, memory, encoder, decoder, jpeg, ofa;
} process_utilization;

typedef struct {
    unsigned version, count;
    ull last_seen;
    process_utilization *entries;
} processes_utilization;

typedef union {
    double d;
    unsigned ui;
    unsigned long ul;
    ull u;
    long long sll;
    int si;
} value;

typedef struct {
    uint32_t id, scope;
    int64_t time_stamp, latency_us;
    unsigned type, code;
    value value;
} field_value;

typedef struct {
    unsigned multiprocessors, copy_engines, decoders, encoders, jpeg, ofa, gpu_slices,
        compute_slices;
    ull memory_mib;
} device_attributes;

typedef struct {
    unsigned version;
    uint8_t cluster[16];
    unsigned status;
    uint32_t clique;
    unsigned state;
    uint32_t health_mask;
    uint8_t health_summary; /* from version 3 on */
} fabric_info;

typedef struct {
    uint8_t cluster[16];
    unsigned status;
    uint32_t clique;
    unsigned state;
} fabric_info_v1;

typedef struct {
    unsigned version;
    ull aggregate_parity, aggregate_sec_ded, aggregate_corrected, volatile_parity,
        volatile_sec_ded, volatile_corrected, bucket_l2, bucket_sm, bucket_pcie, bucket_mcu,
        bucket_other;
    unsigned threshold_exceeded;
} sram_status;

/* ---- From a call to its device ---- */

static const char *const ERROR_TEXTS[] = {
    "Success",
    "Uninitialized",
    "Invalid Argument",
    "Not Supported",
    "Insufficient Permissions",
    "Already Initialized",
    "Not Found",
    "Insufficient Size",
    "Insufficient External Power",
    "Driver Not Loaded",
    "Timeout",
    "Interrupt Request Issue",
    "NVML Shared Library Not Found",
    "Function Not Found",
    "Corrupted infoROM",
    "GPU is lost",
    "GPU requires restart",
    "The operating system has blocked the request.",
    "RM has detected an NVML/RM version mismatch.",
    "Device in use",
    "Insufficient Memory",
    "No data",
    "The requested vgpu operation is not available on target device, becasue ECC is enabled.",
    "Insufficient Resources",
    "Frequency Not Supported",
    "Argument Version Mismatch",
    "Deprecated",
    "Not Ready",
    "GPU Not Found",
    "Invalid State",
    "Reset Type Not Supported",
};

API const char *nvmlErrorString(int code)
{
    machine_log(__func__, -1);
    if (code >= 0 && code < (int)(sizeof ERROR_TEXTS / sizeof *ERROR_TEXTS))
        return ERROR_TEXTS[code];
    return "Unknown Error";
}

static nvmlDevice_t device_at(int gpu, int mig)
{
    return &devices[gpu * (MAX_MIG + 1) + mig + 1];
}

static bool is_device(nvmlDevice_t device)
{
    uintptr_t first = (uintptr_t)devices, at = (uintptr_t)device;
    size_t bytes = sizeof *devices * (size_t)gpu_count * (MAX_MIG + 1);
    return devices && at >= first && at < first + bytes && (at - first) % sizeof *devices == 0;
}

/* Every call passes here or through enter(): log, then initialised?, then faults. */
static int enter_system(const char *function)
{
    machine_log(function, -1);
    if (init_count == 0)
        return UNINITIALIZED;
    return machine_fault(function, -1);
}

static int enter(const char *function, nvmlDevice_t device)
{
    bool known = init_count > 0 && is_device(device);
    machine_log(function, known ? device->gpu : -1);
    if (init_count == 0)
        return UNINITIALIZED;
    return known ? machine_fault(function, device->gpu) : INVALID_ARGUMENT;
}

#define ENTER_SYSTEM()                                                                             \
    do {                                                                                           \
        int code_ = enter_system(__func__);                                                        \
        if (code_)                                                                                 \
            return code_;                                                                          \
    } while (0)

#define ENTER(device)                                                                              \
    do {                                                                                           \
        int code_ = enter(__func__, device);                                                       \
        if (code_)                                                                                 \
            return code_;                                                                          \
    } while (0)

#define NEED(condition)                                                                            \
    do {                                                                                           \
        if (!(condition))                                                                          \
            return INVALID_ARGUMENT;                                                               \
    } while (0)

/* ---- From a device to a value ---- */

static const char *reading(nvmlDevice_t device, const char *key)
{
    if (device->mig == NO_INSTANCE)
        return machine_text("gpu.%d.%s", device->gpu, key);
    return machine_text("gpu.%d.mig.%d.%s", device->gpu, device->mig, key);
}

static int read_number(nvmlDevice_t device, const char *key, long long *out)
{
    const char *text = reading(device, key);
    if (!text)
        return NOT_SUPPORTED;
    *out = strtoll(text, NULL, 10);
    return SUCCESS;
}

static int read_uint(nvmlDevice_t device, const char *key, unsigned *out)
{
    long long number = 0;
    NEED(out);
    int code = read_number(device, key, &number);
    if (code == SUCCESS)
        *out = (unsigned)number;
    return code;
}

static int read_ull(nvmlDevice_t device, const char *key, ull *out)
{
    long long number = 0;
    NEED(out);
    int code = read_number(device, key, &number);
    if (code == SUCCESS)
        *out = (ull)number;
    return code;
}

static ull number_of(nvmlDevice_t device, const char *key)
{
    ull number = 0;
    read_ull(device, key, &number);
    return number;
}

static int copy_text(const char *text, char *out, unsigned size)
{
    NEED(out);
    if (!text)
        return NOT_SUPPORTED;
    if (strlen(text) >= size)
        return INSUFFICIENT_SIZE;
    strcpy(out, text);
    return SUCCESS;
}

#define READ_UINT(function, key)                                                                   \
    API int function(nvmlDevice_t device, unsigned *out)                                           \
    {                                                                                              \
        ENTER(device);                                                                             \
        return read_uint(device, key, out);                                                        \
    }

#define READ_ULL(function, key)                                                                    \
    API int function(nvmlDevice_t device, ull *out)                                                \
    {                                                                                              \
        ENTER(device);                                                                             \
        return read_ull(device, key, out);                                                         \
    }

#define READ_TEXT(function, key)                                                                   \
    API int function(nvmlDevice_t device, char *out, unsigned size)                                \
    {                                                                                              \
        ENTER(device);                                                                             \
        return copy_text(reading(device, key), out, size);                                         \
    }

#define READ_PAIR(function, first, second)                                                         \
    API int function(nvmlDevice_t device, unsigned *one, unsigned *two)                            \
    {                                                                                              \
        ENTER(device);                                                                             \
        NEED(one && two);                                                                          \
        int code = read_uint(device, first, one);                                                  \
        return code ? code : read_uint(device, second, two);                                       \
    }

/* A value chosen by a number that the caller gives. */
#define READ_CHOICE(function, ...)                                                                 \
    API int function(nvmlDevice_t device, unsigned which, unsigned *out)                           \
    {                                                                                              \
        static const char *const KEYS[] = {__VA_ARGS__};                                           \
        ENTER(device);                                                                             \
        NEED(which < sizeof KEYS / sizeof *KEYS);                                                  \
        return KEYS[which] ? read_uint(device, KEYS[which], out) : NOT_SUPPORTED;                  \
    }

/* ---- Start and end ---- */

static int make_devices(void)
{
    if (devices)
        return SUCCESS;
    gpu_count = (int)machine_number_or(0, "gpu.count");
    devices = calloc((size_t)(gpu_count ? gpu_count : 1) * (MAX_MIG + 1), sizeof *devices);
    if (!devices)
        return UNKNOWN;
    for (int gpu = 0; gpu < gpu_count; gpu++)
        for (int mig = NO_INSTANCE; mig < MAX_MIG; mig++)
            *device_at(gpu, mig) = (struct device){gpu, mig};
    return SUCCESS;
}

static int initialize(const char *function)
{
    machine_log(function, -1);
    if (!machine_load())
        return UNKNOWN;
    int code = machine_fault(function, -1);
    if (code == SUCCESS)
        code = make_devices();
    if (code == SUCCESS)
        init_count++;
    return code;
}

API int nvmlInit(void)
{
    return initialize(__func__);
}

API int nvmlInit_v2(void)
{
    return initialize(__func__);
}

API int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    return initialize(__func__);
}

API int nvmlShutdown(void)
{
    ENTER_SYSTEM();
    init_count--;
    return SUCCESS;
}

/* ---- System ---- */

API int nvmlSystemGetDriverVersion(char *out, unsigned size)
{
    ENTER_SYSTEM();
    return copy_text(machine_text("driver.version"), out, size);
}

API int nvmlSystemGetNVMLVersion(char *out, unsigned size)
{
    ENTER_SYSTEM();
    return copy_text(machine_text("driver.nvml_version"), out, size);
}

static int cuda_version(int *out)
{
    NEED(out);
    *out = (int)machine_number_or(0, "driver.cuda_version");
    return SUCCESS;
}

API int nvmlSystemGetCudaDriverVersion(int *out)
{
    ENTER_SYSTEM();
    return cuda_version(out);
}

API int nvmlSystemGetCudaDriverVersion_v2(int *out)
{
    ENTER_SYSTEM();
    return cuda_version(out);
}

API int nvmlSystemGetProcessName(unsigned pid, char *out, unsigned size)
{
    ENTER_SYSTEM();
    NEED(out && size);
    const char *name = machine_text("pid.%u.name", pid);
    if (!name)
        return NOT_FOUND;
    /* NVML cuts a long name off rather than refusing. */
    snprintf(out, size, "%s", name);
    return SUCCESS;
}

API int nvmlSystemGetDriverBranch(unsigned *info, unsigned size)
{
    ENTER_SYSTEM();
    NEED(info && size <= 80);
    if (info[0] != 0x1000054)
        return VERSION_MISMATCH;
    const char *version = machine_text("driver.version");
    snprintf((char *)(info + 1), size, "r%d_00", version ? atoi(version) : 0);
    return SUCCESS;
}

API int nvmlSystemGetHicVersion(unsigned *count, void *entries)
{
    (void)entries;
    ENTER_SYSTEM();
    NEED(count);
    *count = 0;
    return SUCCESS;
}

API int nvmlUnitGetCount(unsigned *count)
{
    ENTER_SYSTEM();
    NEED(count);
    *count = 0;
    return SUCCESS;
}

API int nvmlGetExcludedDeviceCount(unsigned *count)
{
    ENTER_SYSTEM();
    NEED(count);
    *count = (unsigned)machine_number_or(0, "driver.excluded_count");
    return SUCCESS;
}

/* ---- Handles ---- */

static int count_devices(unsigned *count)
{
    NEED(count);
    *count = (unsigned)gpu_count;
    return SUCCESS;
}

API int nvmlDeviceGetCount(unsigned *count)
{
    ENTER_SYSTEM();
    return count_devices(count);
}

API int nvmlDeviceGetCount_v2(unsigned *count)
{
    ENTER_SYSTEM();
    return count_devices(count);
}

/* A fault may be set on giving out the handle of one GPU. */
static int give_handle(const char *function, int gpu, int mig, nvmlDevice_t *out)
{
    machine_log(function, gpu);
    if (init_count == 0)
        return UNINITIALIZED;
    int code = machine_fault(function, gpu);
    if (code)
        return code;
    NEED(out);
    machine_wake(gpu);
    *out = device_at(gpu, mig);
    return SUCCESS;
}

static int refuse_handle(const char *function, int code)
{
    machine_log(function, -1);
    return init_count == 0 ? UNINITIALIZED : code;
}

static int handle_by_index(const char *function, unsigned index, nvmlDevice_t *out)
{
    if (index >= (unsigned)gpu_count)
        return refuse_handle(function, INVALID_ARGUMENT);
    return give_handle(function, (int)index, NO_INSTANCE, out);
}

API int nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *out)
{
    return handle_by_index(__func__, index, out);
}

API int nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *out)
{
    return handle_by_index(__func__, index, out);
}

static bool is_mig_path(const char *text, int gpu, int mig)
{
    char path[128];
    const char *uuid = machine_text("gpu.%d.uuid", gpu);
    snprintf(path, sizeof path, "MIG-%s/%lld/%lld", uuid ? uuid : "",
             machine_number_or(-1, "gpu.%d.mig.%d.gpu_instance_id", gpu, mig),
             machine_number_or(-1, "gpu.%d.mig.%d.compute_instance_id", gpu, mig));
    return strcmp(path, text) == 0;
}

static int handle_by_uuid(const char *function, const char *uuid, nvmlDevice_t *out)
{
    if (!uuid)
        return refuse_handle(function, INVALID_ARGUMENT);
    for (int gpu = 0; gpu < gpu_count; gpu++) {
        for (int mig = NO_INSTANCE; mig < MAX_MIG; mig++) {
            const char *own = reading(device_at(gpu, mig), "uuid");
            if (own && (strcmp(own, uuid) == 0 ||
                        (mig != NO_INSTANCE && is_mig_path(uuid, gpu, mig))))
                return give_handle(function, gpu, mig, out);
        }
    }
    return refuse_handle(function, NOT_FOUND);
}

API int nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *out)
{
    return handle_by_uuid(__func__, uuid, out);
}

typedef struct {
    unsigned version, type;
    union {
        char text[41];
        uint8_t bytes[16];
    } value;
} uuid_v;

API int nvmlDeviceGetHandleByUUIDV(const uuid_v *uuid, nvmlDevice_t *out)
{
    char text[48] = "GPU-";
    if (!uuid || (uuid->type != 1 && uuid->type != 2))
        return refuse_handle(__func__, INVALID_ARGUMENT);
    if (uuid->version != 0x1000034)
        return refuse_handle(__func__, VERSION_MISMATCH);
    if (uuid->type == 1)
        snprintf(text, sizeof text, "%.41s", uuid->value.text);
    for (int i = 0; uuid->type == 2 && i < 16; i++) {
        const char *dash = i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "";
        sprintf(text + strlen(text), "%s%02x", dash, uuid->value.bytes[i]);
    }
    return handle_by_uuid(__func__, text, out);
}

API int nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *out)
{
    for (int gpu = 0; serial && gpu < gpu_count; gpu++) {
        const char *own = machine_text("gpu.%d.serial", gpu);
        if (own && strcmp(own, serial) == 0)
            return give_handle(__func__, gpu, NO_INSTANCE, out);
    }
    return refuse_handle(__func__, serial ? NOT_FOUND : INVALID_ARGUMENT);
}

typedef struct {
    unsigned domain, bus, device, function;
} pci_address;

static bool parse_pci(const char *text, pci_address *out)
{
    *out = (pci_address){0, 0, 0, 0};
    if (text && sscanf(text, "%x:%x:%x.%x", &out->domain, &out->bus, &out->device,
                       &out->function) >= 3)
        return true;
    *out = (pci_address){0, 0, 0, 0};
    return text && sscanf(text, "%x:%x.%x", &out->bus, &out->device, &out->function) >= 2;
}

static int handle_by_pci(const char *function, const char *text, nvmlDevice_t *out)
{
    pci_address wanted, own;
    if (!parse_pci(text, &wanted))
        return refuse_handle(function, INVALID_ARGUMENT);
    for (int gpu = 0; gpu < gpu_count; gpu++)
        if (parse_pci(machine_text("gpu.%d.pci_bus_id", gpu), &own) &&
            memcmp(&wanted, &own, sizeof own) == 0)
            return give_handle(function, gpu, NO_INSTANCE, out);
    return refuse_handle(function, NOT_FOUND);
}

API int nvmlDeviceGetHandleByPciBusId(const char *text, nvmlDevice_t *out)
{
    return handle_by_pci(__func__, text, out);
}

API int nvmlDeviceGetHandleByPciBusId_v2(const char *text, nvmlDevice_t *out)
{
    return handle_by_pci(__func__, text, out);
}

/* ---- Identity ---- */

READ_TEXT(nvmlDeviceGetName, "name")
READ_TEXT(nvmlDeviceGetUUID, "uuid")
READ_TEXT(nvmlDeviceGetSerial, "serial")
READ_TEXT(nvmlDeviceGetBoardPartNumber, "board_part_number")
READ_TEXT(nvmlDeviceGetVbiosVersion, "vbios_version")
READ_TEXT(nvmlDeviceGetInforomImageVersion, "inforom_image_version")
READ_UINT(nvmlDeviceGetMinorNumber, "minor_number")
READ_UINT(nvmlDeviceGetBrand, "brand")
READ_UINT(nvmlDeviceGetArchitecture, "architecture")
READ_UINT(nvmlDeviceGetNumGpuCores, "core_count")
READ_UINT(nvmlDeviceGetMemoryBusWidth, "memory_bus_width_bits")
READ_UINT(nvmlDeviceGetBoardId, "board_id")

API int nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *out)
{
    ENTER(device);
    NEED(out);
    *out = (unsigned)(device->mig == NO_INSTANCE ? device->gpu : device->mig);
    return SUCCESS;
}

API int nvmlDeviceGetMultiGpuBoard(nvmlDevice_t device, unsigned *out)
{
    ENTER(device);
    NEED(out);
    *out = 0;
    return SUCCESS;
}

API int nvmlDeviceGetBusType(nvmlDevice_t device, unsigned *out)
{
    ENTER(device);
    NEED(out);
    *out = 2; /* PCI Express */
    return SUCCESS;
}

static void fill_pci(pci_info *info, const char *bus_id)
{
    pci_address at;
    memset(info, 0, sizeof *info);
    parse_pci(bus_id, &at);
    info->domain = at.domain;
    info->bus = at.bus;
    info->device = at.device;
    snprintf(info->bus_id_legacy, sizeof info->bus_id_legacy, "%04X:%02X:%02X.0",
             at.domain & 0xFFFF, at.bus & 0xFF, at.device & 0xFF);
    snprintf(info->bus_id, sizeof info->bus_id, "%08X:%02X:%02X.0", at.domain, at.bus & 0xFF,
             at.device & 0xFF);
}

static int device_pci(nvmlDevice_t device, pci_info *info)
{
    const char *bus_id = reading(device, "pci_bus_id");
    NEED(info);
    if (!bus_id)
        return NOT_SUPPORTED;
    fill_pci(info, bus_id);
    info->device_id = (unsigned)number_of(device, "pci_device_id");
    info->subsystem_id = (unsigned)number_of(device, "pci_subsystem_id");
    return SUCCESS;
}

API int nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, pci_info *info)
{
    ENTER(device);
    return device_pci(device, info);
}

static int device_pci_v2(nvmlDevice_t device, pci_info_v2 *out)
{
    pci_info info;
    NEED(out);
    int code = device_pci(device, &info);
    if (code)
        return code;
    memset(out, 0, sizeof *out);
    memcpy(out->bus_id, info.bus_id_legacy, sizeof out->bus_id);
    out->domain = info.domain;
    out->bus = info.bus;
    out->device = info.device;
    out->device_id = info.device_id;
    out->subsystem_id = info.subsystem_id;
    return SUCCESS;
}

API int nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, pci_info_v2 *out)
{
    ENTER(device);
    return device_pci_v2(device, out);
}

API int nvmlDeviceGetPciInfo(nvmlDevice_t device, pci_info_v2 *out)
{
    ENTER(device);
    return device_pci_v2(device, out);
}

API int nvmlDeviceGetPciInfoExt(nvmlDevice_t device, pci_info_ext *out)
{
    pci_info info;
    ENTER(device);
    NEED(out);
    if (out->version != 0x1000040)
        return VERSION_MISMATCH;
    int code = device_pci(device, &info);
    if (code)
        return code;
    unsigned class = (unsigned)number_of(device, "pci_class");
    *out = (pci_info_ext){.version = out->version,
                          .domain = info.domain,
                          .bus = info.bus,
                          .device = info.device,
                          .device_id = info.device_id,
                          .subsystem_id = info.subsystem_id,
                          .base_class = class >> 16,
                          .sub_class = class >> 8 & 0xFF};
    memcpy(out->bus_id, info.bus_id, sizeof out->bus_id);
    return SUCCESS;
}

API int nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    ENTER(device);
    NEED(major && minor);
    const char *text = reading(device, "compute_capability");
    return text && sscanf(text, "%d.%d", major, minor) == 2 ? SUCCESS : NOT_SUPPORTED;
}

API int nvmlDeviceValidateInforom(nvmlDevice_t device)
{
    unsigned valid = 0;
    ENTER(device);
    int code = read_uint(device, "inforom_valid", &valid);
    if (code)
        return code;
    return valid ? SUCCESS : CORRUPTED_INFOROM;
}

/* ---- Memory ---- */

API int nvmlDeviceGetMemoryInfo(nvmlDevice_t device, memory_info *out)
{
    ENTER(device);
    NEED(out);
    int code = read_ull(device, "memory_total_bytes", &out->total);
    if (code)
        return code;
    /* The old form counts what the driver reserves as used. */
    out->used = number_of(device, "memory_used_bytes") + number_of(device, "memory_reserved_bytes");
    out->free = out->total - out->used;
    return SUCCESS;
}

API int nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, memory_info_v2 *out)
{
    ENTER(device);
    NEED(out);
    if (out->version != 0x02000028)
        return VERSION_MISMATCH;
    int code = read_ull(device, "memory_total_bytes", &out->total);
    if (code)
        return code;
    out->used = number_of(device, "memory_used_bytes");
    out->reserved = number_of(device, "memory_reserved_bytes");
    /* From driver 615 on this form, and no other, follows the limit of the caller's cgroup. */
    ull limit = number_of(device, "memory_limit_seen_bytes");
    if (limit) {
        out->total = limit;
        out->reserved = 0;
        out->used = number_of(device, "memory_limit_used_bytes");
    }
    out->free = out->total - out->used - out->reserved;
    return SUCCESS;
}

API int nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, memory_info *out)
{
    ENTER(device);
    NEED(out);
    int code = read_ull(device, "bar1_total_bytes", &out->total);
    if (code)
        return code;
    out->used = number_of(device, "bar1_used_bytes");
    out->free = out->total - out->used;
    return SUCCESS;
}

/* ---- Load, heat, power, clocks ---- */

API int nvmlDeviceGetUtilizationRates(nvmlDevice_t device, unsigned out[2])
{
    ENTER(device);
    NEED(out);
    int code = read_uint(device, "utilization_gpu_percent", &out[0]);
    return code ? code : read_uint(device, "utilization_memory_percent", &out[1]);
}

#define READ_ENGINE(function, key)                                                                 \
    API int function(nvmlDevice_t device, unsigned *out, unsigned *period_us)                      \
    {                                                                                              \
        ENTER(device);                                                                             \
        NEED(out && period_us);                                                                    \
        *period_us = 167000;                                                                       \
        return read_uint(device, key, out);                                                        \
    }

READ_ENGINE(nvmlDeviceGetEncoderUtilization, "utilization_encoder_percent")
READ_ENGINE(nvmlDeviceGetDecoderUtilization, "utilization_decoder_percent")
READ_ENGINE(nvmlDeviceGetJpgUtilization, "utilization_jpeg_percent")
READ_ENGINE(nvmlDeviceGetOfaUtilization, "utilization_ofa_percent")

READ_CHOICE(nvmlDeviceGetTemperature, "temperature_c")

API int nvmlDeviceGetTemperatureV(nvmlDevice_t device, unsigned info[3])
{
    ENTER(device);
    NEED(info);
    if (info[0] != 0x100000C)
        return VERSION_MISMATCH;
    return info[1] == 0 ? read_uint(device, "temperature_c", &info[2]) : INVALID_ARGUMENT;
}

READ_CHOICE(nvmlDeviceGetTemperatureThreshold, "temperature_shutdown_c", "temperature_slowdown_c",
            "temperature_memory_max_c", "temperature_gpu_max_c", NULL, NULL, NULL, NULL)

API int nvmlDeviceGetMarginTemperature(nvmlDevice_t device, unsigned info[2])
{
    ENTER(device);
    NEED(info);
    if (info[0] != 0x1000008)
        return VERSION_MISMATCH;
    return read_uint(device, "temperature_margin_c", &info[1]);
}

READ_UINT(nvmlDeviceGetNumFans, "fan_count")
READ_UINT(nvmlDeviceGetFanSpeed, "fan_percent")

static int fan_reading(nvmlDevice_t device, unsigned fan, const char *key, unsigned *out)
{
    if (!reading(device, key))
        return NOT_SUPPORTED;
    NEED(fan < number_of(device, "fan_count"));
    return read_uint(device, key, out);
}

API int nvmlDeviceGetFanSpeed_v2(nvmlDevice_t device, unsigned fan, unsigned *out)
{
    ENTER(device);
    return fan_reading(device, fan, "fan_percent", out);
}

API int nvmlDeviceGetTargetFanSpeed(nvmlDevice_t device, unsigned fan, unsigned *out)
{
    ENTER(device);
    return fan_reading(device, fan, "fan_percent", out);
}

API int nvmlDeviceGetFanSpeedRPM(nvmlDevice_t device, unsigned info[3])
{
    ENTER(device);
    NEED(info);
    if (info[0] != 0x100000C)
        return VERSION_MISMATCH;
    return fan_reading(device, info[1], "fan_rpm", &info[2]);
}

READ_UINT(nvmlDeviceGetPowerUsage, "power_mw")
READ_UINT(nvmlDeviceGetPowerManagementLimit, "power_limit_mw")
READ_UINT(nvmlDeviceGetEnforcedPowerLimit, "power_limit_enforced_mw")
READ_UINT(nvmlDeviceGetPowerManagementDefaultLimit, "power_limit_default_mw")
READ_PAIR(nvmlDeviceGetPowerManagementLimitConstraints, "power_limit_min_mw", "power_limit_max_mw")
READ_UINT(nvmlDeviceGetPowerSource, "power_source")
READ_ULL(nvmlDeviceGetTotalEnergyConsumption, "energy_mj")

API int nvmlDeviceGetPowerManagementMode(nvmlDevice_t device, unsigned *out)
{
    ENTER(device);
    NEED(out);
    if (!reading(device, "power_limit_mw"))
        return NOT_SUPPORTED;
    *out = 1;
    return SUCCESS;
}

READ_CHOICE(nvmlDeviceGetClockInfo, "clock_graphics_mhz", "clock_sm_mhz", "clock_memory_mhz",
            "clock_video_mhz")
READ_CHOICE(nvmlDeviceGetMaxClockInfo, "clock_graphics_max_mhz", "clock_sm_max_mhz",
            "clock_memory_max_mhz", "clock_video_max_mhz")
READ_CHOICE(nvmlDeviceGetApplicationsClock, "clock_graphics_application_mhz",
            "clock_graphics_application_mhz", "clock_memory_application_mhz", NULL)
READ_CHOICE(nvmlDeviceGetDefaultApplicationsClock, "clock_graphics_application_mhz",
            "clock_graphics_application_mhz", "clock_memory_application_mhz", NULL)
READ_CHOICE(nvmlDeviceGetMaxCustomerBoostClock, "clock_graphics_max_mhz", "clock_sm_max_mhz",
            "clock_memory_max_mhz", "clock_video_max_mhz")

/* A row of numbers into the caller's array, which may be too small or absent. */
static int copy_row(const char *row, unsigned *count, ull *wide, unsigned *narrow)
{
    long long number;
    unsigned length = 0;
    NEED(count);
    if (!row)
        return NOT_SUPPORTED;
    while (machine_column(&number, row, length))
        length++;
    bool fits = length <= *count && (wide || narrow || length == 0);
    for (unsigned i = 0; fits && i < length; i++) {
        machine_column(&number, row, i);
        if (wide)
            wide[i] = (ull)number;
        else if (narrow)
            narrow[i] = (unsigned)number;
    }
    *count = length;
    return fits ? SUCCESS : INSUFFICIENT_SIZE;
}

API int nvmlDeviceGetSupportedMemoryClocks(nvmlDevice_t device, unsigned *count, unsigned *out)
{
    ENTER(device);
    return copy_row(reading(device, "clocks_memory_supported_mhz"), count, NULL, out);
}

API int nvmlDeviceGetSupportedGraphicsClocks(nvmlDevice_t device, unsigned memory_mhz,
                                             unsigned *count, unsigned *out)
{
    (void)memory_mhz;
    ENTER(device);
    return copy_row(reading(device, "clocks_graphics_supported_mhz"), count, NULL, out);
}

READ_ULL(nvmlDeviceGetCurrentClocksEventReasons, "clock_event_reasons")
READ_ULL(nvmlDeviceGetCurrentClocksThrottleReasons, "clock_event_reasons")
READ_ULL(nvmlDeviceGetSupportedClocksEventReasons, "clock_event_reasons_supported")
READ_ULL(nvmlDeviceGetSupportedClocksThrottleReasons, "clock_event_reasons_supported")

static ull now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (ull)now.tv_sec * 1000000 + (ull)now.tv_nsec / 1000;
}

API int nvmlDeviceGetViolationStatus(nvmlDevice_t device, unsigned policy, ull out[2])
{
    static const char *const KEYS[] = {"violation_power_ns",       "violation_thermal_ns",
                                       "violation_sync_boost_ns",  "violation_board_limit_ns",
                                       "violation_low_utilization_ns", "violation_reliability_ns"};
    ENTER(device);
    NEED(out && policy < 12);
    if (policy >= sizeof KEYS / sizeof *KEYS)
        return NOT_SUPPORTED;
    out[0] = now_us();
    return read_ull(device, KEYS[policy], &out[1]);
}

/* ---- Modes ---- */

READ_UINT(nvmlDeviceGetPerformanceState, "performance_state")
READ_UINT(nvmlDeviceGetPowerState, "performance_state")
READ_UINT(nvmlDeviceGetPersistenceMode, "persistence_mode")
READ_UINT(nvmlDeviceGetComputeMode, "compute_mode")
READ_UINT(nvmlDeviceGetDisplayMode, "display_mode")
READ_UINT(nvmlDeviceGetDisplayActive, "display_active")
READ_UINT(nvmlDeviceGetAccountingMode, "accounting_mode")
READ_ULL(nvmlDeviceGetVirtualizationMode, "virtualization_mode")

API int nvmlDeviceGetGspFirmwareVersion(nvmlDevice_t device, char *out)
{
    ENTER(device);
    return copy_text(reading(device, "gsp_firmware_version"), out, 64);
}

READ_PAIR(nvmlDeviceGetGspFirmwareMode, "gsp_mode", "gsp_mode")

/* ---- Health ---- */

READ_PAIR(nvmlDeviceGetEccMode, "ecc_mode", "ecc_mode_pending")
READ_UINT(nvmlDeviceGetDefaultEccMode, "ecc_mode_default")

static const char *const ECC_TOTALS[2][2] = {
    {"ecc_corrected_volatile", "ecc_corrected_aggregate"},
    {"ecc_uncorrected_volatile", "ecc_uncorrected_aggregate"},
};
static const char *const ECC_SRAM[2][2] = {
    {"ecc_sram_corrected_volatile", "ecc_sram_corrected_aggregate"},
    {"ecc_sram_uncorrected_volatile", "ecc_sram_uncorrected_aggregate"},
};

API int nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned type, unsigned counter, ull *out)
{
    ENTER(device);
    NEED(type < 2 && counter < 2);
    return read_ull(device, ECC_TOTALS[type][counter], out);
}

API int nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, unsigned type, unsigned counter,
                                        unsigned location, ull *out)
{
    ENTER(device);
    NEED(type < 2 && counter < 2 && location < 8 && out);
    if (location == 7) /* SRAM */
        return read_ull(device, ECC_SRAM[type][counter], out);
    if (location != 2) /* anything but device memory */
        return NOT_SUPPORTED;
    int code = read_ull(device, ECC_TOTALS[type][counter], out);
    if (code == SUCCESS)
        *out -= number_of(device, ECC_SRAM[type][counter]);
    return code;
}

API int nvmlDeviceGetDetailedEccErrors(nvmlDevice_t device, unsigned type, unsigned counter,
                                       ull out[4])
{
    ENTER(device);
    NEED(type < 2 && counter < 2 && out);
    memset(out, 0, 4 * sizeof *out);
    return read_ull(device, ECC_TOTALS[type][counter], &out[2]);
}

API int nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t device, sram_status *out)
{
    ENTER(device);
    NEED(out);
    if (out->version != 0x1000068)
        return VERSION_MISMATCH;
    int code = read_uint(device, "ecc_sram_threshold_exceeded", &out->threshold_exceeded);
    if (code)
        return code;
    out->aggregate_parity = out->aggregate_sec_ded = out->volatile_parity = 0;
    out->bucket_l2 = out->bucket_pcie = out->bucket_mcu = out->bucket_other = 0;
    out->aggregate_sec_ded = number_of(device, ECC_SRAM[1][1]);
    out->volatile_sec_ded = number_of(device, ECC_SRAM[1][0]);
    out->aggregate_corrected = number_of(device, ECC_SRAM[0][1]);
    out->volatile_corrected = number_of(device, ECC_SRAM[0][0]);
    out->bucket_sm = out->aggregate_sec_ded;
    return SUCCESS;
}

static int retired_pages(nvmlDevice_t device, unsigned cause, unsigned *count, ull *pages)
{
    NEED(cause < 2);
    const char *key = cause == 0 ? "retired_pages_single_bit" : "retired_pages_double_bit";
    return copy_row(reading(device, key), count, pages, NULL);
}

API int nvmlDeviceGetRetiredPages(nvmlDevice_t device, unsigned cause, unsigned *count, ull *pages)
{
    ENTER(device);
    return retired_pages(device, cause, count, pages);
}

API int nvmlDeviceGetRetiredPages_v2(nvmlDevice_t device, unsigned cause, unsigned *count,
                                     ull *pages, ull *times)
{
    ENTER(device);
    int code = retired_pages(device, cause, count, pages);
    for (unsigned i = 0; code == SUCCESS && i < *count; i++)
        times[i] = 1700000000ULL * 1000000 + i;
    return code;
}

READ_UINT(nvmlDeviceGetRetiredPagesPendingStatus, "retired_pages_pending")

API int nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *corrected, unsigned *uncorrected,
                                  unsigned *pending, unsigned *failed)
{
    ENTER(device);
    NEED(corrected && uncorrected && pending && failed);
    int code = read_uint(device, "remapped_rows_corrected", corrected);
    if (code == SUCCESS)
        code = read_uint(device, "remapped_rows_uncorrected", uncorrected);
    if (code == SUCCESS)
        code = read_uint(device, "remapped_rows_pending", pending);
    if (code == SUCCESS)
        code = read_uint(device, "remapped_rows_failed", failed);
    return code;
}

API int nvmlDeviceGetRemappedRows_v2(nvmlDevice_t device, unsigned out[6])
{
    ENTER(device);
    NEED(out);
    out[1] = out[3] = 0;
    int code = read_uint(device, "remapped_rows_corrected", &out[0]);
    if (code == SUCCESS)
        code = read_uint(device, "remapped_rows_uncorrected", &out[2]);
    if (code == SUCCESS)
        code = read_uint(device, "remapped_rows_pending", &out[4]);
    if (code == SUCCESS)
        code = read_uint(device, "remapped_rows_failed", &out[5]);
    return code;
}

API int nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device, unsigned out[5])
{
    unsigned count = 5;
    ENTER(device);
    NEED(out);
    return copy_row(reading(device, "row_remapper_histogram"), &count, NULL, out);
}

API int nvmlDeviceGetUnrepairableMemoryFlag_v1(nvmlDevice_t device, unsigned info[2])
{
    ENTER(device);
    NEED(info);
    if (info[0] != 0x1000008)
        return VERSION_MISMATCH;
    return read_uint(device, "unrepairable_memory", &info[1]);
}

API int nvmlDeviceGetRepairStatus(nvmlDevice_t device, unsigned info[3])
{
    ENTER(device);
    NEED(info);
    if (info[0] != 0x100000C)
        return VERSION_MISMATCH;
    int code = read_uint(device, "repair_channel_pending", &info[1]);
    return code ? code : read_uint(device, "repair_tpc_pending", &info[2]);
}

/* "ui 5" and the like: NVML's type and the value. */
static void read_field(const char *text, field_value *field)
{
    char type[8] = "";
    sscanf(text, "%7s", type);
    const char *number = strchr(text, ' ');
    number = number ? number + 1 : "0";
    field->code = SUCCESS;
    if (strcmp(type, "ui") == 0) {
        field->type = 1;
        field->value.ui = (unsigned)strtoul(number, NULL, 10);
    } else if (strcmp(type, "si") == 0) {
        field->type = 5;
        field->value.si = atoi(number);
    } else {
        field->type = 3;
        field->value.u = strtoull(number, NULL, 10);
    }
}

API int nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, field_value *fields)
{
    ENTER(device);
    static atomic_ullong questions;
    NEED(fields && count > 0);
    ull asked = atomic_fetch_add(&questions, 1);
    for (int i = 0; i < count; i++) {
        char key[32];
        snprintf(key, sizeof key, "field.%u", fields[i].id);
        const char *text = reading(device, key);
        fields[i].time_stamp = (int64_t)now_us();
        fields[i].latency_us = 0;
        fields[i].value.u = 0;
        fields[i].code = NOT_SUPPORTED;
        if (text)
            read_field(text, &fields[i]);
        snprintf(key, sizeof key, "field_growth.%u", fields[i].id);
        const char *growth = reading(device, key);
        if (growth)
            fields[i].value.u += strtoull(growth, NULL, 10) * asked;
    }
    return SUCCESS;
}

/* ---- Bus and neighbours ---- */

READ_UINT(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_generation")
READ_UINT(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_generation_max")
READ_UINT(nvmlDeviceGetGpuMaxPcieLinkGeneration, "pcie_generation_gpu_max")
READ_UINT(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width")
READ_UINT(nvmlDeviceGetMaxPcieLinkWidth, "pcie_width_max")
READ_UINT(nvmlDeviceGetPcieReplayCounter, "pcie_replay_count")
READ_CHOICE(nvmlDeviceGetPcieThroughput, "pcie_tx_kib_per_s", "pcie_rx_kib_per_s")
READ_UINT(nvmlDeviceGetNumaNodeId, "numa_node")

static int copy_mask(const char *row, unsigned size, unsigned long *out)
{
    long long word;
    NEED(out && size);
    if (!row)
        return NOT_SUPPORTED;
    for (unsigned i = 0; i < size; i++)
        out[i] = machine_column(&word, row, i) ? (unsigned long)word : 0;
    return SUCCESS;
}

API int nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned size, unsigned long *out)
{
    ENTER(device);
    return copy_mask(reading(device, "cpu_mask"), size, out);
}

API int nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned size, unsigned long *out,
                                            unsigned scope)
{
    ENTER(device);
    NEED(scope < 2);
    return copy_mask(reading(device, "cpu_mask"), size, out);
}

API int nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned size, unsigned long *out,
                                    unsigned scope)
{
    ENTER(device);
    NEED(scope < 2);
    return copy_mask(reading(device, "memory_mask"), size, out);
}

/* Two devices are named: a fault of either counts. */
static int enter_pair(const char *function, nvmlDevice_t one, nvmlDevice_t two)
{
    int code = enter(function, one);
    if (code)
        return code;
    if (!is_device(two))
        return INVALID_ARGUMENT;
    return one == two ? SUCCESS : machine_fault(function, two->gpu);
}

API int nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t one, nvmlDevice_t two, unsigned *out)
{
    long long level;
    int code = enter_pair(__func__, one, two);
    if (code)
        return code;
    NEED(out);
    if (!machine_column(&level, reading(one, "topology"), two->gpu))
        return NOT_SUPPORTED;
    *out = (unsigned)level;
    return SUCCESS;
}

API int nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, unsigned level, unsigned *count,
                                         nvmlDevice_t *out)
{
    long long own;
    unsigned found = 0;
    ENTER(device);
    NEED(count);
    for (int gpu = 0; gpu < gpu_count; gpu++) {
        if (gpu == device->gpu || !machine_column(&own, reading(device, "topology"), gpu) ||
            (unsigned)own != level)
            continue;
        if (out && found < *count)
            out[found] = device_at(gpu, NO_INSTANCE);
        found++;
    }
    *count = found;
    return SUCCESS;
}

API int nvmlDeviceGetP2PStatus(nvmlDevice_t one, nvmlDevice_t two, unsigned which, unsigned *out)
{
    static const char *const ROWS[] = {"p2p_read", "p2p_read", "p2p_nvlink", "p2p_nvlink",
                                       "p2p_read"};
    long long status;
    int code = enter_pair(__func__, one, two);
    if (code)
        return code;
    NEED(out && which < sizeof ROWS / sizeof *ROWS);
    if (!machine_column(&status, reading(one, ROWS[which]), two->gpu))
        return NOT_SUPPORTED;
    *out = (unsigned)status;
    return SUCCESS;
}

API int nvmlDeviceOnSameBoard(nvmlDevice_t one, nvmlDevice_t two, int *out)
{
    int code = enter_pair(__func__, one, two);
    if (code)
        return code;
    NEED(out);
    *out = one == two;
    return SUCCESS;
}

typedef struct {
    bool active;
    unsigned type;
    char pci[24];
} nvlink;

static int find_link(nvmlDevice_t device, unsigned number, nvlink *out)
{
    int active = 0;
    char key[32];
    NEED(number < MAX_LINKS);
    if (number_of(device, "nvlink.count") == 0)
        return NOT_SUPPORTED;
    snprintf(key, sizeof key, "nvlink.%u", number);
    const char *text = reading(device, key);
    NEED(text && sscanf(text, "%d %u %23s", &active, &out->type, out->pci) == 3);
    out->active = active != 0;
    return SUCCESS;
}

#define ENTER_LINK(device, number, link)                                                           \
    nvlink link;                                                                                   \
    do {                                                                                           \
        ENTER(device);                                                                             \
        int found_ = find_link(device, number, &link);                                             \
        if (found_)                                                                                \
            return found_;                                                                         \
    } while (0)

API int nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned number, unsigned *out)
{
    ENTER_LINK(device, number, link);
    NEED(out);
    *out = link.active;
    return SUCCESS;
}

API int nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned number, unsigned *out)
{
    ENTER_LINK(device, number, link);
    return read_uint(device, "nvlink_version", out);
}

API int nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned number, unsigned capability,
                                      unsigned *out)
{
    ENTER_LINK(device, number, link);
    NEED(out && capability < 6);
    *out = capability != 4; /* everything but an SLI bridge */
    return SUCCESS;
}

static int remote_pci(const nvlink *link, pci_info *out)
{
    NEED(out);
    if (!link->active)
        return NOT_SUPPORTED;
    fill_pci(out, link->pci);
    out->device_id = link->type == 2 ? 0x22A310DE : 0x10DE;
    return SUCCESS;
}

API int nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice_t device, unsigned number, pci_info *out)
{
    ENTER_LINK(device, number, link);
    return remote_pci(&link, out);
}

API int nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned number, pci_info *out)
{
    ENTER_LINK(device, number, link);
    return remote_pci(&link, out);
}

API int nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned number, unsigned *out)
{
    ENTER_LINK(device, number, link);
    NEED(out);
    *out = link.active ? link.type : 0xFF;
    return SUCCESS;
}

API int nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned number, unsigned counter,
                                        ull *out)
{
    static const char *const KEYS[] = {"nvlink_replay_errors", "nvlink_recovery_errors",
                                       "nvlink_crc_flit_errors", "nvlink_crc_data_errors"};
    ENTER_LINK(device, number, link);
    NEED(counter < 5);
    if (counter >= sizeof KEYS / sizeof *KEYS)
        return NOT_SUPPORTED;
    return read_ull(device, KEYS[counter], out);
}

static void read_fabric(nvmlDevice_t device, unsigned state, fabric_info_v1 *out)
{
    memset(out, 0, sizeof *out);
    out->state = state;
    out->status = (unsigned)number_of(device, "fabric_status");
    out->clique = (uint32_t)number_of(device, "fabric_clique_id");
}

API int nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, fabric_info_v1 *out)
{
    unsigned state = 0;
    ENTER(device);
    NEED(out);
    int code = read_uint(device, "fabric_state", &state);
    if (code == SUCCESS)
        read_fabric(device, state, out);
    return code;
}

API int nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, fabric_info *out)
{
    unsigned state = 0;
    fabric_info_v1 common;
    ENTER(device);
    NEED(out);
    if (out->version != 0x02000024 && out->version != 0x03000028)
        return VERSION_MISMATCH;
    int code = read_uint(device, "fabric_state", &state);
    if (code)
        return code;
    read_fabric(device, state, &common);
    memcpy(out->cluster, common.cluster, sizeof out->cluster);
    out->status = common.status;
    out->clique = common.clique;
    out->state = common.state;
    out->health_mask = (uint32_t)number_of(device, "fabric_health_mask");
    if (out->version == 0x03000028)
        out->health_summary = (uint8_t)number_of(device, "fabric_health_summary");
    return SUCCESS;
}

/* ---- MIG ---- */

READ_PAIR(nvmlDeviceGetMigMode, "mig_mode", "mig_mode_pending")

static bool has_mig(nvmlDevice_t device)
{
    return machine_number_or(0, "gpu.%d.mig_mode", device->gpu) != 0;
}

API int nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *out)
{
    ENTER(device);
    NEED(out);
    *out = has_mig(device) ? (unsigned)number_of(device, "mig_max_count") : 0;
    return SUCCESS;
}

API int nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned *out)
{
    ENTER(device);
    NEED(out);
    *out = device->mig != NO_INSTANCE;
    return SUCCESS;
}

API int nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index, nvmlDevice_t *out)
{
    ENTER(device);
    NEED(out && device->mig == NO_INSTANCE);
    if (!reading(device, "mig_mode"))
        return NOT_SUPPORTED;
    NEED(index < MAX_MIG && index < number_of(device, "mig_max_count"));
    if (!has_mig(device) || !reading(device_at(device->gpu, (int)index), "uuid"))
        return NOT_FOUND;
    *out = device_at(device->gpu, (int)index);
    return SUCCESS;
}

API int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t device, nvmlDevice_t *out)
{
    ENTER(device);
    NEED(out && device->mig != NO_INSTANCE);
    *out = device_at(device->gpu, NO_INSTANCE);
    return SUCCESS;
}

static int instance_id(nvmlDevice_t device, const char *key, unsigned *out)
{
    if (!machine_text("gpu.%d.mig_mode", device->gpu))
        return NOT_SUPPORTED;
    NEED(device->mig != NO_INSTANCE);
    return read_uint(device, key, out);
}

API int nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned *out)
{
    ENTER(device);
    return instance_id(device, "gpu_instance_id", out);
}

API int nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned *out)
{
    ENTER(device);
    return instance_id(device, "compute_instance_id", out);
}

static int attributes(nvmlDevice_t device, device_attributes *out)
{
    NEED(out);
    if (device->mig == NO_INSTANCE)
        return NOT_SUPPORTED;
    out->multiprocessors = (unsigned)number_of(device, "sm_count");
    out->copy_engines = (unsigned)number_of(device, "copy_engines");
    out->decoders = (unsigned)number_of(device, "decoders");
    out->encoders = (unsigned)number_of(device, "encoders");
    out->jpeg = (unsigned)number_of(device, "jpeg_engines");
    out->ofa = (unsigned)number_of(device, "ofa_engines");
    out->gpu_slices = (unsigned)number_of(device, "gpu_slices");
    out->compute_slices = (unsigned)number_of(device, "compute_slices");
    out->memory_mib = number_of(device, "memory_total_bytes") >> 20;
    return SUCCESS;
}

API int nvmlDeviceGetAttributes(nvmlDevice_t device, device_attributes *out)
{
    ENTER(device);
    return attributes(device, out);
}

API int nvmlDeviceGetAttributes_v2(nvmlDevice_t device, device_attributes *out)
{
    ENTER(device);
    return attributes(device, out);
}

/* ---- Processes ---- */

enum { COMPUTE = 0, GRAPHICS = 1, MPS = 2, EVERY_TYPE = 3 };

typedef struct {
    unsigned pid, type, sm, memory_load, encoder, decoder;
    int mig;
    long long used; /* -1 = not told */
} process;

/* With FAKE_PROCESSES_FILE the list is read anew at every call: lines of a GPU's index and what
   the machine file has for a process. So a test can let a program grow while it is watched. */
static bool read_process_line(int gpu, unsigned number, process *out)
{
    char line[160];
    int owner;
    bool found = false;
    FILE *file = fopen(getenv("FAKE_PROCESSES_FILE"), "re");
    while (file && !found && fgets(line, sizeof line, file))
        found = sscanf(line, "%d %u %u %d %lld %u %u %u %u", &owner, &out->pid, &out->type,
                       &out->mig, &out->used, &out->sm, &out->memory_load, &out->encoder,
                       &out->decoder) == 9 && owner == gpu && number-- == 0;
    if (file)
        fclose(file);
    return found;
}

static bool read_process(int gpu, unsigned number, process *out)
{
    if (getenv("FAKE_PROCESSES_FILE"))
        return read_process_line(gpu, number, out);
    const char *text = machine_text("gpu.%d.process.%u", gpu, number);
    return text && sscanf(text, "%u %u %d %lld %u %u %u %u", &out->pid, &out->type, &out->mig,
                          &out->used, &out->sm, &out->memory_load, &out->encoder,
                          &out->decoder) == 8;
}

static bool belongs(const process *process, nvmlDevice_t device, unsigned type)
{
    return (type == EVERY_TYPE || process->type == type) &&
           (device->mig == NO_INSTANCE || process->mig == device->mig);
}

static process_detail describe(const process *process, int gpu)
{
    process_detail detail = {.pid = process->pid,
                             .used = (ull)process->used,
                             .gpu_instance = 0xFFFFFFFF,
                             .compute_instance = 0xFFFFFFFF,
                             .protected_used = 0};
    if (process->mig >= 0) {
        detail.gpu_instance =
            (unsigned)machine_number_or(0, "gpu.%d.mig.%d.gpu_instance_id", gpu, process->mig);
        detail.compute_instance =
            (unsigned)machine_number_or(0, "gpu.%d.mig.%d.compute_instance_id", gpu, process->mig);
    }
    return detail;
}

/* Counts, and fills whichever array is given: NVML's three generations of one list. */
static int list_processes(nvmlDevice_t device, unsigned type, unsigned *count, process_info_v1 *old,
                          process_info *new, process_detail *detailed)
{
    process process;
    unsigned found = 0;
    NEED(count);
    if (!machine_number_or(1, "driver.process_list"))
        return NOT_SUPPORTED;
    for (unsigned i = 0; read_process(device->gpu, i, &process); i++) {
        if (!belongs(&process, device, type))
            continue;
        process_detail detail = describe(&process, device->gpu);
        if (found < *count && old)
            old[found] = (process_info_v1){detail.pid, detail.used};
        if (found < *count && new)
            new[found] = (process_info){detail.pid, detail.used, detail.gpu_instance,
                                        detail.compute_instance};
        if (found < *count && detailed)
            detailed[found] = detail;
        found++;
    }
    bool fits = found == 0 || (found <= *count && (old || new || detailed));
    *count = found;
    return fits ? SUCCESS : INSUFFICIENT_SIZE;
}

#define LIST_PROCESSES(function, type)                                                             \
    API int function(nvmlDevice_t device, unsigned *count, process_info_v1 *out)                   \
    {                                                                                              \
        ENTER(device);                                                                             \
        return list_processes(device, type, count, out, NULL, NULL);                               \
    }                                                                                              \
    API int function##_v2(nvmlDevice_t device, unsigned *count, process_info *out)                 \
    {                                                                                              \
        ENTER(device);                                                                             \
        return list_processes(device, type, count, NULL, out, NULL);                               \
    }                                                                                              \
    API int function##_v3(nvmlDevice_t device, unsigned *count, process_info *out)                 \
    {                                                                                              \
        ENTER(device);                                                                             \
        return list_processes(device, type, count, NULL, out, NULL);                               \
    }

LIST_PROCESSES(nvmlDeviceGetComputeRunningProcesses, COMPUTE)
LIST_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses, GRAPHICS)
LIST_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses, MPS)

API int nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, process_detail_list *list)
{
    ENTER(device);
    NEED(list && list->mode <= EVERY_TYPE);
    if (list->version != 0x1000018)
        return VERSION_MISMATCH;
    return list_processes(device, list->mode, &list->count, NULL, NULL, list->entries);
}

static bool has_load(const process *process)
{
    return process->sm || process->memory_load || process->encoder || process->decoder;
}

API int nvmlDeviceGetProcessUtilization(nvmlDevice_t device, process_sample *out, unsigned *count,
                                        ull last_seen)
{
    process process;
    unsigned found = 0;
    ENTER(device);
    NEED(count);
    if (has_mig(device) || !machine_number_or(1, "driver.process_list"))
        return NOT_SUPPORTED;
    ull now = now_us();
    for (unsigned i = 0; now > last_seen && read_process(device->gpu, i, &process); i++) {
        if (!has_load(&process))
            continue;
        if (out && found < *count)
            out[found] = (process_sample){process.pid,         now,
                                          process.sm,          process.memory_load,
                                          process.encoder,     process.decoder};
        found++;
    }
    bool fits = out && found <= *count;
    *count = found;
    if (found == 0)
        return NOT_FOUND;
    return fits ? SUCCESS : INSUFFICIENT_SIZE;
}

API int nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, processes_utilization *list)
{
    process process;
    unsigned found = 0;
    ENTER(device);
    NEED(list);
    if (list->version != 0x01000018)
        return VERSION_MISMATCH;
    if (has_mig(device) || !machine_number_or(1, "driver.process_list"))
        return NOT_SUPPORTED;
    ull now = now_us();
    for (unsigned i = 0; now > list->last_seen && read_process(device->gpu, i, &process); i++) {
        if (!has_load(&process))
            continue;
        if (list->entries && found < list->count)
            list->entries[found] =
                (process_utilization){now,          process.pid,     process.sm, process.memory_load,
                                      process.encoder, process.decoder, 0,          0};
        found++;
    }
    bool fits = list->entries && found <= list->count;
    list->count = found;
    if (found == 0)
        return NOT_FOUND;
    return fits ? SUCCESS : INSUFFICIENT_SIZE;
}

/* ---- Memory limits of cgroups ---- */

typedef struct {
    const char *name_space;
    ull soft, hard;
} set_limits;

typedef struct {
    const char *name_space;
    ull soft, hard, used;
} get_limits;

static const ull UNLIMITED = 0xFFFFFFFFFFFFFFFF;

static bool has_file(const char *folder, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return access(path, F_OK) == 0;
}

/* Which back end refuses this group, as driver 615 does: "dmem" wants the kernel's files in it. */
static int check_group(nvmlDevice_t device, const char *group)
{
    const char *back_end = machine_text("driver.memory_limits");
    if (!back_end || !*back_end || device->mig != NO_INSTANCE || number_of(device, "mig_mode"))
        return NOT_SUPPORTED;
    NEED(group && *group == '/');
    if (!has_file(group, ".") || (strcmp(back_end, "dmem") == 0 && !has_file(group, "dmem.max")))
        return NOT_FOUND;
    return SUCCESS;
}

API int nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, const set_limits *limits)
{
    ENTER(device);
    NEED(limits);
    int code = check_group(device, limits->name_space);
    if (code)
        return code;
    NEED(limits->soft <= limits->hard);
    bool clears = limits->soft == 0 && limits->hard == UNLIMITED;
    struct machine_limit limit = {limits->soft, limits->hard};
    return machine_set_limit(device->gpu, limits->name_space, clears ? NULL : &limit) ? SUCCESS
                                                                                     : UNKNOWN;
}

API int nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, get_limits *limits)
{
    struct machine_limit limit = {0, UNLIMITED};
    ENTER(device);
    NEED(limits);
    int code = check_group(device, limits->name_space);
    if (code)
        return code;
    bool by_kernel = strcmp(machine_text("driver.memory_limits"), "dmem") == 0;
    if (!machine_get_limit(device->gpu, limits->name_space, &limit) && !by_kernel)
        return NOT_SUPPORTED;
    limits->soft = limit.soft;
    limits->hard = limit.hard;
    limits->used = number_of(device, "memory_limit_used_bytes");
    return SUCCESS;
}

/* ---- What exists and always says no ---- */

/* Nothing about a machine may be changed: the log of calls shows who tried. */
#define REFUSES(function)                                                                          \
    API int function(nvmlDevice_t device)                                                          \
    {                                                                                              \
        ENTER(device);                                                                             \
        return NO_PERMISSION;                                                                      \
    }

REFUSES(nvmlDeviceSetPersistenceMode)
REFUSES(nvmlDeviceSetComputeMode)
REFUSES(nvmlDeviceSetEccMode)
REFUSES(nvmlDeviceClearEccErrorCounts)
REFUSES(nvmlDeviceSetAccountingMode)
REFUSES(nvmlDeviceSetMigMode)
REFUSES(nvmlDeviceSetPowerManagementLimit)
REFUSES(nvmlDeviceSetPowerManagementLimit_v2)
REFUSES(nvmlDeviceSetApplicationsClocks)
REFUSES(nvmlDeviceResetApplicationsClocks)
REFUSES(nvmlDeviceSetGpuLockedClocks)
REFUSES(nvmlDeviceResetGpuLockedClocks)
REFUSES(nvmlDeviceSetMemoryLockedClocks)
REFUSES(nvmlDeviceResetMemoryLockedClocks)
REFUSES(nvmlDeviceSetFanSpeed_v2)
REFUSES(nvmlDeviceSetFanControlPolicy)
REFUSES(nvmlDeviceSetCpuAffinity)
REFUSES(nvmlDeviceClearCpuAffinity)
REFUSES(nvmlDeviceResetNvLinkErrorCounters)

#define LACKS(function)                                                                            \
    API int function(nvmlDevice_t device)                                                          \
    {                                                                                              \
        ENTER(device);                                                                             \
        return NOT_SUPPORTED;                                                                      \
    }

LACKS(nvmlDeviceGetDriverModel)
LACKS(nvmlDeviceGetDriverModel_v2)
LACKS(nvmlDeviceGetInforomVersion)
LACKS(nvmlDeviceGetInforomConfigurationChecksum)
LACKS(nvmlDeviceGetBridgeChipInfo)
LACKS(nvmlDeviceGetGpuOperationMode)
LACKS(nvmlDeviceGetSamples)
LACKS(nvmlDeviceGetClock)
LACKS(nvmlDeviceGetAutoBoostedClocksEnabled)
LACKS(nvmlDeviceGetAPIRestriction)
LACKS(nvmlDeviceGetEncoderStats)
LACKS(nvmlDeviceGetEncoderSessions)
LACKS(nvmlDeviceGetFBCStats)
LACKS(nvmlDeviceGetFBCSessions)
LACKS(nvmlDeviceGetSupportedEventTypes)
LACKS(nvmlDeviceGetAddressingMode)
LACKS(nvmlDeviceGetPlatformInfo)
LACKS(nvmlDeviceGetModuleId)
LACKS(nvmlDeviceGetC2cModeInfoV)
LACKS(nvmlDeviceGetConfComputeMemSizeInfo)
LACKS(nvmlDeviceGetConfComputeProtectedMemoryUsage)
LACKS(nvmlDeviceGetGpuFabricInfo_v4)
LACKS(nvmlDeviceGetPcieLinkMaxSpeed)
LACKS(nvmlDeviceGetPcieSpeed)
LACKS(nvmlDeviceGetAdaptiveClockInfoStatus)
LACKS(nvmlDeviceGetSupportedPerformanceStates)
LACKS(nvmlDeviceGetDynamicPstatesInfo)
LACKS(nvmlDeviceGetThermalSettings)
LACKS(nvmlDeviceGetMinMaxFanSpeed)
LACKS(nvmlDeviceGetFanControlPolicy_v2)
LACKS(nvmlDeviceGetNvLinkInfo)
LACKS(nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts)
LACKS(nvmlDeviceGetHostVgpuMode)
LACKS(nvmlDeviceGetSupportedVgpus)
LACKS(nvmlDeviceGetActiveVgpus)
LACKS(nvmlDeviceGetCapabilities)
LACKS(nvmlGpmQueryDeviceSupport)
