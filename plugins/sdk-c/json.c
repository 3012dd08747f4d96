/* Documents as JSON text, straight into the reply. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

void ab_json_begin(ab_json *json, ab_buffer *out, ab_change *change)
{
	*json = (ab_json){.out = out, .change = change, .empty = true};
}

static void mistake(ab_json *json, const char *message)
{
	ab_fail(json->change, AB_FATAL, "document", message);
}

static bool in_object(const ab_json *json)
{
	uint32_t at = json->depth - 1;
	return json->depth > 0 && (json->objects[at / 8] >> (at % 8) & 1);
}

/* Before a value. */
static void next(ab_json *json)
{
	if (json->depth == 0) {
		if (json->done)
			mistake(json, "a document has two values");
		json->done = true;
	} else if (in_object(json)) {
		if (!json->keyed)
			mistake(json, "a value in an object has no key: call ab_key before it");
		json->keyed = false;
	} else {
		if (!json->empty)
			ab_buffer_byte(json->out, ',');
		json->empty = false;
	}
}

static void begin(ab_json *json, uint8_t open, bool object)
{
	next(json);
	ab_buffer_byte(json->out, open);
	if (json->depth == AB_DEPTH) {
		ab_fail(json->change, AB_POISON, "document", "a document is nested deeper than 128");
		return;
	}
	uint32_t at = json->depth++;
	uint8_t bit = (uint8_t)(1u << (at % 8));
	json->objects[at / 8] = (uint8_t)(object ? json->objects[at / 8] | bit : json->objects[at / 8] & ~bit);
	json->empty = true;
}

void ab_object(ab_json *json)
{
	begin(json, '{', true);
}

void ab_array(ab_json *json)
{
	begin(json, '[', false);
}

void ab_end(ab_json *json)
{
	if (json->depth == 0) {
		/* Too deep is told already. */
		if (!ab_has_failed(json->change))
			mistake(json, "ab_end without ab_object or ab_array");
		return;
	}
	if (json->keyed)
		mistake(json, "a key has no value");
	ab_buffer_byte(json->out, in_object(json) ? '}' : ']');
	json->depth -= 1;
	json->empty = false;
}

void ab_key_str(ab_json *json, ab_str key)
{
	if (!in_object(json) || json->keyed)
		mistake(json, "ab_key belongs into an object, once before each value");
	if (!json->empty)
		ab_buffer_byte(json->out, ',');
	json->empty = false;
	ab_json_quoted(json->out, key);
	ab_buffer_byte(json->out, ':');
	json->keyed = true;
}

void ab_key(ab_json *json, const char *key)
{
	ab_key_str(json, ab_str_of(key));
}

/* What has to be escaped: 0 nothing, 'u' by its number. */
static uint8_t escape(uint8_t byte)
{
	switch (byte) {
	case '"':
	case '\\':
		return byte;
	case '\n':
		return 'n';
	case '\r':
		return 'r';
	case '\t':
		return 't';
	default:
		return byte < 0x20 ? 'u' : 0;
	}
}

/* Whether one of eight bytes has to be escaped. A borrow may say so without need. */
static bool has_special(const char *text)
{
	const uint64_t ones = 0x0101010101010101u;
	const uint64_t tops = ones << 7;
	uint64_t bytes;
	memcpy(&bytes, text, sizeof bytes);
	uint64_t quotes = bytes ^ ones * '"';
	uint64_t slashes = bytes ^ ones * '\\';
	/* A byte is less than n where subtracting n borrows and its top bit was not set. */
	return (((bytes - ones * 0x20) & ~bytes) | ((quotes - ones) & ~quotes) | ((slashes - ones) & ~slashes)) & tops;
}

void ab_json_quoted(ab_buffer *out, ab_str text)
{
	static const char hex[] = "0123456789abcdef";
	ab_buffer_room(out, text.size + 2);
	out->data[out->size++] = '"';
	size_t from = 0;
	size_t at = 0;
	while (at < text.size) {
		if (text.size - at >= 8 && !has_special(text.data + at)) {
			at += 8;
			continue;
		}
		/* Eight one by one, or what is left. */
		size_t end = text.size - at >= 8 ? at + 8 : text.size;
		for (; at < end; at++) {
			uint8_t byte = (uint8_t)text.data[at];
			uint8_t letter = escape(byte);
			if (letter == 0)
				continue;
			ab_buffer_bytes(out, text.data + from, at - from);
			from = at + 1;
			uint8_t escaped[6] = {'\\', letter, '0', '0', (uint8_t)hex[byte >> 4], (uint8_t)hex[byte & 15]};
			ab_buffer_bytes(out, escaped, letter == 'u' ? 6 : 2);
		}
	}
	ab_buffer_bytes(out, text.data + from, text.size - from);
	ab_buffer_byte(out, '"');
}

static void literal(ab_json *json, ab_str text)
{
	next(json);
	ab_buffer_bytes(json->out, text.data, text.size);
}

void ab_put_null(ab_json *json)
{
	literal(json, AB_STR("null"));
}

void ab_put_bool(ab_json *json, bool value)
{
	literal(json, value ? AB_STR("true") : AB_STR("false"));
}

void ab_put_integer(ab_json *json, int64_t value)
{
	char digits[20];
	size_t at = sizeof digits;
	uint64_t left = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
	do {
		digits[--at] = (char)('0' + left % 10);
		left /= 10;
	} while (left > 0);
	if (value < 0)
		digits[--at] = '-';
	literal(json, (ab_str){digits + at, sizeof digits - at});
}

void ab_put_float(ab_json *json, double value)
{
	if (value - value != 0) { /* not a number, or without end */
		ab_put_null(json);
		return;
	}
	char digits[32];
	int size = 0;
	/* The fewest digits that are this number again. */
	for (int precision = 15; precision <= 17; precision++) {
		size = snprintf(digits, sizeof digits, "%.*g", precision, value);
		if (strtod(digits, NULL) == value)
			break;
	}
	literal(json, (ab_str){digits, (size_t)size});
}

void ab_put_text(ab_json *json, ab_str text)
{
	if (text.data == NULL) {
		ab_put_null(json);
		return;
	}
	next(json);
	ab_json_quoted(json->out, text);
}

void ab_put_cstr(ab_json *json, const char *text)
{
	ab_put_text(json, ab_str_of(text));
}

void ab_put_bytes(ab_json *json, ab_str bytes)
{
	static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	next(json);
	ab_buffer_byte(json->out, '"');
	for (size_t at = 0; at < bytes.size; at += 3) {
		size_t group = bytes.size - at < 3 ? bytes.size - at : 3;
		uint32_t bits = 0;
		for (size_t part = 0; part < 3; part++)
			bits = bits << 8 | (part < group ? (uint8_t)bytes.data[at + part] : 0);
		for (size_t place = 0; place < 4; place++)
			ab_buffer_byte(json->out, place <= group ? (uint8_t)alphabet[bits >> (18 - 6 * place) & 63] : '=');
	}
	ab_buffer_byte(json->out, '"');
}

void ab_put_json(ab_json *json, ab_str text)
{
	if (text.data == NULL)
		ab_put_null(json);
	else
		literal(json, text);
}

static size_t digits(ab_str text, size_t at)
{
	size_t from = at;
	while (at < text.size && text.data[at] >= '0' && text.data[at] <= '9')
		at += 1;
	return at - from;
}

/* -?(0|[1-9][0-9]*)(\.[0-9]+)? */
static bool is_number(ab_str text)
{
	if (text.data == NULL)
		return false;
	size_t at = text.size > 0 && text.data[0] == '-';
	size_t whole = digits(text, at);
	if (whole == 0 || (whole > 1 && text.data[at] == '0'))
		return false;
	at += whole;
	if (at == text.size)
		return true;
	size_t fraction = text.data[at] == '.' ? digits(text, at + 1) : 0;
	return fraction > 0 && at + 1 + fraction == text.size;
}

void ab_put_number(ab_json *json, ab_str text)
{
	if (is_number(text))
		literal(json, text);
	else
		ab_put_null(json);
}

/* Before each further item of the innermost container. */
static void put_flat(ab_json *json, const ab_value *value)
{
	switch (value->type) {
	case AB_ABSENT:
	case AB_NULL:
		ab_put_null(json);
		break;
	case AB_BOOL:
		ab_put_bool(json, value->boolean);
		break;
	case AB_INTEGER:
		ab_put_integer(json, value->integer);
		break;
	case AB_FLOAT:
		ab_put_float(json, value->real);
		break;
	case AB_TEXT:
		ab_put_text(json, value->text);
		break;
	case AB_BYTES:
		ab_put_bytes(json, value->text);
		break;
	case AB_JSON:
		ab_put_json(json, value->text);
		break;
	case AB_ARRAY:
		ab_array(json);
		break;
	case AB_MAP:
		ab_object(json);
		break;
	}
}

void ab_put(ab_json *json, const ab_value *value)
{
	ab_items open[AB_DEPTH];
	bool objects[AB_DEPTH];
	size_t depth = 0;
	put_flat(json, value);
	ab_value inner;
	const ab_value *at = value;
	for (;;) {
		if ((at->type == AB_ARRAY || at->type == AB_MAP)) {
			if (ab_has_failed(json->change))
				return;
			objects[depth] = at->type == AB_MAP;
			open[depth++] = ab_items_of(at);
		}
		for (;;) {
			if (depth == 0)
				return;
			ab_str key;
			bool more = objects[depth - 1] ? ab_next_entry(&open[depth - 1], &key, &inner)
						       : ab_next(&open[depth - 1], &inner);
			if (more) {
				if (objects[depth - 1])
					ab_key_str(json, key);
				break;
			}
			ab_end(json);
			depth -= 1;
		}
		put_flat(json, &inner);
		at = &inner;
	}
}
