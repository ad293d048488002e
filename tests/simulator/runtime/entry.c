/* What every call begins and ends with. */
#include "faults.h"
#include "messages.h"
#include "objects.h"
#include "report.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Long enough for a second thread to be seen in a function whose first call must be alone. */
#define FIRST_CALL_US 20000

aclError sim_fault_status;
bool sim_lost;

static volatile sig_atomic_t forked;
static pthread_once_t prepared = PTHREAD_ONCE_INIT;

static void note_fork(void)
{
    forked = 1;
}

static void at_exit(void)
{
    if (forked)
        return;
    sim_lock();
    if (sim_initialised && !sim_finalised)
        sim_record_violation("the process ends without aclFinalize", false);
    else
        sim_write_report();
    sim_unlock();
}

static void prepare(void)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&sim_changed, &attributes);
    sim_messages_open();
    sim_read_settings();
    sim_counters_open();
    sim_faults_open();
    sim_event_log_open();
    pthread_atfork(NULL, NULL, note_fork);
    atexit(at_exit);
}

void sim_prepare(void)
{
    pthread_once(&prepared, prepare);
}

const char *sim_function_name(enum sim_function function)
{
#define SIM_FUNCTION_NAME(name) #name,
    static const char *const names[] = {SIM_FUNCTIONS(SIM_FUNCTION_NAME)};
    return names[function];
}

/* Strikes with what hits the calling thread itself; what a stream has to suffer stays in
 * call->effects. Returns the status to answer with, or 0. */
static aclError strike(struct sim_call *call)
{
    struct sim_effects *effects = &call->effects;
    if (effects->crash_signal != 0)
        sim_crash(effects->crash_signal);
    if ((call->needs & SIM_DEVICE_SIDE) == 0) {
        sim_unlock();
        if (effects->hang || effects->hang_for_ever)
            sim_block_for_ever();
        while (effects->hold[0] != '\0' && sim_file_exists(effects->hold))
            sim_sleep_us(SIM_HOLD_POLL_US);
        if (effects->slow_us > 0)
            sim_sleep_us(effects->slow_us);
        sim_lock();
    } else if (sim_is_device_fault(effects->status) && !effects->immediate) {
        return ACL_SUCCESS;
    }
    if (effects->status == 0)
        return ACL_SUCCESS;
    return sim_refuse(call, effects->status, "%s (%d), injected", sim_status_name(effects->status),
                      effects->status);
}

static enum { UNTRIED, UNDER_WAY, DONE } first_calls[SIM_FUNCTION_COUNT];

/* Operators set themselves up without a lock in their first call. */
static aclError wait_through_first_call(struct sim_call *call)
{
    if (first_calls[call->function] == UNDER_WAY) {
        call->needs &= ~(unsigned)SIM_FIRST_ALONE; /* the first call's end is not this one's */
        return sim_violate(call, ACLNN_ERR_INNER,
                           "a second thread calls while the first call of the process has not "
                           "returned");
    }
    if (first_calls[call->function] == UNTRIED) {
        first_calls[call->function] = UNDER_WAY;
        sim_unlock();
        sim_sleep_us(FIRST_CALL_US);
        sim_lock();
    }
    return ACL_SUCCESS;
}

static aclError check_needs(struct sim_call *call)
{
    if ((call->needs & SIM_NEEDS_INIT) != 0 && !sim_initialised)
        return sim_violate(call, ACL_ERROR_UNINITIALIZE, "called before aclInit");
    if ((call->needs & SIM_NEEDS_INIT) != 0 && sim_finalised)
        return sim_violate(call, ACL_ERROR_UNINITIALIZE, "called after aclFinalize");
    if (sim_lost && (call->needs & SIM_WHEN_LOST) == 0) {
        if ((call->needs & SIM_RELEASES) != 0 && sim_settings.sticky_blocks) {
            sim_unlock();
            sim_block_for_ever();
        }
        return sim_refuse(call, ACL_ERROR_RT_DRV_INTERNAL_ERROR,
                          "driver internal error (507899): the process lost its device to %s (%d)",
                          sim_status_name(sim_fault_status), sim_fault_status);
    }
    if ((call->needs & SIM_NEEDS_CONTEXT) == SIM_NEEDS_CONTEXT && call->context == NULL)
        return sim_violate(call, ACL_ERROR_RT_CONTEXT_NULL,
                           "this thread has no context; aclrtSetDevice or aclrtSetCurrentContext "
                           "must be called in each thread");
    return ACL_SUCCESS;
}

static aclError enter(struct sim_call *call, enum sim_function function, unsigned needs,
                      enum sim_copy_kind kind, int32_t device)
{
    memset(call, 0, sizeof *call);
    call->function = function;
    call->needs = needs;
    call->device = -1;
    if (forked) {
        fprintf(stderr, "opferry-simulator: violation: %s: called in a forked process\n",
                sim_function_name(function));
        if (sim_settings.abort_on_violation)
            abort();
        return ACL_ERROR_UNINITIALIZE;
    }
    sim_prepare();
    sim_lock();
    call->locked = true;
    sim_count_call(function);
    call->context = sim_current_context();
    if (call->context != NULL)
        call->device = call->context->device;
    int of = device >= 0 ? device : call->device;
    sim_fault_match(function, kind,
                    of >= 0 && of < sim_settings.visible_count ? sim_settings.visible[of] : -1,
                    &call->effects);
    aclError status =
        (needs & SIM_FIRST_ALONE) != 0 ? wait_through_first_call(call) : ACL_SUCCESS;
    if (status == ACL_SUCCESS)
        status = strike(call);
    return status != ACL_SUCCESS ? status : check_needs(call);
}

aclError sim_enter(struct sim_call *call, enum sim_function function, unsigned needs)
{
    return enter(call, function, needs, SIM_ANY_COPY, -1);
}

aclError sim_enter_copy(struct sim_call *call, enum sim_function function, unsigned needs,
                        enum sim_copy_kind kind)
{
    return enter(call, function, needs, kind, -1);
}

aclError sim_enter_device(struct sim_call *call, enum sim_function function, unsigned needs,
                          int32_t device)
{
    return enter(call, function, needs, SIM_ANY_COPY, device);
}

aclError sim_leave(struct sim_call *call, aclError status)
{
    if (!call->locked)
        return status;
    if ((call->needs & SIM_FIRST_ALONE) != 0)
        first_calls[call->function] = DONE;
    if (sim_is_device_fault(status) && sim_settings.sticky && !sim_lost) {
        sim_lost = true;
        sim_tally(SIM_TALLY_LOST, 1);
        if (sim_fault_status == 0)
            sim_fault_status = status;
    }
    if (status != ACL_SUCCESS)
        sim_thread()->last_error = status;
    sim_unlock();
    return status;
}
