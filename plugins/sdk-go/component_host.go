//go:build wasip1

package anabranch

import (
	"encoding/binary"
	"runtime"
	"strings"
	"unsafe"
)

// The host's capabilities, by the canonical ABI. What the program does not call is not linked, and a component asks for
// what is linked.

//go:wasmimport anabranch:plugin/query@1.0.0 query
func importQuery(statements unsafe.Pointer, size uint32, result unsafe.Pointer)

//go:wasmimport anabranch:plugin/state@1.0.0 get
func importStateGet(keys unsafe.Pointer, size uint32, result unsafe.Pointer)

//go:wasmimport anabranch:plugin/state@1.0.0 set
func importStateSet(key unsafe.Pointer, size uint32, value unsafe.Pointer, valueSize uint32, result unsafe.Pointer)

//go:wasmimport anabranch:plugin/state@1.0.0 delete
func importStateDelete(key unsafe.Pointer, size uint32, result unsafe.Pointer)

//go:wasmimport anabranch:plugin/state@1.0.0 keys
func importStateKeys(prefix unsafe.Pointer, size uint32, isAfter uint32, after unsafe.Pointer, afterSize uint32, limit uint32, result unsafe.Pointer)

//go:wasmimport anabranch:plugin/metrics@1.0.0 count
func importCount(name unsafe.Pointer, size uint32, labels unsafe.Pointer, labelsSize uint32, by uint64, result unsafe.Pointer)

//go:wasmimport anabranch:plugin/metrics@1.0.0 gauge
func importGauge(name unsafe.Pointer, size uint32, labels unsafe.Pointer, labelsSize uint32, value float64, result unsafe.Pointer)

// hostAnswer is a result of a list, or of nothing, or a failure: [0] says which.
type hostAnswer [6]uint32

func (a *hostAnswer) list() text { return text{a[1], a[2]} }

func (a *hostAnswer) failure() *Failure {
	if a[0]&0xff == 0 {
		return nil
	}
	class := [...]Class{ClassRetry, ClassPoison, ClassFatal}[min(a[1]&0xff, 2)]
	code, message := text{a[2], a[3]}, text{a[4], a[5]}
	return &Failure{Class: class, Code: string(code.take()), Message: string(message.take())}
}

// optional is an option<string>.
type optional struct {
	there uint32
	text  text
}

// list is one of anything.
type list struct{ data, size uint32 }

func listOf[T any](items []T) list {
	if never {
		asPointer = unsafe.Pointer(unsafe.SliceData(items))
	}
	return list{uint32(uintptr(unsafe.Pointer(unsafe.SliceData(items)))), uint32(len(items))}
}

// record is a pair of texts, as labels and headers are.
type record struct{ name, value text }

func hostQuery(questions []question) ([]byte, *Failure) {
	type statement struct {
		sql  text
		sets list
	}
	statements := make([]statement, len(questions))
	// The addresses in these do not keep what they are of.
	var kept []any
	for at, asked := range questions {
		sets := make([]list, len(asked.sets))
		for set, parameters := range asked.sets {
			texts := make([]optional, len(parameters))
			for place, parameter := range parameters {
				if parameter != nil {
					texts[place] = optional{1, textOfString(*parameter)}
				}
			}
			sets[set] = listOf(texts)
			kept = append(kept, texts)
		}
		statements[at] = statement{textOfString(asked.sql), listOf(sets)}
		kept = append(kept, sets)
	}
	var result hostAnswer
	importQuery(unsafe.Pointer(unsafe.SliceData(statements)), uint32(len(statements)), unsafe.Pointer(&result))
	runtime.KeepAlive(statements)
	runtime.KeepAlive(kept)
	runtime.KeepAlive(questions)
	if failure := result.failure(); failure != nil {
		return nil, failure
	}
	return result.list().take(), nil
}

// items gives the memory of a list, whose items have a size.
func (t text) items(size uint32) []byte { return text{t.data, t.size * size}.take() }

func textAt(memory []byte) text {
	return text{binary.LittleEndian.Uint32(memory), binary.LittleEndian.Uint32(memory[4:])}
}

func hostStateGet(keys []string) ([][]byte, *Failure) {
	texts := make([]text, len(keys))
	for at, key := range keys {
		texts[at] = textOfString(key)
	}
	var result hostAnswer
	importStateGet(unsafe.Pointer(unsafe.SliceData(texts)), uint32(len(texts)), unsafe.Pointer(&result))
	runtime.KeepAlive(texts)
	runtime.KeepAlive(keys)
	if failure := result.failure(); failure != nil {
		return nil, failure
	}
	const size = 12
	found := result.list()
	memory := found.items(size)
	values := make([][]byte, found.size)
	for at := range values {
		if entry := memory[at*size:]; entry[0] != 0 {
			// An empty value is one.
			values[at] = append([]byte{}, textAt(entry[4:]).take()...)
		}
	}
	return values, nil
}

func hostStateSet(key string, value []byte) *Failure {
	var result hostAnswer
	importStateSet(unsafe.Pointer(unsafe.StringData(key)), uint32(len(key)), unsafe.Pointer(unsafe.SliceData(value)),
		uint32(len(value)), unsafe.Pointer(&result))
	runtime.KeepAlive(key)
	runtime.KeepAlive(value)
	return result.failure()
}

func hostStateDelete(key string) *Failure {
	var result hostAnswer
	importStateDelete(unsafe.Pointer(unsafe.StringData(key)), uint32(len(key)), unsafe.Pointer(&result))
	runtime.KeepAlive(key)
	return result.failure()
}

func hostStateKeys(prefix, after string, limit uint32) ([]string, *Failure) {
	isAfter := uint32(0)
	if after != "" {
		isAfter = 1
	}
	var result hostAnswer
	importStateKeys(unsafe.Pointer(unsafe.StringData(prefix)), uint32(len(prefix)), isAfter,
		unsafe.Pointer(unsafe.StringData(after)), uint32(len(after)), limit, unsafe.Pointer(&result))
	runtime.KeepAlive(prefix)
	runtime.KeepAlive(after)
	if failure := result.failure(); failure != nil {
		return nil, failure
	}
	const size = 8
	found := result.list()
	memory := found.items(size)
	keys := make([]string, found.size)
	for at := range keys {
		keys[at] = string(textAt(memory[at*size:]).take())
	}
	return keys, nil
}

func recordsOf(labels []Label) []record {
	records := make([]record, len(labels))
	for at := range labels {
		records[at] = record{textOfString(labels[at].Name), textOfString(labels[at].Value)}
	}
	return records
}

func hostCount(name string, by uint64, labels []Label) *Failure {
	records := recordsOf(labels)
	var result hostAnswer
	importCount(unsafe.Pointer(unsafe.StringData(name)), uint32(len(name)), unsafe.Pointer(unsafe.SliceData(records)),
		uint32(len(records)), by, unsafe.Pointer(&result))
	runtime.KeepAlive(name)
	runtime.KeepAlive(labels)
	runtime.KeepAlive(records)
	return result.failure()
}

func hostGauge(name string, value float64, labels []Label) *Failure {
	records := recordsOf(labels)
	var result hostAnswer
	importGauge(unsafe.Pointer(unsafe.StringData(name)), uint32(len(name)), unsafe.Pointer(unsafe.SliceData(records)),
		uint32(len(records)), value, unsafe.Pointer(&result))
	runtime.KeepAlive(name)
	runtime.KeepAlive(labels)
	runtime.KeepAlive(records)
	return result.failure()
}

// hostHeaders reads a list of pairs, which the host has put into memory.
func hostHeaders(found text) map[string][]string {
	const size = 16
	memory := found.items(size)
	headers := make(map[string][]string, found.size)
	for at := range int(found.size) {
		entry := memory[at*size:]
		name := strings.ToLower(string(textAt(entry).take()))
		headers[name] = append(headers[name], string(textAt(entry[8:]).take()))
	}
	return headers
}
