/*
 * The border of a component, by the canonical ABI: what wit/v1 exports and imports as a core module has it. `plugin
 * build` adds the description of the interface and checks every signature against it. Compiled for WebAssembly only.
 */
#ifdef __wasm__

#include <stdlib.h>

#include "internal.h"

#define EXPORT(name) __attribute__((export_name(name)))
#define IMPORT(module, name) __attribute__((import_module(module), import_name(name)))

IMPORT("anabranch:plugin/log@1.0.0", "log")
extern void host_log(int32_t level, const char *text, size_t size);
/* Gives 0, or 1 and a text that the host has put into memory of `cabi_realloc`. */
IMPORT("anabranch:plugin/config@1.0.0", "get")
extern void host_config(const char *key, size_t size, void *result);

/* What comes before a call are its parameters, two at the most, kept for the next; what comes within one is what the host
   answers. */
static ab_buffer parameters[2];
static size_t given;
static bool within;

EXPORT("cabi_realloc")
void *ab_cabi_realloc(void *old, size_t old_size, size_t alignment, size_t size)
{
	(void)old_size;
	(void)alignment;
	/* Nothing of this interface is a list that grows. */
	if (old != NULL)
		abort();
	if (within)
		return ab_alloc(size);
	if (given == sizeof parameters / sizeof *parameters)
		abort();
	ab_buffer *own = &parameters[given++];
	ab_buffer_reset(own);
	ab_buffer_room(own, size + 1);
	return own->data;
}

void ab_host_log(ab_level level, ab_str message)
{
	host_log((int32_t)level, message.data, message.size);
}

bool ab_host_config(ab_str key, ab_str *value)
{
	struct {
		uint8_t is_there;
		ab_str text;
	} result;
	host_config(key.data, key.size, &result);
	if (result.is_there)
		*value = result.text;
	return result.is_there != 0;
}

EXPORT("anabranch:plugin/describe@1.0.0#describe")
void *ab_export_describe(void)
{
	static ab_str result;
	result = ab_describe(&ab_the_plugin);
	return &result;
}

/* result<list<u8>, failure>, result<bool, failure>, and result<_, failure> */
static struct {
	uint8_t failed;
	union {
		ab_str reply;
		uint8_t is_seen;
		struct {
			uint8_t failure_class;
			ab_str code;
			ab_str message;
		} failure;
	};
} result;

static void *answered(bool done, ab_str reply, const ab_failure *failure)
{
	within = false;
	given = 0;
	result.failed = !done;
	if (done) {
		result.reply = reply;
	} else {
		result.failure.failure_class = (uint8_t)failure->failure_class;
		result.failure.code = failure->code;
		result.failure.message = failure->message;
	}
	return &result;
}

/* AB_PLUGIN, AB_SINK and the like export these under their names, so that a component has what it is, and no more. */

void *ab_component_transform(const uint8_t *batch, size_t size)
{
	ab_failure failure = {0};
	ab_str reply = {0};
	within = true;
	bool done = ab_run(&ab_the_plugin, batch, size, &reply, &failure);
	return answered(done, reply, &failure);
}

void *ab_component_open(const char *settings, size_t size)
{
	ab_failure failure = {0};
	within = true;
	bool done = ab_run_open(&ab_the_plugin, (ab_str){settings, size}, &failure);
	return answered(done, (ab_str){0}, &failure);
}

void *ab_component_deliver(const uint8_t *batch, size_t size)
{
	ab_failure failure = {0};
	ab_str reply = {0};
	within = true;
	bool done = ab_run_deliver(&ab_the_plugin, batch, size, &reply, &failure);
	return answered(done, reply, &failure);
}

void *ab_component_purge(const char *destination, size_t size)
{
	ab_failure failure = {0};
	within = true;
	bool done = ab_run_purge(&ab_the_plugin, (ab_str){destination, size}, &failure);
	return answered(done, (ab_str){0}, &failure);
}

void *ab_component_begin(const char *destination, size_t size, const char *place, size_t place_size)
{
	ab_failure failure = {0};
	bool is_seen;
	within = true;
	bool done = ab_run_begin(&ab_the_plugin, (ab_str){destination, size}, (ab_str){place, place_size}, &is_seen, &failure);
	void *answer = answered(done, (ab_str){0}, &failure);
	if (done)
		result.is_seen = is_seen;
	return answer;
}

void *ab_component_switch(const char *destination, size_t size, const char *place, size_t place_size)
{
	ab_failure failure = {0};
	within = true;
	bool done = ab_run_switch(&ab_the_plugin, (ab_str){destination, size}, (ab_str){place, place_size}, &failure);
	return answered(done, (ab_str){0}, &failure);
}

void *ab_component_abandon(const char *destination, size_t size, const char *place, size_t place_size)
{
	ab_failure failure = {0};
	within = true;
	bool done = ab_run_abandon(&ab_the_plugin, (ab_str){destination, size}, (ab_str){place, place_size}, &failure);
	return answered(done, (ab_str){0}, &failure);
}

#endif
