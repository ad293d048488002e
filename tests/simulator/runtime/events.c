/* Events: marks on streams, for waiting, for ordering streams, and for time. */
#include "objects.h"

#include <stdlib.h>

static aclError find(struct sim_call *call, aclrtEvent handle, struct sim_event **event)
{
    char why[128];
    *event = sim_handle_find(handle, SIM_KIND_EVENT, why);
    if (*event == NULL)
        return sim_violate(call, ACL_ERROR_RT_INVALID_HANDLE, "%s", why);
    if ((*event)->device != call->device)
        return sim_violate(call, ACL_ERROR_RT_PARAM_INVALID,
                           "the event is of device %d; this thread's device is %d",
                           (*event)->device, call->device);
    return ACL_SUCCESS;
}

aclError aclrtCreateEventExWithFlag(aclrtEvent *event, uint32_t flag)
{
    struct sim_call call;
    aclError status = sim_enter(&call, SIM_aclrtCreateEventExWithFlag, SIM_NEEDS_CONTEXT);
    if (status == ACL_SUCCESS && event == NULL)
        status = sim_violate(&call, ACL_ERROR_RT_PARAM_INVALID, "event is null");
    else if (status == ACL_SUCCESS && (flag == 0 || flag > 0x7F))
        status = sim_violate(&call, ACL_ERROR_RT_PARAM_INVALID, "flag 0x%x is unknown", flag);
    else if (status == ACL_SUCCESS &&
             sim_gauge_live(SIM_GAUGE_EVENTS) >= sim_settings.event_limit)
        status = sim_refuse(&call, ACL_ERROR_RT_NO_EVENT_RESOURCE, "there are %lld events already",
                            (long long)sim_settings.event_limit);
    else if (status == ACL_SUCCESS) {
        struct sim_event *made = calloc(1, sizeof *made);
        made->device = call.device;
        made->flags = flag;
        sim_handle_add(&made->object, SIM_KIND_EVENT);
        sim_gauge(SIM_GAUGE_EVENTS, 1);
        *event = sim_handle(&made->object);
    }
    return sim_leave(&call, status);
}

aclError aclrtDestroyEvent(aclrtEvent event)
{
    struct sim_call call;
    struct sim_event *found;
    aclError status = sim_enter(&call, SIM_aclrtDestroyEvent, SIM_NEEDS_CONTEXT | SIM_RELEASES);
    if (status == ACL_SUCCESS)
        status = find(&call, event, &found);
    if (status == ACL_SUCCESS && sim_event_in_use(found)) {
        status = sim_violate(&call, ACL_ERROR_RT_PARAM_INVALID,
                             "destroyed before the stream that it is on was synchronised");
    } else if (status == ACL_SUCCESS) {
        sim_handle_remove(&found->object);
        sim_gauge(SIM_GAUGE_EVENTS, -1);
        sim_clock_clear(&found->clock);
        free(found);
    }
    return sim_leave(&call, status);
}

aclError aclrtRecordEvent(aclrtEvent event, aclrtStream stream)
{
    struct sim_call call;
    struct sim_event *found;
    struct sim_stream *on;
    aclError status = sim_enter(&call, SIM_aclrtRecordEvent, SIM_NEEDS_CONTEXT);
    if (status == ACL_SUCCESS)
        status = find(&call, event, &found);
    if (status == ACL_SUCCESS)
        status = sim_stream_find(&call, stream, &on);
    if (status == ACL_SUCCESS) {
        struct sim_task *task = sim_task_new(SIM_TASK_RECORD, &call);
        task->event = found;
        task->event_record = ++found->recorded;
        status = sim_submit(&call, on, task);
        if (status == ACL_SUCCESS) {
            found->stream = on->object.serial;
            sim_clock_clear(&found->clock);
            sim_clock_merge(&found->clock, &on->clock);
            sim_clock_raise(&found->clock, on->object.serial, on->submitted);
        }
    }
    return sim_leave(&call, status);
}

aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event)
{
    struct sim_call call;
    struct sim_event *found;
    struct sim_stream *on;
    aclError status = sim_enter(&call, SIM_aclrtStreamWaitEvent, SIM_NEEDS_CONTEXT);
    if (status == ACL_SUCCESS)
        status = find(&call, event, &found);
    if (status == ACL_SUCCESS)
        status = sim_stream_find(&call, stream, &on);
    if (status == ACL_SUCCESS && found->recorded == 0) {
        status = sim_violate(&call, ACL_ERROR_RT_PARAM_INVALID,
                             "waits for an event that was never recorded");
    } else if (status == ACL_SUCCESS) {
        struct sim_task *task = sim_task_new(SIM_TASK_WAIT, &call);
        task->event = found;
        task->event_record = found->recorded;
        sim_clock_merge(&task->clock, &found->clock);
        sim_clock_merge(&on->clock, &found->clock);
        status = sim_submit(&call, on, task);
    }
    return sim_leave(&call, status);
}

static aclError wait_for(struct sim_call *call, struct sim_event *event, int64_t timeout_ms)
{
    if (event->recorded == 0)
        return sim_violate(call, ACL_ERROR_RT_PARAM_INVALID, "the event was never recorded");
    uint64_t record = event->recorded;
    int64_t deadline = timeout_ms < 0 ? INT64_MAX : sim_now_ns() + timeout_ms * 1000000;
    bool in_time = timeout_ms != 0;
    while (event->completed < record && in_time)
        in_time = sim_wait(deadline);
    if (event->completed < record)
        return sim_refuse(call, ACL_ERROR_RT_TASK_TIMEOUT, "not reached after %lld ms",
                          (long long)timeout_ms);
    if (event->aborted >= record)
        return sim_refuse(call, ACL_ERROR_RT_STREAM_ABORT, "the stream's tasks were aborted");
    struct sim_stream *stream = sim_handle_by_serial(event->stream);
    aclError own = stream == NULL ? ACL_SUCCESS : sim_report_error(call, stream);
    if (own != ACL_SUCCESS)
        return own;
    if (sim_fault_status != ACL_SUCCESS)
        return sim_refuse(call, ACL_ERROR_RT_DRV_INTERNAL_ERROR,
                          "driver internal error (507899): the process lost its device to %d",
                          sim_fault_status);
    sim_retire_clock(&event->clock);
    return ACL_SUCCESS;
}

static aclError synchronise(enum sim_function function, aclrtEvent event, int32_t timeout)
{
    struct sim_call call;
    struct sim_event *found;
    aclError status = sim_enter(&call, function, SIM_NEEDS_CONTEXT);
    if (status == ACL_SUCCESS && timeout < -1)
        status = sim_violate(&call, ACL_ERROR_RT_PARAM_INVALID, "a timeout of %d ms", timeout);
    if (status == ACL_SUCCESS)
        status = find(&call, event, &found);
    if (status == ACL_SUCCESS)
        status = wait_for(&call, found, timeout);
    return sim_leave(&call, status);
}

aclError aclrtSynchronizeEvent(aclrtEvent event)
{
    return synchronise(SIM_aclrtSynchronizeEvent, event, -1);
}

aclError aclrtSynchronizeEventWithTimeout(aclrtEvent event, int32_t timeout)
{
    return synchronise(SIM_aclrtSynchronizeEventWithTimeout, event, timeout);
}

aclError aclrtQueryEventStatus(aclrtEvent event, aclrtEventRecordedStatus *status)
{
    struct sim_call call;
    struct sim_event *found;
    aclError answer = sim_enter(&call, SIM_aclrtQueryEventStatus, SIM_NEEDS_CONTEXT);
    if (answer == ACL_SUCCESS && status == NULL)
        answer = sim_violate(&call, ACL_ERROR_RT_PARAM_INVALID, "status is null");
    if (answer == ACL_SUCCESS)
        answer = find(&call, event, &found);
    if (answer == ACL_SUCCESS && found->completed < found->recorded) {
        *status = ACL_EVENT_RECORDED_STATUS_NOT_READY;
    } else if (answer == ACL_SUCCESS) {
        answer = wait_for(&call, found, 0);
        *status = ACL_EVENT_RECORDED_STATUS_COMPLETE;
    }
    return sim_leave(&call, answer);
}

static aclError elapsed(struct sim_call *call, const struct sim_event *start,
                        const struct sim_event *end, float *ms)
{
    if ((start->flags & ACL_EVENT_TIME_LINE) == 0 || (end->flags & ACL_EVENT_TIME_LINE) == 0)
        return sim_violate(call, ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID,
                           "an event was made without ACL_EVENT_TIME_LINE");
    if (start->recorded == 0 || end->recorded == 0)
        return sim_violate(call, ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID,
                           "an event was never recorded");
    /* By the streams' books, not by the clock, so that a missing wait always shows. */
    if (sim_event_in_use(start) || sim_event_in_use(end))
        return sim_violate(call, ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID,
                           "read before the stream that the event is on was synchronised");
    if (end->time_ns < start->time_ns)
        return sim_violate(call, ACL_ERROR_RT_EVENT_TIMESTAMP_REVERSAL,
                           "the end was reached before the start");
    *ms = (float)(end->time_ns - start->time_ns) / 1e6F;
    return ACL_SUCCESS;
}

aclError aclrtEventElapsedTime(float *ms, aclrtEvent startEvent, aclrtEvent endEvent)
{
    struct sim_call call;
    struct sim_event *start, *end;
    aclError status = sim_enter(&call, SIM_aclrtEventElapsedTime, SIM_NEEDS_CONTEXT);
    if (status == ACL_SUCCESS && ms == NULL)
        status = sim_violate(&call, ACL_ERROR_RT_PARAM_INVALID, "ms is null");
    if (status == ACL_SUCCESS)
        status = find(&call, startEvent, &start);
    if (status == ACL_SUCCESS)
        status = find(&call, endEvent, &end);
    if (status == ACL_SUCCESS)
        status = elapsed(&call, start, end, ms);
    return sim_leave(&call, status);
}
