/*
 * Write transforms for Anabranch in C (C11); for sinks, see anabranch_sink.h.
 *
 * A plugin declares itself with AB_PLUGIN and answers one change of a row at a time; `anabranch plugin build` makes a
 * component of it, and anabranch_testing.h runs it natively. Everything that a transform is given, and what it gets from
 * `ab_alloc`, `ab_config` and the capabilities, lives until it returns: nothing is freed by hand.
 *
 * Mistakes are sticky, as in stdio: a getter that finds no value of its type, and a document that is no JSON, make the
 * change fail whatever the transform returns, so that nothing has to be checked in between.
 */
#ifndef ANABRANCH_H
#define ANABRANCH_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define AB_SDK_VERSION "0.1.0"

/* `anabranch plugin build` says them: they are those of plugin.toml. */
#ifndef AB_PLUGIN_NAME
#define AB_PLUGIN_NAME "unnamed"
#endif
#ifndef AB_PLUGIN_VERSION
#define AB_PLUGIN_VERSION "0.0.0"
#endif

#if defined(__GNUC__)
#define AB_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define AB_PRINTF(text, first)
#endif

/* ---- texts ---- */

/* UTF-8 of a length; not terminated. `data` is NULL where there is none. */
typedef struct ab_str {
	const char *data;
	size_t size;
} ab_str;

/* The text of a string literal. */
#define AB_STR(literal) ((ab_str){"" literal, sizeof(literal) - 1})

/* The text of a terminated string. */
ab_str ab_str_of(const char *terminated);
/* Whether a text is that of a terminated string. */
bool ab_str_is(ab_str text, const char *terminated);

/* ---- values ---- */

typedef enum ab_type {
	AB_ABSENT,  /* the column was not sent */
	AB_NULL,
	AB_BOOL,
	AB_INTEGER, /* int2, int4, int8: exact */
	AB_FLOAT,   /* the others, NaN and the infinities, are AB_TEXT */
	AB_TEXT,    /* text, numeric, dates, times, everything that Postgres writes as text */
	AB_BYTES,   /* bytea */
	AB_JSON,    /* json, jsonb: their text as it is */
	AB_ARRAY,   /* see ab_items */
	AB_MAP,     /* hstore; see ab_items */
} ab_type;

/* A value of a column. `text` is also that of AB_BYTES and AB_JSON. */
typedef struct ab_value {
	ab_type type;
	uint32_t count; /* of an array's items, or of a map's entries */
	union {
		bool boolean;
		int64_t integer;
		double real;
		ab_str text; /* of arrays and maps: their items as they were sent */
	};
} ab_value;

/* The items of an array or the entries of a map, one after the other. */
typedef struct ab_items {
	const uint8_t *at;
	const uint8_t *end;
	uint32_t left;
} ab_items;

/* Begins. A value that is no array and no map has no items. */
ab_items ab_items_of(const ab_value *value);
/* The next item of an array; false after the last. */
bool ab_next(ab_items *items, ab_value *item);
/* The next entry of a map; false after the last. */
bool ab_next_entry(ab_items *entries, ab_str *key, ab_value *value);

/* ---- changes ---- */

typedef enum ab_operation { AB_INSERT, AB_UPDATE, AB_DELETE, AB_READ /* a row of a backfill */ } ab_operation;

/* What can be done about a failure. */
typedef enum ab_class {
	AB_RETRY,  /* it may work later: the host tries again */
	AB_POISON, /* this change can never work; others can */
	AB_FATAL,  /* nothing can work as things are configured or written */
} ab_class;

/* Why something could not be done. Its texts live as long as what the call that gave it gives. */
typedef struct ab_failure {
	ab_class failure_class;
	ab_str code;    /* a short stable word */
	ab_str message; /* for people */
} ab_failure;

/* What becomes of a change. */
typedef enum ab_outcome {
	AB_EMIT,   /* the documents that were begun with `ab_document` */
	AB_NONE,   /* this row has no document: the destination's is deleted */
	AB_SKIP,   /* leave what is there */
	AB_FAILED, /* what `ab_fail` returns */
} ab_outcome;

/* One change of a row. */
typedef struct ab_change {
	ab_operation operation;
	bool backfill;         /* it comes from a backfill, not from the stream */
	ab_str id;             /* the document id; `data` is NULL where the table has no key */
	const ab_value *row;   /* the new row; of a delete, the old one */
	const ab_value *old;   /* the old row as far as the server sent it, else NULL */
	size_t columns;        /* values in a row */
	uint64_t lsn;          /* the commit's position */
	int64_t commit_time_us; /* microseconds since 1970-01-01 UTC */
	uint64_t sequence;     /* position in the transaction or chunk, from 0 */
	struct ab_batch *batch; /* the SDK's */
} ab_change;

/* The position of a column by its name; a column that was not asked for makes the change fail, and is position 0. */
size_t ab_column(ab_change *change, const char *name);

/* A value as it is; never NULL: a position outside of the row is a value that was not sent. */
const ab_value *ab_get(const ab_change *change, size_t column);
/* The same of the old row. */
const ab_value *ab_get_old(const ab_change *change, size_t column);
/* Whether a value is NULL or was not sent. */
bool ab_is_null(const ab_change *change, size_t column);

/* Values of a type. Where there is none, the change fails and they are 0, false or empty. */
bool ab_bool(ab_change *change, size_t column);
int64_t ab_integer(ab_change *change, size_t column);
double ab_float(ab_change *change, size_t column);
/* Also of numeric, dates and times. */
ab_str ab_text(ab_change *change, size_t column);
/* The same where NULL, and what was not sent, are another text. */
ab_str ab_text_or(ab_change *change, size_t column, ab_str otherwise);
ab_str ab_bytes(ab_change *change, size_t column);
/* The text of a json column. */
ab_str ab_json_text(ab_change *change, size_t column);

/* Says why a change cannot be processed; `return ab_fail(…)`. The code is a short stable word for programs, the
   message for people: what is wrong and what to do, never a secret. The first failure of a change stays. */
ab_outcome ab_fail(ab_change *change, ab_class failure_class, const char *code, const char *message);
ab_outcome ab_failf(ab_change *change, ab_class failure_class, const char *code, const char *format, ...)
	AB_PRINTF(4, 5);
/* The same with a failure that a capability gave. */
ab_outcome ab_fail_as(ab_change *change, const ab_failure *failure);
/* Whether the change has failed already. */
bool ab_has_failed(const ab_change *change);

/* The same of a whole batch, or of what a sink does: `return ab_failed(failure, …);`. Always false. */
bool ab_failed(ab_failure *failure, ab_class failure_class, const char *code, const char *message);
bool ab_failedf(ab_failure *failure, ab_class failure_class, const char *code, const char *format, ...) AB_PRINTF(4, 5);

/* The changes of a batch, before the first of them is answered: see `.prepare` of a plugin. */
typedef struct ab_changes ab_changes;
/* The next one whose row was sent; NULL after the last. It lasts until the next one comes, its texts until the batch is
   answered. A getter that finds no value of its type gives 0, false or an empty text: the change fails when its turn comes. */
ab_change *ab_next_change(ab_changes *changes);

/* ---- documents ---- */

/* Writes one document as JSON. */
typedef struct ab_json ab_json;

/* Begins a document under the change's own id, in the mapping's destination. */
ab_json *ab_document(ab_change *change);
/* Begins a document under an id (the plugin says `.names_ids`) or in a destination of its own; NULL for the usual. */
ab_json *ab_document_as(ab_change *change, const ab_str *id, const ab_str *destination);

void ab_object(ab_json *out);                /* begins an object */
void ab_array(ab_json *out);                 /* begins an array */
void ab_end(ab_json *out);                   /* ends the innermost of them */
void ab_key(ab_json *out, const char *key);  /* in an object, before each value */
void ab_key_str(ab_json *out, ab_str key);

void ab_put_null(ab_json *out);
void ab_put_bool(ab_json *out, bool value);
void ab_put_integer(ab_json *out, int64_t value);
void ab_put_float(ab_json *out, double value);      /* null for NaN and the infinities */
void ab_put_text(ab_json *out, ab_str text);        /* null where `data` is NULL */
void ab_put_cstr(ab_json *out, const char *text);   /* null for NULL */
void ab_put_bytes(ab_json *out, ab_str bytes);      /* base64 */
void ab_put_json(ab_json *out, ab_str json);        /* a JSON text, byte for byte */
/* A numeric column (a text) as a number with all its digits; null for `NaN` and the infinities. */
void ab_put_number(ab_json *out, ab_str digits);
/* Any value: null for NULL and what was not sent, arrays and maps with all that is in them. */
void ab_put(ab_json *out, const ab_value *value);

/* ---- the host ---- */

typedef enum ab_level { AB_ERROR, AB_WARN, AB_INFO, AB_DEBUG, AB_TRACE } ab_level;

/* Writes a line to the host's log, which limits their rate and length. */
void ab_log(ab_level level, const char *message);
void ab_logf(ab_level level, const char *format, ...) AB_PRINTF(2, 3);
/* The text under a key of `[plugins.<name>] config`, where it has one. */
bool ab_config(const char *key, ab_str *value);

/* Memory until the transform returns. Never NULL: an instance that has no more ends. */
void *ab_alloc(size_t size);
/* A formatted text in such memory. */
ab_str ab_format(const char *format, ...) AB_PRINTF(1, 2);

/* ---- capabilities ----
 *
 * A plugin asks for those that it calls, and gets those that `[plugins.<name>.grants]` of the config gives; requests over
 * HTTP are in anabranch_http.h. Each gives whether it worked; if not, `failure` (which may be NULL) says why. What a capability
 * gives lives until the transform returns.
 */

/* Questions to the source (`query = true`): one SELECT, VALUES or WITH … SELECT, whose names have their schema. */
typedef struct ab_statement {
	ab_str sql;
	/* `sets` times `width` texts, set after set, for $1, $2, …; `data` is NULL for NULL. */
	const ab_str *parameters;
	size_t width;
	size_t sets; /* times that it runs: 1 also for a statement without parameters */
} ab_statement;

/* Answers, one for each set of each statement. */
typedef struct ab_answers {
	const uint8_t *at;
	const uint8_t *end;
	uint32_t sets; /* that are left */
} ab_answers;

/* The rows of one set of parameters. */
typedef struct ab_rows {
	size_t columns;
	const ab_str *names;
	uint32_t left;
	ab_items items;
	ab_value *row; /* as many values as columns; those of the next row take their place */
} ab_rows;

/* Asks all of them in one snapshot, which sees the changes of the batch: better once for many rows than once a row. */
bool ab_query(const ab_statement *statements, size_t count, ab_answers *answers, ab_failure *failure);
/* The next answer; false after the last. */
bool ab_next_set(ab_answers *answers, ab_rows *rows);
/* The next row; false after the last. */
bool ab_next_row(ab_rows *rows);
/* Values of the present row; as with a change, one that is of another type makes the change fail, and is 0, false or empty.
   A sink has no change that could: it looks at `ab_row_value(…)->type` where it is not sure. */
bool ab_row_bool(const ab_rows *rows, size_t at);
int64_t ab_row_integer(const ab_rows *rows, size_t at);
double ab_row_float(const ab_rows *rows, size_t at);
ab_str ab_row_text(const ab_rows *rows, size_t at);
ab_str ab_row_text_or(const ab_rows *rows, size_t at, ab_str otherwise);
bool ab_row_is_null(const ab_rows *rows, size_t at);
/* One as it is; never NULL. */
const ab_value *ab_row_value(const ab_rows *rows, size_t at);
/* Asks one statement with one set of parameters: `ab_select("select …", AB_PARAMETERS(a, b), &rows, &failure)`. */
bool ab_select(const char *sql, const ab_str *parameters, size_t width, ab_rows *rows, ab_failure *failure);
#define AB_PARAMETERS(...) (const ab_str[]){__VA_ARGS__}, sizeof((const ab_str[]){__VA_ARGS__}) / sizeof(ab_str)
#define AB_NO_PARAMETERS NULL, 0

/* A small store of the mapping's generation (`state = true`). What a call writes is durable before its documents are
   delivered; a batch that is sent again may meet its own earlier writes. `data` is NULL where there is no value. */
bool ab_state_get(ab_str key, ab_str *value, ab_failure *failure);
/* The same for many keys at once. */
bool ab_state_get_many(const ab_str *keys, size_t count, ab_str *values, ab_failure *failure);
bool ab_state_set(ab_str key, ab_str value, ab_failure *failure);
/* Whether it is there or not. */
bool ab_state_delete(ab_str key, ab_failure *failure);
/* The keys that begin with a prefix, after a key (NULL for the first), in the order of their bytes; so many at most. */
bool ab_state_keys(ab_str prefix, const ab_str *after, uint32_t limit, const ab_str **keys, size_t *count,
		   ab_failure *failure);

/* Numbers at the host's /metrics (`metrics = true`): anabranch_guest_<name>_total, and anabranch_guest_<name>. */
typedef struct ab_label {
	ab_str name;
	ab_str value;
} ab_label;

#define AB_LABELS(...) (const ab_label[]){__VA_ARGS__}, sizeof((const ab_label[]){__VA_ARGS__}) / sizeof(ab_label)
#define AB_NO_LABELS NULL, 0

/* Adds to a counter: `ab_count("rows_skipped", AB_LABELS({AB_STR("reason"), AB_STR("no price")}), 1, NULL)`. */
bool ab_count(const char *name, const ab_label *labels, size_t count, uint64_t by, ab_failure *failure);
/* Sets a gauge. */
bool ab_gauge(const char *name, const ab_label *labels, size_t count, double value, ab_failure *failure);

/* ---- the plugin ---- */

typedef ab_outcome ab_transform(ab_change *change);
typedef bool ab_prepare(ab_changes *changes, ab_failure *failure);
/* Of sinks: see anabranch_sink.h. */
struct ab_delivery;
typedef bool ab_sink_open(ab_str settings, ab_failure *failure);
typedef bool ab_sink_deliver(struct ab_delivery *delivery, ab_failure *failure);
typedef bool ab_sink_purge(ab_str destination, ab_failure *failure);
typedef bool ab_sink_begin(ab_str destination, ab_str place, bool *is_seen, ab_failure *failure);
typedef bool ab_sink_place(ab_str destination, ab_str place, ab_failure *failure);

/* What a plugin was declared as: the component exports what belongs to it. */
typedef enum ab_kind { AB_A_TRANSFORM, AB_A_SINK, AB_A_PURGING_SINK, AB_A_SWITCHING_SINK } ab_kind;

/* What a plugin says of itself: wit/v1/describe.md. Lists end with NULL: see AB_LIST. */
typedef struct ab_plugin {
	const char *name;
	const char *version;
	const char *const *tables;     /* those it is meant for */
	const char *const *columns;    /* what it reads, in the order in which it is sent; NULL: all */
	const char *destination;
	bool wants_deletes;
	bool names_ids;
	const char *const *depends_on; /* other tables that its documents depend on */
	ab_transform *transform;
	/* Called before the first change of each batch is answered, to ask the source or a service once for all of them; where it
	   returns false, the whole batch has failed. What it takes by `ab_alloc` and the like, and what capabilities give it,
	   lives until the last change is answered: keep it in static variables. */
	ab_prepare *prepare;
	/* Of sinks. */
	const char *const *settings; /* the names that `config` may have */
	ab_sink_open *open;
	ab_sink_deliver *deliver;
	ab_sink_purge *purge;
	ab_sink_begin *begin;
	ab_sink_place *switch_to;
	ab_sink_place *abandon;
	ab_kind kind; /* the declaration's */
} ab_plugin;

#define AB_LIST(...) ((const char *const[]){__VA_ARGS__, NULL})

extern const ab_plugin ab_the_plugin;

#define AB_DECLARED(as, ...) \
	const ab_plugin ab_the_plugin = {.name = AB_PLUGIN_NAME, .version = AB_PLUGIN_VERSION, .kind = as, __VA_ARGS__}

/* A component exports what its kind of plugin has; natively nothing is exported. */
#ifdef __wasm__
#define AB_EXPORTED(interface, function) \
	__attribute__((export_name("anabranch:plugin/" interface "@1.0.0#" function))) void *
#define AB_TRANSFORM_EXPORTS                                                     \
	AB_EXPORTED("transform", "transform") ab_exported_transform(const uint8_t *batch, size_t size) \
	{                                                                        \
		return ab_component_transform(batch, size);                      \
	}
void *ab_component_transform(const uint8_t *batch, size_t size);
#else
#define AB_TRANSFORM_EXPORTS
#endif

/* Declares the plugin, once in a program: `AB_PLUGIN(.tables = AB_LIST("public.products"), .transform = transform);` */
#define AB_PLUGIN(...)       \
	AB_TRANSFORM_EXPORTS \
	AB_DECLARED(AB_A_TRANSFORM, __VA_ARGS__)

/* ---- what a component and tests call ---- */

/* The JSON that `describe` returns; kept for ever. */
ab_str ab_describe(const ab_plugin *plugin);
/* A request to its reply, both as wit/v1/payload-msgpack.md has them. The reply lives until the next call. */
bool ab_run(const ab_plugin *plugin, const uint8_t *request, size_t size, ab_str *reply, ab_failure *failure);

#endif
