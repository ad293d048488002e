/* What stage one refuses: each rule by itself, and the order of the rules. */
#include "check.h"

enum { LAYOUT_BSND = 1, LAYOUT_SBND = 2, LAYOUT_TND = 4 };

/* A call that needs no memory, for stage one does not touch any. */
struct call {
    int64_t layout;
    const char *mode;
    aclDataType types[TENSORS];
    aclFormat format;
    int ranks[TENSORS]; /* 0: absent */
    int64_t dims[TENSORS][4];
};

/* BSND, B = 2, S = 3, Nq = 4, Nk = 2, D = 8, Bc = 1, all tensors given. */
static struct call good(void)
{
    struct call call = {.layout = LAYOUT_BSND, .mode = "half", .format = ACL_FORMAT_ND};
    for (int i = 0; i < TENSORS; i++) {
        bool is_cos = i == COS || i == SIN || i >= GRAD_COS;
        bool is_key = i == GRAD_KEY_EMBED || i == KEY || i == GRAD_KEY;
        const int64_t dims[] = {is_cos ? 1 : 2, 3, is_cos ? 1 : is_key ? 2 : 4, 8};
        call.ranks[i] = 4;
        memcpy(call.dims[i], dims, sizeof dims);
    }
    return call;
}

static int ask(const struct call *call, uint64_t *workspace)
{
    aclTensor *t[TENSORS] = {NULL};
    aclOpExecutor *executor = NULL;
    for (int i = 0; i < TENSORS; i++) {
        if (call->ranks[i] > 0)
            t[i] = aclCreateTensor(call->dims[i], (uint64_t)call->ranks[i], call->types[i], NULL,
                                   0, call->format, call->dims[i], (uint64_t)call->ranks[i], NULL);
    }
    int status = aclnnApplyRotaryPosEmbGradGetWorkspaceSize(
        t[0], t[1], t[2], t[3], t[4], t[5], (char *)(uintptr_t)call->mode, call->layout, t[6],
        t[7], t[8], t[9], workspace, &executor);
    if (status == 0) {
        ok(aclSetAclOpExecutorRepeatable(executor));
        ok(aclDestroyAclOpExecutor(executor));
    }
    for (int i = 0; i < TENSORS; i++)
        if (t[i] != NULL)
            ok(aclDestroyTensor(t[i]));
    return status;
}

static void refused(const struct call *call, int expected, const char *words)
{
    uint64_t workspace;
    require_status(expected, ask(call, &workspace));
    const char *message = aclGetRecentErrMsg();
    if (message == NULL || strstr(message, words) == NULL) {
        fprintf(stderr, "expected \"%s\": %s\n", words, message == NULL ? "none" : message);
        _Exit(1);
    }
}

static void nulls(void)
{
    static const int required[] = {GRAD_QUERY_EMBED, GRAD_KEY_EMBED, COS,
                                   SIN,              GRAD_QUERY,     GRAD_KEY};
    start();
    for (size_t i = 0; i < 6; i++) {
        struct call call = good();
        call.ranks[required[i]] = 0;
        call.mode = "interleave"; /* a null comes first */
        refused(&call, 161001, "is null");
    }
    end(0);
}

/* Adds one fault after the other, the last rule's first: each must hide those before it. */
static void the_order_of_the_rules(void)
{
    struct call call = good();
    start();
    call.dims[COS][0] = call.dims[SIN][0] = 5;
    refused(&call, 161002, "B of cos is 5");
    call.dims[COS][1] = call.dims[SIN][1] = 4;
    refused(&call, 161002, "S of cos is 4");
    call.dims[COS][2] = call.dims[SIN][2] = 4;
    refused(&call, 161002, "N of cos is 4");
    call.layout = LAYOUT_TND;
    refused(&call, 161002, "layout 4 needs 3 dimensions");
    call.dims[GRAD_QUERY_EMBED][1] = call.dims[GRAD_KEY_EMBED][1] = 0;
    call.dims[QUERY][1] = call.dims[KEY][1] = 0;
    refused(&call, 161002, "axis 1 of gradQueryEmbed is 0");
    call.dims[GRAD_KEY_EMBED][0] = call.dims[KEY][0] = 3;
    refused(&call, 161002, "gradKeyEmbed differs from gradQueryEmbed in axis 0");
    for (int i = 0; i < TENSORS; i++)
        call.dims[i][3] = 7;
    refused(&call, 161002, "D is 7, not even");
    for (int i = 0; i < TENSORS; i++)
        call.dims[i][3] = 1026;
    refused(&call, 161002, "D is 1026, at most 1024");
    call.dims[GRAD_KEY_EMBED][3] = call.dims[KEY][3] = 6;
    refused(&call, 161002, "D of gradKeyEmbed is 6");
    call.ranks[GRAD_KEY_EMBED] = call.ranks[KEY] = 3;
    refused(&call, 161002, "differ in their number of dimensions");
    call.dims[KEY][0] = 9;
    refused(&call, 161002, "keyOptional and gradKeyEmbed differ in shape");
    call.dims[SIN][0] = 9;
    refused(&call, 161002, "sin and cos differ in shape");
    call.ranks[COS] = 2;
    refused(&call, 161002, "cos has 2 dimensions");
    call.types[GRAD_SIN] = ACL_BF16;
    refused(&call, 161002, "gradSinOut has data type 27");
    call.ranks[KEY] = 0;
    refused(&call, 161002, "both or neither");
    call.layout = 5;
    refused(&call, 161002, "layout 5");
    call.mode = "interleave";
    refused(&call, 161002, "rotaryMode interleave");
    end(0);
}

static void other_layouts_and_types(void)
{
    start();
    struct call call = good();
    call.layout = 3;
    refused(&call, 161002, "reserved");
    call = good();
    call.mode = NULL; /* means half */
    uint64_t workspace;
    ok(ask(&call, &workspace));
    call.types[GRAD_QUERY_EMBED] = ACL_DOUBLE;
    refused(&call, 161002, "data type 11");
    call = good();
    call.format = ACL_FORMAT_NCHW;
    refused(&call, 161002, "not ND");
    call = good();
    call.dims[GRAD_COS][1] = 4;
    refused(&call, 161002, "gradCosOut has not the shape of cos");
    call = good(); /* SBND looks at B before S */
    call.layout = LAYOUT_SBND;
    for (int i = 0; i < TENSORS; i++) {
        call.dims[i][1] = call.dims[i][0];
        call.dims[i][0] = 3;
    }
    ok(ask(&call, &workspace));
    call.dims[COS][0] = call.dims[SIN][0] = 4;
    refused(&call, 161002, "S of cos is 4");
    call.dims[COS][1] = call.dims[SIN][1] = 5;
    refused(&call, 161002, "B of cos is 5");
    end(0);
}

static void shapes_may_show_as_561002(void)
{
    set("OPFERRY_SIM_SHAPE_STATUS", "561002");
    start();
    struct call call = good();
    call.dims[COS][2] = call.dims[SIN][2] = 4;
    refused(&call, 561002, "N of cos");
    call.mode = "interleave";
    refused(&call, 161002, "rotaryMode");
    end(0);
}

static void no_kernel_for_another_soc(void)
{
    set("OPFERRY_SIM_SOC", "Ascend910B3");
    start();
    struct call call = good();
    refused(&call, 561003, "no kernel of ApplyRotaryPosEmbGrad for Ascend910B3-simulated");
    require(strcmp(aclrtGetSocName(), "Ascend910B3-simulated") == 0);
    end(0);
}

static uint64_t workspace_of(struct call call)
{
    uint64_t workspace = 0;
    ok(ask(&call, &workspace));
    return workspace;
}

static void workspace_sizes(void)
{
    start();
    struct call call = good(); /* BAB: cos broadcasts */
    require(workspace_of(call) == 2 * 3 * 4 * 8 * 4 * 2);
    for (int i = 0; i < TENSORS; i++)
        call.types[i] = ACL_BF16;
    require(workspace_of(call) == 2 * 3 * 4 * 8 * 4 * 2); /* sums are float32 all the same */
    call.ranks[QUERY] = call.ranks[KEY] = call.ranks[GRAD_COS] = call.ranks[GRAD_SIN] = 0;
    require(workspace_of(call) == 2 * 3 * 4 * 8 * 2 * 2);
    call = good(); /* A: nothing broadcasts */
    for (int i = 0; i < TENSORS; i++) {
        call.dims[i][0] = 2;
        call.dims[i][2] = 1;
    }
    require(workspace_of(call) == 2 * 3 * 1 * 8 * 4 * 2 + 16 * 1024 * 1024);
    call = good(); /* 2^31: more than an int holds */
    for (int i = 0; i < TENSORS; i++) {
        const bool is_cos = i == COS || i == SIN || i >= GRAD_COS;
        const int64_t dims[] = {is_cos ? 1 : 4, 8192, is_cos ? 1 : 64, 128};
        memcpy(call.dims[i], dims, sizeof dims);
        call.types[i] = ACL_BF16;
    }
    require(workspace_of(call) == UINT64_C(2147483648));
    end(0);
}

static const struct check_case cases[] = {
    CASE(nulls),
    CASE(the_order_of_the_rules),
    CASE(other_layouts_and_types),
    CASE(shapes_may_show_as_561002),
    CASE(no_kernel_for_another_soc),
    CASE(workspace_sizes),
};

CHECK_MAIN(cases)
