/* What capabilities give, beside what the host does: answers of the source (wit/v1/payload-query.md), failures. */
#include <string.h>

#include "internal.h"

bool ab_failure_is(ab_failure *failure, ab_class failure_class, const char *code, const char *message)
{
	if (failure != NULL)
		*failure = (ab_failure){failure_class, ab_str_of(code), ab_str_of(message)};
	return false;
}

bool ab_is_text(ab_str text, const char *which, ab_failure *failure)
{
	if (ab_is_utf8(text))
		return true;
	ab_failure_is(failure, AB_POISON, "text", NULL);
	if (failure != NULL)
		failure->message = ab_format("%s is no UTF-8, as bytes or a part of a character are: the host takes none",
					     which);
	return false;
}

bool ab_query(const ab_statement *statements, size_t count, ab_answers *answers, ab_failure *failure)
{
	*answers = (ab_answers){0};
	for (size_t at = 0; at < count; at++) {
		if (!ab_is_text(statements[at].sql, "the SQL of a question", failure))
			return false;
		for (size_t place = 0; place < statements[at].sets * statements[at].width; place++)
			if (!ab_is_text(statements[at].parameters[place], "a parameter of a question", failure))
				return false;
	}
	return ab_host_query(statements, count, answers, failure);
}

static const char *const a_key = "a key of the store";

bool ab_state_get_many(const ab_str *keys, size_t count, ab_str *values, ab_failure *failure)
{
	for (size_t at = 0; at < count; at++)
		values[at] = (ab_str){0};
	for (size_t at = 0; at < count; at++)
		if (!ab_is_text(keys[at], a_key, failure))
			return false;
	return ab_host_state_get(keys, count, values, failure);
}

bool ab_state_set(ab_str key, ab_str value, ab_failure *failure)
{
	return ab_is_text(key, a_key, failure) && ab_host_state_set(key, value, failure);
}

bool ab_state_delete(ab_str key, ab_failure *failure)
{
	return ab_is_text(key, a_key, failure) && ab_host_state_delete(key, failure);
}

bool ab_state_keys(ab_str prefix, const ab_str *after, uint32_t limit, const ab_str **keys, size_t *count,
		   ab_failure *failure)
{
	*keys = NULL;
	*count = 0;
	return ab_is_text(prefix, a_key, failure) && (after == NULL || ab_is_text(*after, a_key, failure)) &&
	       ab_host_state_keys(prefix, after, limit, keys, count, failure);
}

/* The texts of a number. */
static bool is_number(const char *name, const ab_label *labels, size_t count, ab_failure *failure)
{
	if (!ab_is_text(ab_str_of(name), "the name of a number", failure))
		return false;
	for (size_t at = 0; at < count; at++)
		if (!ab_is_text(labels[at].name, "the name of a label", failure) ||
		    !ab_is_text(labels[at].value, "the value of a label", failure))
			return false;
	return true;
}

bool ab_count(const char *name, const ab_label *labels, size_t count, uint64_t by, ab_failure *failure)
{
	return is_number(name, labels, count, failure) && ab_host_count(name, labels, count, by, failure);
}

bool ab_gauge(const char *name, const ab_label *labels, size_t count, double value, ab_failure *failure)
{
	return is_number(name, labels, count, failure) && ab_host_gauge(name, labels, count, value, failure);
}

bool ab_state_get(ab_str key, ab_str *value, ab_failure *failure)
{
	*value = (ab_str){0};
	return ab_state_get_many(&key, 1, value, failure);
}

/* Steps over one answer, so that nothing of it is wrong when it is read. */
static bool is_answer(ab_reader *reader)
{
	uint32_t elements;
	uint32_t columns;
	uint32_t rows;
	if (!ab_read_array(reader, &elements) || elements < 2 || !ab_read_array(reader, &columns))
		return false;
	for (uint32_t at = 0; at < columns; at++)
		if (ab_read_text(reader).data == NULL)
			return false;
	if (!ab_read_array(reader, &rows))
		return false;
	for (uint32_t row = 0; row < rows; row++) {
		uint32_t values;
		if (!ab_read_array(reader, &values) || values != columns)
			return false;
		for (uint32_t at = 0; at < values && !reader->bad; at++)
			ab_read_skip(reader);
	}
	for (uint32_t rest = 2; rest < elements && !reader->bad; rest++)
		ab_read_skip(reader);
	return !reader->bad;
}

bool ab_answers_of(ab_str bytes, ab_answers *answers, ab_failure *failure)
{
	ab_reader reader = {(const uint8_t *)bytes.data, (const uint8_t *)bytes.data + bytes.size, false};
	uint32_t elements;
	uint32_t sets;
	if (!ab_read_array(&reader, &elements) || elements < 2 || ab_read_unsigned(&reader) != 1 ||
	    !ab_read_array(&reader, &sets))
		return ab_failure_is(failure, AB_FATAL, "query-answer", "the host's answer is malformed");
	*answers = (ab_answers){reader.at, reader.end, sets};
	for (uint32_t set = 0; set < sets; set++)
		if (!is_answer(&reader)) {
			*answers = (ab_answers){0};
			return ab_failure_is(failure, AB_FATAL, "query-answer", "the host's answer is malformed");
		}
	return true;
}

/* No rows are left. */
static bool none(ab_answers *answers, ab_rows *rows)
{
	answers->sets = 0;
	*rows = (ab_rows){0};
	return false;
}

bool ab_next_set(ab_answers *answers, ab_rows *rows)
{
	if (answers->sets == 0)
		return none(answers, rows);
	ab_reader reader = {answers->at, answers->end, false};
	uint32_t elements;
	uint32_t columns;
	if (!ab_read_array(&reader, &elements) || elements < 2 || !ab_read_array(&reader, &columns))
		return none(answers, rows);
	ab_str *names = ab_alloc(columns * sizeof *names);
	for (uint32_t at = 0; at < columns; at++)
		names[at] = ab_read_text(&reader);
	ab_value all = ab_read_value(&reader);
	for (uint32_t rest = 2; rest < elements; rest++)
		ab_read_skip(&reader);
	if (reader.bad || all.type != AB_ARRAY)
		return none(answers, rows);
	answers->at = reader.at;
	answers->sets -= 1;
	*rows = (ab_rows){.columns = columns, .names = names, .left = all.count, .items = ab_items_of(&all),
			  .row = ab_alloc(columns * sizeof(ab_value))};
	return true;
}

bool ab_next_row(ab_rows *rows)
{
	ab_value row;
	if (rows->left == 0 || !ab_next(&rows->items, &row) || row.type != AB_ARRAY || row.count != rows->columns) {
		rows->left = 0;
		return false;
	}
	rows->left -= 1;
	ab_items values = ab_items_of(&row);
	for (size_t at = 0; at < rows->columns; at++)
		if (!ab_next(&values, &rows->row[at]))
			rows->row[at] = (ab_value){.type = AB_NULL};
	return true;
}

const ab_value *ab_row_value(const ab_rows *rows, size_t at)
{
	static const ab_value absent = {.type = AB_ABSENT};
	return rows->row != NULL && at < rows->columns ? &rows->row[at] : &absent;
}

bool ab_row_is_null(const ab_rows *rows, size_t at)
{
	ab_type type = ab_row_value(rows, at)->type;
	return type == AB_NULL || type == AB_ABSENT;
}

static const ab_value *typed(const ab_rows *rows, size_t at, ab_type type, const char *wanted)
{
	static const ab_value nothing = {.type = AB_NULL, .text = {"", 0}};
	const ab_value *value = ab_row_value(rows, at);
	if (value->type == type)
		return value;
	ab_mistyped("query-row", at < rows->columns ? rows->names[at] : AB_STR("beyond the last"), value->type, wanted);
	return &nothing;
}

bool ab_row_bool(const ab_rows *rows, size_t at)
{
	const ab_value *value = typed(rows, at, AB_BOOL, "a bool");
	return value->type == AB_BOOL && value->boolean;
}

int64_t ab_row_integer(const ab_rows *rows, size_t at)
{
	const ab_value *value = typed(rows, at, AB_INTEGER, "an integer");
	return value->type == AB_INTEGER ? value->integer : 0;
}

double ab_row_float(const ab_rows *rows, size_t at)
{
	const ab_value *value = typed(rows, at, AB_FLOAT, "a float");
	return value->type == AB_FLOAT ? value->real : 0;
}

ab_str ab_row_text(const ab_rows *rows, size_t at)
{
	return typed(rows, at, AB_TEXT, "text")->text;
}

ab_str ab_row_text_or(const ab_rows *rows, size_t at, ab_str otherwise)
{
	return ab_row_is_null(rows, at) ? otherwise : ab_row_text(rows, at);
}

bool ab_select(const char *sql, const ab_str *parameters, size_t width, ab_rows *rows, ab_failure *failure)
{
	const ab_statement statement = {.sql = ab_str_of(sql), .parameters = parameters, .width = width, .sets = 1};
	ab_answers answers;
	*rows = (ab_rows){0};
	if (!ab_query(&statement, 1, &answers, failure))
		return false;
	return ab_next_set(&answers, rows) ||
	       ab_failure_is(failure, AB_FATAL, "query-answer", "the host's answer has no rows");
}
