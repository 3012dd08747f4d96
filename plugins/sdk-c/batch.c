/* A whole batch: from the host's bytes to the reply's (wit/v1/payload-msgpack.md). */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

struct ab_batch {
	ab_buffer reply;
	size_t outcome; /* where the present change's begins */
	uint32_t documents;
	size_t documents_at; /* the place of their number */
	size_t size_at;      /* the place of the present document's size */
	ab_json json;
	bool failed;
	ab_class failure_class;
	ab_str code;
	ab_str message;
	/* Of the relation. */
	uint32_t columns;
	ab_str *names;
};

static struct ab_batch batch;
/* What the transform is called with now. */
static ab_change *present;
/* The rows of the present change. */
static ab_value *new_row;
static ab_value *old_row;
static size_t room;

static const ab_value absent = {.type = AB_ABSENT};

/* ---- failures ---- */

ab_outcome ab_fail(ab_change *change, ab_class failure_class, const char *code, const char *message)
{
	const ab_failure failure = {failure_class, ab_str_of(code), ab_str_of(message)};
	return ab_fail_as(change, &failure);
}

ab_outcome ab_fail_as(ab_change *change, const ab_failure *failure)
{
	struct ab_batch *own = change->batch;
	if (!own->failed) {
		own->failed = true;
		own->failure_class = failure->failure_class;
		own->code = ab_copied(failure->code);
		own->message = ab_copied(failure->message);
	}
	return AB_FAILED;
}

bool ab_has_failed(const ab_change *change)
{
	return change->batch->failed;
}

static bool whole_batch(ab_failure *failure, ab_class failure_class, const char *code, ab_str message)
{
	/* Not in memory that ends with the call. */
	static char text[256];
	size_t size = message.size < sizeof text ? message.size : sizeof text;
	memcpy(text, message.data, size);
	*failure = (ab_failure){failure_class, ab_str_of(code), {text, size}};
	return false;
}

static bool malformed(ab_failure *failure)
{
	return whole_batch(failure, AB_FATAL, "batch", AB_STR("the host's batch is malformed"));
}

/* ---- columns ---- */

size_t ab_column(ab_change *change, const char *name)
{
	const struct ab_batch *own = change->batch;
	for (uint32_t at = 0; at < own->columns; at++)
		if (ab_str_is(own->names[at], name))
			return at;
	ab_buffer text = {0};
	ab_buffer_bytes(&text, "there is no column ", 19);
	ab_buffer_bytes(&text, name, strlen(name) + 1);
	ab_fail(change, AB_FATAL, "column", (const char *)text.data);
	free(text.data);
	return 0;
}

const ab_value *ab_get(const ab_change *change, size_t column)
{
	return column < change->columns ? &change->row[column] : &absent;
}

const ab_value *ab_get_old(const ab_change *change, size_t column)
{
	return change->old != NULL && column < change->columns ? &change->old[column] : &absent;
}

bool ab_is_null(const ab_change *change, size_t column)
{
	ab_type type = ab_get(change, column)->type;
	return type == AB_NULL || type == AB_ABSENT;
}

static const char *const types[] = {
	[AB_ABSENT] = "was not sent", [AB_NULL] = "is NULL",	    [AB_BOOL] = "is a bool",
	[AB_INTEGER] = "is an integer", [AB_FLOAT] = "is a float",  [AB_TEXT] = "is text",
	[AB_BYTES] = "is bytes",	[AB_JSON] = "is json",	    [AB_ARRAY] = "is an array",
	[AB_MAP] = "is a map",
};

static void append(ab_buffer *text, const char *part)
{
	ab_buffer_bytes(text, part, strlen(part));
}

void ab_mistyped(const char *code, ab_str column, ab_type type, const char *wanted)
{
	if (present == NULL)
		return;
	ab_buffer text = {0};
	append(&text, "the column ");
	ab_buffer_bytes(&text, column.data, column.size);
	append(&text, " ");
	append(&text, types[type]);
	append(&text, " where ");
	append(&text, wanted);
	append(&text, " is read");
	ab_buffer_byte(&text, 0);
	ab_fail(present, AB_POISON, code, (const char *)text.data);
	free(text.data);
}

static const ab_value *typed(ab_change *change, size_t column, ab_type type, const char *wanted)
{
	const ab_value *value = ab_get(change, column);
	if (value->type == type)
		return value;
	static const ab_value nothing = {.type = AB_NULL, .text = {"", 0}};
	const struct ab_batch *own = change->batch;
	ab_mistyped("column", column < own->columns ? own->names[column] : (ab_str){0}, value->type, wanted);
	return &nothing;
}

bool ab_bool(ab_change *change, size_t column)
{
	const ab_value *value = typed(change, column, AB_BOOL, "a bool");
	return value->type == AB_BOOL && value->boolean;
}

int64_t ab_integer(ab_change *change, size_t column)
{
	const ab_value *value = typed(change, column, AB_INTEGER, "an integer");
	return value->type == AB_INTEGER ? value->integer : 0;
}

double ab_float(ab_change *change, size_t column)
{
	const ab_value *value = typed(change, column, AB_FLOAT, "a float");
	return value->type == AB_FLOAT ? value->real : 0;
}

ab_str ab_text(ab_change *change, size_t column)
{
	return typed(change, column, AB_TEXT, "text")->text;
}

ab_str ab_text_or(ab_change *change, size_t column, ab_str otherwise)
{
	return ab_is_null(change, column) ? otherwise : ab_text(change, column);
}

ab_str ab_bytes(ab_change *change, size_t column)
{
	return typed(change, column, AB_BYTES, "bytea")->text;
}

ab_str ab_json_text(ab_change *change, size_t column)
{
	return typed(change, column, AB_JSON, "json")->text;
}

/* ---- answers ---- */

static void close_document(ab_change *change)
{
	struct ab_batch *own = change->batch;
	if (own->documents == 0)
		return;
	if (!own->json.done || own->json.depth > 0)
		ab_fail(change, AB_FATAL, "document", "a document is not complete: ab_end is missing, or a value");
	size_t size = own->reply.size - own->size_at - 4;
	ab_write_number_at(&own->reply, own->size_at, (uint32_t)size);
}

ab_json *ab_document_as(ab_change *change, const ab_str *id, const ab_str *destination)
{
	struct ab_batch *own = change->batch;
	if (own->documents == 0) {
		ab_buffer_byte(&own->reply, 0x92);
		ab_buffer_byte(&own->reply, 0);
		own->documents_at = ab_write_later(&own->reply, 0xdd);
	}
	close_document(change);
	own->documents += 1;
	ab_buffer_byte(&own->reply, 0x93);
	ab_write_text(&own->reply, id == NULL ? (ab_str){0} : *id);
	ab_write_text(&own->reply, destination == NULL ? (ab_str){0} : *destination);
	own->size_at = ab_write_later(&own->reply, 0xc6);
	ab_json_begin(&own->json, &own->reply, change);
	return &own->json;
}

ab_json *ab_document(ab_change *change)
{
	return ab_document_as(change, NULL, NULL);
}

static void answer(ab_change *change, ab_outcome outcome)
{
	static const char *const classes[] = {"retry", "poison", "fatal"};
	struct ab_batch *own = change->batch;
	if (outcome == AB_EMIT) {
		close_document(change);
		if (own->documents == 0)
			ab_fail(change, AB_FATAL, "answer", "the transform emits, and has begun no document");
	} else if (outcome == AB_FAILED) {
		/* Unless there is a reason already. */
		ab_fail(change, AB_POISON, "exception", "the transform returned AB_FAILED without ab_fail");
	}
	ab_buffer *reply = &own->reply;
	if (own->failed) {
		reply->size = own->outcome;
		ab_write_array(reply, 4);
		ab_write_integer(reply, 3);
		ab_write_text(reply, ab_str_of(classes[own->failure_class]));
		ab_write_text(reply, ab_lossy(own->code));
		ab_write_text(reply, ab_lossy(own->message));
	} else if (outcome == AB_EMIT) {
		ab_write_number_at(reply, own->documents_at, own->documents);
	} else {
		reply->size = own->outcome;
		ab_write_array(reply, 1);
		ab_write_integer(reply, outcome == AB_SKIP ? 2 : 1);
	}
}

/* ---- the request ---- */

static bool read_row(ab_reader *reader, ab_value *row, bool *is_there)
{
	ab_value value = {0};
	const uint8_t *from = reader->at;
	if (from < reader->end && *from == 0xc0) {
		reader->at += 1;
		*is_there = false;
		return true;
	}
	uint32_t count;
	if (!ab_read_array(reader, &count) || count != batch.columns)
		return false;
	for (uint32_t at = 0; at < count; at++) {
		value = ab_read_value(reader);
		row[at] = value;
	}
	*is_there = true;
	return !reader->bad;
}

static bool mark_absent(ab_reader *reader, ab_value *row)
{
	uint32_t count;
	if (!ab_read_array(reader, &count))
		return false;
	while (count-- > 0) {
		uint64_t at = ab_read_unsigned(reader);
		if (reader->bad || at >= batch.columns)
			return false;
		row[at] = absent;
	}
	return true;
}

static bool read_change(ab_reader *reader, ab_change *change)
{
	static const char *const operations[] = {"insert", "update", "delete", "read"};
	uint32_t elements;
	if (!ab_read_array(reader, &elements) || elements < 9)
		return false;
	ab_str operation = ab_read_text(reader);
	size_t at = 0;
	while (at < 4 && !ab_str_is(operation, operations[at]))
		at += 1;
	if (at == 4)
		return false;
	change->operation = (ab_operation)at;
	change->id = ab_read_text(reader);
	bool has_new;
	bool has_old;
	if (!read_row(reader, new_row, &has_new) || !read_row(reader, old_row, &has_old))
		return false;
	change->lsn = ab_read_unsigned(reader);
	change->commit_time_us = (int64_t)ab_read_unsigned(reader);
	change->sequence = ab_read_unsigned(reader);
	if (reader->at < reader->end && *reader->at == 0xc0) {
		reader->at += 1;
	} else {
		uint32_t lists;
		if (!ab_read_array(reader, &lists) || lists != 2 || !mark_absent(reader, new_row) ||
		    !mark_absent(reader, old_row))
			return false;
	}
	for (uint32_t rest = 8; rest < elements; rest++)
		ab_read_skip(reader);
	change->old = has_old ? old_row : NULL;
	change->row = has_new ? new_row : change->old;
	change->columns = batch.columns;
	return !reader->bad;
}

static bool read_columns(ab_reader *reader)
{
	uint32_t count;
	if (!ab_read_array(reader, &count))
		return false;
	if (count > room) {
		free(batch.names);
		free(new_row);
		free(old_row);
		batch.names = calloc(count, sizeof *batch.names);
		new_row = calloc(count, sizeof *new_row);
		old_row = calloc(count, sizeof *old_row);
		if (batch.names == NULL || new_row == NULL || old_row == NULL)
			abort();
		room = count;
	}
	batch.columns = count;
	for (uint32_t at = 0; at < count; at++)
		batch.names[at] = ab_read_text(reader);
	return !reader->bad;
}

static bool read_relation(ab_reader *reader)
{
	uint32_t keys;
	if (!ab_read_map(reader, &keys))
		return false;
	while (keys-- > 0 && !reader->bad) {
		ab_str key = ab_read_text(reader);
		if (!ab_str_is(key, "columns"))
			ab_read_skip(reader);
		else if (!read_columns(reader))
			return false;
	}
	return !reader->bad;
}

static bool same_columns(const ab_plugin *plugin)
{
	uint32_t at = 0;
	while (plugin->columns[at] != NULL && at < batch.columns) {
		if (!ab_str_is(batch.names[at], plugin->columns[at]))
			return false;
		at += 1;
	}
	return at == batch.columns && plugin->columns[at] == NULL;
}

struct ab_changes {
	ab_reader reader;
	uint32_t left;
	bool backfill;
	ab_change change;
};

ab_change *ab_next_change(ab_changes *changes)
{
	while (changes->left > 0) {
		changes->left -= 1;
		changes->change = (ab_change){.backfill = changes->backfill, .batch = &batch};
		/* What is malformed is told when it is answered. */
		if (!read_change(&changes->reader, &changes->change))
			changes->left = 0;
		else if (changes->change.row != NULL)
			return &changes->change;
	}
	return NULL;
}

static bool prepare(const ab_plugin *plugin, const ab_reader *reader, uint32_t count, bool backfill, ab_failure *failure)
{
	ab_changes changes = {.reader = *reader, .left = count, .backfill = backfill};
	ab_alloc_reset();
	ab_failed(failure, AB_POISON, "exception", "`prepare` returned false without ab_failed");
	if (!plugin->prepare(&changes, failure))
		return ab_leaves(failure);
	ab_alloc_keep();
	return true;
}

static bool run_changes(const ab_plugin *plugin, ab_reader *reader, bool backfill, ab_failure *failure)
{
	uint32_t count;
	if (!ab_read_array(reader, &count))
		return malformed(failure);
	if (plugin->columns != NULL && !same_columns(plugin))
		return whole_batch(failure, AB_FATAL, "columns",
				   AB_STR("the host sent other columns than those that were asked for"));
	ab_alloc_release();
	if (plugin->prepare != NULL && !prepare(plugin, reader, count, backfill, failure))
		return false;
	ab_write_array(&batch.reply, count);
	while (count-- > 0) {
		ab_change change = {.backfill = backfill, .batch = &batch};
		if (!read_change(reader, &change))
			return malformed(failure);
		batch.outcome = batch.reply.size;
		batch.documents = 0;
		batch.failed = false;
		present = &change;
		if (change.row == NULL)
			answer(&change, ab_fail(&change, AB_POISON, "no-row",
						"the change has neither a new nor an old row"));
		else
			answer(&change, plugin->transform(&change));
		present = NULL;
		ab_alloc_reset();
	}
	ab_alloc_release();
	return true;
}

bool ab_run(const ab_plugin *plugin, const uint8_t *request, size_t size, ab_str *reply, ab_failure *failure)
{
	if (plugin->transform == NULL)
		return whole_batch(failure, AB_FATAL, "declaration", AB_STR("the plugin has no `.transform`"));
	ab_buffer_reset(&batch.reply);
	batch.columns = 0;
	ab_reader reader = {request, request + size, false};
	bool backfill = false;
	bool related = false;
	uint32_t keys;
	if (!ab_read_map(&reader, &keys))
		return malformed(failure);
	while (keys-- > 0) {
		ab_str key = ab_read_text(&reader);
		if (ab_str_is(key, "v")) {
			if (ab_read_unsigned(&reader) != 1)
				return whole_batch(failure, AB_FATAL, "payload-version",
						   AB_STR("this plugin reads payload version 1, the host sent another"));
		} else if (ab_str_is(key, "relation")) {
			related = read_relation(&reader);
			if (!related)
				return malformed(failure);
		} else if (ab_str_is(key, "origin")) {
			backfill = ab_str_is(ab_read_text(&reader), "backfill");
		} else if (ab_str_is(key, "changes")) {
			/* The last key. */
			if (!related)
				return malformed(failure);
			if (!run_changes(plugin, &reader, backfill, failure))
				return false;
			*reply = (ab_str){(const char *)batch.reply.data, batch.reply.size};
			return true;
		} else {
			ab_read_skip(&reader);
		}
		if (reader.bad)
			return malformed(failure);
	}
	return malformed(failure);
}

/* ---- describe ---- */

static void list(ab_buffer *out, const char *key, const char *const *items)
{
	append(out, ",\"");
	append(out, key);
	append(out, "\":[");
	for (size_t at = 0; items != NULL && items[at] != NULL; at++) {
		if (at > 0)
			append(out, ",");
		ab_json_quoted(out, ab_str_of(items[at]));
	}
	append(out, "]");
}

ab_str ab_describe(const ab_plugin *plugin)
{
	static ab_buffer out;
	out.size = 0;
	append(&out, "{\"name\":");
	ab_json_quoted(&out, ab_str_of(plugin->name));
	append(&out, ",\"version\":");
	ab_json_quoted(&out, ab_str_of(plugin->version));
	append(&out, ",\"kind\":");
	append(&out, plugin->kind == AB_A_TRANSFORM ? "\"transform\"" : "\"sink\"");
	append(&out, ",\"encoding\":\"msgpack\"");
	list(&out, "tables", plugin->tables);
	if (plugin->columns != NULL)
		list(&out, "columns", plugin->columns);
	if (plugin->destination != NULL) {
		append(&out, ",\"destination\":");
		ab_json_quoted(&out, ab_str_of(plugin->destination));
	}
	if (plugin->wants_deletes)
		append(&out, ",\"wants_deletes\":true");
	if (plugin->names_ids)
		append(&out, ",\"names_ids\":true");
	list(&out, "depends_on", plugin->depends_on);
	append(&out, ",\"sdk\":\"anabranch-sdk-c " AB_SDK_VERSION "\"}");
	return (ab_str){(const char *)out.data, out.size};
}
