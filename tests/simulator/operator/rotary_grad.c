/* The two exported functions of ApplyRotaryPosEmbGrad. */
#include "rotary.h"

static const struct sim_kernel kernel = {
    .operator_name = "ApplyRotaryPosEmbGrad",
    .function = SIM_aclnnApplyRotaryPosEmbGrad,
    .input_count = ROTARY_GRAD_QUERY,
    .tensor_count = ROTARY_COUNT,
    .tensor_names = rotary_grad_names,
    .run = rotary_grad_run,
    .first_value = rotary_first_value,
};

static bool is_optional(int which)
{
    return which == ROTARY_QUERY || which == ROTARY_KEY || which == ROTARY_GRAD_COS ||
           which == ROTARY_GRAD_SIN;
}

static const struct rotary_operator grad = {
    .kernel = &kernel,
    .first_stage = SIM_aclnnApplyRotaryPosEmbGradGetWorkspaceSize,
    .checks = rotary_grad_checks,
    .is_optional = is_optional,
    .workspace = rotary_grad_workspace,
};

aclnnStatus aclnnApplyRotaryPosEmbGradGetWorkspaceSize(
    const aclTensor *gradQueryEmbed, const aclTensor *gradKeyEmbed, const aclTensor *cos,
    const aclTensor *sin, const aclTensor *queryOptional, const aclTensor *keyOptional,
    char *rotaryModeOptional, int64_t layout, const aclTensor *gradQueryOut,
    const aclTensor *gradKeyOut, const aclTensor *gradCosOut, const aclTensor *gradSinOut,
    uint64_t *workspaceSize, aclOpExecutor **executor)
{
    const aclTensor *handles[ROTARY_COUNT] = {
        gradQueryEmbed, gradKeyEmbed, cos,        sin,        queryOptional,
        keyOptional,    gradQueryOut, gradKeyOut, gradCosOut, gradSinOut,
    };
    return rotary_first_stage(&grad, handles, rotaryModeOptional, layout, workspaceSize, executor);
}

aclnnStatus aclnnApplyRotaryPosEmbGrad(void *workspace, uint64_t workspaceSize,
                                       aclOpExecutor *executor, aclrtStream stream)
{
    return rotary_second_stage(&grad, workspace, workspaceSize, executor, stream);
}
