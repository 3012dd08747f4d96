/* What the SDK's own files share; nothing for plugins. */
#ifndef ANABRANCH_INTERNAL_H
#define ANABRANCH_INTERNAL_H

#include "anabranch.h"
#include "anabranch_http.h"
#include "anabranch_sink.h"

/* ---- bytes that grow (memory.c) ---- */

typedef struct ab_buffer {
	uint8_t *data;
	size_t size;
	size_t capacity;
} ab_buffer;

/* Room for so many more bytes. */
void ab_buffer_grow(ab_buffer *buffer, size_t more);

static inline void ab_buffer_room(ab_buffer *buffer, size_t more)
{
	if (buffer->capacity - buffer->size < more)
		ab_buffer_grow(buffer, more);
}

static inline void ab_buffer_byte(ab_buffer *buffer, uint8_t byte)
{
	ab_buffer_room(buffer, 1);
	buffer->data[buffer->size++] = byte;
}

void ab_buffer_bytes(ab_buffer *buffer, const void *bytes, size_t size);
/* Empties it; what one gigantic batch took is given back. */
void ab_buffer_reset(ab_buffer *buffer);

/* Gives everything back that `ab_alloc` gave. */
void ab_alloc_reset(void);
/* What it gave so far stays until it is released. */
void ab_alloc_keep(void);
void ab_alloc_release(void);
/* Texts in memory of `ab_alloc`. */
ab_str ab_copied(ab_str text);
ab_str ab_formatted(const char *format, va_list arguments);
/* Whether the host takes it: what is no UTF-8 would end the call. */
bool ab_is_utf8(ab_str text);
/* A text as it may leave the guest: itself where it is UTF-8, else a copy with U+FFFD for what is not. */
ab_str ab_lossy(ab_str text);
/* Makes the texts of a failure such ones; always false. */
bool ab_leaves(ab_failure *failure);

/* ---- MessagePack (msgpack.c) ---- */

typedef struct ab_reader {
	const uint8_t *at;
	const uint8_t *end;
	bool bad; /* sticky */
} ab_reader;

ab_value ab_read_value(ab_reader *reader);
bool ab_read_array(ab_reader *reader, uint32_t *count);
bool ab_read_map(ab_reader *reader, uint32_t *count);
/* A text; its `data` is NULL for nil. */
ab_str ab_read_text(ab_reader *reader);
uint64_t ab_read_unsigned(ab_reader *reader);
void ab_read_skip(ab_reader *reader);

void ab_write_array(ab_buffer *out, uint32_t count);
void ab_write_map(ab_buffer *out, uint32_t count);
/* A text; nil where `data` is NULL. */
void ab_write_text(ab_buffer *out, ab_str text);
void ab_write_integer(ab_buffer *out, int64_t value);
/* A header with four bytes for a number that `ab_write_number_at` fills in later; gives their place. */
size_t ab_write_later(ab_buffer *out, uint8_t header);
void ab_write_number_at(ab_buffer *out, size_t place, uint32_t number);

/* ---- documents (json.c) ---- */

/* The host takes documents that are nested no deeper. */
#define AB_DEPTH 128

struct ab_json {
	ab_buffer *out;
	ab_change *change;
	uint32_t depth;
	bool empty;     /* nothing is in the innermost yet */
	bool keyed;     /* a key waits for its value */
	bool done;      /* the whole document is there */
	uint8_t objects[AB_DEPTH / 8];
};

void ab_json_begin(ab_json *json, ab_buffer *out, ab_change *change);
void ab_json_quoted(ab_buffer *out, ab_str text);

/* ---- failures and answers (query.c) ---- */

/* Fills in a failure, where there is one; always false. */
bool ab_failure_is(ab_failure *failure, ab_class failure_class, const char *code, const char *message);
/* Whether the host takes a text; if not, the failure says which one it is: "the SQL of a question". */
bool ab_is_text(ab_str text, const char *which, ab_failure *failure);
/* The present change, if there is one, read a value of another type than it has. */
void ab_mistyped(const char *code, ab_str column, ab_type type, const char *wanted);
/* Begins an answer to `query`. */
bool ab_answers_of(ab_str bytes, ab_answers *answers, ab_failure *failure);

/* ---- requests (outbound.c) ---- */

/* Where one goes; `path` is with the query. */
typedef struct ab_target {
	bool secure;
	ab_str authority;
	ab_str path;
} ab_target;

bool ab_target_of(ab_str url, ab_target *target, ab_failure *failure);
/* The same of a request, all of whose texts the host takes. */
bool ab_may_be_sent(const ab_request *request, ab_target *target, ab_failure *failure);
/* No request can go there; always false. */
bool ab_wrong_url(ab_str url, ab_failure *failure);
/* Why there is no answer, in the host's words, which begin with what they are; always false. */
bool ab_http_said(ab_failure *failure, ab_str text);

/* ---- the host (component.c, or testing_host.c natively), with texts that it takes; so are the capabilities ---- */

void ab_host_log(ab_level level, ab_str message);
bool ab_host_config(ab_str key, ab_str *value);
bool ab_host_query(const ab_statement *statements, size_t count, ab_answers *answers, ab_failure *failure);
bool ab_host_state_get(const ab_str *keys, size_t count, ab_str *values, ab_failure *failure);
bool ab_host_state_set(ab_str key, ab_str value, ab_failure *failure);
bool ab_host_state_delete(ab_str key, ab_failure *failure);
bool ab_host_state_keys(ab_str prefix, const ab_str *after, uint32_t limit, const ab_str **keys, size_t *count,
			ab_failure *failure);
bool ab_host_count(const char *name, const ab_label *labels, size_t count, uint64_t by, ab_failure *failure);
bool ab_host_gauge(const char *name, const ab_label *labels, size_t count, double value, ab_failure *failure);

#endif
