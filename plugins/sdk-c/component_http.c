/*
 * Requests over wasi:http 0.2, by the canonical ABI. What is not called is not linked, and a component asks for what is
 * linked. Compiled for WebAssembly only.
 */
#ifdef __wasm__

#include <string.h>

#include "internal.h"

#define IMPORT(module, name) __attribute__((import_module(module), import_name(name))) extern
#define TYPES "wasi:http/types@0.2.0"
#define STREAMS "wasi:io/streams@0.2.0"
/* Bytes that one write may have. */
#define CHUNK 4096

/* What a resource is called by. */
typedef int32_t handle;

/* result<own<…>>, result<own<…>, an enumeration> and result<list<u8>, stream-error> */
typedef struct small {
	uint8_t failed;
	union {
		handle handle;
		ab_str bytes;
		struct {
			uint8_t closed; /* else `error` is what was wrong */
			handle error;
		} stream;
	};
} small;

/* error-code, as far as its texts are read. */
typedef struct code {
	_Alignas(8) uint8_t number;
	_Alignas(8) uint8_t is_said; /* of internal-error */
	ab_str said;
	uint8_t rest[12];
} code;

/* result<own<…>, error-code> and result<_, error-code> */
typedef struct outcome {
	uint8_t failed;
	union {
		handle handle;
		code code;
	};
} outcome;

/* option<result<result<incoming-response, error-code>>> */
typedef struct arrived {
	uint8_t is_there;
	_Alignas(8) uint8_t taken_before;
	_Alignas(8) outcome outcome;
} arrived;

_Static_assert(sizeof(code) == 32 && sizeof(outcome) == 40 && sizeof(arrived) == 56, "as the canonical ABI has them");

IMPORT(TYPES, "[static]fields.from-list") void fields_from_list(const ab_header *, size_t, small *);
IMPORT(TYPES, "[method]fields.entries") void fields_entries(handle, ab_str *);
IMPORT(TYPES, "[resource-drop]fields") void fields_drop(handle);
IMPORT(TYPES, "[constructor]outgoing-request") handle request_new(handle headers);
IMPORT(TYPES, "[method]outgoing-request.set-method") int32_t request_method(handle, int32_t, const char *, size_t);
IMPORT(TYPES, "[method]outgoing-request.set-scheme")
int32_t request_scheme(handle, int32_t, int32_t, const char *, size_t);
IMPORT(TYPES, "[method]outgoing-request.set-authority") int32_t request_authority(handle, int32_t, const char *, size_t);
IMPORT(TYPES, "[method]outgoing-request.set-path-with-query")
int32_t request_path(handle, int32_t, const char *, size_t);
IMPORT(TYPES, "[method]outgoing-request.body") void request_body(handle, small *);
IMPORT(TYPES, "[resource-drop]outgoing-request") void request_drop(handle);
IMPORT(TYPES, "[constructor]request-options") handle options_new(void);
IMPORT(TYPES, "[method]request-options.set-first-byte-timeout") int32_t options_timeout(handle, int32_t, uint64_t);
IMPORT(TYPES, "[method]outgoing-body.write") void body_write(handle, small *);
IMPORT(TYPES, "[static]outgoing-body.finish") void body_finish(handle, int32_t, handle, outcome *);
IMPORT(TYPES, "[resource-drop]outgoing-body") void body_drop(handle);
IMPORT(TYPES, "[method]future-incoming-response.subscribe") handle future_subscribe(handle);
IMPORT(TYPES, "[method]future-incoming-response.get") void future_get(handle, arrived *);
IMPORT(TYPES, "[resource-drop]future-incoming-response") void future_drop(handle);
IMPORT(TYPES, "[method]incoming-response.status") int32_t response_status(handle);
IMPORT(TYPES, "[method]incoming-response.headers") handle response_headers(handle);
IMPORT(TYPES, "[method]incoming-response.consume") void response_consume(handle, small *);
IMPORT(TYPES, "[resource-drop]incoming-response") void response_drop(handle);
IMPORT(TYPES, "[method]incoming-body.stream") void incoming_stream(handle, small *);
IMPORT(TYPES, "[resource-drop]incoming-body") void incoming_drop(handle);
IMPORT("wasi:http/outgoing-handler@0.2.0", "handle") void http_handle(handle, int32_t, handle, outcome *);
IMPORT("wasi:io/poll@0.2.0", "[method]pollable.block") void pollable_block(handle);
IMPORT("wasi:io/poll@0.2.0", "[resource-drop]pollable") void pollable_drop(handle);
IMPORT(STREAMS, "[method]output-stream.blocking-write-and-flush")
void stream_write(handle, const char *, size_t, small *);
IMPORT(STREAMS, "[resource-drop]output-stream") void output_drop(handle);
IMPORT(STREAMS, "[method]input-stream.blocking-read") void stream_read(handle, uint64_t, small *);
IMPORT(STREAMS, "[resource-drop]input-stream") void input_drop(handle);
IMPORT("wasi:io/error@0.2.0", "[method]error.to-debug-string") void error_said(handle, ab_str *);
IMPORT("wasi:io/error@0.2.0", "[resource-drop]error") void error_drop(handle);

static bool fails(ab_failure *failure, const char *message)
{
	return ab_failure_is(failure, AB_RETRY, "http-failed", message);
}

/* The cases of error-code that a word stands for. */
enum { CONNECTION_TIMEOUT = 8, REQUEST_DENIED = 15, RESPONSE_TIMEOUT = 33, INTERNAL_ERROR = 38 };

static bool coded(ab_failure *failure, const code *code)
{
	static const char *const names[] = {
		"the name server did not answer in time", "the name cannot be resolved", "the server was not found",
		"the server is unavailable", "the address is prohibited", "the address cannot be reached",
		"the connection was refused", "the connection was terminated", "", "reading took too long",
		"writing took too long", "there are too many connections",
	};
	switch (code->number) {
	case INTERNAL_ERROR:
		return code->is_said ? ab_http_said(failure, code->said) : fails(failure, "the host could not send it");
	case REQUEST_DENIED:
		return ab_failure_is(failure, AB_FATAL, "http-denied", "the host denies requests");
	case CONNECTION_TIMEOUT:
	case RESPONSE_TIMEOUT:
		return ab_failure_is(failure, AB_RETRY, "http-timeout", "there was no answer in time");
	}
	if (code->number < sizeof names / sizeof *names)
		return fails(failure, names[code->number]);
	if (failure != NULL) {
		fails(failure, NULL);
		failure->message = ab_format("the request failed (error-code %u of wasi:http)", (unsigned)code->number);
	}
	return false;
}

/* A stream that failed or was closed. */
static bool broken(ab_failure *failure, const small *result)
{
	if (result->stream.closed)
		return fails(failure, "the connection was closed");
	ab_str text;
	error_said(result->stream.error, &text);
	error_drop(result->stream.error);
	return ab_http_said(failure, text);
}

static int32_t method_of(const char *name)
{
	static const char *const names[] = {"GET",     "HEAD",	  "POST",  "PUT",  "DELETE",
					    "CONNECT", "OPTIONS", "TRACE", "PATCH"};
	int32_t at = 0;
	while (at < 9 && strcmp(names[at], name) != 0)
		at += 1;
	return at; /* 9 is any other, by its name */
}

/* The request without its body; 0 where there can be none. */
static handle begun(const ab_request *request, ab_failure *failure)
{
	ab_target target;
	if (!ab_may_be_sent(request, &target, failure))
		return 0;
	small fields;
	fields_from_list(request->headers, request->header_count, &fields);
	if (fields.failed) {
		ab_failure_is(failure, AB_POISON, "http-request", "a header cannot be sent");
		return 0;
	}
	handle made = request_new(fields.handle);
	const char *method = request->method == NULL ? "GET" : request->method;
	if (request_method(made, method_of(method), method, strlen(method)) != 0) {
		request_drop(made);
		ab_failure_is(failure, AB_POISON, "http-request", "the method is no word that can be sent");
		return 0;
	}
	if (request_scheme(made, 1, target.secure, NULL, 0) != 0 ||
	    request_authority(made, 1, target.authority.data, target.authority.size) != 0 ||
	    request_path(made, 1, target.path.data, target.path.size) != 0) {
		request_drop(made);
		ab_wrong_url(request->url, failure);
		return 0;
	}
	return made;
}

static bool write_body(handle body, ab_str bytes, ab_failure *failure)
{
	small stream;
	body_write(body, &stream);
	if (stream.failed) {
		body_drop(body);
		return fails(failure, "the body cannot be written");
	}
	for (size_t at = 0; at < bytes.size; at += CHUNK) {
		size_t size = bytes.size - at < CHUNK ? bytes.size - at : CHUNK;
		small result;
		stream_write(stream.handle, bytes.data + at, size, &result);
		if (result.failed) {
			output_drop(stream.handle);
			body_drop(body);
			return broken(failure, &result);
		}
	}
	output_drop(stream.handle);
	outcome finished;
	body_finish(body, 0, 0, &finished);
	return !finished.failed || coded(failure, &finished.code);
}

static bool read_body(handle body, ab_str *bytes, ab_failure *failure)
{
	small stream;
	incoming_stream(body, &stream);
	if (stream.failed)
		return fails(failure, "the answer cannot be read");
	size_t size = 0;
	size_t room = 0;
	char *all = NULL;
	bool whole;
	for (;;) {
		small result;
		stream_read(stream.handle, 1 << 16, &result);
		if (result.failed) {
			whole = result.stream.closed || broken(failure, &result);
			break;
		}
		if (size + result.bytes.size > room) {
			/* Most answers come in one part. */
			room = size == 0 ? result.bytes.size : 2 * (size + result.bytes.size);
			char *larger = size == 0 ? (char *)result.bytes.data : ab_alloc(room);
			if (size > 0)
				memcpy(larger, all, size);
			all = larger;
		}
		if (all != result.bytes.data)
			memcpy(all + size, result.bytes.data, result.bytes.size);
		size += result.bytes.size;
	}
	input_drop(stream.handle);
	*bytes = (ab_str){all == NULL ? "" : all, size};
	return whole;
}

static bool read_response(handle incoming, ab_response *response, ab_failure *failure)
{
	response->status = (uint16_t)response_status(incoming);
	handle fields = response_headers(incoming);
	ab_str headers;
	fields_entries(fields, &headers);
	fields_drop(fields);
	response->headers = (const ab_header *)(const void *)headers.data;
	response->header_count = headers.size;
	small body;
	response_consume(incoming, &body);
	if (body.failed)
		return fails(failure, "the answer has no body");
	bool whole = read_body(body.handle, &response->body, failure);
	incoming_drop(body.handle);
	return whole;
}

/* Waits for what the server says. */
static bool answered(handle future, arrived *answer, ab_failure *failure)
{
	handle pollable = future_subscribe(future);
	pollable_block(pollable);
	pollable_drop(pollable);
	future_get(future, answer);
	future_drop(future);
	if (!answer->is_there || answer->taken_before)
		return fails(failure, "there is no answer");
	return !answer->outcome.failed || coded(failure, &answer->outcome.code);
}

bool ab_http(const ab_request *request, ab_response *response, ab_failure *failure)
{
	*response = (ab_response){0};
	handle outgoing = begun(request, failure);
	if (outgoing == 0)
		return false;
	small body;
	request_body(outgoing, &body);
	if (body.failed) {
		request_drop(outgoing);
		return fails(failure, "the request has no body");
	}
	handle options = 0;
	if (request->timeout_ms > 0) {
		options = options_new();
		options_timeout(options, 1, (uint64_t)request->timeout_ms * 1000000);
	}
	outcome sent;
	http_handle(outgoing, options != 0, options, &sent);
	if (sent.failed) {
		body_drop(body.handle);
		return coded(failure, &sent.code);
	}
	/* Who refuses it stops reading, and says why in the answer. */
	ab_failure unwritten;
	bool written = write_body(body.handle, request->body, &unwritten);
	arrived answer;
	if (!answered(sent.handle, &answer, failure))
		return false;
	bool read = read_response(answer.outcome.handle, response, failure);
	response_drop(answer.outcome.handle);
	if (read && !written && failure != NULL)
		*failure = unwritten;
	return read && written;
}

#endif
