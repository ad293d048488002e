/* The two stages and the executor between them. */
#include "check.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void clean_call(void)
{
    struct rotary r;
    float out[32];
    start();
    launch(&r);
    ok(aclrtSynchronizeStream(r.stream));
    ok(aclrtMemcpy(out, sizeof out, r.memory[GRAD_QUERY], r.bytes[GRAD_QUERY],
                   ACL_MEMCPY_DEVICE_TO_HOST));
    require(out[0] == 2.0F && out[4] == 0.0F); /* c*g1 + s*g2, c*g2 - s*g1 */
    release(&r);
    require(counter("total.executors") == 1 && counter("live.executors") == 0);
    end(0);
}

static void executor_used_twice(void)
{
    struct rotary r;
    start();
    launch(&r);
    ok(aclrtSynchronizeStream(r.stream));
    breaks(561103, "after its one stage two", stage_two(&r));
    release(&r);
    end(1);
}

static void executor_used_twice_with_another_status(void)
{
    struct rotary r;
    set("OPFERRY_SIM_EXECUTOR_REUSE", "561101");
    start();
    launch(&r);
    ok(aclrtSynchronizeStream(r.stream));
    breaks(561101, "after its one stage two", stage_two(&r));
    release(&r);
    end(1);
}

static void executor_used_twice_crashes(void)
{
    struct rotary r;
    int status;
    pid_t child = fork();
    if (child == 0) {
        set("OPFERRY_SIM_EXECUTOR_REUSE", "crash");
        start();
        launch(&r);
        ok(aclrtSynchronizeStream(r.stream));
        stage_two(&r);
        _exit(0);
    }
    waitpid(child, &status, 0);
    require(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
}

static void executor_without_stage_two_leaks(void)
{
    struct rotary r;
    start();
    make(&r);
    ok(stage_one(&r));
    release(&r);
    require(counter("live.executors") == 1);
    ok(aclrtResetDevice(0));
    breaks(0, "stage one without stage two", aclFinalize());
}

static void plan_only_with_a_repeatable_executor(void)
{
    struct rotary r;
    start();
    make(&r);
    ok(stage_one(&r));
    ok(aclSetAclOpExecutorRepeatable(r.executor));
    ok(aclDestroyAclOpExecutor(r.executor));
    require(r.workspace_bytes == 1 * 2 * 2 * 8 * 4 * 2);
    release(&r);
    end(0);
}

static void repeatable_executor_runs_again(void)
{
    struct rotary r;
    start();
    make(&r);
    ok(stage_one(&r));
    ok(aclSetAclOpExecutorRepeatable(r.executor));
    make_workspace(&r);
    for (int i = 0; i < 3; i++)
        ok(stage_two(&r));
    ok(aclrtSynchronizeStream(r.stream));
    ok(aclDestroyAclOpExecutor(r.executor));
    breaks(561103, "executor was destroyed", aclDestroyAclOpExecutor(r.executor));
    release(&r);
    end(1);
}

static void executor_that_is_not_ours_to_destroy(void)
{
    struct rotary r;
    start();
    make(&r);
    ok(stage_one(&r));
    breaks(561101, "not repeatable", aclDestroyAclOpExecutor(r.executor));
    make_workspace(&r);
    ok(stage_two(&r));
    breaks(561103, "was destroyed", aclDestroyAclOpExecutor(r.executor));
    breaks(561103, "was destroyed", aclSetAclOpExecutorRepeatable(r.executor));
    breaks(561103, "is null", aclDestroyAclOpExecutor(NULL));
    ok(aclrtSynchronizeStream(r.stream));
    release(&r);
    end(4);
}

static void call_stage_one(void *r)
{
    breaks(361001, "has no context", stage_one(r));
}

static void call_stage_two(void *r)
{
    breaks(361001, "has no context", stage_two(r));
}

static void stages_without_a_context(void)
{
    struct rotary r;
    start();
    make(&r);
    in_thread(call_stage_one, &r);
    ok(stage_one(&r));
    make_workspace(&r);
    in_thread(call_stage_two, &r); /* which spends the executor all the same */
    release(&r);
    end(2);
}

static void stages_in_different_contexts(void)
{
    struct rotary r;
    aclrtContext first, other;
    start();
    ok(aclrtGetCurrentContext(&first));
    make(&r);
    ok(stage_one(&r));
    make_workspace(&r);
    ok(aclrtCreateContext(&other, 0));
    breaks(361001, "another context", stage_two(&r));
    ok(aclrtDestroyContext(other));
    ok(aclrtSetCurrentContext(first));
    release(&r);
    end(1);
}

static void stage_one_alone(void *argument)
{
    struct rotary *r = argument;
    ok(aclrtSetDevice(0));
    ok(stage_one(r));
    ok(aclSetAclOpExecutorRepeatable(r->executor));
    ok(aclDestroyAclOpExecutor(r->executor));
    ok(aclrtResetDevice(0));
}

static void *enter_stage_one(void *argument)
{
    stage_one_alone(argument);
    return NULL;
}

static void first_calls_of_two_threads(void)
{
    struct rotary one, two;
    pthread_t thread;
    start();
    make(&one);
    make(&two);
    hold("aclnnApplyRotaryPosEmbGradGetWorkspaceSize:1");
    pthread_create(&thread, NULL, enter_stage_one, &one);
    while (counter("calls.aclnnApplyRotaryPosEmbGradGetWorkspaceSize") == 0)
        usleep(1000);
    breaks(561000, "first call of the process has not returned", stage_one(&two));
    let_go();
    pthread_join(thread, NULL);
    release(&one);
    release(&two);
    end(1);
}

static void aclnn_set_up_twice(void)
{
    start();
    ok(aclnnInit(NULL));
    breaks(561000, "a second time", aclnnInit(NULL));
    ok(aclnnFinalize());
    breaks(561000, "a second time", aclnnFinalize());
    end(2);
}

static const struct check_case cases[] = {
    CASE(clean_call),
    CASE(executor_used_twice),
    CASE(executor_used_twice_with_another_status),
    CASE(executor_used_twice_crashes),
    CASE(executor_without_stage_two_leaks),
    CASE(plan_only_with_a_repeatable_executor),
    CASE(repeatable_executor_runs_again),
    CASE(executor_that_is_not_ours_to_destroy),
    CASE(stages_without_a_context),
    CASE(stages_in_different_contexts),
    CASE(first_calls_of_two_threads),
    CASE(aclnn_set_up_twice),
};

CHECK_MAIN(cases)
