/* The operator packages, loaded as a server loads them: libascendcl.so for all to see, then the
 * package by its path. */
#include "check.h"

#include <dlfcn.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

typedef int (*first_stage_function)(const aclTensor *, const aclTensor *, const aclTensor *,
                                    const aclTensor *, const aclTensor *, const aclTensor *,
                                    char *, int64_t, const aclTensor *, const aclTensor *,
                                    const aclTensor *, const aclTensor *, uint64_t *,
                                    aclOpExecutor **);
typedef int (*second_stage_function)(void *, uint64_t, aclOpExecutor *, aclrtStream);

static void *load(const char *package)
{
    char path[4096], own[2048];
    ssize_t length = readlink("/proc/self/exe", own, sizeof own - 1);
    require(length > 0);
    own[length] = '\0';
    *strrchr(own, '/') = '\0';
    snprintf(path, sizeof path, "%s/packages/%s/op_api/lib/libcust_opapi.so", own, package);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        fprintf(stderr, "%s\n", dlerror());
    require(library != NULL);
    return library;
}

/* Runs a package's operator with inputs whose halves differ; returns dq, then dk. */
static void run_package(const char *package, float results[48])
{
    struct rotary r;
    float inputs[32];
    char mode[] = "half";
    void *library = load(package);
    void *symbols[] = {dlsym(library, "aclnnApplyRotaryPosEmbGradGetWorkspaceSize"),
                       dlsym(library, "aclnnApplyRotaryPosEmbGrad")};
    first_stage_function first;
    second_stage_function second;
    memcpy(&first, &symbols[0], sizeof first);
    memcpy(&second, &symbols[1], sizeof second);
    make(&r);
    for (int i = 0; i < 32; i++)
        inputs[i] = (float)(i + 1);
    for (int i = 0; i < GRAD_QUERY; i++)
        ok(aclrtMemcpy(r.memory[i], r.bytes[i], inputs, r.bytes[i], ACL_MEMCPY_HOST_TO_DEVICE));
    aclTensor **t = r.tensors;
    ok(first(t[0], t[1], t[2], t[3], t[4], t[5], mode, 1, t[6], t[7], t[8], t[9],
             &r.workspace_bytes, &r.executor));
    make_workspace(&r);
    ok(second(r.workspace, r.workspace_bytes, r.executor, r.stream));
    ok(aclrtSynchronizeStream(r.stream));
    ok(aclrtMemcpy(results, 128, r.memory[GRAD_QUERY], 128, ACL_MEMCPY_DEVICE_TO_HOST));
    ok(aclrtMemcpy(results + 32, 64, r.memory[GRAD_KEY], 64, ACL_MEMCPY_DEVICE_TO_HOST));
    release(&r);
}

static void wrong_kernels_give_other_results(void)
{
    static const char *const names[] = {"good", "wrong-sign", "halves-swapped", "one-off"};
    float results[4][48];
    int differing[4] = {0};
    start();
    for (int i = 0; i < 4; i++)
        run_package(names[i], results[i]);
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 48; k++)
            differing[i] += results[i][k] != results[0][k];
    require(results[0][0] == 1 * 1 + 5 * 5);          /* c1*g1 + s2*g2 */
    require(results[1][0] == 1 * 1 - 5 * 5);
    require(results[2][0] == 5 * 1 + 1 * 5);
    require(differing[1] == 48 && differing[2] > 0);
    require(differing[3] == 1 && results[3][47] == results[0][47] + 10);
    end(0);
}

static void package_without_the_symbol(void)
{
    void *library = load("no-symbol");
    require(dlsym(library, "aclnnApplyRotaryPosEmbGradGetWorkspaceSize") == NULL);
    require(dlsym(library, "aclnnSomeOtherOperatorGetWorkspaceSize") != NULL);
}

static void shim_with_another_signature_crashes(void)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        float results[48];
        start();
        signal(SIGSEGV, SIG_DFL);
        run_package("shim", results);
        _exit(0);
    }
    waitpid(child, &status, 0);
    /* Under a sanitizer it may be told before it comes to the fault. */
    require(!(WIFEXITED(status) && WEXITSTATUS(status) == 0));
}

static const struct check_case cases[] = {
    CASE(wrong_kernels_give_other_results),
    CASE(package_without_the_symbol),
    CASE(shim_with_another_signature_crashes),
};

CHECK_MAIN(cases)
