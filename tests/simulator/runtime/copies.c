/* Copies and memsets. With pinned host memory a copy on a stream is truly asynchronous; with
 * pageable memory it returns when it is done; without a stream nothing waits for any stream. */
#include "objects.h"
#include "tasks.h"

#include <string.h>

static enum sim_copy_kind direction(aclrtMemcpyKind kind)
{
    switch ((int)kind) {
    case ACL_MEMCPY_HOST_TO_HOST:
        return SIM_H2H;
    case ACL_MEMCPY_HOST_TO_DEVICE:
        return SIM_H2D;
    case ACL_MEMCPY_DEVICE_TO_HOST:
        return SIM_D2H;
    case ACL_MEMCPY_DEVICE_TO_DEVICE:
        return SIM_D2D;
    default:
        return SIM_ANY_COPY;
    }
}

static aclError check_sizes(struct sim_call *call, size_t most, size_t count)
{
    if (count == 0)
        return sim_violate(call, ACL_ERROR_RT_PARAM_INVALID, "a count of 0 is not allowed");
    if (count > most)
        return sim_violate(call, ACL_ERROR_RT_PARAM_INVALID,
                           "count %zu is larger than the destination's %zu", count, most);
    return ACL_SUCCESS;
}

static aclError place(struct sim_call *call, bool on_device, const void *pointer, size_t bytes,
                      const char *what, struct sim_place *found)
{
    return on_device ? sim_place_device(call, pointer, bytes, what, found)
                     : sim_place_host(call, pointer, bytes, what, found);
}

static aclError place_both(struct sim_call *call, enum sim_copy_kind kind, const void *target,
                           const void *source, size_t count, struct sim_place places[2])
{
    if (kind == SIM_ANY_COPY)
        return sim_violate(call, ACL_ERROR_RT_PARAM_INVALID, "this kind of copy is not modelled");
    aclError status = place(call, kind == SIM_H2D || kind == SIM_D2D, target, count,
                            "the destination", &places[0]);
    if (status == ACL_SUCCESS)
        status = place(call, kind == SIM_D2H || kind == SIM_D2D, source, count, "the source",
                       &places[1]);
    return status;
}

static void keep_busy(const struct sim_place *found, int change)
{
    if (found->allocation != NULL)
        found->allocation->busy += change;
    if (found->pinned != NULL)
        found->pinned->busy += change;
}

/* A host call clashes with whatever a stream may still be doing to the same memory. */
static aclError check_host_clash(struct sim_call *call, const void *pointer, size_t bytes,
                                 bool writes)
{
    char text[160];
    struct sim_use use = {(uintptr_t)pointer, bytes, writes};
    if (sim_clash(&use, NULL, text, sizeof text))
        return sim_violate(call, ACL_ERROR_RT_PARAM_INVALID,
                           "%s memory before the stream was synchronised: %s uses it",
                           writes ? "writes" : "reads", text);
    return ACL_SUCCESS;
}

aclError aclrtMemcpy(void *dst, size_t destMax, const void *src, size_t count, aclrtMemcpyKind kind)
{
    struct sim_call call;
    struct sim_place places[2];
    enum sim_copy_kind way = direction(kind);
    aclError status = sim_enter_copy(&call, SIM_aclrtMemcpy, SIM_NEEDS_CONTEXT, way);
    if (status == ACL_SUCCESS)
        status = check_sizes(&call, destMax, count);
    if (status == ACL_SUCCESS)
        status = place_both(&call, way, dst, src, count, places);
    if (status == ACL_SUCCESS)
        status = check_host_clash(&call, dst, count, true);
    if (status == ACL_SUCCESS)
        status = check_host_clash(&call, src, count, false);
    if (status == ACL_SUCCESS) {
        keep_busy(&places[0], 1);
        keep_busy(&places[1], 1);
        sim_unlock();
        sim_log_copy(way, count, true);
        memmove(places[0].bytes, places[1].bytes, count);
        sim_log_copy(way, count, false);
        sim_lock();
        keep_busy(&places[0], -1);
        keep_busy(&places[1], -1);
        sim_count_copy(way, count);
    }
    return sim_leave(&call, status);
}

/* The host must leave both sides alone until it has synchronised. A source that it alters is found
 * by its digest; a target is made dirty, so that who reads it early finds nothing there. Both only
 * where no earlier task on a stream has business with the memory. */
static void guard_pinned(struct sim_task *task, struct sim_stream *stream,
                         const struct sim_place places[2])
{
    char text[160];
    size_t bytes = task->copy.bytes;
    bool free_source = places[1].pinned != NULL &&
                       !sim_in_use((uintptr_t)task->copy.source, bytes, text, sizeof text);
    bool free_target = places[0].pinned != NULL &&
                       !sim_in_use((uintptr_t)task->copy.target, bytes, text, sizeof text);
    if (!sim_settings.host_digest || (!free_source && !free_target))
        return;
    /* Other streams need not wait for this. */
    stream->waiters++;
    keep_busy(&places[0], 1);
    keep_busy(&places[1], 1);
    sim_unlock();
    if (free_source)
        task->copy.digest = sim_digest(task->copy.source, bytes);
    task->copy.has_digest = free_source;
    if (free_target)
        sim_make_dirty(task->copy.target, bytes);
    sim_lock();
    keep_busy(&places[0], -1);
    keep_busy(&places[1], -1);
    stream->waiters--;
    pthread_cond_broadcast(&sim_changed);
}

static aclError copy_on_stream(struct sim_call *call, struct sim_stream *stream,
                               enum sim_copy_kind kind, void *target, const void *source,
                               size_t count)
{
    struct sim_place places[2];
    aclError status = place_both(call, kind, target, source, count, places);
    if (status != ACL_SUCCESS)
        return status;
    if (kind == SIM_D2D && (((uintptr_t)target | (uintptr_t)source) & 63) != 0)
        return sim_violate(call, ACL_ERROR_RT_ADDR_UNALIGNED,
                           "both addresses of a copy on the device must be multiples of 64");
    struct sim_task *task = sim_task_new(SIM_TASK_COPY, call);
    task->copy.kind = kind;
    task->copy.target = places[0].bytes;
    task->copy.source = places[1].bytes;
    task->copy.bytes = count;
    bool pageable = false;
    for (int i = 0; i < 2; i++) {
        if (places[i].allocation != NULL || places[i].pinned != NULL)
            sim_task_use(task, i == 0 ? target : source, count, i == 0);
        else
            pageable = true;
    }
    guard_pinned(task, stream, places);
    status = sim_submit(call, stream, task);
    if (status != ACL_SUCCESS || !pageable)
        return status;
    /* No synchronisation: an error of the stream stays for the call that is one. */
    uint64_t sequence = task->sequence, aborts = stream->aborts;
    stream->waiters++;
    while (stream->completed < sequence && stream->aborts == aborts)
        sim_wait(INT64_MAX);
    stream->waiters--;
    pthread_cond_broadcast(&sim_changed);
    if (stream->aborts != aborts)
        return sim_refuse(call, stream->abort_status, "the stream's tasks were aborted");
    return ACL_SUCCESS;
}

aclError aclrtMemcpyAsync(void *dst, size_t destMax, const void *src, size_t count,
                          aclrtMemcpyKind kind, aclrtStream stream)
{
    struct sim_call call;
    struct sim_stream *found;
    enum sim_copy_kind way = direction(kind);
    aclError status = sim_enter_copy(&call, SIM_aclrtMemcpyAsync,
                                     SIM_NEEDS_CONTEXT | SIM_DEVICE_SIDE, way);
    if (status == ACL_SUCCESS)
        status = sim_stream_find(&call, stream, &found);
    if (status == ACL_SUCCESS)
        status = check_sizes(&call, destMax, count);
    if (status == ACL_SUCCESS)
        status = copy_on_stream(&call, found, way, dst, src, count);
    return sim_leave(&call, status);
}

static aclError place_memset(struct sim_call *call, void *pointer, size_t bytes,
                             struct sim_place *found)
{
    return place(call, sim_is_device_pointer(pointer), pointer, bytes, "the memory", found);
}

aclError aclrtMemset(void *devPtr, size_t maxCount, int32_t value, size_t count)
{
    struct sim_call call;
    struct sim_place found;
    aclError status = sim_enter(&call, SIM_aclrtMemset, SIM_NEEDS_CONTEXT);
    if (status == ACL_SUCCESS)
        status = check_sizes(&call, maxCount, count);
    if (status == ACL_SUCCESS)
        status = place_memset(&call, devPtr, count, &found);
    if (status == ACL_SUCCESS)
        status = check_host_clash(&call, devPtr, count, true);
    if (status == ACL_SUCCESS)
        memset(found.bytes, value, count);
    return sim_leave(&call, status);
}

aclError aclrtMemsetAsync(void *devPtr, size_t maxCount, int32_t value, size_t count,
                          aclrtStream stream)
{
    struct sim_call call;
    struct sim_stream *on;
    struct sim_place found;
    aclError status =
        sim_enter(&call, SIM_aclrtMemsetAsync, SIM_NEEDS_CONTEXT | SIM_DEVICE_SIDE);
    if (status == ACL_SUCCESS)
        status = sim_stream_find(&call, stream, &on);
    if (status == ACL_SUCCESS)
        status = check_sizes(&call, maxCount, count);
    if (status == ACL_SUCCESS)
        status = place_memset(&call, devPtr, count, &found);
    if (status == ACL_SUCCESS) {
        struct sim_task *task = sim_task_new(SIM_TASK_MEMSET, &call);
        task->copy.target = found.bytes;
        task->copy.value = value;
        task->copy.bytes = count;
        sim_task_use(task, devPtr, count, true);
        status = sim_submit(&call, on, task);
    }
    return sim_leave(&call, status);
}
