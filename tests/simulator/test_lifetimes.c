/* What must live, and how large it must be, from stage one until the stream is synchronised. */
#include "check.h"

static void tensor_destroyed_before_synchronisation(void)
{
    struct rotary r;
    start();
    launch(&r);
    breaks(161002, "before the stream was synchronised", aclDestroyTensor(r.tensors[COS]));
    ok(aclrtSynchronizeStream(r.stream));
    release(&r);
    end(1);
}

static void tensor_destroyed_between_the_stages(void)
{
    struct rotary r;
    start();
    make(&r);
    ok(stage_one(&r));
    make_workspace(&r);
    ok(aclDestroyTensor(r.tensors[SIN]));
    r.tensors[SIN] = NULL;
    breaks(361001, "sin was destroyed between the stages", stage_two(&r));
    release(&r);
    end(1);
}

static void tensor_destroyed_twice(void)
{
    struct rotary r;
    start();
    make(&r);
    ok(aclDestroyTensor(r.tensors[SIN]));
    breaks(161002, "tensor was destroyed", aclDestroyTensor(r.tensors[SIN]));
    breaks(161002, "of kind stream, not tensor", aclDestroyTensor((aclTensor *)r.stream));
    breaks(161002, "no handle", aclDestroyTensor((aclTensor *)&r));
    breaks(161002, "no handle",
           aclDestroyTensor((aclTensor *)(uintptr_t)(uint32_t)(uintptr_t)r.tensors[COS]));
    r.tensors[SIN] = NULL;
    release(&r);
    end(4);
}

static void tensor_does_not_own_its_memory(void)
{
    struct rotary r;
    start();
    make(&r);
    int64_t before = counter("live.device_allocations");
    ok(aclDestroyTensor(r.tensors[SIN]));
    r.tensors[SIN] = NULL;
    require(counter("live.device_allocations") == before);
    release(&r);
    end(0);
}

static void memory_freed_before_synchronisation(void)
{
    struct rotary r;
    start();
    launch(&r);
    breaks(207002, "before the stream was synchronised", aclrtFree(r.memory[GRAD_KEY]));
    breaks(207002, "before the stream was synchronised", aclrtFree(r.workspace));
    ok(aclrtSynchronizeStream(r.stream));
    release(&r);
    end(2);
}

static void memory_freed_between_the_stages(void)
{
    struct rotary r;
    start();
    make(&r);
    ok(stage_one(&r));
    make_workspace(&r);
    ok(aclrtFree(r.memory[COS]));
    r.memory[COS] = NULL;
    breaks(361001, "cos 0x", stage_two(&r));
    release(&r);
    end(1);
}

static void output_read_before_synchronisation(void)
{
    struct rotary r;
    float out[32];
    start();
    launch(&r);
    breaks(107000, "reads memory before the stream was synchronised",
           aclrtMemcpy(out, sizeof out, r.memory[GRAD_QUERY], r.bytes[GRAD_QUERY],
                       ACL_MEMCPY_DEVICE_TO_HOST));
    ok(aclrtSynchronizeStream(r.stream));
    release(&r);
    end(1);
}

static void input_overwritten_before_synchronisation(void)
{
    struct rotary r;
    float in[32] = {0};
    start();
    launch(&r);
    breaks(107000, "writes memory before the stream was synchronised",
           aclrtMemcpy(r.memory[COS], r.bytes[COS], in, r.bytes[COS], ACL_MEMCPY_HOST_TO_DEVICE));
    ok(aclrtSynchronizeStream(r.stream));
    release(&r);
    end(1);
}

static void workspace_too_small(void)
{
    struct rotary r;
    start();
    make(&r);
    ok(stage_one(&r));
    make_workspace(&r);
    r.workspace_bytes -= 1;
    breaks(361001, "stage one asked for", stage_two(&r));
    ok(stage_one(&r));
    ok(aclrtFree(r.workspace));
    ok(aclrtMalloc(&r.workspace, r.workspace_bytes - 32, ACL_MEM_MALLOC_HUGE_FIRST));
    breaks(361001, "the workspace", stage_two(&r));
    release(&r);
    end(2);
}

static void workspace_null_and_zero(void)
{
    struct rotary r;
    start();
    make(&r);
    ok(stage_one(&r));
    make_workspace(&r);
    breaks(361001, "the workspace (nil) is null",
           aclnnApplyRotaryPosEmbGrad(NULL, r.workspace_bytes, r.executor, r.stream));
    ok(stage_one(&r));
    breaks(361001, "stage one asked for",
           aclnnApplyRotaryPosEmbGrad(r.workspace, 0, r.executor, r.stream));
    release(&r);
    end(2);
}

static void no_workspace_is_a_null_pointer(void)
{
    struct rotary r;
    set("OPFERRY_SIM_WORKSPACE", "0");
    start();
    make(&r);
    ok(stage_one(&r));
    require(r.workspace_bytes == 0);
    breaks(361001, "0 bytes is a null pointer",
           aclnnApplyRotaryPosEmbGrad(r.memory[COS], 0, r.executor, r.stream));
    ok(stage_one(&r));
    ok(aclnnApplyRotaryPosEmbGrad(NULL, 0, r.executor, r.stream));
    ok(aclrtSynchronizeStream(r.stream));
    release(&r);
    end(1);
}

static void the_device_may_ask_for_more(void)
{
    struct rotary r;
    set("OPFERRY_SIM_WORKSPACE", "+1000");
    start();
    launch(&r);
    require(r.workspace_bytes == 1 * 2 * 2 * 8 * 4 * 2 + 1000);
    ok(aclrtSynchronizeStream(r.stream));
    release(&r);
    end(0);
}

static void output_that_shares_memory(void)
{
    struct rotary r;
    start();
    make(&r);
    void *own = r.memory[GRAD_QUERY];
    const int64_t shape[] = {1, 2, 2, 8};
    ok(aclDestroyTensor(r.tensors[GRAD_QUERY]));
    r.tensors[GRAD_QUERY] = aclCreateTensor(shape, 4, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, shape, 4,
                                            r.memory[GRAD_QUERY_EMBED]);
    ok(stage_one(&r));
    make_workspace(&r);
    breaks(361001, "shares memory", stage_two(&r));
    r.memory[GRAD_QUERY] = own;
    release(&r);
    end(1);
}

static void view_out_of_its_storage(void)
{
    struct rotary r;
    const int64_t shape[] = {1, 2, 1, 8}, strides[] = {16, 9, 8, 1}, storage[] = {16};
    start();
    make(&r);
    ok(aclDestroyTensor(r.tensors[COS]));
    r.tensors[COS] = aclCreateTensor(shape, 4, ACL_FLOAT, strides, 0, ACL_FORMAT_ND, storage, 1,
                                     r.memory[COS]);
    ok(stage_one(&r));
    make_workspace(&r);
    breaks(361001, "cos reaches out of its storage", stage_two(&r));
    release(&r);
    end(1);
}

static void storage_out_of_its_memory(void)
{
    struct rotary r;
    const int64_t shape[] = {1, 2, 1, 8}, storage[] = {17};
    start();
    make(&r);
    ok(aclDestroyTensor(r.tensors[COS]));
    r.tensors[COS] =
        aclCreateTensor(shape, 4, ACL_FLOAT, NULL, 1, ACL_FORMAT_ND, storage, 1, r.memory[COS]);
    ok(stage_one(&r));
    make_workspace(&r);
    breaks(361001, "68 bytes at offset 0 of an allocation of 64", stage_two(&r));
    release(&r);
    end(1);
}

static void malformed_tensors(void)
{
    const int64_t shape[] = {4, 4}, negative[] = {4, -1};
    start();
    int64_t before = counter("violations");
    require(aclCreateTensor(NULL, 2, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, shape, 2, NULL) == NULL);
    broke(before, "without the dimensions");
    require(aclCreateTensor(shape, 2, ACL_FLOAT, negative, 0, ACL_FORMAT_ND, shape, 2, NULL) ==
            NULL);
    broke(before + 1, "negative stride");
    require(aclCreateTensor(shape, 2, ACL_FLOAT, NULL, -1, ACL_FORMAT_ND, shape, 2, NULL) == NULL);
    broke(before + 2, "negative offset");
    end(3);
}

static const struct check_case cases[] = {
    CASE(tensor_destroyed_before_synchronisation),
    CASE(tensor_destroyed_between_the_stages),
    CASE(tensor_destroyed_twice),
    CASE(tensor_does_not_own_its_memory),
    CASE(memory_freed_before_synchronisation),
    CASE(memory_freed_between_the_stages),
    CASE(output_read_before_synchronisation),
    CASE(input_overwritten_before_synchronisation),
    CASE(workspace_too_small),
    CASE(workspace_null_and_zero),
    CASE(no_workspace_is_a_null_pointer),
    CASE(the_device_may_ask_for_more),
    CASE(output_that_shares_memory),
    CASE(view_out_of_its_storage),
    CASE(storage_out_of_its_memory),
    CASE(malformed_tensors),
};

CHECK_MAIN(cases)
