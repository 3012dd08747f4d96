package anabranch

import (
	"encoding/binary"
	"fmt"
	"math"
	"unsafe"
)

// kind is what a value of a batch is.
type kind uint8

const (
	kindNull kind = iota
	kindBool
	kindInteger
	kindFloat
	kindText
	kindBytes
	kindJSON
	kindArray
	kindMap
)

var kindNames = [...]string{"NULL", "a bool", "an integer", "a float", "text", "bytes", "json", "an array", "a map"}

// value is a value without what is in it: of arrays and maps, count items or entries follow in the reader.
type value struct {
	kind  kind
	bits  uint64 // of bools, integers and floats
	bytes []byte // of texts, bytes and json
	count int
}

func (v value) text() string {
	// The bytes are of the batch, which nobody changes, and which lives as long as its parts.
	return unsafe.String(unsafe.SliceData(v.bytes), len(v.bytes))
}

// reader reads MessagePack; every width of a header or integer is accepted. What is wrong is sticky.
type reader struct {
	data []byte
	at   int
	bad  bool
}

func (r *reader) span(size uint64) []byte {
	if uint64(len(r.data)-r.at) < size {
		r.bad = true
		r.at = len(r.data)
		return nil
	}
	from := r.at
	r.at += int(size)
	return r.data[from:r.at:r.at]
}

func (r *reader) number(width uint64) uint64 {
	bytes := r.span(width)
	switch len(bytes) {
	case 1:
		return uint64(bytes[0])
	case 2:
		return uint64(binary.BigEndian.Uint16(bytes))
	case 4:
		return uint64(binary.BigEndian.Uint32(bytes))
	case 8:
		return binary.BigEndian.Uint64(bytes)
	}
	return 0
}

func (r *reader) next() value {
	if r.at >= len(r.data) {
		r.bad = true
		return value{}
	}
	first := r.data[r.at]
	r.at++
	switch {
	case first <= 0x7f:
		return value{kind: kindInteger, bits: uint64(first)}
	case first <= 0x8f:
		return value{kind: kindMap, count: int(first & 0x0f)}
	case first <= 0x9f:
		return value{kind: kindArray, count: int(first & 0x0f)}
	case first <= 0xbf:
		return value{kind: kindText, bytes: r.span(uint64(first & 0x1f))}
	case first >= 0xe0:
		return value{kind: kindInteger, bits: uint64(int64(int8(first)))}
	}
	switch first {
	case 0xc0:
		return value{}
	case 0xc2, 0xc3:
		return value{kind: kindBool, bits: uint64(first - 0xc2)}
	case 0xc4, 0xc5, 0xc6:
		return value{kind: kindBytes, bytes: r.span(r.number(1 << (first - 0xc4)))}
	case 0xc7, 0xc8, 0xc9:
		return r.extension(r.number(1 << (first - 0xc7)))
	case 0xd4, 0xd5, 0xd6, 0xd7, 0xd8:
		return r.extension(1 << (first - 0xd4))
	case 0xca:
		float := math.Float32frombits(uint32(r.number(4)))
		return value{kind: kindFloat, bits: math.Float64bits(float64(float))}
	case 0xcb:
		return value{kind: kindFloat, bits: r.number(8)}
	case 0xcc, 0xcd, 0xce, 0xcf:
		return value{kind: kindInteger, bits: r.number(1 << (first - 0xcc))}
	case 0xd0, 0xd1, 0xd2, 0xd3:
		width := uint64(1) << (first - 0xd0)
		unused := 64 - 8*width
		return value{kind: kindInteger, bits: uint64(int64(r.number(width)<<unused) >> unused)}
	case 0xd9, 0xda, 0xdb:
		return value{kind: kindText, bytes: r.span(r.number(1 << (first - 0xd9)))}
	case 0xdc, 0xdd:
		return r.container(kindArray, r.number(2<<(first-0xdc)))
	case 0xde, 0xdf:
		return r.container(kindMap, r.number(2<<(first-0xde)))
	}
	r.bad = true
	return value{}
}

// extension has one type in version 1: JSON, as 1.
func (r *reader) extension(size uint64) value {
	if r.number(1) != 1 {
		r.bad = true
	}
	return value{kind: kindJSON, bytes: r.span(size)}
}

// container refuses more items than there are bytes, so that a damaged number takes no memory.
func (r *reader) container(k kind, count uint64) value {
	if count > uint64(len(r.data)-r.at) {
		r.bad = true
		return value{}
	}
	return value{kind: k, count: int(count)}
}

// skip steps over the rest of a value, without recursion, however deep it is.
func (r *reader) skip(v value) {
	for pending := v.pending(); pending > 0 && !r.bad; {
		pending += r.next().pending() - 1
	}
}

func (v value) pending() int {
	if v.kind == kindMap {
		return 2 * v.count
	}
	return v.count // which only arrays have
}

func (r *reader) expect(k kind) value {
	v := r.next()
	if v.kind != k {
		r.bad = true
		return value{}
	}
	return v
}

// text reads a text, or nil.
func (r *reader) text() (string, bool) {
	v := r.next()
	if v.kind != kindText && v.kind != kindNull {
		r.bad = true
	}
	return v.text(), v.kind == kindText
}

func (r *reader) null() bool {
	if r.at < len(r.data) && r.data[r.at] == 0xc0 {
		r.at++
		return true
	}
	return false
}

func appendContainer(out []byte, short, long byte, count int) []byte {
	if count < 16 {
		return append(out, short|byte(count))
	}
	return binary.BigEndian.AppendUint32(append(out, long), uint32(count))
}

func appendArray(out []byte, count int) []byte { return appendContainer(out, 0x90, 0xdd, count) }

func appendMap(out []byte, count int) []byte { return appendContainer(out, 0x80, 0xdf, count) }

func appendText(out []byte, text string) []byte {
	if len(text) < 32 {
		out = append(out, 0xa0|byte(len(text)))
	} else {
		out = binary.BigEndian.AppendUint32(append(out, 0xdb), uint32(len(text)))
	}
	return append(out, text...)
}

// appendOptional writes nil for the empty text.
func appendOptional(out []byte, text string) []byte {
	if text == "" {
		return append(out, 0xc0)
	}
	return appendText(out, text)
}

func appendInteger(out []byte, number int64) []byte {
	if number >= 0 && number < 128 {
		return append(out, byte(number))
	}
	return binary.BigEndian.AppendUint64(append(out, 0xd3), uint64(number))
}

// version reads the version of a payload. An integer that cannot be read is left to who looks at bad.
func (r *reader) version() *Failure {
	if version := r.expect(kindInteger).bits; version != 1 && !r.bad {
		return &Failure{Class: ClassFatal, Code: "payload-version",
			Message: fmt.Sprintf("this plugin reads payload version 1, the host sent %d", version)}
	}
	return nil
}
