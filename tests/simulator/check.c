#include "check.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define CASE_SECONDS 60

static sigjmp_buf after_fault;

void check_fail(const char *file, int line, const char *what)
{
    fprintf(stderr, "%s:%d: failed: %s\n", file, line, what);
    _exit(1);
}

void check_status(const char *file, int line, const char *call, int expected, int status)
{
    if (status == expected)
        return;
    const char *message = aclGetRecentErrMsg();
    fprintf(stderr, "%s:%d: %s returned %d, not %d (%s)\n", file, line, call, status, expected,
            message == NULL ? "no message" : message);
    _exit(1);
}

void check_violation(const char *file, int line, int64_t before, const char *words)
{
    int64_t now = opferrySimCounter("violations");
    const char *text = opferrySimViolation(before);
    if (now == before + 1 && text != NULL && strstr(text, words) != NULL)
        return;
    fprintf(stderr, "%s:%d: expected a violation with \"%s\"; %lld more, the first: %s\n", file,
            line, words, (long long)(now - before), text == NULL ? "none" : text);
    _exit(1);
}

static void jump(int number)
{
    (void)number;
    siglongjmp(after_fault, 1);
}

bool faults_on_access(const volatile void *pointer)
{
    struct sigaction action = {.sa_handler = jump}, before;
    sigaction(SIGSEGV, &action, &before);
    bool faulted = true;
    if (sigsetjmp(after_fault, 1) == 0) {
        (void)*(const volatile unsigned char *)pointer;
        faulted = false;
    }
    sigaction(SIGSEGV, &before, NULL);
    return faulted;
}

static bool run_case(const struct check_case *test)
{
    FILE *output = tmpfile();
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        dup2(fileno(output), STDERR_FILENO);
        alarm(CASE_SECONDS);
        test->run();
        exit(0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    bool good = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (!good) {
        char text[4096];
        size_t length;
        fprintf(stderr, "FAILED %s (wait status 0x%x)\n", test->name, (unsigned)status);
        rewind(output);
        while ((length = fread(text, 1, sizeof text, output)) > 0)
            fwrite(text, 1, length, stderr);
    }
    fclose(output);
    return good;
}

static bool is_wanted(int count, char **words, const char *name)
{
    for (int i = 1; i < count; i++)
        if (strcmp(words[i], name) == 0)
            return true;
    return count < 2;
}

int check_main(int count, char **words, const struct check_case *cases, size_t case_count)
{
    size_t run = 0, failed = 0;
    for (size_t i = 0; i < case_count; i++) {
        if (!is_wanted(count, words, cases[i].name))
            continue;
        run++;
        failed += !run_case(&cases[i]);
    }
    printf("%s: %zu cases, %zu failed\n", words[0], run, failed);
    return failed > 0 || run == 0;
}

void start(void)
{
    ok(aclInit(NULL));
    ok(aclrtSetDevice(0));
}

void end(int violations)
{
    ok(aclrtResetDevice(0));
    ok(aclFinalize());
    require(counter("violations") == violations);
}

int64_t counter(const char *name)
{
    int64_t value = opferrySimCounter(name);
    require(value >= 0);
    return value;
}

static char held[64];

void hold(const char *what)
{
    char rule[256];
    snprintf(held, sizeof held, "/tmp/opferry-sim-hold-%ld", (long)getpid());
    FILE *file = fopen(held, "w");
    require(file != NULL);
    fclose(file);
    snprintf(rule, sizeof rule, "%s:hold:%s", what, held);
    require(opferrySimInject(rule) == 0);
}

void let_go(void)
{
    unlink(held);
}

void set(const char *name, const char *value)
{
    setenv(name, value, 1);
}

struct thread_start {
    void (*run)(void *);
    void *argument;
};

static void *enter_thread(void *argument)
{
    struct thread_start *started = argument;
    started->run(started->argument);
    return NULL;
}

void in_thread(void (*run)(void *), void *argument)
{
    struct thread_start started = {run, argument};
    pthread_t thread;
    require(pthread_create(&thread, NULL, enter_thread, &started) == 0);
    pthread_join(thread, NULL);
}

static const int64_t shapes[TENSORS][4] = {
    {1, 2, 2, 8}, {1, 2, 1, 8}, {1, 2, 1, 8}, {1, 2, 1, 8}, {1, 2, 2, 8},
    {1, 2, 1, 8}, {1, 2, 2, 8}, {1, 2, 1, 8}, {1, 2, 1, 8}, {1, 2, 1, 8},
};

void make(struct rotary *r)
{
    float ones[32];
    memset(r, 0, sizeof *r);
    for (size_t i = 0; i < 32; i++)
        ones[i] = 1.0F;
    ok(aclrtCreateStream(&r->stream));
    for (int i = 0; i < TENSORS; i++) {
        const int64_t *shape = shapes[i];
        int64_t strides[4] = {shape[1] * shape[2] * 8, shape[2] * 8, 8, 1};
        r->bytes[i] = (size_t)(shape[1] * shape[2] * 8) * sizeof(float);
        ok(aclrtMalloc(&r->memory[i], r->bytes[i], ACL_MEM_MALLOC_HUGE_FIRST));
        if (i < GRAD_QUERY)
            ok(aclrtMemcpy(r->memory[i], r->bytes[i], ones, r->bytes[i],
                           ACL_MEMCPY_HOST_TO_DEVICE));
        r->tensors[i] = aclCreateTensor(shape, 4, ACL_FLOAT, strides, 0, ACL_FORMAT_ND, shape, 4,
                                        r->memory[i]);
        require(r->tensors[i] != NULL);
    }
}

int stage_one(struct rotary *r)
{
    char mode[] = "half";
    aclTensor **t = r->tensors;
    return aclnnApplyRotaryPosEmbGradGetWorkspaceSize(
        t[GRAD_QUERY_EMBED], t[GRAD_KEY_EMBED], t[COS], t[SIN], t[QUERY], t[KEY], mode, 1,
        t[GRAD_QUERY], t[GRAD_KEY], t[GRAD_COS], t[GRAD_SIN], &r->workspace_bytes, &r->executor);
}

void make_workspace(struct rotary *r)
{
    ok(aclrtMalloc(&r->workspace, r->workspace_bytes, ACL_MEM_MALLOC_HUGE_FIRST));
}

int stage_two(struct rotary *r)
{
    return aclnnApplyRotaryPosEmbGrad(r->workspace, r->workspace_bytes, r->executor, r->stream);
}

void launch(struct rotary *r)
{
    make(r);
    ok(stage_one(r));
    make_workspace(r);
    ok(stage_two(r));
}

void release(struct rotary *r)
{
    for (int i = 0; i < TENSORS; i++) {
        if (r->tensors[i] != NULL)
            ok(aclDestroyTensor(r->tensors[i]));
        if (r->memory[i] != NULL)
            ok(aclrtFree(r->memory[i]));
    }
    if (r->workspace != NULL)
        ok(aclrtFree(r->workspace));
    if (r->stream != NULL)
        ok(aclrtDestroyStream(r->stream));
}
