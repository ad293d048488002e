/* Counters. With OPFERRY_SIM_COUNTERS they lie in a file that others may read at any time, also
 * after this process has been killed: records of 56 bytes of name and a 64-bit value. */
#include "base.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "report.h"

static const char *const gauge_names[SIM_GAUGE_COUNT] = {
    "device_allocations", "device_bytes", "pinned_allocations", "pinned_bytes", "streams",
    "events",             "contexts",     "tensors",            "executors",
};

static const char *const tally_names[SIM_TALLY_COUNT] = {
    "violations", "faults", "kernels", "bytes.h2d", "bytes.d2h", "bytes.d2d", "lost",
};

enum {
    LIVE,
    TOTAL,
    PEAK,
    PER_GAUGE,
    FIRST_TALLY = SIM_GAUGE_COUNT * PER_GAUGE,
    FIRST_CALL = FIRST_TALLY + SIM_TALLY_COUNT,
    COUNTER_COUNT = FIRST_CALL + SIM_FUNCTION_COUNT,
};

static struct sim_counter own[COUNTER_COUNT];
static struct sim_counter *counters = own;

/* A process id comes back after a while. What an earlier process of that id has left moves to the
 * first free name of path.1, path.2, ...: its counters stay readable, and are not the new one's. */
static void set_aside(const char *path)
{
    struct stat found;
    char aside[1040];
    if (stat(path, &found) != 0 || found.st_size == 0)
        return;
    for (int n = 1;; n++) {
        snprintf(aside, sizeof aside, "%s.%d", path, n);
        if (link(path, aside) == 0) {
            unlink(path);
            return;
        }
        if (errno != EEXIST)
            return;
    }
}

void sim_counters_open(void)
{
    if (sim_settings.counters != NULL) {
        char path[1024];
        sim_expand_path(sim_settings.counters, path, sizeof path);
        set_aside(path);
        int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
        void *map = MAP_FAILED;
        if (file >= 0 && ftruncate(file, sizeof own) == 0)
            map = mmap(NULL, sizeof own, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (map == MAP_FAILED) {
            fprintf(stderr, "opferry-simulator: cannot write the counters to %s\n", path);
            exit(2);
        }
        close(file);
        counters = map;
    }
    static const char *const parts[PER_GAUGE] = {"live", "total", "peak"};
    for (int i = 0; i < FIRST_TALLY; i++)
        snprintf(counters[i].name, sizeof counters[i].name, "%s.%s", parts[i % PER_GAUGE],
                 gauge_names[i / PER_GAUGE]);
    for (int i = 0; i < SIM_TALLY_COUNT; i++)
        snprintf(counters[FIRST_TALLY + i].name, sizeof own[0].name, "%s", tally_names[i]);
    for (int i = 0; i < SIM_FUNCTION_COUNT; i++)
        snprintf(counters[FIRST_CALL + i].name, sizeof own[0].name, "calls.%s",
                 sim_function_name((enum sim_function)i));
}

void sim_gauge(enum sim_gauge gauge, int64_t change)
{
    struct sim_counter *of = &counters[(int)gauge * PER_GAUGE];
    of[LIVE].value += change;
    if (change > 0)
        of[TOTAL].value += change;
    if (of[LIVE].value > of[PEAK].value)
        of[PEAK].value = of[LIVE].value;
}

int64_t sim_gauge_live(enum sim_gauge gauge)
{
    return counters[(int)gauge * PER_GAUGE + LIVE].value;
}

void sim_tally(enum sim_tally tally, int64_t change)
{
    counters[FIRST_TALLY + (int)tally].value += change;
}

int64_t sim_tally_value(enum sim_tally tally)
{
    return counters[FIRST_TALLY + (int)tally].value;
}

void sim_count_call(enum sim_function function)
{
    counters[FIRST_CALL + (int)function].value++;
}

const struct sim_counter *sim_counter_list(int *count)
{
    *count = COUNTER_COUNT;
    return counters;
}

int64_t opferrySimCounter(const char *name)
{
    sim_prepare();
    int64_t value = -1;
    sim_lock();
    for (int i = 0; i < COUNTER_COUNT; i++)
        if (strcmp(counters[i].name, name) == 0)
            value = counters[i].value;
    sim_unlock();
    return value;
}
