/*
 * Write sinks for Anabranch in C: where documents go. How a sink has to behave is in docs/plugins/sinks.md.
 *
 *     static bool deliver(ab_delivery *delivery, ab_failure *failure)
 *     {
 *             for (size_t at = 0; at < delivery->count; at++)
 *                     if (kept(&delivery->document[at]))
 *                             ab_accept(delivery, at);
 *                     else
 *                             ab_refuse(delivery, at, AB_POISON, "too-long", "there is no room for it");
 *             return true;
 *     }
 *
 *     AB_SINK(.settings = AB_LIST("url"), .open = open_sink, .deliver = deliver);
 *
 * What the functions are given, and what they take by `ab_alloc` and the like, lives until they return. What a sink keeps
 * for longer belongs into `malloc` or a static variable, which each instance has for itself.
 */
#ifndef ANABRANCH_SINK_H
#define ANABRANCH_SINK_H

#include "anabranch.h"

/* A document, or the end of one. */
typedef struct ab_document_in {
	ab_str destination;
	ab_str id;
	ab_str body; /* its JSON text, to be put under the id; `data` is NULL: the id is to be removed */
	uint64_t lsn; /* the commit's position; 0 where a backfill read the row */
	int64_t commit_time_us; /* microseconds since 1970-01-01 UTC */
} ab_document_in;

/* Documents of one mapping, in commit order. Several may have the same id: the last one wins. */
typedef struct ab_delivery {
	ab_str entity; /* the table whose rows made them: `schema.table` */
	bool backfill;
	int64_t generation; /* counts the rebuilds of the mapping */
	/* The place that all of it is for, where an AB_SWITCHING_SINK builds their destination, which is one then; `data` is NULL
	   where they are for what readers see. */
	ab_str place;
	const ab_document_in *document;
	size_t count;
	struct ab_result *results; /* the SDK's */
} ab_delivery;

/* The document, from 0, is durable. */
void ab_accept(ab_delivery *delivery, size_t document);
/* All those that have no result yet are. */
void ab_accept_rest(ab_delivery *delivery);
/* Why a document is not accepted. Poison concerns it alone; retry and fatal send the whole batch again. The last result of a
   document counts; one that has none when `deliver` returns, and a result of one that is not there, are faults of the sink: nothing
   is accepted. */
void ab_refuse(ab_delivery *delivery, size_t document, ab_class failure_class, const char *code, const char *message);
void ab_refusef(ab_delivery *delivery, size_t document, ab_class failure_class, const char *code, const char *format, ...)
	AB_PRINTF(5, 6);
/* With a failure that a capability gave. */
void ab_refuse_as(ab_delivery *delivery, size_t document, const ab_failure *failure);
/* Class retry, after a pause that the other side asked for. */
void ab_refuse_for(ab_delivery *delivery, size_t document, uint32_t milliseconds, const char *code, const char *message);

/* `return ab_failed(failure, AB_FATAL, "settings", "there is no `url`");`: of `deliver`, where it means that nothing is known of
   any document, and of all other functions of a sink. */

#ifdef __wasm__
#define AB_SINK_EXPORTS                                                               \
	AB_EXPORTED("sink", "open") ab_exported_open(const char *settings, size_t size)     \
	{                                                                             \
		AB_WRONG_IF(AB_DECLARES_GENERATIONS, ab_unexported_generations)       \
		return ab_component_open(settings, size);                             \
	}                                                                             \
	AB_EXPORTED("sink", "deliver") ab_exported_deliver(const uint8_t *batch, size_t size) \
	{                                                                             \
		return ab_component_deliver(batch, size);                             \
	}
#define AB_PURGE_EXPORTS                                                                 \
	AB_EXPORTED("purge", "purge") ab_exported_purge(const char *destination, size_t size) \
	{                                                                                \
		return ab_component_purge(destination, size);                            \
	}
#define AB_GENERATIONS_EXPORTS                                                                        \
	AB_EXPORTED("generations", "begin")                                                           \
	ab_exported_begin(const char *destination, size_t size, const char *place, size_t place_size) \
	{                                                                                             \
		AB_WRONG_IF(ab_the_plugin.purge == NULL, ab_without_purge)                            \
		AB_WRONG_IF(ab_the_plugin.begin == NULL, ab_without_begin)                            \
		AB_WRONG_IF(ab_the_plugin.switch_to == NULL, ab_without_switch_to)                    \
		AB_WRONG_IF(ab_the_plugin.abandon == NULL, ab_without_abandon)                        \
		return ab_component_begin(destination, size, place, place_size);                      \
	}                                                                                             \
	AB_EXPORTED("generations", "switch")                                                          \
	ab_exported_switch(const char *destination, size_t size, const char *place, size_t place_size) \
	{                                                                                             \
		return ab_component_switch(destination, size, place, place_size);                     \
	}                                                                                             \
	AB_EXPORTED("generations", "abandon")                                                         \
	ab_exported_abandon(const char *destination, size_t size, const char *place, size_t place_size) \
	{                                                                                             \
		return ab_component_abandon(destination, size, place, place_size);                    \
	}
void *ab_component_open(const char *settings, size_t size);
void *ab_component_deliver(const uint8_t *batch, size_t size);
void *ab_component_purge(const char *destination, size_t size);
void *ab_component_begin(const char *destination, size_t size, const char *place, size_t place_size);
void *ab_component_switch(const char *destination, size_t size, const char *place, size_t place_size);
void *ab_component_abandon(const char *destination, size_t size, const char *place, size_t place_size);

/* A declaration that exports what is not there, or does not export what is, is told by the compiler, which knows it where it
   optimises, as `plugin build` has it do: no call of these is left otherwise. Elsewhere it is told when the sink is opened. */
#ifdef __has_attribute
#if defined(__OPTIMIZE__) && __has_attribute(error)
#define AB_WRONG_IF(condition, call) \
	if (condition)               \
		call();
#define AB_WRONG(call, said) void call(void) __attribute__((error(said)));
AB_WRONG(ab_without_purge, "AB_SWITCHING_SINK without `.purge`")
AB_WRONG(ab_without_begin, "AB_SWITCHING_SINK without `.begin`: all of `.begin`, `.switch_to` and `.abandon`, or AB_PURGING_SINK")
AB_WRONG(ab_without_switch_to, "AB_SWITCHING_SINK without `.switch_to`: all of `.begin`, `.switch_to` and `.abandon`, or AB_PURGING_SINK")
AB_WRONG(ab_without_abandon, "AB_SWITCHING_SINK without `.abandon`: all of `.begin`, `.switch_to` and `.abandon`, or AB_PURGING_SINK")
AB_WRONG(ab_unexported_generations, "`.begin`, `.switch_to` and `.abandon` are exported by AB_SWITCHING_SINK alone")
#endif
#endif
#ifndef AB_WRONG_IF
#define AB_WRONG_IF(condition, call)
#endif
#define AB_DECLARES_GENERATIONS                     \
	(ab_the_plugin.kind != AB_A_SWITCHING_SINK && \
	 (ab_the_plugin.begin != NULL || ab_the_plugin.switch_to != NULL || ab_the_plugin.abandon != NULL))
#else
#define AB_SINK_EXPORTS
#define AB_PURGE_EXPORTS
#define AB_GENERATIONS_EXPORTS
#endif

/* Declares a sink, once in a program. `.open` is called once on each instance, before anything else, with the settings as one
   JSON object; `ab_config` gives each as a text. Names that `.settings` does not have are refused before. */
#define AB_SINK(...)    \
	AB_SINK_EXPORTS \
	AB_DECLARED(AB_A_SINK, __VA_ARGS__)
/* One that can empty a destination too, by `.purge`. */
#define AB_PURGING_SINK(...) \
	AB_SINK_EXPORTS      \
	AB_PURGE_EXPORTS     \
	AB_DECLARED(AB_A_PURGING_SINK, __VA_ARGS__)
/* One that can do that, and build a destination beside what its readers see, by `.begin`, `.switch_to` and `.abandon`. The host
   begins a place for each rebuild, fills it (`delivery->place` says what is for it), and switches once it is whole. Each may be
   called again with the same words, on another instance, too, and comes to the same.

   `.begin` makes an empty place; one of that name that is there is emptied. `*is_seen` is true unless it says that readers see
   nothing under the destination now: then the host switches at once. `.switch_to` shows the place to the readers, in one step,
   and removes all others of the destination; a place that is not there any more is a failure of class fatal. `.abandon` removes
   a place that is of no use any more; one that readers see stays, and one that is not there is removed already. */
#define AB_SWITCHING_SINK(...) \
	AB_SINK_EXPORTS        \
	AB_PURGE_EXPORTS       \
	AB_GENERATIONS_EXPORTS \
	AB_DECLARED(AB_A_SWITCHING_SINK, __VA_ARGS__)

/* ---- what a component and tests call ---- */

bool ab_run_open(const ab_plugin *plugin, ab_str settings, ab_failure *failure);
/* A request to its reply, both as wit/v1/payload-msgpack.md has them. The reply lives until the next call. */
bool ab_run_deliver(const ab_plugin *plugin, const uint8_t *request, size_t size, ab_str *reply, ab_failure *failure);
bool ab_run_purge(const ab_plugin *plugin, ab_str destination, ab_failure *failure);
bool ab_run_begin(const ab_plugin *plugin, ab_str destination, ab_str place, bool *is_seen, ab_failure *failure);
bool ab_run_switch(const ab_plugin *plugin, ab_str destination, ab_str place, ab_failure *failure);
bool ab_run_abandon(const ab_plugin *plugin, ab_str destination, ab_str place, ab_failure *failure);

#endif
