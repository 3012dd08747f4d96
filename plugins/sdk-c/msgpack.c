/* MessagePack: values out of a request, headers into a reply. Every width of a header or integer is accepted. */
#include <string.h>

#include "internal.h"

static uint64_t number(ab_reader *reader, unsigned width)
{
	if ((size_t)(reader->end - reader->at) < width) {
		reader->bad = true;
		reader->at = reader->end;
		return 0;
	}
	uint64_t value = 0;
	for (unsigned at = 0; at < width; at++)
		value = value << 8 | reader->at[at];
	reader->at += width;
	return value;
}

static uint8_t header(ab_reader *reader)
{
	if (reader->at == reader->end) {
		reader->bad = true;
		return 0xc1;
	}
	return *reader->at++;
}

static ab_str span(ab_reader *reader, uint64_t size)
{
	if ((uint64_t)(reader->end - reader->at) < size) {
		reader->bad = true;
		reader->at = reader->end;
		return (ab_str){"", 0};
	}
	ab_str text = {(const char *)reader->at, (size_t)size};
	reader->at += size;
	return text;
}

static int64_t sign_extended(uint64_t value, unsigned width)
{
	unsigned unused = 64 - 8 * width;
	return (int64_t)(value << unused) >> unused;
}

static ab_value integer(uint64_t value)
{
	return (ab_value){.type = AB_INTEGER, .integer = (int64_t)value};
}

static ab_value text(ab_type type, ab_str span)
{
	return (ab_value){.type = type, .text = span};
}

/* A value without what is in it: of an array or map, `text` begins where its items do. */
static ab_value head(ab_reader *reader)
{
	uint8_t first = header(reader);
	if (first <= 0x7f)
		return integer(first);
	if (first >= 0xe0)
		return integer((uint64_t)(int64_t)(int8_t)first);
	if (first >= 0xa0 && first <= 0xbf)
		return text(AB_TEXT, span(reader, first & 0x1f));
	uint32_t count = first & 0x0f;
	ab_type container = first <= 0x8f ? AB_MAP : AB_ARRAY;
	switch (first) {
	case 0xc0:
		return (ab_value){.type = AB_NULL};
	case 0xc2:
	case 0xc3:
		return (ab_value){.type = AB_BOOL, .boolean = first == 0xc3};
	case 0xc4:
	case 0xc5:
	case 0xc6:
		return text(AB_BYTES, span(reader, number(reader, 1u << (first - 0xc4))));
	case 0xc7:
	case 0xc8:
	case 0xc9:
	case 0xd4:
	case 0xd5:
	case 0xd6:
	case 0xd7:
	case 0xd8: {
		uint64_t size = first >= 0xd4 ? (uint64_t)1 << (first - 0xd4) : number(reader, 1u << (first - 0xc7));
		/* The only extension of version 1 is JSON, type 1. */
		if (number(reader, 1) != 1)
			reader->bad = true;
		return text(AB_JSON, span(reader, size));
	}
	case 0xca: {
		uint32_t bits = (uint32_t)number(reader, 4);
		float real;
		memcpy(&real, &bits, sizeof real);
		return (ab_value){.type = AB_FLOAT, .real = (double)real};
	}
	case 0xcb: {
		uint64_t bits = number(reader, 8);
		ab_value value = {.type = AB_FLOAT};
		memcpy(&value.real, &bits, sizeof value.real);
		return value;
	}
	case 0xcc:
	case 0xcd:
	case 0xce:
	case 0xcf:
		return integer(number(reader, 1u << (first - 0xcc)));
	case 0xd0:
	case 0xd1:
	case 0xd2:
	case 0xd3: {
		unsigned width = 1u << (first - 0xd0);
		return integer((uint64_t)sign_extended(number(reader, width), width));
	}
	case 0xd9:
	case 0xda:
	case 0xdb:
		return text(AB_TEXT, span(reader, number(reader, 1u << (first - 0xd9))));
	case 0xdc:
	case 0xdd:
		count = (uint32_t)number(reader, 2u << (first - 0xdc));
		container = AB_ARRAY;
		break;
	case 0xde:
	case 0xdf:
		count = (uint32_t)number(reader, 2u << (first - 0xde));
		container = AB_MAP;
		break;
	case 0xc1:
		reader->bad = true;
		return (ab_value){.type = AB_NULL};
	default: /* 0x80 to 0x9f: short maps and arrays */
		break;
	}
	return (ab_value){.type = container, .count = count, .text = {(const char *)reader->at, 0}};
}

ab_value ab_read_value(ab_reader *reader)
{
	ab_value value = head(reader);
	if (value.type != AB_ARRAY && value.type != AB_MAP)
		return value;
	/* What is in it is only stepped over here; without recursion, however deep it is. */
	uint64_t pending = value.type == AB_MAP ? 2 * (uint64_t)value.count : value.count;
	while (pending > 0 && !reader->bad) {
		ab_value inner = head(reader);
		pending -= 1;
		if (inner.type == AB_ARRAY)
			pending += inner.count;
		else if (inner.type == AB_MAP)
			pending += 2 * (uint64_t)inner.count;
	}
	value.text.size = (size_t)((const char *)reader->at - value.text.data);
	return value;
}

void ab_read_skip(ab_reader *reader)
{
	ab_read_value(reader);
}

static bool container(ab_reader *reader, ab_type type, uint32_t *count)
{
	ab_value value = head(reader);
	/* Each item takes a byte at least: nobody counts to a number that is damaged. */
	if (value.type != type || value.count > (size_t)(reader->end - reader->at))
		reader->bad = true;
	*count = reader->bad ? 0 : value.count;
	return !reader->bad;
}

bool ab_read_array(ab_reader *reader, uint32_t *count)
{
	return container(reader, AB_ARRAY, count);
}

bool ab_read_map(ab_reader *reader, uint32_t *count)
{
	return container(reader, AB_MAP, count);
}

ab_str ab_read_text(ab_reader *reader)
{
	ab_value value = head(reader);
	if (value.type == AB_TEXT)
		return value.text;
	if (value.type != AB_NULL)
		reader->bad = true;
	return (ab_str){0};
}

uint64_t ab_read_unsigned(ab_reader *reader)
{
	ab_value value = head(reader);
	if (value.type != AB_INTEGER)
		reader->bad = true;
	return (uint64_t)value.integer;
}

ab_items ab_items_of(const ab_value *value)
{
	if (value->type != AB_ARRAY && value->type != AB_MAP)
		return (ab_items){0};
	const uint8_t *at = (const uint8_t *)value->text.data;
	return (ab_items){at, at + value->text.size, value->count};
}

bool ab_next(ab_items *items, ab_value *item)
{
	if (items->left == 0)
		return false;
	items->left -= 1;
	ab_reader reader = {items->at, items->end, false};
	*item = ab_read_value(&reader);
	items->at = reader.at;
	return !reader.bad;
}

bool ab_next_entry(ab_items *entries, ab_str *key, ab_value *value)
{
	if (entries->left == 0)
		return false;
	ab_reader reader = {entries->at, entries->end, false};
	*key = ab_read_text(&reader);
	entries->at = reader.at;
	return !reader.bad && ab_next(entries, value);
}

static void big_endian(uint8_t *place, uint64_t value, unsigned width)
{
	for (unsigned at = 0; at < width; at++)
		place[at] = (uint8_t)(value >> (8 * (width - 1 - at)));
}

static void with_number(ab_buffer *out, uint8_t header, uint64_t value, unsigned width)
{
	ab_buffer_room(out, 1 + width);
	out->data[out->size] = header;
	big_endian(out->data + out->size + 1, value, width);
	out->size += 1 + width;
}

void ab_write_array(ab_buffer *out, uint32_t count)
{
	if (count < 16)
		ab_buffer_byte(out, (uint8_t)(0x90 | count));
	else
		with_number(out, 0xdd, count, 4);
}

void ab_write_map(ab_buffer *out, uint32_t count)
{
	if (count < 16)
		ab_buffer_byte(out, (uint8_t)(0x80 | count));
	else
		with_number(out, 0xdf, count, 4);
}

void ab_write_text(ab_buffer *out, ab_str text)
{
	if (text.data == NULL) {
		ab_buffer_byte(out, 0xc0);
		return;
	}
	if (text.size < 32)
		ab_buffer_byte(out, (uint8_t)(0xa0 | text.size));
	else
		with_number(out, 0xdb, text.size, 4);
	ab_buffer_bytes(out, text.data, text.size);
}

void ab_write_integer(ab_buffer *out, int64_t value)
{
	if (value >= 0 && value < 128)
		ab_buffer_byte(out, (uint8_t)value);
	else
		with_number(out, 0xd3, (uint64_t)value, 8);
}

size_t ab_write_later(ab_buffer *out, uint8_t header)
{
	with_number(out, header, 0, 4);
	return out->size - 4;
}

void ab_write_number_at(ab_buffer *out, size_t place, uint32_t number)
{
	big_endian(out->data + place, number, 4);
}
