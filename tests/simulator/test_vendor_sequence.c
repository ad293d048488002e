/* The vendor's call sequence for the smallest published example: all shapes (1, 1, 1, 128),
 * float32, layout BSND, query and key given. Uses nothing that CANN does not have, so that it can
 * be compiled against CANN's own headers (make ACL_INCLUDE=...) and linked with its libraries. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "acl_sim.h"
#include "aclnn_sim.h"

#define WIDTH 128
#define COUNT 10
#define FIRST_OUTPUT 6

static void must(int status, const char *what)
{
    if (status == 0)
        return;
    const char *message = aclGetRecentErrMsg();
    fprintf(stderr, "%s returned %d: %s\n", what, status, message == NULL ? "" : message);
    exit(1);
}

#define MUST(call) must((call), #call)

static float host[COUNT][WIDTH];
static void *device[COUNT];
static aclTensor *tensors[COUNT];

static void create_tensors(void)
{
    const int64_t shape[4] = {1, 1, 1, WIDTH}, strides[4] = {WIDTH, WIDTH, WIDTH, 1};
    for (int i = 0; i < COUNT; i++) {
        for (int k = 0; k < WIDTH; k++)
            host[i][k] = i < FIRST_OUTPUT ? (float)((i + 1) * (k % 16 + 1)) / 8 : 0;
        MUST(aclrtMalloc(&device[i], sizeof host[i], ACL_MEM_MALLOC_HUGE_FIRST));
        MUST(aclrtMemcpy(device[i], sizeof host[i], host[i], sizeof host[i],
                         ACL_MEMCPY_HOST_TO_DEVICE));
        tensors[i] = aclCreateTensor(shape, 4, ACL_FLOAT, strides, 0, ACL_FORMAT_ND, shape, 4,
                                     device[i]);
        must(tensors[i] == NULL, "aclCreateTensor");
    }
}

static void run(aclrtStream stream)
{
    char mode[] = "half";
    uint64_t workspace_bytes = 0;
    void *workspace = NULL;
    aclOpExecutor *executor = NULL;
    aclTensor **t = tensors;
    MUST(aclnnApplyRotaryPosEmbGradGetWorkspaceSize(t[0], t[1], t[2], t[3], t[4], t[5], mode, 1,
                                                    t[6], t[7], t[8], t[9], &workspace_bytes,
                                                    &executor));
    if (workspace_bytes > 0)
        MUST(aclrtMalloc(&workspace, workspace_bytes, ACL_MEM_MALLOC_HUGE_FIRST));
    MUST(aclnnApplyRotaryPosEmbGrad(workspace, workspace_bytes, executor, stream));
    MUST(aclrtSynchronizeStream(stream));
    for (int i = FIRST_OUTPUT; i < COUNT; i++)
        MUST(aclrtMemcpy(host[i], sizeof host[i], device[i], sizeof host[i],
                         ACL_MEMCPY_DEVICE_TO_HOST));
    if (workspace != NULL)
        MUST(aclrtFree(workspace));
}

/* All values are small multiples of 1/64, so that float32 holds every step exactly. */
static void compare(void)
{
    float(*h)[WIDTH] = host;
    for (int k = 0; k < WIDTH; k++) {
        int other = (k + WIDTH / 2) % WIDTH;
        float sign = k < WIDTH / 2 ? 1 : -1;
        float expected[4];
        for (int path = 0; path < 2; path++)
            expected[path] = h[2][k] * h[path][k] + sign * (h[3][other] * h[path][other]);
        expected[2] = h[0][k] * h[4][k] + h[1][k] * h[5][k];
        expected[3] = -sign * (h[0][k] * h[4][other] + h[1][k] * h[5][other]);
        for (int i = 0; i < 4; i++) {
            if (h[FIRST_OUTPUT + i][k] == expected[i])
                continue;
            fprintf(stderr, "output %d, element %d: %g, expected %g\n", i, k,
                    (double)h[FIRST_OUTPUT + i][k], (double)expected[i]);
            exit(1);
        }
    }
}

int main(void)
{
    aclrtStream stream;
    MUST(aclInit(NULL));
    MUST(aclrtSetDevice(0));
    MUST(aclrtCreateStream(&stream));
    create_tensors();
    run(stream);
    compare();
    for (int i = 0; i < COUNT; i++) {
        MUST(aclDestroyTensor(tensors[i]));
        MUST(aclrtFree(device[i]));
    }
    MUST(aclrtDestroyStream(stream));
    MUST(aclrtResetDevice(0));
    MUST(aclFinalize());
    printf("vendor sequence: done\n");
    return 0;
}
