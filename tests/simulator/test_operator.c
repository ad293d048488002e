/* The operator: results worked out by hand, and what stage one answers. */
#include "check.h"

#include <math.h>

/* A call with host arrays. Null data: an absent tensor. */
struct operand {
    int64_t dims[4];
    int rank;
    void *data;
    bool strided; /* else contiguous */
    int64_t strides[4];
    int64_t offset;
    int64_t storage; /* elements; 0: as many as the dims hold */
};

struct problem {
    int64_t layout;
    aclDataType type;
    const char *mode;
    struct operand operands[TENSORS];
    aclTensor *tensors[TENSORS];
    void *memory[TENSORS];
    uint64_t workspace_bytes;
    aclOpExecutor *executor;
};

static size_t item_bytes(const struct problem *p)
{
    return p->type == ACL_FLOAT ? 4 : 2;
}

static int64_t storage_of(const struct operand *o)
{
    int64_t elements = 1;
    for (int i = 0; i < o->rank; i++)
        elements *= o->dims[i];
    return o->storage > 0 ? o->storage : elements;
}

static void set_up(struct problem *p)
{
    for (int i = 0; i < TENSORS; i++) {
        struct operand *o = &p->operands[i];
        if (o->data == NULL)
            continue;
        int64_t storage = storage_of(o);
        size_t bytes = (size_t)storage * item_bytes(p);
        ok(aclrtMalloc(&p->memory[i], bytes, ACL_MEM_MALLOC_HUGE_FIRST));
        ok(aclrtMemcpy(p->memory[i], bytes, o->data, bytes, ACL_MEMCPY_HOST_TO_DEVICE));
        p->tensors[i] = aclCreateTensor(o->dims, (uint64_t)o->rank, p->type,
                                        o->strided ? o->strides : NULL, o->offset, ACL_FORMAT_ND,
                                        &storage, 1, p->memory[i]);
        require(p->tensors[i] != NULL);
    }
}

static int first_stage(struct problem *p)
{
    aclTensor **t = p->tensors;
    return aclnnApplyRotaryPosEmbGradGetWorkspaceSize(
        t[0], t[1], t[2], t[3], t[4], t[5], (char *)(uintptr_t)p->mode, p->layout, t[6], t[7],
        t[8], t[9], &p->workspace_bytes, &p->executor);
}

static void tear_down(struct problem *p)
{
    for (int i = 0; i < TENSORS; i++) {
        if (p->tensors[i] == NULL)
            continue;
        ok(aclDestroyTensor(p->tensors[i]));
        ok(aclrtFree(p->memory[i]));
    }
}

static void run(struct problem *p)
{
    void *workspace;
    set_up(p);
    ok(first_stage(p));
    ok(aclrtMalloc(&workspace, p->workspace_bytes, ACL_MEM_MALLOC_HUGE_FIRST));
    ok(aclnnApplyRotaryPosEmbGrad(workspace, p->workspace_bytes, p->executor, NULL));
    ok(aclrtSynchronizeStream(NULL));
    for (int i = GRAD_QUERY; i < TENSORS; i++)
        if (p->operands[i].data != NULL)
            ok(aclrtMemcpy(p->operands[i].data, SIZE_MAX, p->memory[i],
                           (size_t)storage_of(&p->operands[i]) * item_bytes(p),
                           ACL_MEMCPY_DEVICE_TO_HOST));
    ok(aclrtFree(workspace));
    tear_down(p);
}

static void put(struct problem *p, int which, int rank, int64_t a, int64_t b, int64_t c, int64_t d,
                void *data)
{
    const int64_t dims[] = {a, b, c, d};
    memcpy(p->operands[which].dims, dims, sizeof dims);
    p->operands[which].rank = rank;
    p->operands[which].data = data;
}

/* One token, one head in each path, TND, two elements; the smallest call there is. */
static void tiny(struct problem *p, aclDataType type, void *data[TENSORS])
{
    memset(p, 0, sizeof *p);
    p->layout = 4;
    p->type = type;
    for (int i = 0; i < TENSORS; i++)
        if (data[i] != NULL)
            put(p, i, 3, 1, 1, 2, 0, data[i]);
}

static void halves_are_independent(void)
{
    struct problem p;
    float gq[] = {2, 3}, gk[] = {5, 7}, c[] = {11, 13}, s[] = {17, 19}, q[] = {23, 29},
          k[] = {31, 37}, dq[2], dk[2], dc[2], ds[2];
    void *data[] = {gq, gk, c, s, q, k, dq, dk, dc, ds};
    start();
    tiny(&p, ACL_FLOAT, data);
    run(&p);
    require(dq[0] == 11 * 2 + 19 * 3 && dq[1] == 13 * 3 - 17 * 2);
    require(dk[0] == 11 * 5 + 19 * 7 && dk[1] == 13 * 7 - 17 * 5);
    require(dc[0] == 2 * 23 + 5 * 31 && dc[1] == 3 * 29 + 7 * 37);
    require(ds[0] == 2 * -29 + 5 * -37 && ds[1] == 3 * 23 + 7 * 31);
    end(0);
}

static void broadcast_over_the_batch(void)
{
    struct problem p = {.layout = 1, .type = ACL_FLOAT};
    float gq[6], gk[6], q[] = {1, 2, 3, 4, 5, 6}, k[] = {1, 2, 3, 4, 5, 6}, c[] = {1, 1},
          s[] = {0, 0}, dq[6], dk[6], dc[2], ds[2];
    void *data[] = {gq, gk, c, s, q, k, dq, dk, dc, ds};
    for (int i = 0; i < 6; i++) {
        gq[i] = 1;
        gk[i] = 10;
    }
    start();
    for (int i = 0; i < TENSORS; i++)
        put(&p, i, 4, i == COS || i == SIN || i >= GRAD_COS ? 1 : 3, 1, 1, 2, data[i]);
    run(&p);
    require(dc[0] == 99 && dc[1] == 132 && ds[0] == -132 && ds[1] == 99);
    end(0);
}

static void infinities_and_nan(void)
{
    struct problem p;
    float gq[] = {1, 1}, gk[] = {0, 1}, c[] = {INFINITY, INFINITY}, s[] = {0, 0}, dq[2], dk[2];
    void *data[] = {gq, gk, c, s, NULL, NULL, dq, dk, NULL, NULL};
    start();
    tiny(&p, ACL_FLOAT, data);
    run(&p);
    require(isinf(dq[0]) && isinf(dq[1]) && isnan(dk[0]) && isinf(dk[1]));
    end(0);
}

static void float16_overflows_to_infinity(void)
{
    struct problem p;
    uint16_t gq[] = {0x7B53, 0x7B53} /* 60000 */, gk[] = {0x0001, 0x8001}, c[] = {0x4000, 0x4000},
             s[] = {0, 0}, dq[2], dk[2];
    void *data[] = {gq, gk, c, s, NULL, NULL, dq, dk, NULL, NULL};
    start();
    tiny(&p, ACL_FLOAT16, data);
    run(&p);
    require(dq[0] == 0x7C00 && dq[1] == 0x7C00);
    require(dk[0] == 0x0002 && dk[1] == 0x8002); /* subnormals are kept */
    end(0);
}

static void bfloat16_bits(void)
{
    struct problem p;
    uint16_t gq[] = {0x3C24, 0x3C24}, gk[] = {0x3F81, 0x0001}, c[] = {0x4000, 0x4000}, s[] = {0, 0},
             dq[2], dk[2];
    void *data[] = {gq, gk, c, s, NULL, NULL, dq, dk, NULL, NULL};
    start();
    tiny(&p, ACL_BF16, data);
    run(&p);
    require(dq[0] == 0x3CA4 && dk[0] == 0x4001 && dk[1] == 0x0002);
    end(0);
}

static void sums_are_kept_in_float32(void)
{
    enum { HEADS = 4096 };
    static uint16_t ones[HEADS * 2], dq[HEADS * 2], dk[HEADS * 2];
    struct problem p = {.layout = 4, .type = ACL_BF16};
    uint16_t c[] = {0x3F80, 0x3F80}, s[] = {0, 0}, dc[2], ds[2];
    void *data[] = {ones, ones, c, s, ones, ones, dq, dk, dc, ds};
    for (int i = 0; i < HEADS * 2; i++)
        ones[i] = 0x3F80;
    start();
    for (int i = 0; i < TENSORS; i++)
        put(&p, i, 3, 1, i == COS || i == SIN || i >= GRAD_COS ? 1 : HEADS, 2, 0, data[i]);
    run(&p);
    require(dc[0] == 0x4600 && dc[1] == 0x4600); /* 8192 */
    require(ds[0] == 0xC600 && ds[1] == 0x4600);
    end(0);
}

static void strides_and_offsets(void)
{
    struct problem p;
    float gq[] = {-1, 3, -1, 2}, gk[] = {5, 7}, c[] = {11}, s[] = {17, 19}, dq[2], dk[2];
    void *data[] = {gq, gk, c, s, NULL, NULL, dq, dk, NULL, NULL};
    start();
    tiny(&p, ACL_FLOAT, data);
    struct operand *gradient = &p.operands[GRAD_QUERY_EMBED], *cos = &p.operands[COS];
    gradient->strided = true; /* 3 and 2 */
    gradient->strides[2] = 2;
    gradient->offset = 1;
    gradient->storage = 4;
    cos->strided = true; /* one element, seen twice */
    cos->storage = 1;
    run(&p);
    require(dq[0] == 11 * 3 + 19 * 2 && dq[1] == 11 * 2 - 17 * 3);
    end(0);
}

static void outputs_not_wanted_stay_as_they_are(void)
{
    struct problem p;
    float gq[] = {2, 3}, gk[] = {5, 7}, c[] = {11, 13}, s[] = {17, 19}, dq[2], dk[2],
          dc[] = {-5, -5}, ds[] = {-5, -5};
    void *data[] = {gq, gk, c, s, NULL, NULL, dq, dk, dc, ds};
    start();
    tiny(&p, ACL_FLOAT, data);
    run(&p);
    require(dc[0] == -5 && dc[1] == -5 && ds[0] == -5 && ds[1] == -5);
    end(0);
}

static const struct check_case cases[] = {
    CASE(halves_are_independent),
    CASE(broadcast_over_the_batch),
    CASE(infinities_and_nan),
    CASE(float16_overflows_to_infinity),
    CASE(bfloat16_bits),
    CASE(sums_are_kept_in_float32),
    CASE(strides_and_offsets),
    CASE(outputs_not_wanted_stay_as_they_are),
};

CHECK_MAIN(cases)
