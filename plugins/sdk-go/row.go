package anabranch

import (
	"fmt"
	"math"
	"reflect"
	"unsafe"
)

// decoder reads one value into the place of a Go value.
type decoder func(r *reader, place unsafe.Pointer) error

// layout is how a row becomes a value of a Go type.
type layout struct {
	kind     reflect.Type
	columns  []string // nil for a map: all
	offsets  []uintptr
	decoders []decoder
	absent   []func(place unsafe.Pointer)
	states   []decoder
}

// mismatch is a value of another type than the row's field.
type mismatch struct{ there, wanted string }

func (m mismatch) Error() string { return "is " + m.there + " where " + m.wanted + " is read" }

// layoutOf plans a struct, whose fields are columns by their tag `column` (or their names), or a map[string]any.
func layoutOf(row reflect.Type) (*layout, error) {
	plan := &layout{kind: row}
	if row == reflect.TypeFor[map[string]any]() {
		return plan, nil
	}
	if row.Kind() != reflect.Struct {
		return nil, fmt.Errorf("a row is a struct or a map[string]any, not %s", row)
	}
	plan.columns = []string{}
	for at := range row.NumField() {
		member := row.Field(at)
		name, tagged := member.Tag.Lookup("column")
		if name == "-" {
			continue
		}
		if !member.IsExported() {
			if tagged {
				return nil, fmt.Errorf("the field %s of %s has a column and is not exported", member.Name, row)
			}
			continue
		}
		if !tagged {
			return nil, fmt.Errorf("the field %s of %s has no column: give it the tag `column:\"…\"`, or `column:\"-\"`", member.Name, row)
		}
		decode, err := decoderOf(member.Type)
		if err != nil {
			return nil, fmt.Errorf("the field %s of %s: %w", member.Name, row, err)
		}
		plan.columns = append(plan.columns, name)
		plan.offsets = append(plan.offsets, member.Offset)
		plan.decoders = append(plan.decoders, decode)
		plan.absent = append(plan.absent, absentOf(member.Type))
	}
	return plan, nil
}

// absentOf says how a field tells that its column was not sent: it stays zero, unless it cannot tell that from a value.
func absentOf(kind reflect.Type) func(unsafe.Pointer) {
	if reflect.PointerTo(kind).Implements(reflect.TypeFor[field]()) {
		return func(place unsafe.Pointer) { reflect.NewAt(kind, place).Elem().SetZero() }
	}
	switch kind.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map, reflect.Interface:
		return func(place unsafe.Pointer) { reflect.NewAt(kind, place).Elem().SetZero() }
	}
	if kind == reflect.TypeFor[JSON]() {
		return func(place unsafe.Pointer) { *(*JSON)(place) = "" }
	}
	return nil
}

func scalar[T any](wanted string, convert func(value) (T, bool)) decoder {
	return func(r *reader, place unsafe.Pointer) error {
		v := r.next()
		converted, ok := convert(v)
		if !ok {
			r.skip(v)
			return mismatch{kindNames[v.kind], wanted}
		}
		*(*T)(place) = converted
		return nil
	}
}

func textOf(v value) (string, bool) { return v.text(), v.kind == kindText }

func integerInto[T int | int8 | int16 | int32 | int64 | uint | uint8 | uint16 | uint32 | uint64](v value) (T, bool) {
	number := T(v.bits)
	return number, v.kind == kindInteger && int64(number) == int64(v.bits) && (number >= 0) == (int64(v.bits) >= 0)
}

func floatOf(v value) (float64, bool) {
	switch v.kind {
	case kindFloat:
		return math.Float64frombits(v.bits), true
	case kindText:
		switch v.text() {
		case "NaN":
			return math.NaN(), true
		case "Infinity":
			return math.Inf(1), true
		case "-Infinity":
			return math.Inf(-1), true
		}
	}
	return 0, false
}

func decoderOf(kind reflect.Type) (decoder, error) {
	switch kind {
	case reflect.TypeFor[JSON]():
		return scalar("json", func(v value) (JSON, bool) {
			return JSON(v.text()), v.kind == kindJSON || v.kind == kindNull
		}), nil
	case reflect.TypeFor[[]byte]():
		return scalar("bytea", func(v value) ([]byte, bool) { return v.bytes, v.kind == kindBytes || v.kind == kindNull }), nil
	}
	if reflect.PointerTo(kind).Implements(reflect.TypeFor[field]()) {
		return fieldDecoder(kind)
	}
	switch kind.Kind() {
	case reflect.String:
		return scalar("text", textOf), nil
	case reflect.Bool:
		return scalar("a bool", func(v value) (bool, bool) { return v.bits == 1, v.kind == kindBool }), nil
	case reflect.Int:
		return scalar("an integer", integerInto[int]), nil
	case reflect.Int8:
		return scalar("an integer of 8 bits", integerInto[int8]), nil
	case reflect.Int16:
		return scalar("an integer of 16 bits", integerInto[int16]), nil
	case reflect.Int32:
		return scalar("an integer of 32 bits", integerInto[int32]), nil
	case reflect.Int64:
		return scalar("an integer", integerInto[int64]), nil
	case reflect.Uint8:
		return scalar("an integer of 8 bits", integerInto[uint8]), nil
	case reflect.Uint16:
		return scalar("an integer of 16 bits", integerInto[uint16]), nil
	case reflect.Uint32:
		return scalar("an integer of 32 bits", integerInto[uint32]), nil
	case reflect.Uint, reflect.Uint64:
		return scalar("an unsigned integer", integerInto[uint64]), nil
	case reflect.Float64:
		return scalar("a float", floatOf), nil
	case reflect.Float32:
		return scalar("a float", func(v value) (float32, bool) {
			float, ok := floatOf(v)
			return float32(float), ok
		}), nil
	case reflect.Pointer:
		return pointerDecoder(kind)
	case reflect.Slice:
		return sliceDecoder(kind)
	case reflect.Map:
		return mapDecoder(kind)
	case reflect.Interface:
		if kind.NumMethod() == 0 {
			return func(r *reader, place unsafe.Pointer) error {
				*(*any)(place) = plain(r, r.next())
				return nil
			}, nil
		}
	}
	return nil, fmt.Errorf("no column becomes a %s", kind)
}

func pointerDecoder(kind reflect.Type) (decoder, error) {
	inner, err := decoderOf(kind.Elem())
	if err != nil {
		return nil, err
	}
	create := func() unsafe.Pointer { return reflect.New(kind.Elem()).UnsafePointer() }
	switch kind.Elem().Kind() {
	case reflect.String:
		create = func() unsafe.Pointer { return unsafe.Pointer(new(string)) }
	case reflect.Int64:
		create = func() unsafe.Pointer { return unsafe.Pointer(new(int64)) }
	}
	return func(r *reader, place unsafe.Pointer) error {
		if r.null() {
			*(*unsafe.Pointer)(place) = nil
			return nil
		}
		created := create()
		*(*unsafe.Pointer)(place) = created
		return inner(r, created)
	}, nil
}

// texts reads an array of texts, whose places are made at once.
func texts(r *reader, place unsafe.Pointer) error {
	v := r.next()
	if v.kind == kindNull {
		*(*[]*string)(place) = nil
		return nil
	}
	if v.kind != kindArray {
		r.skip(v)
		return mismatch{kindNames[v.kind], "an array"}
	}
	pointers, values := make([]*string, v.count), make([]string, v.count)
	var problem error
	for at := range pointers {
		switch item := r.next(); item.kind {
		case kindText:
			values[at] = item.text()
			pointers[at] = &values[at]
		case kindNull:
		default:
			r.skip(item)
			problem = mismatch{kindNames[item.kind], "text"}
		}
	}
	*(*[]*string)(place) = pointers
	return problem
}

func sliceDecoder(kind reflect.Type) (decoder, error) {
	if kind == reflect.TypeFor[[]*string]() {
		return texts, nil
	}
	inner, err := decoderOf(kind.Elem())
	if err != nil {
		return nil, err
	}
	size := kind.Elem().Size()
	return func(r *reader, place unsafe.Pointer) error {
		v := r.next()
		switch v.kind {
		case kindNull:
			reflect.NewAt(kind, place).Elem().SetZero()
			return nil
		case kindArray:
		default:
			r.skip(v)
			return mismatch{kindNames[v.kind], "an array"}
		}
		made := reflect.MakeSlice(kind, v.count, v.count)
		first := made.UnsafePointer()
		var problem error
		for at := range v.count {
			// All are read, so that the next column is found.
			if err := inner(r, unsafe.Add(first, uintptr(at)*size)); err != nil && problem == nil {
				problem = err
			}
		}
		reflect.NewAt(kind, place).Elem().Set(made)
		return problem
	}, nil
}

func mapDecoder(kind reflect.Type) (decoder, error) {
	if kind.Key().Kind() != reflect.String {
		return nil, fmt.Errorf("the keys of hstore are text, not %s", kind.Key())
	}
	inner, err := decoderOf(kind.Elem())
	if err != nil {
		return nil, err
	}
	return func(r *reader, place unsafe.Pointer) error {
		v := r.next()
		switch v.kind {
		case kindNull:
			reflect.NewAt(kind, place).Elem().SetZero()
			return nil
		case kindMap:
		default:
			r.skip(v)
			return mismatch{kindNames[v.kind], "a map"}
		}
		made := reflect.MakeMapWithSize(kind, v.count)
		var problem error
		for range v.count {
			key, _ := r.text()
			entry := reflect.New(kind.Elem())
			if err := inner(r, entry.UnsafePointer()); err != nil && problem == nil {
				problem = err
			}
			made.SetMapIndex(reflect.ValueOf(key).Convert(kind.Key()), entry.Elem())
		}
		reflect.NewAt(kind, place).Elem().Set(made)
		return problem
	}, nil
}

func fieldDecoder(kind reflect.Type) (decoder, error) {
	_, into := reflect.New(kind).Interface().(field).parts()
	inner, err := decoderOf(reflect.TypeOf(into).Elem())
	if err != nil {
		return nil, err
	}
	return func(r *reader, place unsafe.Pointer) error {
		state, into := reflect.NewAt(kind, place).Interface().(field).parts()
		*state = Present
		if r.null() {
			*state = Null
			return nil
		}
		return inner(r, reflect.ValueOf(into).UnsafePointer())
	}, nil
}

// plain is a value of a row that is a map: nil, bool, int64, float64, string, []byte, JSON, []any or map[string]any.
func plain(r *reader, v value) any {
	switch v.kind {
	case kindBool:
		return v.bits == 1
	case kindInteger:
		return int64(v.bits)
	case kindFloat:
		return math.Float64frombits(v.bits)
	case kindText:
		return v.text()
	case kindBytes:
		return v.bytes
	case kindJSON:
		return JSON(v.text())
	case kindArray:
		items := make([]any, v.count)
		for at := range items {
			items[at] = plain(r, r.next())
		}
		return items
	case kindMap:
		entries := make(map[string]any, v.count)
		for range v.count {
			key, _ := r.text()
			entries[key] = plain(r, r.next())
		}
		return entries
	}
	return nil
}

// read reads a tuple into a row. What is wrong with a value concerns its change; the reader stands behind the row anyway.
func (l *layout) read(r *reader, row unsafe.Pointer, columns []string) error {
	tuple := r.expect(kindArray)
	if tuple.count != len(columns) {
		r.bad = true
		return nil
	}
	if l.columns == nil {
		into := make(map[string]any, len(columns))
		for _, name := range columns {
			into[name] = plain(r, r.next())
		}
		*(*map[string]any)(row) = into
		return nil
	}
	var problem error
	for at, decode := range l.decoders {
		if err := decode(r, unsafe.Add(row, l.offsets[at])); err != nil && problem == nil {
			problem = Poison("column", "the column %s %v", columns[at], err)
		}
	}
	return problem
}

// forget takes a column that was not sent out of a row.
func (l *layout) forget(row unsafe.Pointer, columns []string, at int) error {
	if l.columns == nil {
		delete(*(*map[string]any)(row), columns[at])
		return nil
	}
	if l.absent[at] == nil {
		return Poison("column", "the column %s was not sent; a pointer or a Field takes that", columns[at])
	}
	l.absent[at](unsafe.Add(row, l.offsets[at]))
	return nil
}
