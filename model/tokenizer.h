/* The byte tokenizer: token = byte. */
#ifndef SHOAL_MODEL_TOKENIZER_H
#define SHOAL_MODEL_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

#define TOKENIZER_BYTE_VOCAB 256u

void tokenizer_encode(const uint8_t *text, size_t n, int32_t *ret_tokens); /* n tokens */
void tokenizer_decode(const int32_t *tokens, size_t n,
                      uint8_t *ret_text); /* n bytes; tokens outside [0,256) become '?' */

#endif
