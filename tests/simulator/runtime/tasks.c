/* What the tasks of a stream do. Without the lock, except where they wait. */
#include "objects.h"

#include <stdio.h>
#include <string.h>

#include "tasks.h"

#define LANES 4

uint64_t sim_digest(const unsigned char *bytes, size_t count)
{
    const uint64_t factor = UINT64_C(0x9E3779B97F4A7C15);
    /* Lanes that do not wait for one another: a digest must cost less than the copy. */
    uint64_t lanes[LANES] = {1, 2, 3, 4}, word, digest = count;
    size_t i = 0;
    for (; i + LANES * sizeof word <= count; i += LANES * sizeof word) {
        for (size_t k = 0; k < LANES; k++) {
            memcpy(&word, bytes + i + k * sizeof word, sizeof word);
            lanes[k] = (lanes[k] ^ word) * factor;
            lanes[k] ^= lanes[k] >> 29;
        }
    }
    for (size_t k = 0; k < LANES; k++)
        digest = (digest ^ lanes[k]) * factor;
    for (; i < count; i++)
        digest = (digest ^ bytes[i]) * factor;
    return digest;
}

void sim_count_copy(enum sim_copy_kind kind, size_t bytes)
{
    static const enum sim_tally tallies[] = {
        [SIM_H2D] = SIM_TALLY_H2D_BYTES,
        [SIM_D2H] = SIM_TALLY_D2H_BYTES,
        [SIM_D2D] = SIM_TALLY_D2D_BYTES,
    };
    if (kind == SIM_H2D || kind == SIM_D2H || kind == SIM_D2D)
        sim_tally(tallies[kind], (int64_t)bytes);
}

/* A broken rule that only the device sees: recorded, and the task fails as it would there. */
static aclError fail(aclError status, const char *what, char *text, size_t size)
{
    snprintf(text, size, "%s", what);
    sim_lock();
    sim_record_violation(what, true);
    sim_unlock();
    return status;
}

static aclError copy(struct sim_task *task, char *text, size_t size)
{
    if (task->copy.has_digest &&
        sim_digest(task->copy.source, task->copy.bytes) != task->copy.digest)
        return fail(ACL_ERROR_RT_SYS_DMA,
                    "aclrtMemcpyAsync: the host altered pinned memory before the copy from it was "
                    "synchronised",
                    text, size);
    memcpy(task->copy.target, task->copy.source, task->copy.bytes);
    sim_lock();
    sim_count_copy(task->copy.kind, task->copy.bytes);
    sim_unlock();
    return ACL_SUCCESS;
}

static aclError wait_for_event(struct sim_task *task, char *text, size_t size)
{
    aclError status = ACL_SUCCESS;
    sim_lock();
    while (task->event->completed < task->event_record && !task->stream->aborting)
        sim_wait(INT64_MAX);
    if (task->stream->aborting) {
        status = ACL_ERROR_RT_STREAM_ABORT;
        snprintf(text, size, "aborted");
    }
    sim_unlock();
    return status;
}

aclError sim_run_task(struct sim_task *task, char *text, size_t size)
{
    switch (task->kind) {
    case SIM_TASK_COPY:
        return copy(task, text, size);
    case SIM_TASK_MEMSET:
        memset(task->copy.target, task->copy.value, task->copy.bytes);
        return ACL_SUCCESS;
    case SIM_TASK_WAIT:
        return wait_for_event(task, text, size);
    case SIM_TASK_KERNEL:
        sim_run_kernel(&task->kernel, &task->effects);
        sim_lock();
        sim_tally(SIM_TALLY_KERNELS, 1);
        sim_unlock();
        return ACL_SUCCESS;
    case SIM_TASK_RECORD:
        return ACL_SUCCESS; /* the stream marks it, in one step with the task's end */
    }
    return ACL_ERROR_RT_INTERNAL_ERROR;
}
