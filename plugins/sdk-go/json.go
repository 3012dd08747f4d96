package anabranch

import (
	"bytes"
	"encoding"
	"encoding/base64"
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"
	"unsafe"
)

// Documents as JSON text, straight into the reply. What encoding/json would write, but faster; JSON stands byte for byte,
// the characters of HTML stand as they are, and floats that are no numbers become null. What is rare is left to
// encoding/json.

// encoder writes the Go value at a place.
type encoder func(out []byte, place unsafe.Pointer, depth int) ([]byte, error)

// The host takes documents that are nested no deeper.
const maxDepth = 128

var errDeep = errors.New("it is nested deeper than 128")

var encoders sync.Map // of reflect.Type to encoder

func appendJSON(out []byte, body any) ([]byte, error) { return appendAny(out, body, 0) }

func appendAny(out []byte, body any, depth int) ([]byte, error) {
	switch typed := body.(type) {
	case nil:
		return append(out, "null"...), nil
	case string:
		return appendQuoted(out, typed), nil
	case int64:
		return strconv.AppendInt(out, typed, 10), nil
	case JSON:
		return appendRaw(out, string(typed)), nil
	}
	kind := reflect.TypeOf(body)
	if kind.Kind() == reflect.Struct && kind.Size() > unsafe.Sizeof(uintptr(0)) {
		// What is wider than a pointer stands behind one.
		data := (*[2]unsafe.Pointer)(unsafe.Pointer(&body))[1]
		return encoderOf(kind)(out, data, depth)
	}
	place := reflect.New(kind)
	place.Elem().Set(reflect.ValueOf(body))
	return encoderOf(kind)(out, place.UnsafePointer(), depth)
}

func encoderOf(kind reflect.Type) encoder {
	if known, ok := encoders.Load(kind); ok {
		return known.(encoder)
	}
	// A type may have itself inside: until its encoder is made, it is looked up.
	encoders.Store(kind, encoder(func(out []byte, place unsafe.Pointer, depth int) ([]byte, error) {
		made, _ := encoders.Load(kind)
		return made.(encoder)(out, place, depth)
	}))
	made := makeEncoder(kind)
	encoders.Store(kind, made)
	return made
}

func makeEncoder(kind reflect.Type) encoder {
	switch kind {
	case reflect.TypeFor[JSON]():
		return func(out []byte, place unsafe.Pointer, _ int) ([]byte, error) {
			return appendRaw(out, *(*string)(place)), nil
		}
	case reflect.TypeFor[Numeric]():
		return func(out []byte, place unsafe.Pointer, _ int) ([]byte, error) {
			if number := *(*Numeric)(place); number.IsNumber() {
				return append(out, number...), nil
			}
			return append(out, "null"...), nil
		}
	}
	for _, marshaler := range []reflect.Type{reflect.TypeFor[json.Marshaler](), reflect.TypeFor[encoding.TextMarshaler]()} {
		if kind.Implements(marshaler) || reflect.PointerTo(kind).Implements(marshaler) {
			return slow(kind)
		}
	}
	switch kind.Kind() {
	case reflect.String:
		return func(out []byte, place unsafe.Pointer, _ int) ([]byte, error) {
			return appendQuoted(out, *(*string)(place)), nil
		}
	case reflect.Bool:
		return func(out []byte, place unsafe.Pointer, _ int) ([]byte, error) {
			return strconv.AppendBool(out, *(*bool)(place)), nil
		}
	case reflect.Int, reflect.Int64:
		return integers[int64]
	case reflect.Int32:
		return integers[int32]
	case reflect.Int16:
		return integers[int16]
	case reflect.Int8:
		return integers[int8]
	case reflect.Uint, reflect.Uint64:
		return func(out []byte, place unsafe.Pointer, _ int) ([]byte, error) {
			return strconv.AppendUint(out, *(*uint64)(place), 10), nil
		}
	case reflect.Uint32:
		return integers[uint32]
	case reflect.Uint16:
		return integers[uint16]
	case reflect.Uint8:
		return integers[uint8]
	case reflect.Float64:
		return func(out []byte, place unsafe.Pointer, _ int) ([]byte, error) {
			return appendFloat(out, *(*float64)(place), 64), nil
		}
	case reflect.Float32:
		return func(out []byte, place unsafe.Pointer, _ int) ([]byte, error) {
			return appendFloat(out, float64(*(*float32)(place)), 32), nil
		}
	case reflect.Pointer:
		inner := encoderOf(kind.Elem())
		return func(out []byte, place unsafe.Pointer, depth int) ([]byte, error) {
			// Pointers can make a ring.
			if depth > maxDepth {
				return out, errDeep
			}
			if to := *(*unsafe.Pointer)(place); to != nil {
				return inner(out, to, depth+1)
			}
			return append(out, "null"...), nil
		}
	case reflect.Slice:
		return sliceEncoder(kind)
	case reflect.Map:
		if kind.Key().Kind() == reflect.String {
			return mapEncoder(kind)
		}
	case reflect.Struct:
		if made := structEncoder(kind); made != nil {
			return made
		}
	case reflect.Interface:
		return func(out []byte, place unsafe.Pointer, depth int) ([]byte, error) {
			if depth > maxDepth {
				return out, errDeep
			}
			return appendAny(out, reflect.NewAt(kind, place).Elem().Interface(), depth+1)
		}
	}
	return slow(kind)
}

func integers[T int8 | int16 | int32 | int64 | uint8 | uint16 | uint32](out []byte, place unsafe.Pointer, _ int) ([]byte, error) {
	return strconv.AppendInt(out, int64(*(*T)(place)), 10), nil
}

// slow leaves a type to encoding/json.
func slow(kind reflect.Type) encoder {
	return func(out []byte, place unsafe.Pointer, _ int) ([]byte, error) {
		buffer := bytes.NewBuffer(out)
		encoder := json.NewEncoder(buffer)
		encoder.SetEscapeHTML(false)
		err := encoder.Encode(reflect.NewAt(kind, place).Interface())
		return bytes.TrimSuffix(buffer.Bytes(), []byte("\n")), err
	}
}

func sliceEncoder(kind reflect.Type) encoder {
	if kind.Elem().Kind() == reflect.Uint8 {
		return func(out []byte, place unsafe.Pointer, _ int) ([]byte, error) {
			given := *(*[]byte)(place)
			if given == nil {
				return append(out, "null"...), nil
			}
			return append(base64.StdEncoding.AppendEncode(append(out, '"'), given), '"'), nil
		}
	}
	inner := encoderOf(kind.Elem())
	size := kind.Elem().Size()
	return func(out []byte, place unsafe.Pointer, depth int) ([]byte, error) {
		// Every slice begins alike, whatever is in it.
		items := *(*[]struct{})(place)
		if items == nil {
			return append(out, "null"...), nil
		}
		if depth > maxDepth {
			return out, errDeep
		}
		first := unsafe.Pointer(unsafe.SliceData(items))
		out = append(out, '[')
		for at := range items {
			if at > 0 {
				out = append(out, ',')
			}
			var err error
			if out, err = inner(out, unsafe.Add(first, uintptr(at)*size), depth+1); err != nil {
				return out, err
			}
		}
		return append(out, ']'), nil
	}
}

func mapEncoder(kind reflect.Type) encoder {
	inner := encoderOf(kind.Elem())
	return func(out []byte, place unsafe.Pointer, depth int) ([]byte, error) {
		entries := reflect.NewAt(kind, place).Elem()
		if entries.IsNil() {
			return append(out, "null"...), nil
		}
		if depth > maxDepth {
			return out, errDeep
		}
		keys := entries.MapKeys()
		slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
		value := reflect.New(kind.Elem())
		out = append(out, '{')
		for at, key := range keys {
			if at > 0 {
				out = append(out, ',')
			}
			out = append(appendQuoted(out, key.String()), ':')
			value.Elem().Set(entries.MapIndex(key))
			var err error
			if out, err = inner(out, value.UnsafePointer(), depth+1); err != nil {
				return out, err
			}
		}
		return append(out, '}'), nil
	}
}

type member struct {
	key    string // with its colon
	offset uintptr
	encode encoder
	leave  func(place unsafe.Pointer) bool // whether it is left out; nil for never
}

// structEncoder knows `json:"name,omitempty"`, and `key:"name"` for a name that has a comma or is none to encoding/json; nil
// for structs with more than that.
func structEncoder(kind reflect.Type) encoder {
	members := []member{}
	for at := range kind.NumField() {
		field := kind.Field(at)
		if field.Anonymous {
			return nil
		}
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		if !field.IsExported() || (field.Tag.Get("json") == "-") {
			continue
		}
		if name == "" {
			name = field.Name
		}
		if whole, tagged := field.Tag.Lookup("key"); tagged {
			name, options = whole, ""
		}
		added := member{key: string(appendQuoted(nil, name)) + ":", offset: field.Offset, encode: encoderOf(field.Type)}
		for _, option := range strings.Split(options, ",") {
			switch option {
			case "":
			case "omitempty":
				added.leave = func(place unsafe.Pointer) bool { return empty(reflect.NewAt(field.Type, place).Elem()) }
			default:
				return nil
			}
		}
		if slices.ContainsFunc(members, func(other member) bool { return other.key == added.key }) {
			return nil
		}
		members = append(members, added)
	}
	return func(out []byte, place unsafe.Pointer, depth int) ([]byte, error) {
		if depth > maxDepth {
			return out, errDeep
		}
		out = append(out, '{')
		first := true
		for at := range members {
			each := &members[at]
			value := unsafe.Add(place, each.offset)
			if each.leave != nil && each.leave(value) {
				continue
			}
			if !first {
				out = append(out, ',')
			}
			first = false
			out = append(out, each.key...)
			var err error
			if out, err = each.encode(out, value, depth+1); err != nil {
				return out, err
			}
		}
		return append(out, '}'), nil
	}
}

// empty is what encoding/json leaves out for omitempty.
func empty(value reflect.Value) bool {
	switch value.Kind() {
	case reflect.Array, reflect.Map, reflect.Slice, reflect.String:
		return value.Len() == 0
	case reflect.Struct:
		return false
	}
	return value.IsZero()
}

func appendRaw(out []byte, text string) []byte {
	if text == "" {
		text = "null"
	}
	return append(out, text...)
}

// appendFloat writes as encoding/json does.
func appendFloat(out []byte, float float64, bits int) []byte {
	if math.IsNaN(float) || math.IsInf(float, 0) {
		return append(out, "null"...)
	}
	size := math.Abs(float)
	format := byte('f')
	if size != 0 && (size < 1e-6 || size >= 1e21) {
		format = 'e'
	}
	out = strconv.AppendFloat(out, float, format, -1, bits)
	// e-09 is e-9, as in JavaScript.
	if end := len(out); format == 'e' && end >= 4 && out[end-4] == 'e' && out[end-3] == '-' && out[end-2] == '0' {
		out = append(out[:end-2], out[end-1])
	}
	return out
}

const (
	ones = 0x0101010101010101
	tops = ones << 7
)

// special tells whether one of eight bytes has to be escaped; a borrow may say so without need.
func special(bytes uint64) bool {
	quotes, slashes := bytes^ones*'"', bytes^ones*'\\'
	// A byte is less than n where subtracting n borrows and its top bit was not set.
	return ((bytes-ones*0x20)&^bytes|(quotes-ones)&^quotes|(slashes-ones)&^slashes)&tops != 0
}

func appendQuoted(out []byte, text string) []byte {
	const hex = "0123456789abcdef"
	start := len(out)
	out = append(out, '"')
	from, ascii := 0, true
	data := unsafe.Pointer(unsafe.StringData(text))
	for at, plain := 0, 0; at < len(text); at++ {
		// Eight at once, as long as there is nothing to escape in them.
		for at >= plain && len(text)-at >= 8 {
			bytes := *(*uint64)(unsafe.Add(data, at))
			if special(bytes) {
				plain = at + 8
				break
			}
			ascii = ascii && bytes&tops == 0
			at += 8
		}
		if at == len(text) {
			break
		}
		character := text[at]
		if character >= 0x20 && character != '"' && character != '\\' {
			ascii = ascii && character < utf8.RuneSelf
			continue
		}
		out = append(out, text[from:at]...)
		from = at + 1
		switch character {
		case '"', '\\':
			out = append(out, '\\', character)
		case '\n':
			out = append(out, '\\', 'n')
		case '\r':
			out = append(out, '\\', 'r')
		case '\t':
			out = append(out, '\\', 't')
		default:
			out = append(out, '\\', 'u', '0', '0', hex[character>>4], hex[character&15])
		}
	}
	if !ascii && !utf8.ValidString(text) {
		// No text of Postgres, but one that was cut.
		return appendQuoted(out[:start], strings.ToValidUTF8(text, "\ufffd"))
	}
	return append(append(out, text[from:]...), '"')
}
