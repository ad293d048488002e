/* Rules that no other program here breaks; the table in README.md says which belong to which rule.
 */
#include "check.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void stage_two_without_stage_one(void)
{
    struct rotary r;
    start();
    make(&r);
    breaks(561103, "is null", stage_two(&r));
    r.executor = (aclOpExecutor *)&r;
    breaks(561103, "no handle", stage_two(&r));
    r.executor = (aclOpExecutor *)r.stream;
    breaks(561103, "of kind stream, not executor", stage_two(&r));
    r.executor = NULL;
    ok(stage_one(&r));
    uintptr_t whole = (uintptr_t)r.executor;
    make_workspace(&r);
    r.executor = (aclOpExecutor *)(uintptr_t)(uint32_t)whole; /* as without argtypes */
    breaks(561103, "no handle", stage_two(&r));
    r.executor = (aclOpExecutor *)whole;
    ok(stage_two(&r));
    ok(aclrtSynchronizeStream(r.stream));
    release(&r);
    require(counter("kernels") == 1);
    end(4);
}

static void results_of_stage_one_with_nowhere_to_go(void)
{
    struct rotary r;
    char mode[] = "half";
    start();
    make(&r);
    aclTensor **t = r.tensors;
    breaks(161001, "workspaceSize or executor is null",
           aclnnApplyRotaryPosEmbGradGetWorkspaceSize(
               t[GRAD_QUERY_EMBED], t[GRAD_KEY_EMBED], t[COS], t[SIN], t[QUERY], t[KEY], mode, 1,
               t[GRAD_QUERY], t[GRAD_KEY], t[GRAD_COS], t[GRAD_SIN], NULL, NULL));
    require(counter("total.executors") == 0);
    release(&r);
    end(1);
}

static void stage_one_with_a_tensor_that_is_gone(void)
{
    struct rotary r;
    start();
    make(&r);
    ok(aclDestroyTensor(r.tensors[COS]));
    breaks(361001, "tensor was destroyed", stage_one(&r));
    r.tensors[COS] = NULL;
    release(&r);
    end(1);
}

static void executor_used_by_two_streams(void)
{
    struct rotary r;
    aclrtStream other;
    start();
    launch(&r);
    ok(aclrtCreateStream(&other));
    breaks(561103, "after its one stage two",
           aclnnApplyRotaryPosEmbGrad(r.workspace, r.workspace_bytes, r.executor, other));
    ok(aclrtSynchronizeStream(r.stream));
    ok(aclrtDestroyStream(other));
    release(&r);
    require(counter("kernels") == 1);
    end(1);
}

static void executor_made_repeatable_too_late(void)
{
    struct rotary r;
    start();
    launch(&r);
    breaks(561103, "executor was destroyed", aclSetAclOpExecutorRepeatable(r.executor));
    breaks(561103, "after its one stage two", stage_two(&r));
    ok(aclrtSynchronizeStream(r.stream));
    release(&r);
    end(2);
}

static void repeatable_executor_with_a_tensor_gone(void)
{
    struct rotary r;
    start();
    make(&r);
    ok(stage_one(&r));
    ok(aclSetAclOpExecutorRepeatable(r.executor));
    make_workspace(&r);
    ok(stage_two(&r));
    ok(aclrtSynchronizeStream(r.stream));
    ok(aclDestroyTensor(r.tensors[KEY]));
    r.tensors[KEY] = NULL;
    breaks(361001, "keyOptional was destroyed between the stages", stage_two(&r));
    ok(aclDestroyAclOpExecutor(r.executor));
    release(&r);
    end(1);
}

static void repeatable_executor_that_nobody_destroys(void)
{
    struct rotary r;
    start();
    make(&r);
    ok(stage_one(&r));
    ok(aclSetAclOpExecutorRepeatable(r.executor));
    make_workspace(&r);
    ok(stage_two(&r));
    ok(aclrtSynchronizeStream(r.stream));
    release(&r);
    ok(aclrtResetDevice(0));
    breaks(0, "leak: 1 executors", aclFinalize());
}

static void workspace_shared_by_two_streams(void)
{
    struct rotary one, two;
    start();
    launch(&one);
    make(&two);
    ok(stage_one(&two));
    two.workspace = one.workspace;
    breaks(361001, "nothing orders the two", stage_two(&two));
    ok(aclrtSynchronizeStream(one.stream));
    ok(stage_one(&two));
    ok(stage_two(&two));
    ok(aclrtSynchronizeStream(two.stream));
    two.workspace = NULL;
    release(&one);
    release(&two);
    end(1);
}

static void tensors_that_nobody_destroys(void)
{
    struct rotary r;
    start();
    make(&r);
    r.tensors[COS] = r.tensors[SIN] = NULL;
    release(&r);
    require(counter("live.tensors") == 2 && counter("live.device_allocations") == 0);
    ok(aclrtResetDevice(0));
    breaks(0, "leak: 2 tensors", aclFinalize());
}

static void operator_on_memory_of_another_device(void)
{
    struct rotary r;
    aclrtStream stream;
    start();
    make(&r);
    ok(aclrtSetDevice(1));
    ok(aclrtCreateStream(&stream));
    ok(stage_one(&r));
    breaks(361001, "of device 0", aclnnApplyRotaryPosEmbGrad(r.memory[GRAD_SIN], r.workspace_bytes,
                                                             r.executor, stream));
    ok(aclrtDestroyStream(stream));
    ok(aclrtResetDevice(1));
    ok(aclrtSetDevice(0));
    release(&r);
    ok(aclrtResetDevice(0));
    end(1);
}

static void stages_on_two_devices(void)
{
    struct rotary r;
    aclrtStream stream;
    start();
    make(&r);
    ok(stage_one(&r));
    make_workspace(&r);
    ok(aclrtSetDevice(1));
    ok(aclrtCreateStream(&stream));
    breaks(361001, "stage one was called on device 0, stage two on device 1",
           aclnnApplyRotaryPosEmbGrad(r.workspace, r.workspace_bytes, r.executor, stream));
    ok(aclrtDestroyStream(stream));
    ok(aclrtResetDevice(1));
    ok(aclrtSetDevice(0));
    release(&r);
    ok(aclrtResetDevice(0));
    end(1);
}

static void set_up_with_another_configuration(void)
{
    ok(aclInit(NULL));
    require_status(100002, aclInit(NULL));
    breaks(100002, "another configuration", aclInit("/etc/acl.json"));
    ok(aclFinalize());
    require(counter("violations") == 1);
}

static void finalize_late(void)
{
    aclFinalize();
}

/* As the destructor of an object that was there before aclInit does. */
static void finalize_in_a_destructor(void)
{
    char path[] = "/tmp/opferry-sim-XXXXXX", text[8192] = "";
    int file = mkstemp(path), status;
    pid_t child = fork();
    if (child == 0) {
        set("OPFERRY_SIM_REPORT", path);
        atexit(finalize_late);
        start();
        ok(aclrtResetDevice(0));
        exit(0);
    }
    waitpid(child, &status, 0);
    close(file);
    FILE *report = fopen(path, "r");
    require(fread(text, 1, sizeof text - 1, report) > 0);
    fclose(report);
    unlink(path);
    require(strstr(text, "the process ends without aclFinalize") != NULL);
    require(strstr(text, "\"finalised\": true") != NULL);
}

static void calls_in_a_forked_process(void)
{
    int status;
    set("OPFERRY_SIM_ABORT", "1");
    start();
    pid_t child = fork();
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        aclrtSetDevice(0);
        _exit(0);
    }
    waitpid(child, &status, 0);
    require(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    end(0);
}

static const struct check_case cases[] = {
    CASE(stage_two_without_stage_one),
    CASE(results_of_stage_one_with_nowhere_to_go),
    CASE(stage_one_with_a_tensor_that_is_gone),
    CASE(executor_used_by_two_streams),
    CASE(executor_made_repeatable_too_late),
    CASE(repeatable_executor_with_a_tensor_gone),
    CASE(repeatable_executor_that_nobody_destroys),
    CASE(workspace_shared_by_two_streams),
    CASE(tensors_that_nobody_destroys),
    CASE(operator_on_memory_of_another_device),
    CASE(stages_on_two_devices),
    CASE(set_up_with_another_configuration),
    CASE(finalize_in_a_destructor),
    CASE(calls_in_a_forked_process),
};

CHECK_MAIN(cases)
