/* The operator's two exported functions. */
#include "rotary.h"

#include <stdlib.h>
#include <string.h>

#define OPERATOR "ApplyRotaryPosEmbGrad"

static const struct sim_kernel kernel = {
    .operator_name = OPERATOR,
    .function = SIM_aclnnApplyRotaryPosEmbGrad,
    .input_count = ROTARY_GRAD_QUERY,
    .tensor_count = ROTARY_COUNT,
    .tensor_names = rotary_names,
    .run = rotary_run,
    .first_value = rotary_first_value,
};

static bool is_optional(int which)
{
    return which == ROTARY_QUERY || which == ROTARY_KEY || which == ROTARY_GRAD_COS ||
           which == ROTARY_GRAD_SIN;
}

static aclError look_up(struct sim_call *call, const aclTensor *const handles[ROTARY_COUNT],
                        struct rotary_arguments *arguments, uint64_t serials[ROTARY_COUNT])
{
    char why[128];
    for (int i = 0; i < ROTARY_COUNT; i++) {
        if (handles[i] == NULL) {
            if (is_optional(i))
                continue;
            return sim_refuse(call, ACLNN_ERR_PARAM_NULLPTR, "%s is null", rotary_names[i]);
        }
        struct sim_tensor *tensor = sim_handle_find(handles[i], SIM_KIND_TENSOR, why);
        if (tensor == NULL)
            return sim_violate(call, ACL_ERROR_RT_INVALID_HANDLE, "%s: %s", rotary_names[i], why);
        arguments->tensors[i] = &tensor->view;
        serials[i] = tensor->object.serial;
    }
    return ACL_SUCCESS;
}

static aclError check(struct sim_call *call, const struct rotary_arguments *arguments)
{
    char why[256];
    /* The operator has kernels for this family alone. */
    if (strncmp(sim_settings_soc(), "Ascend950", 9) != 0)
        return sim_refuse(call, ACLNN_ERR_INNER_FIND_KERNEL_ERROR,
                          "no kernel of " OPERATOR " for %s", sim_settings_soc());
    switch (rotary_check(arguments, why)) {
    case ROTARY_PARAMETER:
        return sim_refuse(call, ACLNN_ERR_PARAM_INVALID, "%s", why);
    case ROTARY_SHAPE:
        return sim_refuse(call, sim_settings_shape_status(), "%s", why);
    default:
        return ACL_SUCCESS;
    }
}

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
    struct rotary_arguments arguments = {.mode = rotaryModeOptional, .layout = layout};
    uint64_t serials[ROTARY_COUNT] = {0};
    struct sim_call call;
    aclError status = sim_enter(&call, SIM_aclnnApplyRotaryPosEmbGradGetWorkspaceSize,
                                SIM_NEEDS_CONTEXT | SIM_ACLNN | SIM_FIRST_ALONE);
    if (status == ACL_SUCCESS && (workspaceSize == NULL || executor == NULL))
        status = sim_violate(&call, ACLNN_ERR_PARAM_NULLPTR, "workspaceSize or executor is null");
    if (status == ACL_SUCCESS)
        status = look_up(&call, handles, &arguments, serials);
    if (status == ACL_SUCCESS)
        status = check(&call, &arguments);
    if (status == ACL_SUCCESS) {
        struct sim_executor *made = calloc(1, sizeof *made);
        made->operator_name = OPERATOR;
        made->layout = layout;
        made->device = call.device;
        made->workspace_bytes = sim_workspace_asked(rotary_workspace(&arguments));
        memcpy(made->tensors, serials, sizeof serials);
        for (int i = 0; i < ROTARY_COUNT; i++)
            if (arguments.tensors[i] != NULL)
                made->views[i] = *arguments.tensors[i];
        sim_handle_add(&made->object, SIM_KIND_EXECUTOR);
        sim_gauge(SIM_GAUGE_EXECUTORS, 1);
        *workspaceSize = made->workspace_bytes;
        *executor = sim_handle(&made->object);
    }
    return sim_leave(&call, status);
}

aclnnStatus aclnnApplyRotaryPosEmbGrad(void *workspace, uint64_t workspaceSize,
                                       aclOpExecutor *executor, aclrtStream stream)
{
    struct sim_call call;
    aclError status = sim_enter(&call, SIM_aclnnApplyRotaryPosEmbGrad,
                                SIM_NEEDS_CONTEXT | SIM_ACLNN | SIM_DEVICE_SIDE);
    if (status == ACL_SUCCESS)
        status = sim_launch(&call, &kernel, workspace, workspaceSize, executor, stream);
    if (call.locked)
        sim_executor_spend(executor);
    return sim_leave(&call, status);
}
