/* Fault rules: which calls they strike, and what each action does. */
#include "check.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define STAGE_ONE "aclnnApplyRotaryPosEmbGradGetWorkspaceSize"
#define STAGE_TWO "aclnnApplyRotaryPosEmbGrad"

static void inject(const char *spec)
{
    require(opferrySimInject(spec) == 0);
}

static void rules_that_make_no_sense(void)
{
    static const char *const wrong[] = {
        "aclrtMalloc",
        "aclrtMalloc:1",
        "aclrtMaloc:1:207001",
        "aclrtMalloc:0:207001",
        "aclrtMalloc:x:207001",
        "aclrtMalloc:1:explode",
        "aclrtMalloc:1:corrupt",
        "aclrtMalloc@h2d:1:207001",
        "aclrtMalloc:content=1:207001",
        "aclrtMalloc:1:207001:extra",
        "aclrtMemcpy@up:1:107000",
        "aclrtSetDevice#16:1:507018",
        STAGE_TWO ":1:corrupt:4",
        STAGE_TWO ":content=1:return:507015",
    };
    start();
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        require(opferrySimInject(wrong[i]) == -1);
    end(0);
}

static void wrong_rules_in_the_environment_end_the_process(void)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        set("OPFERRY_SIM_FAULTS", "aclrtMaloc:1:207001");
        aclInit(NULL);
        _exit(0);
    }
    waitpid(child, &status, 0);
    require(WIFEXITED(status) && WEXITSTATUS(status) == 2);
}

static void the_nth_call(void)
{
    void *memory;
    set("OPFERRY_SIM_FAULTS", "aclrtMalloc:2:207018;aclrtMalloc:4-5:207001;aclrtMalloc:7+:207018");
    static const int expected[] = {0, 207018, 0, 207001, 207001, 0, 207018, 207018};
    start();
    for (size_t i = 0; i < 8; i++) {
        require_status(expected[i], aclrtMalloc(&memory, 64, ACL_MEM_MALLOC_HUGE_FIRST));
        if (expected[i] == 0)
            ok(aclrtFree(memory));
    }
    require(counter("faults") == 5);
    end(0);
}

static void copies_by_direction(void)
{
    unsigned char bytes[64] = {0};
    void *memory;
    start();
    ok(aclrtMalloc(&memory, 64, ACL_MEM_MALLOC_HUGE_FIRST));
    inject("aclrtMemcpy@d2h:1:107000");
    ok(aclrtMemcpy(memory, 64, bytes, 64, ACL_MEMCPY_HOST_TO_DEVICE));
    require_status(107000, aclrtMemcpy(bytes, 64, memory, 64, ACL_MEMCPY_DEVICE_TO_HOST));
    ok(aclrtMemcpy(bytes, 64, memory, 64, ACL_MEMCPY_DEVICE_TO_HOST));
    ok(aclrtFree(memory));
    end(0);
}

static void one_device_only(void)
{
    set("ASCEND_RT_VISIBLE_DEVICES", "1,0");
    start(); /* logical device 0 is the physical 1 */
    inject("aclrtSetDevice#0:*:return:107001");
    ok(aclrtSetDevice(0));
    require_status(107001, aclrtSetDevice(1));
    ok(aclrtResetDevice(0));
    end(0);
}

static void tokens_are_used_up(void)
{
    char path[] = "/tmp/opferry-sim-XXXXXX", rule[128];
    void *memory;
    start();
    close(mkstemp(path));
    snprintf(rule, sizeof rule, "aclrtMalloc:*:207001:token=%s", path);
    inject(rule);
    require_status(207001, aclrtMalloc(&memory, 64, ACL_MEM_MALLOC_HUGE_FIRST));
    ok(aclrtMalloc(&memory, 64, ACL_MEM_MALLOC_HUGE_FIRST));
    ok(aclrtFree(memory));
    require(access(path, F_OK) != 0);
    end(0);
}

static void rules_in_a_file(void)
{
    char path[] = "/tmp/opferry-sim-XXXXXX";
    void *memory;
    int file = mkstemp(path);
    set("OPFERRY_SIM_FAULTS_FILE", path);
    start();
    require(write(file, "aclrtMalloc:1:207001\n", 21) == 21);
    close(file);
    require_status(207001, aclrtMalloc(&memory, 64, ACL_MEM_MALLOC_HUGE_FIRST));
    ok(aclrtMalloc(&memory, 64, ACL_MEM_MALLOC_HUGE_FIRST));
    unlink(path);
    ok(aclrtFree(memory));
    end(0);
}

static void only_the_poisoned_content(void)
{
    struct rotary r;
    float poison = 1234.5F;
    start();
    inject(STAGE_TWO ":content=1234.5:507015");
    launch(&r);
    ok(aclrtSynchronizeStream(r.stream));
    ok(aclrtMemcpy(r.memory[GRAD_QUERY_EMBED], 4, &poison, 4, ACL_MEMCPY_HOST_TO_DEVICE));
    ok(stage_one(&r));
    ok(stage_two(&r));
    require_status(507015, aclrtSynchronizeStream(r.stream));
}

static void crashes(void)
{
    static const char *const rules[] = {STAGE_TWO ":1:crash", STAGE_TWO ":content=1:crash",
                                        STAGE_TWO ":1:crash:9"};
    static const int signals[] = {SIGSEGV, SIGSEGV, SIGKILL};
    for (size_t i = 0; i < 3; i++) {
        int status;
        pid_t child = fork();
        if (child == 0) {
            struct rotary r;
            start();
            inject(rules[i]);
            launch(&r);
            aclrtSynchronizeStream(r.stream);
            _exit(0);
        }
        waitpid(child, &status, 0);
        require(WIFSIGNALED(status) && WTERMSIG(status) == signals[i]);
    }
}

static void spoilt_outputs(void)
{
    struct rotary r;
    float out[17];
    start();
    make(&r);
    ok(aclDestroyTensor(r.tensors[GRAD_KEY]));
    ok(aclrtFree(r.memory[GRAD_KEY]));
    const int64_t shape[] = {1, 2, 1, 8};
    ok(aclrtMalloc(&r.memory[GRAD_KEY], 128, ACL_MEM_MALLOC_HUGE_FIRST));
    r.tensors[GRAD_KEY] = aclCreateTensor(shape, 4, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, shape, 4,
                                          r.memory[GRAD_KEY]);
    inject(STAGE_TWO ":2:corrupt:1;" STAGE_TWO ":3:unwritten:1;" STAGE_TWO ":4:partial:1;" STAGE_TWO
                     ":5:overrun:1");
    for (int run = 1; run <= 5; run++) {
        ok(aclrtMemset(r.memory[GRAD_KEY], 128, 0x11, 128));
        ok(stage_one(&r));
        if (run == 1)
            make_workspace(&r);
        ok(stage_two(&r));
        ok(aclrtSynchronizeStream(r.stream));
        ok(aclrtMemcpy(out, sizeof out, r.memory[GRAD_KEY], sizeof out,
                       ACL_MEMCPY_DEVICE_TO_HOST));
        uint32_t last, behind;
        memcpy(&last, &out[15], 4);
        memcpy(&behind, &out[16], 4);
        require((out[0] == 2.0F) == (run != 3));
        require((out[8] == 2.0F) == (run != 2 && run != 3));
        require((last == 0x11111111) == (run == 3 || run == 4));
        require((behind == 0xEEEEEEEE) == (run == 5));
    }
    release(&r);
    end(0);
}

static void null_tensors_and_names(void)
{
    const int64_t shape[] = {4};
    start();
    inject("aclCreateTensor:1:null;aclrtGetSocName:1:soc:Ascend910B3;aclrtGetSocName:2:null");
    require(aclCreateTensor(shape, 1, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, shape, 1, NULL) == NULL);
    require(strcmp(aclrtGetSocName(), "Ascend910B3-simulated") == 0);
    require(aclrtGetSocName() == NULL);
    require(strcmp(aclrtGetSocName(), "Ascend950PR_9599-simulated") == 0);
    end(0);
}

static void statuses_of_stage_one(void)
{
    struct rotary r;
    start();
    make(&r);
    inject(STAGE_ONE ":1:561002;" STAGE_ONE ":2:561003;" STAGE_TWO ":1:361001");
    require_status(561002, stage_one(&r));
    require_status(561003, stage_one(&r));
    require(counter("live.executors") == 0);
    ok(stage_one(&r));
    make_workspace(&r);
    require_status(361001, stage_two(&r));
    require(counter("live.executors") == 0); /* stage two frees it, whatever comes of the call */
    release(&r);
    end(0);
}

static const struct check_case cases[] = {
    CASE(rules_that_make_no_sense),
    CASE(wrong_rules_in_the_environment_end_the_process),
    CASE(the_nth_call),
    CASE(copies_by_direction),
    CASE(one_device_only),
    CASE(tokens_are_used_up),
    CASE(rules_in_a_file),
    CASE(only_the_poisoned_content),
    CASE(crashes),
    CASE(spoilt_outputs),
    CASE(null_tensors_and_names),
    CASE(statuses_of_stage_one),
};

CHECK_MAIN(cases)
