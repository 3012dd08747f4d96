/* Puts each document under a URL of its own, and removes it from there. */
#include "anabranch_http.h"
#include "anabranch_sink.h"

/* `config` of the `[sink.…]` table: a name that `.settings` below does not have is refused before. There are several instances,
   and each is opened: be quick. */
static bool open_sink(ab_str settings, ab_failure *failure)
{
	(void)settings; /* all of them, as one JSON object */
	ab_str url;
	if (!ab_config("url", &url))
		return ab_failed(failure, AB_FATAL, "settings", "`config` of the sink has no `url`");
	return true;
}

static ab_str url_of(const ab_document_in *document)
{
	ab_str url = {0};
	ab_config("url", &url);
	ab_str destination = ab_escaped(document->destination), id = ab_escaped(document->id);
	return ab_format("%.*s/%.*s/%.*s", (int)url.size, url.data, (int)destination.size, destination.data, (int)id.size,
			 id.data);
}

/* Every document has a result when it returns true. */
static bool deliver(ab_delivery *delivery, ab_failure *failure)
{
	for (size_t at = 0; at < delivery->count; at++) {
		const ab_document_in *document = &delivery->document[at];
		if (ab_str_is(document->id, ".") || ab_str_is(document->id, "..")) {
			/* At the end of a URL these are the folder. */
			ab_refuse(delivery, at, AB_POISON, "id", "an id of dots is no part of a URL");
			continue;
		}
		bool gone = document->body.data == NULL; /* the id is to be removed */
		const ab_header json = {AB_STR("content-type"), AB_STR("application/json")};
		const ab_request request = {
			.method = gone ? "DELETE" : "PUT",
			.url = url_of(document),
			.headers = &json,
			.header_count = gone ? 0 : 1,
			.body = document->body,
		};
		ab_response response;
		if (!ab_http(&request, &response, failure))
			return false; /* nothing is known of any document: all come again */
		if (response.status / 100 == 2 || (gone && response.status == 404))
			ab_accept(delivery, at); /* it is durable */
		else if (response.status == 400 || response.status == 422)
			/* This document can never work; the others can. */
			ab_refuse(delivery, at, AB_POISON, "refused", "the service refused the document");
		else
			/* Nothing goes on behind it: the whole batch comes again. */
			return ab_failedf(failure, AB_RETRY, "busy", "the service answered %d", response.status);
	}
	return true;
}

AB_SINK(.settings = AB_LIST("url"), .open = open_sink, .deliver = deliver);
