/* The calls that make, end, abort and wait for streams. */
#include "objects.h"

static aclError create(enum sim_function function, aclrtStream *stream, uint32_t priority,
                       uint32_t flag)
{
    struct sim_call call;
    aclError status = sim_enter(&call, function, SIM_NEEDS_CONTEXT);
    if (status == ACL_SUCCESS && stream == NULL)
        status = sim_violate(&call, ACL_ERROR_RT_PARAM_INVALID, "stream is null");
    else if (status == ACL_SUCCESS && priority > 7)
        status = sim_violate(&call, ACL_ERROR_RT_PARAM_INVALID, "priority %u is not in 0 to 7",
                             priority);
    else if (status == ACL_SUCCESS && flag > 0x3F)
        status = sim_violate(&call, ACL_ERROR_RT_PARAM_INVALID, "flag 0x%x is unknown", flag);
    else if (status == ACL_SUCCESS) {
        struct sim_stream *made = sim_stream_new(&call, call.context, false);
        if (made == NULL)
            status = ACL_ERROR_RT_NO_STREAM_RESOURCE;
        else
            *stream = sim_handle(&made->object);
    }
    return sim_leave(&call, status);
}

aclError aclrtCreateStream(aclrtStream *stream)
{
    return create(SIM_aclrtCreateStream, stream, 0, 0);
}

aclError aclrtCreateStreamWithConfig(aclrtStream *stream, uint32_t priority, uint32_t flag)
{
    return create(SIM_aclrtCreateStreamWithConfig, stream, priority, flag);
}

/* The stream of a call that cannot mean the default one. */
static aclError find_made(struct sim_call *call, aclrtStream handle, struct sim_stream **stream)
{
    if (handle == NULL)
        return sim_violate(call, ACL_ERROR_RT_INVALID_HANDLE, "the stream is null");
    return sim_stream_find(call, handle, stream);
}

aclError aclrtDestroyStream(aclrtStream stream)
{
    struct sim_call call;
    struct sim_stream *found;
    aclError status = sim_enter(&call, SIM_aclrtDestroyStream, SIM_NEEDS_CONTEXT | SIM_RELEASES);
    if (status == ACL_SUCCESS)
        status = find_made(&call, stream, &found);
    if (status == ACL_SUCCESS && (found->waiters > 0 || found->first != NULL))
        status = sim_violate(&call, ACL_ERROR_RT_PARAM_INVALID,
                             "destroyed before it was synchronised");
    else if (status == ACL_SUCCESS)
        sim_stream_delete(found);
    return sim_leave(&call, status);
}

aclError aclrtDestroyStreamForce(aclrtStream stream)
{
    struct sim_call call;
    struct sim_stream *found;
    aclError status =
        sim_enter(&call, SIM_aclrtDestroyStreamForce, SIM_NEEDS_CONTEXT | SIM_RELEASES);
    if (status == ACL_SUCCESS)
        status = find_made(&call, stream, &found);
    if (status == ACL_SUCCESS) {
        sim_abort_stream(found, ACL_ERROR_RT_STREAM_ABORT);
        sim_stream_delete(found);
    }
    return sim_leave(&call, status);
}

aclError aclrtStreamAbort(aclrtStream stream)
{
    struct sim_call call;
    struct sim_stream *found;
    aclError status = sim_enter(&call, SIM_aclrtStreamAbort, SIM_NEEDS_CONTEXT);
    if (status == ACL_SUCCESS)
        status = find_made(&call, stream, &found);
    if (status == ACL_SUCCESS)
        sim_abort_stream(found, ACL_ERROR_RT_STREAM_ABORT);
    return sim_leave(&call, status);
}

static aclError synchronise(enum sim_function function, aclrtStream stream, int32_t timeout)
{
    struct sim_call call;
    struct sim_stream *found;
    aclError status = sim_enter(&call, function, SIM_NEEDS_CONTEXT | SIM_WHEN_LOST);
    if (status == ACL_SUCCESS && timeout < -1)
        status = sim_violate(&call, ACL_ERROR_RT_PARAM_INVALID, "a timeout of %d ms", timeout);
    if (status == ACL_SUCCESS)
        status = sim_stream_find(&call, stream, &found);
    if (status == ACL_SUCCESS)
        status = sim_synchronise(&call, found, UINT64_MAX, timeout);
    return sim_leave(&call, status);
}

aclError aclrtSynchronizeStream(aclrtStream stream)
{
    return synchronise(SIM_aclrtSynchronizeStream, stream, -1);
}

aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t timeout)
{
    return synchronise(SIM_aclrtSynchronizeStreamWithTimeout, stream, timeout);
}

aclError aclrtStreamQuery(aclrtStream stream, aclrtStreamStatus *status)
{
    struct sim_call call;
    struct sim_stream *found;
    aclError answer = sim_enter(&call, SIM_aclrtStreamQuery, SIM_NEEDS_CONTEXT | SIM_WHEN_LOST);
    if (answer == ACL_SUCCESS && status == NULL)
        answer = sim_violate(&call, ACL_ERROR_RT_PARAM_INVALID, "status is null");
    if (answer == ACL_SUCCESS)
        answer = sim_stream_find(&call, stream, &found);
    if (answer == ACL_SUCCESS && found->completed < found->submitted) {
        *status = ACL_STREAM_STATUS_NOT_READY;
    } else if (answer == ACL_SUCCESS) {
        /* Whoever has seen that all is done, has waited for it. */
        answer = sim_synchronise(&call, found, UINT64_MAX, 0);
        *status = ACL_STREAM_STATUS_COMPLETE;
    }
    return sim_leave(&call, answer);
}

aclError aclrtGetStreamAvailableNum(uint32_t *streamCount)
{
    struct sim_call call;
    aclError status = sim_enter(&call, SIM_aclrtGetStreamAvailableNum, SIM_NEEDS_CONTEXT);
    if (status == ACL_SUCCESS && streamCount == NULL)
        status = sim_violate(&call, ACL_ERROR_RT_PARAM_INVALID, "streamCount is null");
    else if (status == ACL_SUCCESS)
        *streamCount =
            (uint32_t)(sim_settings.stream_limit - sim_devices[call.device].stream_count);
    return sim_leave(&call, status);
}
