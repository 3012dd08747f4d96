//go:build wasip1

package anabranch

import (
	"log"
	"runtime"
	"unsafe"
)

// The border of a component, by the canonical ABI: what wit/v1 exports and imports as a core module has it. `plugin
// build` adds the description of the interface and checks every signature against it.

//go:wasmimport anabranch:plugin/log@1.0.0 log
func importLog(level int32, text unsafe.Pointer, size uint32)

// importConfig gives 0, or 1 and a text that the host has put into memory of cabi_realloc.
//
//go:wasmimport anabranch:plugin/config@1.0.0 get
func importConfig(key unsafe.Pointer, size uint32, result unsafe.Pointer)

// held are allocations for the host, until the call that they are for has them.
var held [][]byte

//go:wasmexport cabi_realloc
func cabiRealloc(old unsafe.Pointer, oldSize, alignment, size uint32) unsafe.Pointer {
	// Go aligns what it allocates by its size.
	memory := make([]byte, max((size+alignment-1)/alignment*alignment, alignment))
	if old != nil {
		copy(memory, take(old, oldSize))
	}
	held = append(held, memory)
	return unsafe.Pointer(unsafe.SliceData(memory))
}

// take gives the memory at a place, which is the caller's from now on; nil where there is none.
func take(place unsafe.Pointer, size uint32) []byte {
	for at, memory := range held {
		if unsafe.Pointer(unsafe.SliceData(memory)) == place {
			held[at] = held[len(held)-1]
			held[len(held)-1] = nil
			held = held[:len(held)-1]
			return memory[:size]
		}
	}
	return nil
}

// text is a list of bytes as the ABI has it: addresses are of 32 bits.
type text struct{ data, size uint32 }

func textOfBytes(bytes []byte) text {
	if never {
		asPointer = unsafe.Pointer(unsafe.SliceData(bytes))
	}
	return text{uint32(uintptr(unsafe.Pointer(unsafe.SliceData(bytes)))), uint32(len(bytes))}
}

// The compiler follows pointers, and no addresses: a text whose address alone is taken may stand on the stack, which moves
// when it grows. What is assigned to a variable of a package, if only as far as the compiler knows, stands on the heap.
var (
	never     bool
	asText    string
	asPointer unsafe.Pointer
)

func textOfString(words string) text {
	if never {
		asText = words
	}
	return text{uint32(uintptr(unsafe.Pointer(unsafe.StringData(words)))), uint32(len(words))}
}

func (t text) take() []byte { return take(unsafe.Pointer(uintptr(t.data)), t.size) }

func hostLog(level Level, message string) {
	importLog(int32(level), unsafe.Pointer(unsafe.StringData(message)), uint32(len(message)))
	runtime.KeepAlive(message)
}

func hostConfig(key string) (string, bool) {
	var result struct {
		there uint32
		text  text
	}
	importConfig(unsafe.Pointer(unsafe.StringData(key)), uint32(len(key)), unsafe.Pointer(&result))
	runtime.KeepAlive(key)
	if result.there&0xff == 0 {
		return "", false
	}
	return string(take(unsafe.Pointer(uintptr(result.text.data)), result.text.size)), true
}

// What the host reads after a call; kept until the next.
var (
	described []byte
	reply     []byte
	results   [6]uint32
)

//go:wasmexport anabranch:plugin/describe@1.0.0#describe
func exportDescribe() unsafe.Pointer {
	var said string
	var err error
	switch {
	case exported != nil:
		said, err = exported.describe()
	case exportedSink != nil:
		said, err = exportedSink.describe()
	default:
		panic("the plugin is not there: call anabranch.Export or anabranch.ExportSink in an init function of package main")
	}
	if err != nil {
		panic(err)
	}
	described = []byte(said)
	whole := textOfBytes(described)
	results = [6]uint32{whole.data, whole.size}
	return unsafe.Pointer(&results)
}

// answer is a result of bytes, or of nothing, or a failure.
func answer(answered []byte, failure *Failure) unsafe.Pointer {
	if failure == nil {
		given := textOfBytes(answered)
		results = [6]uint32{0, given.data, given.size}
		return unsafe.Pointer(&results)
	}
	class, said, code := replyOf(failure)
	reply = said
	all := textOfBytes(reply)
	results = [6]uint32{1, class, all.data, code, all.data + code, all.size - code}
	return unsafe.Pointer(&results)
}

//go:wasmexport anabranch:plugin/transform@1.0.0#transform
func exportTransform(batch unsafe.Pointer, size uint32) unsafe.Pointer {
	answered, failure := exported.run(take(batch, size), reply[:0])
	if failure == nil {
		reply = answered
	}
	return answer(reply, failure)
}

//go:wasmexport anabranch:plugin/sink@1.0.0#open
func exportOpen(settings unsafe.Pointer, size uint32) unsafe.Pointer {
	return answer(nil, exportedSink.open(take(settings, size)))
}

//go:wasmexport anabranch:plugin/sink@1.0.0#deliver
func exportDeliver(batch unsafe.Pointer, size uint32) unsafe.Pointer {
	answered, failure := exportedSink.deliver(take(batch, size), reply[:0])
	if failure == nil {
		reply = answered
	}
	return answer(reply, failure)
}

//go:wasmexport anabranch:plugin/purge@1.0.0#purge
func exportPurge(destination unsafe.Pointer, size uint32) unsafe.Pointer {
	return answer(nil, exportedSink.purge(string(take(destination, size))))
}

//go:wasmexport anabranch:plugin/generations@1.0.0#begin
func exportBegin(destination unsafe.Pointer, size uint32, place unsafe.Pointer, placeSize uint32) unsafe.Pointer {
	seen, failure := exportedSink.begin(string(take(destination, size)), string(take(place, placeSize)))
	given := answer(nil, failure)
	if failure == nil {
		results[1] = 0
		if seen {
			results[1] = 1
		}
	}
	return given
}

//go:wasmexport anabranch:plugin/generations@1.0.0#switch
func exportSwitch(destination unsafe.Pointer, size uint32, place unsafe.Pointer, placeSize uint32) unsafe.Pointer {
	return answer(nil, exportedSink.switchTo(string(take(destination, size)), string(take(place, placeSize))))
}

//go:wasmexport anabranch:plugin/generations@1.0.0#abandon
func exportAbandon(destination unsafe.Pointer, size uint32, place unsafe.Pointer, placeSize uint32) unsafe.Pointer {
	return answer(nil, exportedSink.abandon(string(take(destination, size)), string(take(place, placeSize))))
}

// Go's linker keeps whatever a library exports. These are imported by a program that means it: `plugin build` looks for
// them, and the component exports no other interface.

//go:wasmimport wasi_snapshot_preview1 anabranch_exports_transform
func importMarkTransform() int32

//go:wasmimport wasi_snapshot_preview1 anabranch_exports_sink
func importMarkSink() int32

//go:wasmimport wasi_snapshot_preview1 anabranch_exports_purge
func importMarkPurge() int32

//go:wasmimport wasi_snapshot_preview1 anabranch_exports_generations
func importMarkGenerations() int32

func markTransform() { importMarkTransform() }

func markSink() { importMarkSink() }

func markPurge() { importMarkPurge() }

func markGenerations() { importMarkGenerations() }

// importLines gives the stub that stands for WASI a place to put lines together: the runtime writes what it says of a
// panic in pieces.
//
//go:wasmimport wasi_snapshot_preview1 anabranch_lines
func importLines(place unsafe.Pointer, size uint32) int32

// A variable of a package is never moved.
var lines [2048]byte

func init() {
	importLines(unsafe.Pointer(&lines), uint32(len(lines)))
	// There is no clock; the host's log has the time.
	log.SetFlags(0)
}
