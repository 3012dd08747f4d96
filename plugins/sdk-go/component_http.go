//go:build wasip1

package anabranch

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"unsafe"
)

// Requests over wasi:http 0.2, by the canonical ABI.

// handle is what a resource is called by.
type handle = uint32

//go:wasmimport wasi:http/types@0.2.0 [static]fields.from-list
func fieldsFromList(entries unsafe.Pointer, size uint32, result unsafe.Pointer)

//go:wasmimport wasi:http/types@0.2.0 [method]fields.entries
func fieldsEntries(fields handle, result unsafe.Pointer)

//go:wasmimport wasi:http/types@0.2.0 [resource-drop]fields
func fieldsDrop(fields handle)

//go:wasmimport wasi:http/types@0.2.0 [constructor]outgoing-request
func requestNew(headers handle) handle

//go:wasmimport wasi:http/types@0.2.0 [method]outgoing-request.set-method
func requestSetMethod(request handle, kind uint32, name unsafe.Pointer, size uint32) uint32

//go:wasmimport wasi:http/types@0.2.0 [method]outgoing-request.set-scheme
func requestSetScheme(request handle, there, kind uint32, name unsafe.Pointer, size uint32) uint32

//go:wasmimport wasi:http/types@0.2.0 [method]outgoing-request.set-authority
func requestSetAuthority(request handle, there uint32, text unsafe.Pointer, size uint32) uint32

//go:wasmimport wasi:http/types@0.2.0 [method]outgoing-request.set-path-with-query
func requestSetPath(request handle, there uint32, text unsafe.Pointer, size uint32) uint32

//go:wasmimport wasi:http/types@0.2.0 [method]outgoing-request.body
func requestBody(request handle, result unsafe.Pointer)

//go:wasmimport wasi:http/types@0.2.0 [resource-drop]outgoing-request
func requestDrop(request handle)

//go:wasmimport wasi:http/types@0.2.0 [constructor]request-options
func optionsNew() handle

//go:wasmimport wasi:http/types@0.2.0 [method]request-options.set-first-byte-timeout
func optionsSetTimeout(options handle, there uint32, nanoseconds uint64) uint32

//go:wasmimport wasi:http/types@0.2.0 [method]outgoing-body.write
func bodyWrite(body handle, result unsafe.Pointer)

//go:wasmimport wasi:http/types@0.2.0 [static]outgoing-body.finish
func bodyFinish(body handle, trailersThere uint32, trailers handle, result unsafe.Pointer)

//go:wasmimport wasi:http/types@0.2.0 [resource-drop]outgoing-body
func bodyDrop(body handle)

//go:wasmimport wasi:http/types@0.2.0 [method]future-incoming-response.subscribe
func futureSubscribe(future handle) handle

//go:wasmimport wasi:http/types@0.2.0 [method]future-incoming-response.get
func futureGet(future handle, result unsafe.Pointer)

//go:wasmimport wasi:http/types@0.2.0 [resource-drop]future-incoming-response
func futureDrop(future handle)

//go:wasmimport wasi:http/types@0.2.0 [method]incoming-response.status
func responseStatus(response handle) uint32

//go:wasmimport wasi:http/types@0.2.0 [method]incoming-response.headers
func responseHeaders(response handle) handle

//go:wasmimport wasi:http/types@0.2.0 [method]incoming-response.consume
func responseConsume(response handle, result unsafe.Pointer)

//go:wasmimport wasi:http/types@0.2.0 [resource-drop]incoming-response
func responseDrop(response handle)

//go:wasmimport wasi:http/types@0.2.0 [method]incoming-body.stream
func incomingStream(body handle, result unsafe.Pointer)

//go:wasmimport wasi:http/types@0.2.0 [resource-drop]incoming-body
func incomingDrop(body handle)

//go:wasmimport wasi:http/outgoing-handler@0.2.0 handle
func handlerHandle(request handle, optionsThere uint32, options handle, result unsafe.Pointer)

//go:wasmimport wasi:io/poll@0.2.0 [method]pollable.block
func pollableBlock(pollable handle)

//go:wasmimport wasi:io/poll@0.2.0 [resource-drop]pollable
func pollableDrop(pollable handle)

//go:wasmimport wasi:io/streams@0.2.0 [method]output-stream.blocking-write-and-flush
func streamWrite(stream handle, bytes unsafe.Pointer, size uint32, result unsafe.Pointer)

//go:wasmimport wasi:io/streams@0.2.0 [resource-drop]output-stream
func outputDrop(stream handle)

//go:wasmimport wasi:io/streams@0.2.0 [method]input-stream.blocking-read
func streamRead(stream handle, most uint64, result unsafe.Pointer)

//go:wasmimport wasi:io/streams@0.2.0 [resource-drop]input-stream
func inputDrop(stream handle)

//go:wasmimport wasi:io/error@0.2.0 [method]error.to-debug-string
func errorSaid(problem handle, result unsafe.Pointer)

//go:wasmimport wasi:io/error@0.2.0 [resource-drop]error
func errorDrop(problem handle)

// area is what a function writes its result to, in words of four bytes: the larger ones are aligned to eight.
type area struct {
	_     [0]uint64
	words [14]uint32
}

func (a *area) place() unsafe.Pointer { return unsafe.Pointer(a) }

// is tells a result, an option or a variant by its first byte.
func (a *area) is(word int) uint32 { return a.words[word] & 0xff }

var methods = []string{"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"}

func methodOf(name string) uint32 {
	if at := slices.Index(methods, strings.ToUpper(name)); at >= 0 {
		return uint32(at)
	}
	return uint32(len(methods)) // any other, by its name
}

func dataOf(words string) unsafe.Pointer { return unsafe.Pointer(unsafe.StringData(words)) }

func hostSend(request Request, to target) (*Response, error) {
	outgoing, err := begun(request, to)
	if err != nil {
		return nil, err
	}
	var body, sent area
	requestBody(outgoing, body.place())
	if body.is(0) != 0 {
		requestDrop(outgoing)
		return nil, httpFailure("the request has no body")
	}
	var options handle
	if request.Timeout > 0 {
		options = optionsNew()
		optionsSetTimeout(options, 1, uint64(request.Timeout.Nanoseconds()))
	}
	handlerHandle(outgoing, min(options, 1), options, sent.place())
	if sent.is(0) != 0 {
		bodyDrop(body.words[1])
		return nil, sent.errorCode(2)
	}
	// Who refuses it stops reading, and says why in the answer.
	unwritten := writeBody(body.words[1], request.Body)
	incoming, err := awaited(sent.words[2])
	if err != nil {
		return nil, err
	}
	defer responseDrop(incoming)
	if unwritten != nil {
		return nil, unwritten
	}
	return readResponse(incoming)
}

// begun is the request without its body.
func begun(request Request, to target) (handle, error) {
	labels := make([]Label, 0, len(request.Headers))
	for name, value := range request.Headers {
		labels = append(labels, Label{name, value})
	}
	records := recordsOf(labels)
	var fields area
	fieldsFromList(unsafe.Pointer(unsafe.SliceData(records)), uint32(len(records)), fields.place())
	runtime.KeepAlive(records)
	runtime.KeepAlive(labels)
	if fields.is(0) != 0 {
		return 0, Poison("http-request", "a header cannot be sent")
	}
	made := requestNew(fields.words[1])
	if requestSetMethod(made, methodOf(request.Method), dataOf(request.Method), uint32(len(request.Method))) != 0 {
		requestDrop(made)
		return 0, Poison("http-request", "the method is no word that can be sent")
	}
	scheme := uint32(0)
	if to.secure {
		scheme = 1
	}
	refused := requestSetScheme(made, 1, scheme, nil, 0) +
		requestSetAuthority(made, 1, dataOf(to.authority), uint32(len(to.authority))) +
		requestSetPath(made, 1, dataOf(to.path), uint32(len(to.path)))
	if refused != 0 {
		requestDrop(made)
		return 0, wrongURL(request.URL)
	}
	return made, nil
}

func writeBody(body handle, bytes []byte) error {
	const most = 4096 // bytes that one write may have
	var stream, finished area
	bodyWrite(body, stream.place())
	if stream.is(0) != 0 {
		bodyDrop(body)
		return httpFailure("the body cannot be written")
	}
	for chunk := range slices.Chunk(bytes, most) {
		var written area
		streamWrite(stream.words[1], unsafe.Pointer(unsafe.SliceData(chunk)), uint32(len(chunk)), written.place())
		runtime.KeepAlive(chunk)
		if written.is(0) != 0 {
			outputDrop(stream.words[1])
			bodyDrop(body)
			return written.streamError()
		}
	}
	outputDrop(stream.words[1])
	bodyFinish(body, 0, 0, finished.place())
	if finished.is(0) != 0 {
		return finished.errorCode(2)
	}
	return nil
}

// awaited waits for what the server says.
func awaited(future handle) (handle, error) {
	pollable := futureSubscribe(future)
	pollableBlock(pollable)
	pollableDrop(pollable)
	var answer area
	futureGet(future, answer.place())
	futureDrop(future)
	switch {
	case answer.is(0) == 0 || answer.is(2) != 0:
		return 0, httpFailure("there is no answer")
	case answer.is(4) != 0:
		return 0, answer.errorCode(6)
	}
	return answer.words[6], nil
}

func readResponse(incoming handle) (*Response, error) {
	response := &Response{Status: int(responseStatus(incoming))}
	fields := responseHeaders(incoming)
	var entries, body, stream area
	fieldsEntries(fields, entries.place())
	fieldsDrop(fields)
	response.Headers = hostHeaders(text{entries.words[0], entries.words[1]})
	responseConsume(incoming, body.place())
	if body.is(0) != 0 {
		return nil, httpFailure("the answer has no body")
	}
	defer incomingDrop(body.words[1])
	incomingStream(body.words[1], stream.place())
	if stream.is(0) != 0 {
		return nil, httpFailure("the answer cannot be read")
	}
	defer inputDrop(stream.words[1])
	for {
		var more area
		streamRead(stream.words[1], 1<<16, more.place())
		if more.is(0) == 0 {
			response.Body = append(response.Body, text{more.words[1], more.words[2]}.take()...)
			continue
		}
		if more.is(1) != 0 {
			return response, nil // it is closed: that was all
		}
		return nil, more.streamError()
	}
}

// streamError is that of a stream that failed or was closed.
func (a *area) streamError() error {
	if a.is(1) != 0 {
		return httpFailure("the connection was closed")
	}
	problem := a.words[2]
	var said area
	errorSaid(problem, said.place())
	errorDrop(problem)
	return httpFailure(string(text{said.words[0], said.words[1]}.take()))
}

// The cases of wasi:http's error-code that have a name here.
var codes = map[uint32]string{
	0: "timeout: the name server did not answer in time", 1: "the name cannot be resolved", 2: "the server was not found",
	3: "the server is unavailable", 4: "the address is prohibited", 5: "the address cannot be reached",
	6: "the connection was refused", 7: "the connection was terminated", 8: "timeout: no connection was made in time",
	9: "reading took too long", 10: "writing took too long", 11: "there are too many connections",
	15: "denied: the host denies requests", 33: "timeout: there was no answer in time",
}

// errorCode is the one that begins at a word.
func (a *area) errorCode(word int) error {
	const internal = 38 // internal-error, whose text begins with what it is
	number := a.is(word)
	if number == internal && a.is(word+2) != 0 {
		return httpFailure(string(text{a.words[word+3], a.words[word+4]}.take()))
	}
	if words, ok := codes[number]; ok {
		return httpFailure(words)
	}
	return httpFailure(fmt.Sprintf("the request failed (error-code %d of wasi:http)", number))
}
