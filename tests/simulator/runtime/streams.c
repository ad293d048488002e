/* Streams: their life, the tasks put on them, and waiting for them. */
#include "messages.h"
#include "objects.h"
#include "process.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STACK_BYTES (1024 * 1024)

struct sim_stream *sim_streams;

struct sim_stream *sim_stream_new(struct sim_call *call, struct sim_context *context,
                                  bool is_default)
{
    struct sim_device *device = &sim_devices[context->device];
    if (device->stream_count >= sim_settings.stream_limit) {
        sim_refuse(call, ACL_ERROR_RT_NO_STREAM_RESOURCE, "device %d has its %lld streams already",
                   context->device, (long long)sim_settings.stream_limit);
        return NULL;
    }
    device->stream_count++;
    struct sim_stream *stream = calloc(1, sizeof *stream);
    stream->context = context;
    stream->device = context->device;
    stream->is_default = is_default;
    stream->next = sim_streams;
    sim_streams = stream;
    sim_handle_add(&stream->object, SIM_KIND_STREAM);
    sim_gauge(SIM_GAUGE_STREAMS, 1);
    return stream;
}

/* Ends the thread, which has nothing left to do; the lock is let go meanwhile. */
static void stop_thread(struct sim_stream *stream)
{
    if (!stream->has_thread)
        return;
    stream->stop = true;
    stream->has_thread = false;
    pthread_cond_broadcast(&sim_changed);
    sim_unlock();
    pthread_join(stream->thread, NULL);
    sim_lock();
}

void sim_stream_delete(struct sim_stream *stream)
{
    while (stream->waiters > 0)
        sim_wait(INT64_MAX);
    sim_handle_remove(&stream->object);
    stop_thread(stream);
    struct sim_stream **at = &sim_streams;
    while (*at != stream)
        at = &(*at)->next;
    *at = stream->next;
    while (stream->first != NULL)
        sim_retire_task(stream->first);
    sim_clock_clear(&stream->clock);
    sim_devices[stream->device].stream_count--;
    if (stream->is_default)
        stream->context->default_stream = NULL;
    sim_gauge(SIM_GAUGE_STREAMS, -1);
    free(stream);
}

void sim_stop_streams(void)
{
    for (struct sim_stream *stream = sim_streams; stream != NULL; stream = stream->next) {
        sim_abort_stream(stream, ACL_ERROR_RT_STREAM_ABORT);
        stop_thread(stream);
    }
}

aclError sim_stream_find(struct sim_call *call, aclrtStream handle, struct sim_stream **stream)
{
    char why[128];
    if (handle == NULL) {
        struct sim_stream *own = call->context->default_stream;
        uint64_t thread = sim_thread()->number;
        if (own->owner_thread == 0)
            own->owner_thread = thread;
        if (own->owner_thread != thread)
            return sim_violate(call, ACL_ERROR_RT_STREAM_CONTEXT,
                               "a second thread uses the default stream");
        *stream = own;
        return ACL_SUCCESS;
    }
    *stream = sim_handle_find(handle, SIM_KIND_STREAM, why);
    if (*stream == NULL)
        return sim_violate(call, ACL_ERROR_RT_INVALID_HANDLE, "%s", why);
    if ((*stream)->context != call->context)
        return sim_violate(call, ACL_ERROR_RT_STREAM_CONTEXT,
                           "the stream belongs to another context than this thread's");
    return ACL_SUCCESS;
}

struct sim_task *sim_task_new(enum sim_task_kind kind, const struct sim_call *call)
{
    struct sim_task *task = calloc(1, sizeof *task);
    task->kind = kind;
    task->effects = call->effects;
    return task;
}

void sim_task_use(struct sim_task *task, const void *start, size_t bytes, bool writes)
{
    struct sim_use *use = &task->uses[task->use_count++];
    use->start = (uintptr_t)start;
    use->bytes = bytes;
    use->writes = writes;
}

/* A stream without tasks needs no thread, so that 1984 of them cost nothing. */
static bool start_thread(struct sim_stream *stream)
{
    sigset_t all, before;
    pthread_attr_t attributes;
    if (stream->has_thread)
        return true;
    /* The program's signals are for the program's threads. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    stream->stop = false;
    stream->has_thread =
        pthread_create(&stream->thread, &attributes, sim_stream_thread, stream) == 0;
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return stream->has_thread;
}

static void discard(struct sim_task *task)
{
    sim_clock_clear(&task->clock);
    free(task);
}

aclError sim_submit(struct sim_call *call, struct sim_stream *stream, struct sim_task *task)
{
    char text[160];
    for (int i = 0; i < task->use_count; i++) {
        if (sim_clash(&task->uses[i], stream, text, sizeof text)) {
            discard(task);
            return sim_violate(call, ACL_ERROR_RT_PARAM_INVALID,
                               "uses memory at the same time as %s; nothing orders the two", text);
        }
    }
    if (!start_thread(stream)) {
        discard(task);
        return sim_refuse(call, ACL_ERROR_RT_NO_STREAM_RESOURCE, "no thread for the stream");
    }
    task->stream = stream;
    task->sequence = ++stream->submitted;
    task->previous = stream->last;
    if (stream->last != NULL)
        stream->last->next = task;
    else
        stream->first = task;
    stream->last = task;
    if (stream->upcoming == NULL)
        stream->upcoming = task;
    pthread_cond_broadcast(&sim_changed);
    return ACL_SUCCESS;
}

void sim_abort_stream(struct sim_stream *stream, aclError status)
{
    stream->waiters++;
    stream->aborting = true;
    stream->upcoming = NULL;
    pthread_cond_broadcast(&sim_changed);
    while (stream->running != NULL)
        sim_wait(INT64_MAX);
    for (struct sim_task *task = stream->first; task != NULL; task = task->next) {
        task->done = true;
        if (task->kind == SIM_TASK_RECORD && task->event->completed < task->event_record)
            /* or its waiters would wait for ever */
            task->event->completed = task->event->aborted = task->event_record;
    }
    stream->aborting = false;
    stream->abort_status = status;
    stream->aborts++;
    stream->completed = stream->submitted;
    sim_retire(stream, stream->submitted);
    stream->waiters--;
    pthread_cond_broadcast(&sim_changed);
}

static int64_t deadline_after(int64_t timeout_ms)
{
    return timeout_ms < 0 ? INT64_MAX : sim_now_ns() + timeout_ms * 1000000;
}

aclError sim_report_error(struct sim_call *call, struct sim_stream *stream)
{
    aclError status = stream->error;
    if (status == ACL_SUCCESS)
        return ACL_SUCCESS;
    sim_retire(stream, stream->completed);
    stream->error = ACL_SUCCESS;
    sim_refuse(call, status, "stream %llu: %s (%d): %s",
               (unsigned long long)stream->object.serial, sim_status_name(status), status,
               stream->error_text);
    return status;
}

aclError sim_synchronise(struct sim_call *call, struct sim_stream *stream, uint64_t sequence,
                         int64_t timeout_ms)
{
    uint64_t target = sequence < stream->submitted ? sequence : stream->submitted;
    uint64_t aborts = stream->aborts;
    int64_t deadline = deadline_after(timeout_ms);
    bool in_time = timeout_ms != 0;
    stream->waiters++;
    while (stream->completed < target && stream->aborts == aborts && in_time)
        in_time = sim_wait(deadline);
    stream->waiters--;
    pthread_cond_broadcast(&sim_changed); /* somebody may wait for the waiters to leave */
    if (stream->aborts != aborts)
        return sim_refuse(call, stream->abort_status, "the stream's tasks were aborted");
    /* Its own error comes first: that is how the guilty one is told from the innocent. */
    aclError own = sim_report_error(call, stream);
    if (own != ACL_SUCCESS)
        return own;
    if (sim_lost)
        return sim_refuse(call, ACL_ERROR_RT_DRV_INTERNAL_ERROR,
                          "driver internal error (507899): the process lost its device to %s (%d)",
                          sim_status_name(sim_fault_status), sim_fault_status);
    if (stream->completed < target)
        return sim_refuse(call, ACL_ERROR_RT_TASK_TIMEOUT, "not finished after %lld ms",
                          (long long)timeout_ms);
    sim_retire(stream, target);
    return ACL_SUCCESS;
}

aclError sim_synchronise_device(struct sim_call *call, int64_t timeout_ms)
{
    int64_t deadline = deadline_after(timeout_ms);
    aclError first = ACL_SUCCESS;
    for (struct sim_stream *stream = sim_streams; stream != NULL; stream = stream->next) {
        if (stream->device != call->device)
            continue;
        int64_t left = -1;
        if (deadline != INT64_MAX) {
            left = (deadline - sim_now_ns()) / 1000000;
            left = left < 0 ? 0 : left;
        }
        aclError status = sim_synchronise(call, stream, UINT64_MAX, left);
        first = first == ACL_SUCCESS ? status : first;
    }
    return first;
}
