/* float16 and bfloat16, bit by bit, so that every processor and compiler gives the same. */
#include "rotary.h"

#include <string.h>

static float from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t to_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float load_float16(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    uint32_t exponent = (half >> 10) & 0x1F;
    uint32_t fraction = half & 0x3FF;
    if (exponent == 0x1F)
        return from_bits(sign | 0x7F800000 | fraction << 13);
    if (exponent != 0)
        return from_bits(sign | (exponent + 112) << 23 | fraction << 13);
    /* A subnormal is its fraction times 2^-24, which a float holds exactly. */
    return from_bits(sign | to_bits((float)fraction * 0x1p-24F));
}

static uint16_t store_float16(float value)
{
    uint32_t bits = to_bits(value);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    uint32_t magnitude = bits & 0x7FFFFFFF;
    if (magnitude > 0x7F800000) /* NaN: quiet, with what fits of its payload */
        return (uint16_t)(sign | 0x7E00 | (magnitude >> 13 & 0x3FF));
    if (magnitude >= 0x477FF000) /* 65520 and more round to infinity; nothing saturates */
        return (uint16_t)(sign | 0x7C00);
    if (magnitude >= 0x38800000) { /* normal: the carry of rounding may run into the exponent */
        uint32_t rounded = magnitude + 0xFFF + (magnitude >> 13 & 1);
        return (uint16_t)(sign | ((rounded - 0x38000000) >> 13));
    }
    /* Subnormal: adding 0.5 moves the last bit of the result to the last bit of the sum, so that
     * the addition itself rounds. */
    return (uint16_t)(sign | (to_bits(from_bits(magnitude) + 0.5F) - 0x3F000000));
}

static uint16_t store_bfloat16(float value)
{
    uint32_t bits = to_bits(value);
    if ((bits & 0x7FFFFFFF) > 0x7F800000)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

float rotary_load(const unsigned char *bytes, aclDataType type)
{
    uint16_t half;
    float value;
    if (type == ACL_FLOAT) {
        memcpy(&value, bytes, sizeof value);
        return value;
    }
    memcpy(&half, bytes, sizeof half);
    return type == ACL_FLOAT16 ? load_float16(half) : from_bits((uint32_t)half << 16);
}

void rotary_store(unsigned char *bytes, aclDataType type, float value)
{
    if (type == ACL_FLOAT) {
        memcpy(bytes, &value, sizeof value);
        return;
    }
    uint16_t half = type == ACL_FLOAT16 ? store_float16(value) : store_bfloat16(value);
    memcpy(bytes, &half, sizeof half);
}
