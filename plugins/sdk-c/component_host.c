/*
 * The host's capabilities by the canonical ABI: query, state, metrics. What is not called is not linked, and a component
 * asks for what is linked. Compiled for WebAssembly only.
 */
#ifdef __wasm__

#include "internal.h"

#define IMPORT(module, name) __attribute__((import_module(module), import_name(name)))
#define QUERY "anabranch:plugin/query@1.0.0"
#define STATE "anabranch:plugin/state@1.0.0"
#define METRICS "anabranch:plugin/metrics@1.0.0"

/* A list of anything. */
typedef struct list {
	const void *items;
	size_t size;
} list;

/* result<list, failure> and result<_, failure>. */
typedef struct answer {
	uint8_t failed;
	union {
		list list;
		struct {
			uint8_t failure_class;
			ab_str code;
			ab_str message;
		} failure;
	};
} answer;

/* option<string>, option<list<u8>> */
typedef struct optional {
	uint8_t is_there;
	ab_str text;
} optional;

IMPORT(QUERY, "query") extern void host_query(const void *statements, size_t size, answer *result);
IMPORT(STATE, "get") extern void host_get(const ab_str *keys, size_t size, answer *result);
IMPORT(STATE, "set")
extern void host_set(const char *key, size_t size, const char *value, size_t value_size, answer *result);
IMPORT(STATE, "delete") extern void host_delete(const char *key, size_t size, answer *result);
IMPORT(STATE, "keys")
extern void host_keys(const char *prefix, size_t size, int32_t is_after, const char *after, size_t after_size,
		      uint32_t limit, answer *result);
IMPORT(METRICS, "count")
extern void host_count(const char *name, size_t size, const void *labels, size_t count, uint64_t by, answer *result);
IMPORT(METRICS, "gauge")
extern void host_gauge(const char *name, size_t size, const void *labels, size_t count, double value, answer *result);

static bool done(const answer *answer, ab_failure *failure)
{
	if (answer->failed && failure != NULL)
		*failure = (ab_failure){(ab_class)answer->failure.failure_class, answer->failure.code,
					answer->failure.message};
	return !answer->failed;
}

bool ab_host_query(const ab_statement *statements, size_t count, ab_answers *answers, ab_failure *failure)
{
	/* record statement, whose sets are lists of option<string>. */
	struct {
		ab_str sql;
		list sets;
	} *all = ab_alloc(count * sizeof *all);
	for (size_t at = 0; at < count; at++) {
		const ab_statement *statement = &statements[at];
		list *sets = ab_alloc(statement->sets * sizeof *sets);
		optional *texts = ab_alloc(statement->sets * statement->width * sizeof *texts);
		for (size_t set = 0; set < statement->sets; set++) {
			sets[set] = (list){texts + set * statement->width, statement->width};
			for (size_t place = 0; place < statement->width; place++) {
				ab_str text = statement->parameters[set * statement->width + place];
				texts[set * statement->width + place] = (optional){text.data != NULL, text};
			}
		}
		all[at].sql = statement->sql;
		all[at].sets = (list){sets, statement->sets};
	}
	answer result;
	*answers = (ab_answers){0};
	host_query(all, count, &result);
	return done(&result, failure) && ab_answers_of((ab_str){result.list.items, result.list.size}, answers, failure);
}

bool ab_host_state_get(const ab_str *keys, size_t count, ab_str *values, ab_failure *failure)
{
	answer result;
	host_get(keys, count, &result);
	if (!done(&result, failure))
		return false;
	const optional *found = result.list.items;
	for (size_t at = 0; at < count; at++) {
		bool is_there = at < result.list.size && found[at].is_there;
		/* An empty value is one. */
		values[at] = !is_there ? (ab_str){0} : found[at].text.size == 0 ? AB_STR("") : found[at].text;
	}
	return true;
}

bool ab_host_state_set(ab_str key, ab_str value, ab_failure *failure)
{
	answer result;
	host_set(key.data, key.size, value.data, value.size, &result);
	return done(&result, failure);
}

bool ab_host_state_delete(ab_str key, ab_failure *failure)
{
	answer result;
	host_delete(key.data, key.size, &result);
	return done(&result, failure);
}

bool ab_host_state_keys(ab_str prefix, const ab_str *after, uint32_t limit, const ab_str **keys, size_t *count,
			ab_failure *failure)
{
	answer result;
	ab_str from = after == NULL ? (ab_str){0} : *after;
	*keys = NULL;
	*count = 0;
	host_keys(prefix.data, prefix.size, after != NULL, from.data, from.size, limit, &result);
	if (!done(&result, failure))
		return false;
	*keys = result.list.items;
	*count = result.list.size;
	return true;
}

bool ab_host_count(const char *name, const ab_label *labels, size_t count, uint64_t by, ab_failure *failure)
{
	answer result;
	host_count(name, ab_str_of(name).size, labels, count, by, &result);
	return done(&result, failure);
}

bool ab_host_gauge(const char *name, const ab_label *labels, size_t count, double value, ab_failure *failure)
{
	answer result;
	host_gauge(name, ab_str_of(name).size, labels, count, value, &result);
	return done(&result, failure);
}

#endif
