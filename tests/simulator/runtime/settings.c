/* The environment, read once: at the first call, so that a program may still set it before. */
#include "base.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct sim_settings sim_settings;

/* A setting that is misread would make a test pass for the wrong reason. */
static _Noreturn void refuse(const char *name, const char *value, const char *allowed)
{
    fprintf(stderr, "opferry-simulator: %s is \"%s\"; give %s\n", name, value, allowed);
    exit(2);
}

static int64_t read_number(const char *name, int64_t otherwise, int64_t least)
{
    const char *value = getenv(name);
    if (value == NULL || *value == '\0')
        return otherwise;
    char *end;
    errno = 0;
    long long number = strtoll(value, &end, 0);
    if (*end != '\0' || errno != 0 || number < least)
        refuse(name, value, least > 0 ? "a positive number" : "a number that is not negative");
    return number;
}

static bool read_flag(const char *name, bool otherwise)
{
    return read_number(name, otherwise ? 1 : 0, 0) != 0;
}

static const char *read_text(const char *name)
{
    const char *value = getenv(name);
    return value == NULL || *value == '\0' ? NULL : value;
}

static void read_visible_devices(void)
{
    const char *text = getenv("ASCEND_RT_VISIBLE_DEVICES");
    if (text == NULL) {
        sim_settings.visible_count = sim_settings.device_count;
        for (int i = 0; i < sim_settings.device_count; i++)
            sim_settings.visible[i] = i;
        return;
    }
    /* The runtime takes the list up to the first entry that is no device. */
    while (sim_settings.visible_count < SIM_MAX_DEVICES) {
        char *end;
        long number = strtol(text, &end, 10);
        if (end == text || number < 0 || number >= sim_settings.device_count)
            return;
        sim_settings.visible[sim_settings.visible_count++] = (int)number;
        if (*end != ',')
            return;
        text = end + 1;
    }
}

static aclError read_reuse_status(void)
{
    const char *value = getenv("OPFERRY_SIM_EXECUTOR_REUSE");
    if (value == NULL || strcmp(value, "561103") == 0)
        return 561103;
    if (strcmp(value, "561101") == 0)
        return 561101;
    if (strcmp(value, "crash") == 0)
        return 0;
    refuse("OPFERRY_SIM_EXECUTOR_REUSE", value, "561103, 561101 or crash");
}

void sim_read_settings(void)
{
    struct sim_settings *s = &sim_settings;
    s->device_count = (int)read_number("OPFERRY_SIM_DEVICE_COUNT", 2, 0);
    if (s->device_count > SIM_MAX_DEVICES)
        refuse("OPFERRY_SIM_DEVICE_COUNT", getenv("OPFERRY_SIM_DEVICE_COUNT"), "at most 16");
    read_visible_devices();
    s->device_memory_bytes =
        (size_t)read_number("OPFERRY_SIM_DEVICE_MEMORY_BYTES", INT64_C(4) << 30, 1);
    s->kernel_us = read_number("OPFERRY_SIM_KERNEL_US", 0, 0);
    s->copy_us = read_number("OPFERRY_SIM_COPY_US", 0, 0);
    s->timeout_tick_us = read_number("OPFERRY_SIM_TIMEOUT_TICK_US", 1000, 1);
    s->stream_limit = read_number("OPFERRY_SIM_STREAM_LIMIT", 1984, 1);
    s->event_limit = read_number("OPFERRY_SIM_EVENT_LIMIT", 65536, 1);
    s->dirty_byte = read_number("OPFERRY_SIM_DIRTY_BYTE", 0xA5, 0);
    s->dirty_bytes = (size_t)read_number("OPFERRY_SIM_DIRTY_BYTES", INT64_C(256) << 20, 0);
    s->shape_status = (aclError)read_number("OPFERRY_SIM_SHAPE_STATUS", 161002, 1);
    s->reuse_status = read_reuse_status();
    const char *workspace = read_text("OPFERRY_SIM_WORKSPACE"); /* +n: more; n: just that */
    s->workspace_fixed = workspace != NULL && *workspace != '+';
    s->workspace_bytes = (uint64_t)read_number("OPFERRY_SIM_WORKSPACE", 0, 0);
    s->abort_on_violation = read_flag("OPFERRY_SIM_ABORT", false);
    s->sticky = read_flag("OPFERRY_SIM_STICKY", true);
    s->sticky_blocks = read_flag("OPFERRY_SIM_STICKY_BLOCKS", false);
    s->host_digest = read_flag("OPFERRY_SIM_HOST_DIGEST", true);
    s->task_abort = read_flag("OPFERRY_SIM_TASK_ABORT", false);
    const char *soc = read_text("OPFERRY_SIM_SOC");
    snprintf(s->soc, sizeof s->soc, "%.80s-simulated", soc == NULL ? "Ascend950PR_9599" : soc);
    s->report = read_text("OPFERRY_SIM_REPORT");
    s->log = read_text("OPFERRY_SIM_LOG");
    s->counters = read_text("OPFERRY_SIM_COUNTERS");
    s->faults = read_text("OPFERRY_SIM_FAULTS");
    s->faults_file = read_text("OPFERRY_SIM_FAULTS_FILE");
}

void sim_expand_path(const char *path, char *text, size_t size)
{
    size_t used = 0;
    for (; *path != '\0' && used + 1 < size; path++) {
        if (path[0] == '%' && path[1] == 'd') {
            used += (size_t)snprintf(text + used, size - used, "%ld", (long)getpid());
            path++;
        } else {
            text[used++] = *path;
        }
    }
    text[used < size ? used : size - 1] = '\0';
}

const char *sim_settings_soc(void)
{
    return sim_settings.soc;
}

uint64_t sim_workspace_asked(uint64_t formula_bytes)
{
    return sim_settings.workspace_bytes + (sim_settings.workspace_fixed ? 0 : formula_bytes);
}

aclError sim_settings_shape_status(void)
{
    return sim_settings.shape_status;
}
