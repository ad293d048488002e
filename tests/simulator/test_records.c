/* What the simulator tells about itself: counters, report, event log; and OPFERRY_SIM_ABORT. */
#include "check.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static char path[64];

static void temporary_file(void)
{
    snprintf(path, sizeof path, "/tmp/opferry-sim-XXXXXX");
    close(mkstemp(path));
}

static void read_back(char *text, size_t size)
{
    FILE *file = fopen(path, "r");
    require(file != NULL);
    text[fread(text, 1, size - 1, file)] = '\0';
    fclose(file);
    unlink(path);
}

static void counters_rise_and_fall(void)
{
    struct rotary r;
    start();
    launch(&r);
    require(counter("live.tensors") == TENSORS && counter("live.executors") == 0);
    require(counter("live.device_allocations") == TENSORS + 1);
    require(counter("live.streams") == 2 && counter("live.contexts") == 1);
    ok(aclrtSynchronizeStream(r.stream));
    require(counter("kernels") == 1 && counter("bytes.h2d") == 512);
    release(&r);
    require(counter("live.tensors") == 0 && counter("total.tensors") == TENSORS);
    require(counter("live.device_bytes") == 0 && counter("peak.device_bytes") > 0);
    require(counter("calls.aclnnApplyRotaryPosEmbGrad") == 1);
    require(opferrySimCounter("no such counter") == -1);
    require(opferrySimViolation(0) == NULL && opferrySimViolation(-1) == NULL);
    end(0);
}

static void report_at_finalize(void)
{
    char text[8192];
    int status;
    temporary_file();
    pid_t child = fork();
    if (child == 0) {
        set("OPFERRY_SIM_REPORT", path);
        start();
        breaks(107017, "is null", aclrtDestroyStream(NULL));
        end(1);
        exit(0);
    }
    waitpid(child, &status, 0);
    require(status == 0);
    read_back(text, sizeof text);
    require(strstr(text, "\"finalised\": true") != NULL);
    require(strstr(text, "\"aclrtDestroyStream: the stream is null\"") != NULL);
    require(strstr(text, "\"aclrtSetDevice\": 1") != NULL);
}

static void report_on_demand(void)
{
    char text[8192];
    temporary_file();
    start();
    require(opferrySimReport(path) == 0);
    require(opferrySimReport("/no/such/folder/report") == -1);
    read_back(text, sizeof text);
    require(strstr(text, "\"finalised\": false") != NULL);
    end(0);
}

/* Returns the live streams by a file of counters, -1 if it says nothing of them. */
static int64_t streams_in(const char *file_name)
{
    struct {
        char name[56];
        int64_t value;
    } record;
    int64_t streams = -1;
    FILE *file = fopen(file_name, "r");
    require(file != NULL);
    while (fread(&record, sizeof record, 1, file) == 1)
        if (strcmp(record.name, "live.streams") == 0)
            streams = record.value;
    fclose(file);
    return streams;
}

/* Runs a process that makes streams beside its default one, and is killed. */
static void run_and_kill(int streams)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        aclrtStream stream;
        set("OPFERRY_SIM_COUNTERS", path);
        start();
        for (int i = 0; i < streams; i++)
            ok(aclrtCreateStream(&stream));
        raise(SIGKILL);
    }
    waitpid(child, &status, 0);
}

static void counters_outlive_the_process(void)
{
    temporary_file();
    run_and_kill(1);
    require(streams_in(path) == 2);
    unlink(path);
}

/* As a process does that has the id of an earlier one. */
static void counters_begin_anew(void)
{
    char aside[1024];
    temporary_file();
    run_and_kill(2);
    run_and_kill(0);
    run_and_kill(1);
    require(streams_in(path) == 2);
    snprintf(aside, sizeof aside, "%s.1", path);
    require(streams_in(aside) == 3);
    unlink(aside);
    snprintf(aside, sizeof aside, "%s.2", path);
    require(streams_in(aside) == 1);
    unlink(aside);
    unlink(path);
}

static void log_of_tasks(void)
{
    char text[16384];
    struct rotary r;
    temporary_file();
    set("OPFERRY_SIM_LOG", path);
    set("OPFERRY_SIM_KERNEL_US", "20000");
    start();
    launch(&r);
    ok(aclrtSynchronizeStream(r.stream));
    release(&r);
    end(0);
    read_back(text, sizeof text);
    long long begin, finish;
    char *kernel = strstr(text, "\"what\": \"kernel\", \"phase\": \"begin\"");
    require(kernel != NULL);
    while (kernel > text && kernel[-1] != '\n')
        kernel--;
    require(sscanf(kernel, "{\"ns\": %lld", &begin) == 1);
    kernel = strchr(kernel, '\n') + 1;
    require(strstr(kernel, "\"what\": \"kernel\", \"phase\": \"end\"") != NULL);
    require(sscanf(kernel, "{\"ns\": %lld", &finish) == 1);
    require(finish - begin >= 20000000);
    require(strstr(text, "\"content\": 1}") != NULL);
    require(strstr(text, "\"what\": \"h2d\"") != NULL && strstr(text, "\"bytes\": 128") != NULL);
}

static void violations_may_abort(void)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        set("OPFERRY_SIM_ABORT", "1");
        start();
        aclrtFree(NULL);
        _exit(0);
    }
    waitpid(child, &status, 0);
    require(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

static void wrong_settings_end_the_process(void)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        set("OPFERRY_SIM_KERNEL_US", "fast");
        aclInit(NULL);
        _exit(0);
    }
    waitpid(child, &status, 0);
    require(WIFEXITED(status) && WEXITSTATUS(status) == 2);
}

static void last_errors(void)
{
    start();
    require(aclrtPeekAtLastError(ACL_RT_THREAD_LEVEL) == 0);
    require_status(107001, aclrtSetDevice(7));
    require(aclrtPeekAtLastError(ACL_RT_THREAD_LEVEL) == 107001);
    require(aclrtGetLastError(ACL_RT_THREAD_LEVEL) == 107001);
    require(aclrtGetLastError(ACL_RT_THREAD_LEVEL) == 0);
    require(strstr(aclGetRecentErrMsg(), "there is no device 7") != NULL);
    require(aclGetRecentErrMsg() == NULL);
    end(0);
}

static void versions(void)
{
    int32_t major, minor, patch;
    char package[] = "runtime", text[128];
    start();
    ok(aclrtGetVersion(&major, &minor, &patch));
    require(major == 1 && minor == 17 && patch == 0);
    ok(aclsysGetVersionStr(package, text));
    require(strstr(text, "-simulated") != NULL);
    require(strcmp(aclrtGetSocName(), "Ascend950PR_9599-simulated") == 0);
    end(0);
}

static const struct check_case cases[] = {
    CASE(counters_rise_and_fall),
    CASE(report_at_finalize),
    CASE(report_on_demand),
    CASE(counters_outlive_the_process),
    CASE(counters_begin_anew),
    CASE(log_of_tasks),
    CASE(violations_may_abort),
    CASE(wrong_settings_end_the_process),
    CASE(last_errors),
    CASE(versions),
};

CHECK_MAIN(cases)
