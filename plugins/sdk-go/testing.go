//go:build !wasip1

package anabranch

import (
	"encoding/binary"
	"fmt"
	"math"
	"reflect"
	"slices"
)

// Tests of a transform, natively: whole batches as the host sends them, outcomes as it reads them. Nothing of this is in a
// component.

// Batch is a batch of changes for a transform; see [Test].
type Batch[R any] struct {
	// Host answers what the transform asks of it.
	Host    *Host
	plugin  *Transform[R]
	changes []testChange
}

type testChange struct {
	operation Operation
	id        string
	row, old  reflect.Value
}

// Test begins a batch:
//
//	outcomes, err := anabranch.Test(&plugin).Insert("1", Product{Name: "Kettle"}).Run()
func Test[R any](plugin *Transform[R]) *Batch[R] {
	return &Batch[R]{Host: newHost(), plugin: plugin}
}

func (b *Batch[R]) add(operation Operation, id string, row, old *R) *Batch[R] {
	change := testChange{operation: operation, id: id}
	if row != nil {
		change.row = reflect.ValueOf(row).Elem()
	}
	if old != nil {
		change.old = reflect.ValueOf(old).Elem()
	}
	b.changes = append(b.changes, change)
	return b
}

// Insert adds a new row.
func (b *Batch[R]) Insert(id string, row R) *Batch[R] { return b.add(Insert, id, &row, nil) }

// Read adds a row of a backfill.
func (b *Batch[R]) Read(id string, row R) *Batch[R] { return b.add(Read, id, &row, nil) }

// Update adds a row that changed, and the old one where the server sends it.
func (b *Batch[R]) Update(id string, row R, old *R) *Batch[R] { return b.add(Update, id, &row, old) }

// Delete adds a row that is gone.
func (b *Batch[R]) Delete(id string, old R) *Batch[R] { return b.add(Delete, id, nil, &old) }

// Set gives the mapping a setting.
func (b *Batch[R]) Set(key, value string) *Batch[R] {
	b.Host.Config[key] = value
	return b
}

// Lines are those that Run logged: `warn: …`.
func (b *Batch[R]) Lines() []string { return b.Host.Lines }

// Emitted is a document as the host gets it.
type Emitted struct {
	ID          string // empty for the change's own
	Destination string // empty for the mapping's
	Text        string // JSON
}

// Outcome is what becomes of a change.
type Outcome struct {
	Kind      string // `emit`, `delete`, `skip` or `failed`
	Documents []Emitted
	Failure   *Failure
}

// Text is the JSON of the outcome's one document; empty if there is none, or are several.
func (o Outcome) Text() string {
	if len(o.Documents) != 1 {
		return ""
	}
	return o.Documents[0].Text
}

// Describe is what the plugin says of itself: JSON.
func Describe(plugin Plugin) (string, error) { return plugin.describe() }

// Run runs the transform over the batch. The error is a Failure of the whole batch.
func (b *Batch[R]) Run() ([]Outcome, error) {
	columns, err := b.plugin.columns()
	if err != nil {
		return nil, err
	}
	if columns == nil {
		columns = b.keys()
	}
	b.Host.Lines = nil
	defer bind(b.Host)()
	reply, failure := b.plugin.run(b.request(columns), nil)
	if failure != nil {
		return nil, failure
	}
	return outcomes(reply)
}

// keys are the columns of rows that are maps.
func (b *Batch[R]) keys() []string {
	keys := []string{}
	for _, change := range b.changes {
		for _, row := range []reflect.Value{change.row, change.old} {
			if !row.IsValid() {
				continue
			}
			for _, key := range row.MapKeys() {
				if !slices.Contains(keys, key.String()) {
					keys = append(keys, key.String())
				}
			}
		}
	}
	slices.Sort(keys)
	return keys
}

func (b *Batch[R]) request(columns []string) []byte {
	out := appendMap(nil, 5)
	out = appendInteger(appendText(out, "v"), 1)
	out = appendArray(appendText(out, "what a newer host sends"), 0)
	out = appendMap(appendText(out, "relation"), 3)
	out = appendText(appendText(out, "table"), "test")
	out = appendArray(appendText(out, "columns"), len(columns))
	for _, name := range columns {
		out = appendText(out, name)
	}
	out = appendArray(appendText(out, "key"), 0)
	out = appendText(appendText(out, "origin"), "stream")
	out = appendArray(appendText(out, "changes"), len(b.changes))
	for sequence, change := range b.changes {
		out = appendArray(out, 10)
		out = appendOptional(appendText(out, string(change.operation)), change.id)
		var absent, absentOld []int
		out, absent = appendRow(out, change.row, columns)
		out, absentOld = appendRow(out, change.old, columns)
		out = appendInteger(appendInteger(appendInteger(out, 1), 0), int64(sequence))
		if len(absent)+len(absentOld) == 0 {
			out = append(out, 0xc0)
		} else {
			out = appendPositions(appendPositions(appendArray(out, 2), absent), absentOld)
		}
		out = appendText(appendMap(out, 0), "what a newer host sends")
	}
	return out
}

func appendPositions(out []byte, positions []int) []byte {
	out = appendArray(out, len(positions))
	for _, at := range positions {
		out = appendInteger(out, int64(at))
	}
	return out
}

func appendRow(out []byte, row reflect.Value, columns []string) ([]byte, []int) {
	if !row.IsValid() {
		return append(out, 0xc0), nil
	}
	var absent []int
	out = appendArray(out, len(columns))
	for at, name := range columns {
		var column reflect.Value
		if row.Kind() == reflect.Map {
			column = row.MapIndex(reflect.ValueOf(name))
		} else {
			column = columnOf(row, name)
		}
		if !column.IsValid() {
			absent = append(absent, at)
			out = append(out, 0xc0)
			continue
		}
		if field, ok := column.Interface().(interface{ absent() bool }); ok && field.absent() {
			absent = append(absent, at)
		}
		out = appendValue(out, column)
	}
	return out, absent
}

func (f Field[T]) absent() bool { return f.State == Absent }

func columnOf(row reflect.Value, name string) reflect.Value {
	for at := range row.NumField() {
		if row.Type().Field(at).Tag.Get("column") == name {
			return row.Field(at)
		}
	}
	return reflect.Value{}
}

// inner is the value of a Field; invalid for NULL.
func (f Field[T]) inner() reflect.Value {
	if f.State != Present {
		return reflect.Value{}
	}
	return reflect.ValueOf(&f.Value).Elem()
}

func valueOf(value any) reflect.Value { return reflect.ValueOf(value) }

func appendValue(out []byte, value reflect.Value) []byte {
	if !value.IsValid() {
		return append(out, 0xc0)
	}
	switch typed := value.Interface().(type) {
	case JSON:
		if typed == "" {
			return append(out, 0xc0)
		}
		out = binary.BigEndian.AppendUint32(append(out, 0xc9), uint32(len(typed)))
		return append(append(out, 1), typed...)
	case []byte:
		if typed == nil {
			return append(out, 0xc0)
		}
		return append(binary.BigEndian.AppendUint32(append(out, 0xc6), uint32(len(typed))), typed...)
	case interface{ inner() reflect.Value }:
		return appendValue(out, typed.inner())
	}
	switch value.Kind() {
	case reflect.Bool:
		if value.Bool() {
			return append(out, 0xc3)
		}
		return append(out, 0xc2)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return appendInteger(out, value.Int())
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return appendInteger(out, int64(value.Uint()))
	case reflect.Float32, reflect.Float64:
		switch float := value.Float(); {
		case math.IsNaN(float):
			return appendText(out, "NaN")
		case math.IsInf(float, 1):
			return appendText(out, "Infinity")
		case math.IsInf(float, -1):
			return appendText(out, "-Infinity")
		default:
			return binary.BigEndian.AppendUint64(append(out, 0xcb), math.Float64bits(float))
		}
	case reflect.String:
		return appendText(out, value.String())
	case reflect.Pointer, reflect.Interface:
		return appendValue(out, value.Elem())
	case reflect.Slice:
		if value.IsNil() {
			return append(out, 0xc0)
		}
		out = appendArray(out, value.Len())
		for at := range value.Len() {
			out = appendValue(out, value.Index(at))
		}
		return out
	case reflect.Map:
		if value.IsNil() {
			return append(out, 0xc0)
		}
		out = appendMap(out, value.Len())
		for _, key := range value.MapKeys() {
			out = appendValue(appendText(out, key.String()), value.MapIndex(key))
		}
		return out
	}
	return append(out, 0xc1) // nothing reads it
}

func outcomes(reply []byte) ([]Outcome, error) {
	r := &reader{data: reply}
	all := []Outcome{}
	for range r.expect(kindArray).count {
		r.expect(kindArray)
		outcome := Outcome{}
		switch r.expect(kindInteger).bits {
		case 0:
			outcome.Kind = "emit"
			for range r.expect(kindArray).count {
				r.expect(kindArray)
				document := Emitted{}
				document.ID, _ = r.text()
				document.Destination, _ = r.text()
				document.Text = r.expect(kindBytes).text()
				outcome.Documents = append(outcome.Documents, document)
			}
		case 1:
			outcome.Kind = "delete"
		case 2:
			outcome.Kind = "skip"
		case 3:
			outcome.Kind = "failed"
			class, _ := r.text()
			outcome.Failure = &Failure{Class: Class(class)}
			outcome.Failure.Code, _ = r.text()
			outcome.Failure.Message, _ = r.text()
		}
		all = append(all, outcome)
	}
	if r.bad || r.at != len(reply) {
		return nil, fmt.Errorf("the reply cannot be read")
	}
	return all, nil
}
