/* Devices. aclrtSetDevice binds the calling thread only, and is counted for the process. */
#include "objects.h"
#include "process.h"

struct sim_device sim_devices[SIM_MAX_DEVICES];

static aclError check_device(struct sim_call *call, int32_t device)
{
    if (device < 0 || device >= sim_settings.visible_count)
        return sim_refuse(call, ACL_ERROR_RT_INVALID_DEVICEID, "there is no device %d; %d visible",
                          device, sim_settings.visible_count);
    return ACL_SUCCESS;
}

aclError aclrtGetDeviceCount(uint32_t *count)
{
    struct sim_call call;
    aclError status = sim_enter(&call, SIM_aclrtGetDeviceCount, SIM_NEEDS_INIT | SIM_WHEN_LOST);
    if (status == ACL_SUCCESS && count == NULL)
        status = sim_violate(&call, ACL_ERROR_RT_PARAM_INVALID, "count is null");
    else if (status == ACL_SUCCESS)
        *count = (uint32_t)sim_settings.visible_count;
    return sim_leave(&call, status);
}

static aclError set_device(struct sim_call *call, int32_t number)
{
    aclError status = check_device(call, number);
    if (status != ACL_SUCCESS)
        return status;
    if (!sim_memory_open(call, number))
        return ACL_ERROR_RT_INTERNAL_ERROR;
    struct sim_device *device = &sim_devices[number];
    if (device->default_context == NULL) {
        struct sim_context *context = sim_context_new(number, true);
        context->default_stream = sim_stream_new(call, context, true);
        if (context->default_stream == NULL) {
            sim_context_free(context);
            return ACL_ERROR_RT_NO_STREAM_RESOURCE;
        }
        device->default_context = context;
    }
    device->set_count++;
    sim_make_current(device->default_context);
    return ACL_SUCCESS;
}

aclError aclrtSetDevice(int32_t deviceId)
{
    struct sim_call call;
    aclError status = sim_enter_device(&call, SIM_aclrtSetDevice, SIM_NEEDS_INIT, deviceId);
    if (status == ACL_SUCCESS)
        status = set_device(&call, deviceId);
    return sim_leave(&call, status);
}

aclError aclrtGetDevice(int32_t *deviceId)
{
    struct sim_call call;
    aclError status = sim_enter(&call, SIM_aclrtGetDevice, SIM_NEEDS_CONTEXT);
    if (status == ACL_SUCCESS && deviceId == NULL)
        status = sim_violate(&call, ACL_ERROR_RT_PARAM_INVALID, "deviceId is null");
    else if (status == ACL_SUCCESS)
        *deviceId = call.device;
    return sim_leave(&call, status);
}

/* Takes everything of a device away: streams, contexts, memory. */
static void tear_down(int number)
{
    for (struct sim_stream *stream = sim_streams, *next; stream != NULL; stream = next) {
        next = stream->next;
        if (stream->device != number)
            continue;
        sim_abort_stream(stream, ACL_ERROR_RT_DEVICE_TASK_ABORT);
        sim_stream_delete(stream);
        next = sim_streams; /* the lock was let go */
    }
    for (struct sim_context *context = sim_contexts, *next; context != NULL; context = next) {
        next = context->next;
        if (context->device == number)
            sim_context_free(context);
    }
    sim_memory_close(number);
    sim_devices[number].default_context = NULL;
    sim_devices[number].set_count = 0;
}

/* A device that goes while things on it live, takes them along: their owners do not know. */
static void check_for_leftovers(struct sim_call *call, int number)
{
    int streams = 0, contexts = 0;
    for (const struct sim_stream *stream = sim_streams; stream != NULL; stream = stream->next)
        streams += stream->device == number && !stream->is_default;
    for (const struct sim_context *context = sim_contexts; context != NULL;
         context = context->next)
        contexts += context->device == number && !context->is_default;
    size_t bytes = sim_memory_used(number);
    if (streams > 0 || contexts > 0 || bytes > 0)
        sim_violate(call, ACL_SUCCESS,
                    "device %d is reset with %d streams, %d contexts and %zu bytes still there",
                    number, streams, contexts, bytes);
}

static aclError reset_device(struct sim_call *call, int32_t number)
{
    aclError status = check_device(call, number);
    if (status != ACL_SUCCESS)
        return status;
    struct sim_device *device = &sim_devices[number];
    if (device->set_count == 0)
        return sim_violate(call, ACL_ERROR_RT_INVALID_DEVICEID,
                           "device %d is reset more often than it was set", number);
    if (device->set_count > 1) {
        device->set_count--;
        return ACL_SUCCESS;
    }
    for (struct sim_stream *stream = sim_streams; stream != NULL; stream = stream->next)
        if (stream->device == number && status == ACL_SUCCESS)
            status = sim_synchronise(call, stream, UINT64_MAX, -1);
    check_for_leftovers(call, number);
    tear_down(number);
    return status;
}

aclError aclrtResetDevice(int32_t deviceId)
{
    struct sim_call call;
    aclError status = sim_enter_device(&call, SIM_aclrtResetDevice,
                                       SIM_NEEDS_INIT | SIM_RELEASES, deviceId);
    if (status == ACL_SUCCESS)
        status = reset_device(&call, deviceId);
    return sim_leave(&call, status);
}

aclError aclrtResetDeviceForce(int32_t deviceId)
{
    struct sim_call call;
    aclError status = sim_enter_device(&call, SIM_aclrtResetDeviceForce,
                                       SIM_NEEDS_INIT | SIM_WHEN_LOST, deviceId);
    if (status == ACL_SUCCESS)
        status = check_device(&call, deviceId);
    if (status == ACL_SUCCESS) {
        tear_down(deviceId);
        sim_lost = false;
        sim_fault_status = ACL_SUCCESS;
    }
    return sim_leave(&call, status);
}

static aclError synchronise_device(enum sim_function function, int32_t timeout)
{
    struct sim_call call;
    aclError status = sim_enter(&call, function, SIM_NEEDS_CONTEXT | SIM_WHEN_LOST);
    if (status == ACL_SUCCESS && timeout < -1)
        status = sim_violate(&call, ACL_ERROR_RT_PARAM_INVALID, "a timeout of %d ms", timeout);
    else if (status == ACL_SUCCESS)
        status = sim_synchronise_device(&call, timeout);
    return sim_leave(&call, status);
}

aclError aclrtSynchronizeDevice(void)
{
    return synchronise_device(SIM_aclrtSynchronizeDevice, -1);
}

aclError aclrtSynchronizeDeviceWithTimeout(int32_t timeout)
{
    return synchronise_device(SIM_aclrtSynchronizeDeviceWithTimeout, timeout);
}

aclError aclrtQueryDeviceStatus(int32_t deviceId, aclrtDeviceStatus *deviceStatus)
{
    struct sim_call call;
    aclError status = sim_enter_device(&call, SIM_aclrtQueryDeviceStatus,
                                       SIM_NEEDS_INIT | SIM_WHEN_LOST, deviceId);
    if (status == ACL_SUCCESS)
        status = check_device(&call, deviceId);
    if (status == ACL_SUCCESS && deviceStatus == NULL)
        status = sim_violate(&call, ACL_ERROR_RT_PARAM_INVALID, "deviceStatus is null");
    else if (status == ACL_SUCCESS)
        *deviceStatus = sim_fault_status != 0 ? ACL_RT_DEVICE_STATUS_ABNORMAL
                                              : ACL_RT_DEVICE_STATUS_NORMAL;
    return sim_leave(&call, status);
}

aclError aclrtDeviceTaskAbort(int32_t deviceId, uint32_t timeout)
{
    (void)timeout;
    struct sim_call call;
    aclError status = sim_enter_device(&call, SIM_aclrtDeviceTaskAbort, SIM_NEEDS_INIT, deviceId);
    if (status == ACL_SUCCESS)
        status = check_device(&call, deviceId);
    if (status == ACL_SUCCESS && !sim_settings.task_abort)
        status = sim_refuse(&call, ACL_ERROR_RT_FEATURE_NOT_SUPPORT,
                            "reserved on this SoC (OPFERRY_SIM_TASK_ABORT=1 allows it)");
    else if (status == ACL_SUCCESS)
        for (struct sim_stream *stream = sim_streams; stream != NULL; stream = stream->next)
            if (stream->device == deviceId)
                sim_abort_stream(stream, ACL_ERROR_RT_DEVICE_TASK_ABORT);
    return sim_leave(&call, status);
}

aclError aclrtGetMemInfo(aclrtMemAttr attr, size_t *free, size_t *total)
{
    struct sim_call call;
    aclError status = sim_enter(&call, SIM_aclrtGetMemInfo, SIM_NEEDS_CONTEXT);
    if (status == ACL_SUCCESS && (free == NULL || total == NULL))
        status = sim_violate(&call, ACL_ERROR_RT_PARAM_INVALID, "an argument is null");
    else if (status == ACL_SUCCESS && (int)attr < 0)
        status = sim_violate(&call, ACL_ERROR_RT_PARAM_INVALID, "there is no attribute %d",
                             (int)attr);
    else if (status == ACL_SUCCESS) {
        *total = sim_settings.device_memory_bytes;
        *free = *total - sim_memory_used(call.device);
    }
    return sim_leave(&call, status);
}
