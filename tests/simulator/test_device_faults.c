/* Device faults: how they are reported, and the process that has lost its device. */
#include "check.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define STAGE_TWO "aclnnApplyRotaryPosEmbGrad"

static void inject(const char *spec)
{
    require(opferrySimInject(spec) == 0);
}

static void lost(struct rotary *r)
{
    void *memory;
    uint32_t count;
    aclrtDeviceStatus status;
    require_status(507899, aclrtMalloc(&memory, 64, ACL_MEM_MALLOC_HUGE_FIRST));
    require_status(507899, stage_one(r));
    require_status(507899, aclrtFree(r->memory[COS]));
    require_status(507899, aclrtSynchronizeStream(r->stream));
    require_status(507899, aclrtSetDevice(0));
    require_status(507899, aclrtResetDevice(0));
    ok(aclrtGetDeviceCount(&count));
    ok(aclrtQueryDeviceStatus(0, &status));
    require(status == ACL_RT_DEVICE_STATUS_ABNORMAL);
    require(aclrtGetSocName() != NULL);
    require(counter("lost") == 1);
}

static void a_device_fault_shows_at_the_synchronisation(void)
{
    struct rotary r;
    start();
    inject(STAGE_TWO ":1:507015");
    launch(&r);
    require_status(507015, aclrtSynchronizeStream(r.stream));
    const char *message = aclGetRecentErrMsg();
    require(message != NULL && strstr(message, "AI core exception (507015): injected") != NULL);
    lost(&r);
    ok(aclFinalize());
    require(counter("violations") == 0);
}

static void a_device_fault_of_the_call_itself(void)
{
    struct rotary r;
    start();
    make(&r);
    ok(stage_one(&r));
    make_workspace(&r);
    inject(STAGE_TWO ":1:return:507018");
    require_status(507018, stage_two(&r));
    lost(&r);
}

static void other_streams_suffer_too(void)
{
    struct rotary guilty, innocent;
    start();
    make(&innocent);
    ok(stage_one(&innocent));
    make_workspace(&innocent);
    inject(STAGE_TWO ":1:507015");
    launch(&guilty);
    ok(stage_two(&innocent));
    require_status(507015, aclrtSynchronizeStream(guilty.stream));
    require_status(507899, aclrtSynchronizeStream(innocent.stream));
}

static void the_guilty_one_is_told_even_if_others_ask_first(void)
{
    struct rotary guilty;
    start();
    inject(STAGE_TWO ":1:507015");
    launch(&guilty);
    aclrtDeviceStatus status = ACL_RT_DEVICE_STATUS_NORMAL;
    while (status == ACL_RT_DEVICE_STATUS_NORMAL)
        ok(aclrtQueryDeviceStatus(0, &status));
    inject("aclrtGetMemInfo:1:507000");
    size_t left, total;
    require_status(507000, aclrtGetMemInfo(ACL_HBM_MEM, &left, &total));
    require_status(507015, aclrtSynchronizeStream(guilty.stream));
    require_status(507899, aclrtSynchronizeStream(guilty.stream));
}

static void a_reset_by_force_revives(void)
{
    struct rotary r;
    start();
    inject(STAGE_TWO ":1:507015");
    launch(&r);
    require_status(507015, aclrtSynchronizeStream(r.stream));
    ok(aclrtResetDeviceForce(0));
    ok(aclrtSetDevice(0));
    breaks(107017, "stream was destroyed", aclrtSynchronizeStream(r.stream));
    for (int i = 0; i < TENSORS; i++)
        ok(aclDestroyTensor(r.tensors[i]));
    launch(&r);
    ok(aclrtSynchronizeStream(r.stream));
    release(&r);
    end(1);
}

static void faults_need_not_stick(void)
{
    struct rotary r;
    set("OPFERRY_SIM_STICKY", "0");
    start();
    inject(STAGE_TWO ":1:507015");
    launch(&r);
    require_status(507015, aclrtSynchronizeStream(r.stream));
    ok(aclrtSynchronizeStream(r.stream));
    release(&r);
    end(0);
}

static void free_may_block_for_ever(void)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        struct rotary r;
        set("OPFERRY_SIM_STICKY_BLOCKS", "1");
        start();
        inject(STAGE_TWO ":1:507014");
        launch(&r);
        require_status(507014, aclrtSynchronizeStream(r.stream));
        alarm(1);
        aclrtFree(r.memory[COS]);
        _exit(0);
    }
    waitpid(child, &status, 0);
    require(WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM);
}

static void a_hang_ends_with_the_operator_timeout(void)
{
    struct rotary r;
    uint64_t actual = 0;
    start();
    ok(aclrtSetOpExecuteTimeOutV2(20500, &actual));
    require(actual == 21000); /* rounded up to the tick */
    inject(STAGE_TWO ":1:hang");
    launch(&r);
    require_status(507014, aclrtSynchronizeStreamWithTimeout(r.stream, 30000));
    lost(&r);
}

static void set_operator_timeout(void *unused)
{
    uint64_t actual;
    (void)unused;
    ok(aclrtSetDevice(0));
    ok(aclrtSetOpExecuteTimeOutV2(10000, &actual));
    ok(aclrtResetDevice(0));
}

static void the_operator_timeout_is_the_process_s(void)
{
    struct rotary r;
    start();
    in_thread(set_operator_timeout, NULL);
    inject(STAGE_TWO ":1:hang");
    launch(&r);
    require_status(507014, aclrtSynchronizeStreamWithTimeout(r.stream, 30000));
}

static void a_hang_outlasts_the_synchronisation(void)
{
    struct rotary r;
    start();
    inject(STAGE_TWO ":1:hang");
    launch(&r);
    require_status(107020, aclrtSynchronizeStreamWithTimeout(r.stream, 20));
    ok(aclrtStreamAbort(r.stream));
    ok(aclrtSynchronizeStream(r.stream));
    release(&r);
    end(0);
}

static void an_event_tells_its_streams_fault(void)
{
    struct rotary r;
    aclrtEvent event;
    start();
    ok(aclrtCreateEventExWithFlag(&event, ACL_EVENT_SYNC));
    inject(STAGE_TWO ":1:507015");
    launch(&r);
    ok(aclrtRecordEvent(event, r.stream));
    require_status(507015, aclrtSynchronizeEvent(event));
    require_status(507899, aclrtSynchronizeEvent(event));
}

static const struct check_case cases[] = {
    CASE(a_device_fault_shows_at_the_synchronisation),
    CASE(a_device_fault_of_the_call_itself),
    CASE(other_streams_suffer_too),
    CASE(the_guilty_one_is_told_even_if_others_ask_first),
    CASE(a_reset_by_force_revives),
    CASE(faults_need_not_stick),
    CASE(free_may_block_for_ever),
    CASE(a_hang_ends_with_the_operator_timeout),
    CASE(the_operator_timeout_is_the_process_s),
    CASE(a_hang_outlasts_the_synchronisation),
    CASE(an_event_tells_its_streams_fault),
};

CHECK_MAIN(cases)
