"""Small trees of C headers, as a CANN installation might have them; the words are ours."""

from __future__ import annotations

from pathlib import Path

from opferry_server.backends.aclnn.status import MEANINGS
from opferry_server.backends.aclnn.symbols import CONSTANTS, SYMBOLS
from opferry_server.backends.aclnn.words import words_of

BASE = """
#ifndef BASE_H
#define BASE_H
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#if defined(_MSC_VER)
#define VISIBLE __declspec(dllexport)
#else
#define VISIBLE __attribute__((visibility("default")))
#endif
#define OUTDATED(message) __attribute__((deprecated(message)))
typedef int aclError;
typedef int32_t aclnnStatus;
typedef void *aclrtStream;
typedef struct aclTensor aclTensor;
typedef struct aclOpExecutor aclOpExecutor;
"""

META = """
#include "acl/acl_base.h"
/* aclDestroyAclOpExecutor(int) in a comment is no declaration; nor is this: */
static inline int helper(aclOpExecutor *e) { return aclDestroyAclOpExecutor(e); }
VISIBLE aclnnStatus aclSetAclOpExecutorRepeatable(aclOpExecutor *executor);
OUTDATED("use nothing; really") VISIBLE aclnnStatus
    aclDestroyAclOpExecutor(aclOpExecutor *executor);  // in two lines
"""

STAGE_ONE = """
__attribute__((visibility("default")))
aclnnStatus aclnnApplyRotaryPosEmbGradGetWorkspaceSize(
    const aclTensor *gradQueryEmbed, const aclTensor *gradKeyEmbed,
    const aclTensor *cos, const aclTensor *sin,
    const aclTensor *queryOptional, const aclTensor *keyOptional,
    char *rotaryModeOptional, int64_t layout,
    const aclTensor *gradQueryOut, const aclTensor *gradKeyOut,
    const aclTensor *gradCosOut, const aclTensor *gradSinOut,
    uint64_t *workspaceSize, aclOpExecutor **executor);
"""

STAGE_TWO = """
__attribute__((visibility("default"))) aclnnStatus aclnnApplyRotaryPosEmbGrad(
    void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream);
"""

FORWARD = """
__attribute__((visibility("default")))
aclnnStatus aclnnApplyRotaryPosEmbV2GetWorkspaceSize(
    aclTensor *queryRef, aclTensor *keyRef, const aclTensor *cos, const aclTensor *sin,
    int64_t layout, char *rotaryMode, uint64_t *workspaceSize, aclOpExecutor **executor);
__attribute__((visibility("default"))) aclnnStatus aclnnApplyRotaryPosEmbV2(
    void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream);
"""

_C = {
    "int32": "int",
    "uint32": "uint32_t",
    "int64": "int64_t",
    "uint64": "size_t",
    "float32": "float",
    "char*": "const char *",
    "pointer": "void *",
    "pointer*": "void **",
}


def runtime_header() -> str:
    """Return a header with all functions and constants that are not from documents."""
    lines = []
    for symbol in SYMBOLS:
        if symbol.source != "document":
            result, *given = words_of(symbol.restype, symbol.argtypes)
            types = [_C.get(word) or f"{_C[word.removesuffix('*')]} *" for word in given]
            lines.append(f"VISIBLE {_C[result]} {symbol.name}({', '.join(types)});")
    for constant in CONSTANTS:
        lines.append(f"#define {constant.name} 0x{constant.value:X}U // a value")
    for code, meaning in MEANINGS.items():
        if meaning.name.startswith("ACL_ERROR_RT"):
            lines.append(f"static const int32_t {meaning.name} = {code};")
    return "\n".join(lines) + "\n"


def write_tree(
    folder: Path,
    *,
    meta: str = META,
    stage_one: str = STAGE_ONE,
    stage_two: str = STAGE_TWO,
    more: str = "",
) -> Path:
    """Write a tree of headers and return its folder.

    Args:
        folder: where; made if need be.
        meta: the header of the operator base.
        stage_one: the backward's first function.
        stage_two: its second.
        more: anything else.
    """
    texts = {
        "acl/acl_base.h": BASE,
        "acl/acl_rt.h": runtime_header(),
        "aclnn/acl_meta.h": meta,
        "aclnnop/aclnn_apply_rotary_pos_emb_grad.h": stage_one + stage_two,
        "aclnnop/aclnn_apply_rotary_pos_emb_v2.h": FORWARD,
        "more.h": more,
    }
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder
