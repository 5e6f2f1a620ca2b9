/* Reads the machine's flat file ("key value" lines) into a hash table and plays its faults. */

#define _GNU_SOURCE
#include "machine.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { KEY_SIZE = 160, MAX_FAULTS = 64 };

struct entry {
    const char *key;
    char *value;
};

struct fault {
    char function[KEY_SIZE];
    int gpu; /* -1 = every call */
    int code; /* -1 = never return */
    long after;
    atomic_long calls;
};

static struct entry *table;
static size_t table_size; /* a power of two */
static struct fault faults[MAX_FAULTS];
static int fault_count;
static int log_file = -1;
static bool loaded;
static pthread_once_t load_once = PTHREAD_ONCE_INIT;

static size_t hash(const char *text)
{
    unsigned long long value = 14695981039346656037ULL;
    for (; *text; text++)
        value = (value ^ (unsigned char)*text) * 1099511628211ULL;
    return (size_t)value;
}

static struct entry *slot_of(const char *key)
{
    size_t slot = hash(key) & (table_size - 1);
    while (table[slot].key && strcmp(table[slot].key, key) != 0)
        slot = (slot + 1) & (table_size - 1);
    return &table[slot];
}

static char *read_whole(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return NULL;
    size_t size = 0, capacity = 1 << 16;
    char *text = malloc(capacity + 1);
    while (text) {
        size_t got = fread(text + size, 1, capacity - size, file);
        size += got;
        if (got == 0)
            break;
        if (size == capacity) {
            capacity *= 2;
            char *larger = realloc(text, capacity + 1);
            if (!larger)
                free(text);
            text = larger;
        }
    }
    fclose(file);
    if (text)
        text[size] = '\0';
    return text;
}

/* Turns \n and \\ back into the bytes they stand for, in place. */
static void unescape(char *text)
{
    char *out = text;
    for (; *text; text++) {
        if (*text == '\\' && text[1]) {
            text++;
            *out++ = *text == 'n' ? '\n' : *text;
        } else {
            *out++ = *text;
        }
    }
    *out = '\0';
}

static void fill_table(char *text)
{
    size_t lines = 1;
    for (const char *at = text; *at; at++)
        lines += *at == '\n';
    table_size = 64;
    while (table_size < 2 * lines)
        table_size *= 2;
    table = calloc(table_size, sizeof *table);
    if (!table)
        return;
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char *space = strchr(line, ' ');
        if (!space)
            continue;
        *space = '\0';
        struct entry *entry = slot_of(line);
        entry->key = line;
        entry->value = space + 1;
        unescape(entry->value);
    }
}

static void read_faults(void)
{
    const char *line;
    while (fault_count < MAX_FAULTS && (line = machine_text("fault.%d", fault_count))) {
        struct fault *fault = &faults[fault_count++];
        sscanf(line, "%159s %d %d %ld", fault->function, &fault->gpu, &fault->code, &fault->after);
    }
}

static void load(void)
{
    const char *path = getenv("FAKE_MACHINE_FILE");
    char *text = path ? read_whole(path) : NULL;
    if (!text) {
        fprintf(stderr, "fake driver: cannot read FAKE_MACHINE_FILE=%s: %s\n",
                path ? path : "(unset)", path ? strerror(errno) : "no machine");
        return;
    }
    fill_table(text); /* the table points into the text, which is kept */
    if (!table)
        return;
    loaded = true;
    read_faults();
    const char *log = getenv("FAKE_CALL_LOG");
    if (log && *log)
        log_file = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

bool machine_load(void)
{
    pthread_once(&load_once, load);
    return loaded;
}

static const char *look_up(const char *format, va_list arguments)
{
    char key[KEY_SIZE];
    if (!machine_load())
        return NULL;
    vsnprintf(key, sizeof key, format, arguments);
    return slot_of(key)->value;
}

const char *machine_text(const char *format, ...)
{
    va_list arguments;
    char key[KEY_SIZE];
    /* Not look_up: this one is called while the machine is being loaded. */
    va_start(arguments, format);
    vsnprintf(key, sizeof key, format, arguments);
    va_end(arguments);
    return table ? slot_of(key)->value : NULL;
}

bool machine_number(long long *value, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    const char *text = look_up(format, arguments);
    va_end(arguments);
    if (!text)
        return false;
    *value = strtoll(text, NULL, 10);
    return true;
}

long long machine_number_or(long long absent, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    const char *text = look_up(format, arguments);
    va_end(arguments);
    return text ? strtoll(text, NULL, 10) : absent;
}

bool machine_column(long long *value, const char *row, long position)
{
    for (; row && *row; position--) {
        char *end;
        /* CPU masks use all 64 bits, other values may be negative. */
        long long number = *row == '-' ? strtoll(row, &end, 10) : (long long)strtoull(row, &end, 10);
        if (end == row)
            return false;
        if (position == 0) {
            *value = number;
            return true;
        }
        row = *end ? end + 1 : end;
    }
    return false;
}

void machine_log(const char *function, int gpu)
{
    char line[KEY_SIZE + 16];
    if (!machine_load() || log_file < 0)
        return;
    int length = gpu < 0 ? snprintf(line, sizeof line, "%s -\n", function)
                         : snprintf(line, sizeof line, "%s %d\n", function, gpu);
    /* One write for each line: lines of several threads and processes do not mix. */
    if (length > 0 && write(log_file, line, (size_t)length) < 0)
        log_file = -1;
}

static bool starts_with(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

static bool matches(const char *pattern, const char *function)
{
    size_t length = strlen(pattern);
    if (length == 0 || pattern[length - 1] != '*')
        return strcmp(pattern, function) == 0;
    if (length == 1) /* everything that is asked of a device, yet a handle is still given out */
        return starts_with(function, "nvmlDevice") &&
               !starts_with(function, "nvmlDeviceGetHandleBy") &&
               !starts_with(function, "nvmlDeviceGetCount");
    return strncmp(pattern, function, length - 1) == 0;
}

static void __attribute__((noreturn)) never_return(void)
{
    const char *stubborn = getenv("FAKE_HANG_IGNORES_TERM");
    if (stubborn && strcmp(stubborn, "1") == 0) {
        signal(SIGTERM, SIG_IGN);
        signal(SIGINT, SIG_IGN);
        signal(SIGHUP, SIG_IGN);
    }
    prctl(PR_SET_NAME, "hangs"); /* for tests/hang_clock.py */
    for (;;)
        pause();
}

enum { DIES = -2 };

int machine_fault(const char *function, int gpu)
{
    if (!machine_load())
        return 0;
    for (int i = 0; i < fault_count; i++) {
        struct fault *fault = &faults[i];
        if ((fault->gpu >= 0 && fault->gpu != gpu) || !matches(fault->function, function))
            continue;
        if (atomic_fetch_add(&fault->calls, 1) < fault->after)
            continue;
        if (fault->code == DIES)
            abort();
        if (fault->code < 0)
            never_return();
        return fault->code;
    }
    return 0;
}

enum { PATH_SIZE = 4096, WIDTH = 24 };

/* ---- Sleeping GPUs ---- */

enum { MOST_ASLEEP = 64 };

static void sleep_marked(useconds_t microseconds)
{
    prctl(PR_SET_NAME, "wakes"); /* for tests/hang_clock.py */
    usleep(microseconds);
    prctl(PR_SET_NAME, "awake");
}

void machine_wake(int gpu)
{
    static bool awake[MOST_ASLEEP];
    const char *wake_ms = getenv("FAKE_WAKE_MS");
    char path[PATH_SIZE];
    if (!wake_ms || gpu >= MOST_ASLEEP || awake[gpu] ||
        machine_number_or(1, "gpu.%d.persistence_mode", gpu))
        return;
    snprintf(path, sizeof path, "%s.open-%d", getenv("FAKE_MACHINE_FILE"), gpu);
    /* Open, and locked, for as long as the process lasts. */
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (flock(file, LOCK_EX | LOCK_NB) == 0)
        sleep_marked(1000 * (useconds_t)atoi(wake_ms));
    awake[gpu] = flock(file, LOCK_SH) == 0;
}

/* ---- Limits of cgroups ---- */

static bool limits_folder(char *out)
{
    const char *path = getenv("FAKE_MACHINE_FILE");
    if (!path || strlen(path) > PATH_SIZE - 200)
        return false;
    snprintf(out, PATH_SIZE, "%s.limits", path);
    return mkdir(out, 0700) == 0 || errno == EEXIST;
}

static bool limit_file(int gpu, const char *group, char *out)
{
    char folder[PATH_SIZE];
    if (!limits_folder(folder))
        return false;
    snprintf(out, PATH_SIZE + 64, "%s/%d-%016zx", folder, gpu, hash(group));
    return true;
}

/* Reads "soft hard group". */
static bool read_limit(const char *path, struct machine_limit *limit, char *group)
{
    FILE *file = fopen(path, "r");
    if (!file)
        return false;
    bool read = fscanf(file, "%llu %llu %4095[^\n]", &limit->soft, &limit->hard, group) == 3;
    fclose(file);
    return read;
}

bool machine_get_limit(int gpu, const char *group, struct machine_limit *limit)
{
    char path[PATH_SIZE + 64], named[PATH_SIZE];
    return limit_file(gpu, group, path) && read_limit(path, limit, named);
}

bool machine_set_limit(int gpu, const char *group, const struct machine_limit *limit)
{
    char path[PATH_SIZE + 64];
    if (!limit_file(gpu, group, path))
        return false;
    if (!limit)
        return unlink(path) == 0 || errno == ENOENT;
    FILE *file = fopen(path, "w");
    if (!file)
        return false;
    fprintf(file, "%llu %llu %s\n", limit->soft, limit->hard, group);
    return fclose(file) == 0;
}

static bool has_joined(const char *group)
{
    char path[PATH_SIZE + WIDTH];
    snprintf(path, sizeof path, "%s/cgroup.procs", group);
    FILE *file = fopen(path, "r");
    long pid = 0;
    bool found = false;
    while (file && !found && fscanf(file, "%ld", &pid) == 1)
        found = pid == getpid();
    if (file)
        fclose(file);
    return found;
}

bool machine_own_limit(int gpu, struct machine_limit *limit)
{
    char folder[PATH_SIZE], path[2 * PATH_SIZE], group[PATH_SIZE];
    DIR *listed = limits_folder(folder) ? opendir(folder) : NULL;
    bool found = false;
    for (struct dirent *entry; listed && !found && (entry = readdir(listed));) {
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        found = atoi(entry->d_name) == gpu && strchr(entry->d_name, '-') &&
                read_limit(path, limit, group) && has_joined(group);
    }
    if (listed)
        closedir(listed);
    return found;
}
