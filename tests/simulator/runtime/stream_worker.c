/* What the thread of a stream does: one task after the other. */
#include "faults.h"
#include "objects.h"

#include <stdio.h>
#include <string.h>

/* Waits, with the lock held, until a time or until the stream is aborted; false if aborted. */
static bool pause_task(struct sim_task *task, int64_t deadline_ns)
{
    bool in_time = sim_now_ns() < deadline_ns;
    while (!task->stream->aborting && in_time)
        in_time = sim_wait(deadline_ns);
    return !task->stream->aborting;
}

/* Keeps a task busy as the rules and settings say. Returns the status that this ends in. */
static aclError linger(struct sim_task *task, int64_t began_ns, char *text, size_t size)
{
    const struct sim_effects *effects = &task->effects;
    bool is_kernel = task->kind == SIM_TASK_KERNEL;
    int64_t least_us = is_kernel ? sim_settings.kernel_us
                       : task->kind == SIM_TASK_COPY ? sim_settings.copy_us
                                                     : 0;
    int64_t end = began_ns + (least_us + effects->slow_us) * 1000;
    sim_lock();
    int64_t limit = is_kernel ? began_ns + sim_operator_timeout_us * 1000 : INT64_MAX;
    aclError status = ACL_SUCCESS;
    while (effects->hang_for_ever)
        sim_wait(INT64_MAX);
    while (effects->hold[0] != '\0' && sim_file_exists(effects->hold) && !task->stream->aborting)
        sim_wait(sim_now_ns() + SIM_HOLD_POLL_US * 1000);
    if (effects->hang)
        end = INT64_MAX;
    if (!pause_task(task, end < limit ? end : limit)) {
        status = ACL_ERROR_RT_STREAM_ABORT; /* nobody sees it: the aborter speaks for all */
        snprintf(text, size, "aborted");
    } else if (end > limit) {
        status = ACL_ERROR_RT_AICORE_TIMEOUT;
        snprintf(text, size, "the kernel ran longer than the operator timeout of %lld us",
                 (long long)sim_operator_timeout_us);
    }
    sim_unlock();
    return status;
}

static void apply_content_rules(struct sim_task *task)
{
    if (task->kind != SIM_TASK_KERNEL)
        return;
    const struct sim_kernel *kernel = task->kernel.kernel;
    float content = kernel->first_value(&task->kernel);
    int device = sim_settings.visible[task->stream->device];
    sim_lock();
    sim_fault_match_content(kernel->function, device, content, &task->effects);
    sim_unlock();
    if (task->effects.crash_signal != 0)
        sim_crash(task->effects.crash_signal);
}

/* The time passes before the work: who reads too early finds nothing, who alters too early is
 * noticed. */
static aclError execute(struct sim_task *task, char *text, size_t size)
{
    int64_t began_ns = sim_now_ns();
    apply_content_rules(task);
    aclError status = linger(task, began_ns, text, size);
    if (status == ACL_SUCCESS && task->effects.status != ACL_SUCCESS) {
        status = task->effects.status;
        snprintf(text, size, "injected");
    }
    return status == ACL_SUCCESS ? sim_run_task(task, text, size) : status;
}

static void finish(struct sim_stream *stream, struct sim_task *task, aclError status,
                   const char *text)
{
    task->done = true;
    task->status = status;
    stream->running = NULL;
    if (!stream->aborting) /* else the aborter says so, together with the reason */
        stream->completed = task->sequence;
    if (task->kind == SIM_TASK_RECORD && task->event->completed < task->event_record) {
        task->event->completed = task->event_record;
        task->event->time_ns = sim_now_ns();
    }
    /* The first error is the one that is reported; what follows only comes of it. */
    if (status != ACL_SUCCESS && !stream->aborting && stream->error == ACL_SUCCESS) {
        stream->error = status;
        snprintf(stream->error_text, sizeof stream->error_text, "%s", text);
    }
    if (sim_is_device_fault(status) && sim_settings.sticky && sim_fault_status == ACL_SUCCESS)
        sim_fault_status = status;
    pthread_cond_broadcast(&sim_changed);
}

static void run_next(struct sim_stream *stream)
{
    char text[200] = "";
    struct sim_task *task = stream->upcoming;
    aclError status = ACL_ERROR_RT_DRV_INTERNAL_ERROR;
    stream->upcoming = task->next;
    stream->running = task;
    if (sim_fault_status == ACL_SUCCESS) {
        sim_unlock();
        sim_log_task(task, true);
        status = execute(task, text, sizeof text);
        task->status = status;
        sim_log_task(task, false);
        sim_lock();
    } else {
        snprintf(text, sizeof text, "the process lost its device to %s (%d)",
                 sim_status_name(sim_fault_status), sim_fault_status);
    }
    finish(stream, task, status, text);
}

void *sim_stream_thread(void *argument)
{
    struct sim_stream *stream = argument;
    sim_lock();
    while (!stream->stop) {
        if (stream->upcoming != NULL)
            run_next(stream);
        else
            sim_wait(INT64_MAX);
    }
    sim_unlock();
    return NULL;
}
