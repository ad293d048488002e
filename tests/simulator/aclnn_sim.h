/* What the simulator has of aclnn: tensors, executors, and the operators' own functions.
 *
 * No header of these is published apart from CANN; names, arguments and statuses follow the
 * vendor's documents (and, for aclCreateTensor and aclDestroyTensor, op-plugin's typedefs). */
#ifndef OPFERRY_ACLNN_SIM_H
#define OPFERRY_ACLNN_SIM_H

#include "acl_sim.h"

#define ACLNN_VISIBLE __attribute__((visibility("default")))

typedef int32_t aclnnStatus;
typedef struct aclTensor aclTensor;
typedef struct aclOpExecutor aclOpExecutor;

enum {
    ACLNN_SUCCESS = 0,
    ACLNN_ERR_PARAM_NULLPTR = 161001,
    ACLNN_ERR_PARAM_INVALID = 161002,
    ACLNN_ERR_RUNTIME_ERROR = 361001,
    ACLNN_ERR_INNER = 561000,
    ACLNN_ERR_INNER_TILING_ERROR = 561002,
    ACLNN_ERR_INNER_FIND_KERNEL_ERROR = 561003,
    ACLNN_ERR_INNER_CREATE_EXECUTOR = 561101,
    ACLNN_ERR_INNER_NULLPTR = 561103,
};

ACLNN_VISIBLE aclnnStatus aclnnInit(const char *configPath);
ACLNN_VISIBLE aclnnStatus aclnnFinalize(void);
ACLNN_VISIBLE aclTensor *aclCreateTensor(const int64_t *viewDims, uint64_t viewDimsNum,
                                         aclDataType dataType, const int64_t *stride,
                                         int64_t offset, aclFormat format,
                                         const int64_t *storageDims, uint64_t storageDimsNum,
                                         void *tensorData);
ACLNN_VISIBLE aclnnStatus aclDestroyTensor(const aclTensor *tensor);
ACLNN_VISIBLE aclnnStatus aclSetAclOpExecutorRepeatable(aclOpExecutor *executor);
ACLNN_VISIBLE aclnnStatus aclDestroyAclOpExecutor(aclOpExecutor *executor);

ACLNN_VISIBLE aclnnStatus aclnnApplyRotaryPosEmbGradGetWorkspaceSize(
    const aclTensor *gradQueryEmbed, const aclTensor *gradKeyEmbed, const aclTensor *cos,
    const aclTensor *sin, const aclTensor *queryOptional, const aclTensor *keyOptional,
    char *rotaryModeOptional, int64_t layout, const aclTensor *gradQueryOut,
    const aclTensor *gradKeyOut, const aclTensor *gradCosOut, const aclTensor *gradSinOut,
    uint64_t *workspaceSize, aclOpExecutor **executor);
ACLNN_VISIBLE aclnnStatus aclnnApplyRotaryPosEmbGrad(void *workspace, uint64_t workspaceSize,
                                                     aclOpExecutor *executor, aclrtStream stream);
ACLNN_VISIBLE aclnnStatus aclnnApplyRotaryPosEmbV2GetWorkspaceSize(
    aclTensor *queryRef, aclTensor *keyRef, const aclTensor *cos, const aclTensor *sin,
    int64_t layout, char *rotaryMode, uint64_t *workspaceSize, aclOpExecutor **executor);
ACLNN_VISIBLE aclnnStatus aclnnApplyRotaryPosEmbV2(void *workspace, uint64_t workspaceSize,
                                                   aclOpExecutor *executor, aclrtStream stream);

#endif
