/* The two exported functions of ApplyRotaryPosEmb, which overwrite queryRef and keyRef. */
#include "rotary.h"

static const struct sim_kernel kernel = {
    .operator_name = "ApplyRotaryPosEmb",
    .function = SIM_aclnnApplyRotaryPosEmbV2,
    .input_count = FORWARD_COUNT,
    .overwritten_count = ROTARY_COS,
    .tensor_count = FORWARD_COUNT,
    .tensor_names = rotary_forward_names,
    .run = rotary_forward_run,
    .first_value = rotary_first_value,
};

static bool is_optional(int which)
{
    (void)which;
    return false;
}

static uint64_t workspace(const struct rotary_arguments *arguments)
{
    (void)arguments;
    return ROTARY_SYSTEM_WORKSPACE_BYTES;
}

static const struct rotary_operator forward = {
    .kernel = &kernel,
    .first_stage = SIM_aclnnApplyRotaryPosEmbV2GetWorkspaceSize,
    .checks = rotary_forward_checks,
    .is_optional = is_optional,
    .workspace = workspace,
};

aclnnStatus aclnnApplyRotaryPosEmbV2GetWorkspaceSize(aclTensor *queryRef, aclTensor *keyRef,
                                                     const aclTensor *cos, const aclTensor *sin,
                                                     int64_t layout, char *rotaryMode,
                                                     uint64_t *workspaceSize,
                                                     aclOpExecutor **executor)
{
    const aclTensor *handles[FORWARD_COUNT] = {queryRef, keyRef, cos, sin};
    return rotary_first_stage(&forward, handles, rotaryMode, layout, workspaceSize, executor);
}

aclnnStatus aclnnApplyRotaryPosEmbV2(void *workspace, uint64_t workspaceSize,
                                     aclOpExecutor *executor, aclrtStream stream)
{
    return rotary_second_stage(&forward, workspace, workspaceSize, executor, stream);
}
