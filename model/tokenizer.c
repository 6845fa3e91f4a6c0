/* The byte tokenizer: token = byte. Not a vocabulary, not a file; it cannot fail. */
#include "model/tokenizer.h"

void tokenizer_encode(const uint8_t *text, size_t n, int32_t *ret_tokens)
{
    for (size_t i = 0; i < n; i++)
        ret_tokens[i] = text[i];
}

void tokenizer_decode(const int32_t *tokens, size_t n, uint8_t *ret_text)
{
    for (size_t i = 0; i < n; i++)
        ret_text[i] = tokens[i] >= 0 && tokens[i] < (int32_t)TOKENIZER_BYTE_VOCAB ? (uint8_t)tokens[i] : (uint8_t)'?';
}
