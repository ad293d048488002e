/* The life of the process: aclInit, aclFinalize, and what can be asked at any time. */
#include "process.h"

#include <stdio.h>
#include <string.h>

#include "messages.h"
#include "report.h"

bool sim_initialised;
bool sim_finalised;
int64_t sim_operator_timeout_us = DEFAULT_OPERATOR_TIMEOUT_US;

aclError aclInit(const char *configPath)
{
    static char *first;
    struct sim_call call;
    aclError status = sim_enter(&call, SIM_aclInit, SIM_ANY_TIME);
    const char *path = configPath == NULL ? "" : configPath;
    if (status == ACL_SUCCESS && sim_initialised && strcmp(path, first) != 0) {
        status = sim_violate(&call, ACL_ERROR_REPEAT_INITIALIZE,
                             "called a second time, with another configuration than the first");
    } else if (status == ACL_SUCCESS && sim_initialised) {
        /* Documented as harmless, so no rule is broken. */
        status = sim_refuse(&call, ACL_ERROR_REPEAT_INITIALIZE, "called a second time");
    } else if (status == ACL_SUCCESS) {
        first = strdup(path);
        sim_initialised = true;
    }
    return sim_leave(&call, status);
}

/* Everything must have been given back by now. */
static void check_for_leaks(struct sim_call *call)
{
    static const struct {
        enum sim_gauge gauge;
        const char *name;
    } gauges[] = {
        {SIM_GAUGE_EXECUTORS, "executors (stage one without stage two, or repeatable)"},
        {SIM_GAUGE_TENSORS, "tensors"},
        {SIM_GAUGE_DEVICE_ALLOCATIONS, "device allocations"},
        {SIM_GAUGE_PINNED_ALLOCATIONS, "pinned host allocations"},
    };
    for (size_t i = 0; i < sizeof gauges / sizeof gauges[0]; i++) {
        int64_t live = sim_gauge_live(gauges[i].gauge);
        if (live > 0)
            sim_violate(call, ACL_SUCCESS, "leak: %lld %s", (long long)live, gauges[i].name);
    }
    int64_t streams = sim_gauge_live(SIM_GAUGE_STREAMS), events = sim_gauge_live(SIM_GAUGE_EVENTS);
    for (const struct sim_context *context = sim_contexts; context != NULL;
         context = context->next) {
        if (!context->is_default)
            sim_violate(call, ACL_SUCCESS, "leak: a context of device %d", context->device);
        if (context->default_stream != NULL)
            streams--;
    }
    for (int i = 0; i < SIM_MAX_DEVICES; i++)
        if (sim_devices[i].set_count > 0)
            sim_violate(call, ACL_SUCCESS, "device %d was set %d times more often than reset", i,
                        sim_devices[i].set_count);
    if (streams > 0)
        sim_violate(call, ACL_SUCCESS, "leak: %lld streams", (long long)streams);
    if (events > 0)
        sim_violate(call, ACL_SUCCESS, "leak: %lld events", (long long)events);
}

aclError aclFinalize(void)
{
    struct sim_call call;
    aclError status = sim_enter(&call, SIM_aclFinalize, SIM_WHEN_LOST);
    if (status == ACL_SUCCESS && sim_finalised)
        status = sim_violate(&call, ACL_ERROR_REPEAT_FINALIZE, "called a second time");
    else if (status == ACL_SUCCESS && !sim_initialised)
        status = sim_violate(&call, ACL_ERROR_UNINITIALIZE, "called before aclInit");
    else if (status == ACL_SUCCESS) {
        /* A process that lost its device is told not to clean up. */
        if (!sim_lost) {
            check_for_leaks(&call);
            sim_stop_streams();
        }
        sim_finalised = true;
        sim_write_report();
    }
    return sim_leave(&call, status);
}

static aclError last_error(enum sim_function function, bool clear)
{
    struct sim_call call;
    aclError status = sim_enter(&call, function, SIM_NEEDS_INIT | SIM_WHEN_LOST);
    if (status == ACL_SUCCESS) {
        struct sim_thread *thread = sim_thread();
        status = thread->last_error;
        if (clear)
            thread->last_error = ACL_SUCCESS;
    }
    sim_leave(&call, ACL_SUCCESS);
    return status;
}

aclError aclrtPeekAtLastError(aclrtLastErrLevel level)
{
    (void)level;
    return last_error(SIM_aclrtPeekAtLastError, false);
}

aclError aclrtGetLastError(aclrtLastErrLevel level)
{
    (void)level;
    return last_error(SIM_aclrtGetLastError, true);
}

const char *aclrtGetSocName(void)
{
    static _Thread_local char injected[96];
    struct sim_call call;
    aclError status = sim_enter(&call, SIM_aclrtGetSocName, SIM_NEEDS_INIT | SIM_WHEN_LOST);
    const char *name = sim_settings.soc;
    if (status != ACL_SUCCESS || call.effects.null_answer) {
        name = NULL;
    } else if (call.effects.soc[0] != '\0') {
        snprintf(injected, sizeof injected, "%s-simulated", call.effects.soc);
        name = injected;
    }
    sim_leave(&call, status);
    return name;
}

aclError aclrtGetVersion(int32_t *majorVersion, int32_t *minorVersion, int32_t *patchVersion)
{
    struct sim_call call;
    aclError status = sim_enter(&call, SIM_aclrtGetVersion, SIM_NEEDS_INIT | SIM_WHEN_LOST);
    if (status == ACL_SUCCESS &&
        (majorVersion == NULL || minorVersion == NULL || patchVersion == NULL)) {
        status = sim_violate(&call, ACL_ERROR_RT_PARAM_INVALID, "an argument is null");
    } else if (status == ACL_SUCCESS) {
        *majorVersion = 1;
        *minorVersion = 17;
        *patchVersion = 0;
    }
    return sim_leave(&call, status);
}

aclError aclsysGetVersionStr(char *pkgName, char *versionStr)
{
    struct sim_call call;
    aclError status = sim_enter(&call, SIM_aclsysGetVersionStr, SIM_ANY_TIME | SIM_WHEN_LOST);
    if (status == ACL_SUCCESS && (pkgName == NULL || versionStr == NULL))
        status = sim_violate(&call, ACL_ERROR_RT_PARAM_INVALID, "an argument is null");
    else if (status == ACL_SUCCESS)
        strcpy(versionStr, "9.2.0-simulated");
    return sim_leave(&call, status);
}

aclError aclrtSetOpExecuteTimeOutV2(uint64_t timeout, uint64_t *actualTimeout)
{
    struct sim_call call;
    aclError status = sim_enter(&call, SIM_aclrtSetOpExecuteTimeOutV2, SIM_NEEDS_CONTEXT);
    if (status == ACL_SUCCESS && actualTimeout == NULL) {
        status = sim_violate(&call, ACL_ERROR_RT_PARAM_INVALID, "actualTimeout is null");
    } else if (status == ACL_SUCCESS) {
        uint64_t tick = (uint64_t)sim_settings.timeout_tick_us, most = DEFAULT_OPERATOR_TIMEOUT_US;
        uint64_t wanted = timeout == 0 || timeout > most ? most : timeout;
        uint64_t rounded = (wanted + tick - 1) / tick * tick;
        sim_operator_timeout_us = (int64_t)rounded;
        *actualTimeout = rounded;
    }
    return sim_leave(&call, status);
}
