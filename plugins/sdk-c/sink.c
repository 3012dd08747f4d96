/* A sink's calls: from the host's bytes to the reply's (wit/v1/payload-msgpack.md, "deliver"). */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

/* What became of a document. */
struct ab_result {
	enum { NOTHING, ACCEPTED, REFUSED } kind;
	bool is_after;
	uint32_t after; /* milliseconds */
	ab_failure failure;
};

static ab_buffer reply_buffer;

/* ---- failures and results ---- */

bool ab_failed(ab_failure *failure, ab_class failure_class, const char *code, const char *message)
{
	*failure = (ab_failure){failure_class, ab_copied(ab_str_of(code)), ab_copied(ab_str_of(message))};
	return false;
}

bool ab_failedf(ab_failure *failure, ab_class failure_class, const char *code, const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	*failure = (ab_failure){failure_class, ab_copied(ab_str_of(code)), ab_formatted(format, arguments)};
	va_end(arguments);
	return false;
}

/* A document that is not there has no result to be set: the batch fails. */
static bool is_stray;
static size_t stray;

static struct ab_result *result_of(ab_delivery *delivery, size_t document)
{
	static struct ab_result nowhere;
	if (document < delivery->count)
		return &delivery->results[document];
	if (!is_stray)
		stray = document;
	is_stray = true;
	return &nowhere;
}

void ab_accept(ab_delivery *delivery, size_t document)
{
	result_of(delivery, document)->kind = ACCEPTED;
}

void ab_accept_rest(ab_delivery *delivery)
{
	for (size_t at = 0; at < delivery->count; at++)
		if (delivery->results[at].kind == NOTHING)
			delivery->results[at].kind = ACCEPTED;
}

void ab_refuse_as(ab_delivery *delivery, size_t document, const ab_failure *failure)
{
	const ab_failure kept = {failure->failure_class, ab_copied(failure->code), ab_copied(failure->message)};
	*result_of(delivery, document) = (struct ab_result){.kind = REFUSED, .failure = kept};
}

void ab_refuse(ab_delivery *delivery, size_t document, ab_class failure_class, const char *code, const char *message)
{
	const ab_failure failure = {failure_class, ab_str_of(code), ab_str_of(message)};
	ab_refuse_as(delivery, document, &failure);
}

void ab_refusef(ab_delivery *delivery, size_t document, ab_class failure_class, const char *code, const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	const ab_failure failure = {failure_class, ab_str_of(code), ab_formatted(format, arguments)};
	va_end(arguments);
	ab_refuse_as(delivery, document, &failure);
}

void ab_refuse_for(ab_delivery *delivery, size_t document, uint32_t milliseconds, const char *code, const char *message)
{
	ab_refuse(delivery, document, AB_RETRY, code, message);
	struct ab_result *result = result_of(delivery, document);
	result->is_after = true;
	result->after = milliseconds;
}

/* ---- settings ---- */

/* Behind a text of JSON, which the host has written. */
static size_t behind_text(ab_str json, size_t at)
{
	for (at += 1; at < json.size && json.data[at] != '"'; at++)
		if (json.data[at] == '\\')
			at += 1;
	return at + 1;
}

static bool is_known(ab_str name, const char *const *known)
{
	for (; *known != NULL; known++)
		if (ab_str_is(name, *known))
			return true;
	return false;
}

/* The first key of the object that the plugin does not know; none if `data` is NULL. */
static ab_str unknown(ab_str json, const char *const *known)
{
	size_t depth = 0;
	bool key = false;
	for (size_t at = 0; at < json.size;) {
		char byte = json.data[at];
		if (byte == '"') {
			size_t end = behind_text(json, at);
			ab_str name = {json.data + at + 1, end - at - 2};
			if (key && end <= json.size && !is_known(name, known))
				return name;
			key = false;
			at = end;
			continue;
		}
		if (byte == '{' || byte == '[') {
			depth += 1;
			key = byte == '{' && depth == 1;
		} else if (byte == '}' || byte == ']') {
			depth -= 1;
		} else if (byte == ',') {
			key = depth == 1;
		}
		at += 1;
	}
	return (ab_str){0};
}

/* Why a sink cannot be what it is declared as; NULL where it can. */
static const char *misdeclared(const ab_plugin *plugin)
{
	if (plugin->kind == AB_A_TRANSFORM)
		return "AB_PLUGIN declares a transform: use AB_SINK";
	if (plugin->deliver == NULL)
		return "the sink has no `.deliver`";
	if (plugin->kind == AB_A_SWITCHING_SINK) {
		if (plugin->purge == NULL)
			return "AB_SWITCHING_SINK without `.purge`";
		if (plugin->begin == NULL)
			return "AB_SWITCHING_SINK without `.begin`: use AB_PURGING_SINK";
		if (plugin->switch_to == NULL)
			return "AB_SWITCHING_SINK without `.switch_to`: use AB_PURGING_SINK";
		if (plugin->abandon == NULL)
			return "AB_SWITCHING_SINK without `.abandon`: use AB_PURGING_SINK";
		return NULL;
	}
	if (plugin->begin != NULL || plugin->switch_to != NULL || plugin->abandon != NULL)
		return "`.begin`, `.switch_to` and `.abandon` are exported by AB_SWITCHING_SINK alone";
	if (plugin->kind == AB_A_SINK && plugin->purge != NULL)
		return "AB_SINK exports no `.purge`: use AB_PURGING_SINK";
	if (plugin->kind == AB_A_PURGING_SINK && plugin->purge == NULL)
		return "AB_PURGING_SINK without `.purge`: use AB_SINK";
	return NULL;
}

bool ab_run_open(const ab_plugin *plugin, ab_str settings, ab_failure *failure)
{
	static const char *const none[] = {NULL};
	ab_alloc_reset();
	const char *wrong = misdeclared(plugin);
	if (wrong != NULL)
		return ab_failed(failure, AB_FATAL, "declaration", wrong);
	ab_str name = unknown(settings, plugin->settings == NULL ? none : plugin->settings);
	if (name.data != NULL) {
		ab_buffer known = {0};
		for (size_t at = 0; plugin->settings != NULL && plugin->settings[at] != NULL; at++) {
			const char *between = at == 0 ? "; there is " : ", ";
			ab_buffer_bytes(&known, between, strlen(between));
			ab_buffer_bytes(&known, plugin->settings[at], strlen(plugin->settings[at]));
		}
		ab_failedf(failure, AB_FATAL, "settings", "`config` of the sink: unknown setting `%.*s`%.*s",
			   (int)name.size, name.data, (int)known.size, known.data == NULL ? "" : (char *)known.data);
		free(known.data);
		return ab_leaves(failure);
	}
	ab_failed(failure, AB_FATAL, "open", "the sink returned false without ab_failed");
	return plugin->open == NULL || plugin->open(settings, failure) || ab_leaves(failure);
}

bool ab_run_purge(const ab_plugin *plugin, ab_str destination, ab_failure *failure)
{
	ab_alloc_reset();
	ab_failed(failure, AB_RETRY, "purge", "the sink returned false without ab_failed");
	return (plugin->purge != NULL && plugin->purge(destination, failure)) || ab_leaves(failure);
}

bool ab_run_begin(const ab_plugin *plugin, ab_str destination, ab_str place, bool *is_seen, ab_failure *failure)
{
	ab_alloc_reset();
	ab_failed(failure, AB_RETRY, "begin", "the sink returned false without ab_failed");
	/* Of what is forgotten, the one that shows nobody a place that is not whole. */
	*is_seen = true;
	return (plugin->begin != NULL && plugin->begin(destination, place, is_seen, failure)) || ab_leaves(failure);
}

bool ab_run_switch(const ab_plugin *plugin, ab_str destination, ab_str place, ab_failure *failure)
{
	ab_alloc_reset();
	ab_failed(failure, AB_RETRY, "switch", "the sink returned false without ab_failed");
	return (plugin->switch_to != NULL && plugin->switch_to(destination, place, failure)) || ab_leaves(failure);
}

bool ab_run_abandon(const ab_plugin *plugin, ab_str destination, ab_str place, ab_failure *failure)
{
	ab_alloc_reset();
	ab_failed(failure, AB_RETRY, "abandon", "the sink returned false without ab_failed");
	return (plugin->abandon != NULL && plugin->abandon(destination, place, failure)) || ab_leaves(failure);
}

/* ---- the request ---- */

static bool read_document(ab_reader *reader, const ab_str *destinations, uint32_t count, ab_document_in *document)
{
	uint32_t elements;
	if (!ab_read_array(reader, &elements) || elements < 7)
		return false;
	ab_str operation = ab_read_text(reader);
	document->id = ab_read_text(reader);
	uint64_t destination = ab_read_unsigned(reader);
	ab_value body = ab_read_value(reader);
	document->lsn = ab_read_unsigned(reader);
	document->commit_time_us = (int64_t)ab_read_unsigned(reader);
	for (uint32_t rest = 6; rest < elements; rest++)
		ab_read_skip(reader);
	if (reader->bad || destination >= count)
		return false;
	document->destination = destinations[destination];
	bool removed = ab_str_is(operation, "delete");
	if (removed ? body.type != AB_NULL : !ab_str_is(operation, "upsert") || body.type != AB_BYTES)
		return false;
	document->body = removed ? (ab_str){0} : body.text;
	return true;
}

static bool read_documents(ab_reader *reader, const ab_str *destinations, uint32_t count, ab_delivery *delivery)
{
	uint32_t documents;
	if (!ab_read_array(reader, &documents))
		return false;
	ab_document_in *all = ab_alloc(documents * sizeof *all);
	for (uint32_t at = 0; at < documents; at++)
		if (!read_document(reader, destinations, count, &all[at]))
			return false;
	delivery->document = all;
	delivery->count = documents;
	delivery->results = ab_alloc(documents * sizeof *delivery->results);
	memset(delivery->results, 0, documents * sizeof *delivery->results);
	return true;
}

/* Its documents come last. */
static bool read_delivery(ab_reader *reader, ab_delivery *delivery, uint64_t *version)
{
	ab_str *destinations = NULL;
	uint32_t count = 0;
	uint32_t keys;
	if (!ab_read_map(reader, &keys))
		return false;
	while (keys-- > 0 && !reader->bad) {
		ab_str key = ab_read_text(reader);
		if (ab_str_is(key, "v")) {
			*version = ab_read_unsigned(reader);
			if (*version != 1)
				return false;
		} else if (ab_str_is(key, "entity")) {
			delivery->entity = ab_read_text(reader);
		} else if (ab_str_is(key, "origin")) {
			delivery->backfill = ab_str_is(ab_read_text(reader), "backfill");
		} else if (ab_str_is(key, "generation")) {
			delivery->generation = (int64_t)ab_read_unsigned(reader);
		} else if (ab_str_is(key, "place")) {
			delivery->place = ab_read_text(reader);
		} else if (ab_str_is(key, "destinations")) {
			if (!ab_read_array(reader, &count))
				return false;
			destinations = ab_alloc(count * sizeof *destinations);
			for (uint32_t at = 0; at < count; at++)
				destinations[at] = ab_read_text(reader);
		} else if (ab_str_is(key, "documents")) {
			return read_documents(reader, destinations, count, delivery);
		} else {
			ab_read_skip(reader);
		}
	}
	return false;
}

/* ---- the reply ---- */

static bool write_results(const ab_delivery *delivery, ab_failure *failure)
{
	static const char *const classes[] = {"retry", "poison", "fatal"};
	ab_buffer *out = &reply_buffer;
	if (is_stray)
		return ab_failedf(failure, AB_FATAL, "results", "the sink gave a result for document %zu of %zu", stray,
				  delivery->count);
	ab_write_array(out, (uint32_t)delivery->count);
	for (size_t at = 0; at < delivery->count; at++) {
		const struct ab_result *result = &delivery->results[at];
		if (result->kind == NOTHING)
			return ab_failedf(failure, AB_FATAL, "results",
					  "document %zu of %zu was neither accepted nor refused by the sink", at,
					  delivery->count);
		if (result->kind == ACCEPTED) {
			ab_write_array(out, 1);
			ab_write_integer(out, 0);
			continue;
		}
		ab_write_array(out, result->is_after ? 5 : 4);
		ab_write_integer(out, 1);
		ab_write_text(out, ab_str_of(classes[result->failure.failure_class]));
		ab_write_text(out, ab_lossy(result->failure.code));
		ab_write_text(out, ab_lossy(result->failure.message));
		if (result->is_after)
			ab_write_integer(out, result->after);
	}
	return true;
}

bool ab_run_deliver(const ab_plugin *plugin, const uint8_t *request, size_t size, ab_str *reply, ab_failure *failure)
{
	ab_alloc_reset();
	ab_buffer_reset(&reply_buffer);
	is_stray = false;
	ab_reader reader = {request, request + size, false};
	ab_delivery delivery = {0};
	uint64_t version = 1;
	if (!read_delivery(&reader, &delivery, &version)) {
		if (version != 1)
			return ab_failed(failure, AB_FATAL, "payload-version",
					 "this plugin reads payload version 1, the host sent another");
		return ab_failed(failure, AB_FATAL, "batch", "the host's batch is malformed");
	}
	/* One that says nothing of its failure has one all the same. */
	ab_failed(failure, AB_RETRY, "deliver", "the sink returned false without ab_failed");
	if (!plugin->deliver(&delivery, failure) || !write_results(&delivery, failure))
		return ab_leaves(failure);
	*reply = (ab_str){(const char *)reply_buffer.data, reply_buffer.size};
	return true;
}
