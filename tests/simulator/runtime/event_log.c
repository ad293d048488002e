/* The event log: one JSON line where a task begins and one where it ends, to measure from outside
 * what overlaps with what. */
#include "objects.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int file = -1;

void sim_event_log_open(void)
{
    if (sim_settings.log == NULL)
        return;
    char path[1024];
    sim_expand_path(sim_settings.log, path, sizeof path);
    file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (file < 0) {
        fprintf(stderr, "opferry-simulator: cannot write the event log to %s\n", path);
        exit(2);
    }
}

static const char *copy_name(enum sim_copy_kind kind)
{
    static const char *const names[] = {"copy", "h2d", "d2h", "d2d", "h2h"};
    return names[kind];
}

static void write_line(const char *what, uint64_t stream, uint64_t task, size_t bytes,
                       aclError status, bool begins, float content)
{
    char line[384], number[32] = "null";
    if (isfinite(content))
        snprintf(number, sizeof number, "%.9g", (double)content);
    int length = snprintf(
        line, sizeof line,
        "{\"ns\": %lld, \"thread\": %ld, \"stream\": %llu, \"task\": %llu, \"what\": \"%s\", "
        "\"phase\": \"%s\", \"bytes\": %zu, \"status\": %d, \"content\": %s}\n",
        (long long)sim_now_ns(), (long)gettid(), (unsigned long long)stream,
        (unsigned long long)task, what, begins ? "begin" : "end", bytes, status, number);
    /* One write for one line: lines of several threads and processes do not mix. */
    if (write(file, line, (size_t)length) != length)
        fprintf(stderr, "opferry-simulator: a line of the event log was lost\n");
}

void sim_log_task(const struct sim_task *task, bool begins)
{
    static const char *const names[] = {"copy", "memset", "event", "wait", "kernel"};
    if (file < 0)
        return;
    const char *what = task->kind == SIM_TASK_COPY ? copy_name(task->copy.kind) : names[task->kind];
    float content = NAN;
    if (task->kind == SIM_TASK_KERNEL) /* tells whose kernel it is */
        content = task->kernel.kernel->first_value(&task->kernel);
    write_line(what, task->stream->object.serial, task->sequence, task->copy.bytes, task->status,
               begins, content);
}

void sim_log_copy(enum sim_copy_kind kind, size_t bytes, bool begins)
{
    if (file >= 0)
        write_line(copy_name(kind), 0, 0, bytes, ACL_SUCCESS, begins, NAN);
}
