/*
 * Requests over HTTP, to where the config lets the plugin go (`[plugins.<name>.grants] http`): for transforms and sinks.
 *
 *     ab_response response;
 *     ab_failure failure;
 *     const ab_request request = {.method = "PUT", .url = url, .body = text};
 *     if (!ab_http(&request, &response, &failure))
 *             return ab_fail_as(change, &failure);
 */
#ifndef ANABRANCH_HTTP_H
#define ANABRANCH_HTTP_H

#include "anabranch.h"

typedef struct ab_header {
	ab_str name; /* of responses: in lower case */
	ab_str value;
} ab_header;

#define AB_HEADERS(...)                                         \
	.headers = (const ab_header[]){__VA_ARGS__}, .header_count = \
		sizeof((const ab_header[]){__VA_ARGS__}) / sizeof(ab_header)

typedef struct ab_request {
	const char *method; /* `GET` if it is NULL */
	ab_str url;         /* `https://host:port/path?query` */
	/* `AB_HEADERS({AB_STR("accept"), AB_STR("text/plain")})`. The host adds those that the config has for the origin. */
	const ab_header *headers;
	size_t header_count;
	ab_str body;
	uint32_t timeout_ms; /* until the answer begins; 0: as long as the config lets it take */
} ab_request;

/* Lives until the transform, or the sink's function, returns. */
typedef struct ab_response {
	uint16_t status;
	const ab_header *headers;
	size_t header_count;
	ab_str body;
} ab_response;

/* Sends it and waits for the whole answer; one of any status is one, and redirects are not followed. If there is none:
   `http-denied` (fatal: the message names the setting), `http-timeout` or `http-failed` (retry), or `http-request` (poison: no
   request can be made of the URL, the method or the headers). */
bool ab_http(const ab_request *request, ab_response *response, ab_failure *failure);
/* The first value of a header, by its name in lower case; `data` is NULL where there is none. */
ab_str ab_response_header(const ab_response *response, const char *name);
/* A text as one part of a URL's path, or of its query: an id may have a `/` or a `?`. */
ab_str ab_escaped(ab_str part);

#endif
