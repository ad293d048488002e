/* The process, its threads, devices and contexts. */
#include "check.h"

#include <sys/wait.h>
#include <unistd.h>

static void calls_before_init(void)
{
    uint32_t count;
    void *memory;
    breaks(100001, "before aclInit", aclrtSetDevice(0));
    breaks(100001, "before aclInit", aclrtGetDeviceCount(&count));
    breaks(100001, "before aclInit", aclrtMalloc(&memory, 64, ACL_MEM_MALLOC_HUGE_FIRST));
    int64_t before = counter("violations");
    require(aclrtGetSocName() == NULL);
    broke(before, "before aclInit");
    breaks(100001, "before aclInit", aclFinalize());
}

static void init_twice_is_told_and_harmless(void)
{
    ok(aclInit(NULL));
    require_status(100002, aclInit(NULL));
    ok(aclFinalize());
    require(counter("violations") == 0);
}

static void calls_after_finalize(void)
{
    start();
    ok(aclrtResetDevice(0));
    ok(aclFinalize());
    breaks(100001, "after aclFinalize", aclrtSetDevice(0));
    breaks(100037, "a second time", aclFinalize());
    require_status(100002, aclInit(NULL));
}

static void exit_without_finalize(void)
{
    char path[] = "/tmp/opferry-sim-XXXXXX", text[8192] = "";
    int file = mkstemp(path), status;
    pid_t child = fork();
    if (child == 0) {
        set("OPFERRY_SIM_REPORT", path);
        start();
        exit(0);
    }
    waitpid(child, &status, 0);
    close(file);
    FILE *report = fopen(path, "r");
    require(fread(text, 1, sizeof text - 1, report) > 0);
    fclose(report);
    unlink(path);
    require(strstr(text, "the process ends without aclFinalize") != NULL);
}

static void nothing_survives_a_fork(void)
{
    int status;
    start();
    pid_t child = fork();
    if (child == 0)
        _exit(aclrtSetDevice(0) == 100001 ? 0 : 1);
    waitpid(child, &status, 0);
    require(status == 0);
    end(0);
}

static void use_without_device(void *unused)
{
    void *memory;
    aclrtStream stream;
    int32_t device;
    (void)unused;
    breaks(107002, "no context", aclrtMalloc(&memory, 64, ACL_MEM_MALLOC_HUGE_FIRST));
    breaks(107002, "no context", aclrtMallocHost(&memory, 64));
    breaks(107002, "no context", aclrtCreateStream(&stream));
    breaks(107002, "no context", aclrtGetDevice(&device));
    const char *message = aclGetRecentErrMsg();
    require(message != NULL && strstr(message, "aclrtGetDevice: this thread has no") != NULL);
    require(aclGetRecentErrMsg() == NULL);
}

static void new_threads_are_not_bound(void)
{
    start();
    in_thread(use_without_device, NULL);
    require(aclGetRecentErrMsg() == NULL); /* the other thread's message is not this one's */
    end(4);
}

static void bind_and_unbind(void *stream)
{
    ok(aclrtSetDevice(0));
    ok(aclrtSynchronizeStream(stream));
    ok(aclrtResetDevice(0));
}

static void threads_share_the_default_context(void)
{
    aclrtStream stream;
    start();
    ok(aclrtCreateStream(&stream));
    in_thread(bind_and_unbind, stream);
    ok(aclrtDestroyStream(stream));
    end(0);
}

static void use_default_stream(void *memory)
{
    ok(aclrtSetDevice(0));
    breaks(107003, "second thread uses the default stream",
           aclrtMemsetAsync(memory, 64, 0, 64, NULL));
    ok(aclrtResetDevice(0));
}

static void default_stream_of_two_threads(void)
{
    void *memory;
    start();
    ok(aclrtMalloc(&memory, 64, ACL_MEM_MALLOC_HUGE_FIRST));
    ok(aclrtMemsetAsync(memory, 64, 0, 64, NULL));
    ok(aclrtSynchronizeStream(NULL));
    in_thread(use_default_stream, memory);
    ok(aclrtFree(memory));
    end(1);
}

static void set_and_reset_are_counted(void)
{
    void *memory;
    start();
    ok(aclrtSetDevice(0));
    ok(aclrtResetDevice(0));
    ok(aclrtMalloc(&memory, 64, ACL_MEM_MALLOC_HUGE_FIRST));
    ok(aclrtFree(memory));
    ok(aclrtResetDevice(0));
    breaks(107001, "more often than it was set", aclrtResetDevice(0));
    breaks(107002, "no context", aclrtMalloc(&memory, 64, ACL_MEM_MALLOC_HUGE_FIRST));
    ok(aclFinalize());
}

static void set_without_reset(void)
{
    start();
    breaks(0, "more often than reset", aclFinalize());
}

static void reset_with_things_still_there(void)
{
    aclrtStream stream;
    start();
    ok(aclrtCreateStream(&stream));
    breaks(0, "1 streams, 0 contexts and 0 bytes still there", aclrtResetDevice(0));
    ok(aclrtSetDevice(0));
    breaks(107017, "stream was destroyed", aclrtSynchronizeStream(stream));
    end(2);
}

static void context_of_a_reset_device(void)
{
    aclrtContext context;
    start();
    ok(aclrtGetCurrentContext(&context));
    breaks(107000, "cannot be destroyed", aclrtDestroyContext(context));
    ok(aclrtResetDevice(0));
    breaks(107017, "context was destroyed", aclrtSetCurrentContext(context));
    breaks(107002, "no context", aclrtGetCurrentContext(&context));
    breaks(107002, "context is null", aclrtSetCurrentContext(NULL));
    ok(aclFinalize());
}

static void a_context_switches_the_device(void)
{
    aclrtContext first, second;
    int32_t device;
    start();
    ok(aclrtGetCurrentContext(&first));
    ok(aclrtCreateContext(&second, 1));
    ok(aclrtGetDevice(&device));
    require(device == 1);
    ok(aclrtSetCurrentContext(first));
    ok(aclrtGetDevice(&device));
    require(device == 0);
    ok(aclrtDestroyContext(second));
    breaks(107017, "context was destroyed", aclrtSetCurrentContext(second));
    end(1);
}

static void contexts_use_up_streams(void)
{
    uint32_t before, after;
    aclrtContext first, other;
    start();
    ok(aclrtGetCurrentContext(&first));
    ok(aclrtGetStreamAvailableNum(&before));
    ok(aclrtCreateContext(&other, 0));
    ok(aclrtGetStreamAvailableNum(&after));
    require(after == before - 1 && before == 1983);
    ok(aclrtDestroyContext(other));
    ok(aclrtSetCurrentContext(first));
    end(0);
}

static void stream_of_another_context(void)
{
    aclrtContext first, other;
    aclrtStream stream;
    start();
    ok(aclrtGetCurrentContext(&first));
    ok(aclrtCreateStream(&stream));
    ok(aclrtCreateContext(&other, 0));
    breaks(107003, "another context", aclrtSynchronizeStream(stream));
    breaks(107003, "another context", aclrtDestroyStream(stream));
    ok(aclrtDestroyContext(other));
    ok(aclrtSetCurrentContext(first));
    ok(aclrtDestroyStream(stream));
    end(2);
}

static void context_that_still_has_streams(void)
{
    aclrtContext first, other;
    aclrtStream stream;
    start();
    ok(aclrtGetCurrentContext(&first));
    ok(aclrtCreateContext(&other, 0));
    ok(aclrtCreateStream(&stream));
    breaks(107000, "still has streams", aclrtDestroyContext(other));
    ok(aclrtDestroyStream(stream));
    ok(aclrtDestroyContext(other));
    ok(aclrtSetCurrentContext(first));
    end(1);
}

static void options_belong_to_the_context(void)
{
    aclrtContext first, other;
    int64_t value = -1;
    start();
    ok(aclrtGetCurrentContext(&first));
    ok(aclrtCtxSetSysParamOpt(ACL_OPT_DETERMINISTIC, 1));
    ok(aclrtCreateContext(&other, 0));
    require_status(107021, aclrtCtxGetSysParamOpt(ACL_OPT_DETERMINISTIC, &value));
    ok(aclrtDestroyContext(other));
    ok(aclrtSetCurrentContext(first));
    ok(aclrtCtxGetSysParamOpt(ACL_OPT_DETERMINISTIC, &value));
    require(value == 1);
    breaks(107000, "neither 0 nor 1", aclrtCtxSetSysParamOpt(ACL_OPT_DETERMINISTIC, 2));
    end(1);
}

static void devices_can_be_hidden(void)
{
    uint32_t count;
    set("OPFERRY_SIM_DEVICE_COUNT", "4");
    set("ASCEND_RT_VISIBLE_DEVICES", "3,1,9,0");
    start();
    ok(aclrtGetDeviceCount(&count));
    require(count == 2);
    require_status(107001, aclrtSetDevice(2));
    require_status(107001, aclrtSetDevice(-1));
    end(0);
}

static const struct check_case cases[] = {
    CASE(calls_before_init),
    CASE(init_twice_is_told_and_harmless),
    CASE(calls_after_finalize),
    CASE(exit_without_finalize),
    CASE(nothing_survives_a_fork),
    CASE(new_threads_are_not_bound),
    CASE(threads_share_the_default_context),
    CASE(default_stream_of_two_threads),
    CASE(set_and_reset_are_counted),
    CASE(set_without_reset),
    CASE(reset_with_things_still_there),
    CASE(context_of_a_reset_device),
    CASE(a_context_switches_the_device),
    CASE(contexts_use_up_streams),
    CASE(stream_of_another_context),
    CASE(context_that_still_has_streams),
    CASE(options_belong_to_the_context),
    CASE(devices_can_be_hidden),
};

CHECK_MAIN(cases)
