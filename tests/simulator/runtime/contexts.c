/* Contexts: a thread has at most one current context, and new threads have none. */
#include "messages.h"
#include "objects.h"

#include <stdlib.h>
#include <string.h>

struct sim_context *sim_contexts;

/* A context that was destroyed, or went with its device, is nobody's current one any more. */
struct sim_context *sim_current_context(void)
{
    return sim_handle_by_serial(sim_thread()->context);
}

void sim_make_current(struct sim_context *context)
{
    sim_thread()->context = context == NULL ? 0 : context->object.serial;
}

struct sim_context *sim_context_new(int device, bool is_default)
{
    struct sim_context *context = calloc(1, sizeof *context);
    context->device = device;
    context->is_default = is_default;
    context->next = sim_contexts;
    sim_contexts = context;
    sim_handle_add(&context->object, SIM_KIND_CONTEXT);
    sim_gauge(SIM_GAUGE_CONTEXTS, 1);
    return context;
}

void sim_context_free(struct sim_context *context)
{
    struct sim_context **at = &sim_contexts;
    while (*at != context)
        at = &(*at)->next;
    *at = context->next;
    sim_handle_remove(&context->object);
    sim_gauge(SIM_GAUGE_CONTEXTS, -1);
    free(context);
}

static aclError create(struct sim_call *call, aclrtContext *handle, int32_t device)
{
    if (handle == NULL)
        return sim_violate(call, ACL_ERROR_RT_PARAM_INVALID, "context is null");
    if (device < 0 || device >= sim_settings.visible_count)
        return sim_refuse(call, ACL_ERROR_RT_INVALID_DEVICEID, "there is no device %d", device);
    if (!sim_memory_open(call, device))
        return ACL_ERROR_RT_INTERNAL_ERROR;
    struct sim_context *context = sim_context_new(device, false);
    /* Its default stream takes one of the device's streams. */
    context->default_stream = sim_stream_new(call, context, true);
    if (context->default_stream == NULL) {
        sim_context_free(context);
        return ACL_ERROR_RT_NO_STREAM_RESOURCE;
    }
    sim_make_current(context);
    *handle = sim_handle(&context->object);
    return ACL_SUCCESS;
}

aclError aclrtCreateContext(aclrtContext *context, int32_t deviceId)
{
    struct sim_call call;
    aclError status = sim_enter_device(&call, SIM_aclrtCreateContext, SIM_NEEDS_INIT, deviceId);
    if (status == ACL_SUCCESS)
        status = create(&call, context, deviceId);
    return sim_leave(&call, status);
}

static struct sim_context *find(struct sim_call *call, aclrtContext handle, aclError *status)
{
    char why[128];
    struct sim_context *context = sim_handle_find(handle, SIM_KIND_CONTEXT, why);
    if (context == NULL)
        *status = sim_violate(call,
                              handle == NULL ? ACL_ERROR_RT_CONTEXT_NULL
                                             : ACL_ERROR_RT_INVALID_HANDLE,
                              "%s (so is a context whose device was reset)", why);
    return context;
}

static aclError destroy(struct sim_call *call, aclrtContext handle)
{
    aclError status = ACL_SUCCESS;
    struct sim_context *context = find(call, handle, &status);
    if (context == NULL)
        return status;
    if (context->is_default)
        return sim_violate(call, ACL_ERROR_RT_PARAM_INVALID,
                           "the default context of device %d cannot be destroyed", context->device);
    for (const struct sim_stream *stream = sim_streams; stream != NULL; stream = stream->next)
        if (stream->context == context && !stream->is_default)
            return sim_violate(call, ACL_ERROR_RT_PARAM_INVALID,
                               "the context still has streams; destroy them first");
    if (context->default_stream->first != NULL)
        return sim_violate(call, ACL_ERROR_RT_PARAM_INVALID,
                           "the context's default stream was not synchronised");
    sim_stream_delete(context->default_stream);
    sim_context_free(context);
    return ACL_SUCCESS;
}

aclError aclrtDestroyContext(aclrtContext context)
{
    struct sim_call call;
    aclError status = sim_enter(&call, SIM_aclrtDestroyContext, SIM_NEEDS_INIT | SIM_RELEASES);
    if (status == ACL_SUCCESS)
        status = destroy(&call, context);
    return sim_leave(&call, status);
}

aclError aclrtSetCurrentContext(aclrtContext context)
{
    struct sim_call call;
    aclError status = sim_enter(&call, SIM_aclrtSetCurrentContext, SIM_NEEDS_INIT);
    if (status == ACL_SUCCESS) {
        struct sim_context *found = find(&call, context, &status);
        if (found != NULL)
            sim_make_current(found);
    }
    return sim_leave(&call, status);
}

aclError aclrtGetCurrentContext(aclrtContext *context)
{
    struct sim_call call;
    aclError status = sim_enter(&call, SIM_aclrtGetCurrentContext, SIM_NEEDS_CONTEXT);
    if (status == ACL_SUCCESS && context == NULL)
        status = sim_violate(&call, ACL_ERROR_RT_PARAM_INVALID, "context is null");
    else if (status == ACL_SUCCESS)
        *context = sim_handle(&call.context->object);
    return sim_leave(&call, status);
}

static aclError check_parameter(struct sim_call *call, aclSysParamOpt opt)
{
    if ((int)opt < 0 || (int)opt >= SIM_PARAM_COUNT)
        return sim_violate(call, ACL_ERROR_RT_PARAM_INVALID, "there is no option %d", (int)opt);
    return ACL_SUCCESS;
}

aclError aclrtCtxSetSysParamOpt(aclSysParamOpt opt, int64_t value)
{
    struct sim_call call;
    aclError status = sim_enter(&call, SIM_aclrtCtxSetSysParamOpt, SIM_NEEDS_CONTEXT);
    if (status == ACL_SUCCESS)
        status = check_parameter(&call, opt);
    if (status == ACL_SUCCESS && value != 0 && value != 1) {
        status = sim_violate(&call, ACL_ERROR_RT_PARAM_INVALID, "%lld is neither 0 nor 1",
                             (long long)value);
    } else if (status == ACL_SUCCESS) {
        call.context->parameters[opt] = value;
        call.context->parameter_set[opt] = true;
    }
    return sim_leave(&call, status);
}

aclError aclrtCtxGetSysParamOpt(aclSysParamOpt opt, int64_t *value)
{
    struct sim_call call;
    aclError status = sim_enter(&call, SIM_aclrtCtxGetSysParamOpt, SIM_NEEDS_CONTEXT);
    if (status == ACL_SUCCESS)
        status = check_parameter(&call, opt);
    if (status == ACL_SUCCESS && value == NULL)
        status = sim_violate(&call, ACL_ERROR_RT_PARAM_INVALID, "value is null");
    else if (status == ACL_SUCCESS && !call.context->parameter_set[opt])
        status = sim_refuse(&call, ACL_ERROR_RT_SYSPARAMOPT_NOT_SET,
                            "option %d was not set in this context", (int)opt);
    else if (status == ACL_SUCCESS)
        *value = call.context->parameters[opt];
    return sim_leave(&call, status);
}
