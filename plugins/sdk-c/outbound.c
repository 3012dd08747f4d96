/* Requests over HTTP, beside what the host does: where one goes, and why there is no answer. */
#include <string.h>
#include <strings.h>

#include "internal.h"

/* How many bytes from a place are none of these. */
static size_t until(ab_str text, size_t from, const char *ends)
{
	size_t at = from;
	while (at < text.size && (text.data[at] == 0 || strchr(ends, text.data[at]) == NULL))
		at += 1;
	return at - from;
}

static bool begins(ab_str text, const char *with)
{
	size_t size = strlen(with);
	return text.size >= size && strncasecmp(text.data, with, size) == 0;
}

static bool is_of_scheme(char byte)
{
	return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') || (byte >= '0' && byte <= '9') ||
	       byte == '+' || byte == '.' || byte == '-';
}

bool ab_wrong_url(ab_str url, ab_failure *failure)
{
	ab_failure_is(failure, AB_POISON, "http-request", NULL);
	if (failure == NULL)
		return false;
	size_t scheme = 0;
	while (scheme < url.size && is_of_scheme(url.data[scheme]))
		scheme += 1;
	ab_str rest = {url.data + scheme, url.size - scheme};
	ab_str where = AB_STR("a URL without scheme and host");
	if (scheme > 0 && begins(rest, "://")) {
		/* The user, the path and the query may be secrets. */
		size_t end = 3 + until(rest, 3, "/?#");
		size_t from = end;
		while (from > 3 && rest.data[from - 1] != '@')
			from -= 1;
		where = ab_lossy(ab_format("%.*s://%.*s", (int)scheme, url.data, (int)(end - from), rest.data + from));
	}
	failure->message = ab_format("no request can go to %.*s: a URL is `https://host:port/path?query`", (int)where.size,
				     where.data);
	return false;
}

bool ab_target_of(ab_str url, ab_target *target, ab_failure *failure)
{
	target->secure = begins(url, "https://");
	if (!target->secure && !begins(url, "http://"))
		return ab_wrong_url(url, failure);
	size_t from = target->secure ? 8 : 7;
	size_t size = until(url, from, "/?#");
	if (size == 0)
		return ab_wrong_url(url, failure);
	target->authority = (ab_str){url.data + from, size};
	from += size;
	target->path = (ab_str){url.data + from, until(url, from, "#")};
	if (target->path.size == 0 || target->path.data[0] != '/')
		target->path = ab_format("/%.*s", (int)target->path.size, target->path.data);
	return true;
}

bool ab_may_be_sent(const ab_request *request, ab_target *target, ab_failure *failure)
{
	if (!ab_is_utf8(request->url))
		return ab_wrong_url(request->url, failure);
	if (request->method != NULL && !ab_is_utf8(ab_str_of(request->method)))
		return ab_failure_is(failure, AB_POISON, "http-request", "the method is no word that can be sent");
	for (size_t at = 0; at < request->header_count; at++)
		if (!ab_is_utf8(request->headers[at].name))
			return ab_failure_is(failure, AB_POISON, "http-request", "a header cannot be sent");
	return ab_target_of(request->url, target, failure);
}

/* The words of an error of a stream, as the host shows it: `ErrorCode::InternalError(Some("…"))`. */
static ab_str unwrapped(ab_str text)
{
	static const char outer[] = "ErrorCode::";
	static const char inner[] = "InternalError(Some(\"";
	static const char end[] = "\"))";
	ab_str rest = text;
	if (begins(rest, outer))
		rest = (ab_str){rest.data + sizeof outer - 1, rest.size - (sizeof outer - 1)};
	if (!begins(rest, inner) || rest.size < sizeof inner - 1 + sizeof end - 1 ||
	    memcmp(rest.data + rest.size - (sizeof end - 1), end, sizeof end - 1) != 0)
		return text;
	rest = (ab_str){rest.data + sizeof inner - 1, rest.size - (sizeof inner - 1) - (sizeof end - 1)};
	char *words = ab_alloc(rest.size + 1);
	size_t size = 0;
	for (size_t at = 0; at < rest.size; at++) {
		if (rest.data[at] == '\\' && at + 1 < rest.size && strchr("\"'\\", rest.data[at + 1]) != NULL)
			at += 1;
		words[size++] = rest.data[at];
	}
	return (ab_str){words, size};
}

bool ab_http_said(ab_failure *failure, ab_str text)
{
	static const struct {
		const char *words;
		ab_class failure_class;
		const char *code;
	} kinds[] = {
		{"denied: ", AB_FATAL, "http-denied"},
		{"timeout: ", AB_RETRY, "http-timeout"},
		{"", AB_RETRY, "http-failed"},
	};
	ab_str said = unwrapped(text);
	size_t kind = 0;
	while (!begins(said, kinds[kind].words))
		kind += 1;
	ab_failure_is(failure, kinds[kind].failure_class, kinds[kind].code, NULL);
	size_t known = strlen(kinds[kind].words);
	if (failure != NULL)
		failure->message = (ab_str){said.data + known, said.size - known};
	return false;
}

ab_str ab_escaped(ab_str part)
{
	static const char digits[] = "0123456789ABCDEF";
	char *text = ab_alloc(3 * part.size + 1);
	size_t size = 0;
	for (size_t at = 0; at < part.size; at++) {
		unsigned char byte = (unsigned char)part.data[at];
		if ((is_of_scheme(part.data[at]) && byte != '+') || byte == '_' || byte == '~') {
			text[size++] = part.data[at];
			continue;
		}
		text[size++] = '%';
		text[size++] = digits[byte >> 4];
		text[size++] = digits[byte & 15];
	}
	return (ab_str){text, size};
}

ab_str ab_response_header(const ab_response *response, const char *name)
{
	for (size_t at = 0; at < response->header_count; at++)
		if (ab_str_is(response->headers[at].name, name))
			return response->headers[at].value;
	return (ab_str){0};
}
