/* Records of FASTA, and keys of sequences. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define SPACE 0x20
#define TILDE 0x7e
#define DIGEST 32

/* Whether all signs lie between `least` and '~'. */
static int are_plain(const uint8_t *text, int64_t size, uint8_t least)
{
    uint8_t odd = 0;
    for (int64_t at = 0; at < size; at++)
        odd |= (uint8_t)(text[at] - least) > TILDE - least;
    return !odd;
}

/* The records of `block`, unless there are more than `most`. `text`, which is as long as the block,
 * takes the residues of all, without line ends, and `ends` where each record's end in it. `starts`,
 * `word_ends` and `header_ends`: where in the block a header begins after '>', where its first word
 * ends, and where it ends. Returns how many records there are, or -1 when the block is not plain. */
int64_t parse(const uint8_t *block, int64_t size, int64_t most, uint8_t *text, int64_t *ends,
              int64_t *starts, int64_t *word_ends, int64_t *header_ends)
{
    const uint8_t *stop = block + size;
    uint8_t *out = text, *record = text;
    int64_t count = 0;
    if (!size || *block != '>')
        return -1;
    for (const uint8_t *line = block, *end; line < stop; line = end + 1) {
        end = memchr(line, '\n', stop - line);
        if (!end)
            end = stop;
        if (*line != '>') {
            memcpy(out, line, end - line);
            out += end - line;
            continue;
        }
        if (count) {
            if (out == record || !are_plain(record, out - record, SPACE + 1))
                return -1;
            ends[count - 1] = out - text;
            record = out;
        }
        const uint8_t *header = line + 1;
        if (count == most || header == end || *header == SPACE || end[-1] == SPACE
            || !are_plain(header, end - header, SPACE))
            return -1;
        const uint8_t *blank = memchr(header, SPACE, end - header);
        starts[count] = header - block;
        word_ends[count] = (blank ? blank : end) - block;
        header_ends[count++] = end - block;
    }
    if (out == record || !are_plain(record, out - record, SPACE + 1))
        return -1;
    ends[count - 1] = out - text;
    return count;
}

/* OpenSSL's functions. */
typedef int begin_digest(void *state);
typedef int add_text(void *state, const void *text, size_t size);
typedef int end_digest(uint8_t *digest, void *state);

/* SHA-256 of the pieces of `text` that end at `ends`. Returns 0 when OpenSSL fails. */
int digests(const uint8_t *text, const int64_t *ends, int64_t count, uint8_t *found,
            begin_digest *begin, add_text *add, end_digest *end)
{
    uint8_t state[512] __attribute__((aligned(16))); /* a SHA256_CTX has 112 */
    int64_t start = 0;
    for (int64_t each = 0; each < count; start = ends[each++], found += DIGEST)
        if (!begin(state) || !add(state, text + start, ends[each] - start) || !end(found, state))
            return 0;
    return 1;
}
