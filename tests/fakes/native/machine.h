/* What both pretended libraries share: the machine's values, its faults and the log of calls. */

#ifndef FAKE_MACHINE_H
#define FAKE_MACHINE_H

#include <stdbool.h>
#include <stddef.h>

#define API __attribute__((visibility("default")))

/* Reads the file that FAKE_MACHINE_FILE names, once; false when there is none to read. */
bool machine_load(void);

/* The value of a key made as printf does, or NULL. It lives as long as the process. */
const char *machine_text(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The value of a key as a number; false when the key is absent. */
bool machine_number(long long *value, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The same with a value for an absent key. */
long long machine_number_or(long long absent, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The number at a position of a value that is a row of numbers. */
bool machine_column(long long *value, const char *row, long position);

/* Writes one line to the log of calls. */
void machine_log(const char *function, int gpu);

/* The code with which this call has to fail, or 0. Never returns where a fault says so. */
int machine_fault(const char *function, int gpu);

/* Wakes a GPU without persistence mode: that takes FAKE_WAKE_MS where no process has it open. */
void machine_wake(int gpu);

/* A cgroup's limits on one GPU, kept in a file per group and GPU beside the machine's file: they
 * outlive the process that set them. */
struct machine_limit {
    unsigned long long soft, hard;
};

/* The limit of a group's folder; false where none is set. */
bool machine_get_limit(int gpu, const char *group, struct machine_limit *limit);

/* Sets it, or forgets it where limit is NULL; false when the file cannot be written. */
bool machine_set_limit(int gpu, const char *group, const struct machine_limit *limit);

/* The limit of the group that this process has joined, by the group's cgroup.procs. */
bool machine_own_limit(int gpu, struct machine_limit *limit);

#endif
