/* Memory: buffers that grow and are used again, and what lives until a transform returns. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

/* A buffer beyond this is not kept for the next call. */
#define KEPT ((size_t)4 << 20)
/* A block of `ab_alloc`. */
#define BLOCK ((size_t)16 << 10)
#define ALIGNMENT _Alignof(max_align_t)

static void *checked(void *memory)
{
	/* The host throws an instance away that ends, and says why. */
	if (memory == NULL)
		abort();
	return memory;
}

void ab_buffer_grow(ab_buffer *buffer, size_t more)
{
	size_t needed = buffer->size + more;
	if (needed < more)
		abort();
	size_t capacity = buffer->capacity < 256 ? 256 : buffer->capacity;
	while (capacity < needed)
		capacity = capacity > SIZE_MAX / 2 ? needed : capacity * 2;
	buffer->data = checked(realloc(buffer->data, capacity));
	buffer->capacity = capacity;
}

void ab_buffer_bytes(ab_buffer *buffer, const void *bytes, size_t size)
{
	if (size == 0)
		return;
	ab_buffer_room(buffer, size);
	memcpy(buffer->data + buffer->size, bytes, size);
	buffer->size += size;
}

void ab_buffer_reset(ab_buffer *buffer)
{
	buffer->size = 0;
	if (buffer->capacity > KEPT) {
		free(buffer->data);
		*buffer = (ab_buffer){0};
	}
}

typedef struct block {
	struct block *next;
	size_t size;
	size_t used;
	_Alignas(max_align_t) unsigned char bytes[];
} block;

static block *blocks;

void *ab_alloc(size_t size)
{
	if (size > SIZE_MAX / 2)
		abort();
	size_t rounded = (size + ALIGNMENT - 1) & ~(ALIGNMENT - 1);
	if (blocks == NULL || blocks->size - blocks->used < rounded) {
		size_t room = rounded > BLOCK ? rounded : BLOCK;
		block *added = checked(malloc(sizeof(block) + room));
		*added = (block){.next = blocks, .size = room};
		blocks = added;
	}
	void *memory = blocks->bytes + blocks->used;
	blocks->used += rounded;
	return memory;
}

void ab_alloc_reset(void)
{
	/* One block of the usual size stays. */
	while (blocks != NULL && (blocks->next != NULL || blocks->size > BLOCK)) {
		block *next = blocks->next;
		free(blocks);
		blocks = next;
	}
	if (blocks != NULL)
		blocks->used = 0;
}

static block *kept;

void ab_alloc_keep(void)
{
	kept = blocks;
	blocks = NULL;
}

void ab_alloc_release(void)
{
	while (kept != NULL) {
		block *next = kept->next;
		free(kept);
		kept = next;
	}
}

ab_str ab_copied(ab_str text)
{
	char *copy = ab_alloc(text.size + 1);
	if (text.size > 0)
		memcpy(copy, text.data, text.size);
	return (ab_str){copy, text.size};
}

/* The size of the character at a place; 0 where there is none. */
static size_t character(const unsigned char *at, size_t left)
{
	if (at[0] < 0x80)
		return 1;
	size_t size = at[0] >= 0xf0 ? 4 : at[0] >= 0xe0 ? 3 : 2;
	if (at[0] < 0xc2 || at[0] > 0xf4 || left < size)
		return 0;
	for (size_t next = 1; next < size; next++)
		if ((at[next] & 0xc0) != 0x80)
			return 0;
	/* Neither longer than need be, nor a surrogate, nor beyond the last. */
	if ((at[0] == 0xe0 && at[1] < 0xa0) || (at[0] == 0xed && at[1] > 0x9f) || (at[0] == 0xf0 && at[1] < 0x90) ||
	    (at[0] == 0xf4 && at[1] > 0x8f))
		return 0;
	return size;
}

bool ab_is_utf8(ab_str text)
{
	const unsigned char *bytes = (const unsigned char *)text.data;
	size_t size;
	size_t at = 0;
	while (at < text.size && (size = character(bytes + at, text.size - at)) > 0)
		at += size;
	return at == text.size;
}

ab_str ab_lossy(ab_str text)
{
	const unsigned char *bytes = (const unsigned char *)text.data;
	size_t size;
	size_t at;
	if (ab_is_utf8(text))
		return text;
	char *copy = ab_alloc(3 * text.size);
	size_t end = 0;
	for (at = 0; at < text.size; at += size == 0 ? 1 : size) {
		size = character(bytes + at, text.size - at);
		memcpy(copy + end, size == 0 ? "\xef\xbf\xbd" : text.data + at, size == 0 ? 3 : size);
		end += size == 0 ? 3 : size;
	}
	return (ab_str){copy, end};
}

bool ab_leaves(ab_failure *failure)
{
	failure->code = ab_lossy(failure->code);
	failure->message = ab_lossy(failure->message);
	return false;
}

ab_str ab_formatted(const char *format, va_list arguments)
{
	va_list again;
	va_copy(again, arguments);
	int size = vsnprintf(NULL, 0, format, again);
	va_end(again);
	if (size < 0)
		return AB_STR("?");
	char *text = ab_alloc((size_t)size + 1);
	vsnprintf(text, (size_t)size + 1, format, arguments);
	return (ab_str){text, (size_t)size};
}

ab_str ab_format(const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	ab_str text = ab_formatted(format, arguments);
	va_end(arguments);
	return text;
}

ab_outcome ab_failf(ab_change *change, ab_class failure_class, const char *code, const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	ab_str text = ab_formatted(format, arguments);
	va_end(arguments);
	return ab_fail(change, failure_class, code, text.data);
}

void ab_logf(ab_level level, const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	ab_str text = ab_formatted(format, arguments);
	va_end(arguments);
	ab_host_log(level, ab_lossy(text));
}

void ab_log(ab_level level, const char *message)
{
	ab_host_log(level, ab_lossy(ab_str_of(message)));
}

bool ab_config(const char *key, ab_str *value)
{
	*value = (ab_str){0};
	/* No setting has another name. */
	return ab_is_utf8(ab_str_of(key)) && ab_host_config(ab_str_of(key), value);
}

ab_str ab_str_of(const char *terminated)
{
	return (ab_str){terminated, terminated == NULL ? 0 : strlen(terminated)};
}

bool ab_str_is(ab_str text, const char *terminated)
{
	size_t size = strlen(terminated);
	return text.data != NULL && text.size == size && memcmp(text.data, terminated, size) == 0;
}
